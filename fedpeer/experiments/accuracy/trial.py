"""One start of one task: shadows, participants of foreign label mixes, and what is estimated of them."""

import time
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from fedpeer.evidence.generic import EvidenceTask, prepare_ensemble
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


def accuracy_cells(
    tasks: Sequence[str],
    seeds: Sequence[int],
    *,
    shadows: int = 100,
    participants: int = 48,
    starts: Sequence[str] = ("fresh", "half"),
) -> list[Cell]:
    """One cell a task, seed and start."""
    return [
        Cell(
            "accuracy",
            {"task": task, "seed": seed, "start": start, "shadows": shadows, "participants": participants},
        )
        for task in tasks
        for start in starts
        for seed in seeds
    ]


def accuracy_cell(parameters: Record, device: str) -> Record:
    """True degrees with what is estimated of each participant, and what the evidence cost, in trainings."""
    task = TASKS[parameters["task"]]
    trial = Trial(task, int(parameters["seed"]), task.warm if parameters["start"] == "half" else 0)
    began = time.process_time()
    mixes, models = trial.participants(int(parameters["participants"]))
    training = (time.process_time() - began) / len(models)
    began = time.process_time()
    ensemble = prepare_ensemble(trial.evidence, trial.start, trial.seed, shadows=int(parameters["shadows"]))
    preparing = time.process_time() - began
    began = time.process_time()
    found = [ensemble.measure(model) for model in models]
    measuring = (time.process_time() - began) / len(models)
    return {
        "degree": [float(mix.degree) for mix in mixes],
        "estimate": [f.degree_micro / MICRO for f in found],
        "half_width": ensemble.fitted.model.half_width / MICRO,
        "failed": [list(f.failed) for f in found],
        "training_seconds": training,
        "preparing_trainings": preparing / training,
        "measuring_trainings": measuring / training,
    }


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

    def participants(self, count: int) -> tuple[list[LabelMix], list[NewWeights]]:
        """Their mixes, and what training from the start gives."""
        generator = self._generator
        mixes = [foreign_mix(k, self.reference, self.recipe.samples, generator) for k in range(count)]
        samples = [
            self.parts.pool.select(drawn(self.parts.pool_codes, mix.counts, generator)) for mix in mixes
        ]
        seeds = [int(seed) for seed in generator.integers(2**31, size=count)]
        models: list[NewWeights] = []
        for first in range(0, count, 8):  # a stack at a time: few models are held at once
            part = slice(first, first + 8)
            models += train_all(self.workload, self.start, samples[part], self.recipe, seeds[part])
        return mixes, models


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


def drawn(codes: Codes, counts: Sequence[int], generator: np.random.Generator) -> Any:
    """Rows of a pool at `counts` over its strata; what a stratum does not have is repeated."""
    chosen = []
    for stratum, count in enumerate(counts):
        members = generator.permutation(np.flatnonzero(codes == stratum))
        chosen += [members[:count], generator.choice(members, max(0, count - len(members)))]
    return generator.permutation(np.concatenate(chosen)).astype(np.int64)
