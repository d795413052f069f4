"""Whether opened samples are like an auditor's own."""

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from fedpeer.learning.duplicates import duplicates
from fedpeer.learning.errors import DataError
from fedpeer.learning.provenance import PERMUTATIONS, Compared, compare, permutations
from fedpeer.learning.samples import Samples
from fedpeer.learning.strata import Codes


def drawn(counts: tuple[int, ...], generator: np.random.Generator) -> tuple[Samples, Codes]:
    """Skewed samples of strata with means and scales of their own, and a column of few values."""
    codes = np.repeat(np.arange(len(counts)), counts)
    x = codes[:, None] + (1 + codes[:, None]) * generator.standard_gamma(2, size=(len(codes), 4))
    x = np.column_stack([x, generator.integers(3, size=len(codes))])
    return Samples(x, codes), codes


def found(
    opened: Samples, generator: np.random.Generator, known: Samples | None = None, draws: int = 199
) -> Compared:
    reference, codes = drawn((40, 40, 40), generator)
    return compare(opened, opened.targets, reference, codes, generator, known, draws)


def test_true_samples_are_accused_as_often_as_said_whatever_their_mix() -> None:
    generator = np.random.default_rng(3)
    accused = 0
    for _ in range(200):
        counts = tuple(int(n) for n in generator.integers(2, 30, size=3))
        accused += found(drawn(counts, generator)[0], generator, draws=39).p <= 0.1
    assert stats.binomtest(accused, 200, 0.1, alternative="greater").pvalue > 1e-4


def test_a_rate_has_enough_permutations_behind_it() -> None:
    assert permutations(Fraction(1, 20)) == PERMUTATIONS
    assert Fraction(20, permutations(Fraction(1, 1000)) + 1) <= Fraction(1, 1000)


@pytest.mark.parametrize("kind", ["again", "between", "mean", "noise", "values", "others"])
def test_made_up_samples_are_found(kind: str) -> None:
    generator = np.random.default_rng(5)
    own, codes = drawn((40, 20, 6), generator)
    x, rare = np.asarray(own.inputs), np.flatnonzero(codes == 2)
    one, two = (generator.choice(rare, 18) for _ in range(2))
    made = {
        "again": x[one],
        "between": (x[one] + x[two]) / 2,
        "mean": x[rare].mean(axis=0) + 0.3 * (x[generator.choice(40, 18)] - x[:40].mean(axis=0)),
        "noise": x[one] + generator.normal(size=(18, 5)),
        "values": np.column_stack(
            [drawn((0, 0, 18), generator)[0].inputs[:, :4], generator.uniform(0, 2, 18)]
        ),
        "others": x[generator.choice(40, 18, replace=False)],
    }[kind]
    filled = Samples(np.concatenate([x, made]), np.concatenate([codes, np.full(18, 2)]))
    assert found(own, generator).p > 0.05
    assert found(filled, generator).p <= 0.05


def test_true_samples_of_somebody_else_are_found_where_they_are_known() -> None:
    generator = np.random.default_rng(6)
    public, own = drawn((20, 20, 20), generator)[0], drawn((20, 20, 4), generator)[0]
    taken = public.select(np.arange(45, 60))
    filled = Samples(np.concatenate([own.inputs, taken.inputs]), np.concatenate([own.targets, taken.targets]))
    assert found(filled, generator).p > 0.05
    told = found(filled, generator, public)
    assert told.p <= 0.05
    assert told.by == "known"
    assert found(own, generator, public).p > 0.05


def test_strata_that_the_reference_lacks_are_not_compared() -> None:
    generator = np.random.default_rng(7)
    opened, codes = drawn((5, 5, 5), generator)
    reference = opened.select(np.arange(3))
    told = compare(opened, codes, reference, np.array([0, 0, 1]), generator)
    assert told.samples == 5
    none = compare(opened.select(np.arange(5, 15)), codes[5:], reference, codes[:3], generator)
    assert none == Compared(Fraction(1), "", 0)


def test_texts_and_columns_that_never_vary_say_nothing() -> None:
    texts = {"text": np.array(["a", "b"] * 20), "one": np.ones(40)}
    opened = Samples(texts, np.zeros(40, dtype=np.int64))
    generator = np.random.default_rng(8)
    assert compare(opened, opened.targets, opened, opened.targets, generator) == Compared(Fraction(1), "", 0)


def test_samples_of_another_layout_are_refused() -> None:
    one, other = Samples(np.ones((3, 2)), np.zeros(3)), Samples(np.ones((3, 4)), np.zeros(3))
    codes = np.zeros(3, dtype=np.int64)
    with pytest.raises(DataError, match="are compared with others"):
        compare(one, codes, other, codes, np.random.default_rng(0))


def test_samples_that_are_as_far_from_one_another_accuse_nobody() -> None:
    """Columns of few values: which of equals comes first is chance, and not who was opened."""
    generator = np.random.default_rng(10)
    accused = 0
    for _ in range(150):
        x = generator.integers(2, size=(50, 2))
        sets = Samples(x[:20], np.zeros(20, dtype=np.int64)), Samples(x[20:], np.zeros(30, dtype=np.int64))
        accused += compare(sets[0], sets[0].targets, sets[1], sets[1].targets, generator, draws=39).p <= 0.1
    assert stats.binomtest(accused, 150, 0.1, alternative="greater").pvalue > 1e-4


def test_what_is_nearly_the_same_counts_once() -> None:
    generator = np.random.default_rng(9)
    x = generator.normal(size=(30, 6))
    samples = Samples(np.concatenate([x, x[:10], x[:10] + 1e-3, x[5:8] - 1e-3]), np.zeros(53))
    counted = duplicates(samples)
    assert (counted.samples, counted.distinct) == (53, 30)
    assert counted.near == 10 + 10 + 3
    assert duplicates(Samples(x, np.zeros(30))).distinct == 30
