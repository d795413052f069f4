"""Label mixes of the federations: exact, balanced, and with both parameters."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpeer.experiments.populations import CLASSES, PARTITIONS, SHARES, at_degrees
from fedpeer.experiments.settings import PARTICIPANTS

pytestmark = pytest.mark.arithmetic


@pytest.mark.parametrize("samples", [100, 500, 600])
@pytest.mark.parametrize("level", SHARES.levels)
def test_a_share_is_met_within_a_sample(level: Fraction, samples: int) -> None:
    for k in range(PARTICIPANTS):
        mix = SHARES.mix(k, level, 10, samples)
        assert sum(mix.counts) == samples
        assert abs(mix.counts[k] - level * samples) < 1
        assert max(mix.distribution) == Fraction(max(mix.counts), samples)


def test_the_papers_share_of_a_tenth_is_exactly_the_reference() -> None:
    assert SHARES.mix(3, Fraction(1, 10), 10, 500).counts == (50,) * 10
    assert SHARES.mix(3, Fraction(1, 10), 10, 500).degree == 0


@pytest.mark.parametrize("level", CLASSES.levels)
def test_classes_hold_that_many_labels_evenly(level: Fraction) -> None:
    for k in range(PARTICIPANTS):
        mix = CLASSES.mix(k, level, 10, 500)
        held = [n for n in mix.counts if n]
        assert len(held) == level
        assert max(held) - min(held) <= 1
        assert mix.counts[k] > 0
        assert abs(mix.degree - (1 - level / 10)) <= Fraction(10, 500)


def test_twenty_classes_hold_twice_as_many_labels() -> None:
    assert sum(n > 0 for n in CLASSES.mix(0, Fraction(5), 20, 500).counts) == 10


@pytest.mark.parametrize("partition", PARTITIONS.values(), ids=PARTITIONS)
def test_ten_participants_together_are_nearly_balanced(partition: object) -> None:
    for level in partition.levels:  # type: ignore[attr-defined]  # a Partition
        total = np.sum([partition.mix(k, level, 10, 500).counts for k in range(10)], axis=0)  # type: ignore[attr-defined]
        assert abs(total - 500).max() <= 10


@settings(max_examples=50)
@given(
    name=st.sampled_from(sorted(PARTITIONS)),
    tens=st.integers(5, 70),
    thousandths=st.lists(st.integers(0, 900), min_size=1, max_size=4),
)
def test_a_wanted_degree_is_met_within_a_sample(name: str, tens: int, thousandths: list[int]) -> None:
    """For samples that ten labels divide, as those of the experiments; others cannot even reach degree 0."""
    samples, degrees = 10 * tens, [Fraction(t, 1000) for t in thousandths]
    for mix, degree in zip(at_degrees(PARTITIONS[name], degrees, 10, samples), degrees, strict=True):
        assert mix.samples == samples
        assert abs(mix.degree - degree) <= Fraction(1, samples)
