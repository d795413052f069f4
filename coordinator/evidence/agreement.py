"""Scores of predicted labels against a peer's, on shared samples whose labels nobody needs.

With P(a, b) the share of samples for which one predicts a and the other b, and its marginals P(a), P'(b):

    correlated agreement    sum over a, b of max(0, P(a, b) - P(a) P'(b))
    determinant information |det M_1| * |det M_2| of the joint counts on two halves of the samples, to the 1/(2 I)

Both are 0 in expectation for predictions that do not depend on the samples.

Sources: Shnayder, Agarwal, Frongillo, Parkes 2016; Kong 2020.
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.int64]
PairScore = Callable[[Labels, Labels, int], float]

#: Added to the diagonal of joint counts: a label that is never predicted must not make every determinant 0.
_PRIOR_COUNT = 0.5


def correlated_agreement(one: Labels, other: Labels, labels: int) -> float:
    """In [0, 1): how much more often two predictors' labels meet than chance would have it."""
    joint = _joint(one, other, labels) / len(one)
    chance = np.outer(joint.sum(axis=1), joint.sum(axis=0))
    return float(np.maximum(joint - chance, 0).sum())


def determinant_information(one: Labels, other: Labels, labels: int) -> float:
    """At least 0; the root brings it to the scale of a share of samples."""
    score = 1.0
    for half in (slice(0, None, 2), slice(1, None, 2)):
        joint = _joint(one[half], other[half], labels) + _PRIOR_COUNT * np.eye(labels)
        score *= abs(float(np.linalg.det(joint / len(one[half]) * labels))) ** (1 / (2 * labels))
    return score


def mean_over_peers(score: PairScore, predictions: Mapping[str, Labels], labels: int) -> dict[str, float]:
    """Each participant's mean score over all others; 0 for one that is alone."""
    names = sorted(predictions)
    sums = dict.fromkeys(names, 0.0)
    for i, name in enumerate(names):
        for other in names[i + 1 :]:
            value = score(predictions[name], predictions[other], labels)
            sums[name] += value
            sums[other] += value
    return {name: total / max(len(names) - 1, 1) for name, total in sums.items()}


def _joint(one: Labels, other: Labels, labels: int) -> npt.NDArray[np.float64]:
    counts = np.bincount(one * labels + other, minlength=labels * labels)
    return counts.reshape(labels, labels).astype(np.float64)
