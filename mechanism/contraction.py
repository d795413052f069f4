"""A proof that a box of profiles holds at most one equilibrium, or a bound on how far apart two can be.

Let x <= y be the ends of the box. Where u_k is concave in its own degree on [x_k, y_k] with |u_k''| >= m_k for every
profile of peers in the box, two equilibria a, b in the box differ by

    |a_k - b_k| <= (2 y_k / m_k) D,    D = sup_s |H'_a(s) - H'_b(s)| <= sup_s mean_j phi''(s + x_j^2) 2 y_j |a_j - b_j|

and, since phi'' falls,

    D <= kappa D + rest,    kappa = (1/(N-1)) sum_j phi''(s_min + x_j^2) 4 y_j^2 / m_j             over the concave,
                            rest  = (1/(N-1)) sum_j phi''(s_min + x_j^2) (y_j^2 - x_j^2)           over the others.

So kappa < 1 leaves D = 0 where all are concave: one equilibrium at most. Where a few are not (they sit so close to
a tangency that the box reaches beyond it), D <= rest / (1 - kappa) bounds how far any equilibrium is from one that
is known, which makes for a smaller box: `mechanism.monotone` tightens it until nobody is left. Any participant may
be counted among the others for that: those are whose m_k is so small that the box itself says more.

Bounds of u'' over the box: H' rises with s and with the peers' degrees, H'' falls with both, so
u'' <= 2 H'_y(y^2) + 4 y^2 H''_x(x^2), less what the cost adds.

Source: a Banach contraction in the sup norm of the field; docs/mechanism.md, section 4.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mechanism.field import Field, Pool, blocks, second_below_kink
from mechanism.game import Game

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]

#: A bound on u'' above this is worth sharpening.
CLOSE = -0.05


@dataclass(frozen=True)
class Contraction:
    """What was found of a box.

    Attributes:
        factor: kappa over all that are concave.
        partial: kappa without those that count by their box; rest: what these add to D.
        reach: 2 y_k / m_k, shape (N,); infinity for those that are not concave, 0 for those that the box holds still.
    """

    factor: float
    partial: float
    rest: float
    reach: Array

    @property
    def unique(self) -> bool:
        """Whether the box holds one equilibrium at most."""
        return self.factor < 1 and bool(np.isfinite(self.reach).all())

    @property
    def apart(self) -> float:
        """A bound on D."""
        return self.rest / (1 - self.partial) if self.partial < 1 else np.inf


def contraction(
    game: Game, ends: tuple[Array, Array], fields: tuple[Field, Field], margin: float, pool: Pool
) -> Contraction:
    """What the box between two profiles allows.

    Args:
        ends: x and y in any common order of participants; where they cross by rounding, the box is widened.
        fields: of x and of y.
        margin: the box is widened by this on both sides.
    """
    lowest, others = game.lowest**2, game.size - 1
    grow = game.size / others
    # The participant itself is no peer: taking it out of the means raises H' by at most this.
    own = -float(game.score.first(np.array([2 * lowest]))[0]) / others
    reach = np.zeros(game.size)
    # About how far two fields in the box are apart: it only decides who counts by its box.
    edge = np.array([lowest])
    gap = float(abs(fields[1].slopes(edge)[0] - fields[0].slopes(edge)[0])[0])

    def part(block: slice) -> tuple[float, float, float]:
        x, y = ends[0][block], ends[1][block]
        moving = np.flatnonzero(x != y)
        if moving.size == 0:
            return 0.0, 0.0, 0.0
        x, y = x[moving], y[moving]
        x, y = np.minimum(x, y), np.maximum(x, y)
        x -= margin
        y += margin
        np.maximum(x, game.lowest, out=x)
        np.minimum(y, game.highest, out=y)
        low, high = np.square(x), np.square(y)
        first, error = fields[1].first_near(high)
        slope, steep = 2 * (grow * (first + error) + own), 4 * grow * high
        bound = slope + steep * fields[0].bends_above(low)
        # A chord is good enough for most.
        close = np.flatnonzero(bound > CLOSE)
        if close.size:
            bends = fields[0].bends(low[close]) + fields[0].slope_error
            bound[close] = slope[close] + steep[close] * bends
        held = np.flatnonzero(bound >= 0)
        bound[held] = -np.inf
        pull = second_below_kink(game.score, lowest + low)
        reached = -2 * y / bound
        shares = pull * y
        shares *= reached
        reached[held] = np.inf
        reach[block][moving] = reached
        # Whose box is narrower than what u'' says of it counts by its box.
        boxed = np.flatnonzero(reached * gap > y - x)
        factor = 2 * float(shares.sum())
        rest = float(pull[boxed] @ (high[boxed] - low[boxed]))
        return factor, factor - 2 * float(shares[boxed].sum()), rest

    parts = pool.map(part, blocks(game.size))
    factor, partial, rest = (sum(values) / others for values in zip(*parts, strict=True))
    return Contraction(factor, partial, rest, reach)
