"""Label mixes are exact to within one sample and report both of their parameters."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpeer.learning.datasets import LabelledData
from fedpeer.learning.errors import DataError
from fedpeer.learning.partition import (
    LabelMix,
    dirichlet,
    draw,
    majority_minority,
    number_of_classes,
    rounded_counts,
    toward_reference,
    uniform_reference,
)
from mechanism.degree import noniid_degree

UNIFORM = uniform_reference(10)


@st.composite
def references(draw_: st.DrawFn, most: int = 12) -> tuple[Fraction, ...]:
    weights = draw_(st.lists(st.integers(1, 50), min_size=2, max_size=most))
    return tuple(Fraction(w, sum(weights)) for w in weights)


unit = st.fractions(0, 1, max_denominator=1000)
sizes = st.integers(1, 700)


@given(references(), sizes, unit, st.data())
def test_a_majority_share_is_met_within_one_sample(
    reference: tuple[Fraction, ...], n: int, share: Fraction, data: st.DataObject
) -> None:
    majority = data.draw(st.integers(0, len(reference) - 1))
    mix = majority_minority(reference, n, majority=majority, share=share)
    assert mix.samples == n
    assert abs(mix.counts[majority] - share * n) < 1
    assert mix.degree == noniid_degree(mix.counts, reference)


@given(references(), sizes, unit, st.sampled_from([Fraction(1), Fraction(7, 10), Fraction(1, 5)]), st.data())
def test_a_degree_is_met_within_one_sample(
    reference: tuple[Fraction, ...], n: int, fraction: Fraction, tail: Fraction, data: st.DataObject
) -> None:
    majority = data.draw(st.integers(0, len(reference) - 1))
    target = fraction * (1 - reference[majority])
    mix = majority_minority(reference, n, majority=majority, degree=target, tail=tail)
    assert mix.samples == n
    # Integer counts of the reference itself need not exist: what that alone costs is allowed for.
    floor = noniid_degree(rounded_counts(reference, n), reference)
    assert abs(mix.degree - target) <= Fraction(1, n) + floor


@given(st.integers(1, 70), unit)
def test_with_a_uniform_reference_a_degree_is_met_within_half_a_sample(tens: int, fraction: Fraction) -> None:
    n = 10 * tens
    target = fraction * Fraction(9, 10)
    mix = majority_minority(UNIFORM, n, majority=4, degree=target)
    assert abs(mix.degree - target) <= Fraction(1, 2 * n)


def test_the_papers_iid_case_is_a_share_of_one_tenth() -> None:
    mix = majority_minority(UNIFORM, 500, majority=0, share=0.1)
    assert mix.counts == (50,) * 10
    assert (mix.degree, max(mix.distribution)) == (0, Fraction(1, 10))


def test_the_rest_lies_along_a_long_tail_in_the_order_given() -> None:
    order = (9, 8, 7, 6, 5, 4, 2, 1, 0)
    mix = majority_minority(UNIFORM, 600, majority=3, share=0.5, order=order)
    tail = [mix.counts[label] for label in order]
    assert mix.counts[3] == 300
    assert tail == sorted(tail, reverse=True)
    assert tail[1] / tail[0] == pytest.approx(0.7, abs=0.01)
    assert max(mix.distribution) == Fraction(1, 2)
    assert mix.degree > Fraction(2, 5)


def test_a_reference_on_one_label_has_one_mix_only() -> None:
    assert majority_minority((Fraction(1), Fraction(0)), 5, majority=0, share=1).counts == (5, 0)
    assert majority_minority((Fraction(1), Fraction(0)), 5, majority=0, degree=0).counts == (5, 0)


@given(st.integers(1, 700), st.sets(st.integers(0, 9), min_size=1))
def test_classes_share_the_samples_evenly(n: int, labels: set[int]) -> None:
    mix = number_of_classes(UNIFORM, n, labels=sorted(labels))
    held = [mix.counts[label] for label in labels]
    assert sum(held) == n
    assert max(held) - min(held) <= 1


def test_few_classes_may_keep_a_rest_of_the_others() -> None:
    mix = number_of_classes(UNIFORM, 100, labels=(0, 1), rest=0.2)
    assert mix.counts == (42, 42, 2, 2, 2, 2, 2, 2, 2, 2)


@given(references(), sizes, st.floats(1e-3, 100), st.integers(0, 2**32 - 1))
def test_dirichlet_counts_sum_to_n_and_repeat_with_the_seed(
    reference: tuple[Fraction, ...], n: int, alpha: float, seed: int
) -> None:
    first, again = (dirichlet(reference, n, alpha=alpha, generator=np.random.default_rng(seed)) for _ in "ab")
    assert first.samples == n
    assert first == again


@given(references(), unit, st.data())
def test_effort_moves_a_mix_to_the_degree_that_it_promises(
    reference: tuple[Fraction, ...], fraction: Fraction, data: st.DataObject
) -> None:
    labels = len(reference)
    counts = data.draw(st.lists(st.integers(0, 99), min_size=labels, max_size=labels).filter(any))
    start = LabelMix(tuple(counts), reference)
    target, n = start.degree * fraction, start.samples
    moved = toward_reference(start, target)
    floor = noniid_degree(rounded_counts(reference, n), reference)
    assert moved.samples == n
    assert abs(moved.degree - target) <= Fraction(1, n) + floor


@given(references(), sizes)
def test_rounding_is_off_by_less_than_one_sample(distribution: tuple[Fraction, ...], n: int) -> None:
    counts = rounded_counts(distribution, n)
    assert sum(counts) == n
    assert all(abs(count - p * n) < 1 for count, p in zip(counts, distribution, strict=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"majority": 10, "share": 0.5}, "majority is 10; expected a label from 0 to 9"),
        ({"majority": 0}, "either a share or a degree"),
        ({"majority": 0, "share": 0.5, "degree": 0.5}, "either a share or a degree"),
        ({"majority": 0, "share": 1.5}, "share is 1.5; expected a number from 0 to 1"),
        ({"majority": 0, "degree": 0.95}, "degree is 0.95; expected a number from 0 to 9/10"),
        ({"majority": 0, "share": float("nan")}, "expected a finite number"),
        ({"majority": 0, "share": 0.5, "tail": 0}, "tail is 0"),
        ({"majority": 0, "share": 0.5, "order": (1, 2)}, "expected each label but 0 once"),
    ],
)
def test_parameters_out_of_range_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        majority_minority(UNIFORM, 100, **arguments)  # type: ignore[arg-type]


def test_effort_cannot_raise_the_degree() -> None:
    with pytest.raises(DataError, match=r"degree is 0.5; expected a number from 0 to 0"):
        toward_reference(LabelMix((10,) * 10, UNIFORM), 0.5)


class TestDraw:
    pool = LabelledData(
        "x",
        np.arange(12, dtype=np.float32).reshape(-1, 1, 1, 1),
        np.array([0] * 8 + [1] * 4, dtype=np.int64),
        3,
    )

    def drawn(self, counts: tuple[int, ...], seed: int = 0) -> LabelledData:
        return draw(self.pool, counts, np.random.default_rng(seed))

    def test_is_without_replacement_while_the_label_lasts(self) -> None:
        drawn = self.drawn((8, 4, 0))
        assert sorted(drawn.images.ravel()) == list(range(12))
        assert drawn.counts() == (8, 4, 0)

    def test_repeats_samples_only_of_a_label_that_has_run_out(self) -> None:
        drawn = self.drawn((2, 7, 0))
        assert drawn.counts() == (2, 7, 0)
        assert set(range(8, 12)) <= set(drawn.images.ravel())
        assert len(set(drawn.images.ravel())) == 2 + 4

    def test_repeats_with_the_generator(self) -> None:
        first, again = (self.drawn((3, 2, 0), seed=5).images for _ in range(2))
        assert np.array_equal(first, again)

    @pytest.mark.parametrize("counts", [(1, 1), (0, 0, 0), (-1, 2, 0), (1, 0, 1)])
    def test_refuses_counts_that_the_pool_cannot_give(self, counts: tuple[int, ...]) -> None:
        with pytest.raises(DataError):
            draw(self.pool, counts, np.random.default_rng(0))
