"""Intervals hold what they should as often as they should."""

import math

import numpy as np
import pytest

from fedpeer.experiments.statistics import mean_interval, slope_interval


def test_a_mean_interval_covers_at_its_level() -> None:
    generator = np.random.default_rng(0)
    covered = [
        interval.low <= 3 <= interval.high
        for interval in (mean_interval(generator.normal(3, 2, 5)) for _ in range(2_000))
    ]
    # 0.95 with a standard error of 0.005.
    assert abs(np.mean(covered) - 0.95) < 0.02


def test_a_slope_interval_covers_at_its_level() -> None:
    generator = np.random.default_rng(1)
    x = np.arange(12.0)
    covered = []
    for _ in range(2_000):
        interval = slope_interval(x.tolist(), (0.5 * x + generator.normal(0, 1, 12)).tolist())
        covered.append(interval.low <= 0.5 <= interval.high)
    assert abs(np.mean(covered) - 0.95) < 0.02


def test_the_slope_is_the_least_squares_one() -> None:
    assert slope_interval([1, 2, 3, 4], [2, 4, 6, 8]).estimate == pytest.approx(2)


@pytest.mark.parametrize("interval", [mean_interval([1.0]), slope_interval([1, 2], [0, 1])])
def test_too_few_points_give_no_interval(interval: object) -> None:
    assert math.isnan(interval.low)  # type: ignore[attr-defined]  # an Interval
    assert math.isnan(interval.high)  # type: ignore[attr-defined]
