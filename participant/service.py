"""The participant as a service: several tasks at once, for weeks, with training in processes of their own.

Outbound connections only. SIGTERM lets a training in progress finish for a while, then hands its round back; a
round is never lost to a restart, because the journal knows what was begun.
"""

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from mechanism.terms import Terms
from participant.backoff import Backoff
from participant.config import ParticipantConfig, TaskSection
from participant.effects import Stopped
from participant.engagement import LOOK_SECONDS
from participant.errors import (
    DeclinedError,
    ForeignKeyError,
    ParticipantError,
    RefusedError,
    SessionTakenOverError,
    SharesLostError,
    StateError,
    TaskError,
)
from participant.identity import utc_now
from participant.persistence import may_pass
from participant.report import TaskReport
from participant.sync import Participant
from participant.task import TrainingCancelled, TrainingRound
from participant.trainer_process import ProcessTrainer
from participant.work import Activity, ActivityCallback, LocalTrainer, TrainedFile, Trainer

_log = logging.getLogger("participant")

#: Seconds between looks at the certificate's age; shorter where it is due earlier. The machine's clock may be set.
RENEWAL_SECONDS = 600.0

#: Seconds until a renewal that was refused is tried again.
RETRY_SECONDS = 60.0


class Service:
    """Runs a participant by its configuration.

    Args:
        tell: called with what happens, from several threads.
    """

    def __init__(self, config: ParticipantConfig, tell: ActivityCallback) -> None:
        patience = config.service.patience_seconds or None
        self._config = config
        self._slots = threading.Semaphore(config.service.trainers)
        self._stopping = threading.Event()
        self._participant = Participant(
            config.state,
            config.coordinator.market,
            insecure=config.coordinator.insecure,
            foreign_keys=config.service.foreign_keys,
            policy=config.policy.build(),
            privacy_limit=None if config.privacy is None else config.privacy.build(),
            backoff=Backoff(patience=patience, first_contact=patience),
        )
        self._workers = [_Worker(section, tell) for section in config.task]
        self._named = {section.id for section in config.task if section.id is not None}
        # It fetches what earlier tasks paid, before it looks for the next one.
        self._first = next(
            (worker for worker in self._workers if worker.section.id is None), self._workers[0]
        )
        self._once = False
        self._threads = {
            worker: threading.Thread(target=self._guarded, args=(worker,), name=worker.name)
            for worker in self._workers
        }

    def run(self, *, once: bool = False) -> list[TaskReport]:
        """Takes part until every named task has ended, or until `stop`.

        A task without an id in the configuration means any open one, one after another, for ever unless `once`.

        Raises:
            ConfigurationError: a task object that cannot be made; nothing has been agreed to then.
            ParticipantError: the first failure of a task that is not the coordinator's absence.
        """
        self._once = once
        renewal = threading.Thread(target=self._keep_certified, daemon=True, name="renewal")
        try:
            for worker in self._workers:
                worker.make(self._config.service.isolate)
            renewal.start()
            for thread in self._threads.values():
                thread.start()
            for thread in self._threads.values():
                while thread.is_alive():  # short waits, so that a signal handler gets its turn
                    thread.join(0.2)
        except TrainingCancelled:
            pass  # stopped while the tasks were being made
        finally:
            for worker in self._workers:
                worker.close()
            self._stopping.set()
            reports = self._participant.reports()
            self._participant.close()
        for worker in self._workers:
            if worker.failure is not None:
                raise worker.failure
        return reports

    def stop(self) -> None:
        """Ends the service: at once where nothing is trained, else after the grace period. For signal handlers."""
        if not self._stopping.is_set():
            self._stopping.set()
            threading.Thread(target=self._wind_down, daemon=True, name="stop").start()

    def _wind_down(self) -> None:
        try:
            end = monotonic() + self._config.service.grace_seconds
            for worker in self._workers:
                if not worker.idle.wait(max(0.0, end - monotonic())):
                    worker.cancel()
            for worker in self._workers:
                worker.idle.wait(_HAND_BACK_SECONDS)
        finally:  # else nothing would end the service
            self._participant.client.transport.stop()
        for worker in self._workers:
            worker.cancel()  # one that was still being prepared

    def _guarded(self, worker: "_Worker") -> None:
        waits = Backoff(first=1.0, ceiling=60.0).waits()
        began, restarts = monotonic(), 0
        while True:
            try:
                self._serve(worker)
            except (Stopped, TrainingCancelled):
                pass
            except BaseException as error:  # it ends this worker only, and is raised by `run` at the end
                if monotonic() - began >= _SOUND_SECONDS:
                    restarts = 0
                if self._begins_again(error, restarts):
                    kind = type(error).__name__
                    _log.error("%s: the task ended with %s: %s; it begins again", worker.name, kind, error)
                    worker.idle.set()
                    worker.close()
                    self._stopping.wait(next(waits))
                    began, restarts = monotonic(), restarts + 1
                    continue
                worker.failure = error
                # Where others go on, perhaps for weeks; else `run` raises it at once.
                if any(other is not worker and thread.is_alive() for other, thread in self._threads.items()):
                    _log.error("%s", error)
            finally:
                worker.idle.set()
            worker.close()
            return

    def _begins_again(self, error: BaseException, restarts: int) -> bool:
        """Whether a worker's end was not planned: a fault of this machine, or of the code, but not the same one for
        ever. What the participant's owner or the coordinator's operator must repair ends it at once."""
        if self._stopping.is_set() or not isinstance(error, Exception):
            return False
        return may_pass(error) or (not isinstance(error, ParticipantError) and restarts < _RESTARTS)

    def _serve(self, worker: "_Worker") -> None:
        begun = (0, 0)
        if worker is self._first:
            self._look_at_keys()
            begun = self._catch_up(worker)
        if worker.section.id is not None:
            self._take_part(worker, worker.section.id)
            return
        ended, restored = begun
        if self._once and ended:
            return  # the one task had come to its end while nobody was here
        named, waiting = self._named, False
        while not self._stopping.is_set():
            task_id = self._participant.find_task(excluded=named)
            if task_id is None:
                if self._once and restored:
                    return
                if not waiting:
                    _log.info("no task takes claims now; waiting for one")
                waiting = True
                self._stopping.wait(LOOK_SECONDS)
                continue
            try:
                self._take_part(worker, task_id)
            except SessionTakenOverError:
                raise  # taking the task up again would drive the other process out in turn, and so for ever
            except DeclinedError as error:
                _log.warning("%s", error)
                continue
            except (RefusedError, SharesLostError, TaskError) as error:
                if self._once:
                    raise
                self._leave(task_id, error)
            if self._once:
                return

    def _look_at_keys(self) -> None:
        """At the start, whether or not there is a task; later looks come with tasks and receipts."""
        problems = self._participant.keys().problems
        if problems and self._config.service.foreign_keys == "stop":
            raise ForeignKeyError(" ".join(problems))

    def _catch_up(self, worker: "_Worker") -> tuple[int, int]:
        """Fetches what ended tasks paid while this participant, or its journal, was away.

        Returns:
            how many the journal had begun, and how many it did not know or had incomplete.
        """
        counted = {True: 0, False: 0}
        for past in self._participant.past_tasks(excluded=self._named):
            try:
                self._participant.catch_up(past.task_id, worker.tell)
            except SessionTakenOverError:
                raise
            except (RefusedError, StateError) as error:
                _log.warning("what task %s paid was not fetched: %s", past.task_id, error)
            else:
                counted[past.begun] += 1
        return counted[True], counted[False]

    def _leave(self, task_id: str, error: ParticipantError) -> None:
        """After a task that cannot be taken part in: the next one, or this one again where there is a claim."""
        _log.warning("task %s: %s", task_id, error)
        if not self._participant.claimed(task_id):
            self._participant.note(task_id, str(error))
        self._stopping.wait(LOOK_SECONDS)

    def _take_part(self, worker: "_Worker", task_id: str) -> None:
        self._participant.run(
            worker.trainer(self._slots, self._stopping, self._config.service.isolate),
            task_id,
            effort=worker.section.strategy,
            on_progress=worker.tell,
            privacy=worker.section.own_privacy,
        )

    def _keep_certified(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._participant.renew():
                    _log.info("the certificate was renewed")
            except Stopped:
                return
            except Exception as error:  # whatever it was: who has no certificate has no say any more
                _log.warning("the certificate was not renewed: %s", error)
            due = (self._participant.credentials.renewal_due - utc_now()).total_seconds()
            self._stopping.wait(min(RENEWAL_SECONDS, due) if due > 0 else RETRY_SECONDS)


#: How often a worker whose code fails begins again, and after how many seconds of work that is counted from 0.
_RESTARTS = 3
_SOUND_SECONDS = 600.0

#: Seconds that handing a round back may take: one call.
_HAND_BACK_SECONDS = 5.0


class _Worker:
    """One [[task]] at work.

    Attributes:
        idle: set while no round is being trained or sent.
        failure: what ended it.
    """

    def __init__(self, section: TaskSection, tell: ActivityCallback) -> None:
        self.section = section
        self.name = section.id or "any task"
        self.idle = threading.Event()
        self.idle.set()
        self.failure: BaseException | None = None
        self._tell = tell
        self._cancelled = threading.Event()
        self._process: ProcessTrainer | None = None
        self._made: Trainer | None = None

    def make(self, isolate: bool) -> Trainer:
        """Makes the section's task, in this process or in one of its own; what is wrong with it shows here."""
        self.close()
        if isolate:
            self._made = self._process = ProcessTrainer(self.section.spec)
            self._process.start()
        else:
            self._made = LocalTrainer(self.section.spec.build(), leaving_fails=True)
        return self._made

    def trainer(self, slots: threading.Semaphore, stopping: threading.Event, isolate: bool) -> Trainer:
        """Where the section's next task runs: a task object of its own for each."""
        made, self._made = self._made or self.make(isolate), None
        return _SlottedTrainer(made, slots, stopping)

    def tell(self, activity: Activity) -> None:
        if activity.kind == "training":
            self.idle.clear()
        elif activity.kind in ("submitted", "missed"):
            self.idle.set()
        self._tell(activity)
        if activity.kind == "progress" and self._cancelled.is_set():
            raise TrainingCancelled  # out of a training in this process, at its next word

    def cancel(self) -> None:
        """Ends a training in progress; its round is handed back."""
        self._cancelled.set()
        if self._process is not None:
            self._process.cancel()

    def close(self) -> None:
        """Ends the process that trains, where there is one."""
        if self._process is not None:
            self._process.close()
            self._process = None


class _SlottedTrainer:
    """A trainer that waits for a free slot before it trains, and starts nothing once the service stops."""

    def __init__(self, inner: Trainer, slots: threading.Semaphore, stopping: threading.Event) -> None:
        self._inner = inner
        self._slots = slots
        self._stopping = stopping

    def prepare(self, terms: Terms) -> None:
        self._inner.prepare(terms)

    def counts(self) -> Sequence[int]:
        return self._inner.counts()

    def collect(self, effort: float) -> None:
        self._inner.collect(effort)

    def samples_root(self, salt: bytes) -> bytes:
        return self._inner.samples_root(salt)

    def train(self, start: Path, trained: Path, round: TrainingRound) -> TrainedFile:  # noqa: A002 - as Task.train
        while not self._slots.acquire(timeout=_SLOT_SECONDS):
            self._check()
        try:
            self._check()
            return self._inner.train(start, trained, round)
        finally:
            self._slots.release()

    def _check(self) -> None:
        if self._stopping.is_set():
            raise Stopped  # nothing was begun: the round is still there after a restart


#: Seconds between looks at whether the service stops while a training waits for its slot.
_SLOT_SECONDS = 0.5
