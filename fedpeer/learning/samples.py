"""Samples of any kind: what a workload trains on and is judged on.

Inputs are an array with one row a sample, or several such arrays by name (a table's numbers beside its categories, the
tokens of a text beside their mask). Targets are an array with one row a sample. What the numbers mean is the
workload's affair: class numbers, measured values, the next tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpeer.learning.datasets import LabelledData
from fedpeer.learning.errors import DataError

Array = npt.NDArray[Any]

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

    Raises:
        DataError: no array, or arrays of different lengths.
    """

    inputs: Inputs
    targets: Array

    def __post_init__(self) -> None:
        parts = dict(self.inputs) if isinstance(self.inputs, Mapping) else {"inputs": self.inputs}
        lengths = {name: len(part) for name, part in {**parts, "targets": self.targets}.items()}
        if not parts or len(set(lengths.values())) != 1:
            raise DataError(f"the samples have {lengths} rows; expected arrays of one length")

    def __len__(self) -> int:
        return len(self.targets)

    def select(self, rows: npt.NDArray[np.int64], targets: Array | None = None) -> "Samples":
        """The samples at `rows`, in that order; with other `targets` where they are given."""
        inputs: Inputs
        if isinstance(self.inputs, Mapping):
            inputs = {name: part[rows] for name, part in self.inputs.items()}
        else:
            inputs = self.inputs[rows]
        return Samples(inputs, self.targets[rows] if targets is None else targets)


def of_labelled(data: LabelledData) -> Samples:
    """Images as inputs, labels as targets."""
    return Samples(data.images, data.labels)
