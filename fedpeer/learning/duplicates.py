"""Samples that are the same, or nearly: what an auditor looks at before it accepts what it is shown.

Two samples are near where they differ, and their distance is below `NEAR` of the median distance of two samples.
Distances are Euclidean, over the numbers of the inputs, each column over its standard deviation; texts do not count.
A sample is distinct where it is neither the same as a distinct one before it nor near it: what is nearly the same
counts once. Some data have near samples by themselves; how many, a reference tells (`fedpeer.learning.provenance`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedpeer.learning.errors import DataError
from fedpeer.learning.samples import Samples
from mechanism.sample_tree import sample_digests

#: Of the median distance of two samples: jittered copies lie far below, samples of their own far above in images and
#: wide tables.
NEAR = 0.05

#: Rows that are compared with all others at once, and pairs that the median distance is of.
_ROWS, _PAIRS = 256, 20_000


@dataclass(frozen=True)
class Duplicates:
    """How many samples there are, how many of them are distinct, and how many of different content are near another."""

    samples: int
    distinct: int
    near: int


def duplicates(samples: Samples) -> Duplicates:
    """What `samples` have in common with one another."""
    digests = sample_digests(samples.inputs, samples.targets)
    first = {digest: row for row, digest in reversed(list(enumerate(digests)))}
    rows = np.array(sorted(first.values()), dtype=np.int64)
    near, counted = _near(standardised(numbers([samples]))[rows])
    return Duplicates(len(samples), int(counted.sum()), int(near.sum()))


def numbers(sets: Sequence[Samples]) -> npt.NDArray[np.float64]:
    """The numbers of the inputs of all of them, shape (n, d). Raises DataError where they are of different layouts."""
    layouts = [{name: array.shape[1:] for name, array in each.arrays.items()} for each in sets]
    for other in layouts[1:]:
        if other != layouts[0]:
            raise DataError(
                f"samples with the inputs {layouts[0]} are compared with others, {other}; expected the same"
            )
    parts = [
        np.concatenate(
            [np.asarray(each.arrays[name], dtype=np.float64).reshape(len(each), -1) for each in sets]
        )
        for name, part in sorted(sets[0].arrays.items())
        if part.dtype.kind in "iufb"
    ]
    return np.concatenate(parts, axis=1) if parts else np.empty((sum(map(len, sets)), 0))


def standardised(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The columns that vary, each over its standard deviation."""
    spread = x.std(axis=0)
    return np.asarray((x - x.mean(axis=0))[:, spread > 0] / spread[spread > 0])


def _near(x: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Of each row whether it is near another, and whether it is near none before it that counts."""
    count = len(x)
    near, counted = np.zeros(count, dtype=np.bool_), np.ones(count, dtype=np.bool_)
    if count < 3 or not x.shape[1]:
        return near, counted
    pairs = np.random.default_rng(0).integers(0, count, size=(2, _PAIRS))
    pairs = pairs[:, pairs[0] != pairs[1]]
    limit = (NEAR * float(np.median(np.linalg.norm(x[pairs[0]] - x[pairs[1]], axis=1)))) ** 2
    squares = np.square(x).sum(axis=1)
    for at in range(0, count, _ROWS):
        rows = slice(at, min(at + _ROWS, count))
        distances = squares[rows, None] + squares - 2 * x[rows] @ x.T
        distances[np.arange(rows.stop - at), np.arange(at, rows.stop)] = np.inf
        below = distances < limit
        near[rows] = below.any(axis=1)
        for row, others in enumerate(below, at):
            counted[row] = not (others[:row] & counted[:row]).any()
    return near, counted
