"""What scores are held against."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest

from fedpeer.evidence.regression import folds, tolerance_quantile


def reached(count: int, place: int) -> Fraction:
    """The probability that nine tenths of all new scores reach beyond the place-th of `count`."""
    hit = Fraction(9, 10)
    return sum(
        (comb(count, k) * hit**k * (1 - hit) ** (count - k) for k in range(place, count + 1)), Fraction(0)
    )


@pytest.mark.parametrize("confidence", [Fraction(3, 4), Fraction(9, 10)])
@pytest.mark.parametrize("count", [22, 25, 50, 90, 100, 200])
def test_a_tolerance_quantile_is_the_least_score_of_its_confidence(count: int, confidence: Fraction) -> None:
    scores = np.random.default_rng(0).permutation(np.arange(1, count + 1)).astype(np.float64)
    place = int(tolerance_quantile(scores, 0.1, float(confidence)))
    assert reached(count, place) <= 1 - confidence < reached(count, place - 1)


@pytest.mark.parametrize(("confidence", "enough"), [(0.75, 14), (0.9, 22)])
def test_of_too_few_scores_the_largest_is_the_tolerance_quantile(confidence: float, enough: int) -> None:
    for count in (1, 12, enough - 1, enough):
        assert tolerance_quantile(np.arange(1, count + 1).astype(np.float64), 0.1, confidence) == count
    assert reached(enough, enough) <= 1 - confidence < reached(enough - 1, enough - 1)


def test_rows_of_one_group_are_left_out_together_and_each_row_once() -> None:
    groups = np.array([5, 0, 1, 5, 2, 3, 0])
    left_out = []
    for rest, fold in folds(groups, 3):
        assert sorted([*rest, *fold]) == list(range(len(groups)))
        assert not {*groups[rest].tolist()} & {*groups[fold].tolist()}
        left_out += fold.tolist()
    assert sorted(left_out) == list(range(len(groups)))
    assert len(list(folds(groups, 10))) == 5
