"""Means, slopes and their intervals, all two-sided at 95 % by Student's t."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

#: Level of every interval.
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval; one repetition has none, and its ends are NaN."""

    estimate: float
    low: float
    high: float
    repetitions: int

    def __str__(self) -> str:
        if math.isnan(self.low):
            return f"{self.estimate:.3f}"
        return f"{self.estimate:.3f} [{self.low:.3f}, {self.high:.3f}]"

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2


def mean_interval(values: Sequence[float] | npt.NDArray[np.float64]) -> Interval:
    """mean +- t_{n-1} * s / sqrt(n) of independent repetitions."""
    array = np.asarray(values, dtype=np.float64)
    mean = float(array.mean())
    if array.size < 2:
        return Interval(mean, math.nan, math.nan, int(array.size))
    half = float(stats.t.ppf((1 + LEVEL) / 2, array.size - 1) * array.std(ddof=1) / math.sqrt(array.size))
    return Interval(mean, mean - half, mean + half, int(array.size))


def difference_interval(
    one: npt.NDArray[np.float64], other: npt.NDArray[np.float64], tried: int = 1
) -> Interval:
    """mean(one) - mean(other) of independent repetitions, by the normal approximation.

    Args:
        tried: how many such differences are looked at together; the level is Bonferroni's.
    """
    difference = float(one.mean() - other.mean())
    error = math.sqrt(one.var(ddof=1) / one.size + other.var(ddof=1) / other.size)
    half = float(stats.norm.ppf(1 - (1 - LEVEL) / 2 / tried)) * error
    return Interval(difference, difference - half, difference + half, int(one.size))


def slope_interval(x: Sequence[float], y: Sequence[float]) -> Interval:
    """Least-squares slope of y over x; independent errors of one variance. Needs three points for an interval."""
    if len(x) < 3 or np.ptp(x) == 0:
        return Interval(math.nan, math.nan, math.nan, len(x))
    fit = stats.linregress(x, y)
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(x) - 2) * fit.stderr)
    return Interval(float(fit.slope), float(fit.slope) - half, float(fit.slope) + half, len(x))
