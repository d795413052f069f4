"""Extremal iteration: from one end of the game to the equilibrium next to it, in O(N) a sweep.

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

A climb ends at local maxima; `mechanism.regret.jumps` says who would rather be elsewhere.

Once the field moves little, Newton steps from either side find the limit in a few sweeps. It is accepted only with a
proof that the box between it and the last monotone profile holds no other equilibrium (`contraction`); until there
is one the plain iteration goes on, which makes the box smaller. Let x <= y be the ends of the box. Where every u_k
is concave in its own degree on [x_k, y_k] with |u_k''| >= m_k for every profile of peers in the box, two equilibria
a, b in it differ by

    |a_k - b_k| <= (2 y_k / m_k) D,    D = sup_s |H'_a(s) - H'_b(s)| <= sup_s mean_j phi''(s + x_j^2) 2 y_j |a_j - b_j|

and, since phi'' falls, D <= kappa D, kappa = (1/(N-1)) sum_j phi''(s_min + x_j^2) 4 y_j^2 / m_j. So kappa < 1 leaves
D = 0: one equilibrium at most. Bounds of u'' over the box: H' rises with s and with the peers' degrees, H'' falls
with both, so u'' <= 2 H'_y(y^2) + 4 y^2 H''_x(x^2), less what the cost adds.

For costs with a convex marginal cost (linear; power with exponent at least 2) and the payments that ship.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from mechanism.best_response import PeerRule
from mechanism.clipped import ClippedField
from mechanism.cost import LinearCost, PowerCost
from mechanism.deviation import Deviations, Slopes
from mechanism.game import Game, Side
from mechanism.mean_field import CACHED, Field, Layout, PeerField, PeerSums
from mechanism.payment import Log
from mechanism.regret import Regret, deviations, jumps, survey

Array = npt.NDArray[np.float64]
#: Where some go from their degrees, given their utilities' slopes there.
Rule = Callable[[Game, Deviations, Array, Slopes], Array]

#: Sweeps before an iteration is given up as not converged.
MAX_SWEEPS = 20_000
#: A Newton step of the acceleration goes no further; a participant that moves more is not ready for it.
SMALL_MOVE = 3e-3
#: Newton sweeps before the plain iteration is taken up again.
MAX_NEWTON = 100
#: Move of a degree, on average, below which jumps are looked for.
CALM = 1e-4
#: How much less a sweep moves before a proof that failed is tried again.
CLOSER = 10
#: Peers up to which a clipped payment is summed over them.
SUMMED = 100
#: Newton steps are shortened by this share: more than rounding may lengthen them.
SHORTENED = 1e-3
#: Ranges over which a step from above bounds a marginal cost that bends: halvings of the logarithm.
HALVED = 9
#: u'' closer to 0 than this is taken for this: a step then leads beyond every degree that matters.
TINY_BEND = 1e-300


class Climb:
    """A monotone iteration in progress.

    Attributes:
        degree: x_t; field: of `degree`.
        sweeps: steps done.
        converged: whether the last run reached its tolerance.
        contraction: kappa of the proof that ended it; infinity where the plain iteration did.
    """

    def __init__(self, game: Game, side: Side, start: Array | None = None) -> None:
        self.game, self.side, self.sweeps = game, side, 0
        self.field_of = peer_fields(game)
        self.move_to(
            game.profile(start) if start is not None else game.floor if side == "least" else game.start
        )

    def move_to(self, degree: Array) -> None:
        self.degree, self.field = degree, self.field_of(degree)
        self.converged, self.contraction = False, np.inf

    def jump(self, found: Regret) -> int:
        """Move everyone over its valley whom `found` says to; how many moved."""
        who, where = jumps(self.game, self.side, self.field, self.degree, found)
        if who.size:
            degree = self.degree.copy()
            degree[who] = where
            self.move_to(degree)
        return int(who.size)

    def run(self, tolerance: float) -> None:
        """Iterate until the limit is known to `tolerance` by a proof, or estimated to be so near."""
        previous, calm, ready = np.inf, CALM, SMALL_MOVE
        for _ in range(MAX_SWEEPS):
            new = self.stepped(self.field, self.degree)
            moves = np.abs(new - self.degree)
            move, usual = float(moves.max()), float(moves.mean())
            self.move_to(new)
            # The moves of a linear convergence at rate q add up to move * q / (1 - q).
            rate = move / previous if 0 < previous < np.inf else 0.9
            previous = move
            rests = move * max(rate, 0.1) <= tolerance * max(1 - rate, 1e-3)
            # Most who jump do so long before the rest has converged.
            if usual <= calm and (early := survey(self.game, self.field, self.degree)):
                calm = usual / CLOSER
                rests = not self.jump(early) and rests
            # A payment that is clipped within reach bends the other way at its kinks: no box is proved then.
            if (rests or move <= ready) and isinstance(self.field, Field):
                ready = move / CLOSER
                limit = self._limit(self.field, tolerance)
                if limit is not None and self.ends_at(limit, tolerance):
                    return
            if rests:
                self.converged = True
                return

    def ends_at(self, limit: Array, tolerance: float) -> bool:
        """Whether `limit` is provably the only equilibrium between it and the profile; then it becomes the profile."""
        ends, fields = (self.degree, limit), (self.field, self.field_of(limit))
        if self.side == "greatest":
            ends, fields = ends[::-1], fields[::-1]
        factor = contraction(self.game, ends, fields, tolerance)
        if factor < 1:
            self.move_to(limit)
            self.converged, self.contraction = True, factor
        return factor < 1

    def stepped(self, field: PeerField, degree: Array) -> Array:
        """A step from a profile that passes no best response to `field`, which is that of the profile."""
        return self._moved(field, degree, _raised if self.side == "least" else _lowered)

    def _moved(self, field: PeerField, degree: Array, rule: Rule) -> Array:
        self.sweeps += 1
        new = np.empty_like(degree)
        for at in range(0, degree.size, CACHED):
            who = np.arange(at, min(at + CACHED, degree.size))
            some, x = deviations(self.game, field, degree, who), degree[who]
            here = some.slopes(np.arange(who.size), x)
            new[who] = np.clip(rule(self.game, some, x, here), some.low, some.high)
        return new

    def _limit(self, field: Field, tolerance: float) -> Array | None:
        """To where Newton steps lead, starting from the profile; None where they do not end."""
        layout, degree, means = field.layout, self.degree, field.means
        for _ in range(MAX_NEWTON):
            new = self._moved(Field.from_means(layout, means), degree, _newton)
            move, degree = float(np.abs(new - degree).max()), new
            if move <= 0.1 * tolerance:
                return degree
            means = layout.means(degree)
        return None


def peer_fields(game: Game) -> Callable[[Array], PeerField]:
    """What makes the field of a profile."""
    low, high = game.lowest**2, game.highest**2
    if game.rule is PeerRule.RANDOM and game.score.stieltjes and below_kink(game):
        layout = Layout.of(game.score, low, high)
        return lambda degree: Field.of(layout, degree)
    if game.rule is PeerRule.RANDOM and isinstance(game.payment, Log) and game.size > SUMMED:
        return lambda degree: ClippedField.of(game.score, degree, low, high)
    return lambda degree: PeerSums(game.score, np.square(degree))


def applies(game: Game) -> bool:
    """Whether the steps above are valid for `game`."""
    ships = game.rule is PeerRule.RANDOM and game.score.stieltjes
    if not isinstance(game.cost, PowerCost):
        return ships and isinstance(game.cost, LinearCost)
    exponent = np.asarray(game.cost.exponent)
    return ships and bool(((exponent == 1) | (exponent >= 2)).all())


def below_kink(game: Game) -> bool:
    """Whether no two degrees in reach are so large that the payment is clipped, by more than rounding."""
    return game.score.kink == np.inf or float(game.score.ratio(2 * game.highest**2)) >= 1 + 1e-13


def contraction(
    game: Game, ends: tuple[Array, Array], fields: tuple[PeerField, PeerField], margin: float
) -> float:
    """kappa of the box between two profiles; infinity where somebody is not concave in it.

    Args:
        ends: x and y; where they cross by rounding, the box is widened.
        fields: of x and of y.
        margin: the box is widened by this on both sides.
    """
    lowest, others = game.lowest**2, game.size - 1
    grow = game.size / others
    # The participant itself is not a peer: taking it out of the means raises H' by at most this.
    own = -float(game.score.first(np.array([2 * lowest]))[0]) / others
    moving = ends[0] != ends[1]
    one, other = ends[0][moving], ends[1][moving]
    x = np.maximum(np.minimum(one, other) - margin, game.lowest)
    y = np.minimum(np.maximum(one, other) + margin, game.highest)
    low, high = np.square(x), np.square(y)
    first = grow * (fields[1].first(high) + fields[1].error) + own
    bound = 2 * first + 4 * high * grow * (fields[0].second(low) + fields[0].slope_error)
    if (bound >= 0).any():
        return np.inf
    return float(4 * (game.score.second(lowest + low) * high / -bound).sum() / others)


def _raised(game: Game, some: Deviations, x: Array, here: Slopes) -> Array:
    """A step up that passes no root of u'."""
    factor = 3.0 if isinstance(game.payment, Log) else 1.0
    zone = (factor * (game.score.bound.ratio + game.lowest**2)) ** 0.5
    rise = np.maximum(here.slope - 2 * x * here.error, 0.0)
    # Beyond the inflection of u inside the zone, u' rises: the zone's end is safe.
    # Where u'' >= 0 the quotient is large, or 0/0 where nobody rises: the zone's end, and x itself below.
    with np.errstate(over="ignore"):  # infinite: the zone's end
        newton = x + np.divide((1 - SHORTENED) * rise, np.maximum(-here.bend, TINY_BEND))
    # Outside, a convex marginal cost only adds to u'' as the degree rises.
    # Where no peer pays within reach both are 0, and nothing holds a degree back: as far as it may.
    with np.errstate(divide="ignore", over="ignore"):
        short = np.divide(rise, here.curved - 2 * here.first, out=np.zeros_like(x), where=rise > 0)
    # Where H' is 0 it is so further up: effort only costs.
    return np.where(here.first >= here.error, some.high, np.maximum(np.minimum(newton, zone), x + short))


def _lowered(game: Game, some: Deviations, x: Array, here: Slopes) -> Array:
    """A step down that passes no root of u'."""
    fall = np.maximum(-here.slope - 2 * x * here.error, 0.0)
    # phi'' falls with s
    steepest = float(some.field.second(np.array([game.lowest**2]))[0]) + some.field.slope_error
    third = (24 * steepest * some.grow) * x
    curved_costs = isinstance(game.cost, PowerCost) and bool((np.asarray(game.cost.exponent) > 2).any())
    reached, far = np.zeros_like(x), x - some.low
    tried = far
    for _ in range(HALVED if curved_costs else 1):
        inner = here.bend + here.curved - some.cost.second(some.high - (x - tried))
        reach = np.sqrt(np.square(inner) + third * fall) - inner
        step = np.divide(2 * (1 - SHORTENED) * fall, reach, out=np.zeros_like(x), where=reach > 0)
        reached = np.maximum(reached, np.minimum(step, tried))
        # A longer range shortens the step: somewhere between what was reached and what was too far they are equal.
        far = np.where(step < tried, tried, far)
        tried = np.sqrt(reached * far)
    return np.asarray(x - reached)


def _newton(game: Game, some: Deviations, x: Array, here: Slopes) -> Array:
    """One Newton step towards the nearest local maximum, from whichever side."""
    del game, some
    with np.errstate(over="ignore"):  # infinite: as far as it may
        step = np.divide(here.slope, -here.bend, out=np.zeros_like(x), where=here.bend < 0)
    return np.asarray(x + np.clip(step, -SMALL_MOVE, SMALL_MOVE))
