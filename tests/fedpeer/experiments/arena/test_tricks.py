"""What tricks make of skewed data."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from fedpeer.evidence import tricks as tricking
from fedpeer.experiments.arena import tricks
from fedpeer.experiments.arena.tricks import Collected
from fedpeer.experiments.errors import ExperimentError
from fedpeer.learning.partition import LabelMix
from fedpeer.learning.samples import Samples
from fedpeer.learning.workloads.torch import TorchWorkload

COUNTS = (30, 8, 2, 0)
REFERENCE = (Fraction(1, 4),) * 4


@pytest.fixture
def own() -> Collected:
    generator = np.random.default_rng(0)
    codes = np.repeat(np.arange(4), COUNTS)
    inputs = (generator.normal(size=(40, 3)) + 5 * codes[:, None]).astype(np.float32)
    return Collected(LabelMix(COUNTS, REFERENCE), Samples(inputs, codes), codes, REFERENCE, 1.0)


@pytest.fixture
def generator() -> np.random.Generator:
    return np.random.default_rng(1)


def test_the_wanted_counts_lead_from_ones_own_to_the_reference_over_the_strata_that_are_held(
    own: Collected,
) -> None:
    assert tricking.wanted(own, 0).tolist() == list(COUNTS)
    assert sorted(tricking.wanted(own, 1).tolist()) == [0, 13, 13, 14]
    half = tricking.wanted(own, 0.5)
    assert half.sum() == 40
    assert 13 < half[0] < 30
    assert half[3] == 0


def test_repeating_takes_no_sample_that_is_not_there(own: Collected, generator: np.random.Generator) -> None:
    rows = tricking.repeated(own, 1, generator)
    assert np.bincount(own.codes[rows], minlength=4).tolist() == tricking.wanted(own, 1).tolist()
    assert set(rows[own.codes[rows] == 2]) == set(np.flatnonzero(own.codes == 2))


def test_weighted_draws_have_the_wanted_counts_as_their_mean(
    own: Collected, generator: np.random.Generator
) -> None:
    drawn = [np.bincount(own.codes[tricking.weighted(own, 1, generator)], minlength=4) for _ in range(400)]
    assert np.abs(np.mean(drawn, axis=0) - tricking.wanted(own, 1)).max() < 0.6


@pytest.mark.parametrize(
    "make",
    [
        lambda own, generator: tricking.interpolated(own, 1, 0, generator),
        lambda own, generator: tricking.augmented(own, 1, 0, generator),
    ],
)
def test_without_reach_or_noise_made_samples_are_copies(
    own: Collected,
    generator: np.random.Generator,
    make: Callable[[Collected, np.random.Generator], Samples],
) -> None:
    made = make(own, generator)
    there = {row.tobytes() for row in np.asarray(own.samples.inputs)}
    assert {row.tobytes() for row in np.asarray(made.inputs)} <= there
    assert np.bincount(made.targets, minlength=4).tolist() == tricking.wanted(own, 1).tolist()


def test_interpolated_samples_lie_between_two_of_their_stratum(
    own: Collected, generator: np.random.Generator
) -> None:
    made = tricking.interpolated(own, 1, 1, generator)
    rare = np.asarray(own.samples.inputs)[own.codes == 2]
    low, high = rare.min(axis=0) - 1e-5, rare.max(axis=0) + 1e-5
    points = np.asarray(made.inputs)[made.targets == 2]
    assert len({row.tobytes() for row in points}) > 2
    assert ((low <= points) & (points <= high)).all()


def test_synthetic_samples_without_spread_are_the_mean(
    own: Collected, generator: np.random.Generator
) -> None:
    made = tricking.synthesised(own, 1, 0, generator)
    mean = np.asarray(own.samples.inputs)[own.codes == 2].mean(axis=0)
    points = np.asarray(made.inputs)[made.targets == 2]
    assert np.isclose(points, mean, atol=1e-5).all(axis=1).sum() == len(points) - 2


def test_public_samples_fill_a_stratum_that_one_has_none_of(
    own: Collected, generator: np.random.Generator
) -> None:
    codes = np.repeat(np.arange(4), 6)
    public = Samples(np.full((24, 3), 100, dtype=np.float32), codes)
    made = tricks.with_public(own, public, codes, 3, 1, generator)
    assert len(made) == 40
    assert (made.targets == 3).sum() > 3, "three, repeated"


def test_inverted_samples_are_what_the_model_takes_for_the_rare_class(
    own: Collected, generator: np.random.Generator
) -> None:
    workload = TorchWorkload(lambda: nn.Linear(3, 4), classes=4)
    start = workload.build(0)
    made = tricks.inverted(own, workload, start, 1, 30, 0.0, generator)
    missing = made.targets == 3
    assert missing.sum() == 10
    said = workload.judge(start, made).outputs
    before = workload.judge(start, own.samples).outputs
    assert said is not None
    assert before is not None
    assert said[missing, 3].mean() > before[:, 3].mean() + 0.5


def test_inversion_needs_gradients(own: Collected, generator: np.random.Generator) -> None:
    by_name = Collected(
        own.mix,
        Samples({"a": np.asarray(own.samples.inputs)}, own.samples.targets),
        own.codes,
        own.reference,
        0,
    )
    workload = TorchWorkload(lambda: nn.Linear(3, 4), classes=4)
    with pytest.raises(ExperimentError, match="one array of inputs"):
        tricks.inverted(by_name, workload, workload.build(0), 1, 5, 0, generator)


def test_an_adjusted_bias_favours_rare_classes(own: Collected) -> None:
    workload = TorchWorkload(lambda: nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 4)), classes=4)
    model = workload.build(0)
    name = tricking.output_bias(workload, model)
    moved = tricking.adjusted(model, name, own, 1.0)[name] - model[name]
    assert (np.diff(moved) > 0).all(), "counts fall from class to class"
    assert torch.from_numpy(moved).dtype == torch.float32


def test_a_model_without_an_output_bias_has_none() -> None:
    workload = TorchWorkload(lambda: nn.Linear(3, 4, bias=False), classes=4)
    assert tricking.output_bias(workload, workload.build(0)) is None


def test_joined_data_have_both_counts(own: Collected) -> None:
    both = tricks.joined(own, own)
    assert both.mix.counts == tuple(2 * n for n in COUNTS)
    assert both.select(np.arange(40)).mix.counts == COUNTS
