"""What every baseline takes and gives."""

from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from mechanism.errors import FieldError
from mechanism.ranges import whole

Array = npt.NDArray[np.float64]
Source = TypeVar("Source", contravariant=True)


class Baseline(Protocol[Source]):
    """A rule that scores each participant.

    `Source` is `Coalitions` or `SharedPredictions`. A higher score is a greater contribution; the unit is the
    source's (the value of a coalition, or none).
    """

    @property
    def name(self) -> str: ...

    def scores(self, source: Source, rng: np.random.Generator) -> Array:
        """One score a participant, shape (N,). Rules without chance leave `rng` alone."""


class Coalitions:
    """The value of every set of participants, each evaluated once.

    Args:
        size: N >= 1.
        value: coalition -> value, for instance the accuracy of the model averaged over its members. It must give
            the same value for the same set.
    """

    def __init__(self, size: int, value: Callable[[frozenset[int]], float]) -> None:
        self.size = whole("participants", size)
        self._value = value
        self._known: dict[frozenset[int], float] = {}

    @property
    def everyone(self) -> frozenset[int]:
        return frozenset(range(self.size))

    def __call__(self, coalition: frozenset[int]) -> float:
        """v(coalition).

        Raises:
            FieldError: a value that is not finite.
        """
        if coalition not in self._known:
            value = float(self._value(coalition))
            if not np.isfinite(value):
                raise FieldError("value", value, f"a finite value of the coalition {sorted(coalition)}")
            self._known[coalition] = value
        return self._known[coalition]


class SharedPredictions:
    """The labels that each participant's model gives to the same inputs.

    Args:
        reports: integers in [0, labels), shape (N, M): N >= 2 participants, M inputs.
        labels: number of labels I >= 2.
    """

    def __init__(self, reports: npt.ArrayLike, labels: int) -> None:
        array = np.asarray(reports)
        if array.ndim != 2 or array.shape[0] < 2 or not np.issubdtype(array.dtype, np.integer):
            raise FieldError(
                "reports", f"{array.dtype} of shape {array.shape}", "integers of shape (N >= 2, M)"
            )
        self.labels = whole("labels", labels, 2)
        if array.size and (array.min() < 0 or array.max() >= labels):
            raise FieldError("reports", int(array.max()), f"labels in [0, {labels})")
        self.reports = array.astype(np.intp)

    @property
    def size(self) -> int:
        return int(self.reports.shape[0])

    @property
    def inputs(self) -> int:
        return int(self.reports.shape[1])

    def counts(self, k: int, peer: int, inputs: npt.NDArray[np.intp] | None = None) -> npt.NDArray[np.int64]:
        """How often k says a while its peer says b, shape (I, I)."""
        mine, theirs = self.reports[k], self.reports[peer]
        if inputs is not None:
            mine, theirs = mine[inputs], theirs[inputs]
        flat = np.bincount(mine * self.labels + theirs, minlength=self.labels**2)
        return flat.reshape(self.labels, self.labels).astype(np.int64)
