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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from mechanism.cost import CostFunction, line_below, marginal_range, shape_known

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]

#: Rounding of one utility, in units of its size: a mean of peers (pairwise sums), one ln, a few products.
ROUNDING = 64 * float(np.finfo(np.float64).eps)
#: Cells that a participant's range is cut into before bounding starts.
FIRST_CELLS = 32
#: Halvings before a cell is given up: at 2^-40 of the range a float64 utility shows no more structure.
MAX_HALVINGS = 40
#: The same where a bound closes only linearly: what is left open is then some 1e-5 of the range wide.
LINEAR_HALVINGS = 12
#: Pairs that may be open at once; beyond it (a bound without convexity) the search stops and says so.
MAX_PAIRS = 400_000
#: Widths below which an end of a bracket is not sharpened: a few units in the last place of a degree.
FINEST = 2.0**-46
#: Times that the outermost cells of a bracket are cut, and cells a participant up to which all are.
MAX_TRIMS, FEW_CELLS = 400, 24
_EPS = float(np.finfo(np.float64).eps)
#: Newton steps that polish a maximizer; they double the digits of one that is known to half of them.
POLISH_STEPS = 12


@dataclass(frozen=True)
class SearchProblem:
    """Utilities of K participants against fixed peers.

    Attributes:
        low, high: the range of degrees, shape (K,).
        start: delta_0, shape (K,).
        payment: (owner, degree) -> H(degree^2) for pairs.
        payment_slope: (owner, degree) -> H' at degree^2, and what it is off by at most.
        payment_bend: (owner, degree) -> H'' at degree^2.
        cost: one entry a participant.
        convex: whether H is known to be convex in s.
    """

    low: Array
    high: Array
    start: Array
    payment: Callable[[Index, Array], Array]
    payment_slope: Callable[[Index, Array], tuple[Array, Array]]
    payment_bend: Callable[[Index, Array], Array]
    cost: CostFunction
    convex: bool

    def costs(self, owner: Index, degree: Array) -> Array:
        return self.cost.take(owner).value(np.maximum(self.start[owner] - degree, 0.0))

    def marginal(self, owner: Index, degree: Array) -> Array:
        """-dC/d delta = c d'(delta_0 - delta) >= 0."""
        return self.cost.take(owner).first(np.maximum(self.start[owner] - degree, 0.0))

    def utility(self, owner: Index, degree: Array) -> Array:
        return np.asarray(self.payment(owner, degree) - self.costs(owner, degree))

    def rounding(self) -> Array:
        """A bound on the rounding of any utility computed here, shape (K,)."""
        everyone = np.arange(self.low.size)
        size = np.abs(self.payment(everyone, self.low)) + np.abs(self.payment(everyone, self.high))
        return np.asarray(ROUNDING * (size + self.costs(everyone, self.low)))


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
    problem: SearchProblem,
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
    count = problem.low.size
    everyone = np.arange(count)
    slack = problem.rounding()
    degree = problem.low.copy() if incumbent is None else np.clip(incumbent, problem.low, problem.high)
    value = problem.utility(everyone, degree)
    seen = [(everyone, degree, value)]
    best = value.copy()

    share = np.linspace(0.0, 1.0, FIRST_CELLS + 1)
    nodes = problem.low[:, None] + (problem.high - problem.low)[:, None] * share
    nodes[:, -1] = problem.high
    owners = np.repeat(everyone, FIRST_CELLS + 1)
    paid = problem.payment(owners, nodes.ravel())
    utility = paid - problem.costs(owners, nodes.ravel())
    seen.append((owners, nodes.ravel(), utility))
    np.maximum.at(best, owners, utility)

    paid = paid.reshape(nodes.shape)
    owner = np.repeat(everyone, FIRST_CELLS)
    a, b = nodes[:, :-1].ravel(), nodes[:, 1:].ravel()
    pa, pb = paid[:, :-1].ravel(), paid[:, 1:].ravel()
    upper = best.copy()
    sharp = shape_known(problem.cost, count) & problem.convex
    for halving in range(MAX_HALVINGS):
        bound = _cell_bound(problem, owner, a, b, pa, pb)
        is_open = bound > best[owner] + tolerance + slack[owner]
        if halving == LINEAR_HALVINGS:
            is_open &= sharp[owner]
        closed = ~is_open
        np.maximum.at(upper, owner[closed], bound[closed])
        owner = owner[is_open]
        a, b, pa, pb = (v[is_open] for v in (a, b, pa, pb))
        if owner.size == 0:
            break
        if owner.size > MAX_PAIRS:
            np.maximum.at(upper, owner, bound[is_open])
            break
        middle = (a + b) / 2
        pm = problem.payment(owner, middle)
        utility = pm - problem.costs(owner, middle)
        seen.append((owner, middle, utility))
        np.maximum.at(best, owner, utility)
        owner = np.concatenate([owner, owner])
        a, b = np.concatenate([a, middle]), np.concatenate([middle, b])
        pa, pb = np.concatenate([pa, pm]), np.concatenate([pm, pb])
    else:
        np.maximum.at(upper, owner, _cell_bound(problem, owner, a, b, pa, pb))

    degree = _pick(seen, best, slack, prefer)
    degree, value = _polish(problem, degree)
    return Maximum(degree, value, np.maximum(upper, value) + slack, slack)


def _cell_bound(problem: SearchProblem, owner: Index, a: Array, b: Array, pa: Array, pb: Array) -> Array:
    """An upper bound on u over each cell."""
    gap_a, gap_b = (np.maximum(problem.start[owner] - v, 0.0) for v in (a, b))
    line_a, slope = line_below(problem.cost.take(owner), gap_b, gap_a)
    beta = np.zeros_like(a)
    if problem.convex:
        squares = b**2 - a**2
        beta = np.maximum(np.divide(pa - pb, squares, out=beta, where=squares > 0), 0.0)
    top = np.clip(np.divide(slope, 2 * beta, out=b.copy(), where=beta > 0), a, b)
    return np.asarray(pa - beta * (top**2 - a**2) - line_a + slope * (top - a))


@dataclass(frozen=True)
class Bracket:
    """Every global maximizer of K participants lies in [lower, upper], rounding allowed for; shape (K,).

    (infinity, -infinity) where all of the range is worse than an incumbent outside of it.
    """

    lower: Array
    upper: Array


def bracket(
    problem: SearchProblem,
    end: Literal["lower", "upper"],
    incumbent: Array,
    doubt: float = 0.0,
    resolution: float = FINEST,
) -> Bracket:
    """Where the global maxima of `problem` can lie. Tight only where H is convex and the costs' shapes are known.

    Args:
        end: which end is to be sharp.
        incumbent: a good degree for each, maybe outside of the range: what is worse than it is excluded.
        doubt: what a difference of two payments is off by, besides rounding.
        resolution: width at which the end is known well enough.
    """
    count = problem.low.size
    everyone = np.arange(count)
    slack = 2 * problem.rounding() + doubt
    low, high = (_Nodes.at(problem, everyone, at) for at in (problem.low, problem.high))
    best = problem.utility(everyone, incumbent)
    for one in (low, high):
        np.maximum(best, one.payment - problem.costs(everyone, one.degree), out=best)
    known = _Cells.tested(problem, everyone, low, high)
    for _ in range(MAX_TRIMS):
        # Written so that a NaN stays.
        known = known.chosen(~(known.bound < best[known.owner] - slack[known.owner]))
        outermost = known.left.degree == known.least(count)[known.owner]
        if end == "upper":
            outermost = known.right.degree == known.greatest(count)[known.owner]
        # Only the outermost cells tell more; the others are cut while they are few, to find a better incumbent.
        wide = known.right.degree - known.left.degree > resolution
        cut = wide & (outermost | (known.owner.size <= FEW_CELLS * count))
        if not (cut & outermost).any():
            break
        old = known.chosen(cut)
        middle = _Nodes.at(problem, old.owner, (old.left.degree + old.right.degree) / 2)
        np.maximum.at(best, old.owner, middle.payment - problem.costs(old.owner, middle.degree))
        owner = np.concatenate([old.owner, old.owner])
        lefts, rights = _Nodes.joined([old.left, middle]), _Nodes.joined([middle, old.right])
        known = _Cells.joined(known.chosen(~cut), _Cells.tested(problem, owner, lefts, rights))
    return Bracket(known.least(count), known.greatest(count))


@dataclass(frozen=True)
class _Nodes:
    """Degrees with H there, H', and what H' is off by at most; the last two are unused where H is not convex."""

    degree: Array
    payment: Array
    slope: Array
    error: Array

    @classmethod
    def at(cls, problem: SearchProblem, owner: Index, degree: Array) -> "_Nodes":
        slope = error = np.zeros_like(degree)
        if problem.convex:
            slope, error = problem.payment_slope(owner, degree)
        return cls(degree, problem.payment(owner, degree), slope, error)

    @classmethod
    def joined(cls, parts: Sequence["_Nodes"]) -> "_Nodes":
        return cls(*(np.concatenate([getattr(p, name) for p in parts]) for name in cls.__dataclass_fields__))

    def chosen(self, which: npt.NDArray[np.bool_]) -> "_Nodes":
        return _Nodes(*(getattr(self, name)[which] for name in self.__dataclass_fields__))

    def where(self, which: npt.NDArray[np.bool_], other: "_Nodes") -> "_Nodes":
        """These where `which`, elsewhere the others."""
        fields = self.__dataclass_fields__
        return _Nodes(*(np.where(which, getattr(self, name), getattr(other, name)) for name in fields))


@dataclass(frozen=True)
class _Cells:
    """Cells that may hold a maximizer of their owner, and a bound on u in between."""

    owner: Index
    left: _Nodes
    right: _Nodes
    bound: Array

    @classmethod
    def tested(cls, problem: SearchProblem, owner: Index, left: _Nodes, right: _Nodes) -> "_Cells":
        """Those on which u' may change its sign; of others at an end of the range, that end alone."""
        bound = _cell_bound(problem, owner, left.degree, right.degree, left.payment, right.payment)
        cells = cls(owner, left, right, bound)
        if not problem.convex:
            return cells
        least, most = _slope_range(problem, owner, left, right)
        rises, falls = least > 0, most < 0
        inside = (rises & (right.degree < problem.high[owner])) | (falls & (left.degree > problem.low[owner]))
        return cls(owner, right.where(rises, left), left.where(falls, right), bound).chosen(~inside)

    @classmethod
    def joined(cls, *parts: "_Cells") -> "_Cells":
        owner, bound = (
            np.concatenate(arrays) for arrays in zip(*((p.owner, p.bound) for p in parts), strict=True)
        )
        return cls(
            owner, _Nodes.joined([p.left for p in parts]), _Nodes.joined([p.right for p in parts]), bound
        )

    def chosen(self, which: npt.NDArray[np.bool_]) -> "_Cells":
        return _Cells(self.owner[which], self.left.chosen(which), self.right.chosen(which), self.bound[which])

    def least(self, count: int) -> Array:
        """The least degree in the cells of each owner, infinity where it has none."""
        found = np.full(count, np.inf)
        np.minimum.at(found, self.owner, self.left.degree)
        return found

    def greatest(self, count: int) -> Array:
        """The greatest degree in the cells of each owner, minus infinity where it has none."""
        found = np.full(count, -np.inf)
        np.maximum.at(found, self.owner, self.right.degree)
        return found


def _slope_range(problem: SearchProblem, owner: Index, left: _Nodes, right: _Nodes) -> tuple[Array, Array]:
    """Bounds of u' over each cell, where H is convex."""
    gap_a, gap_b = (np.maximum(problem.start[owner] - v.degree, 0.0) for v in (left, right))
    low, high = marginal_range(problem.cost.take(owner), gap_b, gap_a)
    least = 2 * right.degree * np.minimum(left.slope - left.error, 0.0)
    most = 2 * left.degree * np.minimum(right.slope + right.error, 0.0)
    # Rounding of the products and of the marginal cost, each a few units in the last place; a concave power's
    # marginal cost is infinite where it begins, which decides nothing.
    # Where H' is 0 on the whole cell effort only costs, however little: a marginal cost may be too small for a float.
    free = left.slope - left.error >= 0
    with np.errstate(invalid="ignore"):
        return (
            np.where(free, np.inf, least + low - 16 * _EPS * (np.abs(least) + low)),
            most + high + 16 * _EPS * (np.abs(most) + high),
        )


def _pick(seen: list[tuple[Index, Array, Array]], best: Array, slack: Array, prefer: str) -> Array:
    """Of the points seen whose utility equals the best up to rounding, the least or the greatest."""
    owner = np.concatenate([s[0] for s in seen])
    degree = np.concatenate([s[1] for s in seen])
    utility = np.concatenate([s[2] for s in seen])
    good = utility >= best[owner] - slack[owner]
    if prefer == "least":
        chosen = np.full(best.shape, np.inf)
        np.minimum.at(chosen, owner[good], degree[good])
    else:
        chosen = np.full(best.shape, -np.inf)
        np.maximum.at(chosen, owner[good], degree[good])
    return chosen


def _polish(problem: SearchProblem, degree: Array) -> tuple[Array, Array]:
    """Newton on u' near each maximizer; a step is taken only where it brings |u'| down."""
    everyone = np.arange(degree.size)
    slope, bend = _slopes(problem, everyone, degree)
    for _ in range(POLISH_STEPS):
        step = np.divide(-slope, bend, out=np.zeros_like(slope), where=np.isfinite(slope) & (bend < 0))
        moved = np.clip(degree + step, problem.low, problem.high)
        new_slope, new_bend = _slopes(problem, everyone, moved)
        better = (np.abs(new_slope) < np.abs(slope)) & (np.abs(moved - degree) < 1e-3)
        if not better.any():
            break
        degree, slope, bend = (
            np.where(better, new, old) for new, old in ((moved, degree), (new_slope, slope), (new_bend, bend))
        )
    return degree, problem.utility(everyone, degree)


def _slopes(problem: SearchProblem, owner: Index, degree: Array) -> tuple[Array, Array]:
    """u' and u''."""
    first, second = problem.payment_slope(owner, degree)[0], problem.payment_bend(owner, degree)
    cost = problem.cost.take(owner)
    gap = np.maximum(problem.start[owner] - degree, 0.0)
    slope = 2 * degree * first + cost.first(gap)
    return slope, np.asarray(2 * first + 4 * degree**2 * second - cost.second(gap))
