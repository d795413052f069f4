"""The label shares that the direction of an update tells.

Every label pulls the weights its own way, so that for an update u, sketched, the shares of the labels it was trained
on are nearly linear in its direction:

    p = s + A (u / |u| - c)

with s and c the means of the shadows' shares and directions, and A their ridge regression. The length stays out:
a model pulled back to the start says what it said before.

Ridge regression in the dual. With the Gram matrix V w V' of the centred directions D, A' = D' V (w + a)^-1 V' (P - s).
The residual of a shadow that is left out is its residual over 1 - 1/S - H_ii, H = V w (w + a)^-1 V'.
"""

from dataclasses import dataclass

import numpy as np

from fedpeer.evidence.sketch import Array

#: Candidates of the penalty a, over the largest eigenvalue of the Gram matrix.
_PENALTIES = np.logspace(-4, 1, 14)

#: Length of an update below which it has no direction.
_LEAST_LENGTH = 1e-12


@dataclass(frozen=True)
class UpdateShares:
    """Sketched updates to label shares, fitted on shadows.

    Attributes:
        centre: c, shape (B,).
        coefficients: A', shape (B, I).
        intercept: s, shape (I,).
    """

    centre: Array
    coefficients: Array
    intercept: Array

    def __call__(self, sketches: Array) -> Array:
        """Shares, shape (n, I), of `sketches`, shape (n, B); they need not sum to 1 nor be positive."""
        shares: Array = (directions(sketches) - self.centre) @ self.coefficients + self.intercept
        return shares


def fit_update_shares(sketches: Array, shares: Array) -> tuple[UpdateShares, Array]:
    """The map, and what it says of each shadow when that shadow is left out, shape (S, I).

    Args:
        sketches: updates, shape (S, B).
        shares: of the labels that they were trained on, shape (S, I).
    """
    found = directions(sketches)
    centre, intercept = found.mean(axis=0), shares.mean(axis=0)
    found, wanted = found - centre, shares - intercept
    values, vectors = np.linalg.eigh(found @ found.T)
    values = np.maximum(values, 0)
    projected = vectors.T @ wanted
    best, chosen, left_out = np.inf, 0.0, wanted
    for penalty in _PENALTIES * values[-1]:
        kept = values / (values + penalty)
        leverage = (vectors**2) @ kept + 1 / len(found)
        residuals = (wanted - vectors @ (kept[:, None] * projected)) / np.maximum(1 - leverage, 1e-9)[:, None]
        error = float(np.square(residuals).mean())
        if error < best:
            best, chosen, left_out = error, float(penalty), residuals
    coefficients: Array = found.T @ (vectors @ (projected / (values + chosen)[:, None]))
    return UpdateShares(centre, coefficients, intercept), shares - left_out


def directions(sketches: Array) -> Array:
    """Rows of unit length; a row of zeros stays one."""
    lengths = np.linalg.norm(sketches, axis=-1, keepdims=True)
    result: Array = sketches / np.maximum(lengths, _LEAST_LENGTH)
    return result
