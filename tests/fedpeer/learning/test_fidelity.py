"""Whether a model was trained on given samples."""

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from fedpeer.experiments.accuracy.tasks import TASKS
from fedpeer.experiments.accuracy.trial import Trial
from fedpeer.learning.fidelity import comparisons, distances, is_farthest
from fedpeer.learning.mean import weighted_mean
from fedpeer.learning.workloads.protocol import train_all


@pytest.mark.parametrize(
    ("rate", "count"), [("1/20", 19), ("1/10", 9), ("1/3", 2), ("9/10", 2), ("3/100", 33)]
)
def test_as_many_models_are_trained_as_the_rate_asks_for(rate: str, count: int) -> None:
    assert comparisons(Fraction(rate)) == count
    assert Fraction(1, count + 1) <= Fraction(rate)


def test_one_that_can_be_exchanged_is_the_farthest_as_often_as_said() -> None:
    """Losses of a common part and noise, whose size is drawn anew each time."""
    generator = np.random.default_rng(1)
    times = 0
    for _ in range(2000):
        scale = generator.exponential(size=(10, 1))
        found = distances(generator.normal(size=50) + scale * generator.normal(size=(10, 50)))
        times += found[0] > found[1:].max()
    assert stats.binomtest(times, 2000, 0.1).pvalue > 1e-4


def test_a_model_whose_losses_are_not_finite_is_the_farthest() -> None:
    losses = np.random.default_rng(0).normal(size=(4, 9))
    losses[0, 3] = np.inf
    found = distances(losses)
    assert found[0] > found[1:].max()


@pytest.mark.arithmetic
def test_a_mean_of_trainings_on_a_part_of_the_samples_is_told() -> None:
    trial = Trial(TASKS["digits"], 0, 0)
    workload, recipe = trial.workload, trial.recipe
    samples = trial.parts.pool.select(np.arange(150))
    half = samples.select(np.resize(np.arange(0, 150, 2), 150))
    trained = train_all(workload, trial.start, [samples] * 9, recipe, range(9))
    honest = train_all(workload, trial.start, [samples] * 4, recipe, range(20, 24))
    assert sum(is_farthest(workload, model, trained, samples) for model in honest) <= 2
    halves = train_all(workload, trial.start, [half] * 4, recipe, range(30, 34))
    assert is_farthest(workload, weighted_mean(halves, [1] * 4), trained, samples)
    assert is_farthest(workload, halves[0], trained, samples)
    assert is_farthest(workload, trial.start, trained, samples)
