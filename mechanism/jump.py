"""Who leaves a climb: participants whose best response lies beyond the local maximum that they climb.

Peers held at the profile of a monotone iteration from below, u(t) > u(y) for every y in [x, t) proves that every
equilibrium above the profile has delta_k >= t: with the peers' higher degrees the difference only grows. From
above, u(t) > u(y) for every y in (t, x] proves delta_k <= t. So a jump to t is as valid as a step.

With p and q of `mechanism.regret.Structure` (concave up to p, undecided to q, convex beyond):

    below   t = the upper end; u stays under the tangent at x up to p, under its ends plus a pad up to q, and under
            its ends beyond.
    above   t = right of the maximum of the concave part, where u already falls; the rest as before.

Who gains but lies so close to p and q that this proves nothing is searched one by one, and goes to the first place
on its way that may hold a best response. Of maxima that are tied up to rounding this is the one nearest to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from mechanism.cost import Convexity, CostFunction
from mechanism.field import Field, PeerField, Pool, blocks
from mechanism.game import Game
from mechanism.global_search import SearchProblem, bracket, maximise
from mechanism.regret import SEARCHED, Deviations, Structure, field_problem, gain_rounding

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
Side = Literal["least", "greatest"]

#: Right of the root that Newton's method found from the left, where u already falls, in degrees.
NUDGE = 1e-9
#: How well the first place that may hold a best response is known, in degrees.
RESOLUTION = 1e-10


@dataclass(frozen=True)
class Profile:
    """A monotone profile and its field; arrays in one order of participants."""

    game: Game
    field: Field
    degree: Array
    low: Array
    high: Array
    order: Index
    costs: Sequence[CostFunction]


def jumps(profile: Profile, side: Side, pool: Pool, enough: float) -> tuple[Index, Array]:
    """Who jumps, and where to: indices of `profile`, and degrees further along the iteration.

    Args:
        enough: credits that a jump must gain, besides rounding.
    """
    shape = Structure.of(profile.game, profile.field)
    find = _upwards if side == "least" else _downwards

    def part(work: tuple[slice, CostFunction]) -> tuple[Index, Array, Index]:
        block, cost = work
        offset = block.start
        movers, degree, unsure = find(profile, shape, block, cost, enough)
        return movers + offset, degree, unsure + offset

    parts = pool.map(part, list(zip(blocks(profile.degree.size), profile.costs, strict=True)))
    movers, degree, unsure = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    for at in range(0, unsure.size, SEARCHED):
        chunk = unsure[at : at + SEARCHED]
        who, where = _searched(profile, side, chunk, enough)
        movers, degree = np.concatenate([movers, who]), np.concatenate([degree, where])
    return movers, degree


def _upwards(
    profile: Profile, shape: Structure, block: slice, cost: CostFunction, enough: float
) -> tuple[Index, Array, Index]:
    p, high = shape.concave_until, profile.high[block]
    at = np.flatnonzero((profile.degree[block] <= p) & (high > p))
    if at.size == 0:
        return at, np.empty(0), at
    some = _some(profile, cost, block, at)
    slope, _, doubt = some.slopes(some.x)
    rise = np.maximum(slope + doubt, 0.0) * (p - some.x)
    q = np.clip(some.high, p, max(shape.convex_from, p))
    middle, end = some.gain(q), some.gain(some.high)
    under = np.maximum(rise, np.where(q < some.high, middle, -np.inf)) + np.square(q - p) / 8 * shape.steepest
    margin = _margin(some, enough)
    wins = (end > under + margin) & (q < some.high) & (cost.convexity is Convexity.LINEAR)
    unsure = ~wins & (np.maximum(middle, end) > rise + margin)
    return at[wins], some.high[wins], at[unsure]


def _downwards(
    profile: Profile, shape: Structure, block: slice, cost: CostFunction, enough: float
) -> tuple[Index, Array, Index]:
    p, low = shape.concave_until, profile.low[block]
    at = np.flatnonzero((profile.degree[block] > p) & (low < p))
    if at.size == 0:
        return at, np.empty(0), at
    some = _some(profile, cost, block, at)
    top = np.full(at.size, p)
    foot = some.foot(some.low, top)
    foot = np.minimum(foot + NUDGE, top)
    slope, _, doubt = some.slopes(foot)
    q = np.clip(some.x, p, max(shape.convex_from, p))
    gain, pad = some.gain(foot), np.square(q - p) / 8 * shape.steepest
    over = np.maximum(np.maximum(some.gain(top), np.where(q < some.x, some.gain(q), 0.0)) + pad, 0.0)
    margin = _margin(some, enough)
    wins = (gain > over + margin) & (slope + doubt <= 0) & (cost.convexity is Convexity.LINEAR)
    unsure = ~wins & (gain > margin)
    return at[wins], foot[wins], at[unsure]


def _some(profile: Profile, cost: CostFunction, block: slice, at: Index) -> Deviations:
    x, low, high = (a[block][at] for a in (profile.degree, profile.low, profile.high))
    return Deviations(profile.game, profile.field, cost.take(at), x, low, high)


def _margin(some: Deviations, enough: float) -> Array:
    """What a gain must exceed."""
    worth = np.abs(some.own) / some.others + np.abs(some.spent) + some.cost.value(some.high - some.low)
    return enough + gain_rounding(some.game, some.field, some.high, worth)


def _searched(profile: Profile, side: Side, chunk: Index, enough: float) -> tuple[Index, Array]:
    x = profile.degree[chunk]
    problem = field_problem(
        profile.game, profile.field, profile.degree, profile.low, profile.high, profile.order, chunk
    )
    found = maximise(problem, tolerance=enough / 2, prefer=side, incumbent=x)
    gain = found.value - problem.utility(np.arange(chunk.size), x)
    forward = found.degree > x if side == "least" else found.degree < x
    wins = forward & (gain > enough + found.rounding + 4 * profile.field.error)
    ahead = beyond(problem, side, x)
    degree = first_maximizer(ahead, side, x, found.degree, doubt(profile.field), RESOLUTION)
    return chunk[wins], degree[wins]


def beyond(problem: SearchProblem, side: Side, degree: Array) -> SearchProblem:
    """`problem` for the degrees that an iteration has yet to pass."""
    return replace(problem, low=degree) if side == "least" else replace(problem, high=degree)


def doubt(field: PeerField | None) -> float:
    """What a difference of two payments is off by, besides rounding; None sums over every peer."""
    return 0.0 if field is None else 4 * getattr(field, "level_error", field.error)


def first_maximizer(
    problem: SearchProblem, side: Side, x: Array, incumbent: Array, doubt: float, resolution: float
) -> Array:
    """The first degree of the range, in the iteration's direction, that may be a best response; `x` where none is.

    It passes no best response. Of several that are tied up to rounding it is the first.
    """
    end: Literal["lower", "upper"] = "lower" if side == "least" else "upper"
    ends = bracket(problem, end, incumbent, doubt, resolution)
    found = ends.lower if side == "least" else ends.upper
    return np.where(np.isfinite(found), found, x)
