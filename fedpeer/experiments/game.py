"""The game that the utility and incentive figures play, and how its degrees become label counts.

    log payment, Phi = 6 E G^2 = 300 and Upsilon = 2 G^2 / mu = 200    the paper's constants at E = 50, G = 1
    delta_k(0) = 0.8                                                  nine samples of ten are of one label
    c_k = 0.65 ... 0.95, evenly over the participants

The paper gives everyone the same cost, so that at its equilibrium all degrees are equal and the peer drawn
would not matter; with costs that differ it does. Effort buys degree exponentially where the share of the
majority label is the partition, as in the paper, and linearly in the number of classes.

Source: Pang et al. 2025, section 6 and the appendix on scoring functions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fedpeer.experiments.populations import Partition, at_degrees
from fedpeer.experiments.settings import PARTICIPANTS, Settings
from mechanism.best_response import PeerRule
from mechanism.cost import LinearCost
from mechanism.effort import EffortCurve, ExponentialEffort, StackedEffort, TabulatedEffort
from mechanism.equilibrium import Equilibrium, equilibrium
from mechanism.game import Game
from mechanism.gap_bound import GapBound
from mechanism.payment import Log, PaymentFunction

Array = npt.NDArray[np.float64]

#: delta_k(0), and the least and greatest cost of a unit of degree, credits.
START = Fraction(4, 5)
COSTS = (0.65, 0.95)

#: The paper's hyperparameters: G and E of its smallest Phi.
BOUND = GapBound.paper(gradient_bound=1.0, local_steps=50)

#: Q of the utility figures, credits' coefficient. It does not move the equilibrium of the log payment; from
#: Phi * 2 * 0.8^2 + Upsilon = 584 on, no pair of degrees is paid nothing.
PAYMENT_Q = 1_000.0

#: Efforts at which a deviation is tried: 0, 0.05, ..., 1.
DEVIATIONS = tuple(Fraction(j, 20) for j in range(21))


def costs(participants: int = PARTICIPANTS) -> Array:
    """c_k, credits a unit of degree."""
    return np.linspace(*COSTS, participants)


def population_game(
    partition: Partition, payment: PaymentFunction | None = None, Q: float = PAYMENT_Q
) -> Game:
    """The game of the figures, for one way to skew labels."""
    curve: EffortCurve
    if partition.name == "share":
        curve = ExponentialEffort(np.full(PARTICIPANTS, float(START)), 1.0)
    else:
        # From two labels of ten to all ten: each further label takes 1/10 off the degree.
        curve = StackedEffort([TabulatedEffort((0.0, 1.0), (float(START), 0.0))] * PARTICIPANTS)
    return Game(payment or Log(), Q, BOUND, curve, LinearCost(costs()), PeerRule.RANDOM)


@dataclass(frozen=True)
class SolvedGame:
    """The game at its least equilibrium, in degrees and in label counts.

    Attributes:
        game: the game.
        equilibrium: its least equilibrium, with a certificate.
        counts: label counts of each participant there, one round's samples.
    """

    game: Game
    equilibrium: Equilibrium
    counts: tuple[tuple[int, ...], ...]


@lru_cache(maxsize=8)
def play(partition: Partition, settings: Settings) -> SolvedGame:
    """The least equilibrium of the game, realised in label counts."""
    game = population_game(partition)
    found = equilibrium(game, "least")
    mixes = at_degrees(partition, exact(found.degree), settings.classes, settings.samples)
    return SolvedGame(game, found, tuple(mix.counts for mix in mixes))


def exact(degrees: Array) -> list[Fraction]:
    """Degrees as rationals; beyond six digits a label count cannot follow."""
    return [Fraction(round(float(d) * 10**6), 10**6) for d in degrees]


def deviation_degrees(
    game: Game, participant: int, efforts: Sequence[Fraction] | Array = DEVIATIONS
) -> Array:
    """delta_k(e) of one participant at each effort."""
    curve = game.effort.take(np.array([participant]))
    return np.array([float(np.ravel(curve.degree(float(e)))[0]) for e in efforts])


def deviation_utilities(game: Game, profile: Array, participant: int, degrees: Array) -> Array:
    """u_k(delta) at each of `degrees` while the others keep to `profile`: the formula, term by term."""
    peers = np.delete(profile, participant)
    pairs = np.square(degrees)[:, None] + np.square(peers)[None, :]
    paid = game.score.value(pairs).mean(axis=1)
    cost = game.cost.take(np.array([participant]))
    return np.asarray(paid - np.ravel(cost.value(game.start[participant] - degrees)))
