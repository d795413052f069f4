"""Who takes part moves the models that are sent out: it is held against what the others alone would have sent."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from torch import nn

from fedpeer.evidence import EvidenceTask, ShadowEvidence
from fedpeer.evidence.sent import Broadcast, SentModels
from fedpeer.learning.datasets import load_splits
from fedpeer.learning.mean import weighted_mean
from fedpeer.learning.partition import draw_rows, majority_minority
from fedpeer.learning.samples import of_labelled
from fedpeer.learning.workloads.protocol import train_all
from fedpeer.learning.workloads.torch import TorchWorkload
from fedpeer.protocol.submission import Submission
from mechanism.terms import Recipe
from tests.fedpeer.evidence.population import UNIFORM

Model = Mapping[str, Any]

RECIPE = Recipe(
    "custom", epochs=20, batch_size=32, optimizer="adam", learning_rate=Decimal("0.005"), samples=100
)
SAMPLES = {"ada": 100, "bob": 50, "cyd": 75}


def perceptron() -> TorchWorkload:
    return TorchWorkload(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), classes=10
    )


def evidence_task() -> EvidenceTask:
    validation = of_labelled(load_splits("digits", seed=0).validation)
    return EvidenceTask(
        perceptron(), RECIPE, validation, validation.targets, 10, strata_are_classes=True, reference=UNIFORM
    )


def moved(start: Model, generator: np.random.Generator) -> dict[str, Any]:
    return {
        name: (part + 0.01 * generator.standard_normal(part.shape)).astype(np.float32)
        for name, part in start.items()
    }


def merged(parts: Mapping[str, tuple[Model, int]]) -> dict[str, Any]:
    models, samples = zip(*parts.values(), strict=True)
    return weighted_mean(models, samples)


def rounds(names: Sequence[str], scale: float = 1.0) -> tuple[list[Broadcast], Model]:
    """Three rounds, and the start of the fourth: `scale` times the way to the mean each."""
    generator = np.random.default_rng(1)
    start: Model = perceptron().build(0)
    sent = []
    for number in range(1, 4):
        parts = {name: (moved(start, generator), SAMPLES[name]) for name in SAMPLES}
        parts = {name: part for name, part in parts.items() if name in names}
        sent.append(Broadcast(f"round {number}", start, parts, plain=scale == 1))
        mean = merged(parts)
        start = {name: start[name] + np.float32(scale) * (mean[name] - start[name]) for name in start}
    return sent, start


@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_without_a_participant_the_steps_are_the_others(scale: float) -> None:
    task = evidence_task()
    sent, start = rounds(list(SAMPLES), scale)
    seen = SentModels(task.observer(start, 3), sent)
    found = seen.without("ada")
    # What the others alone add in each round, from that round's start.
    steps = []
    for broadcast in sent:
        others = {name: part for name, part in broadcast.merged.items() if name != "ada"}
        observer = task.observer(broadcast.weights(), 3)
        steps.append(observer.sketch(merged(others)) * scale)
    for place, direction in enumerate(found):
        wanted = -np.sum(steps[place:], axis=0)
        assert np.linalg.norm(direction - wanted) <= 0.03 * np.linalg.norm(wanted)
    assert np.allclose(seen.without("eve"), seen.directions)
    assert not np.allclose(found, seen.directions)


def test_a_round_that_one_made_alone_has_no_step_of_others() -> None:
    task = evidence_task()
    sent, start = rounds(["ada"])
    assert not np.any(SentModels(task.observer(start, 3), sent).without("ada"))


@pytest.mark.arithmetic
@pytest.mark.extended
def test_honest_participants_that_keep_their_data_from_round_to_round_are_not_refused() -> None:
    workload, refused = perceptron(), []
    splits = load_splits("digits", seed=2)
    train = of_labelled(splits.train)
    generator = np.random.default_rng(2)
    mixes = [
        majority_minority(UNIFORM, RECIPE.samples, majority=int(generator.integers(10)), degree=degree)
        for degree in (Fraction(1, 10), Fraction(3, 10), Fraction(6, 10))
    ]
    data = [train.select(draw_rows(train.targets, mix.counts, generator)) for mix in mixes]
    validation = of_labelled(splits.validation)
    task = EvidenceTask(
        workload, RECIPE, validation, validation.targets, 10, strata_are_classes=True, reference=UNIFORM
    )
    evidence = ShadowEvidence(task, seed=2, shadows=50)
    start: Model = workload.build(2)
    sent: list[Broadcast] = []
    for number in range(1, 5):
        models = train_all(workload, start, data, RECIPE, [10 * number + k for k in range(3)])
        submissions = [
            Submission(f"p{k}", model, bytes([k]) * 32, RECIPE.samples, mix.degree, k)
            for k, (model, mix) in enumerate(zip(models, mixes, strict=True))
        ]
        found = evidence.assess(evidence.prepare(start, number, sent), submissions, sent)
        refused += [(number, a.participant_id) for a in found.assessments if not a.scored]
        parts: dict[str, Any] = {f"p{k}": (model, RECIPE.samples) for k, model in enumerate(models)}
        sent.append(Broadcast(f"round {number}", start, parts))
        start = merged(parts)
    assert len(refused) <= 1, refused
