"""The learner of the figures: what it gains by a tight bound, and the coefficient Q that it would choose.

    payoff(Q) = reward / (Omega + gamma * mean_k delta_k(Q)^2) - T * sum_k E[payment_k(Q)],   u_k >= 0 for all

The paper leaves g, Omega and gamma open. Here Omega = 1, so that a federation without skew is worth the reward,
and gamma = 2, so that one at degree 0.8 throughout is worth less than half of it; the reward is 2,000 credits
for T = 20 rounds, enough that effort pays under either payment.
"""

from collections.abc import Mapping
from functools import lru_cache

from fedpeer.experiments.game import population_game
from fedpeer.experiments.populations import SHARES
from mechanism.game import Side
from mechanism.learner import Learner, Offer, max_offer, payoff_curve
from mechanism.payment import Linear, Log, PaymentFunction

#: The learner of all figures.
LEARNER = Learner(omega=1.0, gamma=2.0, reward=2_000.0, rounds=20)

#: The payment functions that are compared, by name.
PAYMENTS: Mapping[str, PaymentFunction] = {"log": Log(), "linear": Linear()}


@lru_cache(maxsize=8)
def offers(payment: str, side: Side = "least") -> tuple[Offer, ...]:
    """Every coefficient that the search for the best one tried, by increasing Q."""
    return tuple(payoff_curve(population_game(SHARES, PAYMENTS[payment]), LEARNER, side))


def best_offer(payment: str = "log", side: Side = "least") -> Offer:
    """The coefficient that the learner would choose."""
    return max_offer(offers(payment, side))
