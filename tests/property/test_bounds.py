"""The corrected bounds hold on every random problem; the paper's fail where docs/mechanism.md says."""

import math

import numpy as np
import pytest

from mechanism.bounds.convergence import (
    anarchic,
    fedavg,
    global_variance,
    scaffold,
    two_learning_rates,
)
from mechanism.bounds.divergence import divergence_bound
from mechanism.bounds.steps import step_sums
from mechanism.errors import FieldError
from mechanism.gap_bound import GapBound

pytestmark = pytest.mark.arithmetic

DRAWS = 250


def paper_divergence(gradient_bound, step, local_steps, smoothness, squares):
    """The paper's Theorem 1; its appendix has it with smoothness = 1. `squares` is sum_k p_k delta_k^2."""
    growth = (1 + 2 * step * smoothness) ** (2 * (local_steps - 1))
    return 16 * (local_steps - 1) * gradient_bound**2 * step**2 * growth * 4 * squares


def paper_upsilon(smoothness, gradient_bound, mu, etas):
    """Upsilon as the paper's Theorem 2 prints it."""
    powers = [(1 - 2 * eta * smoothness) ** t for t, eta in enumerate(etas)]
    tail = math.fsum(power * eta**2 for power, eta in zip(powers, etas, strict=True))
    first = math.prod(powers) * 2 * gradient_bound**2 * smoothness / mu**2
    return first + smoothness * gradient_bound**2 / 2 * tail


def paper_fedavg(gradient_bound, mu, smoothness, local_steps, rounds, squares):
    """The paper's Example 1 without noise, from the optimum: a quarter of its Theorem 1 at t = T, in B once more."""
    kappa = smoothness / mu
    gamma = max(8 * kappa, local_steps)
    step = 2 / (mu * (gamma + rounds))
    divergence = paper_divergence(gradient_bound, step, local_steps, smoothness, squares) / 4
    return kappa / (gamma + rounds - 1) * 2 * divergence / mu


class Quadratics:
    """f_i(w) = (w - b_i)' A_i (w - b_i) / 2 with eigenvalues in [mu, L]."""

    def __init__(self, rng):
        self.labels, self.dim = int(rng.integers(2, 6)), int(rng.integers(1, 7))
        self.mu, self.L = 0.1, 1.0
        self.A, self.b = [], rng.normal(size=(self.labels, self.dim)) * 3
        for _ in range(self.labels):
            q, _ = np.linalg.qr(rng.normal(size=(self.dim, self.dim)))
            self.A.append(q @ np.diag(rng.uniform(self.mu, self.L, self.dim)) @ q.T)

    def gradients(self, w):
        return np.stack([A @ (w - b) for A, b in zip(self.A, self.b, strict=True)])

    def losses(self, w):
        return np.array([(w - b) @ A @ (w - b) / 2 for A, b in zip(self.A, self.b, strict=True)])


class RidgeLogistic:
    """Logistic regression on Gaussian classes with a ridge; f_i is the mean loss of label i (of two)."""

    def __init__(self, rng):
        self.labels, self.dim = 2, int(rng.integers(1, 5))
        self.x = [rng.normal(size=(20, self.dim)) + rng.normal(size=self.dim) for _ in range(2)]
        self.mu = float(rng.uniform(0.05, 0.3))
        self.L = self.mu + max(np.linalg.eigvalsh(x.T @ x / (4 * len(x))).max() for x in self.x)

    def gradients(self, w):
        rows = []
        for label, x in enumerate(self.x):
            sign = 2 * label - 1
            rows.append(-(sign * x / (1 + np.exp(sign * x @ w))[:, None]).mean(axis=0) + self.mu * w)
        return np.stack(rows)

    def losses(self, w):
        sides = [np.logaddexp(0, -(2 * i - 1) * (x @ w)).mean() for i, x in enumerate(self.x)]
        return np.array(sides) + self.mu * w @ w / 2


def problems():
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        yield seed, rng, (Quadratics if seed % 2 else RidgeLogistic)(rng)


def runs(problem, mixtures, w0, etas, noise=None):
    """All iterates of gradient steps on each mixture, and the greatest gradient norm of a label on the way."""
    paths, greatest = [], 0.0
    for p in mixtures:
        w, path = w0.copy(), [w0.copy()]
        for eta in etas:
            gradients = problem.gradients(w)
            greatest = max(greatest, np.linalg.norm(gradients, axis=1).max())
            w = w - eta * (p @ gradients + (0 if noise is None else noise(w.shape)))
            path.append(w.copy())
        greatest = max(greatest, np.linalg.norm(problem.gradients(w), axis=1).max())
        paths.append(np.array(path))
    return paths, greatest


def population(rng, labels, size=4):
    reference = rng.dirichlet(np.ones(labels))
    mixtures = rng.dirichlet(0.4 * np.ones(labels), size)
    weights = rng.dirichlet(np.ones(size))
    return reference, mixtures, weights, np.abs(mixtures - reference).sum(axis=1) / 2


def test_the_divergence_bound_holds_in_every_draw():
    tightest = 0.0
    for seed, rng, problem in problems():
        reference, mixtures, weights, degrees = population(rng, problem.labels)
        convex = seed % 3 > 0
        top = 2 / (problem.L + problem.mu) if convex else 2.0
        etas = rng.uniform(0.01, top, int(rng.integers(1, 25)))
        paths, G = runs(problem, [*mixtures, reference], rng.normal(size=problem.dim) * 2, etas)
        ends = np.array([path[-1] for path in paths[:-1]])
        mean = weights @ ends
        diverged = weights @ ((ends - mean) ** 2).sum(axis=1)
        bound = divergence_bound(
            G, etas, problem.L, weights.tolist(), degrees.tolist(), problem.mu if convex else 0.0
        )
        assert diverged <= bound * (1 + 1e-12)
        tightest = max(tightest, diverged / bound)
    print(f"divergence: at most {tightest:.3f} of the bound over {DRAWS} draws")  # noqa: T201  how tight, for the reader
    assert tightest > 0.05


@pytest.mark.parametrize("local_steps", [2, 17, 18, 19, 50])
def test_two_labels_attain_the_divergence_bound_and_break_the_papers(local_steps):
    # f_1 = G w, f_2 = -G w, p^(c) = (1/2, 1/2): one agent walks up, one down.
    G, eta = 3.0, 0.01
    walked = (eta * G * (local_steps - 1)) ** 2
    bound = divergence_bound(G, [eta] * (local_steps - 1), 1e-15, [0.5, 0.5], [0.5, 0.5])
    assert walked == pytest.approx(bound, rel=1e-12)
    paper = paper_divergence(G, eta, local_steps, 0.0, 0.25)
    assert (walked > paper) == (local_steps >= 18)


def test_the_appendix_lost_the_smoothness():
    # -L w^2 / 2 + w and -L w^2 / 2 - w: the further apart, the faster.
    L, local_steps = 1e6, 2001
    eta, apart, G = 5 / (L * (local_steps - 1)), 0.0, 1.0
    for _ in range(local_steps - 1):
        G = L * apart + 1
        apart += eta * G
    appendix, theorem = (paper_divergence(G, eta, local_steps, smoothness, 0.25) for smoothness in (1.0, L))
    bound = divergence_bound(G, [eta] * (local_steps - 1), L, [0.5, 0.5], [0.5, 0.5])
    assert appendix < apart**2 <= bound < theorem


def test_the_generalization_bound_holds_in_every_draw():
    tightest = 0.0
    for _, rng, problem in problems():
        reference, mixtures, _, degrees = population(rng, problem.labels, 2)
        etas = rng.uniform(0.01, 2 / (problem.L + problem.mu), int(rng.integers(1, 60)))
        paths, G = runs(problem, [*mixtures, reference], rng.normal(size=problem.dim) * 2, etas)
        loss = [reference @ problem.losses(path[-1]) for path in paths[:2]]
        bound = GapBound.strongly_convex(problem.L, G, problem.mu, etas)
        sharp = bound.phi * max(degrees) ** 2 + bound.upsilon
        gap = abs(loss[0] - loss[1])
        assert gap <= sharp * (1 + 1e-9)
        assert sharp <= bound.gap(*degrees) * (1 + 1e-12)
        tightest = max(tightest, gap / sharp)
    print(f"generalization gap: at most {tightest:.3f} of the bound over {DRAWS} draws")  # noqa: T201  how tight, for the reader
    assert tightest > 0.001


def test_the_generalization_bound_holds_in_expectation_with_stochastic_gradients():
    tightest = 0.0
    for seed in range(1, 41, 2):
        rng = np.random.default_rng(seed)
        problem = Quadratics(rng)
        reference, mixtures, _, degrees = population(rng, problem.labels, 2)
        etas, sigma = rng.uniform(0.05, 1.5, int(rng.integers(2, 20))), float(rng.uniform(0.2, 2))
        w0 = rng.normal(size=problem.dim) * 2
        losses, G = np.zeros(2), 0.0
        for _ in range(40):
            noise = lambda shape: sigma * rng.normal(size=shape) / np.sqrt(shape[0])  # noqa: B023, E731
            paths, greatest = runs(problem, mixtures, w0, etas, noise)
            G = max(G, greatest)
            losses += [reference @ problem.losses(path[-1]) / 40 for path in paths]
        bound = GapBound.stochastic(problem.L, G, problem.mu, etas, sigma).gap(*degrees)
        assert abs(losses[0] - losses[1]) <= bound
        tightest = max(tightest, abs(losses[0] - losses[1]) / bound)
    print(f"stochastic generalization gap: at most {tightest:.4f} of the bound")  # noqa: T201  how tight, for the reader


def test_the_papers_generalization_bound_fails():
    # A flat reference start: both labels pull apart with G = 1, L = 1, mu = 0.01 (eta L = 1/2 makes the paper's
    # factor (1 - 2 eta L)^t vanish, and with it its Upsilon's first term).
    L, mu, G, E = 1.0, 0.01, 1.0, 10
    etas = [0.5] * E
    paper = paper_upsilon(L, G, mu, etas)
    # iid participants, one of them still far from the optimum: F_c = mu w^2/2 from w_0 = G/mu, |grad| = G.
    w = G / mu * math.prod(1 - eta * mu for eta in etas)
    optimal_gap = mu * w**2 / 2
    assert optimal_gap > paper
    assert optimal_gap <= GapBound.strongly_convex(L, G, mu, etas).gap(0, 0)


@pytest.mark.parametrize("steps", [2, 3, 6, 7])
def test_the_papers_upsilon_can_be_negative_and_is_refused(steps):
    # eta L = 1: the product is (-1)^(E(E-1)/2).
    upsilon = paper_upsilon(100, 1, 0.01, [0.01] * steps)
    assert (upsilon < 0) == ((steps * (steps - 1) // 2) % 2 == 1)
    if upsilon < 0:
        with pytest.raises(FieldError, match="upsilon"):
            GapBound(1, upsilon)


def test_the_papers_experiments_are_reproduced_and_odd_epochs_refused():
    assert (GapBound.paper(1, 50).phi, GapBound.paper(1, 50).upsilon) == (300, 200)
    assert (GapBound.paper(10, 50).phi, GapBound.paper(10, 50).upsilon) == (30000, 20000)
    with pytest.raises(FieldError, match="odd E"):
        GapBound.paper(1, 49)


def test_the_global_variance_form_holds_in_every_draw_and_the_papers_does_not():
    broken, tightest = 0, 0.0
    for _, rng, problem in problems():
        reference, mixtures, weights, degrees = population(rng, problem.labels)
        gradients = problem.gradients(rng.normal(size=problem.dim) * 2)
        G = np.linalg.norm(gradients, axis=1).max()
        for k in range(len(mixtures)):
            against_reference = np.sum(((mixtures[k] - reference) @ gradients) ** 2)
            assert against_reference <= global_variance(G, degrees[k]) * (1 + 1e-12)
            tightest = max(tightest, against_reference / global_variance(G, degrees[k]))
            against_mean = np.sum(((mixtures[k] - weights @ mixtures) @ gradients) ** 2)
            mean_degree = np.abs(weights @ mixtures - reference).sum() / 2
            assert against_mean <= global_variance(G, degrees[k], mean_degree) * (1 + 1e-12)
            broken += against_mean > global_variance(G, degrees[k])  # as the paper has it
    print(f"global variance: at most {tightest:.3f} of the bound; the paper's form broke {broken} times")  # noqa: T201  how tight, for the reader
    assert broken > 0


def test_fedavg_converges_within_its_bound():
    tightest = 0.0
    for seed in range(1, 200, 4):
        rng = np.random.default_rng(seed)
        problem = Quadratics(rng)
        _, mixtures, weights, _ = population(rng, problem.labels)
        # Degrees against the mixture itself: the divergence bound holds for any reference.
        degrees = np.abs(mixtures - weights @ mixtures).sum(axis=1) / 2
        E, rounds = int(rng.integers(1, 6)), 12
        kappa = problem.L / problem.mu
        gamma = max(8 * kappa, E)
        mix = weights @ mixtures
        A = sum(m * a for m, a in zip(mix, problem.A, strict=True))
        best = np.linalg.solve(A, sum(m * a @ b for m, a, b in zip(mix, problem.A, problem.b, strict=True)))
        own = []
        for p in mixtures:
            A_k = sum(m * a for m, a in zip(p, problem.A, strict=True))
            w_k = np.linalg.solve(
                A_k, sum(m * a @ b for m, a, b in zip(p, problem.A, problem.b, strict=True))
            )
            own.append(p @ problem.losses(w_k))
        heterogeneity = mix @ problem.losses(best) - weights @ np.array(own)
        w0 = rng.normal(size=problem.dim) * 2
        local, G = np.tile(w0, (len(weights), 1)), 0.0
        for t in range(rounds * E):
            eta = 2 / (problem.mu * (gamma + t + 1))
            for k, p in enumerate(mixtures):
                gradients = problem.gradients(local[k])
                G = max(G, np.linalg.norm(gradients, axis=1).max())
                local[k] = local[k] - eta * (p @ gradients)
            if (t + 1) % E == 0:
                local[:] = weights @ local
        gap = mix @ problem.losses(local[0]) - mix @ problem.losses(best)
        common = {
            "smoothness": problem.L, "mu": problem.mu, "gradient_bound": G, "local_steps": E, "rounds": rounds * E,
            "sigmas": [0.0] * len(weights), "weights": weights.tolist(),
            "start_distance": float(np.linalg.norm(w0 - best)), "heterogeneity": float(max(heterogeneity, 0)),
        }  # fmt: skip
        bound = fedavg(**common, degrees=degrees.tolist())
        assert gap <= bound * (1 + 1e-9)
        none, all_ = (fedavg(**common, degrees=[d] * len(weights)) for d in (0.0, 1.0))
        assert none + (all_ - none) * float(weights @ degrees**2) == pytest.approx(bound, rel=1e-9)
        tightest = max(tightest, gap / bound)
    print(f"FedAvg: at most {tightest:.4f} of the bound")  # noqa: T201  how tight, for the reader


def test_the_papers_example_lost_most_of_its_heterogeneity():
    common = {
        "smoothness": 1.0, "mu": 0.1, "gradient_bound": 1.0, "local_steps": 20, "rounds": 1000,
        "sigmas": [0.0, 0.0], "weights": [0.5, 0.5], "start_distance": 0.0, "heterogeneity": 0.0,
    }  # fmt: skip
    ours = fedavg(**common, degrees=[0.5, 0.5])
    assert paper_fedavg(1.0, 0.1, 1.0, 20, 1000, 0.25) < ours / 1000


def test_scaffolds_step_holds_in_every_draw():
    tightest = 0.0
    for seed in range(1, 200, 4):
        rng = np.random.default_rng(seed)
        problem = Quadratics(rng)
        _, mixtures, _, _ = population(rng, problem.labels)
        mean = mixtures.mean(axis=0)
        degrees = np.abs(mixtures - mean).sum(axis=1) / 2
        E = int(rng.integers(1, 8))
        rate = float(rng.uniform(0.2, 1)) / (8 * problem.L * E)
        w0 = rng.normal(size=problem.dim) * 2
        paths, G = runs(problem, mixtures, w0, [rate] * E)
        A = sum(m * a for m, a in zip(mean, problem.A, strict=True))
        best = np.linalg.solve(A, sum(m * a @ b for m, a, b in zip(mean, problem.A, problem.b, strict=True)))
        after = np.mean([path[-1] for path in paths], axis=0)
        gap = mean @ problem.losses(w0) - mean @ problem.losses(best)
        bound = scaffold(
            smoothness=problem.L, mu=problem.mu, gradient_bound=G, dissimilarity=0.0, local_steps=E, local_rate=rate,
            global_rate=1.0, sampled=len(mixtures), sigma=0.0, degrees=degrees.tolist(),
            distance=float(np.linalg.norm(w0 - best)), gap=float(gap),
        )  # fmt: skip
        distance = np.sum((after - best) ** 2)
        assert distance <= bound * (1 + 1e-9)
        tightest = max(tightest, distance / bound)
    print(f"SCAFFOLD step: at most {tightest:.3f} of the bound")  # noqa: T201  how tight, for the reader


def test_the_form_with_two_learning_rates_holds_and_grows_with_the_degrees():
    tightest = 0.0
    for seed in range(1, 100, 4):
        rng = np.random.default_rng(seed)
        problem = Quadratics(rng)
        _, mixtures, _, _ = population(rng, problem.labels)
        weights = [1 / len(mixtures)] * len(mixtures)
        mean = np.mean(mixtures, axis=0)
        degrees = (np.abs(mixtures - mean).sum(axis=1) / 2).tolist()
        E, T = 3, 15
        rate = 1 / (20 * problem.L * E)
        w, G, norms, first = rng.normal(size=problem.dim) * 2, 0.0, [], None
        A = sum(m * a for m, a in zip(mean, problem.A, strict=True))
        best = np.linalg.solve(A, sum(m * a @ b for m, a, b in zip(mean, problem.A, problem.b, strict=True)))
        for _ in range(T):
            first = mean @ problem.losses(w) if first is None else first
            norms.append(float(np.sum((mean @ problem.gradients(w)) ** 2)))
            paths, greatest = runs(problem, mixtures, w, [rate] * E)
            G, w = max(G, greatest), np.mean([path[-1] for path in paths], axis=0)
        gap = float(first - mean @ problem.losses(best))
        two = two_learning_rates(
            smoothness=problem.L, gradient_bound=G, local_steps=E, rounds=T, local_rate=rate, global_rate=1.0,
            sigma=0.0, weights=weights, degrees=degrees, start_gap=gap,
        )  # fmt: skip
        assert min(norms) <= two * (1 + 1e-9)
        tightest = max(tightest, min(norms) / two)
        still = two_learning_rates(
            smoothness=problem.L, gradient_bound=G, local_steps=E, rounds=T, local_rate=rate, global_rate=1.0,
            sigma=0.0, weights=weights, degrees=[0.0] * len(mixtures), start_gap=gap,
        )  # fmt: skip
        assert still < two
    print(f"two learning rates: at most {tightest:.4f} of the bound")  # noqa: T201  how tight, for the reader


def anarchic_run(rng, problem, mixtures, rates, delay, sigma, rounds):
    """AFA-CD: each arrival brings its mean gradient over own local steps from an old model.

    Returns |grad f|^2 of each round, the local steps of each arrival, and the greatest gradient norm of a label.
    """
    local, outer = rates
    models, norms, steps, greatest = [rng.normal(size=problem.dim) * 2], [], [], 0.0
    for t in range(rounds):
        norms.append(float(np.sum((mixtures.mean(axis=0) @ problem.gradients(models[-1])) ** 2)))
        arrivals = rng.choice(len(mixtures), 3, replace=False)
        steps.append([int(k) for k in rng.integers(1, 5, 3)])
        brought = []
        for i, K in zip(arrivals, steps[-1], strict=True):
            w, total = models[max(0, t - int(rng.integers(0, delay + 1)))], 0.0
            for _ in range(K):
                gradients = problem.gradients(w)
                greatest = max(greatest, np.linalg.norm(gradients, axis=1).max())
                noisy = mixtures[i] @ gradients + rng.normal(size=w.shape) * sigma / np.sqrt(w.size)
                w, total = w - local * noisy, total + noisy
            brought.append(total / K)
        models.append(models[-1] - outer * local * np.mean(brought, axis=0))
    return norms, steps, greatest, models[0]


@pytest.mark.parametrize("sigma", [0.0, 0.5])
def test_anarchic_rounds_with_delays_and_partial_arrivals_stay_within_their_bound(sigma):
    tightest, delay, T = 0.0, 3, 40
    for seed in range(1, 250, 5):
        rng = np.random.default_rng(seed)
        problem = Quadratics(rng)
        _, mixtures, _, _ = population(rng, problem.labels)
        mean, M = mixtures.mean(axis=0), len(mixtures)
        degrees = (np.abs(mixtures - mean).sum(axis=1) / 2).tolist()
        rates = 0.01, float(rng.uniform(3, 11))
        norms, steps, G, w0 = anarchic_run(rng, problem, mixtures, rates, delay, sigma, T)
        A = sum(m * a for m, a in zip(mean, problem.A, strict=True))
        best = np.linalg.solve(A, sum(m * a @ b for m, a, b in zip(mean, problem.A, problem.b, strict=True)))
        common = {
            "smoothness": problem.L, "gradient_bound": G, "local_steps": steps, "local_rate": rates[0],
            "global_rate": rates[1], "delay": delay, "sigma": sigma, "weights": [1 / M] * M,
            "start_gap": float(mean @ problem.losses(w0) - mean @ problem.losses(best)),
        }  # fmt: skip
        bound = anarchic(**common, degrees=degrees)
        assert np.mean(norms) <= bound * (1 + 1e-9)
        assert anarchic(**common, degrees=[0.0] * M) < bound
        tightest = max(tightest, np.mean(norms) / bound)
    print(f"AFA-CD (sigma {sigma}): at most {tightest:.3f} of the bound")  # noqa: T201  how tight, for the reader
    assert tightest > 0.02


@pytest.mark.parametrize(
    "call",
    [
        lambda: step_sums([0.1], 0, 0),
        lambda: step_sums([5.0], 1, 0.5),
        lambda: step_sums([0.1], 1, 2),
        lambda: divergence_bound(1, [0.1], 1, [0.5, 0.6], [0.1, 0.1]),
        lambda: divergence_bound(1, [0.1], 1, [1.0], [1.1]),
        lambda: divergence_bound(float("nan"), [0.1], 1, [1.0], [1.0]),
        lambda: GapBound.strongly_convex(1, 1, 0.1, []),
        lambda: two_learning_rates(
            smoothness=1, gradient_bound=1, local_steps=5, rounds=1, local_rate=1, global_rate=1, sigma=0,
            weights=[1.0], degrees=[0.1], start_gap=1,
        ),
    ],
)  # fmt: skip
def test_preconditions_are_checked(call):
    with pytest.raises(FieldError):
        call()


def test_a_fitted_bound_covers_what_it_was_fitted_to():
    rng = np.random.default_rng(0)
    d, p = rng.uniform(0, 1, (2, 300))
    gaps = 4 * (d**2 + p**2) + 1 + rng.uniform(0, 1, 300)
    for coverage in (0.8, 0.95, 1.0):
        bound = GapBound.fit(d, p, gaps, coverage)
        assert (gaps <= bound.gap(d, p)).mean() >= coverage
    with pytest.raises(FieldError, match="grow"):
        GapBound.fit(d, p, 5 - 2 * (d**2 + p**2) + 0 * gaps)
