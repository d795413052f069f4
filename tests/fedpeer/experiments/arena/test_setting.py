"""The arena's population."""

import numpy as np
import pytest

from fedpeer.experiments.accuracy.trial import drawn
from fedpeer.experiments.arena.setting import ArenaSetting, make_population


def test_honest_traders_have_no_sample_in_common() -> None:
    """Digits' pool has 1,037 samples: enough for six of 150 of them, and not for the eight that are asked for."""
    for seed in range(3):
        population = make_population(ArenaSetting("digits", ("verified",), ()), seed)
        mixes = [trader.optimal for trader in population.traders]
        assert len(mixes) == 6
        found = population.apart(mixes)
        used = np.zeros(len(population.pool), dtype=np.int64)
        for mix, rows in zip(mixes, found, strict=True):
            counts = np.bincount(population.pool_codes[rows], minlength=len(population.reference))
            assert tuple(counts) == mix.counts
            used[rows] += 1
        assert used.max() == 1


@pytest.mark.extended
def test_a_large_pool_has_as_many_traders_as_are_asked_for() -> None:
    population = make_population(ArenaSetting("flights-mlp", ("verified",), ()), 0)
    assert len(population.traders) == ArenaSetting.participants


def test_a_trader_keeps_its_samples_and_takes_them_before_others() -> None:
    """So that whoever splits its data, or trains on part of them, has those that an honest one in its place has."""
    population = make_population(ArenaSetting("digits", ("verified",), ()), 0)
    optimal, _ = population.rows
    assert population.rows[0] is optimal
    for trader, rows in zip(population.traders, optimal, strict=True):
        generator = np.random.default_rng(5)
        again = drawn(population.pool_codes, trader.optimal.counts, generator, population.taken(trader))
        assert set(again) == set(rows)


def test_what_others_have_is_taken_last() -> None:
    codes, generator = np.repeat([0, 1], 10), np.random.default_rng(0)
    taken = np.zeros(20, dtype=np.int64)
    taken[:8] = 1
    rows = drawn(codes, [3, 4], generator, taken)
    assert {8, 9} < set(rows[codes[rows] == 0])
    assert len(set(rows)) == 7
