"""What adapters check before a claim: that data, model and terms fit, by trying one real step where there is one.

What is wrong with them would otherwise show in every round, after the claim and after the work.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, MappingView, Set
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpeer.learning.errors import DataError, LearningError
from fedpeer.learning.labels import Classes, class_count, real_inputs, whole_labels
from fedpeer.protocol.model_file import changed, stored_spec
from mechanism.errors import kind_of
from mechanism.terms import Terms
from participant.engagement import read_counts
from participant.errors import ParticipantError, TaskError, TrainingError
from participant.task import Counts, Task, Weights

_TYPES: Mapping[str, type[np.floating[Any]]] = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.float32,
}  # fmt: skip


class CountedTask(Task):
    """One whose counts were handed over.

    Args:
        counts: see `Task.counts`.
    """

    def __init__(self, counts: Counts) -> None:
        self._terms: Terms | None = None
        self._counts = kept(counts, None)

    def prepare(self, terms: Terms) -> None:
        """Refuses counts that are none of the task's strata."""
        self._terms = terms
        self._counts = kept(self._counts, terms)

    def counts(self) -> Counts:
        return self._counts


class LinearTask(Task):
    """A linear model on rows with labels.

    Args:
        inputs: shape (n, d), real and finite.
        labels: shape (n,), whole numbers in [0, I), or class names.
        classes: I, or the learner's list of class names in the reference's order.
        dtype: of the inputs in memory.
        seed: decides the order of the samples.

    Raises:
        TaskError: other shapes, inputs that are not finite numbers, labels that are not classes, or no sample.
    """

    def __init__(
        self, inputs: Any, labels: Any, classes: Classes, dtype: type[np.floating[Any]], seed: int
    ) -> None:
        with refusing():
            self.inputs, self.labels = real_inputs(inputs, dtype), whole_labels(labels, classes)
            self.classes = class_count(classes)
        rows, labelled = self.inputs.shape, self.labels.shape
        if len(rows) != 2 or labelled != rows[:1] or not rows[0]:
            raise TaskError(
                f"inputs have shape {rows} and labels {labelled}; expected (n, d) and (n,), n at least 1"
            )
        self.seed = seed

    @abstractmethod
    def start_weights(self) -> dict[str, npt.NDArray[Any]]:
        """Zeros of the right shapes: what a learner would publish."""

    def label_counts(self) -> Counts:
        return counts_of(self.labels, self.classes)

    def zeros(self, terms: Terms) -> dict[str, npt.NDArray[Any]]:
        """The same in the types of the task's model.

        Raises:
            TaskError: the task's model or labels are not those of this model on the participant's data.
        """
        wanted = {spec.name: spec.shape for spec in terms.contract.tensors}
        own = {name: array.shape for name, array in self.start_weights().items()}
        if wanted != own:
            raise TaskError(
                f"the task's model is {wanted}, this one {own}; use the learner's features and labels"
            )
        if self.classes != len(terms.reference):
            raise TaskError(f"the data have {self.classes} labels, the task {len(terms.reference)}")
        for spec in terms.contract.tensors:
            if spec.dtype not in _TYPES:
                raise TaskError(
                    f"the task has the tensor {spec.name!r} as {spec.dtype}; a linear model has real numbers"
                )
        return {spec.name: np.zeros(spec.shape, _TYPES[spec.dtype]) for spec in terms.contract.tensors}


def kept(counts: Counts, terms: Terms | None) -> Counts:
    """A copy of counts that were handed over: by position once the terms are known, else as they were given.

    Raises:
        EffortError, TaskError: no histogram over the task's strata, or a container that has no order.
    """
    if terms is not None:
        return read_counts(counts, terms, "the counts")
    if hasattr(counts, "keys") and hasattr(counts, "items"):
        return dict(counts.items())
    if isinstance(counts, Iterable) and not isinstance(counts, Set | MappingView | Iterator | str | bytes):
        return tuple(counts)
    raise TaskError(
        f"the counts are {kind_of(counts)}; expected a list with one count for each stratum, or a mapping "
        "of strata to counts"
    )


def counts_of(labels: Any, classes: int) -> tuple[int, ...]:
    """How many of each label there are.

    Raises:
        TaskError: labels that are not whole numbers from 0 to I - 1.
    """
    with refusing():
        return tuple(np.bincount(whole_labels(labels, classes), minlength=classes).tolist())


def differing(terms: Terms, own: Weights) -> str:
    """Names of tensors that are not as the task's model contract has them; the empty text where all are."""
    wanted = {spec.name: spec for spec in terms.contract.tensors}
    stored = {name: stored_spec(name, array, wanted.get(name)) for name, array in own.items()}
    names = sorted(name for name in stored.keys() | wanted.keys() if stored.get(name) != wanted.get(name))
    return ", ".join(names[:5]) + (" and others" if len(names) > 5 else "")


@contextmanager
def refusing() -> Iterator[None]:
    """What the data, or the workload, are refused for, as an error of the participant's."""
    try:
        yield
    except LearningError as error:
        what = "data" if isinstance(error, DataError) else "workload"
        raise TaskError(str(error), public=f"the participant's {what} cannot be used") from None


@contextmanager
def tried(given: str = "") -> Iterator[None]:
    """One step of training, tried before the claim.

    Args:
        given: what it was tried on, in words.

    Raises:
        TaskError: it failed.
    """
    try:
        yield
    except ParticipantError:
        raise
    except Exception as error:  # each framework has its own
        kind = type(error).__name__
        if isinstance(error, DataError):  # a sentence that says all
            raise TaskError(
                f"one step of training was tried before the claim and failed: {error}",
                public=f"a step of training failed with {kind}",
            ) from None
        raise TaskError(
            f"one step of training was tried before the claim and failed with {kind}: {' '.join(str(error).split())}"
            + (f"; it was given {given}: bring the types and shapes of the learner's own" if given else ""),
            public=f"a step of training failed with {kind}",
        ) from error


def check_moved(before: Weights, after: Weights, parameters: Iterable[str]) -> None:
    """Raises TrainingError where a training moved no parameter; buffers such as running means move all the same."""
    if not changed([(after[name], before[name]) for name in parameters]):
        raise TrainingError(
            "the training moved no parameter; look for a learning rate that is too small for their type, and for "
            "parameters that the optimizer does not have",
            public="the training moved no weight",
        )


def check_finite(weights: Mapping[str, npt.NDArray[Any]]) -> None:
    """Raises TaskError where a step that was tried gave weights that no task takes."""
    for name, array in weights.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise TaskError(
                f"one step of training was tried before the claim and gave NaN or infinity in {name!r}; look for such "
                "values in the data, and at the learning rate"
            )
