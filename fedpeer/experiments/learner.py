"""The learner of the figures: what it gains by a tight bound, and the coefficient Q that it would choose.

    payoff(Q) = reward / (Omega + gamma * mean_k delta_k(Q)^2) - T * sum_k E[payment_k(Q)],   u_k >= 0 for all

The paper leaves g, Omega and gamma open. Here Omega = 1, so that a federation without skew is worth the reward,
and gamma = 2, so that one at degree 0.8 throughout is worth less than half of it; the reward is 2,000 credits
for T = 20 rounds, enough that effort pays under either payment.
"""

from collections.abc import Mapping
from functools import lru_cache

from fedpeer.experiments.game import population_game
from fedpeer.experiments.populations import Partition
from mechanism.learner import Learner, Offer, max_offer, payoff_curve
from mechanism.payment import Linear, Log, PaymentFunction

#: The learner of all figures.
LEARNER = Learner(omega=1.0, gamma=2.0, reward=2_000.0, rounds=20)

#: The payment functions that are compared, by name.
PAYMENTS: Mapping[str, PaymentFunction] = {"log": Log(), "linear": Linear()}


@lru_cache(maxsize=8)
def offers(partition: Partition, payment: str, side: str = "least") -> tuple[Offer, ...]:
    """Every coefficient that the search for the best one tried, by increasing Q."""
    game = population_game(partition, PAYMENTS[payment])
    return tuple(payoff_curve(game, LEARNER, "least" if side == "least" else "greatest"))


def best_offer(partition: Partition, payment: str = "log", side: str = "least") -> Offer:
    """The coefficient that the learner would choose."""
    return max_offer(offers(partition, payment, side))
