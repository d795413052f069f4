"""Monotone iteration from one end of the game, in O(N) a sweep.

From below, x_0 = (delta_k(1)) and x_{t+1} lies between x_t and the least best response to x_t; from above, the
mirror image. In a supermodular game best responses rise with the peers' degrees, so every x_t from below stays
under every equilibrium, and the limit, once it is an equilibrium, is the least; from above, the greatest
(Topkis 1998, section 4.3). A step need not reach the best response; it must not pass it. It does not:

    below   u' > 0 at x. Where u''' >= 0, which holds while delta^2 <= r + min delta_j^2 (for log, three times
            that), u' is convex and a Newton step -u'/u'' stops short of its root. Elsewhere
            u'' >= 2 H'(x^2) - c d'' and a step u'/|that| stops short.
    above   u' < 0 at x. Down to x - S the payments' part of u'' is at most T s above what it is at x,
            T = 12 delta H'', and the marginal cost grows by at most D s, D = c d'' at x - S. With
            B = 2 H' + 4 x^2 H'' - D the root lies at least min(S, 2 |u'| / (sqrt(B^2 + 2 T |u'|) - B)) below x,
            for every S. The whole range first, then closer to the step itself: D is close to c d'' at x for short ones.

u' is shifted by the error bound of the field to the safe side. Where a clipped payment has kinks in reach, u'
jumps up at each as the degree rises, which moves the roots further away on both sides: the steps stay valid.

Once the field moves little, Anderson's method on it finds the limit in a few sweeps, and a contraction bound
(`mechanism.contraction`) proves that no other equilibrium lies between it and the last monotone profile. Those who
sit too close to a tangency for that bound are first brought closer to the limit: it bounds how far the field of any
equilibrium is from the limit's, and against that field they take more steps. Where the proof fails all the same the
plain iteration goes on to the end. The limit of the other side, where it is known, is tried first: where both
meet, the second side needs no acceleration of its own.

A climb ends at local maxima. `mechanism.jump` finds who would rather be elsewhere, and those jump.

For costs with a convex marginal cost (linear; power with exponent at least 2) and the payments that ship.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from mechanism.contraction import Contraction, contraction
from mechanism.cost import CostFunction, LinearCost, PowerCost
from mechanism.field import BLOCK, COARSE, FINE, Field, Layout, PeerField, Pool, blocks
from mechanism.game import Game
from mechanism.payment import Log

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
Side = Literal["least", "greatest"]
#: What a sweep applies to each block: field, cost, x, x in the field, low, high -> new x.
Rule = Callable[[PeerField, CostFunction, Array, Array, Array, Array], Array]

#: Sweeps before an iteration is given up as not converged.
MAX_SWEEPS = 20_000
#: Moves of the field, as a share of it, below which the other side's limit is tried, the field is exchanged for the
#: fine one, and the iteration is accelerated.
ROUGH, SMALL, TINY = 3e-3, 3e-4, 1e-5
#: A Newton step of the acceleration goes no further; whoever moves more is not ready for it.
SMALL_MOVE = 3e-3
#: Accelerated sweeps before the plain iteration is taken up again.
MAX_ACCELERATED = 25
#: Times that a box is tightened before its proof is given up, and steps each time of whoever is not concave in it.
MAX_TIGHTENED, TIGHTENING_STEPS = 6, 60
#: A box whose bound did not fall to this share is not tightened further.
WORTH_TIGHTENING = 0.5
#: Fields, as a share of their size, that may be one limit's: else the other side's is not tried.
CLOSE = 1e-2
#: Earlier fields that Anderson's method combines.
MEMORY = 4
#: Newton steps are shortened by this share, more than the error of the interpolated second derivative.
SHORTENED = 1e-3
#: Ranges over which a step from above bounds a marginal cost that bends: halvings of the logarithm.
HALVED = 9
#: u'' closer to 0 than this is taken for this: a step then leads beyond every degree that matters.
TINY_BEND = 1e-300
#: Extra steps a sweep for the few that still move far while most have settled; what share is few, how far is far.
EXTRA_STEPS, FEW, FAR = 20, 0.02, 1e-4


@dataclass
class Climb:
    """A monotone iteration in progress.

    Attributes:
        degree: x_t; low, high: the range; all in `order`, which brings like degrees together.
        sweeps: steps done.
        converged: whether the last run reached its tolerance.
        field: the fine field of `degree`, once `run` returned.
        contraction: the factor that proved the acceleration valid; infinity where the plain iteration ended it.
    """

    game: Game
    side: Side
    pool: Pool
    degree: Array
    low: Array
    high: Array
    costs: list[CostFunction]
    fine: Layout
    coarse: Layout
    order: Index
    sweeps: int = 0
    converged: bool = False
    field: Field | None = None
    contraction: float = np.inf

    @classmethod
    def start(cls, game: Game, side: Side, pool: Pool, order: Index | None = None) -> "Climb":
        """The end of the game, in an order that is known to bring like degrees together, where there is one."""
        low, high = game.floor, game.start
        if order is None:
            order = np.arange(game.size)
        else:
            low, high = low[order], high[order]
        degree = (low if side == "least" else high).copy()
        span = game.lowest**2, game.highest**2
        fine, coarse = (Layout.of(game.score, *span, accuracy) for accuracy in (FINE, COARSE))
        costs = block_costs(game.cost, order)
        return cls(game, side, pool, degree, low, high, costs, fine, coarse, order)

    def answer(self) -> Array:
        """The profile, in the order of the game."""
        degree = np.empty_like(self.degree)
        degree[self.order] = self.degree
        return degree

    def jump(self, index: Index, degree: Array) -> None:
        """Move the participants at `index` (of `degree`, not of the game) to `degree`."""
        self.degree[index] = degree
        self.field = self._field(self.fine)

    def approach(self, share: float = SMALL) -> None:
        """Iterate on the coarse field until it moves by less than a share of it."""
        self._settled(self.coarse, share, np.inf)

    def draw_near(self) -> None:
        """Iterate on the fine field until it hardly moves, and nobody moves far; after `approach`."""
        self._settled(self.fine, TINY, SMALL_MOVE)

    def meets(self, known: "Climb", tolerance: float) -> bool:
        """Whether this side provably ends where the other did; it is brought closer to there in any case.

        Args:
            known: the finished climb of the other side, in the same order of participants.
        """
        assert self.field is not None
        if known.field is None or not _close(self.field, known.field):
            return False
        valid, before = self.degree, self.field
        self.degree, self.field = known.degree, known.field
        if self._proved(valid, before, tolerance):
            return True
        self.degree, self.field = valid, self._field_of(valid)
        return False

    def run(self, tolerance: float) -> None:
        """Iterate until the estimated distance to the limit is at most `tolerance`; after `draw_near`."""
        if not self._ended(tolerance):
            # From closer by, the box that the proof needs is smaller.
            self.converged = self._plain(self.fine, tolerance)
            self.field = self._field(self.fine)
            self._ended(tolerance)

    def _ended(self, tolerance: float) -> bool:
        """Whether the limit was found and proved; otherwise nothing has changed."""
        assert self.field is not None
        valid, before, converged = self.degree, self.field, self.converged
        self.degree = valid.copy()
        if self._accelerated(before, tolerance) and self._proved(valid.copy(), before, tolerance):
            return True
        self.degree, self.field, self.converged = valid, before, converged
        return False

    def sort(self) -> None:
        """Bring participants of like degrees together, so that a block needs few terms."""
        if self.degree.size <= 2 * BLOCK:
            return
        order = np.argsort(self.degree)
        self.order = self.order[order]
        self.degree, self.low, self.high = self.degree[order], self.low[order], self.high[order]
        self.costs = block_costs(self.game.cost, self.order)

    def _settled(self, layout: Layout, share: float, far: float) -> None:
        """Sweep until the field moves by less than a share of it, and nobody moves by more than `far`."""
        sums = self._sums(layout)
        for _ in range(MAX_SWEEPS):
            move, new = self._sweep(Field.from_means(layout, sums / self.degree.size), self._monotone)
            moved, sums = float(np.abs(new - sums).max()), new
            if moved <= share * float(np.abs(sums).max()) and move <= far:
                break
        self.field = self._field(self.fine)

    def _plain(self, layout: Layout, tolerance: float) -> bool:
        previous, sums = np.inf, self._sums(layout)
        for _ in range(MAX_SWEEPS):
            move, sums = self._sweep(Field.from_means(layout, sums / self.degree.size), self._monotone)
            # The moves of a linear convergence at rate q add up to move * q / (1 - q).
            rate = move / previous if 0 < previous < np.inf else 0.9
            previous = move
            if move * max(rate, 0.1) <= tolerance * max(1 - rate, 1e-3):
                return True
        return False

    def _accelerated(self, before: Field, tolerance: float) -> bool:
        """Anderson's method on the field; whether it converged, to whatever."""
        means = before.means
        inputs: list[Array] = []
        residuals: list[Array] = []
        for _ in range(MAX_ACCELERATED):
            move, sums = self._sweep(Field.from_means(self.fine, means), self._newton)
            inputs.append(means)
            residuals.append(sums / self.degree.size - means)
            if move <= 0.1 * tolerance:
                self.field = Field.from_means(self.fine, sums / self.degree.size)
                return True
            means = _anderson(inputs[-MEMORY:], residuals[-MEMORY:])
        return False

    def _proved(self, valid: Array, before: Field, tolerance: float) -> bool:
        """Whether the profile is provably the only equilibrium between it and `valid`, which is overwritten."""
        assert self.field is not None
        least = self.side == "least"
        # What every equilibrium's field may differ by because the profile is known to `tolerance` only.
        known = float(self.game.score.second(np.array([2 * self.game.lowest**2]))[0]) * 4 * tolerance
        rest = np.inf
        for _ in range(MAX_TIGHTENED):
            ends, fields = (valid, self.degree), (before, self.field)
            if not least:
                ends, fields = ends[::-1], fields[::-1]
            found = contraction(self.game, ends, fields, tolerance, self.pool)
            if found.unique:
                self.contraction, self.converged = found.factor, True
                return True
            if found.partial >= 1 or found.rest > WORTH_TIGHTENING * rest:
                break
            rest = found.rest
            self._tighten(valid, found, found.apart + known / (1 - found.partial), tolerance)
            before = self._field_of(valid)
        return False

    def _tighten(self, valid: Array, found: Contraction, apart: float, tolerance: float) -> None:
        """Move `valid` towards the profile, past no equilibrium whose field is within `apart` of the profile's."""
        assert self.field is not None
        held = np.flatnonzero(~np.isfinite(found.reach))
        x = valid[held]
        if held.size:
            cost, low, high = self.game.cost.take(self.order[held]), self.low[held], self.high[held]
            for _ in range(TIGHTENING_STEPS):
                new = self._monotone(self.field, cost, x, self.degree[held], low, high, apart)
                moved = float(np.abs(new - x).max())
                x = new
                if moved <= tolerance:
                    break
        within = found.reach * apart + tolerance
        if self.side == "least":
            np.maximum(valid, self.degree - within, out=valid)
        else:
            np.minimum(valid, self.degree + within, out=valid)
        valid[held] = x

    def _sweep(self, field: Field, rule: Rule) -> tuple[float, Array]:
        before = self.degree.copy()
        work = [(field, b, c, rule) for b, c in zip(blocks(self.degree.size), self.costs, strict=True)]
        moves, parts = zip(*self.pool.map(self._step, work), strict=True)
        self.sweeps += 1
        move, sums = max(moves), np.sum(parts, axis=0)
        if rule == self._monotone and move > FAR:
            few = np.flatnonzero(np.abs(self.degree - before) > FAR)
            if few.size <= FEW * self.degree.size:
                sums += self._settle(field, few, before[few])
        return move, sums

    def _step(self, work: tuple[Field, slice, CostFunction, Rule]) -> tuple[float, Array]:
        """Move one block; how far it moved at most, and its new sums."""
        field, block, cost, rule = work
        x, low, high = self.degree[block], self.low[block], self.high[block]
        new = rule(field, cost, x, x, low, high)
        move = float(np.abs(new - x).max())
        self.degree[block] = new
        return move, field.layout.block_sums(np.square(new))

    def run_on(self, field_of: Callable[[Array], PeerField], tolerance: float) -> None:
        """As `run`, plainly and in one piece, with the field of each profile from `field_of`."""
        previous, self.converged = np.inf, False
        for _ in range(MAX_SWEEPS):
            x = self.degree
            new = self._monotone(field_of(x), self.game.cost, x, x, self.low, self.high)
            self.sweeps += 1
            move = float(np.abs(new - x).max())
            self.degree = new
            rate = move / previous if 0 < previous < np.inf else 0.9
            previous = move
            if move * max(rate, 0.1) <= tolerance * max(1 - rate, 1e-3):
                self.converged = True
                return

    def _settle(self, field: PeerField, few: Index, own: Array) -> Array:
        """More steps against the same peers, for participants that crawl past a near-tangency.

        Returns what the sums over the peers change by.
        """
        assert isinstance(field, Field)
        cost, low, high = self.game.cost.take(self.order[few]), self.low[few], self.high[few]
        old = x = self.degree[few]
        for _ in range(EXTRA_STEPS):
            new = self._monotone(field, cost, x, own, low, high)
            move = float(np.abs(new - x).max())
            x = new
            if move < FAR / 10:
                break
        self.degree[few] = x
        return field.layout.block_sums(np.square(x)) - field.layout.block_sums(np.square(old))

    def _monotone(
        self,
        field: PeerField,
        cost: CostFunction,
        x: Array,
        own: Array,
        low: Array,
        high: Array,
        doubt: float = 0.0,
    ) -> Array:
        """A step from `x` that does not pass the best response to any field within `doubt` of `field`."""
        slope, bend, first, curved, error = utility_slopes(self.game, field, cost, x, own, high)
        slack = (2 * (error * (self.game.size / (self.game.size - 1)) + doubt)) * x
        if self.side == "least":
            slope -= slack
            raised = self._raised(x, slope, bend, first, curved, high)
            # Where H' is 0 it is so further up: effort only costs.
            free = first - error * (self.game.size / (self.game.size - 1)) - doubt >= 0
            return np.where(free, high, raised)
        slope += slack
        return self._lowered(x, slope, bend + curved, field, cost, low, high)

    def _raised(
        self, x: Array, slope: Array, bend: Array, first: Array, curved: Array | float, high: Array
    ) -> Array:
        factor = 3.0 if isinstance(self.game.payment, Log) else 1.0
        zone = (factor * (self.game.score.bound.ratio + self.fine.edges[0])) ** 0.5
        rise = np.maximum(slope, 0.0)
        # Beyond the inflection of u inside the zone, u' rises: the zone's end is safe.
        # Where u'' >= 0 the quotient is large, or 0/0 where nobody rises: the zone's end, and x itself below.
        with np.errstate(over="ignore"):  # infinite: the zone's end
            step = np.divide((1 - SHORTENED) * rise, np.maximum(-bend, TINY_BEND))
        step += x
        moved = np.minimum(step, zone, out=step)
        if zone < float(high.max()):
            # Outside, a convex marginal cost only adds to u'' as the degree rises.
            # Where no peer pays within reach both are 0, and nothing holds a degree back: as far as it may.
            with np.errstate(divide="ignore", over="ignore"):
                rise = np.divide(rise, curved - 2 * first, out=np.zeros_like(x), where=rise > 0)
            rise += x
            np.maximum(moved, rise, out=moved)
        else:
            np.maximum(moved, x, out=moved)
        return np.asarray(np.minimum(moved, high, out=moved))

    def _lowered(
        self,
        x: Array,
        slope: Array,
        bend: Array,
        field: PeerField,
        cost: CostFunction,
        low: Array,
        high: Array,
    ) -> Array:
        """Args: bend is that of the payments alone."""
        fall = np.maximum(-slope, 0.0)
        steepest = float(field.slopes(self.fine.edges[:1])[1][0]) + field.slope_error  # phi'' falls with s
        third = (24 * steepest * (self.game.size / (self.game.size - 1))) * x
        curved_costs = isinstance(cost, PowerCost) and cost.exponent > 2
        reached, far = np.zeros_like(x), x - low
        tried = far
        for _ in range(HALVED if curved_costs else 1):
            inner = bend - cost_slopes(cost, high, x - tried)[1]
            reach = np.sqrt(np.square(inner) + third * fall) - inner
            step = np.divide(2 * (1 - SHORTENED) * fall, reach, out=np.zeros_like(x), where=reach > 0)
            reached = np.maximum(reached, np.minimum(step, tried))
            # A longer range shortens the step: somewhere between what was reached and what was too far they are equal.
            far = np.where(step < tried, tried, far)
            tried = np.sqrt(reached * far)
        return np.maximum(x - reached, low)

    def _newton(
        self, field: PeerField, cost: CostFunction, x: Array, own: Array, low: Array, high: Array
    ) -> Array:
        """One Newton step towards the nearest local maximum, from whichever side."""
        slope, bend, _, _, _ = utility_slopes(self.game, field, cost, x, own, high)
        with np.errstate(over="ignore"):  # infinite: as far as it may
            step = np.divide(slope, -bend, out=np.zeros_like(x), where=bend < 0)
        np.clip(step, -SMALL_MOVE, SMALL_MOVE, out=step)
        step += x
        return np.clip(step, low, high, out=step)

    def _sums(self, layout: Layout) -> Array:
        squares = [np.square(self.degree[b]) for b in blocks(self.degree.size)]
        return np.asarray(np.sum(self.pool.map(layout.block_sums, squares), axis=0))

    def _field(self, layout: Layout) -> Field:
        return Field.from_means(layout, self._sums(layout) / self.degree.size)

    def _field_of(self, degree: Array) -> Field:
        return Field.of(self.fine, degree, self.pool)


def _close(one: Field, other: Field) -> bool:
    return float(np.abs(one.means - other.means).max()) <= CLOSE * other.size


def _anderson(inputs: list[Array], residuals: list[Array]) -> Array:
    """The next field: the combination of the last ones whose residual is least, plus that residual."""
    if len(residuals) == 1:
        return np.asarray(inputs[-1] + residuals[-1])
    differences = np.stack([residuals[-1] - r for r in residuals[:-1]], axis=1)
    steps = np.stack([inputs[-1] - m for m in inputs[:-1]], axis=1)
    weights = np.linalg.lstsq(differences, residuals[-1], rcond=1e-10)[0]
    return np.asarray(inputs[-1] + residuals[-1] - (steps + differences) @ weights)


def applies(game: Game) -> bool:
    """Whether the steps above are valid for `game`."""
    return convex_marginal_cost(game) and game.score.stieltjes and below_kink(game)


def convex_marginal_cost(game: Game) -> bool:
    """Whether c d' is convex, for all that is known of the cost."""
    cost = game.cost
    return isinstance(cost, LinearCost) or (
        isinstance(cost, PowerCost) and (cost.exponent == 1 or cost.exponent >= 2)
    )


def below_kink(game: Game) -> bool:
    """Whether no two degrees in reach are so large that the payment is clipped."""
    return 2 * game.highest**2 <= game.score.kink


def block_costs(cost: CostFunction, order: Index) -> list[CostFunction]:
    """The costs of each block's participants, for participants in `order`."""
    return [cost.take(order[b]) for b in blocks(order.size)]


def utility_slopes(
    game: Game, field: PeerField, cost: CostFunction, x: Array, own: Array, start: Array
) -> tuple[Array, Array, Array, Array | float, Array | float]:
    """u', u'', H', c d'' of one block's participants at `x`, and the error bound of M'.

    Args:
        own: their degrees in the profile that the field is of.
    """
    square = np.square(x)
    peers = game.size - 1
    first, second, error = field.near(square)
    own_first, own_second = own_slopes(game, 2 * square if own is x else square + np.square(own))
    first *= game.size / peers
    first -= own_first / peers
    second *= game.size / peers
    second -= own_second / peers
    marginal, curved = cost_slopes(cost, start, x)
    slope = x * first
    slope *= 2
    slope += marginal
    square *= second
    square *= 4
    square += first
    square += first
    square -= curved
    return slope, square, first, curved, error


def cost_slopes(cost: CostFunction, start: Array, x: Array) -> tuple[Array | float, Array | float]:
    """c d' and c d''; a linear cost needs no pass over the participants."""
    if isinstance(cost, LinearCost):
        return np.asarray(cost.coefficient), 0.0
    gap = start - x
    return cost.first(gap), cost.second(gap)


def own_slopes(game: Game, z: Array) -> tuple[Array, Array]:
    """phi' and phi'' at z."""
    if isinstance(game.payment, Log) and below_kink(game):
        z += game.score.bound.ratio
        np.divide(-1.0, z, out=z)
        return z, np.square(z)
    return game.score.first(z), game.score.second(z)
