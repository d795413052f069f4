"""Samples that are the same, or nearly: what an auditor looks at before it accepts what it is shown.

Two samples are near where they differ, and their distance is below `NEAR` of the median distance of two samples.
Distances are Euclidean, over the numbers of the inputs, each column over its standard deviation; texts do not count.
No verdict follows from the figure: some data have many near samples by themselves, and the auditor's eye decides.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedpeer.learning.samples import Samples
from mechanism.sample_tree import sample_digests

#: Of the median distance of two samples: jittered copies lie far below, samples of their own far above in images and
#: wide tables.
NEAR = 0.05

#: Rows that are compared with all others at once, and pairs that the median distance is of.
_ROWS, _PAIRS = 256, 20_000


@dataclass(frozen=True)
class Duplicates:
    """How many samples there are, how many of different content, and how many of these are near another."""

    samples: int
    distinct: int
    near: int


def duplicates(samples: Samples) -> Duplicates:
    """What `samples` have in common with one another."""
    digests = sample_digests(samples.inputs, samples.targets)
    first = {digest: row for row, digest in reversed(list(enumerate(digests)))}
    rows = np.array(sorted(first.values()), dtype=np.int64)
    x = _numbers(samples)[rows]
    return Duplicates(len(samples), len(rows), int(_near(x).sum()))


def _numbers(samples: Samples) -> npt.NDArray[np.float64]:
    """(n, d), standardised."""
    parts = [
        np.asarray(part, dtype=np.float64).reshape(len(samples), -1)
        for _, part in sorted(samples.arrays.items())
        if part.dtype.kind in "iufb"
    ]
    x = np.concatenate(parts, axis=1) if parts else np.empty((len(samples), 0))
    spread = x.std(axis=0)
    return np.asarray((x - x.mean(axis=0))[:, spread > 0] / spread[spread > 0])


def _near(x: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    count = len(x)
    if count < 3 or not x.shape[1]:
        return np.zeros(count, dtype=np.bool_)
    pairs = np.random.default_rng(0).integers(0, count, size=(2, _PAIRS))
    pairs = pairs[:, pairs[0] != pairs[1]]
    limit = (NEAR * float(np.median(np.linalg.norm(x[pairs[0]] - x[pairs[1]], axis=1)))) ** 2
    squares, near = np.square(x).sum(axis=1), np.zeros(count, dtype=np.bool_)
    for at in range(0, count, _ROWS):
        rows = slice(at, min(at + _ROWS, count))
        distances = squares[rows, None] + squares - 2 * x[rows] @ x.T
        distances[np.arange(rows.stop - at), np.arange(at, rows.stop)] = np.inf
        near[rows] = distances.min(axis=1) < limit
    return near
