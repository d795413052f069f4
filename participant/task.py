"""What a participant brings: its data, how effort improves them, and how it trains.

A `Task` is the only thing that a data owner has to write. Weights are mappings of names to NumPy arrays; no
framework shows through.

    class Cats(Task):
        def counts(self): return [len(self.cats), len(self.others)]
        def train(self, weights, round): return fit(weights, self.cats, self.others)

What is counted are the task's strata: labels, unless the terms say otherwise (`participant.counts`).
"""

import hashlib
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from mechanism.terms import Recipe, Terms

#: Weights of a model: tensor name to array.
Weights: TypeAlias = Mapping[str, npt.NDArray[Any]]

#: Samples of each stratum: in the reference's order, or a mapping of the strata's names (of labels without names: 0 to
#: I - 1) to counts.
Counts: TypeAlias = Sequence[int] | Mapping[Any, int] | npt.NDArray[np.integer[Any]]

#: Takes the share of the work that is done, in [0, 1], and any figures worth showing.
ProgressCallback: TypeAlias = Callable[[float, Mapping[str, float]], None]


class TrainingCancelled(BaseException):
    """Raised by `TrainingRound.progress` when the round is to be handed back."""


def ignore_progress(done: float, figures: Mapping[str, float]) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True)
class TrainingRound:
    """What `Task.train` may want to know of the round that it trains for.

    Attributes:
        terms: of the task; `recipe.privacy` is the noise that this participant adds, perhaps of its own choice.
        participant_id: whose round.
        number: 1..T.
        deadline: when models are no longer accepted, UTC; None where none runs.
        on_progress: where `progress` reports to.
    """

    terms: Terms
    participant_id: str
    number: int
    deadline: datetime | None = None
    on_progress: ProgressCallback = field(default=ignore_progress, repr=False, compare=False)

    @property
    def task_id(self) -> str:
        return self.terms.task_id

    @property
    def recipe(self) -> Recipe:
        """How the learner asks to train; its own shadow models follow it too."""
        return self.terms.recipe

    def progress(self, done: float, **figures: float) -> None:
        """Reports that the share `done` in [0, 1] of the training is complete, with figures such as loss=0.3.

        Raises:
            TrainingCancelled: the service stops and hands the round back; let it through.
        """
        self.on_progress(min(1.0, max(0.0, done)), figures)

    def seed(self, base: int) -> int:
        """A seed of 63 bits that differs by participant, task and round and is the same in every run.

        Where the recipe asks for privacy it is another one in every call, from the operating system: who knows the
        seed takes the noise off again, and knows which samples a step has seen.
        """
        if self.recipe.privacy is not None:
            return secrets.randbits(63)
        text = f"{base}/{self.participant_id}/{self.task_id}/{self.number}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@dataclass(frozen=True)
class Trained:
    """What `Task.train` may return instead of bare weights.

    Attributes:
        weights: the new weights, with the names, types and shapes of those received.
        samples: how many samples they were trained on, >= 1; default: the sum of the counts.
        metrics: figures for the participant's own journal; never sent.
    """

    weights: Weights
    samples: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


class Task(ABC):
    """A participant's work on one federated task. Only `train` and `counts`, or `label_counts`, have to be written."""

    #: Whether `train` follows a recipe with the privacy method "dp-sgd". Noise by "update" is added to any task's
    #: weights after `train`.
    dp_sgd: bool = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Raises TypeError where the class has neither `counts` nor `label_counts`."""
        if cls.counts is Task.counts and cls.label_counts is Task.label_counts:
            raise TypeError(
                f"{cls.__name__} has neither counts() nor label_counts(); write counts(), which gives the samples of "
                "each of the task's strata, or label_counts(), where those are labels"
            )
        return super().__new__(cls)

    def prepare(self, terms: Terms) -> None:  # noqa: B027 - optional: most tasks need nothing of the terms
        """Called once with the terms, before anything else: a place to check that the model fits.

        Raise any exception to stay out of the task; its message is shown.
        """

    def counts(self) -> Counts:
        """Samples of each of the task's strata that `train` would now use: integers >= 0, in the reference's order.

        A mapping, such as a Counter, is read by the strata's names; a stratum without a key has no samples. Labels
        without names are 0 to I - 1. `participant.counts` counts by any kind of strata.
        """
        return self.label_counts()

    def label_counts(self) -> Counts:
        """`counts` where strata are labels: the one to write, or the other."""
        return self.counts()

    @property
    def counted_by(self) -> str:
        """The method that was written, for messages."""
        return "label_counts" if type(self).counts is Task.counts else "counts"

    def training_samples(self) -> tuple[Any, Any] | tuple[Any, Any, Mapping[str, Any]] | None:
        """What `train` trains on: inputs (an array, or arrays by name, a row a sample) and targets (a row a sample);
        where strata are those of a column that is neither, a third: that, by name, a row a sample.

        Asked for once, after `collect`, where the terms have audits: the claim commits to them, and nothing of them is
        sent (`mechanism.sample_tree`). They must be those of every round, and be found again where an auditor comes.
        None: the task cannot say, so that it stays out of such tasks.
        """
        return None

    def collect(self, effort: float) -> None:  # noqa: B027 - optional: not all data can be improved
        """Brings the data to the state that `effort` in [0, 1] buys; `counts` then tell the result.

        Called before the claim, and again with the same effort when a participant restarts in the middle of a
        task: the counts must then be the same again.
        """

    @abstractmethod
    def train(self, weights: Weights, round: TrainingRound) -> Weights | Trained:  # noqa: A002 - the field's word
        """Trains from `weights` (a copy; change it freely) and returns the new weights.

        NumPy has no bfloat16: tensors that the task's contract has as BF16 come as float32, and are rounded to the
        nearest bfloat16, half to even, when they are sent. Every other type is sent as it is, and refused where the
        contract has another.

        Tensors of a framework are read to the host's memory, without their gradients. A training that moved nothing
        is a mistake and is not sent: at least one floating-point weight must differ from what came.

        Call `round.progress(share, loss=...)` now and then. Raise any exception to give this round up. Of most
        only the kind is sent to the coordinator, because reasons stand in the ledger for everybody and a text may
        quote the data; raise `TrainingError("...")` to have your own words sent.
        """

    def metrics(self, weights: Weights) -> Mapping[str, float]:
        """Figures of a model on the participant's own data, for its own journal; never sent."""
        return {}
