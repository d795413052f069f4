"""The game of participants of whom each is paid a part of a payment, its weight (`mechanism.coverage`).

    u_k(delta) = w_k H_k(delta^2) - c_k d(delta_k(0) - delta) = w_k (H_k(delta^2) - (c_k / w_k) d(delta_k(0) - delta))

A weight that no effort moves is a cost 1/w_k times as high: best responses, equilibria, their order, and certificates
are those of that game, and payments, costs and utilities w_k times as much. A weight that hangs on what others have
does not stay while they move: see docs/mechanism.md, section 9.

    game = weighted(game, weight)
    found = in_credits(equilibrium(game, "least"), weight)
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mechanism.cost import over
from mechanism.equilibrium import Equilibrium
from mechanism.game import Game


def weighted(game: Game, weight: npt.ArrayLike) -> Game:
    """The game in whose solution each is paid all of a payment, at 1/w_k times its cost.

    Args:
        weight: w_k in (0, 1]; a number or one a participant.

    Raises:
        FieldError: a weight out of its range, or a cost of a user's own class.
    """
    array = np.broadcast_to(np.asarray(weight, dtype=np.float64), game.start.shape)
    return replace(game, cost=over(game.cost, array))


def in_credits(found: Equilibrium, weight: npt.ArrayLike, fee: float = 0.0) -> Equilibrium:
    """An equilibrium of the weighted game as it is paid.

    Payments are w_k H_k - fee (1 - w_k), of which no degree changes the fee. Where one is below 0 the participant is
    paid nothing, and would rather make no effort: then this is no equilibrium.

    Args:
        weight: as in `weighted`.
        fee: of the terms, credits.
    """
    w = np.asarray(weight, dtype=np.float64)
    payment, cost = w * found.payment - fee * (1 - w), w * found.cost
    # What one gains by leaving is w_k times as much, so at most as much.
    return replace(found, payment=payment, cost=cost, utility=payment - cost)
