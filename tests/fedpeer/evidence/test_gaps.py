"""The line that covers loss gaps, and what it covers."""

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpeer.evidence.errors import EvidenceError
from fedpeer.evidence.gaps import (
    MIN_CALIBRATION_SHADOWS,
    EvidenceTask,
    GapShadows,
    bound_gaps,
    measure_gaps,
    quantile_line,
)
from fedpeer.learning.datasets import load_splits
from fedpeer.learning.samples import of_labelled
from fedpeer.learning.workloads.cnns import CnnWorkload
from mechanism.terms import Recipe


def test_the_quantile_line_goes_through_the_quantiles() -> None:
    """The 0.95-quantile of 0, ..., 40 is its 39th value, 38; five higher at x = 1."""
    values = np.arange(41.0)
    x = np.repeat([0.0, 1.0], 41)
    assert quantile_line(x, np.concatenate([values, values + 5]), 0.95) == pytest.approx((5, 38))


def test_a_line_that_would_fall_is_level_and_one_that_would_begin_below_zero_begins_there() -> None:
    values = np.arange(41.0)
    x = np.repeat([0.0, 1.0], 41)
    slope, level = quantile_line(x, np.concatenate([values + 5, values]), 0.95)
    assert slope == 0
    assert 38 <= level <= 43
    x = np.linspace(0.5, 1, 100)
    slope, level = quantile_line(x, 10 * x - 4, 0.95)
    assert level == 0
    assert 2 < slope <= 6


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), slope=st.floats(0, 5), level=st.floats(0, 5))
def test_no_other_line_costs_less(seed: int, slope: float, level: float) -> None:
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 2, 60)
    y = rng.exponential(1 + x)

    def loss(a: float, b: float) -> float:
        over = y - a * x - b
        return float(np.maximum(0.95 * over, -0.05 * over).mean())

    assert loss(*quantile_line(x, y, 0.95)) <= loss(slope, level) + 1e-9


def shadows(rng: np.random.Generator, count: int, errors: float = 1e-6) -> GapShadows:
    """Losses that grow with the degree, with more noise and heavier tails where it is large."""
    degrees = rng.uniform(0, 0.9, count)
    losses = 6 * degrees**2 + (0.1 + degrees) * rng.standard_t(5, count) / 5
    return GapShadows(degrees, losses, np.full(count, errors), np.arange(count) % 2)


def test_fresh_pairs_are_covered_at_the_stated_rate() -> None:
    """Over 80 calibrations; their shares have a deviation of about 0.05."""
    shares = []
    for seed in range(80):
        rng = np.random.default_rng(seed)
        try:
            made = bound_gaps(shadows(rng, MIN_CALIBRATION_SHADOWS), seed)
        except EvidenceError:  # no line rises: nothing is claimed
            continue
        fresh = shadows(rng, 400)
        degrees, losses = fresh.degrees.reshape(-1, 2), fresh.losses.reshape(-1, 2)
        line = made.phi * np.square(degrees).sum(axis=1) + made.upsilon
        shares.append(float((np.abs(losses[:, 0] - losses[:, 1]) <= line).mean()))
    assert np.mean(shares) >= 0.95 - 3 * 0.05 / np.sqrt(72)
    assert np.mean(shares) < 0.99
    assert len(shares) >= 72


def test_no_gap_is_said_to_be_smaller_than_what_validation_data_tell() -> None:
    made = bound_gaps(shadows(np.random.default_rng(0), 100, errors=2.0), 0)
    assert made.upsilon >= np.sqrt(2) * 2.0


def test_gaps_that_do_not_grow_with_degrees_and_too_few_shadows_are_refused() -> None:
    rng = np.random.default_rng(1)
    falls = GapShadows(
        degrees := np.linspace(0, 0.9, 100),
        (1 - degrees) * np.where(np.arange(100) % 4 < 2, 1, -1),
        np.full(100, 1e-3),
        np.arange(100) % 2,
    )
    with pytest.raises(EvidenceError, match="no effort could be paid for"):
        bound_gaps(falls, 0)
    with pytest.raises(EvidenceError, match="train more"):
        bound_gaps(shadows(rng, 40), 0)
    one_sided = shadows(rng, 100)
    with pytest.raises(EvidenceError, match="train more"):
        bound_gaps(
            GapShadows(one_sided.degrees, one_sided.losses, one_sided.errors, np.zeros(100, dtype=int)), 0
        )


@pytest.mark.extended
def test_digits_have_gaps_that_grow_with_the_degree_and_the_same_in_every_run() -> None:
    data = load_splits("digits", seed=0, validation=300, test=100).validation
    workload = CnnWorkload("digits-cnn")
    recipe = Recipe("digits-cnn", 4, 32, "adam", Decimal("0.003"), 80)
    task = EvidenceTask(workload, recipe, of_labelled(data), data.labels, data.classes, True)
    start = workload.build(0)
    trained: list[int] = []
    made = measure_gaps(
        task, start, 0, shadows=MIN_CALIBRATION_SHADOWS, report=lambda n, of: trained.append(n)
    )
    assert made.shadows == trained[-1] == MIN_CALIBRATION_SHADOWS
    assert made.phi > made.upsilon > 0
    assert made.fitted >= 200
    assert made.covered >= 0.85
    assert made.training_seconds > 0
    again = measure_gaps(task, start, 0, shadows=MIN_CALIBRATION_SHADOWS)
    assert (again.phi, again.upsilon) == (made.phi, made.upsilon)
    with pytest.raises(EvidenceError, match="at least 78"):
        measure_gaps(task, start, 0, shadows=77)
