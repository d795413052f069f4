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
from mechanism.ranges import non_negative, positive, positives, whole


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


def divergence_bound_constant_step(
    gradient_bound: float,
    step_size: float,
    local_steps: int,
    smoothness: float,
    weights: Sequence[float],
    degrees: Sequence[float],
) -> float:
    """4 (E-1)^2 G^2 eta^2 (1 + eta L)^(2(E-2)) sum_k p_k delta_k^2: never less than `divergence_bound`.

    For up to E - 1 steps of one size after an averaging; 0 for E = 1.
    """
    g, eta = positives(gradient_bound=gradient_bound, step_size=step_size)
    E, L = whole("local_steps", local_steps), non_negative("smoothness", smoothness)
    growth = (1 + eta * L) ** (2 * max(E - 2, 0))
    return 4 * (E - 1) ** 2 * g**2 * eta**2 * growth * weighted_squares(weights, degrees)


def paper_divergence_bound(
    gradient_bound: float,
    step_size: float,
    local_steps: int,
    smoothness: float,
    weights: Sequence[float],
    degrees: Sequence[float],
) -> float:
    """The paper's Theorem 1: 16 (E-1) G^2 eta^2 (1 + 2 eta L)^(2(E-1)) sum_k p_k 4 delta_k^2.

    Violated by the two-label example for every E >= 18.
    """
    g, eta = positives(gradient_bound=gradient_bound, step_size=step_size)
    E, L = whole("local_steps", local_steps), non_negative("smoothness", smoothness)
    growth = (1 + 2 * eta * L) ** (2 * (E - 1))
    return 16 * (E - 1) * g**2 * eta**2 * growth * 4 * weighted_squares(weights, degrees)


def paper_appendix_divergence_bound(
    gradient_bound: float,
    step_size: float,
    local_steps: int,
    weights: Sequence[float],
    degrees: Sequence[float],
) -> float:
    """Theorem 1 as the paper's appendix restates it: (1 + 2 eta) without L."""
    return paper_divergence_bound(gradient_bound, step_size, local_steps, 1.0, weights, degrees)
