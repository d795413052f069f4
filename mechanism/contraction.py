"""A proof that a box of profiles holds at most one equilibrium.

Let x <= y be the ends of the box, and let every u_k be concave in its own degree on [x_k, y_k] with
|u_k''| >= m_k for every profile of peers in the box. Two equilibria in the box differ by

    |a_k - b_k| <= (2 y_k / m_k) D,    D = sup_s |H'_a(s) - H'_b(s)| <= sup_s mean_j phi''(s + x_j^2) 2 y_j |a_j - b_j|

and, since phi'' falls, D <= kappa D with

    kappa = (1/(N-1)) sum_j phi''(s_min + x_j^2) 4 y_j^2 / m_j      over the j with x_j < y_j.

So kappa < 1 leaves D = 0: one equilibrium at most. Bounds of u'' over the box: H' rises with s and with the
peers' degrees, H'' falls with both, so u'' <= 2 H'_y(y^2) + 4 y^2 H''_x(x^2), less what the cost adds.

Source: a Banach contraction in the sup norm of the field; docs/mechanism.md, section 4.
"""

import numpy as np
import numpy.typing as npt

from mechanism.field import Field, Pool, blocks
from mechanism.game import Game

Array = npt.NDArray[np.float64]


def contraction(
    game: Game, ends: tuple[Array, Array], fields: tuple[Field, Field], margin: float, pool: Pool
) -> float:
    """kappa of the box between two profiles and their fields; infinity where some u_k is not concave there.

    Args:
        ends: x and y in any common order of participants; where they cross by rounding, the box is widened.
        fields: of x and of y.
        margin: the box is widened by this on both sides.
    """
    lowest = float(np.square(game.floor.min()))
    grow = game.size / (game.size - 1)

    def part(block: slice) -> float:
        x = np.minimum(ends[0][block], ends[1][block])
        y = np.maximum(ends[0][block], ends[1][block])
        moving = y > x
        if not moving.any():
            return 0.0
        x, y = (
            np.maximum(x[moving] - margin, game.floor.min()),
            np.minimum(y[moving] + margin, game.start.max()),
        )
        low, high = np.square(x), np.square(y)
        first = fields[1].slopes(high)[0] + fields[1].error
        second = fields[0].slopes(low)[1] + fields[0].slope_error
        # The participant itself is no peer: taking it out of the means raises H' by at most this.
        own = -game.score.first(np.array([2 * lowest]))[0] / (game.size - 1)
        bend = 2 * (grow * first + own) + 4 * high * grow * second
        if (bend >= 0).any():
            return np.inf
        return float((game.score.second(lowest + low) * 4 * high / -bend).sum())

    total = sum(pool.map(part, blocks(ends[0].size)))
    return total / (game.size - 1)
