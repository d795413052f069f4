"""Correlated agreement on shared predictions.

    Delta(a, b) = P(a, b) - P(a) P(b),      S(a, b) = 1 where Delta(a, b) > 0, else 0
    score_k = mean over peers of  E S(same input) - E S(two different inputs)

Agreement that independent answers would reach by chance is taken off, so that saying one label always scores 0.
Both expectations are over all inputs and all pairs of different inputs, not over a sample of them. Delta is
estimated from all pairs of participants; with S from the reports themselves it is the detail-free variant.

Source: Shnayder, Agarwal, Frongillo and Parkes 2016, section 4.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mechanism.baselines.protocol import Array, SharedPredictions
from mechanism.errors import FieldError


@dataclass(frozen=True)
class CorrelatedAgreement:
    name: ClassVar[str] = "correlated-agreement"

    def scores(self, source: SharedPredictions, rng: np.random.Generator) -> Array:
        """In [-1, 1], one a participant.

        Raises:
            FieldError: fewer than two inputs.
        """
        del rng
        n, m = source.size, source.inputs
        if m < 2:
            raise FieldError("reports", f"{m} inputs", "at least 2: a penalty needs another input")
        counts = {(k, j): source.counts(k, j) for k in range(n) for j in range(k + 1, n)}
        pooled = sum((c + c.T for c in counts.values()), np.zeros((source.labels,) * 2, dtype=np.int64))
        # Delta(a, b) > 0 in integers: total * c_ab > c_a * c_b.
        total, margin = int(pooled.sum()), pooled.sum(axis=1)
        agrees = (total * pooled > np.outer(margin, margin)).astype(np.float64)
        scores = np.zeros(n)
        for (k, j), joint in counts.items():
            same = float((agrees * joint).sum())
            crossed = float((agrees * np.outer(joint.sum(axis=1), joint.sum(axis=0))).sum())
            value = same / m - (crossed - same) / (m * (m - 1))
            scores[k] += value
            scores[j] += value
        return scores / (n - 1)
