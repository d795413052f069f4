"""How much anyone could gain by deviating from a profile: the solver's certificate.

    max over delta of   D_k(delta) = u_k(delta) - u_k(delta_k),      peers fixed

In two parts, both proofs.

1. One structure for all. For linear costs u_k'' = S'' plus the participant's own share of the field, which is
   O(1/N), S(delta) = N/(N-1) M(delta^2). On a cell [a, b], M' rises and M'' falls with s, so
       2 M'(a^2) + 4 a^2 M''(b^2)  <=  (M(delta^2))''  <=  2 M'(b^2) + 4 b^2 M''(a^2).
   Cells that are concave for everyone come first, then a few undecided, then convex ones. On the concave part
   u_k lies below its tangent at any point; on the convex part below the better of its ends; on the undecided
   part [p, q] below the better of its ends plus (q - p)^2/8 times a bound on -u''. Five evaluations bound
   D_k, whatever N.

2. Whoever is left (another pattern of cells, another cost) goes through the branch and bound of
   `mechanism.global_search`.

The field's interpolation error enters both: |M' - q| <= e moves D_k by at most 2 N/(N-1) e |s - s'|.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mechanism.best_response import PeerRule
from mechanism.clipped import ClippedField
from mechanism.cost import Convexity, CostFunction
from mechanism.field import Field, PeerField, Pool, blocks
from mechanism.game import Game
from mechanism.global_search import ROUNDING, SearchProblem, maximise
from mechanism.monotone import block_costs, utility_slopes

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]

#: Cells of the range of degrees in which the sign of u'' is decided.
CELLS = 1024
#: Newton steps from the left that find the tangent's foot: any foot is valid, a good one is tight.
FOOT_STEPS = 8
#: A Newton step that squares to less than a float shows.
ARRIVED = 1e-9
#: Participants whose cells are searched at once.
SEARCHED = 4096
#: Pairs of (degree, peer) that are evaluated at once where every peer is summed.
PAIRS = 1 << 21


@dataclass(frozen=True)
class Regret:
    """Bounds for every participant, shape (N,).

    Attributes:
        bound: D_k is at most this everywhere.
        better: the best degree seen; gain: D_k there (0 where nothing better was seen).
        rounding: the part of `bound` that allows for rounding and interpolation.
    """

    bound: Array
    better: Array
    gain: Array
    rounding: Array


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
    def of(cls, game: Game, field: Field) -> "Structure":
        edges = np.linspace(game.lowest, game.highest, CELLS + 1)
        squares = np.square(edges)
        first, second = field.slopes(squares)
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


def field_regret(
    game: Game,
    field: Field,
    degree: Array,
    low: Array,
    high: Array,
    order: Index,
    pool: Pool,
    enough: float,
) -> Regret:
    """Bounds from the shared field; profile and range are in `order`.

    Args:
        enough: participants whose bound exceeds their gain by more than this are searched one by one.
    """
    if game.cost.convexity in (Convexity.LINEAR, Convexity.CONVEX):
        structure = Structure.of(game, field)
        costs = block_costs(game.cost, order)

        def part(work: tuple[slice, CostFunction]) -> Regret:
            block, cost = work
            return _block(game, field, structure, cost, degree[block], low[block], high[block])

        parts = pool.map(part, list(zip(blocks(degree.size), costs, strict=True)))
        regret = Regret(
            *(np.concatenate([getattr(p, n) for p in parts]) for n in Regret.__dataclass_fields__)
        )
    else:
        # A concave cost makes -C convex: the tangents above do not bound it.
        nothing = np.zeros_like(degree)
        regret = Regret(nothing + np.inf, degree.copy(), nothing.copy(), nothing.copy())
    # Written so that a NaN counts as unsure.
    unsure = np.flatnonzero(~(regret.bound - regret.gain <= enough + regret.rounding))
    for at in range(0, unsure.size, SEARCHED):
        chunk = unsure[at : at + SEARCHED]
        problem = field_problem(game, field, degree, low, high, order, chunk)
        # The level of a chord's ends and of the profile are each off by the error of an integral over s <= 1.
        _search(problem, regret, chunk, degree[chunk], 4 * field.error, enough)
    return regret


def _block(
    game: Game, field: Field, shape: Structure, cost: CostFunction, x: Array, low: Array, high: Array
) -> Regret:
    linear = cost.convexity is Convexity.LINEAR
    others = game.size - 1
    p = shape.concave_until

    # The concave part [low, top]: the tangent at a foot, the profile itself where it lies there.
    top = np.minimum(high, p)
    foot = np.clip(x, low, np.maximum(top, low))
    better, best = x.copy(), np.zeros_like(x)
    away = np.flatnonzero(x > top)
    if away.size:
        some = Deviations(game, field, cost.take(away), x[away], low[away], high[away])
        foot[away] = some.foot(some.low, top[away])
        best[away], better[away] = some.gain(foot[away]), foot[away]
    slope, _, _, _, error = utility_slopes(game, field, cost, foot, x, high)
    doubt = 2 * game.size / others * error * foot
    rise = np.maximum((slope + doubt) * (top - foot), 0.0)
    fall = np.maximum((doubt - slope) * (foot - low), 0.0)
    has_concave = low <= p
    bound = np.where(has_concave, best + np.maximum(rise, fall), -np.inf)
    better, best = np.where(has_concave, better, x), np.where(has_concave, best, 0.0)

    # The rest [p, high], by its ends; a cost that bends is left to the search.
    beyond = np.flatnonzero(high > p)
    if beyond.size:
        left = np.maximum(low[beyond], p)
        q = np.clip(high[beyond], left, max(shape.convex_from, p))
        narrow = Deviations(game, field, cost.take(beyond), x[beyond], low[beyond], high[beyond])
        ends = np.stack([narrow.gain(e) for e in (left, q, high[beyond])])
        middle = np.maximum(ends[0], ends[1]) + np.square(q - left) / 8 * shape.steepest
        rest = np.maximum(middle, np.maximum(ends[1], ends[2]))
        bound[beyond] = np.maximum(bound[beyond], rest if linear else np.inf)
        reached = np.stack([left, q, high[beyond]])
        which = np.argmax(ends, axis=0)
        columns = np.arange(beyond.size)
        wins = ends[which, columns] > best[beyond]
        better[beyond] = np.where(wins, reached[which, columns], better[beyond])
        best[beyond] = np.where(wins, ends[which, columns], best[beyond])

    worth = np.abs(game.score.value(2 * np.square(x))) / others + cost.value(high - low)
    rounding = gain_rounding(game, field, high, worth + np.abs(cost.value(high - x)))
    wins = (best > 0) & (better != x)
    return Regret(
        np.maximum(bound, 0.0) + rounding, np.where(wins, better, x), np.where(wins, best, 0.0), rounding
    )


def gain_rounding(game: Game, field: Field, high: Array, worth: Array) -> Array:
    """What a difference of two utilities is off by: interpolation, and rounding of terms of size `worth`."""
    grow = game.size / (game.size - 1)
    return np.asarray(
        2 * grow * field.error * np.square(high) + ROUNDING * (field.size * np.square(high) + worth)
    )


class Deviations:
    """Some participants of a block: their utilities elsewhere, relative to where they are.

    Args:
        x: their degrees in the profile that the field is of; low, high: their ranges.
    """

    def __init__(
        self, game: Game, field: Field, cost: CostFunction, x: Array, low: Array, high: Array
    ) -> None:
        self.game, self.field, self.cost, self.x, self.low, self.high = game, field, cost, x, low, high
        self.others = game.size - 1
        self.grow = game.size / self.others
        self.square = np.square(x)
        self.level, self.own = field.level(self.square), game.score.value(2 * self.square)
        self.spent = cost.value(high - x)

    def gain(self, at: Array) -> Array:
        """u(at) - u(x)."""
        s = np.square(at)
        paid = self.grow * (self.field.level(s) - self.level)
        paid -= (self.game.score.value(s + self.square) - self.own) / self.others
        return np.asarray(paid - (self.cost.value(self.high - at) - self.spent))

    def slopes(self, at: Array) -> tuple[Array, Array, Array]:
        """u' and u'' at `at`, and what u' is off by at most."""
        slope, bend, _, _, error = utility_slopes(self.game, self.field, self.cost, at, self.x, self.high)
        return slope, bend, 2 * self.grow * error * at

    def foot(self, start: Array, top: Array) -> Array:
        """A point of [low, top] near the maximum of the concave part, by Newton's method from `start`."""
        limit, at = np.maximum(top, self.low), start
        for _ in range(FOOT_STEPS):
            slope, bend, _ = self.slopes(at)
            step = np.divide(slope, -bend, out=np.ones_like(at), where=bend < 0)
            moved = np.clip(at + step, self.low, limit)
            arrived = float(np.abs(moved - at).max()) < ARRIVED
            at = moved
            if arrived:
                break
        return at


def field_problem(
    game: Game,
    field: PeerField,
    degree: Array,
    low: Array,
    high: Array,
    order: Index,
    chunk: Index,
) -> SearchProblem:
    """The best-response problems of the participants at `chunk` of `order`, from a shared field."""
    squares, others = np.square(degree[chunk]), game.size - 1
    grow = game.size / others

    def payment(owner: Index, at: Array) -> Array:
        s = np.square(at)
        return np.asarray(grow * field.level(s) - game.score.value(s + squares[owner]) / others)

    def slope(owner: Index, at: Array) -> tuple[Array, Array]:
        s = np.square(at)
        mine = game.score.first(s + squares[owner]) / others
        error = grow * field.first_error(s) - ROUNDING * mine
        return np.asarray(grow * field.slopes(s)[0] - mine), np.asarray(error)

    def bend(owner: Index, at: Array) -> Array:
        s = np.square(at)
        return np.asarray(grow * field.slopes(s)[1] - game.score.second(s + squares[owner]) / others)

    cost = game.cost.take(order[chunk])
    return SearchProblem(low[chunk], high[chunk], high[chunk], payment, slope, bend, cost, True)


def _search(
    problem: SearchProblem, regret: Regret, chunk: Index, x: Array, doubt: float, enough: float
) -> None:
    """Replace the bounds of `chunk` by those of the branch and bound; `doubt` is what the payments are off by."""
    everyone = np.arange(chunk.size)
    now = problem.utility(everyone, x)
    found = maximise(problem, tolerance=enough / 2, incumbent=x)
    regret.rounding[chunk] = found.rounding + doubt
    regret.bound[chunk] = np.maximum(found.upper - now, 0.0) + regret.rounding[chunk]
    gain = found.value - now
    wins = gain > 0
    regret.better[chunk] = np.where(wins, found.degree, x)
    regret.gain[chunk] = np.where(wins, gain, 0.0)


def clipped_regret(game: Game, field: ClippedField, degree: Array, enough: float) -> Regret:
    """Bounds from a clipped field, in the order of the game: everyone is searched."""
    everyone = np.arange(game.size)
    regret = Regret(*(np.zeros(game.size) for _ in range(4)))
    for at in range(0, game.size, SEARCHED):
        chunk = everyone[at : at + SEARCHED]
        problem = field_problem(game, field, degree, game.floor, game.start, everyone, chunk)
        _search(problem, regret, chunk, degree[chunk], 4 * field.level_error, enough)
    return regret


def direct_regret(game: Game, degree: Array, enough: float) -> Regret:
    """Bounds from sums over every peer, in the order of the game: for any payment, in O(N^2)."""
    size = game.size
    regret = Regret(*(np.zeros(size) for _ in range(4)))
    step = max(1, min(SEARCHED, PAIRS // size))
    for at in range(0, size, step):
        chunk = np.arange(at, min(at + step, size))
        _search(direct_problem(game, degree, chunk), regret, chunk, degree[chunk], 0.0, enough)
    return regret


def direct_problem(game: Game, degree: Array, chunk: Index) -> SearchProblem:
    """The best-response problems of the participants at `chunk`, summing over every peer."""
    squares, size, score = np.square(degree), game.size, game.score
    others = size - 1

    def means(owner: Index, at: Array, function: str) -> Array:
        s, whose = np.square(at), squares[chunk[owner]]
        evaluate = getattr(score, function)
        if game.rule is PeerRule.MEAN:
            return np.asarray(evaluate(s + (squares.sum() - whose) / others))
        result = np.empty_like(s)
        rows = max(1, PAIRS // size)
        for i in range(0, s.size, rows):
            part = slice(i, i + rows)
            total = evaluate(s[part, None] + squares).sum(axis=1)
            result[part] = (total - evaluate(s[part] + whose[part])) / others
        return result

    def slope(owner: Index, at: Array) -> tuple[Array, Array]:
        first = means(owner, at, "first")
        # All terms have one sign; the own one is taken out of their sum.
        own = (
            0.0 if game.rule is PeerRule.MEAN else score.first(np.square(at) + squares[chunk[owner]]) / others
        )
        return first, np.asarray(ROUNDING * (np.abs(first) + 2 * np.abs(own)))

    return SearchProblem(
        game.floor[chunk],
        game.start[chunk],
        game.start[chunk],
        lambda owner, at: means(owner, at, "value"),
        slope,
        lambda owner, at: means(owner, at, "second"),
        game.cost.take(chunk),
        game.curvature.holds,
    )
