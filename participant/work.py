"""A whole task with a `Task` object: decide, collect, claim, train each round, submit.

It reports what it does as `Activity` values, which the command line logs and a program may watch.
"""

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, Protocol

from fedpeer.protocol.faults import Outlook, outlook
from mechanism.errors import FieldError
from mechanism.terms import Terms
from participant.effects import Steps, Work, transform
from participant.effort import EffortStrategy, decision_of
from participant.engagement import Assignment, Engagement, read_counts, whole_samples
from participant.errors import (
    ParticipantError,
    RefusedError,
    StateError,
    TaskError,
    TrainingError,
)
from participant.model_store import read_weights, write_trained
from participant.persistence import patiently
from participant.task import Task, Trained, TrainingCancelled, TrainingRound

_log = logging.getLogger("participant")

#: Part of a payment below which a sentence says nothing.
_NOTHING = 0.005

#: Times the recipe's samples that count as so many.
_MORE = 1.1


@dataclass(frozen=True)
class Activity:
    """Something that happened in a task.

    Attributes:
        kind: "waiting" (for a task, whose id is empty), "declined", "joined", "decided", "claimed", "training",
            "progress", "submitted", "missed", "settled" or "ended".
        round: 0 outside rounds.
        text: a sentence.
        figures: numbers that belong to it.
    """

    kind: Literal[
        "waiting",
        "declined",
        "joined",
        "decided",
        "claimed",
        "training",
        "progress",
        "submitted",
        "missed",
        "settled",
        "ended",
    ]
    task_id: str
    round: int
    text: str
    figures: Mapping[str, float | int | str] = field(default_factory=dict)


ActivityCallback = Callable[[Activity], None]


def ignore_activity(activity: Activity) -> None:
    """Nobody watches."""


@dataclass(frozen=True)
class TrainedFile:
    """What a trainer made: the model lies in the file that was asked for."""

    samples: int
    metrics: Mapping[str, float]


class Trainer(Protocol):
    """Where a `Task` runs: in this process, or in one of its own."""

    def prepare(self, terms: Terms) -> None: ...

    def counts(self) -> Sequence[int]: ...

    def collect(self, effort: float) -> None: ...

    def samples_root(self, salt: bytes) -> bytes:
        """The commitment to the samples (`mechanism.sample_tree`).

        Raises:
            TaskError: the task does not say what they are.
        """

    def train(self, start: Path, trained: Path, round: TrainingRound) -> TrainedFile:  # noqa: A002 - as Task.train
        """Trains from the model file `start` and writes `trained`.

        Raises:
            TaskError: the training failed or gave weights that do not fit the contract.
            TrainingCancelled: the round is to be handed back.
        """


class LocalTrainer:
    """Runs the task in the calling thread.

    Args:
        leaving_fails: whether a SystemExit is the task's failure: in a thread, where no signal handler has raised it.
    """

    def __init__(self, task: Task, *, leaving_fails: bool = False) -> None:
        self._task = task
        self._failures: tuple[type[BaseException], ...] = (
            (Exception, SystemExit) if leaving_fails else (Exception,)
        )
        self._terms: Terms | None = None
        self._said = False

    def prepare(self, terms: Terms) -> None:
        self._terms = terms
        privacy = terms.recipe.privacy
        if privacy is not None and privacy.method == "dp-sgd" and not self._task.dp_sgd:
            raise TaskError(
                f"models are to be trained by DP-SGD, which {type(self._task).__name__} does not do; use TorchTask or "
                'WorkloadTask with a torch module, or noise of your own choice with the method "update"',
                public="the participant's task does not train by DP-SGD",
            )
        self._called("prepare", lambda: self._task.prepare(terms))

    def counts(self) -> Sequence[int]:
        name, kind = self._task.counted_by, type(self._task).__name__
        if not callable(self._task.counts):
            raise TaskError(
                f"{kind} has something else as self.counts, which hides its method; name it otherwise"
            )
        counts = self._called(name, self._task.counts)
        if self._terms is None:
            raise TaskError("the counts are asked for before `prepare` has given the terms")
        found = read_counts(counts, self._terms, f"{kind}.{name}")
        if not self._said and (sentence := other_size(self._terms, found)):
            _log.warning("%s", sentence)
        self._said = True
        return found

    def collect(self, effort: float) -> None:
        self._called("collect", lambda: self._task.collect(effort))

    def samples_root(self, salt: bytes) -> bytes:
        from mechanism.sample_tree import (  # the ledger's part takes its time to import
            sample_digests,
            samples_root,
        )

        kind = type(self._task).__name__
        found = self._called("training_samples", self._task.training_samples)
        if found is None:
            raise TaskError(
                f"the terms have audits by re-training, for which a claim commits to its samples, and {kind} has no "
                "training_samples(); write it, or stay out of this task",
                public="the participant's task does not say what its samples are",
            )
        try:
            return samples_root(sample_digests(*found), salt)
        except (FieldError, TypeError, ValueError) as error:
            raise TaskError(
                f"{kind}.training_samples returned what are no samples ({error}); expected (inputs, targets), or a "
                "mapping of columns as a third",
                public="the participant's task does not say what its samples are",
            ) from None

    def train(self, start: Path, trained: Path, round: TrainingRound) -> TrainedFile:  # noqa: A002 - as Task.train
        weights = patiently(lambda: read_weights(start))
        result = self._called("train", lambda: self._task.train(weights, round))
        made = result if isinstance(result, Trained) else Trained(result)
        if made.weights is None:
            raise TaskError("Task.train returned nothing; expected the new weights")
        self._terms = self._terms or round.terms
        samples = made.samples if made.samples is not None else sum(self.counts())
        patiently(lambda: write_trained(trained, made.weights, start, round.terms))
        return TrainedFile(whole_samples(round.number, samples), self._figures(made))

    def _figures(self, made: Trained) -> dict[str, float]:
        """The numbers among a task's metrics; whatever is wrong with them is no reason to lose the round."""
        figures = {}
        try:
            for name, value in dict(made.metrics or self._task.metrics(made.weights) or {}).items():
                with contextlib.suppress(TypeError, ValueError, OverflowError, RuntimeError):
                    figures[str(name)] = float(value)
        except Exception as error:
            _log.warning("the metrics cannot be kept: %s: %s", type(error).__name__, error)
        return figures

    def _called(self, name: str, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except ParticipantError:
            raise
        except self._failures as error:
            kind = TrainingError if name == "train" else TaskError
            what = f"{type(self._task).__name__}.{name} raised {type(error).__name__}"
            raise kind(f"{what}: {error}", public=what) from error


def other_size(terms: Terms, counts: Sequence[int]) -> str:
    """What it means that data have another number of samples than the recipe asks for, as a sentence; "" for nothing.

    The coordinator holds a model against shadow models of as many samples as the recipe says.
    """
    held, asked = sum(counts), terms.recipe.samples
    if terms.rule.name != "verified":
        return ""
    if held > _MORE * asked:
        return (
            f"The data have {held} samples and the recipe asks for {asked}: a model of more moves further than those "
            f"it is held against, and may be refused; train on {asked} of them."
        )
    if held < terms.rule.whole_from * asked:
        from mechanism.coverage import LEAST_SHADOWS, weight  # the mechanism's part takes its time to import
        from mechanism.settlement import max_payment_micro

        left = float(weight(Fraction(held, asked), Fraction(1), Fraction(terms.rule.whole_from)))
        most = max_payment_micro(terms.Q, terms.upsilon, terms.payment.exact)
        fee = float(terms.rule.fee) * 1_000_000 / most if most else 0.0
        share = left - fee * (1 - left)
        paid = "nothing" if share < _NOTHING else f"at most {share:.0%} of what enough of them would be"
        return (
            f"The data have {held} samples and the recipe asks for {asked}: where the evidence tells how many there "
            f"are, which takes {LEAST_SHADOWS} of the coordinator's shadow models, so few are paid {paid}."
        )
    return ""


def trainer_of(task: Task | Trainer) -> Trainer:
    """Where a task runs: a trainer as it is, a `Task` in the thread of the work."""
    return LocalTrainer(task) if isinstance(task, Task) else task


def run_task(
    engagement: Engagement, trainer: Trainer, strategy: EffortStrategy, tell: ActivityCallback
) -> Steps[None]:
    """The whole task, from wherever it stands to its end.

    A round whose training fails is reported to the coordinator with the reason, and the next one is taken.

    Raises:
        TaskError: the task object cannot be used (not: one training that failed).
        RefusedError: the claim was refused.
        TransportError: the coordinator was away for longer than the client's patience.
    """
    work = _TaskRun(engagement, trainer, tell)
    if not engagement.over:
        yield from work.claim(strategy)
    yield from transform(engagement.assignments(), work.round)
    work.end()


def settle_past(engagement: Engagement, tell: ActivityCallback) -> Steps[None]:
    """Fetches what an ended task paid, and tells it.

    Raises:
        StateError: the task has not ended, or nothing was claimed in it.
    """
    if not engagement.over:
        raise StateError(
            f"task {engagement.task_id} has not ended, or {engagement.participant_id} claimed nothing in it; "
            "there is nothing to fetch"
        )
    yield from transform(engagement.assignments(), _no_round)
    _Reporter(engagement, tell).end()


def _no_round(assignment: Assignment) -> Steps[bool]:
    raise AssertionError(f"round {assignment.number} of an ended task waits for a model")
    yield


class _Reporter:
    """Tells what happens in a task, each payment once."""

    def __init__(self, engagement: Engagement, tell: ActivityCallback) -> None:
        self._engagement = engagement
        self._callback = tell
        self._reported: set[int] = set()

    def end(self) -> None:
        self._tell_settlements()
        report = self._engagement.report()
        text = report.note or f"task {report.task_id} has ended"
        self._tell("ended", 0, text, {"paid_micro": report.paid_micro, "state": report.state})

    def _tell_settlements(self) -> None:
        """Payments that came in since the last time."""
        for line in self._engagement.report().rounds:
            if line.settlement is None or line.number in self._reported:
                continue
            self._reported.add(line.number)
            failed, paid = line.settlement.failed, line.settlement.paid_micro
            text = f"round {line.number} paid {line.settlement.paid} credits" + (
                f": {failed}" if failed else ""
            )
            self._tell("settled", line.number, text, {"paid_micro": paid})

    def _tell(
        self, kind: Any, round_: int, text: str, figures: Mapping[str, float | int | str] | None = None
    ) -> None:
        self._callback(Activity(kind, self._engagement.task_id, round_, text, figures or {}))


class _TaskRun(_Reporter):
    def __init__(self, engagement: Engagement, trainer: Trainer, tell: ActivityCallback) -> None:
        super().__init__(engagement, tell)
        self._trainer = trainer

    def claim(self, strategy: EffortStrategy) -> Steps[None]:
        engagement, trainer, terms = self._engagement, self._trainer, self._engagement.terms
        number = terms.schedule.rounds
        rounds = "1 round" if number == 1 else f"{number} rounds"
        engagement.check_shares()  # before effort is made for what cannot be sent
        engagement.check_place()
        self._tell("joined", 0, f"joined task {terms.task_id}, of {rounds}")
        yield Work(lambda: trainer.prepare(engagement.training_terms))
        effort = engagement.decided_effort
        if effort is None:
            counts = yield Work(trainer.counts)
            decision = yield Work(lambda: decision_of(strategy, terms, counts))
            effort = decision.effort
            engagement.decide(effort)
            self._tell("decided", 0, decision.reason, {"effort": str(effort)})
        yield Work(lambda: trainer.collect(float(effort)))
        counts = yield Work(trainer.counts)
        root = b""
        if terms.audit is not None:
            salt = engagement.samples_salt
            root = yield Work(lambda: trainer.samples_root(salt))
        receipt = yield from engagement.claim(effort, counts, root)
        self._tell(
            "claimed", 0, f"claimed an effort of {effort}" + (" (late)" if receipt.late else ""),
            {"effort": str(effort), "ledger_index": receipt.ledger_index},
        )  # fmt: skip

    def round(self, assignment: Assignment) -> Steps[bool]:
        """Trains and submits one round; an item of `Engagement.assignments`."""
        self._tell_settlements()
        number, engagement = assignment.number, self._engagement
        try:
            start = yield from engagement.fetch(assignment)
            made = yield from self._train(start, assignment)
            receipt = yield from engagement.submit(number, made.samples)
        except TaskError as error:
            yield from self._fail(number, str(error), error.public)
        except StateError as error:
            yield from self._fail(number, str(error), "the participant's storage failed")
        except RefusedError as error:
            if outlook(error.code) is Outlook.PASSING:
                raise  # patience is at an end, as where nobody answers; the model is kept, and sent by the next start
            self._tell("missed", number, str(error))
        except TrainingCancelled:
            reason = "the participant is shutting down"
            yield from self._fail(number, reason, reason)
            raise
        else:
            engagement.note_metrics(number, made.metrics)
            late = ", too late to be scored" if receipt.late else ""
            self._tell("submitted", number, f"submitted the model of round {number}{late}", made.metrics)
        return True

    def _train(self, start: Path, assignment: Assignment) -> Steps[TrainedFile]:
        engagement, trainer, number = self._engagement, self._trainer, assignment.number
        self._tell("training", number, f"training round {number}")
        going, report = True, (yield from engagement.market.progress(engagement.task_id, number))

        def progress(done: float, figures: Mapping[str, float]) -> None:
            if not going:
                raise TrainingCancelled  # the run was left while a thread of its own trains
            self._tell("progress", number, f"{done:.0%} of round {number}", {**figures, "done": done})
            report(done)

        context = TrainingRound(
            engagement.training_terms, engagement.participant_id, number, assignment.deadline, progress
        )
        counts = yield Work(trainer.counts)
        engagement.check_counts(counts)
        trained = engagement.trained_path(number)
        report(0.0)
        try:
            made: TrainedFile = yield Work(lambda: trainer.train(start, trained, context))
        finally:
            going = False
        return made

    def _fail(self, round_: int, reason: str, public: str) -> Steps[None]:
        try:
            yield from self._engagement.fail(round_, reason, public)
        except RefusedError as error:
            _log.warning("round %s of %s: %s", round_, self._engagement.task_id, error)
        self._tell("missed", round_, reason)  # last: the service takes it as the end of the round
