"""How far a model tells labels apart: the permutation test that decides whether labels are noise."""

from itertools import permutations

import numpy as np
import pytest

from fedpeer.learning.training import label_signal

LABELS = np.array([0, 0, 1, 1, 1, 2, 2])


def test_it_is_the_mean_and_the_deviation_over_all_permutations() -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(3), 7)
    sums = [p[np.arange(7), list(labels)].sum() for labels in permutations(LABELS)]
    expected = (p[np.arange(7), LABELS].sum() - np.mean(sums)) / np.std(sums)
    assert label_signal(np.log(p).astype(np.float32), LABELS) == pytest.approx(expected, rel=1e-4)


def test_the_same_outputs_for_all_know_nothing() -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(3))
    assert label_signal(np.log(np.tile(p, (7, 1))).astype(np.float32), LABELS) == 0
