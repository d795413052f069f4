"""A proof that a box of profiles holds at most one equilibrium, or a bound on how far apart two can be.

Let x <= y be the ends of the box. Where u_k is concave in its own degree on [x_k, y_k] with |u_k''| >= m_k for every
profile of peers in the box, two equilibria a, b in the box differ by

    |a_k - b_k| <= (2 y_k / m_k) D,    D = sup_s |H'_a(s) - H'_b(s)| <= sup_s mean_j phi''(s + x_j^2) 2 y_j |a_j - b_j|

and, since phi'' falls,

    D <= kappa D + rest,    kappa = (1/(N-1)) sum_j phi''(s_min + x_j^2) 4 y_j^2 / m_j             over the concave,
                            rest  = (1/(N-1)) sum_j phi''(s_min + x_j^2) (y_j^2 - x_j^2)           over the others.

So kappa < 1 leaves D = 0 where all are concave: one equilibrium at most. Where a few are not (they sit so close to
a tangency that the box reaches beyond it), D <= rest / (1 - kappa) bounds how far any equilibrium is from one that
is known, which makes for a smaller box: `mechanism.monotone` tightens it until nobody is left.

Bounds of u'' over the box: H' rises with s and with the peers' degrees, H'' falls with both, so
u'' <= 2 H'_y(y^2) + 4 y^2 H''_x(x^2), less what the cost adds.

Source: a Banach contraction in the sup norm of the field; docs/mechanism.md, section 4.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mechanism.field import Field, Pool, blocks
from mechanism.game import Game

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Contraction:
    """What was found of a box.

    Attributes:
        factor: kappa.
        rest: what those that are not concave add to D.
        reach: 2 y_k / m_k, shape (N,); infinity for those that are not concave, 0 for those that the box holds still.
    """

    factor: float
    rest: float
    reach: Array

    @property
    def unique(self) -> bool:
        """Whether the box holds one equilibrium at most."""
        return self.factor < 1 and bool(np.isfinite(self.reach).all())

    @property
    def apart(self) -> float:
        """A bound on D."""
        return self.rest / (1 - self.factor) if self.factor < 1 else np.inf


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

    def part(block: slice) -> tuple[float, float]:
        x, y = (f(ends[0][block], ends[1][block]) for f in (np.minimum, np.maximum))
        moving = np.flatnonzero(y > x)
        if moving.size == 0:
            return 0.0, 0.0
        x = np.maximum(x[moving] - margin, game.lowest)
        y = np.minimum(y[moving] + margin, game.highest)
        low, high = np.square(x), np.square(y)
        first, _, error = fields[1].near(high)
        second = fields[0].bends(low) + fields[0].slope_error
        bound = 2 * (grow * (first + error) + own) + 4 * high * grow * second
        concave = bound < 0
        pull = game.score.second(lowest + low)
        reached = np.divide(2 * y, -bound, out=np.full_like(y, np.inf), where=concave)
        reach[block][moving] = reached
        held = ~concave
        rest = float((pull[held] * (high[held] - low[held])).sum())
        return float((pull * 2 * y)[concave] @ reached[concave]), rest

    factor, rest = (sum(values) for values in zip(*pool.map(part, blocks(game.size)), strict=True))
    return Contraction(factor / others, rest / others, reach)
