"""Features of a model, whatever its losses measure."""

from decimal import Decimal

import numpy as np
import pytest
import torch
from torch import nn

from fedpeer.evidence.errors import EvidenceError
from fedpeer.evidence.measuring import EvidenceTask, prepare_ensemble
from fedpeer.evidence.observing import LOSS_CAP, Observer
from fedpeer.evidence.planning import trainings
from fedpeer.learning.samples import Samples
from fedpeer.learning.strata import quantiles_of, strata_of
from fedpeer.learning.workloads.protocol import Judged
from fedpeer.learning.workloads.torch import TorchWorkload
from mechanism.settlement import MICRO
from mechanism.terms import Recipe

RECIPE = Recipe(
    "custom", epochs=8, batch_size=16, optimizer="adam", learning_rate=Decimal("0.02"), samples=60
)

CLASSES, WIDTH = 4, 6


def table(n: int, seed: int = 0) -> Samples:
    generator = np.random.default_rng(seed)
    labels = generator.integers(CLASSES, size=n)
    inputs = np.eye(CLASSES, WIDTH)[labels] * 1.5 + generator.normal(size=(n, WIDTH)) * 0.7
    return Samples(inputs.astype(np.float32), labels.astype(np.int64))


def classifier() -> TorchWorkload:
    return TorchWorkload(lambda: nn.Linear(WIDTH, CLASSES), classes=CLASSES)


def observer(workload: TorchWorkload, samples: Samples, codes: np.ndarray, strata: int) -> Observer:
    task = EvidenceTask(workload, RECIPE, samples, codes, strata, workload.classes == strata)
    return task.observer(workload.build(1), 5)


def test_features_do_not_depend_on_the_unit_of_the_loss() -> None:
    samples = Samples(table(200).inputs, np.random.default_rng(1).normal(size=200).astype(np.float32))
    kind = quantiles_of(samples.targets, 4)
    strata = strata_of(kind, kind.names(4))
    small = TorchWorkload(lambda: nn.Linear(WIDTH, 1), lambda out, y: (out[:, 0] - y) ** 2)
    large = TorchWorkload(lambda: nn.Linear(WIDTH, 1), lambda out, y: 1e6 * (out[:, 0] - y) ** 2)
    weights = small.build(2)
    found = [observer(w, samples, strata.of(samples), 4)(weights) for w in (small, large)]
    assert np.abs(found[0].features - found[1].features).max() <= 2


def test_a_model_that_overflows_has_features_and_is_not_finite() -> None:
    samples = table(120)
    workload = classifier()
    watch = observer(workload, samples, samples.targets, CLASSES)
    judged = Judged(np.full(120, np.nan), np.full((120, CLASSES), np.nan))
    found = watch.observe(judged, workload.build(1))
    assert (found.features[:, watch.features.index("loss")] == LOSS_CAP * MICRO).all()
    assert not found.finite


def test_what_a_shadow_has_seen_does_not_count() -> None:
    samples, workload = table(200), classifier()
    watch = observer(workload, samples, samples.targets, CLASSES)
    weights = workload.build(2)
    judged = workload.judge(weights, samples)
    seen = np.arange(0, 200, 3)
    spoilt = judged.losses.copy()
    spoilt[seen] = 0
    spoilt_outputs = judged.outputs.copy()  # type: ignore[union-attr]
    spoilt_outputs[seen] = -1
    one = watch.observe(judged, weights, seen)
    other = watch.observe(Judged(spoilt, spoilt_outputs), weights, seen)
    assert np.array_equal(one.features, other.features)
    assert not np.array_equal(one.features, watch.observe(judged, weights).features)


def test_strata_that_are_no_classes_have_no_class_features() -> None:
    samples = table(200)
    codes = np.arange(200) % CLASSES
    plain = EvidenceTask(classifier(), RECIPE, samples, codes, CLASSES, False).observer(
        classifier().build(1), 5
    )
    assert "own" not in plain.features
    assert "own" in observer(classifier(), samples, samples.targets, CLASSES).features


def test_few_samples_of_a_stratum_are_refused() -> None:
    samples = table(60)
    codes = np.zeros(60, dtype=np.int64)
    codes[:3] = 1
    with pytest.raises(EvidenceError, match="3 samples of stratum 1; expected at least 10"):
        EvidenceTask(classifier(), RECIPE, samples, codes, 2, False)


def trained(task: EvidenceTask, start: dict, pool: Samples, share: float, seed: int) -> dict:
    """Weights after training on samples of which `share` have label 0, the rest evenly the others."""
    generator = np.random.default_rng(seed)
    counts = np.full(CLASSES, round(60 * (1 - share) / (CLASSES - 1)))
    counts[0] = 60 - counts[1:].sum()
    rows = np.concatenate(
        [generator.choice(np.flatnonzero(pool.targets == c), n, replace=False) for c, n in enumerate(counts)]
    )
    return task.workload.train(start, pool.select(rows), RECIPE, seed)


@pytest.mark.arithmetic
def test_an_ensemble_tells_skewed_from_balanced_and_untrained_from_trained() -> None:
    samples, workload = table(400), classifier()
    task = EvidenceTask(workload, RECIPE, samples, samples.targets, CLASSES, True)
    start, pool = workload.build(1), table(2_000, seed=9)
    told: list[tuple[int, int]] = []
    ensemble = prepare_ensemble(task, start, 3, shadows=40, report=lambda done, of: told.append((done, of)))
    assert told[-1] == (trainings(40), trainings(40))
    degrees = []
    for share in (0.25, 0.5, 0.9):
        found = [ensemble.measure(trained(task, start, pool, share, seed)) for seed in range(5)]
        degrees.append(np.mean([f.degree_micro for f in found]) / MICRO)
        assert abs(degrees[-1] - (share - 0.25)) < 0.15
        assert sum(bool(f.failed) for f in found) <= 1
    assert degrees == sorted(degrees)
    assert "norm" in ensemble.measure(start).failed
    noise = {
        n: a + torch.randn(a.shape, generator=torch.Generator().manual_seed(1)).numpy()
        for n, a in start.items()
    }
    assert ensemble.measure(noise).failed


@pytest.mark.arithmetic
def test_the_same_seed_gives_the_same_evidence() -> None:
    samples, workload = table(300), classifier()
    task = EvidenceTask(workload, RECIPE, samples, samples.targets, CLASSES, True)
    start = workload.build(1)
    one, other = (prepare_ensemble(task, start, 3, shadows=30) for _ in range(2))
    assert one.fitted.model == other.fitted.model
    model = workload.build(7)
    assert np.array_equal(one.measure(model).features, other.measure(model).features)
