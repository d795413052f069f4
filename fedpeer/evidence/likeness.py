"""How alike two models are beyond what their mixes explain.

Models of one mix are pulled the same way, on whichever samples they were trained. What the mix p pulls is a ridge
regression on shadows, linear in the shares and in their square roots, since the first samples of a stratum count most:

    x(p) = (p, sqrt p),   pull(p) = x(p) C,   likeness = cosine of v - pull(p) and v' - pull(p')

What is left of a model is its own samples': a copy has 1, a model trained again on the same samples little less, and
models of different samples little, unless few strata are all that both have (`fedpeer.evidence.comparing`).

Of shadows what is left is taken without the shadow itself, its residual over 1 - H_ii. Shadows of one half of D_c share
samples, which C does not know: their residuals have a mean in common, d more than those of the other half. C lies
between the two halves, so that pairs of shadows of different halves have -d/2 and d/2 in common; two participants,
whose samples are of neither, lie as far from C and on one side of it. Residuals of the first half are therefore
given without d: pairs of different halves then have in common what two participants have.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedpeer.evidence.sketch import Array, directions

#: Candidates of the ridge penalty, over the largest squared singular value of x.
_PENALTIES = np.logspace(-6, 0, 13)


@dataclass(frozen=True, eq=False)
class Pull:
    """What a mix does to one kind of vector: C, shape (2 S, B).

    Attributes:
        inverse: (X'X + a)^-1 of the shadows' x and the penalty a, (2 S, 2 S).
    """

    coefficients: Array
    inverse: Array

    def __call__(self, mixes: Array) -> Array:
        """pull(p), shape (..., B) of mixes (..., S)."""
        said: Array = _basis(mixes) @ self.coefficients
        return said

    def unknown(self, mixes: Array) -> Array:
        """x(p) (X'X + a)^-1 x(p)', shape (...): the greater, the less the shadows tell of such a mix."""
        x = _basis(mixes)
        result: Array = np.einsum("...i,ij,...j->...", x, self.inverse, x)
        return result

    def left(self, vectors: Array, mixes: Array) -> Array:
        """What is left of models that are no shadows, shape (n, B), as directions."""
        return directions(vectors - self(mixes))


def fit_pull(vectors: Array, mixes: Array, halves: npt.NDArray[np.int64]) -> tuple[Pull, Array]:
    """The map, and what it says of each shadow without it, (n, B): what is beyond that is left; see the module's text.

    Args:
        vectors: shape (n, B); mixes: distributions over the strata, (n, S); halves: of D_c, (n,).
    """
    pull, residuals = pull_and_rest(vectors, mixes)
    difference = residuals[halves == 0].mean(axis=0) - residuals[halves == 1].mean(axis=0)
    return pull, vectors - residuals + np.outer(halves == 0, difference)


def pull_of(vectors: Array, mixes: Array) -> Pull:
    """The map that shadows of one half give."""
    return pull_and_rest(vectors, mixes)[0]


def pull_and_rest(vectors: Array, mixes: Array) -> tuple[Pull, Array]:
    """The map of the penalty with the least error, and the residuals of each without it, (n, B)."""
    left, singular, right = np.linalg.svd(_basis(mixes), full_matrices=False)
    squares, projected = singular**2, left.T @ vectors
    best, chosen, residuals = np.inf, 0.0, vectors
    for penalty in _PENALTIES * squares[0]:
        kept = squares / (squares + penalty)
        leverage = (left**2) @ kept
        found = (vectors - left @ (kept[:, None] * projected)) / np.maximum(1 - leverage, 1e-9)[:, None]
        if (error := float(np.square(found).sum())) < best:
            best, chosen, residuals = error, float(penalty), found
    coefficients = right.T @ ((singular / (squares + chosen))[:, None] * projected)
    # Directions that no shadow has are damped by the penalty alone.
    inverse = (
        right.T @ ((1 / (squares + chosen) - 1 / chosen)[:, None] * right) + np.eye(right.shape[1]) / chosen
    )
    return Pull(coefficients, inverse), residuals


def mix_of(shares: Array) -> Array:
    """Estimated shares, shape (..., S), as distributions: none below 0, summing to 1."""
    positive = np.maximum(shares, 0)
    result: Array = positive / np.maximum(positive.sum(axis=-1, keepdims=True), 1e-9)
    return result


def _basis(mixes: Array) -> Array:
    return np.concatenate([mixes, np.sqrt(mixes)], axis=-1)
