"""Global maximum of a utility over a participant's degrees, with a proof.

    u(delta) = H(delta^2) - C(delta),   delta in [low, high],   C(delta) = c d(delta_0 - delta)

Branch and bound on cells [a, b]. Where phi is convex, H lies below its chord in s = delta^2; a convex C lies
above its tangent and a concave C above its chord. So on a cell

    u(delta) <= H(a^2) - beta (delta^2 - a^2) - C_line(delta),   beta = (H(a^2) - H(b^2)) / (b^2 - a^2) >= 0

whose maximum is closed-form. Where phi is not convex, beta = 0: H falls, and no more is used. A cell whose
bound exceeds the best value seen by no more than the tolerance is closed; the others are halved.

Where H is convex, u' is bounded on a cell too, as H' rises with s and the marginal cost is monotone:

    2 b H'(a^2) + min c d'  <=  u'(delta)  <=  2 a H'(b^2) + max c d'

A cell on which u' has one sign holds no maximizer but an end of the whole range. Values tell a maximizer to the
square root of their rounding, slopes to the rounding itself: `bracket` excludes cells by both.

Sets of (participant, cell) pairs are worked on at once. Nothing is sampled: the bound returned covers every
degree. Cells of a bound that closes only linearly (no convexity to lean on) are given up at a width, and
their bounds stay in the result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from mechanism.cost import line_below, marginal_range, shape_known
from mechanism.deviation import Deviations

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]
#: Owners, their degrees, u there.
Seen = tuple[Index, Array, Array]

#: Share of its range to which a cell is cut whose bound closes only linearly.
BLUNT = 2.0**-17
#: Times that cells are cut.
MAX_CUTS = 400
#: Cells that may be cut at once; beyond it (a bound without convexity) the search stops and says so.
MAX_PAIRS = 400_000
#: Widths of cells that are not cut: a few units in the last place of a degree.
FINEST = 2.0**-46
#: Cells a participant up to which all are cut.
FEW_CELLS = 24
_EPS = float(np.finfo(np.float64).eps)
#: Newton steps that polish a maximizer; they double the digits of one that is known to half of them.
POLISH_STEPS = 12
#: Rows of what is known at a degree.
DEGREE, PAYMENT, UTILITY, SLOPE, ERROR = range(5)


@dataclass(frozen=True)
class Maximum:
    """The answer for K participants.

    Attributes:
        degree: a maximizer, shape (K,).
        value: u there.
        upper: no degree in the range has a higher utility, shape (K,); >= value.
        rounding: the part of `upper` that allows for rounding, shape (K,).
    """

    degree: Array
    value: Array
    upper: Array
    rounding: Array


def maximise(
    problem: Deviations,
    tolerance: float = 0.0,
    prefer: Literal["least", "greatest"] = "least",
    incumbent: Array | None = None,
) -> Maximum:
    """Global maxima of `problem`.

    Args:
        tolerance: credits by which `upper` may exceed `value`, besides rounding.
        prefer: which of several maximizers, equal up to rounding, is returned.
        incumbent: a good degree for each, where one is known.
    """
    slack = problem.rounding()
    start = problem.low if incumbent is None else np.clip(incumbent, problem.low, problem.high)

    def loose(cells: _Cells, best: Array) -> Mask:
        return cells.bound > best[cells.owner] + tolerance + slack[cells.owner]

    cells, seen, best = _cut(problem, start, slack, loose)
    upper = best.copy()
    np.maximum.at(upper, cells.owner, cells.bound)
    degree, value = _polish(problem, _pick(seen, best, slack, prefer))
    return Maximum(degree, value, np.maximum(upper, value) + slack, slack)


@dataclass(frozen=True)
class Bracket:
    """Every global maximizer of K participants lies in [lower, upper], rounding allowed for; shape (K,).

    (infinity, -infinity) where all of the range is worse than an incumbent outside of it.
    """

    lower: Array
    upper: Array


def bracket(
    problem: Deviations,
    end: Literal["lower", "upper"],
    incumbent: Array,
    doubt: float,
    resolution: float,
) -> Bracket:
    """Where the global maxima of `problem` can lie. Tight only where H is convex and the costs' shapes are known.

    Args:
        end: which end is to be sharp.
        incumbent: a good degree for each, maybe outside of the range: what is worse than it is excluded.
        doubt: what a difference of two payments is off by, besides rounding.
        resolution: width at which the end is known well enough.
    """
    count = problem.low.size

    slack = 2 * problem.rounding() + doubt

    def open_ended(cells: _Cells, best: Array) -> Mask:
        ends = cells.least(count) if end == "lower" else cells.greatest(count)
        outermost = (cells.left if end == "lower" else cells.right)[DEGREE] == ends[cells.owner]
        wide = cells.right[DEGREE] - cells.left[DEGREE] > resolution
        # The outermost cells tell where the end is; the others, while few, whether something better excludes it.
        better = cells.bound > best[cells.owner] + slack[cells.owner]
        few = cells.owner.size <= FEW_CELLS * count and bool((wide & (outermost | better)).any())
        return np.asarray(wide & (outermost | few))

    cells, _, _ = _cut(problem, incumbent, slack, open_ended)
    return Bracket(cells.least(count), cells.greatest(count))


def _cut(
    problem: Deviations, incumbent: Array, slack: Array, wanted: Callable[["_Cells", Array], Mask]
) -> tuple["_Cells", list[Seen], Array]:
    """Halve the cells that are `wanted`, given the best value seen, and leave out those that hold no maximizer.

    Returns the cells that are left, all that was seen, and the best of it for each participant.
    """
    everyone = np.arange(problem.low.size)
    best = problem.utility(everyone, incumbent)
    seen = [(everyone, incumbent, best.copy())]

    def nodes(owner: Index, degree: Array) -> Array:
        found = _nodes(problem, owner, degree)
        np.maximum.at(best, owner, found[UTILITY])
        seen.append((owner, degree, found[UTILITY]))
        return found

    sharp = shape_known(problem.cost) & problem.convex
    narrowest = np.where(sharp, FINEST, BLUNT * (problem.high - problem.low))
    cells = _Cells.tested(problem, everyone, nodes(everyone, problem.low), nodes(everyone, problem.high))
    for _ in range(MAX_CUTS):
        # Written so that a NaN stays.
        cells = cells.chosen(~(cells.bound < best[cells.owner] - slack[cells.owner]))
        width = cells.right[DEGREE] - cells.left[DEGREE]
        cut = wanted(cells, best) & (width > narrowest[cells.owner])
        if not cut.any() or cut.sum() > MAX_PAIRS:
            break
        old = cells.chosen(cut)
        middle = nodes(old.owner, (old.left[DEGREE] + old.right[DEGREE]) / 2)
        owner = np.concatenate([old.owner, old.owner])
        lefts, rights = np.hstack([old.left, middle]), np.hstack([middle, old.right])
        cells = cells.chosen(~cut).joined(_Cells.tested(problem, owner, lefts, rights))
    return cells, seen, best


def _nodes(problem: Deviations, owner: Index, degree: Array) -> Array:
    """Degrees with H there, u, H' and what H' is off by at most; the last two are unused where H is not convex."""
    payment = problem.payment(owner, degree)
    slope = error = np.zeros_like(degree)
    if problem.convex:
        slope, error = problem.first(owner, degree)
    return np.stack([degree, payment, payment - problem.costs(owner, degree), slope, error])


@dataclass(frozen=True)
class _Cells:
    """Cells that may hold a maximizer of their owner, and a bound on u in between.

    Attributes:
        left, right: their ends as `_nodes` has them, shape (5, cells).
    """

    owner: Index
    left: Array
    right: Array
    bound: Array

    @classmethod
    def tested(cls, problem: Deviations, owner: Index, left: Array, right: Array) -> "_Cells":
        """Those on which u' may change its sign; of others at an end of the range, that end alone."""
        bound = _cell_bound(problem, owner, left, right)
        if not problem.convex:
            return cls(owner, left, right, bound)
        least, most = _slope_range(problem, owner, left, right)
        rises, falls = least > 0, most < 0
        inside = (rises & (right[DEGREE] < problem.high[owner])) | (
            falls & (left[DEGREE] > problem.low[owner])
        )
        left, right = np.where(rises, right, left), np.where(falls, left, right)
        bound = np.where(rises | falls, left[UTILITY], bound)
        return cls(owner, left, right, bound).chosen(~inside)

    def chosen(self, which: Mask) -> "_Cells":
        return _Cells(self.owner[which], self.left[:, which], self.right[:, which], self.bound[which])

    def joined(self, more: "_Cells") -> "_Cells":
        return _Cells(
            np.concatenate([self.owner, more.owner]),
            np.hstack([self.left, more.left]),
            np.hstack([self.right, more.right]),
            np.concatenate([self.bound, more.bound]),
        )

    def least(self, count: int) -> Array:
        """The least degree in the cells of each owner, infinity where it has none."""
        found = np.full(count, np.inf)
        np.minimum.at(found, self.owner, self.left[DEGREE])
        return found

    def greatest(self, count: int) -> Array:
        """The greatest degree in the cells of each owner, minus infinity where it has none."""
        found = np.full(count, -np.inf)
        np.maximum.at(found, self.owner, self.right[DEGREE])
        return found


def _cell_bound(problem: Deviations, owner: Index, left: Array, right: Array) -> Array:
    """An upper bound on u over each cell."""
    a, b, pa, pb = left[DEGREE], right[DEGREE], left[PAYMENT], right[PAYMENT]
    gap_a, gap_b = (np.maximum(problem.start[owner] - v, 0.0) for v in (a, b))
    line_a, slope = line_below(problem.cost.take(owner), gap_b, gap_a)
    beta = np.zeros_like(a)
    if problem.convex:
        squares = b**2 - a**2
        beta = np.maximum(np.divide(pa - pb, squares, out=beta, where=squares > 0), 0.0)
    top = np.clip(np.divide(slope, 2 * beta, out=b.copy(), where=beta > 0), a, b)
    return np.asarray(pa - beta * (top**2 - a**2) - line_a + slope * (top - a))


def _slope_range(problem: Deviations, owner: Index, left: Array, right: Array) -> tuple[Array, Array]:
    """Bounds of u' over each cell, where H is convex."""
    gap_a, gap_b = (np.maximum(problem.start[owner] - v[DEGREE], 0.0) for v in (left, right))
    low, high = marginal_range(problem.cost.take(owner), gap_b, gap_a)
    steepest = left[SLOPE] - left[ERROR]
    least = 2 * right[DEGREE] * np.minimum(steepest, 0.0)
    most = 2 * left[DEGREE] * np.minimum(right[SLOPE] + right[ERROR], 0.0)
    # Rounding of the products and of the marginal cost, each a few units in the last place; a concave power's
    # marginal cost is infinite where it begins, which decides nothing.
    # Where H' is 0 on the whole cell effort only costs, however little: a marginal cost may be too small for a float.
    with np.errstate(invalid="ignore"):
        return (
            np.where(steepest >= 0, np.inf, least + low - 16 * _EPS * (np.abs(least) + low)),
            most + high + 16 * _EPS * (np.abs(most) + high),
        )


def _pick(seen: list[Seen], best: Array, slack: Array, prefer: str) -> Array:
    """Of the points seen whose utility equals the best up to rounding, the least or the greatest."""
    owner, degree, utility = (np.concatenate(arrays) for arrays in zip(*seen, strict=True))
    good = utility >= best[owner] - slack[owner]
    if prefer == "least":
        chosen = np.full(best.shape, np.inf)
        np.minimum.at(chosen, owner[good], degree[good])
    else:
        chosen = np.full(best.shape, -np.inf)
        np.maximum.at(chosen, owner[good], degree[good])
    return chosen


def _polish(problem: Deviations, degree: Array) -> tuple[Array, Array]:
    """Newton on u' near each maximizer; a step is taken only where it brings |u'| down."""
    everyone = np.arange(degree.size)
    here = problem.slopes(everyone, degree)
    slope, bend = here.slope, here.bend
    for _ in range(POLISH_STEPS):
        step = np.divide(-slope, bend, out=np.zeros_like(slope), where=np.isfinite(slope) & (bend < 0))
        moved = np.clip(degree + step, problem.low, problem.high)
        there = problem.slopes(everyone, moved)
        better = (np.abs(there.slope) < np.abs(slope)) & (np.abs(moved - degree) < 1e-3)
        if not better.any():
            break
        degree, slope, bend = (
            np.where(better, new, old)
            for new, old in ((moved, degree), (there.slope, slope), (there.bend, bend))
        )
    return degree, problem.utility(everyone, degree)
