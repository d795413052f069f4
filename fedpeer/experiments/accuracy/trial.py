"""One start of one task: shadows, participants of foreign label mixes, and what is estimated of them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from fedpeer.evidence import EvidenceTask
from fedpeer.evidence.fitting import MIN_SHADOWS
from fedpeer.evidence.measuring import CHUNK, SHADOWS, Ensemble, begin_ensemble, fit_ensemble, observe_plans
from fedpeer.evidence.observing import Observation, Observer
from fedpeer.evidence.planning import Plan, anchor_count, flawed_count, most_shadows, scarcity
from fedpeer.experiments.accuracy.tasks import TASKS, AccuracyTask, Parts
from fedpeer.experiments.cells import Cell, Record
from fedpeer.learning.mean import weighted_mean
from fedpeer.learning.models import Weights
from fedpeer.learning.partition import (
    LabelMix,
    dirichlet,
    majority_minority,
    number_of_classes,
    toward_reference,
)
from fedpeer.learning.strata import Codes, reference_over
from fedpeer.learning.workloads.protocol import NewWeights, Workload, train_all
from mechanism.settlement import MICRO

#: Participants whose mean makes the start of a later round.
_WARMING = 6


#: Sound shadows that there are results for, where as many are trained: the fewest, those that 25, 50 and 100 trainings
#: of all kinds buy, and the default.
COUNTS = (MIN_SHADOWS, *(most_shadows(limit) for limit in (25, 50, 100)), SHADOWS)


def accuracy_cells(
    tasks: Sequence[str],
    seeds: Sequence[int],
    *,
    shadows: int = 200,
    participants: int = 48,
    starts: Sequence[str] = ("fresh", "half"),
) -> list[Cell]:
    """One cell a task, seed and start."""
    return [
        Cell(
            "accuracy",
            {"task": task, "seed": seed, "start": start, "shadows": shadows, "participants": participants},
            priority,
        )
        for priority, task in enumerate(tasks)
        for start in starts
        for seed in seeds
    ]


def accuracy_cell(parameters: Record, device: str) -> Record:
    """True degrees; by the number of shadows what is estimated of each participant; what it costs, in trainings."""
    task = TASKS[parameters["task"]]
    trial = Trial(task, int(parameters["seed"]), task.warm if parameters["start"] == "half" else 0)
    shadows = int(parameters["shadows"])
    with _Clock() as training:
        mixes, models = trial.participants(int(parameters["participants"]))
    with _Clock() as observing:
        observed = trial.observed(shadows)
    with _Clock() as measuring:
        seen = [observed.observer(model) for model in models]
    one = training.seconds / len(models)
    counts = sorted({count for count in COUNTS if count < shadows} | {shadows})
    return {
        "degree": [float(mix.degree) for mix in mixes],
        "training_seconds": one,
        "shadow_trainings": observing.seconds / shadows / one,
        "measuring_trainings": measuring.seconds / len(models) / one,
        "scarcity": scarcity(trial.evidence.codes, trial.recipe.samples),
        "counts": {str(count): _results(trial, observed, count, seen, one) for count in counts},
    }


def _results(
    trial: "Trial", observed: "Observed", count: int, seen: Sequence[Observation], training: float
) -> Record:
    """What the first `count` sound shadows, and a quarter as many flawed ones, say of the participants."""
    with _Clock() as fitting:
        ensemble = observed.ensemble(trial.evidence, count)
    with _Clock() as telling:
        found = [ensemble.of(each) for each in seen]
    return {
        "estimate": [f.degree_micro / MICRO for f in found],
        "half_width": ensemble.fitted.model.half_width / MICRO,
        "failed": [list(f.failed) for f in found],
        "fitting_trainings": fitting.seconds / training,
        "telling_trainings": telling.seconds / len(seen) / training,
    }


class _Clock:
    """Seconds of the processor that a block takes."""

    def __enter__(self) -> "_Clock":
        self._began = time.process_time()
        return self

    def __exit__(self, *failure: object) -> None:
        self.seconds = time.process_time() - self._began


@dataclass(frozen=True, eq=False)
class Observed:
    """A start's shadows, trained and observed once, of which any first ones make an ensemble."""

    observer: Observer
    plans: Sequence[Plan]
    seen: Sequence[Observation]

    def ensemble(self, task: EvidenceTask, count: int) -> Ensemble:
        """Of `count` sound ones: its anchors evenly among those that there are, and the first of all others."""
        anchors = anchor_count(count)
        there = 1 + max(plan.anchor for plan in self.plans if plan.anchor is not None)
        chosen = {round(k * (there - 1) / max(anchors - 1, 1)) for k in range(anchors)}
        left = {True: count - 2 * anchors, False: flawed_count(count)}
        pairs = []
        for plan, each in zip(self.plans, self.seen, strict=True):
            if plan.anchor in chosen:
                pairs.append((plan, each))
            elif plan.anchor is None and not plan.repeated and left[plan.sound]:
                left[plan.sound] -= 1
                pairs.append((plan, each))
        plans, seen = zip(*pairs, strict=True)
        return fit_ensemble(task, self.observer, plans, seen)


class Trial:
    """Data, start and participants of one seed.

    Args:
        warm: rounds of FedAvg before the start.
    """

    def __init__(self, task: AccuracyTask, seed: int, warm: int) -> None:
        self.seed = seed
        self.workload: Workload = task.workload()
        self.parts: Parts = task.parts(seed)
        self.recipe = task.recipe
        self.evidence = EvidenceTask(
            self.workload,
            task.recipe,
            self.parts.validation,
            self.parts.validation_codes,
            self.parts.strata,
            task.strata_are_classes,
        )
        self.reference = reference_over(self.parts.validation_codes, self.parts.strata)
        self._generator = np.random.default_rng([seed, 9])
        self.start: Weights = self.workload.build(seed)
        for _ in range(warm):
            _, models = self.participants(_WARMING)
            self.start = weighted_mean(models, [task.recipe.samples] * len(models))

    def observed(self, shadows: int) -> Observed:
        """So many sound shadows, and the flawed ones beside them."""
        task = self.evidence
        plans, observer = begin_ensemble(task, self.start, self.seed, shadows)
        seen: list[Observation] = []
        for first in range(0, len(plans), CHUNK):
            seen += observe_plans(task, observer, self.start, plans[first : first + CHUNK])
        return Observed(observer, plans, seen)

    def participants(self, count: int) -> tuple[list[LabelMix], list[NewWeights]]:
        """Their mixes, and what training from the start gives."""
        generator = self._generator
        mixes = [foreign_mix(k, self.reference, self.recipe.samples, generator) for k in range(count)]
        samples = [
            self.parts.pool.select(drawn(self.parts.pool_codes, mix.counts, generator)) for mix in mixes
        ]
        seeds = [int(seed) for seed in generator.integers(2**31, size=count)]
        return mixes, train_all(self.workload, self.start, samples, self.recipe, seeds)


def foreign_mix(
    k: int, reference: Sequence[Fraction], samples: int, generator: np.random.Generator
) -> LabelMix:
    """Mixes of other families than the shadows': softened Dirichlet, three strata over a rest, steeper tails."""
    strata = len(reference)
    if k % 3 == 0:
        start = dirichlet(reference, samples, alpha=0.3, generator=generator)
        return toward_reference(start, start.degree * Fraction(float(generator.uniform())))
    if k % 3 == 1:
        held = [int(s) for s in generator.choice(strata, min(3, strata - 1), replace=False)]
        return number_of_classes(reference, samples, labels=held, rest=float(generator.uniform()))
    majority = int(generator.integers(strata))
    degree = min(Fraction(float(generator.uniform(0, 0.9))), 1 - reference[majority])
    return majority_minority(reference, samples, majority=majority, degree=degree, tail=Fraction(17, 20))


def drawn(
    codes: Codes, counts: Sequence[int], generator: np.random.Generator, taken: Any | None = None
) -> Any:
    """Rows of a pool at `counts` over its strata; what a stratum does not have is repeated.

    Args:
        taken: how many others have each row: those with the fewest come first, (n,).
    """
    chosen = []
    for stratum, count in enumerate(counts):
        members = generator.permutation(np.flatnonzero(codes == stratum))
        if taken is not None:
            members = members[np.argsort(taken[members], kind="stable")]
        chosen += [members[:count], generator.choice(members, max(0, count - len(members)))]
    return generator.permutation(np.concatenate(chosen)).astype(np.int64)
