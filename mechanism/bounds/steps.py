"""Sums over local steps that the bounds share.

    q_r  = 1 + eta_r L in general;  1 - eta_r mu where every label loss is mu-strongly convex and eta_r <= 2/(L + mu)
    S_t  = sum_{s<t} eta_s prod_{s<r<t} q_r
    V_t^2 = sum_{s<t} eta_s^2 prod_{s<r<t} q_r^2
    rho_t = prod_{s<t} q_s

A gradient step on F_k moves away from the step on F_c by at most eta * 2 G delta_k, and the map w -> w - eta grad F
stretches by at most q: so |w_t^k - v_t| <= 2 G delta_k S_t.

Source: docs/mechanism.md, section 2; Nesterov 2004, theorem 2.1.15 (the contraction).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mechanism.errors import FieldError
from mechanism.ranges import degree, non_negative, positive


@dataclass(frozen=True)
class StepSums:
    """S_t, V_t^2 and rho_t after all of the given steps."""

    total: float
    variance: float
    shrink: float


def step_sums(step_sizes: Sequence[float], smoothness: float, mu: float = 0.0) -> StepSums:
    """The sums over `step_sizes`.

    Args:
        step_sizes: eta_0 ... eta_{t-1}, each above 0; none gives S = V = 0 and rho = 1.
        smoothness: L > 0.
        mu: strong convexity in [0, L]; 0 takes the general factor 1 + eta L.

    Raises:
        FieldError: a constant out of range, or eta above 2/(L + mu) where mu > 0.
    """
    L, mu = positive("smoothness", smoothness), non_negative("mu", mu)
    if mu > L:
        raise FieldError("mu", mu, f"at most the smoothness {L:g}")
    total = variance = 0.0
    shrink = 1.0
    for t, eta in enumerate(step_sizes):
        positive(f"step_sizes[{t}]", eta)
        if mu > 0 and eta > 2 / (L + mu):
            raise FieldError(f"step_sizes[{t}]", eta, f"at most 2/(L + mu) = {2 / (L + mu):g}")
        q = 1 - eta * mu if mu > 0 else 1 + eta * L
        total, variance, shrink = q * total + eta, q**2 * variance + eta**2, q * shrink
    return StepSums(total, variance, shrink)


def weighted_squares(weights: Sequence[float], degrees: Sequence[float]) -> float:
    """sum_k p_k delta_k^2 for weights that sum to 1 and degrees in [0, 1].

    Raises:
        FieldError: lengths that differ, a weight that is negative, a sum other than 1, a degree out of range.
    """
    if len(weights) != len(degrees) or not weights:
        raise FieldError("weights", f"{len(weights)} entries", f"one a degree: {len(degrees)}, at least one")
    for k, weight in enumerate(weights):
        non_negative(f"weights[{k}]", weight)
    if abs(math.fsum(weights) - 1) > 1e-9:
        raise FieldError("weights", math.fsum(weights), "weights that sum to 1")
    for k, one in enumerate(degrees):
        degree(f"degrees[{k}]", one)
    return math.fsum(p * d**2 for p, d in zip(weights, degrees, strict=True))
