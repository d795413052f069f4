"""The one weighted mean: exact where it can be, rounded once where not, and the same for everybody."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedpeer.learning.errors import DataError
from fedpeer.learning.mean import ModelSum, WeightedSum, weighted_mean

WEIGHTS = st.integers(1, 10**9)
FLOATS = arrays.arrays(np.float32, (3, 5), elements=st.floats(-(2.0**60), 2.0**60, width=32))


@given(st.lists(st.tuples(FLOATS, WEIGHTS), min_size=1, max_size=6))
def test_floats_are_summed_in_float64_and_rounded_once(terms: list[tuple[np.ndarray, int]]) -> None:
    total = WeightedSum((3, 5), np.float32)
    for values, weight in terms:
        total.add(values, weight)
    expected = sum((v.astype(np.float64) * w for v, w in terms), np.full((3, 5), -0.0)) / sum(
        w for _, w in terms
    )
    np.testing.assert_array_equal(total.rounded(), expected.astype(np.float32))
    assert total.rounded().dtype == np.float32


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), WEIGHTS), min_size=1, max_size=6))
def test_counters_are_averaged_exactly_and_rounded_half_to_even(terms: list[tuple[int, int]]) -> None:
    merged = weighted_mean([{"n": np.array(value)} for value, _ in terms], [weight for _, weight in terms])
    exact = Fraction(sum(v * w for v, w in terms), sum(w for _, w in terms))
    assert merged["n"].dtype == np.int64
    assert int(merged["n"]) == round(exact)


def test_truth_takes_the_weighted_majority_and_is_false_on_a_tie() -> None:
    def merged(*terms: tuple[bool, int]) -> bool:
        return bool(weighted_mean([{"b": np.array(v)} for v, _ in terms], [w for _, w in terms])["b"])

    assert merged((True, 3), (False, 2))
    assert not merged((True, 2), (False, 3))
    assert not merged((True, 2), (False, 2))


@given(st.lists(st.tuples(FLOATS, WEIGHTS), min_size=2, max_size=5))
def test_what_is_taken_off_was_never_there(terms: list[tuple[np.ndarray, int]]) -> None:
    everybody = ModelSum({"w": terms[0][0]})
    for values, weight in terms:
        everybody.add({"w": values}, weight)
    before = everybody.rounded()["w"]
    rest = everybody.without({"w": terms[-1][0]}, terms[-1][1]).rounded()["w"]
    alone = weighted_mean([{"w": v} for v, _ in terms[:-1]], [w for _, w in terms[:-1]])["w"]
    share = sum(w for _, w in terms) / sum(w for _, w in terms[:-1])
    np.testing.assert_allclose(rest, alone, rtol=1e-6, atol=share * 2.0**60 * 2.0**-45)
    np.testing.assert_array_equal(everybody.rounded()["w"], before)


def test_a_mean_of_nothing_or_without_a_weight_is_refused() -> None:
    with pytest.raises(DataError, match="0 models"):
        weighted_mean([], [])
    with pytest.raises(DataError, match=r"\[3, 0\]"):
        weighted_mean([{"w": np.zeros(1)}] * 2, [3, 0])
