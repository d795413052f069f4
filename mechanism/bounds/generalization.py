"""How far apart two participants' models can be on the reference distribution.

    |F_c(w^k) - F_c(w^k')|  <=  Phi max(delta_k^2, delta_k'^2) + Upsilon  <=  Phi (delta_k^2 + delta_k'^2) + Upsilon

The constants are those of `GapBound.strongly_convex` and `GapBound.stochastic`. Proof: F_c(w^k') >= F_c(w*), so the
gap is at most F_c(w^k) - F_c(w*) <= (L/2) |w^k - w*|^2, and |w^k - w*| <= |w^k - v_E| + |v_E - w*|
<= 2 G S delta_k + rho G / mu; square with (a + b)^2 <= 2 a^2 + 2 b^2.

Source: replaces Pang et al. 2025, Theorem 2.
"""

from collections.abc import Sequence

from mechanism.gap_bound import GapBound
from mechanism.ranges import degree as in_unit


def generalization_gap(
    smoothness: float,
    gradient_bound: float,
    mu: float,
    step_sizes: Sequence[float],
    degree: float,
    peer: float,
    sigma: float | None = None,
    sharp: bool = False,
) -> float:
    """The bound on the gap of two models after the same local steps.

    Args:
        sigma: standard deviation bound of the stochastic gradients; then the bound holds in expectation.
        sharp: the form with max instead of the sum, which is the smaller.
    """
    in_unit("degree", degree)
    in_unit("peer", peer)
    bound = (
        GapBound.strongly_convex(smoothness, gradient_bound, mu, step_sizes)
        if sigma is None
        else GapBound.stochastic(smoothness, gradient_bound, mu, step_sizes, sigma)
    )
    squares = max(degree**2, peer**2) if sharp else degree**2 + peer**2
    return bound.phi * squares + bound.upsilon
