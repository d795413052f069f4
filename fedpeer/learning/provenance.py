"""Whether opened samples can be what they are said to be: samples of their strata, like those that an auditor brings.

The auditor's samples, the *reference*, are true ones of the same kind. Within a stratum opened samples and those of
the reference are exchangeable if the opened ones were collected as the reference was. Then labels "opened" and
"reference" may be permuted within each stratum, and of a statistic of samples and labels the value that is there is as
likely to be the largest as that of any permutation:

    p = (1 + permutations whose statistic is at least as large) / (1 + permutations),    P(p <= rate) <= rate

on any data, whatever the strata's shares are. Distances are Euclidean, over columns that are standardised, and over
directions within strata that are. For each of the two, and over all strata:

    energy    how far the two sets are apart (Szekely and Rizzo 2013), in mean distances of the stratum
    kin       how many of the nearest three of each sample are of its own set (Schilling 1986; Henze 1988)
    near      how near each opened sample is to the nearest opened one: the mean logarithm; far: its negative

and, of samples alone:

    values    numbers of a sample that no other sample has in that column
    known     how near it is to the nearest *known* sample, which the auditor knows not to be the participant's own

What decides is the smallest p of all, whose own p the same permutations give: the rate holds for all of them together.
Sources: Phipson and Smyth 2010, permutation p-values should never be zero; Westfall and Young 1993, chapter 2 (minimum
p).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import numpy as np
import numpy.typing as npt

from fedpeer.learning.duplicates import numbers, standardised
from fedpeer.learning.samples import Samples
from fedpeer.learning.strata import Codes

#: Permutations beside the labels as they are.
PERMUTATIONS = 999

#: Samples of the reference that are taken of a stratum, by chance: at most so many for each opened one, or so many in
#: all.
_TIMES, _ENOUGH = 2, 50

#: Neighbours that `kin` counts; that the nearest of one's own set is looked for among.
_KIN, _NEIGHBOURS = 3, 10

#: Over the mean variance within strata: what is added to each direction's.
_RIDGE = 0.05

#: Over the median distance to the nearest sample: the least distance whose logarithm is taken.
_LEAST = 1e-3

#: Fewest permutations for the smallest p that a rate looks at.
_BEHIND = 20

_Floats = npt.NDArray[np.float64]
_Labels = npt.NDArray[np.bool_]


def permutations(rate: Fraction) -> int:
    """How many a test at this rate takes."""
    return max(PERMUTATIONS, ceil(_BEHIND / rate) - 1)


@dataclass(frozen=True)
class Compared:
    """What opened samples show beside a reference.

    Attributes:
        p: see the module's text; 1 where nothing can be compared.
        by: the statistic of the smallest p, such as "standardised energy"; "" where nothing can be compared.
        samples: opened ones that were compared: of strata of which the reference has two samples at least; none
            where no number of theirs varies.
    """

    p: Fraction
    by: str
    samples: int


def compare(
    opened: Samples,
    codes: Codes,
    reference: Samples,
    reference_codes: Codes,
    generator: np.random.Generator,
    known: Samples | None = None,
    draws: int = PERMUTATIONS,
) -> Compared:
    """See the module's text.

    Args:
        opened, reference, known: of one layout; codes: the strata of each of the first two.
        draws: permutations.
        generator: draws the permutations, and samples of the reference where it has more than are needed; nobody may
            know it before samples are committed to.
    """
    common = np.flatnonzero(np.bincount(reference_codes) > 1)
    mine = np.flatnonzero(np.isin(codes, common))
    if not len(mine):
        return Compared(Fraction(1), "", 0)
    theirs = np.concatenate(
        [
            generator.permutation(np.flatnonzero(reference_codes == stratum))[: max(_ENOUGH, _TIMES * count)]
            for stratum, count in zip(*np.unique(codes[mine], return_counts=True), strict=True)
        ]
    )
    sets = [opened.select(mine), reference.select(theirs), *([] if known is None else [known])]
    x, count = standardised(numbers(sets)), len(mine) + len(theirs)
    if not x.shape[1]:
        return Compared(Fraction(1), "", 0)
    # In an order of chance: of neighbours that are as far the first counts.
    order = generator.permutation(count)
    x, given, of = x[order], x[count:], np.concatenate([codes[mine], reference_codes[theirs]])[order]
    strata = [np.flatnonzero(of == stratum) for stratum in np.unique(of)]
    labels = np.tile(order < len(mine), (draws + 1, 1))
    for rows in strata:
        labels[1:, rows] = generator.permuted(labels[1:, rows], axis=1)
    found = dict(_of_sets(x, strata, labels))
    found["values"] = labels @ _rare(x)
    if len(given):
        found["known"] = -(labels @ _log_distances(_nearest(x, given)))
    names, table = list(found), np.array([_p_values(each) for each in found.values()])
    least = table.min(axis=0)
    p = Fraction(int((least <= least[0]).sum()), draws + 1)
    return Compared(p, names[int(table[:, 0].argmin())], len(mine))


def _of_sets(x: _Floats, strata: list[npt.NDArray[np.int64]], labels: _Labels) -> Mapping[str, _Floats]:
    found: dict[str, _Floats] = {}
    for metric, points in (("standardised", x), ("whitened", _whitened(x, strata))):
        energy, kin, near = np.zeros((3, len(labels)))
        for rows in strata:
            if len(rows) < 3:
                continue
            distances = _distances(points[rows], points[rows])
            here, count = labels[:, rows], int(labels[0, rows].sum())
            others = len(rows) - count
            sides = np.where(here, 1 / count, -1 / others)
            apart = -np.einsum("bi,bi->b", sides @ distances, sides)
            energy += apart * count * others / len(rows) / max(float(distances.mean()), 1e-300)
            np.fill_diagonal(distances, np.inf)
            order = np.argsort(distances, axis=1, kind="stable")[:, : min(_NEIGHBOURS, len(rows) - 1)]
            logs = _log_distances(np.take_along_axis(distances, order, axis=1))
            own = here[:, order] == here[:, :, None]
            kin += own[:, :, :_KIN].sum(axis=(1, 2))
            first = np.where(own.any(axis=2), own.argmax(axis=2), order.shape[1] - 1)
            near -= np.where(here, logs[np.arange(len(rows)), first], 0.0).sum(axis=1)
        found |= {f"{metric} energy": energy, f"{metric} kin": kin, f"{metric} near": near}
        found[f"{metric} far"] = -near
    return found


def _whitened(x: _Floats, strata: list[npt.NDArray[np.int64]]) -> _Floats:
    within = x.copy()
    for rows in strata:
        within[rows] -= x[rows].mean(axis=0)
    values, directions = np.linalg.eigh(within.T @ within / len(x))
    values = np.maximum(values, 0)
    made: _Floats = x @ directions / np.sqrt(values + _RIDGE * max(float(values.mean()), 1e-300))
    return made


def _distances(x: _Floats, y: _Floats) -> _Floats:
    squares = np.square(x).sum(axis=1)[:, None] + np.square(y).sum(axis=1) - 2 * x @ y.T
    found: _Floats = np.sqrt(np.maximum(squares, 0))
    return found


def _nearest(x: _Floats, y: _Floats) -> _Floats:
    found: _Floats = _distances(x, y).min(axis=1)
    return found


def _log_distances(distances: _Floats) -> _Floats:
    """Of distances to the nearest samples, the nearest of all first where they are several."""
    first = distances if distances.ndim == 1 else distances[:, 0]
    found: _Floats = np.log(np.maximum(distances, _LEAST * float(np.median(first)) + 1e-300))
    return found


def _rare(x: _Floats) -> _Floats:
    """Numbers of each sample that no other one has."""
    found = np.zeros(len(x))
    for column in x.T:
        _, place, times = np.unique(column, return_inverse=True, return_counts=True)
        found += times[place] == 1
    return found


def _p_values(statistic: _Floats) -> _Floats:
    """Of each permutation among all of them; what is equal but for rounding is equal."""
    rounded = np.round(statistic / max(float(np.abs(statistic).max()), 1e-300), 9)
    order = np.sort(rounded)
    found: _Floats = 1 - np.searchsorted(order, rounded) / len(rounded)
    return found
