"""What heterogeneity adds to known convergence bounds, in the degrees.

Five forms, each the source's theorem with the term that heterogeneity enters replaced by a bound in delta:

    fedavg                Li et al. 2020, theorem 1        divergence of local models
    scaffold              Karimireddy et al. 2020, lemma 7 client drift
    two_learning_rates    Yang et al. 2021, theorem 1      global variance
    anarchic              Yang et al. 2022, theorem 2      global variance, delays
    global_variance       |grad F_k - grad F|^2 <= 4 G^2 (delta_k + delta_bar)^2, <= 4 G^2 delta_k^2 where F = F_c

The sources' own theorems are taken as they are; what is derived here is the heterogeneity term. `fedavg` is affine in
sum_k p_k delta_k^2, as the learner's Bound(e) = Omega + gamma sum_k p_k delta_k^2 is.

Source: Pang et al. 2025, Example 1 and the appendix's further examples.
"""

import math
from collections.abc import Sequence

from mechanism.bounds.steps import step_sums, weighted_squares
from mechanism.errors import FieldError
from mechanism.ranges import degree as in_unit
from mechanism.ranges import non_negative, positive, positives, whole


def global_variance(gradient_bound: float, degree: float, mean_degree: float = 0.0) -> float:
    """A bound on |grad F_k - grad F|^2, for F of degree `mean_degree` (0: F is the reference F_c).

    |grad F_k - grad F_c| = |sum_i (p^(k)_i - p^(c)_i) grad f_i| <= 2 G delta_k; with F = sum_k p_k F_k the triangle
    inequality adds 2 G times the degree of the mixture. The paper leaves that out.
    """
    g = positive("gradient_bound", gradient_bound)
    return 4 * g**2 * (in_unit("degree", degree) + in_unit("mean_degree", mean_degree)) ** 2


def fedavg(
    *,
    smoothness: float,
    mu: float,
    gradient_bound: float,
    local_steps: int,
    rounds: int,
    sigmas: Sequence[float],
    weights: Sequence[float],
    degrees: Sequence[float],
    start_distance: float,
    heterogeneity: float,
) -> float:
    """E[F(w_T)] - F* for FedAvg, full participation, step sizes eta_t = 2 / (mu (gamma + t)).

        kappa / (gamma + T - 1) * (2 B / mu + mu gamma / 2 * |w_1 - w*|^2)
        B = sum_k p_k^2 sigma_k^2 + 6 L Gamma + 2 D,    kappa = L / mu,  gamma = max(8 kappa, E)

    Li's step is v_{t+1} <= (1 - eta mu) v_t + eta^2 (sum p^2 sigma^2 + 6 L Gamma) + 2 E[divergence], and his
    divergence of 4 eta^2 (E-1)^2 G^2 gives the 8 (E-1)^2 G^2 of his B. Here the divergence after an averaging at
    t_0 is at most 4 G^2 S^2 sum p delta^2, and eta_{t_0} <= 2 eta_t: D is its maximum over t of divergence / eta_t^2,

        D = 16 (E-1)^2 G^2 (1 + eta_0 L)^(2(E-2)) sum_k p_k delta_k^2.

    With stochastic gradients each step adds at most eta sigma_k in the root mean square, so that 2 G delta_k becomes
    2 G delta_k + sigma_k, and D at most 2 D + 8 (E-1)^2 (1 + eta_0 L)^(2(E-2)) sum_k p_k sigma_k^2.
    `sigmas` and `heterogeneity` are sigma_k and Gamma = F* - sum p_k F_k*.
    """
    L, m, g = positives(smoothness=smoothness, mu=mu, gradient_bound=gradient_bound)
    E, T = whole("local_steps", local_steps), whole("rounds", rounds)
    if m > L:
        raise FieldError("mu", m, f"at most the smoothness {L:g}")
    kappa = L / m
    gamma = max(8 * kappa, E)
    noise = _noise(weights, sigmas)
    growth = (1 + 2 / (m * gamma) * L) ** (2 * max(E - 2, 0))
    drift = 16 * (E - 1) ** 2 * g**2 * growth * weighted_squares(weights, degrees)
    if any(sigmas):
        spread = math.fsum(p * s**2 for p, s in zip(weights, sigmas, strict=True))
        drift = 2 * drift + 8 * (E - 1) ** 2 * growth * spread
    B = noise + 6 * L * non_negative("heterogeneity", heterogeneity) + 2 * drift
    distance = non_negative("start_distance", start_distance)
    return kappa / (gamma + T - 1) * (2 * B / m + m * gamma / 2 * distance**2)


def scaffold(
    *,
    smoothness: float,
    mu: float,
    gradient_bound: float,
    dissimilarity: float,
    local_steps: int,
    local_rate: float,
    global_rate: float,
    sampled: int,
    sigma: float,
    degrees: Sequence[float],
    distance: float,
    gap: float,
) -> float:
    """E|w^t - w*|^2 one round after |w^{t-1} - w*|^2 = `distance`^2, f(w^{t-1}) - f* = `gap`.

        (1 - mu eta/2) distance^2 - eta gap + (1 - S/N) 4 eta^2 G^2 + eta^2 sigma^2 / (E S) + 3 L eta * drift
        drift = 1/(E N) sum_e sum_i |w_{i,e} - w|^2,      eta = E eta_g eta_l

    The drift is counted from the last common model, not from the mean of the local ones. |w_{i,e} - w| is at most
    eta_l times the norms of e gradients, and grad F_i = grad F_c + an offset of at most 2 G delta_i, so it is at
    most |v_e - w| + 2 G delta_i S_e; with |grad F_c| <= G,

        drift <= (2/E) sum_e [ (e eta_l G)^2 + 4 G^2 S_e^2 mean_i delta_i^2 ].

    A bound in the degrees alone (the paper: put Theorem 1 in its place) would be 0 for iid data, where the local
    models still move.

    Raises:
        FieldError: constants out of range, or eta_l above 1 / ((1 + B^2) 8 L E eta_g).
    """
    L, m, g = positives(smoothness=smoothness, mu=mu, gradient_bound=gradient_bound)
    E, S, N = whole("local_steps", local_steps), whole("sampled", sampled), len(degrees)
    rate, outer = positives(local_rate=local_rate, global_rate=global_rate)
    if S > N:
        raise FieldError("sampled", S, f"at most the participants, {N}")
    limit = 1 / ((1 + non_negative("dissimilarity", dissimilarity) ** 2) * 8 * L * E * outer)
    if rate > limit:
        raise FieldError("local_rate", rate, f"at most 1/((1 + B^2) 8 L E eta_g) = {limit:g}")
    mean = weighted_squares([1 / N] * N, degrees)
    drift = 0.0
    for e in range(1, E + 1):
        sums = step_sums([rate] * e, L)
        drift += 2 / E * ((e * rate * g) ** 2 + 4 * g**2 * sums.total**2 * mean)
    eta = E * outer * rate
    sampling = (1 - S / N) * 4 * eta**2 * g**2
    noise = eta**2 * non_negative("sigma", sigma) ** 2 / (E * S)
    kept = (1 - m * eta / 2) * non_negative("distance", distance) ** 2
    return kept - eta * non_negative("gap", gap) + sampling + noise + 3 * L * eta * drift


def two_learning_rates(
    *,
    smoothness: float,
    gradient_bound: float,
    local_steps: int,
    rounds: int,
    local_rate: float,
    global_rate: float,
    sigma: float,
    weights: Sequence[float],
    degrees: Sequence[float],
    start_gap: float,
) -> float:
    """min_t E|grad f(w_t)|^2 for generalized FedAvg with full participation, non-convex.

        (f_0 - f*) / (c eta eta_L E T)
        + (1/c) [ L eta eta_L / (2 N) sigma^2 + (5 E eta_L^2 L^2 / 2) (sigma^2 + 6 E sigma_G^2) ]

    sigma_G^2 = max_k 4 G^2 (delta_k + delta_bar)^2, with delta_bar = sum_k p_k delta_k >= the degree of the mixture f.
    c = 1/4, which is below the source's 1/2 - 15 E^2 eta_L^2 L^2 where eta_L <= 1/(8 L E).

    Raises:
        FieldError: constants out of range, or step sizes above 1/(8 L E) and 1/(E L).
    """
    L, E, T = positive("smoothness", smoothness), whole("local_steps", local_steps), whole("rounds", rounds)
    rate, outer = positives(local_rate=local_rate, global_rate=global_rate)
    if rate > 1 / (8 * L * E):
        raise FieldError("local_rate", rate, f"at most 1/(8 L E) = {1 / (8 * L * E):g}")
    if rate * outer > 1 / (E * L):
        raise FieldError("global_rate", outer, f"at most 1/(E L eta_L) = {1 / (E * L * rate):g}")
    variance = _worst_variance(gradient_bound, weights, degrees)
    s = non_negative("sigma", sigma) ** 2
    noise = L * outer * rate / (2 * len(weights)) * s
    local = 5 * E * rate**2 * L**2 / 2 * (s + 6 * E * variance)
    return 4 * (non_negative("start_gap", start_gap) / (outer * rate * E * T) + noise + local)


def anarchic(
    *,
    smoothness: float,
    gradient_bound: float,
    local_steps: Sequence[Sequence[int]],
    local_rate: float,
    global_rate: float,
    delay: int,
    sigma: float,
    weights: Sequence[float],
    degrees: Sequence[float],
    start_gap: float,
) -> float:
    """(1/T) sum_t E|grad f(w_t)|^2 for AFA-CD, asynchronous, with general arrivals.

        4 (f_0 - f*) / (eta eta_L T) + 4 (alpha_L sigma^2 + alpha_G sigma_G^2)
        alpha_L = L eta eta_L/m mean(1/K_t) + 3 tau^2 L^2 eta^2 eta_L^2/m mean(1/K_t) + 15 eta_L^2 L^2/2 mean(Kbar_t)
        alpha_G = 3/2 + 45 L^2 eta_L^2 mean(Khat_t^2)

    Args:
        local_steps: K_{t,i} of the m arrivals of each of T rounds; T rows of equal length.
        delay: tau >= 0, the greatest delay.

    Raises:
        FieldError: rows of unequal length, constants out of range, or step sizes that break the source's conditions.
    """
    L, rate, outer = positives(smoothness=smoothness, local_rate=local_rate, global_rate=global_rate)
    whole("delay", delay, 0)
    T, m = len(local_steps), len(local_steps[0]) if local_steps else 0
    if not m or any(len(row) != m for row in local_steps):
        raise FieldError("local_steps", local_steps, "one row a round, all of one length above 0")
    for t, row in enumerate(local_steps):
        for i, K in enumerate(row):
            whole(f"local_steps[{t}][{i}]", K)
            if 6 * rate**2 * (2 * K**2 - 3 * K + 1) * L**2 > 1 or 180 * rate**2 * K**2 * L**2 * delay >= 1:
                raise FieldError("local_rate", rate, f"one that suits {K} local steps and a delay of {delay}")
    if 2 * L * outer * rate + 6 * delay**2 * L**2 * outer**2 * rate**2 > 1:
        raise FieldError("global_rate", outer, "one with 2 L eta eta_L + 6 tau^2 L^2 eta^2 eta_L^2 <= 1")
    inverse = math.fsum(math.fsum(1 / K for K in row) / m for row in local_steps) / T
    mean = math.fsum(math.fsum(row) / m for row in local_steps) / T
    square = math.fsum(math.fsum(K**2 for K in row) / m for row in local_steps) / T
    step = L * outer * rate
    alpha_local = step / m * inverse + 3 * delay**2 * step**2 / m * inverse + 15 * rate**2 * L**2 / 2 * mean
    alpha_global = 1.5 + 45 * L**2 * rate**2 * square
    noise = alpha_local * non_negative("sigma", sigma) ** 2
    variance = _worst_variance(gradient_bound, weights, degrees)
    return 4 * non_negative("start_gap", start_gap) / (outer * rate * T) + 4 * (
        noise + alpha_global * variance
    )


def _worst_variance(gradient_bound: float, weights: Sequence[float], degrees: Sequence[float]) -> float:
    weighted_squares(weights, degrees)  # refuses what is out of range
    mean = math.fsum(p * d for p, d in zip(weights, degrees, strict=True))
    return max(global_variance(gradient_bound, d, min(mean, 1.0)) for d in degrees)


def _noise(weights: Sequence[float], sigmas: Sequence[float]) -> float:
    if len(sigmas) != len(weights):
        raise FieldError("sigmas", f"{len(sigmas)} entries", f"one a weight: {len(weights)}")
    return math.fsum(
        p**2 * non_negative(f"sigmas[{k}]", s) ** 2
        for k, (p, s) in enumerate(zip(weights, sigmas, strict=True))
    )
