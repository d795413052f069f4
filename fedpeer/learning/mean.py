"""The weighted mean of models: one arithmetic for aggregation, evidence, arena and figures.

    w = sum_k n_k w_k / sum_k n_k

Floating-point tensors are summed in float64, in the order in which they are added, and rounded once to their own type:
the same models in the same order give the same bits on every machine with IEEE 754 arithmetic. Integer tensors (batch
counters) are summed exactly and rounded half to even; boolean ones take the weighted majority, false on a tie.

Source: McMahan et al. 2017, algorithm 1.
"""

from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from fractions import Fraction
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fedpeer.learning.errors import DataError

Array = npt.NDArray[Any]

#: Elements that are weighted and added at once: 512 KiB of float64, which stay in the cache. Smaller pieces are no
#: faster by themselves, and threads get into each other's way: each piece asks for the interpreter's lock.
_PIECE = 1 << 16


class WeightedSum:
    """The running sum of one tensor over models.

    Args:
        shape, dtype: of the tensor.
    """

    def __init__(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._shape = (shape,) if isinstance(shape, int) else shape
        self._weight = 0
        count = int(np.prod(self._shape, dtype=np.int64))
        self._exact = self._dtype.kind in "iub"
        # Exact sums are Python's integers: a counter times a number of samples can exceed 64 bits. A float sum begins
        # with -0.0, which unlike 0.0 changes nothing that is added to it.
        self._total: Array = np.zeros(count, object) if self._exact else np.full(count, -0.0)
        self._product = np.empty(0 if self._exact else min(count, _PIECE))

    def add(self, values: Array, weight: int) -> Self:
        """Adds `values`, of any floating-point type or the sum's own, `weight` times; a negative one takes off."""
        flat = values.reshape(-1)
        self._weight += weight
        if self._exact:
            self._total += flat.astype(object) * weight
            return self
        for first in range(0, len(flat), _PIECE):
            piece = flat[first : first + _PIECE]
            product = self._product[: len(piece)]
            product[...] = piece
            product *= weight
            self._total[first : first + _PIECE] += product
        return self

    def parts(self) -> "tuple[WeightedSum, npt.NDArray[np.float64] | None]":
        """One without its numbers, and them; an exact one as it is, and None."""
        if self._exact:
            return self, None
        bare = copy(self)
        bare._total = bare._product = np.empty(0)
        return bare, self._total

    def with_part(self, total: "npt.NDArray[np.float64] | None") -> "WeightedSum":
        """Another one, with such numbers; they are not changed."""
        whole = copy(self)
        if total is not None:
            whole._total, whole._product = total, np.empty(min(len(total), _PIECE))
        return whole

    def mean(self) -> npt.NDArray[np.float64]:
        """The mean before it is rounded to the tensor's type; of floating-point tensors."""
        return (self._total / self._weight).reshape(self._shape).astype(np.float64, copy=False)

    def rounded(self) -> Array:
        """The mean in the tensor's own type."""
        if self._exact:
            means = [round(Fraction(int(value), self._weight)) for value in self._total]
            return np.array(means, dtype=self._dtype).reshape(self._shape)
        return self.mean().astype(self._dtype)


class ModelSum:
    """The running sum of whole models.

    Args:
        layout: a model that has the names, shapes and types of all.
    """

    def __init__(self, layout: Mapping[str, Array]) -> None:
        self._sums = {name: WeightedSum(array.shape, array.dtype) for name, array in layout.items()}

    def add(self, model: Mapping[str, Array], weight: int) -> Self:
        """Adds a model, `weight` times; a negative weight takes it off again."""
        for name, total in self._sums.items():
            total.add(model[name], weight)
        return self

    def without(self, model: Mapping[str, Array], weight: int) -> Self:
        """Another sum, from which a model that was added is taken off."""
        return deepcopy(self).add(model, -weight)

    def parts(self) -> tuple[dict[str, npt.NDArray[np.float64]], "ModelSum"]:
        """The sums of floating-point tensors, and a sum without them: what `with_parts` puts together elsewhere."""
        rest, sums = ModelSum({}), {}
        for name, total in self._sums.items():
            rest._sums[name], values = total.parts()
            if values is not None:
                sums[name] = values
        return sums, rest

    def with_parts(self, sums: Mapping[str, npt.NDArray[np.float64]]) -> "ModelSum":
        """Another one, with such sums."""
        whole = ModelSum({})
        whole._sums = {name: total.with_part(sums.get(name)) for name, total in self._sums.items()}
        return whole

    def rounded(self) -> dict[str, Array]:
        """The mean, each tensor in its own type."""
        return {name: total.rounded() for name, total in self._sums.items()}


def weighted_mean(models: Sequence[Mapping[str, Array]], weights: Sequence[int]) -> dict[str, Array]:
    """The mean of models of one layout.

    Args:
        models: at least one.
        weights: samples n_k >= 1 of each.

    Raises:
        DataError: no model, or a weight below 1.
    """
    if not models or min(weights) < 1:
        raise DataError(
            f"a mean of {len(models)} models with the weights {list(weights)}; expected samples of each"
        )
    total = ModelSum(models[0])
    for model, weight in zip(models, weights, strict=True):
        total.add(model, weight)
    return total.rounded()
