"""How far local models run apart between two averagings.

    sum_k p_k |w_bar_t - w_t^k|^2  <=  4 G^2 S_t^2 sum_k p_k delta_k^2

For gradient steps from a common start, label losses f_i that are L-smooth with |grad f_i| <= G along the
trajectories, F_k = sum_i p^(k)_i f_i, S_t of `mechanism.bounds.steps`. As the mean minimises the weighted sum of
squares, the left side is at most sum_k p_k |w_t^k - v_t|^2 with v_t the steps on F_c.

Tight: f_1 = G w, f_2 = -G w, p^(c) = (1/2, 1/2) and one label each gives equality (L -> 0).

Source: replaces Pang et al. 2025, Theorem 1, whose Cauchy-Schwarz step drops a factor E - 1.
"""

from collections.abc import Sequence

from mechanism.bounds.steps import step_sums, weighted_squares
from mechanism.ranges import positive


def divergence_bound(
    gradient_bound: float,
    step_sizes: Sequence[float],
    smoothness: float,
    weights: Sequence[float],
    degrees: Sequence[float],
    mu: float = 0.0,
) -> float:
    """4 G^2 S_t^2 sum_k p_k delta_k^2 after the steps taken since the last averaging.

    Args:
        gradient_bound: G > 0.
        step_sizes: the steps since the averaging; none gives 0.
        smoothness, mu: L, and the strong convexity where there is one.
        weights, degrees: p_k and delta_k.
    """
    g = positive("gradient_bound", gradient_bound)
    return 4 * g**2 * step_sums(step_sizes, smoothness, mu).total ** 2 * weighted_squares(weights, degrees)
