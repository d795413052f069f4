"""A round's evidence from losses alone: a measured target, strata by its quantiles."""

import hashlib
import json
import pickle
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from fedpeer.evidence import EvidenceError, EvidenceTask, ShadowEvidence
from fedpeer.evidence.assessing import replay
from fedpeer.evidence.influence import LEAST_LOSS, Aggregate
from fedpeer.learning.datasets import load_splits
from fedpeer.learning.models import Weights, initial_weights
from fedpeer.learning.samples import Samples
from fedpeer.learning.strata import quantiles_of, strata_of
from fedpeer.learning.workloads.loading import WorkloadSource
from fedpeer.learning.workloads.protocol import Judged
from fedpeer.protocol.submission import Submission
from mechanism.canonical import canonical_bytes
from mechanism.terms import Recipe
from tests.fedpeer.evidence.population import RECIPE

RIDGE = Recipe("custom", 20, 16, "sgd", Decimal("0.02"), 80)


class LossesAlone:
    """A linear model of a measured target that tells its losses and nothing else."""

    classes = None
    trainable = ("w",)

    def build(self, seed: int) -> dict[str, np.ndarray]:
        return {"w": np.random.default_rng(seed).normal(size=9).astype(np.float32) * np.float32(0.1)}

    def train(self, weights: Weights, samples: Samples, recipe: Recipe, seed: int) -> dict[str, np.ndarray]:
        generator, w = np.random.default_rng(seed), weights["w"].astype(np.float64)
        x, y = np.asarray(samples.inputs), samples.targets
        for _ in range(recipe.epochs):
            for rows in np.array_split(generator.permutation(len(y)), len(y) // recipe.batch_size):
                w = w - float(recipe.learning_rate) * 2 * x[rows].T @ (x[rows] @ w - y[rows]) / len(rows)
        return {"w": w.astype(np.float32)}

    def judge(self, weights: Weights, samples: Samples) -> Judged:
        return Judged((np.asarray(samples.inputs) @ weights["w"] - samples.targets) ** 2)


def table(count: int, seed: int) -> Samples:
    """A target that bends where a linear model cannot follow, so that every stratum pulls its own way."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(count, 8))
    y = x[:, 0] + 0.6 * np.maximum(x[:, 0], 0) ** 2 + 0.2 * generator.normal(size=count)
    return Samples(np.concatenate([x, np.ones((count, 1))], axis=1), y)


def test_a_measured_target_is_verified_and_replayed() -> None:
    validation, pool = table(800, 0), table(4_000, 1)
    strata = strata_of(quantiles_of(validation.targets, 4), ())
    task = EvidenceTask(LossesAlone(), RIDGE, validation, strata.of(validation), 4, False)
    evidence = ShadowEvidence(task, seed=3, shadows=40, scores=["leave_one_out", "shapley"])
    start, codes = task.workload.build(0), strata.of(pool)
    ensemble = evidence.prepare(start, 1)
    generator, submissions = np.random.default_rng(2), []
    for k, share in enumerate((0.25, 0.25, 0.9)):
        counts = [round(80 * share), *[round(80 * (1 - share) / 3)] * 3]
        rows = np.concatenate(
            [generator.choice(np.flatnonzero(codes == s), n, replace=False) for s, n in enumerate(counts)]
        )
        model = task.workload.train(start, pool.select(rows), RIDGE, k)
        digest = hashlib.sha256(bytes([k])).digest()
        submissions.append(Submission(f"p{k}", model, digest, 80, Fraction(0), k))
    copy = replace(submissions[0], participant_id="copy", order=9, model_sha256=bytes(32))
    echo = Submission("echo", start, bytes([1]) * 32, 80, Fraction(0), 10)
    found = evidence.assess(ensemble, [*submissions, copy, echo])
    by_id = {a.participant_id: a for a in found.assessments}
    assert by_id["p0"].scored
    assert (by_id["p2"].verified_micro or 0) > (by_id["p0"].verified_micro or 0) + 200_000
    assert [v.screen for v in by_id["copy"].verdicts if not v.passed] == ["overlap"]
    assert not by_id["echo"].scored
    assert set(by_id["p0"].scores) == {"leave_one_out", "shapley"}
    assert replay(json.loads(canonical_bytes(found.record))) == found.assessments


def test_rules_on_agreement_are_refused_without_classes() -> None:
    samples = table(200, 0)
    strata = strata_of(quantiles_of(samples.targets, 4), ())
    task = EvidenceTask(LossesAlone(), RIDGE, samples, strata.of(samples), 4, False)
    with pytest.raises(EvidenceError, match="the rule dmi pays on classes that models agree on"):
        ShadowEvidence(task, seed=0, scores=["dmi"])


class Constant:
    """Every sample's loss is the model's only weight."""

    classes, trainable = None, ("w",)

    def judge(self, weights: Weights, samples: Samples) -> Judged:
        return Judged(np.full(len(samples), float(weights["w"][0])))


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ((1.0, 3.0), (-2 / 6, 1.0)),  # over the mean of the other: 1 + 1 and 3 - 1
        ((0.0, 0.02), (-0.01 / LEAST_LOSS, 0.01 / LEAST_LOSS)),
        ((-2.0, -1.0), (-0.5, 0.25)),
    ],
)
def test_harm_makes_sense_near_zero_and_below(
    losses: tuple[float, float], expected: tuple[float, float]
) -> None:
    models = {f"p{k}": {"w": np.array([loss])} for k, loss in enumerate(losses)}
    aggregate = Aggregate(
        load=models.__getitem__,
        samples=dict.fromkeys(models, 1),
        layout=models["p0"],
        probe=table(4, 0),
        workload=Constant(),  # type: ignore[arg-type]  # judging is all that is asked of it
        scale=1.0,
    )
    np.testing.assert_allclose(list(aggregate.harms(["p0", "p1"]).values()), expected)


def test_a_task_and_its_observer_travel_to_a_worker() -> None:
    splits = load_splits("digits", seed=0)
    task = EvidenceTask.of_images(RECIPE, splits.validation)
    start = initial_weights("digits-cnn", 0)
    observer = task.observer(start, 5)
    sent_task, sent = pickle.loads(pickle.dumps((task, observer)))
    model = WorkloadSource.of_architecture("digits-cnn").load().build(3)
    one, other = observer(model), sent(model)
    assert np.array_equal(one.features, other.features)
    assert np.array_equal(one.vectors["update"], other.vectors["update"])
    assert sent_task.reference == task.reference
