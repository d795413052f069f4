"""Determinant mutual information on shared predictions.

    score_k = mean over peers of  det(C_1) det(C_2) / ((m_1)_I (m_2)_I),      (m)_I = m (m-1) ... (m-I+1)

with C_1, C_2 the counts of joint labels on two halves of the inputs: an unbiased estimate of det(P)^2, P the joint
distribution of the two reports. Truth is a dominant strategy if inputs are alike and independent; a report that
carries no information has det 0. Determinants are exact integers.

Source: Kong 2020, sections 4 and 5.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from mechanism.baselines.protocol import Array, SharedPredictions
from mechanism.errors import FieldError


@dataclass(frozen=True)
class DeterminantMutualInformation:
    name: ClassVar[str] = "determinant-mutual-information"

    def scores(self, source: SharedPredictions, rng: np.random.Generator) -> Array:
        """One a participant, in [-1, 1]; the halves are drawn from `rng`.

        Raises:
            FieldError: fewer than 2 I inputs, so that a half could not show every label.
        """
        n, m, labels = source.size, source.inputs, source.labels
        if m < 2 * labels:
            raise FieldError("reports", f"{m} inputs", f"at least {2 * labels}, twice the labels")
        order = rng.permutation(m)
        halves = order[: m // 2], order[m // 2 :]
        scale = math.prod(math.perm(half.size, labels) for half in halves)
        totals = [Fraction(0)] * n
        for k in range(n):
            for j in range(k + 1, n):
                value = Fraction(math.prod(determinant(source.counts(k, j, half)) for half in halves), scale)
                totals[k] += value
                totals[j] += value
        return np.array([float(total / (n - 1)) for total in totals])


def determinant(matrix: npt.NDArray[np.int64]) -> int:
    """The determinant of an integer matrix, exactly (Bareiss 1968: every division comes out even)."""
    rows = [[int(x) for x in row] for row in matrix]
    sign, previous = 1, 1
    for i in range(len(rows) - 1):
        pivot = next((r for r in range(i, len(rows)) if rows[r][i]), None)
        if pivot is None:
            return 0
        if pivot != i:
            rows[i], rows[pivot], sign = rows[pivot], rows[i], -sign
        for r in range(i + 1, len(rows)):
            for c in range(i + 1, len(rows)):
                rows[r][c] = (rows[r][c] * rows[i][i] - rows[r][i] * rows[i][c]) // previous
        previous = rows[i][i]
    return sign * rows[-1][-1]
