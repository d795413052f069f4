"""What a mix does to figures of a model: a ridge regression on shadows, linear in the shares and in their square roots,
since the first samples of a stratum count most:

    x(p) = (p, sqrt p),   said(p) = x(p) C

The screens hold models against it (`fedpeer.evidence.screening`), and ask how little it knows of a mix. What the mix
explains of the likeness of two models takes a map that bends more (`fedpeer.evidence.likeness`).
"""

from dataclasses import dataclass

import numpy as np

from fedpeer.evidence.regression import least_penalty
from fedpeer.evidence.sketch import Array

#: Candidates of the ridge penalty, over the largest squared singular value of x.
_PENALTIES = np.logspace(-6, 0, 13)


@dataclass(frozen=True, eq=False)
class MixLines:
    """What a mix does to one kind of vector: C, shape (2 S, B).

    Attributes:
        inverse: (X'X + a)^-1 of the shadows' x and the penalty a, (2 S, 2 S).
    """

    coefficients: Array
    inverse: Array

    def __call__(self, mixes: Array) -> Array:
        """said(p), shape (..., B) of mixes (..., S)."""
        said: Array = _basis(mixes) @ self.coefficients
        return said

    def unknown(self, mixes: Array) -> Array:
        """x(p) (X'X + a)^-1 x(p)', shape (...): the greater, the less the shadows tell of such a mix."""
        x = _basis(mixes)
        result: Array = np.einsum("...i,ij,...j->...", x, self.inverse, x)
        return result


def lines_and_rest(vectors: Array, mixes: Array) -> tuple[MixLines, Array]:
    """The map of the penalty with the least error, and the residuals of each without it, (n, B)."""
    left, singular, right = np.linalg.svd(_basis(mixes), full_matrices=False)
    squares = singular**2
    chosen, residuals = least_penalty(left, squares, vectors, _PENALTIES * squares[0])
    coefficients = right.T @ ((singular / (squares + chosen))[:, None] * (left.T @ vectors))
    # Directions that no shadow has are damped by the penalty alone.
    inverse = (
        right.T @ ((1 / (squares + chosen) - 1 / chosen)[:, None] * right) + np.eye(right.shape[1]) / chosen
    )
    return MixLines(coefficients, inverse), residuals


def _basis(mixes: Array) -> Array:
    return np.concatenate([mixes, np.sqrt(mixes)], axis=-1)
