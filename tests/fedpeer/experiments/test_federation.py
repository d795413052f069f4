"""Federated averaging on real digits: reproducible, weighted, and it learns."""

import numpy as np
import pytest

from fedpeer.experiments.cells import compute
from fedpeer.experiments.data import pools, splits
from fedpeer.experiments.federation import federation_cell, federation_parameters, rounds
from fedpeer.experiments.populations import SHARES
from fedpeer.experiments.settings import EPOCHS_ONCE, Settings
from fedpeer.learning.datasets import load_splits

pytestmark = pytest.mark.arithmetic

SETTINGS = Settings("digits", rounds=2, seeds=1, quick=True)


def _counts(level: int) -> list[tuple[int, ...]]:
    return [SHARES.mix(k, SHARES.levels[level], 10, SETTINGS.samples).counts for k in range(4)]


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others() -> None:
    one, again, other = (
        federation_cell(federation_parameters(SETTINGS, _counts(1), EPOCHS_ONCE, seed, track=(0, 1)), "cpu")
        for seed in (0, 0, 1)
    )
    assert one == again
    assert one != other
    assert [row["round"] for row in one["global"]] == [1, 2]
    assert [(row["round"], row["participant"]) for row in one["local"]] == [(1, 0), (1, 1), (2, 0), (2, 1)]


def test_local_models_are_evaluated_in_every_nth_round_and_in_the_last() -> None:
    settings = Settings("digits", rounds=3, seeds=1)
    parameters = federation_parameters(settings, _counts(0), EPOCHS_ONCE, 0, track=(2,), every=2)
    assert [row["round"] for row in federation_cell(parameters, "cpu")["local"]] == [2, 3]


def test_balanced_participants_learn_digits_in_a_few_rounds() -> None:
    parameters = federation_parameters(Settings("digits", rounds=3), _counts(0), 5, 0)
    result, took = compute("federation", parameters, "cpu")
    assert result["global"][-1]["accuracy"] > 0.85
    assert took.seconds > 0
    assert took.cpu_seconds > 0


def test_each_round_trains_on_fresh_samples_of_the_same_labels() -> None:
    parts = splits("digits", 0)
    first, second = rounds(parts, SETTINGS.recipe(EPOCHS_ONCE), _counts(2), 2, 0)
    for k, counts in enumerate(_counts(2)):
        assert first.samples[k].counts() == counts == second.samples[k].counts()
        assert not np.array_equal(first.samples[k].images, second.samples[k].images)
    assert second.start is first.merged


def test_participants_hold_disjoint_parts_where_the_data_suffice_and_else_share() -> None:
    train = load_splits("digits", seed=0).train
    apart = pools(train, 4, samples=20, seed=0)
    assert [len(part) for part in apart] == [len(train) // 4] * 4
    seen = {image.tobytes() for part in apart for image in part.images}
    assert len(seen) >= 0.99 * sum(map(len, apart))
    assert pools(train, 10, samples=100, seed=0) == [train] * 10
