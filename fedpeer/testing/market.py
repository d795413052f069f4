"""A whole market in this process: coordinator, task, participants, and a clock that moves only when asked."""

import asyncio
import copy
import inspect
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np

from coordinator.config import TaskConfig
from coordinator.errors import MarketTaskError
from fedpeer.protocol.model_file import encode_model
from fedpeer.testing.coordinator import LocalCoordinator
from fedpeer.testing.errors import PATIENCE_SECONDS, MarketTestError
from fedpeer.testing.participant import LocalParticipant, derived_key, write_key
from fedpeer.testing.terms import merged, task_config
from mechanism.errors import kind_of
from mechanism.ledger.entries import outcome_from_record
from mechanism.ledger.verify import Report
from mechanism.lifecycle import State
from mechanism.settlement import expected_payments
from mechanism.terms import MIN_QUORUM
from participant import Activity, Participant, Task, TaskReport, Trained, TrainingRound, Weights
from participant.effort import Effort

#: What participants train: one task, of which each gets a copy, or something that makes one.
TaskSource = Task | Callable[..., Task]

#: States in which a phase has closed: that of the claims, and that of a round's models.
_CLAIMS_CLOSED = (State.SELECTED, State.CANCELLED)
_ROUND_CLOSED = (State.SCORED, State.SETTLED, State.CLOSED, State.CANCELLED)

#: Seconds of the market's clock, decades.
_NEVER_ABSENT = 1e9

#: Seconds of real time that participants get to end when the market is closed: they are threads and cannot be killed.
_END_SECONDS = 3.0


class LocalMarket:
    """One task with its coordinator and participants. Use it in `with` or `async with`; then `run` it.

    The clock stands still. Phases end when everybody is in; where somebody never comes, `run` moves the clock to the
    phase's deadline, and `advance` moves it as far as a test wants.

    Args:
        task: a `Task`, which each participant gets a copy of; or a class or function that makes one, called with
            `participant=0, 1, ...` where it has a parameter of that name; or one of these for each participant. None:
            a task that moves every weight a little.
        participants: how many, named p1, p2, ...; or their names. A round needs three.
        rounds: of the task; None: what the terms say, or 2.
        weights: the model that the first round starts from; None: the terms' `initial_model`, the task's
            `start_weights()`, or the architecture's own.
        terms: keys and sections of a task file that are to be different, such as {"rule": {"peers": 2}}.
        effort: of everybody, as `Participant.run` takes it; None: the best response to the terms.
        folder: where everything lies; None: a temporary folder, gone at the end.
        insecure: no TLS.
        seed: decides the participants' keys and with them who is drawn as whose peer.
        paths: the folder that relative paths in the terms are taken from.
        on_progress: called with a participant's name and what it does, in that participant's thread.

    Attributes:
        coordinator: the `LocalCoordinator`; its `operator` has every command.
        participants: `LocalParticipant` by name.
        task_id: "task", or what the terms say.

    Raises:
        MarketTestError: too few participants, a name twice, something that is no task, no weights to begin with.
        ConfigError, FieldError, MarketTaskError: terms that cannot be opened; raised on entering.
    """

    def __init__(
        self,
        task: TaskSource | Sequence[TaskSource] | None = None,
        participants: int | Sequence[str] = 3,
        *,
        rounds: int | None = None,
        weights: Weights | None = None,
        terms: Mapping[str, Any] | None = None,
        effort: Effort | None = None,
        folder: Path | None = None,
        insecure: bool = False,
        seed: int = 0,
        paths: Path | None = None,
        on_progress: Callable[[str, Activity], None] | None = None,
    ) -> None:
        names = _names(participants)
        tasks = _tasks(_Step if task is None else task, names)
        self._terms = _terms(terms or {}, rounds, len(names), tasks[0])
        self._weights = _first_weights(tasks[0], weights, self._terms)
        self.task_id: str = self._terms.get("id", "task")
        self._effort = effort
        self._seed = seed
        self._insecure = insecure
        self._temporary = (
            TemporaryDirectory(prefix="fedpeer-market-", ignore_cleanup_errors=True)
            if folder is None
            else None
        )
        self.folder = Path(self._temporary.name if self._temporary is not None else folder or "")
        self._paths = Path.cwd() if paths is None else paths
        self._noticed = threading.Condition()
        self._moved: set[int] = set()
        self.coordinator: LocalCoordinator
        self.participants: dict[str, LocalParticipant] = {
            name: LocalParticipant(
                name,
                each,
                self.folder / name,
                self._connect,
                noticed=self._noticed,
                closed=self._await_close,
                on_progress=on_progress,
            )
            for name, each in zip(names, tasks, strict=True)
        }

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            config = task_config(self.folder, self._weights, paths=self._paths, **self._terms)
            # A dead participant is waited for until the deadline, so that a round closes at one time and no other.
            self.coordinator = LocalCoordinator(
                self.folder / "coordinator", insecure=self._insecure, absence_seconds=_NEVER_ABSENT
            )
            self.coordinator.start()
            self._open(config)
            with ThreadPoolExecutor(len(self.participants)) as threads:
                list(threads.map(self._enrol, self.participants))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *raised: object) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Ends everything; a temporary folder is gone."""
        for participant in self.participants.values():
            participant.stop()
        if hasattr(self, "coordinator"):
            self.coordinator.close()
        end = time.monotonic() + _END_SECONDS
        for participant in self.participants.values():
            participant.join(max(0.0, end - time.monotonic()))
        if self._temporary is not None:
            self._temporary.cleanup()

    def run(self, patience: float = PATIENCE_SECONDS) -> dict[str, TaskReport]:
        """Plays the task to its end: `start` and `finish`."""
        self.start()
        return self.finish(patience)

    def start(self) -> None:
        """Lets everybody take part who does not yet, each in a thread of its own."""
        for participant in self.participants.values():
            if not participant.running and not participant.dead:
                participant.start(self.task_id, self._effort)

    def finish(self, patience: float = PATIENCE_SECONDS) -> dict[str, TaskReport]:
        """Waits for the task's end; returns each participant's `TaskReport`, of the dead as far as they came.

        Where a phase waits for nobody but the dead and the late, the clock moves to its deadline.

        Args:
            patience: seconds of real time in which something must happen.

        Raises:
            MarketTestError: nothing has happened for so long.
            Exception: what a participant's run ended with, other than an injected death.
        """
        people = list(self.participants.values())
        while any(person.running for person in people):
            self._pass_time()
            with self._noticed:
                if any(person.running for person in people) and self._stalled() is None:
                    before = self._state_of_things()
                    if not self._noticed.wait_for(partial(self._differs, before), patience):
                        raise MarketTestError(
                            f"nothing has happened for {patience:g} s; {self.coordinator.stands(self.task_id)}"
                        )
        for person in people:
            if person.error is not None:
                raise person.error
        self._pass_time()
        self.until(State.CLOSED, State.CANCELLED)
        reports = {name: person.report for name, person in self.participants.items()}
        return {name: report for name, report in reports.items() if report is not None}

    def until(self, *states: str, round: int = 0, patience: float = PATIENCE_SECONDS) -> str:  # noqa: A002
        """Waits until the task has been in one of the states; see `LocalCoordinator.until`."""
        return self.coordinator.until(self.task_id, *states, round=round, patience=patience)

    def advance(self, seconds: float) -> None:
        """Moves the clock; see `LocalCoordinator.advance`."""
        self.coordinator.advance(seconds)

    def pass_deadline(self, *, round: int, patience: float = PATIENCE_SECONDS) -> None:  # noqa: A002
        """Waits until a round, or the claims with round 0, waits for nobody but the dead and the late; then moves the
        clock to its deadline.

        Raises:
            MarketTestError: it does not come to that within `patience` seconds of real time.
        """
        with self._noticed:
            if not self._noticed.wait_for(lambda: self._stalled() == round, patience):
                raise MarketTestError(
                    f"round {round} does not wait for the dead and the late alone after {patience:g} s; "
                    + self.coordinator.stands(self.task_id)
                )
        self._pass_time()

    def restart(self) -> None:
        """The coordinator stops at once and serves again; participants wait and go on."""
        self.coordinator.restart()

    @property
    def state(self) -> str:
        """Where the task stands, such as "CLOSED"."""
        return str(self.coordinator.task(self.task_id).row.state)

    @property
    def paid_micro(self) -> dict[str, int]:
        """What each participant has been paid so far, micro-credits."""
        paid = self.coordinator.task(self.task_id).paid_micro
        return {name: paid.get(name, 0) for name in self.participants}

    @property
    def expected_micro(self) -> dict[str, int]:
        """What each would have been paid so far in the mean over all draws of peers, micro-credits."""
        terms, expected = self.coordinator.task(self.task_id).row.terms, dict.fromkeys(self.participants, 0)
        verdicts = self.entries("verdict")
        for round_ in {body["round"] for body in verdicts}:
            judged = [outcome_from_record(v["outcome"]) for v in verdicts if v["round"] == round_]
            for name, micro in expected_payments(terms, judged).items():
                expected[name] += micro
        return expected

    def entries(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The ledger's entries; see `LocalCoordinator.entries`."""
        return self.coordinator.entries(kind)

    def verify(self) -> Report:
        """Verifies the ledger; see `LocalCoordinator.verify`."""
        return self.coordinator.verify()

    def _open(self, config: TaskConfig) -> None:
        """Publishes the task. What is wrong with the first model is said of that, not of a file that nobody named."""
        try:
            self.coordinator.open(config, deposit=True)
        except MarketTaskError as error:
            if self._weights is None:
                raise
            said = str(error).replace(f"initial_model {config.initial_model}", "the first model")
            raise MarketTaskError(said) from None

    def _enrol(self, name: str) -> None:
        state = self.folder / name
        write_key(state, derived_key(self._seed, name))
        self.coordinator.enrol(name, state)

    def _connect(self, state: Path) -> Participant:
        return Participant(state, self.coordinator.market, insecure=self._insecure)

    def _await_close(self, phase: int) -> None:
        """Waits until the claims (phase 0) or the models of a round are no longer taken."""
        states = _ROUND_CLOSED if phase else _CLAIMS_CLOSED
        self.until(*states, round=phase)

    def _differs(self, before: tuple[Any, ...]) -> bool:
        return self._state_of_things() != before

    def _state_of_things(self) -> tuple[Any, ...]:
        return tuple((p.running, p.phases) for p in self.participants.values())

    def _stalled(self) -> int | None:
        """The phase that waits for nobody but the dead and the late; None where there is none."""
        people = self.participants.values()
        last = max(max(person.phases, default=0) for person in people)
        for number in range(last + 2):
            if number in self._moved:
                continue
            held = [p for p in people if p.holds_up(number)]
            if held and all(p in held or p.through(number) for p in people):
                return number
        return None

    def _pass_time(self) -> None:
        """Moves the clock to the deadline of the phase that is stalled, where one is."""
        with self._noticed:
            phase = self._stalled()
        if phase is None:
            return
        self._moved.add(phase)
        report = self.coordinator.task(self.task_id)
        row = report.row
        if row.round != phase or row.deadline is None:
            return
        awaited = {*report.selected} - {*report.delivered} - report.failures.keys()
        if (row.state is State.TRAINING and awaited) or (row.state is State.EFFORT and not phase):
            self.advance(max(0.0, row.deadline - self.coordinator.clock.now()))


class _Step(Task):
    """Moves every weight by a step of its own; has four labels, a little uneven."""

    def __init__(self, participant: int = 0) -> None:
        self._number = participant

    def start_weights(self) -> dict[str, Any]:
        return {"bias": np.zeros(4, np.float32), "weight": np.ones((4, 3), np.float32)}

    def counts(self) -> list[int]:
        return [25 + self._number, 25, 25, 25]

    def train(self, weights: Weights, round: TrainingRound) -> Trained:  # noqa: A002 - as Task.train
        step = np.float32(0.01 * (1 + self._number))
        return Trained({name: array + step for name, array in weights.items()})


def _names(participants: int | Sequence[str]) -> list[str]:
    if isinstance(participants, int):
        names = [f"p{number + 1}" for number in range(participants)]
    else:
        names = list(participants)
    if len(set(names)) != len(names):
        raise MarketTestError(f"participants are {names}; expected each name once")
    if len(names) < MIN_QUORUM:
        raise MarketTestError(
            f"there are {len(names)} participants; expected at least {MIN_QUORUM}: with fewer no round counts"
        )
    return names


def _tasks(source: TaskSource | Sequence[TaskSource], names: Sequence[str]) -> list[Task]:
    """A task for each participant."""
    if not isinstance(source, Sequence):
        return [make_task(source, number, name) for number, name in enumerate(names)]
    if len(source) != len(names):
        raise MarketTestError(
            f"there are {len(source)} tasks for {len(names)} participants; expected one for each"
        )
    return [
        each if isinstance(each, Task) else make_task(each, number, names[number])
        for number, each in enumerate(source)
    ]


def make_task(source: TaskSource, number: int, participant: str) -> Task:
    """The task of one participant: a copy, or what the class or function makes of its number, counted from 0.

    Raises:
        MarketTestError: it cannot be made, or is no task; a sentence.
    """
    name = getattr(source, "__name__", type(source).__name__)
    try:
        if isinstance(source, Task):
            made: Any = copy.deepcopy(source)
        elif callable(source):
            numbered = _takes_number(source)
            made = source(participant=number) if numbered else source()
        else:
            raise MarketTestError(
                f"the task is {source!r:.80}, {kind_of(source)}; expected a Task, or a class or function that makes one"
            )
    except MarketTestError:
        raise
    except (Exception, SystemExit) as error:
        raise MarketTestError(
            f"the task {name} of {participant} could not be made: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, Task):
        raise MarketTestError(f"{name} makes {kind_of(made)}; expected a Task")
    return made


def _takes_number(source: Callable[..., Any]) -> bool:
    try:
        return "participant" in inspect.signature(source).parameters
    except ValueError:  # a built-in
        return False


def _terms(changes: Mapping[str, Any], rounds: int | None, participants: int, task: Task) -> dict[str, Any]:
    """The changes of the terms, with what the market itself decides."""
    schedule: dict[str, Any] = {"capacity": participants}
    if rounds is not None:
        schedule["rounds"] = rounds
    terms = merged(changes, {"schedule": {**changes.get("schedule", {}), **schedule}})
    if (quorum := terms["schedule"].get("quorum", MIN_QUORUM)) > participants:
        raise MarketTestError(
            f"the quorum is {quorum}, and there are {participants} participants; expected as many"
        )
    peers = terms.get("rule", {}).get("peers")
    if isinstance(peers, int) and peers >= participants:
        terms = merged(terms, {"rule": {**terms["rule"], "peers": "all"}})  # of the task file's, who are more
    if "reference" not in terms and "data" not in terms:
        strata = _strata(task)
        terms["reference"] = [f"1/{strata}"] * strata
    return {key: value for key, value in terms.items() if value is not None}


def _strata(task: Task) -> int:
    """How many strata a task's counts have.

    Raises:
        MarketTestError: they do not say, or not before the terms are known.
    """
    try:
        counts: Any = task.counts()
        if not isinstance(counts, Mapping):
            return len(counts)
        said = "is a mapping, which names no stratum without samples"
    except (Exception, SystemExit) as error:
        said = f"gives no list of them yet: {type(error).__name__}: {error}"
    raise MarketTestError(
        "the terms have no reference, and how many strata it has is not known: "
        f"{type(task).__name__}.{task.counted_by} {said}; give the terms a reference, one probability a stratum"
    )


def start_weights(task: Any) -> Weights:
    """The first model that a task itself gives.

    Raises:
        MarketTestError: it raises, or gives something else than names and arrays that a model file can hold.
    """
    try:
        start = dict(task.start_weights())
        encode_model(start)
    except (Exception, SystemExit) as error:
        raise MarketTestError(
            f"start_weights raised {type(error).__name__}, or gives no names with their arrays: {error}"
        ) from error
    return start


def _first_weights(task: Task, weights: Weights | None, terms: Mapping[str, Any]) -> Weights | None:
    """The first model, where the terms do not lead to one."""
    named = terms.get("recipe", {}).get("model", "custom") != "custom"
    if weights is not None or "initial_model" in terms or named:
        return weights
    if hasattr(task, "start_weights"):
        return start_weights(task)
    name = type(task).__name__
    raise MarketTestError(
        f"there is no model to begin with: give {name} a method start_weights() that returns names to arrays, pass "
        "them as weights, or name a file as initial_model in the terms"
    )
