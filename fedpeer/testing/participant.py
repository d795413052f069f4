"""One participant of a local market, in a thread of its own, and the faults that a test gives it."""

import threading
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import numpy as np

from fedpeer.protocol.certificates import PrivateKey, key_from, private_key_pem
from fedpeer.protocol.model_file import encode_model
from fedpeer.testing.errors import PATIENCE_SECONDS, MarketTestError
from mechanism.terms import Terms
from participant import Activity, Participant, Task, TaskReport, TrainingCancelled, TrainingRound
from participant.effort import Effort
from participant.identity import KEY, IdentityFolder
from participant.journal import Journal
from participant.report import report_of
from participant.work import LocalTrainer, TrainedFile

#: A model that is not a task's.
_GARBAGE = {"garbage": np.arange(250, dtype=np.float32)}

#: What a participant tells that completes its part of a phase. After "missed" the coordinator may wait on.
_DONE = frozenset({"claimed", "submitted"})


class Fault(StrEnum):
    """What goes wrong with a participant in a round."""

    DIES = "dies"
    LATE = "late"
    GARBAGE = "garbage"


class Died(BaseException):
    """Ends a participant's thread as a kill ends a process: nobody learns of it."""


class LocalParticipant:
    """A participant of a `LocalMarket`. Faults are given before it comes to their round; round 0 is the claim.

    Attributes:
        name: its participant id.
        task: what it trains; a test may look at it afterwards.
        error: what ended its run early, other than an injected death; None where nothing did.
        dead: whether an injected death has ended its run.
        running: whether it takes part now.
    """

    def __init__(
        self,
        name: str,
        task: Task,
        folder: Path,
        connect: Callable[[Path], Participant],
        *,
        noticed: threading.Condition,
        closed: Callable[[int], None],
        on_progress: Callable[[str, Activity], None] | None = None,
    ) -> None:
        self.name = name
        self.task = task
        self.error: BaseException | None = None
        self.dead = False
        self._folder = folder
        self._connect = connect
        self._noticed = noticed
        self._closed = closed
        self._on_progress = on_progress
        self._faults: dict[int, Fault] = {}
        self._phases: set[int] = set()
        self._held: set[int] = set()
        self._thread: threading.Thread | None = None
        self.running = False
        self._stopping = False
        self._participant: Participant | None = None
        self._report: TaskReport | None = None
        self._arguments: tuple[str, Effort | None] = ("", None)

    def dies(self, *, round: int = 1) -> None:  # noqa: A002 - the field's word
        """Stops without a word while it trains for `round`; 0: before it claims. `comes_back` starts it again."""
        self._give(round, Fault.DIES)

    def is_late(self, *, round: int = 1) -> None:  # noqa: A002
        """Sends its model for `round`, or its claim in round 0, when that has closed without it."""
        self._give(round, Fault.LATE)

    def sends_garbage(self, *, round: int = 1) -> None:  # noqa: A002
        """Sends a model of quite another layout for `round`, signed as it is; the coordinator refuses it."""
        if round < 1:
            raise MarketTestError(f"{self.name} sends no model in round {round}; name a round from 1 on")
        self._give(round, Fault.GARBAGE)

    def comes_back(self) -> None:
        """Starts again after a death, from its journal, as a service does that is started again.

        Raises:
            MarketTestError: it is not dead.
        """
        if not self.dead:
            raise MarketTestError(
                f"{self.name} is not dead, so it cannot come back; wait for its death first"
            )
        self.join(PATIENCE_SECONDS)
        self.dead = False
        self.start(*self._arguments)

    def until_dead(self, patience: float = PATIENCE_SECONDS) -> None:
        """Waits until a death that was injected has come.

        Raises:
            MarketTestError: it does not come within `patience` seconds of real time.
        """
        with self._noticed:
            if not self._noticed.wait_for(lambda: self.dead, patience):
                raise MarketTestError(f"{self.name} did not die in {patience:g} s; was it given a death?")

    @property
    def report(self) -> TaskReport | None:
        """How the task has gone for it so far, from its journal; None where it has not joined one."""
        if self._report is not None or not (self._folder / "journal.db").exists():
            return self._report
        journal = Journal(self._folder / "journal.db", writer=False)
        try:
            return report_of(journal, self._arguments[0], self.name)
        except KeyError:
            return None
        finally:
            journal.close()

    def start(self, task_id: str, effort: Effort | None) -> None:
        """Begins to take part, in a thread."""
        self._arguments = task_id, effort
        self.running = True
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the connection; a training ends when it next reports its progress."""
        self._stopping = True
        if (participant := self._participant) is not None:
            participant.client.transport.stop()

    def join(self, seconds: float) -> None:
        if self._thread is not None:
            self._thread.join(seconds)

    def holds_up(self, phase: int) -> bool:
        """Whether a phase has nothing more to expect of it before its deadline, and waits for it all the same."""
        if phase in self._phases or (phase and 0 not in self._phases):
            return False
        return phase in self._held or not self.running

    def through(self, phase: int) -> bool:
        """Whether it has done its part of a phase, or had none."""
        return phase in self._phases or (phase > 0 and 0 not in self._phases and not self.running)

    @property
    def phases(self) -> frozenset[int]:
        """The phases that it has come to."""
        return frozenset(self._phases | self._held)

    def _give(self, phase: int, fault: Fault) -> None:
        self._faults[phase] = fault

    def _run(self) -> None:
        task_id, effort = self._arguments
        try:
            with self._connect(self._folder) as self._participant:
                trainer = _Trainer(self.task, self._faults, self._hold)
                self._report = self._participant.run(trainer, task_id, effort=effort, on_progress=self._note)
        except Died:
            with self._noticed:
                self.dead = True
        except BaseException as error:
            self.error = error
        finally:
            self._participant = None
            with self._noticed:
                self.running = False
                self._noticed.notify_all()

    def _note(self, activity: Activity) -> None:
        if self._stopping and activity.kind == "progress":
            raise TrainingCancelled
        if self._on_progress is not None:
            self._on_progress(self.name, activity)
        done = activity.kind in _DONE
        if done or activity.kind == "missed":
            with self._noticed:
                (self._phases if done else self._held).add(activity.round)
                self._noticed.notify_all()

    def _hold(self, phase: int) -> None:
        """Returns when the phase has closed."""
        with self._noticed:
            self._held.add(phase)
            self._noticed.notify_all()
        with suppress(MarketTestError):  # the task ended
            self._closed(phase)


class _Trainer(LocalTrainer):
    """Trains the task, but for the rounds with a fault."""

    def __init__(self, task: Task, faults: dict[int, Fault], hold: Callable[[int], None]) -> None:
        super().__init__(task, leaving_fails=True)
        self._faults = faults
        self._hold = hold

    def prepare(self, terms: Terms) -> None:
        super().prepare(terms)
        self._fail(0)

    def train(self, start: Path, trained: Path, round: TrainingRound) -> TrainedFile:  # noqa: A002 - as Task.train
        if self._faults.get(round.number) is Fault.GARBAGE:
            del self._faults[round.number]
            trained.write_bytes(encode_model(_GARBAGE))
            return TrainedFile(1, {})
        made = super().train(start, trained, round)
        self._fail(round.number)
        return made

    def _fail(self, phase: int) -> None:
        match self._faults.pop(phase, None):
            case Fault.DIES:
                raise Died
            case Fault.LATE:
                self._hold(phase)


def derived_key(seed: int, name: str) -> PrivateKey:
    """A key by seed and name. Draw shares come of keys, so the same seed gives the same peers."""
    return key_from(f"fedpeer local market {seed}/{name}")


def write_key(state: Path, key: PrivateKey) -> None:
    """Gives a participant its key before it enrols."""
    folder = IdentityFolder(state)
    folder.create()
    folder.write(KEY, private_key_pem(key), mode=0o600)
