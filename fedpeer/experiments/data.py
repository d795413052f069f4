"""The data of one process: every data set is read once, and cut among the participants."""

from functools import lru_cache

import numpy as np

from fedpeer.experiments.settings import TEST_SAMPLES
from fedpeer.learning.datasets import LabelledData, Splits, load_splits, stratified_split


@lru_cache(maxsize=2)
def splits(dataset: str, seed: int) -> Splits:
    """The three parts of `dataset`; the test part is cut to `TEST_SAMPLES`, where it is longer."""
    test = None if dataset == "digits" else TEST_SAMPLES
    return load_splits(dataset, seed=seed, test=test)


def pools(train: LabelledData, participants: int, samples: int, seed: int) -> list[LabelledData]:
    """What each participant draws its rounds from.

    An even share of the whole, as in the paper, where a share has enough of every label for a round of one
    label alone; else (digits, CIFAR-100) all draw from the whole.
    """
    share = len(train) // participants
    if min(train.counts()) // participants < samples:
        return [train] * participants
    return list(stratified_split(train, (share,) * participants, seed))


def generator(*path: int) -> np.random.Generator:
    """A random stream of its own for every (seed, purpose, round, participant)."""
    return np.random.default_rng(path)
