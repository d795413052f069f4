"""GTG-Shapley: guided truncation gradient Shapley.

    between rounds   all scores are 0 where |v(all) - v(none)| <= round_tolerance
    within a round   orders are truncated as in truncated Monte Carlo
    guided           the orders come in groups of N that each participant leads once, the rest at random
    stop             once the estimates moved by less than `convergence`, relative, over the last groups

Source: Liu, Chen, Chen, Yu, Liu and Cui 2022, algorithm 1.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mechanism.baselines.protocol import Array, Coalitions
from mechanism.baselines.truncated_monte_carlo import check_sampling, marginals
from mechanism.ranges import non_negative, positive

#: Groups whose estimates are compared to see that they settled.
WINDOW = 10


@dataclass(frozen=True)
class GtgShapley:
    """Attributes:
    groups: at most this many groups of N orders.
    tolerance: truncation within an order, in the unit of the value, >= 0.
    round_tolerance: what a whole round must be worth, in the unit of the value, >= 0.
    convergence: relative movement of the estimates below which sampling stops, > 0.
    """

    name: ClassVar[str] = "gtg-shapley"
    groups: int = 100
    tolerance: float = 0.01
    round_tolerance: float = 0.005
    convergence: float = 0.05

    def __post_init__(self) -> None:
        check_sampling(self.groups, self.tolerance)
        non_negative("round_tolerance", self.round_tolerance)
        positive("convergence", self.convergence)

    def scores(self, source: Coalitions, rng: np.random.Generator) -> Array:
        n = source.size
        if abs(source(source.everyone) - source(frozenset())) <= self.round_tolerance:
            return np.zeros(n)
        totals, estimates = np.zeros(n), []
        for group in range(1, self.groups + 1):
            for leader in range(n):
                rest = [k for k in range(n) if k != leader]
                order = [leader, *rng.permutation(rest).astype(int).tolist()]
                totals += marginals(source, order, self.tolerance)
            estimates.append(totals / (group * n))
            if group > WINDOW and self._settled(estimates):
                break
        return np.asarray(estimates[-1])

    def _settled(self, estimates: list[Array]) -> bool:
        now = estimates[-1]
        size = np.maximum(np.abs(now), 1e-12)
        return all(
            float(np.mean(np.abs(now - before) / size)) < self.convergence for before in estimates[-WINDOW:-1]
        )
