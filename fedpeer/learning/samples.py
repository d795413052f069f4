"""Samples of any kind: what a workload trains on and is judged on.

Inputs are an array with one row a sample, or several such arrays by name (a table's numbers beside its categories, the
tokens of a text beside their mask). Targets are an array with one row a sample. What the numbers mean is the
workload's affair: class numbers, measured values, the next tokens.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpeer.learning.arrays import held_array, plain_array
from fedpeer.learning.datasets import LabelledData
from fedpeer.learning.errors import DataError

Array = npt.NDArray[Any]

#: Arrays that `Samples.described` names.
_DESCRIBED = 4

#: Tensors of a model by name, as they travel.
Weights = Mapping[str, Array]

#: One array, or several by name; one row a sample.
Inputs = Array | Mapping[str, Array]


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs with their targets.

    Attributes:
        inputs: arrays of shape (n, ...).
        targets: shape (n, ...).
        columns: what else is known of each sample, by name: of no use to a workload, of use to strata.

    Raises:
        DataError: no array, or arrays of different lengths.
    """

    inputs: Inputs
    targets: Array
    columns: Mapping[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if alone := [name for name, part in self.parts() if np.ndim(part) == 0]:
            raise DataError(f"the {alone[0]} are a single value; expected an array, with a row a sample")
        lengths = {name: len(part) for name, part in self.parts()}
        if len(lengths) < 2 or len(set(lengths.values())) != 1:
            raise DataError(f"the samples have {lengths} rows; expected arrays of one length")

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def arrays(self) -> dict[str, Array]:
        """Those of the inputs by name; "" is the name of one alone."""
        return dict(self.inputs) if isinstance(self.inputs, Mapping) else {"": self.inputs}

    @property
    def width(self) -> int:
        """Numbers, or texts, in the inputs of one sample."""
        return sum(prod(array.shape[1:]) for array in self.arrays.values())

    def parts(self) -> list[tuple[str, Array]]:
        """Every array with a name of its own."""
        return [
            *((f"inputs.{name}" if name else "inputs", part) for name, part in self.arrays.items()),
            ("targets", self.targets),
            *((f"columns.{name}", part) for name, part in self.columns.items()),
        ]

    def described(self) -> str:
        """Types and shapes of inputs and targets in words, for messages."""
        said = [
            f"{name} {'texts' if part.dtype.kind == 'U' else part.dtype} of shape {part.shape}"
            for name, part in self.parts()
            if not name.startswith("columns.")
        ]
        return ", ".join([*said[:_DESCRIBED], *(["and others"] if len(said) > _DESCRIBED else [])])

    def column(self, name: str) -> Array:
        """A column by its name, or the input of that name.

        Raises:
            DataError: there is none.
        """
        if name in self.columns:
            return self.columns[name]
        if isinstance(self.inputs, Mapping) and name in self.inputs:
            return self.inputs[name]
        known = [*self.columns, *(self.inputs if isinstance(self.inputs, Mapping) else ())]
        raise DataError(f"the samples have no column {name!r}; they have {', '.join(known) or 'none'}")

    def select(self, rows: npt.NDArray[np.int64], targets: Array | None = None) -> "Samples":
        """The samples at `rows`, in that order; with other `targets` where they are given."""
        chosen = {name: part[rows] for name, part in self.arrays.items()}
        inputs = chosen if isinstance(self.inputs, Mapping) else chosen[""]
        columns = {name: part[rows] for name, part in self.columns.items()}
        return Samples(inputs, self.targets[rows] if targets is None else targets, columns)


def held_samples(inputs: Any, targets: Any) -> Samples:
    """Samples of whatever arrays people have, as `held_array` of each: `plain_samples` brings them to types.

    Args:
        inputs: one array, or several by name, which may be the columns of a table such as pandas has.
    """
    # A column of pandas has keys as well: its rows.
    if hasattr(inputs, "keys") and hasattr(inputs, "items") and not hasattr(inputs, "dtype"):
        made: Inputs = {str(name): held_array(part, f"the input {name}") for name, part in inputs.items()}
    else:
        made = held_array(inputs, "the array of inputs")
    return Samples(made, held_array(targets, "the array of targets"))


def plain_samples(samples: Samples, only: Collection[str] | None = None) -> Samples:
    """With `plain_array` of each.

    Args:
        only: those of several inputs that are needed, where others are left out; None: all.

    Raises:
        DataError: as `plain_array`.
    """
    held = held_samples(samples.inputs, samples.targets)
    made: Inputs
    if isinstance(held.inputs, Mapping):
        needed = {name: part for name, part in held.inputs.items() if only is None or name in only}
        made = {name: plain_array(part, f"the input {name}") for name, part in needed.items()}
    else:
        made = plain_array(held.inputs, "the array of inputs")
    beside = {name: plain_array(part, f"column {name}") for name, part in samples.columns.items()}
    return replace(
        samples, inputs=made, targets=plain_array(held.targets, "the array of targets"), columns=beside
    )


def of_labelled(data: LabelledData) -> Samples:
    """Images as inputs, labels as targets."""
    return Samples(data.images, data.labels)
