"""How alike two models are beyond what their mixes have in common.

Models of one mix are pulled the same way, on whichever samples they were trained. With p and q the shares of the strata
of two models, sum_i p_i q_i is the chance that a sample of one and a sample of the other are of one stratum; over pairs
of shadows that have no sample in common the cosine c of two models is regressed on it:

    e = a + b sum_i p_i q_i,   clipped to [0, `MOST_EXPLAINED`]
    likeness = (c - e) / (1 - e)

so that a copy has 1, whatever its mix, and two honest participants with one mix have what two with none in common
have, about 0.
"""

from dataclasses import dataclass

import numpy as np

from fedpeer.evidence.sketch import Array

#: The most that a mix in common is taken to explain: two models that are a fifth further apart than this are not one.
MOST_EXPLAINED = 0.8


@dataclass(frozen=True)
class Likeness:
    """The likeness of models, by one kind of vector of theirs.

    Attributes:
        intercept, slope: a and b.
    """

    intercept: float
    slope: float

    def __call__(self, cosines: Array, common: Array) -> Array:
        """Likeness of pairs with `cosines` and sum_i p_i q_i `common`; one shape."""
        explained = np.clip(self.intercept + self.slope * common, 0, MOST_EXPLAINED)
        result: Array = (cosines - explained) / (1 - explained)
        return result


def fit_likeness(cosines: Array, common: Array) -> Likeness:
    """The regression over pairs of models with `cosines` and sum_i p_i q_i `common`; of one shape."""
    slope, intercept = np.polyfit(common.ravel(), cosines.ravel(), 1)
    return Likeness(float(intercept), float(slope))


def mix_of(shares: Array) -> Array:
    """Estimated shares, shape (..., I), as distributions: none below 0, summing to 1."""
    positive = np.maximum(shares, 0)
    result: Array = positive / np.maximum(positive.sum(axis=-1, keepdims=True), 1e-9)
    return result
