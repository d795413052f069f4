"""Truncated Monte Carlo Shapley.

    score_k = mean over random orders of  v(those before k, and k) - v(those before k),
    taken as 0 once |v(all) - v(those before)| < tolerance

An estimate: its standard error falls as 1/sqrt(orders); truncation adds a bias of at most the tolerance.

Source: Ghorbani and Zou 2019, algorithm 1.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mechanism.baselines.protocol import Array, Coalitions
from mechanism.ranges import non_negative, whole


@dataclass(frozen=True)
class TruncatedMonteCarlo:
    """Attributes:
    orders: random orders, at least 1.
    tolerance: in the unit of the value, >= 0; 0 never truncates.
    """

    name: ClassVar[str] = "truncated-monte-carlo"
    orders: int = 200
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        whole("orders", self.orders)
        non_negative("tolerance", self.tolerance)

    def scores(self, source: Coalitions, rng: np.random.Generator) -> Array:
        totals = np.zeros(source.size)
        for _ in range(self.orders):
            totals += _marginals(source, rng.permutation(source.size).tolist(), self.tolerance)
        return totals / self.orders


def _marginals(source: Coalitions, order: list[int], tolerance: float) -> Array:
    """The marginal contributions along one order, 0 after truncation."""
    gains = np.zeros(source.size)
    everything = source(source.everyone)
    before: frozenset[int] = frozenset()
    value = source(before)
    for k in order:
        if abs(everything - value) < tolerance:
            break
        before = before | {k}
        following = source(before)
        gains[k] = following - value
        value = following
    return gains
