"""Phi and Upsilon of a task, measured: how far apart two participants' models are on the learner's data.

    |F_c(w^k) - F_c(w^k')| <= Phi (delta_k^2 + delta_k'^2) + Upsilon

F_c is the mean loss under the reference: the mean over a stratum's samples, weighted by p^(c). Of a shadow it is taken
over the samples of D_c that the shadow was not trained on. The two shadows of a pair come from different halves of
D_c, so that they share no sample, as two participants' models share none. All shadows start from one model, the task's
first: in later rounds models start closer to the optimum, where gaps are smaller.

1. Half of the shadows fit the line: the 0.95-quantile regression of the gaps of all their pairs, Phi0, Upsilon0 >= 0.
2. The others, in pairs of which no two share a shadow, give kappa: the conformal 0.95-quantile of gap / line.
3. Phi = kappa Phi0; Upsilon = kappa Upsilon0, and at least the standard error of a gap on D_c, which tells no less.

What holds: if the two participants of a pair are drawn like two shadows of different halves, independently of these,
their gap lies below the line with probability at least 0.95, over the draw of all. The quantile needs 19 pairs, which
78 shadows have. It says nothing about degrees that no shadow has.

Sources: Koenker and Bassett 1978, regression quantiles; Papadopoulos et al. 2002, normalised conformal prediction.
"""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import product
from time import perf_counter
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from fedpeer.evidence.errors import EvidenceError
from fedpeer.evidence.measuring import EvidenceTask, Report, portions
from fedpeer.evidence.planning import Plan, plan_shadows
from fedpeer.evidence.regression import conformal_quantile
from fedpeer.evidence.sketch import Array
from fedpeer.learning.models import Weights
from fedpeer.learning.workloads.protocol import train_all

#: Rate at which a fresh pair is covered.
COVERAGE = 0.95

#: Fewest disjoint pairs with a conformal 0.95-quantile, shadows of which half are in so many, and pairs for the line.
MIN_HELD, MIN_CALIBRATION_SHADOWS, MIN_FITTED = 19, 78, 200

#: Most shadows: the line of their 62,500 pairs takes minutes already.
MAX_CALIBRATION_SHADOWS = 1000


@dataclass(frozen=True, eq=False)
class GapShadows:
    """Trained shadows, one an entry.

    Attributes:
        degrees: delta of what each was trained on.
        losses: F_c, on samples that it was not trained on.
        errors: standard error of that mean on D_c.
        halves: of D_c, 0 or 1.
    """

    degrees: Array
    losses: Array
    errors: Array
    halves: Array

    def rows(self, chosen: Array) -> "GapShadows":
        return GapShadows(self.degrees[chosen], self.losses[chosen], self.errors[chosen], self.halves[chosen])


@dataclass(frozen=True)
class MeasuredGaps:
    """The calibrated bound and what it rests on.

    Attributes:
        phi, upsilon: units of the loss, above 0.
        kappa: the conformal factor in them.
        shadows: that were trained and did not diverge; fitted, held: pairs of steps 1 and 2.
        covered: share of all held-out pairs, disjoint or not, below the line.
        slack: the line over the gap at the latter's 0.95-quantile, over all held-out pairs: what the bound is loose by.
        training_seconds: of one model by the recipe, where the shadows were trained.
    """

    phi: float
    upsilon: float
    kappa: float
    shadows: int
    fitted: int
    held: int
    covered: float
    slack: float
    training_seconds: float


def measure_gaps(
    task: EvidenceTask,
    start: Weights,
    seed: int,
    *,
    shadows: int = 100,
    executor: Executor | None = None,
    report: Report = lambda trained, of: None,
) -> MeasuredGaps:
    """Trains `shadows` models from `start`, and bounds their gaps.

    Args:
        executor: trains them, where the task can be sent to it; None trains them here.

    Raises:
        EvidenceError: too few shadows, more than a tenth of them diverged, or gaps that do not grow with the degrees.
    """
    plans = calibration_plans(task, seed, shadows)
    began = perf_counter()
    _judged(task, start, plans[:1])
    alone = perf_counter() - began
    chunks = portions(plans)
    rows: list[tuple[float, float]] = []
    if executor is None:
        began = perf_counter()
        for chunk in chunks:
            rows += _judged(task, start, chunk)
            report(len(rows), len(plans))
        alone = min(alone, (perf_counter() - began) / len(plans))
    else:
        for future in [executor.submit(_judged, task, start, chunk) for chunk in chunks]:
            rows += future.result()
            report(len(rows), len(plans))
    losses, errors = np.array(rows, dtype=np.float64).T
    finite = np.isfinite(losses) & np.isfinite(errors)
    if finite.mean() < 0.9:
        raise EvidenceError(
            f"{int((~finite).sum())} of {len(plans)} shadow models diverged under the task's recipe, as participants' "
            "models will; choose a smaller learning rate"
        )
    degrees = np.array([float(plan.mix.degree) for plan in plans])
    halves = np.array([plan.half for plan in plans])
    return bound_gaps(GapShadows(degrees, losses, errors, halves).rows(finite), seed, alone)


def calibration_plans(task: EvidenceTask, seed: int, shadows: int) -> list[Plan]:
    """What the models of a calibration are trained on. Raises EvidenceError: too few, too few of a half, too many."""
    if shadows < MIN_CALIBRATION_SHADOWS:
        raise EvidenceError(
            f"{shadows} shadows for a calibration; expected at least {MIN_CALIBRATION_SHADOWS}: with fewer there are "
            f"too few pairs for a bound that holds at {COVERAGE:.0%}"
        )
    if shadows > MAX_CALIBRATION_SHADOWS:
        raise EvidenceError(
            f"{shadows} shadows for a calibration; expected at most {MAX_CALIBRATION_SHADOWS}: the line of more pairs "
            "would take hours"
        )
    planned = plan_shadows(task.codes, task.reference, task.recipe.samples, shadows, (seed,))
    plans = [plan for plan in planned if plan.sound]
    second = sum(plan.half for plan in plans)
    _split(len(plans) - second, second)
    return plans


def _split(ours: int, theirs: int) -> int:
    """How many of each half's shadows make pairs for kappa. Raises EvidenceError: too few for them and the line."""
    few = max(min(ours, theirs) // 2, MIN_HELD)
    if min(ours, theirs) < few or (ours - few) * (theirs - few) < MIN_FITTED:
        raise EvidenceError(
            f"{ours} and {theirs} shadows of the two halves of D_c; expected enough for {MIN_HELD} pairs of them, and "
            f"{MIN_FITTED} of the others: train more"
        )
    return few


def bound_gaps(trained: GapShadows, seed: int, training_seconds: float = 0.0) -> MeasuredGaps:
    """Phi and Upsilon from trained shadows; `seed` splits and pairs them. Raises EvidenceError as `measure_gaps`."""
    generator = np.random.default_rng((seed, len(trained.losses)))
    ours, theirs = (generator.permutation(np.flatnonzero(trained.halves == half)) for half in (0, 1))
    few = _split(len(ours), len(theirs))
    kept, fit = (ours[:few], theirs[:few]), np.array(list(product(ours[few:], theirs[few:])))
    x, gaps = _pairs(trained, fit)
    phi, upsilon = quantile_line(x, gaps, COVERAGE)
    if phi <= 0:
        raise EvidenceError(
            "two models' losses on D_c do not lie further apart the further their data are from the reference, so that "
            "no effort could be paid for: train longer by the recipe, choose strata that matter to the model, or look "
            "at D_c"
        )
    x, gaps = _pairs(trained, np.stack(kept, axis=1))
    noise = float(np.sqrt(2) * np.median(trained.errors))
    upsilon = max(upsilon, noise)
    kappa = conformal_quantile(gaps / (phi * x + upsilon), 1 - COVERAGE)
    phi, upsilon = kappa * phi, max(kappa * upsilon, noise)
    x, gaps = _pairs(trained, np.array(list(product(*kept))))
    line = phi * x + upsilon
    loose = float(np.quantile(line, COVERAGE) / max(float(np.quantile(gaps, COVERAGE)), 1e-300))
    return MeasuredGaps(
        phi,
        upsilon,
        kappa,
        len(trained.losses),
        len(fit),
        few,
        float((gaps <= line).mean()),
        loose,
        training_seconds,
    )


def quantile_line(x: Array, y: Array, rate: float) -> tuple[float, float]:
    """The line a x + b, a and b >= 0, that minimizes the mean of rate (y - a x - b)+ + (1 - rate) (a x + b - y)+.

    A linear program: y - a x - b = u - v, u, v >= 0.
    """
    count = len(x)
    cost = np.concatenate([[0.0, 0.0], np.full(count, rate), np.full(count, 1 - rate)])
    eye, line = sparse.eye(count), sparse.csr_matrix(np.column_stack([x, np.ones(count)]))
    equal: Any = sparse.hstack([line, eye, -eye])
    found = linprog(cost, A_eq=equal, b_eq=y, method="highs")
    if found.status != 0 or found.x is None:
        raise EvidenceError(f"no line fits the gaps of {count} pairs: {found.message}")
    return float(found.x[0]), float(found.x[1])


def _pairs(trained: GapShadows, pairs: Array) -> tuple[Array, Array]:
    """delta_k^2 + delta_k'^2 and the gap of each pair."""
    squares, losses = np.square(trained.degrees)[pairs], trained.losses[pairs]
    return squares.sum(axis=1), np.abs(losses[:, 0] - losses[:, 1])


def _judged(task: EvidenceTask, start: Weights, plans: Sequence[Plan]) -> list[tuple[float, float]]:
    """F_c of each plan's model on what it has not seen, and the standard error of that."""
    samples = [
        task.validation.select(plan.rows, task.validation.targets[plan.targets_from]) for plan in plans
    ]
    models = train_all(task.workload, start, samples, task.recipe, [plan.seed for plan in plans])
    return [
        _reference_loss(task, task.workload.judge(weights, task.validation).losses, plan)
        for weights, plan in zip(models, plans, strict=True)
    ]


def _reference_loss(task: EvidenceTask, losses: Array, plan: Plan) -> tuple[float, float]:
    unseen = np.ones(len(losses), dtype=bool)
    unseen[plan.rows] = False
    codes, values = task.codes[unseen], losses[unseen]
    counts = np.bincount(codes, minlength=task.strata)
    weights = np.array([float(q) for q in task.reference])
    sums, squares = (np.bincount(codes, part, task.strata) for part in (values, values**2))
    means = sums / counts
    variances = np.maximum(squares / counts - means**2, 0)
    return float(weights @ means), float(np.sqrt(weights**2 @ (variances / counts)))
