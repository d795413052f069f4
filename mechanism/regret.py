"""The certificate: how much anyone could gain by deviating from a profile.

    max over delta of   D_k(delta) = u_k(delta) - u_k(delta_k),      peers fixed

In two parts, both proofs.

1. One structure for all (`survey`). For linear costs u_k'' = S'' plus the participant's own share of the field,
   which is O(1/N), S(delta) = N/(N-1) M(delta^2). On a cell [a, b], M' rises and M'' falls with s, so
       2 M'(a^2) + 4 a^2 M''(b^2)  <=  (M(delta^2))''  <=  2 M'(b^2) + 4 b^2 M''(a^2).
   Cells that are concave for everyone come first, up to p, then a few undecided, up to q, then convex ones. On the
   concave part u_k lies below its tangent at any point; on the convex part below the better of its ends; on the
   undecided part below the better of its ends plus (q - p)^2/8 times a bound on -u''. Five evaluations bound
   D_k, whatever N. A convex cost adds to the concave part alone.

2. Those who are left (another pattern of cells, another cost) go through the branch and bound of
   `mechanism.global_search`.

The field's interpolation error enters both: |M' - q| <= e moves D_k by at most 2 N/(N-1) e |s - s'|.

The same bounds say whom an extremal iteration may carry over a valley of its utility. Peers held at a profile from
below, u(t) > u(y) for every y in [x, t) proves that every equilibrium above the profile has delta_k >= t: with the
peers' higher degrees the difference only grows. From above, u(t) > u(y) for every y in (t, x] proves delta_k <= t.
So a jump to t is as valid as a step. Where this proves nothing, a participant that gains is searched, and goes to the
first place on its way that may hold a best response.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mechanism.best_response import PeerRule
from mechanism.deviation import ROUNDING, Deviations
from mechanism.game import Game, Side
from mechanism.global_search import bracket, maximise
from mechanism.mean_field import Field, PeerField

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]

#: Regret below which a participant stays where it is, credits: above rounding, far below a micro-credit.
ENOUGH = 1e-12
#: Two degrees closer than this are one.
SAME = 1e-9
#: Cells of the range of degrees in which the sign of u'' is decided.
CELLS = 1024
#: Newton steps from the left that find the tangent's foot: any foot is valid, a good one is tight.
FOOT_STEPS = 8
#: A Newton step that squares to less than a float shows.
ARRIVED = 1e-9
#: Right of the root that Newton's method found from the left, where u already falls, in degrees.
NUDGE = 1e-9
#: How well the first place that may hold a best response is known, in degrees.
RESOLUTION = 1e-10
#: Participants whose cells are searched at once.
SEARCHED = 4096


@dataclass(frozen=True)
class Regret:
    """Bounds for every participant, shape (N,).

    Attributes:
        bound: D_k is at most this everywhere.
        better: the best degree seen; gain: D_k there (0 where nothing better was seen).
        rounding: the part of `bound` that allows for rounding and interpolation.
        safe: whether u at `better` is proved to be above all that lies between it and the profile.
    """

    bound: Array
    better: Array
    gain: Array
    rounding: Array
    safe: npt.NDArray[np.bool_]


def regret(game: Game, field: PeerField, degree: Array, enough: float) -> Regret:
    """Bounds at a profile.

    Args:
        field: of the profile.
        enough: participants whose bound exceeds their gain by more than this, credits, are searched one by one.
    """
    nothing = np.zeros_like(degree)
    found = survey(game, field, degree) or Regret(
        nothing + np.inf, degree.copy(), nothing.copy(), nothing.copy(), nothing > 0
    )
    # Written so that a NaN counts as unsure.
    unsure = np.flatnonzero(~(found.bound - found.gain <= enough + found.rounding))
    for who, problem in problems(game, field, degree, unsure):
        x = degree[who]
        now = problem.utility(np.arange(who.size), x)
        best = maximise(problem, tolerance=enough / 2, incumbent=x)
        gain = best.value - now
        found.rounding[who] = best.rounding + field.level_error
        found.bound[who] = np.maximum(best.upper - now, 0.0) + found.rounding[who]
        found.better[who] = np.where(gain > 0, best.degree, x)
        found.gain[who] = np.maximum(gain, 0.0)
        found.safe[who] = False
    return found


def jumps(game: Game, side: Side, field: PeerField, degree: Array, found: Regret) -> tuple[Index, Array]:
    """Those with something better further along the iteration, and where each goes, past no equilibrium."""
    ahead = found.better > degree if side == "least" else found.better < degree
    movers = np.flatnonzero(ahead & (found.gain > ENOUGH + found.rounding))
    where = found.better.copy()
    for who, problem in problems(game, field, degree, movers[~found.safe[movers]]):
        where[who] = first_maximizer(problem, side, degree[who], where[who], field.level_error, RESOLUTION)
    movers = movers[np.abs(where - degree)[movers] > SAME]
    return movers, where[movers]


def first_maximizer(
    problem: Deviations, side: Side, x: Array, incumbent: Array, doubt: float, resolution: float
) -> Array:
    """The first degree from `x` in the iteration's direction that may be a best response; `x` where none is.

    It passes no best response. Of several that are tied up to rounding it is the first.
    """
    ends = bracket(
        beyond(problem, side, x), "lower" if side == "least" else "upper", incumbent, doubt, resolution
    )
    found = ends.lower if side == "least" else ends.upper
    return np.where(np.isfinite(found), found, x)


def beyond(problem: Deviations, side: Side, degree: Array) -> Deviations:
    """`problem` for the degrees that an iteration has yet to pass."""
    return replace(problem, low=degree) if side == "least" else replace(problem, high=degree)


def problems(
    game: Game, field: PeerField, degree: Array, who: Index | None = None
) -> Iterator[tuple[Index, Deviations]]:
    """The best-response problems against a profile of everyone, or of `who`, some at a time."""
    who = np.arange(game.size) if who is None else who
    for at in range(0, who.size, SEARCHED):
        chunk = who[at : at + SEARCHED]
        yield chunk, deviations(game, field, degree, chunk)


def expected_payments(game: Game, field: PeerField, degree: Array) -> Array:
    """What each is paid at a profile, credits a round, shape (N,)."""
    everyone = np.arange(game.size)
    paid = deviations(game, field, degree, everyone).payment(everyone, degree)
    return np.asarray(paid + field.constant(degree) * (game.size / (game.size - 1)))


def deviations(game: Game, field: PeerField, degree: Array, who: Index) -> Deviations:
    """The utilities of `who` against a profile and its field."""
    mine, others = np.square(degree[who]), game.size - 1
    grow, own, shift = game.size / others, -1 / others, mine
    if game.rule is PeerRule.MEAN:
        grow, own, shift = 0.0, 1.0, (np.square(degree).sum() - mine) / others
    low, start, cost = game.floor[who], game.start[who], game.cost.take(who)
    return Deviations(low, start, start, cost, game.curvature.holds, game.score, field, grow, own, shift)


@dataclass(frozen=True)
class Structure:
    """Where u_k is concave or convex, for every participant alike.

    Attributes:
        concave_until, convex_from: p and q.
        steepest: a bound on -u'' between them.
    """

    concave_until: float
    convex_from: float
    steepest: float

    @classmethod
    def of(cls, game: Game, field: PeerField) -> "Structure":
        edges = np.linspace(game.lowest, game.highest, CELLS + 1)
        squares = np.square(edges)
        first, second = field.first(squares), field.second(squares)
        grow, others = game.size / (game.size - 1), game.size - 1
        a, b = squares[:-1], squares[1:]
        own = a + squares[0]
        upper = 2 * (first[1:] + field.error) + 4 * b * (second[:-1] + field.slope_error)
        upper = grow * upper - 2 * game.score.first(own) / others
        lower = 2 * (first[:-1] - field.error) + 4 * a * np.maximum(second[1:] - field.slope_error, 0.0)
        lower = grow * lower - 4 * b * game.score.second(own) / others
        concave = int(np.argmax(upper >= 0)) if (upper >= 0).any() else CELLS
        convex = CELLS - int(np.argmax(lower[::-1] <= 0)) if (lower <= 0).any() else 0
        convex = max(convex, concave)
        between = lower[concave:convex]
        steepest = max(0.0, -float(between.min())) if between.size else 0.0
        return cls(float(edges[concave]), float(edges[convex]), steepest)


def survey(game: Game, field: PeerField, x: Array) -> Regret | None:
    """Bounds from the structure that all share; None where nothing is known of one."""
    if not isinstance(field, Field) or not game.cost.convex.all():
        return None  # a concave cost makes -C convex: the tangents below do not bound it
    shape, linear = Structure.of(game, field), np.broadcast_to(game.cost.concave, x.shape)
    p, low, high = shape.concave_until, game.floor, game.start
    worth = np.abs(game.score.value(2 * np.square(x))) / (game.size - 1)
    worth += game.cost.value(high - low) + game.cost.value(high - x)
    grow = game.size / (game.size - 1)
    rounding = 2 * grow * field.error * np.square(high) + ROUNDING * (field.size * np.square(high) + worth)
    better, gain, safe = x.copy(), np.zeros_like(x), np.zeros(x.shape, dtype=np.bool_)

    # The concave part [low, top]: the tangent at a foot, the profile itself where it lies there.
    top = np.minimum(high, p)
    foot = np.clip(x, low, np.maximum(top, low))
    away = np.flatnonzero((x > top) & (low <= p))
    everyone = np.arange(game.size)
    all_of_them = deviations(game, field, x, everyone)
    now = all_of_them.utility(everyone, x)
    if away.size:
        some = deviations(game, field, x, away)
        foot[away] = better[away] = _foot(some, np.maximum(top[away], some.low))
        gain[away] = some.utility(np.arange(away.size), foot[away]) - now[away]
    here = all_of_them.slopes(everyone, foot)
    doubt = 2 * foot * here.error
    rise = np.maximum((here.slope + doubt) * (top - foot), 0.0)
    fall = np.maximum((doubt - here.slope) * (foot - low), 0.0)
    bound = np.where(low <= p, gain + np.maximum(rise, fall), -np.inf)
    falls = here.slope + doubt <= 0

    # The rest [p, high], by its ends; a cost that bends is left to the search.
    rest = np.flatnonzero(high > p)
    if rest.size:
        left = np.maximum(low[rest], p)
        q = np.clip(high[rest], left, max(shape.convex_from, p))
        some, mine, at = deviations(game, field, x, rest), np.arange(rest.size), x[rest]
        ends = np.stack([some.utility(mine, e) - now[rest] for e in (left, q, high[rest])])
        middle = np.maximum(ends[0], ends[1]) + np.square(q - left) / 8 * shape.steepest
        bound[rest] = np.maximum(bound[rest], np.where(linear[rest], np.maximum(middle, ends[2]), np.inf))
        # Up: only what the concave part does not lead to either counts. Down: from beyond it to the foot.
        margin, of_foot, rise = ENOUGH + rounding[rest], gain[rest], np.where(at <= p, rise[rest], 0.0)
        valley = np.maximum(middle, 0.0) + margin
        up = (q < some.high) & (ends[2] > np.where(at < q, np.maximum(valley, rise + margin), margin))
        down = (at > p) & (some.low < p) & falls[rest] & (of_foot > valley)
        best = np.maximum(ends[1], ends[2])
        wins = best > np.maximum(of_foot, rise + margin)
        where = np.where(up | (ends[2] >= ends[1]), some.high, q)
        better[rest] = np.where(wins, where, better[rest])
        gain[rest] = np.where(wins, best, of_foot)
        safe[rest] = linear[rest] & np.where(wins, up, down)

    wins = (gain > 0) & (better != x)
    return Regret(
        np.maximum(bound, 0.0) + rounding,
        np.where(wins, better, x),
        np.where(wins, gain, 0.0),
        rounding,
        safe,
    )


def _foot(some: Deviations, top: Array) -> Array:
    """A point of [low, top] right of the maximum of the concave part, by Newton's method from `low`."""
    everyone, at = np.arange(top.size), some.low
    for _ in range(FOOT_STEPS):
        here = some.slopes(everyone, at)
        step = np.divide(here.slope, -here.bend, out=np.ones_like(at), where=here.bend < 0)
        moved = np.clip(at + step, some.low, top)
        arrived = float(np.abs(moved - at).max()) < ARRIVED
        at = moved
        if arrived:
            break
    return np.minimum(at + NUDGE, top)
