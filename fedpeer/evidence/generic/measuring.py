"""A start's ensemble of shadows, and what it says of a model.

ensemble = prepare_ensemble(task, start, seed)
found = ensemble.measure(weights)
found.degree_micro, found.lower_micro, found.upper_micro, found.failed
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedpeer.evidence.assessing import weights_digest
from fedpeer.evidence.errors import EvidenceError
from fedpeer.evidence.generic.fitting import Fitted, Table, fit_degree
from fedpeer.evidence.generic.observing import Observation, Observer, silent_tensors
from fedpeer.evidence.generic.planning import Plan, plan_shadows
from fedpeer.evidence.generic.screening import TRAINED, Screens, fit_screens
from fedpeer.evidence.shadows import CHUNK
from fedpeer.learning.models import Weights
from fedpeer.learning.samples import Samples
from fedpeer.learning.strata import Codes, reference_over
from fedpeer.learning.workloads.protocol import NewWeights, Workload, train_all
from mechanism.settlement import MICRO
from mechanism.terms import Recipe

#: Fewest samples of D_c of every stratum: each half needs some to train on and the rest to observe on.
MIN_STRATUM_SAMPLES = 10

#: Takes how many shadows are trained, and of how many.
Report = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class EvidenceTask:
    """What evidence is taken of.

    Attributes:
        workload: builds, trains and judges.
        recipe: the task's.
        validation: D_c.
        codes: the stratum of each of its samples.
        strata: S.
        strata_are_classes: whether stratum i is class i of the workload.

    Raises:
        EvidenceError: too few samples of a stratum.
    """

    workload: Workload
    recipe: Recipe
    validation: Samples
    codes: Codes
    strata: int
    strata_are_classes: bool

    def __post_init__(self) -> None:
        counts = np.bincount(self.codes, minlength=self.strata)
        if counts.min() < MIN_STRATUM_SAMPLES:
            raise EvidenceError(
                f"D_c has {counts.min()} samples of stratum {counts.argmin()}; expected at least {MIN_STRATUM_SAMPLES} "
                "of each"
            )

    @cached_property
    def reference(self) -> tuple[Fraction, ...]:
        return reference_over(self.codes, self.strata)

    def observer(self, start: Weights, seed: int, silent: frozenset[str] = frozenset()) -> Observer:
        return Observer(
            self.workload,
            start,
            self.validation,
            self.codes,
            self.reference,
            strata_are_classes=self.strata_are_classes,
            sketch_seed=seed,
            silent=silent,
        )


@dataclass(frozen=True, eq=False)
class Measured:
    """What the evidence says of one model.

    Attributes:
        features: all that the degree follows from, millionths, (S, m).
        degree_micro, lower_micro, upper_micro: the estimate and its interval, millionths.
        quality: about 1 for a model of enough distinct samples with right targets, 0 for one without.
        failed: the tests of `fedpeer.evidence.generic.screening` that it fails.
    """

    features: npt.NDArray[np.int64]
    degree_micro: int
    lower_micro: int
    upper_micro: int
    quality: float
    failed: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Ensemble:
    """What the shadows of one start say.

    Attributes:
        observer: of models from that start.
        names: of the observed features.
        fitted: maps, in units and in integers.
        screens: tests.
    """

    observer: Observer
    fitted: Fitted
    screens: Screens

    def measure(self, weights: Weights) -> Measured:
        """Of a model that was trained on samples of nobody's."""
        return self.of(self.observer(weights))

    def of(self, seen: Observation) -> Measured:
        maps, model = self.fitted.maps, self.fitted.model
        observed = seen.features[None] / MICRO
        vectors = {name: part[None] for name, part in seen.vectors.items()}
        features = np.rint(maps.features(observed, vectors, model.reference)[0] * MICRO).astype(np.int64)
        rows = features.tolist()
        degree = model.degree_micro(rows)
        shares = np.array(model.shares(rows)) / MICRO
        quality = float(self.screens.quality(np.array(model.regressors(rows)) / MICRO))
        over = self.screens.scores(seen, shares) > self.screens.limits()
        failed = [name for name, fails in zip(TRAINED, over, strict=True) if fails]
        if quality < self.screens.least_quality:
            failed.append("samples")
        return Measured(
            features,
            degree,
            max(degree - model.half_width, 0),
            min(degree + model.half_width, MICRO),
            quality,
            tuple(failed),
        )


def prepare_ensemble(
    task: EvidenceTask,
    start: Weights,
    seed: int,
    *,
    shadows: int = 100,
    executor: Executor | None = None,
    report: Report = lambda trained, of: None,
) -> Ensemble:
    """Trains shadows from `start` and fits what they support.

    Args:
        seed: secret until the task is over: those who know it know the shadows.
        shadows: sound ones; a quarter as many flawed ones come on top.
        executor: trains them, where the task can be sent to it; None trains them here.

    Raises:
        EvidenceError: too few shadows, or more than a tenth of them diverged.
    """
    # The plans depend on the start, so that no round's shadows tell of another's.
    plans = plan_shadows(
        task.codes,
        task.reference,
        task.recipe.samples,
        shadows,
        (seed, int(weights_digest(start)[:16], 16)),
    )
    first = _trained(task, start, plans[:1])
    silent = silent_tensors(task.workload, [start, *first], task.validation)
    observer = task.observer(start, seed, silent)
    chunks = [plans[i : i + CHUNK] for i in range(0, len(plans), CHUNK)]
    seen: list[Observation] = []
    if executor is None:
        for chunk in chunks:
            seen += observe_plans(task, observer, start, chunk)
            report(len(seen), len(plans))
    else:
        for future in [executor.submit(observe_plans, task, observer, start, chunk) for chunk in chunks]:
            seen += future.result()
            report(len(seen), len(plans))
    return fit_ensemble(observer, plans, seen, task.reference)


def fit_ensemble(
    observer: Observer, plans: Sequence[Plan], seen: Sequence[Observation], reference: tuple[Fraction, ...]
) -> Ensemble:
    """What observed shadows support. Raises EvidenceError as `prepare_ensemble`."""
    finite = [(plan, each) for plan, each in zip(plans, seen, strict=True) if each.finite]
    if len(finite) < 0.9 * len(plans):
        raise EvidenceError(
            f"{len(plans) - len(finite)} of {len(plans)} shadow models diverged under the task's recipe, as "
            "participants' models will; choose a smaller learning rate"
        )
    sound = [pair for pair in finite if pair[0].sound]
    flawed = [pair for pair in finite if not pair[0].sound]
    table = _table(sound, observer.features, reference)
    fitted = fit_degree(table)
    other = _table(flawed, observer.features, reference) if flawed else None
    return Ensemble(observer, fitted, fit_screens([each for _, each in sound], fitted, table, other))


def observe_plans(
    task: EvidenceTask, observer: Observer, start: Weights, plans: Sequence[Plan]
) -> list[Observation]:
    """Trains the shadows of `plans` and observes each on the samples of D_c that it has not seen."""
    return [
        observer(weights, plan.rows)
        for plan, weights in zip(plans, _trained(task, start, plans), strict=True)
    ]


def _trained(task: EvidenceTask, start: Weights, plans: Sequence[Plan]) -> list[NewWeights]:
    samples = [
        task.validation.select(plan.rows, task.validation.targets[plan.targets_from]) for plan in plans
    ]
    return train_all(task.workload, start, samples, task.recipe, [plan.seed for plan in plans])


def _table(
    pairs: Sequence[tuple[Plan, Observation]], names: Sequence[str], reference: tuple[Fraction, ...]
) -> Table:
    shares = np.array([[float(p) for p in plan.mix.distribution] for plan, _ in pairs])
    halves = np.array([plan.half for plan, _ in pairs])
    return Table.of([each for _, each in pairs], names, shares, halves, reference)
