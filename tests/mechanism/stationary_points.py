"""Where a utility against one effective peer is stationary, in closed form: what the search is held against.

r = Upsilon / Phi, A = delta'^2 + r, a linear cost c:

    log      delta = 1/c -/+ sqrt(1/c^2 - A)                           c over the payment's scale
    linear   delta^4 + 2 A delta^2 - (2 scale Q / (c Phi)) delta + A^2 = 0

In both the smaller root is the local maximum (and the larger effort), the larger the local minimum; without a
real root the utility rises in delta and no effort is best.

Source: Pang et al. 2025, Theorem 3 and the appendix on scoring functions, corrected (docs/mechanism.md, section 6).
"""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def log_stationary(cost: npt.ArrayLike, peer: npt.ArrayLike) -> Array:
    """The smaller root of delta^2 - 2 delta / c + A = 0, NaN where there is none.

    Args:
        cost: c > 0.
        peer: A = delta'^2 + Upsilon / Phi > 0.
    """
    inverse, A = 1 / np.asarray(cost, dtype=np.float64), np.asarray(peer, dtype=np.float64)
    square = inverse**2 - A
    root = np.sqrt(np.where(square >= 0, square, np.nan))
    # A / (larger root): the difference 1/c - root would cancel.
    return np.asarray(A / (inverse + root))


def linear_stationary(slope: npt.ArrayLike, peer: npt.ArrayLike) -> Array:
    """The smaller positive root of (delta^2 + A)^2 = B delta, NaN where there is none.

    With delta = t^2 this is t^4 - b t + A = 0, b = sqrt(B), which splits into two quadratics over a root
    y > 0 of y^3 - A y - b^2 / 8 = 0; the real pair is t^2 - sqrt(2 y) t + y - b / (2 sqrt(2 y)) = 0.

    Args:
        slope: B = 2 scale Q / (c Phi) > 0.
        peer: A = delta'^2 + Upsilon / Phi > 0.
    """
    B, A = np.broadcast_arrays(np.asarray(slope, dtype=np.float64), np.asarray(peer, dtype=np.float64))
    y = _resolvent(A, B / 8)
    b, w = np.sqrt(B), np.sqrt(2 * y)
    square = b / w * 2 - w**2
    t = (w - np.sqrt(np.where(square >= 0, square, np.nan))) / 2
    delta = t**2
    for _ in range(
        2
    ):  # the formula cancels; Newton restores the lost digits, from the left where F is convex
        residual = (delta**2 + A) ** 2 - B * delta
        derivative = 4 * delta * (delta**2 + A) - B
        step = np.divide(residual, derivative, out=np.zeros_like(delta), where=derivative < 0)
        delta = np.maximum(delta - step, 0.0)
    return delta


def _resolvent(A: Array, q: Array) -> Array:
    """The root y > 0 of y^3 - A y - q = 0, A, q > 0."""
    half, third = q / 2, A / 3
    disc = half**2 - third**3
    root = np.sqrt(np.maximum(disc, 0.0))
    cardano = np.cbrt(half + root) + np.cbrt(half - root)
    angle = np.arccos(np.clip(half / third**1.5, -1.0, 1.0))
    viete = 2 * np.sqrt(third) * np.cos(angle / 3)
    return np.where(disc >= 0, cardano, viete)
