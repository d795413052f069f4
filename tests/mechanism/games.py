"""Games and brute-force answers that the tests share; the answers use no code of the solver."""

from decimal import Decimal

import numpy as np

from mechanism.best_response import PeerRule
from mechanism.cost import LinearCost
from mechanism.effort import ExponentialEffort
from mechanism.game import Game
from mechanism.gap_bound import GapBound
from mechanism.payment import Linear, Log, Log1p, Power

BOUND = GapBound(300, 200)
#: Each with a coefficient at which effort pays for some and not for others.
PAYMENTS = [
    (Log(), 2000.0),
    (Log(), 420.0),  # clipped within reach
    (Log(Decimal("2.5")), 1500.0),
    (Log(Decimal("0.4")), 420.0),
    (Log1p(), 500.0),
    (Linear(Decimal("0.7")), 500.0),
    (Power(Decimal(2), Decimal("0.4")), 900.0),
]


def random_game(seed, size, payment=None, Q=2000.0, bound=BOUND, rule=PeerRule.RANDOM, cost=None):
    rng = np.random.default_rng(seed)
    effort = ExponentialEffort(rng.uniform(0.3, 1.0, size), rng.uniform(0.5, 2.0, size))
    return Game(payment or Log(), Q, bound, effort, cost or LinearCost(rng.uniform(0.2, 1.0, size)), rule)


def symmetric_game(c, size=400, Q=2000.0):
    return Game(
        Log(), Q, BOUND, ExponentialEffort(np.ones(size), np.ones(size)), LinearCost(np.full(size, c))
    )


def utilities_on_grid(game, degree, points):
    """Degrees and utilities of every participant on a grid of its own range, others held; shape (N, points)."""
    share = np.linspace(0, 1, points)
    grid = game.floor[:, None] + (game.start - game.floor)[:, None] * share
    squares = degree**2
    utility = np.empty_like(grid)
    for k in range(game.size):
        others = np.delete(squares, k)
        if game.rule is PeerRule.MEAN:
            others = np.array([others.mean()])
        gap = game.bound.phi * (grid[k][:, None] ** 2 + others) + game.bound.upsilon
        paid = game.payment.value(game.Q / gap).mean(axis=1)
        utility[k] = paid - game.cost.take(np.full(points, k)).value(np.maximum(game.start[k] - grid[k], 0))
    return grid, utility


def utility_at(game, degree):
    squares = degree**2
    paid = np.empty(game.size)
    for k in range(game.size):
        others = np.delete(squares, k)
        if game.rule is PeerRule.MEAN:
            others = np.array([others.mean()])
        gap = game.bound.phi * (squares[k] + others) + game.bound.upsilon
        paid[k] = game.payment.value(game.Q / gap).mean()
    return paid - game.cost.value(game.start - degree)
