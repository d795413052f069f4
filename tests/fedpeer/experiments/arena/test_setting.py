"""The arena's population."""

import numpy as np

from fedpeer.experiments.accuracy.trial import drawn
from fedpeer.experiments.arena.setting import ArenaSetting, make_population


def test_honest_traders_have_as_few_samples_in_common_as_there_are_samples_for() -> None:
    """Digits' pool has 1,037 samples: enough for six of 150, and not for eight."""
    for participants, most in ((6, 1), (8, 2)):
        population = make_population(ArenaSetting("digits", ("verified",), (), participants), 0)
        found = population.apart()
        used = np.zeros(len(population.pool), dtype=np.int64)
        for trader in population.traders:
            rows = found[trader.name]
            counts = np.bincount(population.pool_codes[rows], minlength=len(population.reference))
            assert tuple(counts) == trader.optimal.counts
            used[rows] += 1
        assert used.max() == most


def test_what_others_have_is_taken_last() -> None:
    codes, generator = np.repeat([0, 1], 10), np.random.default_rng(0)
    taken = np.zeros(20, dtype=np.int64)
    taken[:8] = 1
    rows = drawn(codes, [3, 4], generator, taken)
    assert {8, 9} < set(rows[codes[rows] == 0])
    assert len(set(rows)) == 7
