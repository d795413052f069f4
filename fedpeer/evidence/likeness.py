"""How alike two models are beyond what their mixes explain.

Models of one mix are pulled the same way, on whichever samples they were trained. What the mix p pulls is a ridge
regression on shadows in the dual, of shadows of the mixes p_1 .. p_n:

    pull(p) = sum_i k(p, p_i) a_i,   k(p, q) = p q + b + b^2 + b^4,   b = sum_s sqrt(p_s q_s)
    likeness = cosine of v - pull(p) and v' - pull(p')

The terms p q and b alone are linear in the shares and in their square roots, since the first samples of a stratum count
most. From a fresh start that falls short: what a model learns of one stratum hangs on the others that it has. The
powers of b, the affinity of two mixes, bend the pull. Without them what the mixes explain stays in the residuals of a
few shadows, pairs of them look alike, and the limit of a link rises above what a model on the same samples shows.

What is left of a model is its own samples': a copy has 1, a model trained again on the same samples little less, and
models of different samples little, unless few strata are all that both have (`fedpeer.evidence.comparing`).

Of shadows what is left is taken without the shadow itself, its residual over 1 - H_ii. Shadows of one half of D_c share
samples, which the map does not know: their residuals have a mean in common, d more than those of the other half. It
lies between the two halves, so that pairs of shadows of different halves have -d/2 and d/2 in common; two participants,
whose samples are of neither, lie as far from it and on one side of it. Residuals of the first half are therefore
given without d: pairs of different halves then have in common what two participants have.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedpeer.evidence.regression import least_penalty
from fedpeer.evidence.sketch import Array, directions

#: Candidates of the ridge penalty, over the largest eigenvalue of the kernel's matrix.
_PENALTIES = np.logspace(-5, 0.5, 14)


@dataclass(frozen=True, eq=False)
class Pull:
    """What a mix does to one kind of vector.

    Attributes:
        mixes: p_i of the shadows, (n, S); weights: a_i, (n, B).
    """

    mixes: Array
    weights: Array

    def left(self, vectors: Array, mixes: Array) -> Array:
        """What is left of models that are no shadows, shape (n, B), as directions."""
        return directions(vectors - _kernel(mixes, self.mixes) @ self.weights)


def fit_pull(vectors: Array, mixes: Array, halves: npt.NDArray[np.int64]) -> tuple[Pull, Array]:
    """The map, and what it says of each shadow without it, (n, B): what is beyond that is left; see the module's text.

    Args:
        vectors: shape (n, B); mixes: distributions over the strata, (n, S); halves: of D_c, (n,).
    """
    pull, residuals = pull_of(vectors, mixes)
    difference = residuals[halves == 0].mean(axis=0) - residuals[halves == 1].mean(axis=0)
    return pull, vectors - residuals + np.outer(halves == 0, difference)


def pull_of(vectors: Array, mixes: Array) -> tuple[Pull, Array]:
    """The map of the penalty with the least error, and what is left of each without it."""
    values, axes = np.linalg.eigh(_kernel(mixes, mixes))
    values = np.maximum(values, 0)
    chosen, residuals = least_penalty(axes, values, vectors, _PENALTIES * values[-1])
    return Pull(mixes, axes @ ((axes.T @ vectors) / (values + chosen)[:, None])), residuals


def mix_of(shares: Array) -> Array:
    """Estimated shares, shape (..., S), as distributions: none below 0, summing to 1."""
    positive = np.maximum(shares, 0)
    result: Array = positive / np.maximum(positive.sum(axis=-1, keepdims=True), 1e-9)
    return result


def _kernel(mixes: Array, others: Array) -> Array:
    """k of the module's text, of each with each."""
    affinity = np.sqrt(mixes) @ np.sqrt(others).T
    result: Array = mixes @ others.T + affinity + affinity**2 + affinity**4
    return result
