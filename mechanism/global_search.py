"""Global maximum of a utility over a participant's degrees, with a proof.

    u(delta) = H(delta^2) - C(delta),   delta in [low, high],   C(delta) = c d(delta_0 - delta)

Branch and bound on cells [a, b]. Where phi is convex, H lies below its chord in s = delta^2; a convex C lies
above its tangent and a concave C above its chord. So on a cell

    u(delta) <= H(a^2) - beta (delta^2 - a^2) - C_line(delta),   beta = (H(a^2) - H(b^2)) / (b^2 - a^2) >= 0

whose maximum is closed-form. Where phi is not convex, beta = 0: H falls, and no more is used. A cell whose
bound exceeds the best value seen by no more than the tolerance is closed; the others are halved.

Sets of (participant, cell) pairs are worked on at once. Nothing is sampled: the bound returned covers every
degree. Cells of a bound that closes only linearly (no convexity to lean on) are given up at a width, and
their bounds stay in the result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from mechanism.cost import Convexity, CostFunction

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
#: Newton steps that polish a maximizer; they double the digits of one that is known to half of them.
POLISH_STEPS = 12


@dataclass(frozen=True)
class SearchProblem:
    """Utilities of K participants against fixed peers.

    Attributes:
        low, high: the range of degrees, shape (K,).
        start: delta_0, shape (K,).
        payment: (owner, degree) -> H(degree^2) for pairs.
        payment_slopes: (owner, degree) -> (H', H'') at degree^2.
        cost: one entry a participant.
        convex: whether H is known to be convex in s.
    """

    low: Array
    high: Array
    start: Array
    payment: Callable[[Index, Array], Array]
    payment_slopes: Callable[[Index, Array], tuple[Array, Array]]
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
    linear = not problem.convex or problem.cost.convexity is Convexity.UNKNOWN
    for _ in range(LINEAR_HALVINGS if linear else MAX_HALVINGS):
        bound = _cell_bound(problem, owner, a, b, pa, pb)
        is_open = bound > best[owner] + tolerance + slack[owner]
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
    cost = problem.cost.take(owner)
    gap_a, gap_b = (np.maximum(problem.start[owner] - v, 0.0) for v in (a, b))
    cost_a, cost_b = cost.value(gap_a), cost.value(gap_b)
    width = b - a
    safe_width = np.where(width > 0, width, 1.0)
    shape = cost.convexity
    if shape in (Convexity.LINEAR, Convexity.CONCAVE):
        line_a, slope = cost_a, (cost_a - cost_b) / safe_width
    elif shape is Convexity.CONVEX:
        gap = (gap_a + gap_b) / 2
        slope = cost.first(gap)
        line_a = cost.value(gap) + slope * (gap_a - gap)
    else:
        line_a, slope = cost_b, np.zeros_like(a)
    beta = np.zeros_like(a)
    if problem.convex:
        squares = b**2 - a**2
        beta = np.maximum(np.divide(pa - pb, squares, out=beta, where=squares > 0), 0.0)
    top = np.clip(np.divide(slope, 2 * beta, out=b.copy(), where=beta > 0), a, b)
    return np.asarray(pa - beta * (top**2 - a**2) - line_a + slope * (top - a))


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
    first, second = problem.payment_slopes(owner, degree)
    cost = problem.cost.take(owner)
    gap = np.maximum(problem.start[owner] - degree, 0.0)
    slope = 2 * degree * first + cost.first(gap)
    return slope, np.asarray(2 * first + 4 * degree**2 * second - cost.second(gap))
