"""Leave-one-out.

    score_k = v(all) - v(all without k)

N + 1 evaluations. Blind to substitutes: of two copies of one model neither scores.

Source: Cook 1977; as a data value, Ghorbani and Zou 2019, section 2.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mechanism.baselines.protocol import Array, Coalitions


@dataclass(frozen=True)
class LeaveOneOut:
    name: ClassVar[str] = "leave-one-out"

    def scores(self, source: Coalitions, rng: np.random.Generator) -> Array:
        del rng
        everyone = source.everyone
        return np.array([source(everyone) - source(everyone - {k}) for k in range(source.size)])
