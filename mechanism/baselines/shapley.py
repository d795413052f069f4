"""The Shapley value, exactly.

    score_k = sum over S not containing k of  |S|! (N - |S| - 1)! / N!  (v(S + k) - v(S))

2^N evaluations: up to 12 participants. The scores sum to v(all) - v(none).

Source: Shapley 1953.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mechanism.baselines.protocol import Array, Coalitions
from mechanism.errors import FieldError

#: 4,096 evaluations; one more participant doubles them.
MAX_PARTICIPANTS = 12


@dataclass(frozen=True)
class ExactShapley:
    name: ClassVar[str] = "shapley"

    def scores(self, source: Coalitions, rng: np.random.Generator) -> Array:
        """The Shapley value of each participant.

        Raises:
            FieldError: more than `MAX_PARTICIPANTS` participants.
        """
        del rng
        n = source.size
        if n > MAX_PARTICIPANTS:
            raise FieldError("participants", n, f"at most {MAX_PARTICIPANTS}; beyond, sample: GtgShapley")
        values = [source(frozenset(k for k in range(n) if mask >> k & 1)) for mask in range(1 << n)]
        weights = [1 / (n * math.comb(n - 1, size)) for size in range(n)]
        return np.array(
            [
                math.fsum(
                    weights[mask.bit_count()] * (values[mask | 1 << k] - values[mask])
                    for mask in range(1 << n)
                    if not mask >> k & 1
                )
                for k in range(n)
            ]
        )
