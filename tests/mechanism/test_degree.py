from collections import Counter
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechanism.degree import (
    label_distribution,
    noniid_degree,
    rational,
    reference_distribution,
    stratum_counts,
)
from mechanism.errors import FieldError

histograms = st.lists(st.integers(0, 10**6), min_size=2, max_size=20).filter(any)


@st.composite
def histogram_and_reference(draw: st.DrawFn) -> tuple[list[int], tuple[Fraction, ...]]:
    counts = draw(histograms)
    weights = draw(st.lists(st.integers(0, 100), min_size=len(counts), max_size=len(counts)).filter(any))
    return counts, tuple(Fraction(w, sum(weights)) for w in weights)


@given(histogram_and_reference())
def test_the_degree_is_the_total_variation_distance(case: tuple[list[int], tuple[Fraction, ...]]) -> None:
    counts, reference = case
    degree = noniid_degree(counts, reference)
    # The largest difference over all events, which total variation is by definition.
    gains = [p - q for p, q in zip(label_distribution(counts), reference, strict=True)]
    assert degree == sum(gain for gain in gains if gain > 0)
    assert 0 <= degree <= 1
    approximate = np.abs(np.array(counts) / sum(counts) - np.array(reference, float)).sum() / 2
    assert float(degree) == pytest.approx(float(approximate), abs=1e-12)


@given(histograms, st.integers(1, 1000))
def test_only_proportions_count(counts: list[int], factor: int) -> None:
    reference = label_distribution([1] * len(counts))
    assert noniid_degree([factor * c for c in counts], reference) == noniid_degree(counts, reference)
    assert noniid_degree(counts, label_distribution(counts)) == 0


def test_the_degree_is_exact() -> None:
    third = reference_distribution(["1/3", "1/3", "1/3"])
    assert noniid_degree([2, 1, 1], third) == Fraction(1, 6)
    assert noniid_degree([1, 0, 0], third) == Fraction(2, 3)


@pytest.mark.parametrize(
    ("counts", "field"),
    [
        ([-1, 2], r"counts\[0\] is -1"),
        ([0, 0], "at least one sample"),
        ([], "at least one sample"),
        ([1.5, 2], r"counts\[0\] is 1.5"),
        ([True, 2], "an integer"),
        ([1, 2, 3], "2 strata, as the reference has"),
    ],
)
def test_counts_that_are_none_are_refused(counts: list[int], field: str) -> None:
    with pytest.raises(FieldError, match=field):
        noniid_degree(counts, (Fraction(1, 2), Fraction(1, 2)))


@pytest.mark.parametrize(
    "values",
    [["0.5", "0.6"], ["0.5"], [], [0.5, 0.5], ["-0.5", "1.5"], ["nan", "1"], ["1/0", "1"], ["1e-9", "1"],
     [Decimal("NaN"), Decimal(1)], [Decimal("Infinity"), Decimal(1)], [True, False], [None, "1"]],
)  # fmt: skip
def test_a_reference_that_is_no_distribution_is_refused(values: list[object]) -> None:
    with pytest.raises(FieldError, match="reference"):
        reference_distribution(values)  # type: ignore[arg-type]


def test_a_reference_may_be_written_in_any_exact_way() -> None:
    half = (Fraction(1, 2), Fraction(1, 2))
    assert reference_distribution(["0.5", "1/2"]) == half
    assert reference_distribution([Decimal("0.5"), Fraction(1, 2)]) == half
    assert reference_distribution([1, 0]) == (1, 0)
    assert rational("x", " 1/2".strip()) == Fraction(1, 2)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([4, 0, 1], (4, 0, 1)),
        (np.array([4, 0, 1], np.int32), (4, 0, 1)),
        ([np.int64(4), np.array(0), 1], (4, 0, 1)),
        (Counter({0: 97, 1: 1}), (97, 1, 0)),
        (Counter([2, 2, 0]), (1, 0, 2)),  # in the order in which labels came, and without label 1
        (Counter([2.0, 2.0, 0.0]), (1, 0, 2)),
        ({"2": 3, "0": 1}, (1, 0, 3)),  # as JSON writes it
        ({np.int64(1): 5}, (0, 5, 0)),
    ],
)
def test_counts_are_read_by_name_or_by_position(counts: object, expected: tuple[int, ...]) -> None:
    assert stratum_counts(counts, ("0", "1", "2")) == expected


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({1, 2, 3}, "no order of strata"),
        ({0: 1, 1: 2, 2: 3}.keys(), "no order of strata"),
        ({0: 1, 1: 2, 2: 3}.values(), "no order of strata"),
        ((n for n in (1, 2, 3)), "a generator"),
        (Counter([0, 1, 2]).elements(), "expected a list"),
        (Counter([0, 0, 1, 2]).most_common(), r"counts\[0\] is \[0, 2\]"),
        (np.unique([0, 1, 2], return_counts=True), "3 strata"),
        ("123", "expected a list"),
        (b"123", "expected a list"),
        (7, "expected a list"),
        (None, "expected a list"),
        ([1, 2], "3 strata, as the reference has"),
        ([1.0, 2, 3], r"counts\[0\] is 1.0; expected an integer"),
        ([True, 2, 3], "an integer"),
        (np.array([1.0, 2.0, 3.0]), "an integer"),
        (np.array([True, True, False]), "an integer"),
        (np.array([[1, 2, 3]]), "one dimension"),
        (np.ma.array([1, 2, 3], mask=[0, 1, 0]), "masked"),
        ({3: 1}, "the strata 0, 1, 2"),
        ({-1: 1}, "the strata 0, 1, 2"),
        ({0.5: 1}, "the strata 0, 1, 2"),
        ({True: 1}, "the strata 0, 1, 2"),
        ({"cat": 1}, "the strata 0, 1, 2"),
        ({1: 1, "1": 2}, "it has two keys"),
        ({0: 1.5}, "an integer"),
        ({}, "at least one sample"),
        ([10**5000], "3 strata"),
    ],
)
def test_counts_without_an_order_or_of_another_kind_are_refused(counts: object, words: str) -> None:
    with pytest.raises(FieldError, match=words):
        stratum_counts(counts, ("0", "1", "2"))


def test_the_degree_of_a_mapping_is_not_that_of_its_keys() -> None:
    with pytest.raises(FieldError, match="expected a list"):
        noniid_degree(Counter({0: 97, 1: 1}), (Fraction(1, 2), Fraction(1, 2)))  # type: ignore[arg-type]  # the mistake


def test_a_mapping_is_read_by_the_names_of_strata_and_by_numbers_only_where_none_is_a_name() -> None:
    assert stratum_counts({"UA": 2, "AA": 1}, ("AA", "UA", "B6")) == (1, 2, 0)
    assert stratum_counts({0: 1, 2: 4}, ("AA", "UA", "B6")) == (1, 0, 4)
    assert stratum_counts(Counter([3, 3, 1]), ("3", "1")) == (2, 1)
    with pytest.raises(FieldError, match="keys that are the strata 3, 1"):
        stratum_counts({0: 1}, ("3", "1"))
    with pytest.raises(FieldError, match="one count of the stratum UA"):
        stratum_counts({"UA": 2, 1: 1}, ("AA", "UA", "B6"))
