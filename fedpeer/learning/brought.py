"""Samples that somebody's own code gives: `module:factory` of `Samples`, or of a data set of torch's."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedpeer.learning.errors import DataError
from fedpeer.learning.samples import Array, Samples
from fedpeer.learning.workloads.loading import FactorySource, calling
from mechanism.errors import kind_of


def brought_samples(source: FactorySource) -> tuple[Samples, Samples | None]:
    """What the factory gives, in this process: D_c, and held-out samples where it gives a pair.

    Raises:
        DataError: neither `Samples` nor a data set of pairs (inputs, target), nor two of these; or two sizes.
        WorkloadError: the factory cannot be called.
    """
    made = source.make()
    first, second = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    with calling(source.factory):
        return _samples(source.factory, first), None if second is None else _samples(source.factory, second)


def _samples(factory: str, made: Any) -> Samples:
    if isinstance(made, Samples):
        for name, part in made.parts():
            if not isinstance(part, np.ndarray):
                raise DataError(f"{factory} gives {name} as {kind_of(part)}; expected an array of NumPy's")
        return made
    if not hasattr(made, "__len__") or not hasattr(made, "__getitem__"):
        raise DataError(
            f"{factory} gives a {type(made).__name__}; expected Samples, a data set of pairs, or two of these"
        )
    pairs = [made[row] for row in range(len(made))]
    if not pairs or any(not isinstance(pair, tuple | list) or len(pair) != 2 for pair in pairs):
        raise DataError(
            f"{factory} gives {len(pairs)} items; expected at least one, each a pair (inputs, target)"
        )
    first = pairs[0][0]
    targets = _stacked(factory, "targets", [target for _, target in pairs])
    if isinstance(first, Mapping):
        inputs = {name: _stacked(factory, name, [own[name] for own, _ in pairs]) for name in first}
        return Samples(inputs, targets)
    return Samples(_stacked(factory, "inputs", [own for own, _ in pairs]), targets)


def _stacked(factory: str, name: str, parts: list[Any]) -> Array:
    arrays = [np.asarray(part) for part in parts]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise DataError(f"{factory} gives {name} of the shapes {sorted(shapes)[:4]}; expected one for all")
    return np.stack(arrays)
