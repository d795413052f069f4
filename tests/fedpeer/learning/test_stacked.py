"""Stacked training is the same training, only for many models at once."""

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest

from fedpeer.learning.datasets import load_splits
from fedpeer.learning.errors import DataError
from fedpeer.learning.models import initial_weights
from fedpeer.learning.stacked import STACK, train_many
from fedpeer.learning.training import evaluate, train
from mechanism.terms import Recipe

pytestmark = pytest.mark.arithmetic

RECIPE = Recipe(
    "digits-cnn", epochs=2, batch_size=20, optimizer="sgd", learning_rate=Decimal("0.01"), samples=70
)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_each_model_ends_where_training_alone_ends(optimizer: str) -> None:
    splits, start = load_splits("digits", seed=0), initial_weights("digits-cnn", 0)
    recipe = replace(RECIPE, optimizer=optimizer)
    samples = [splits.train.select(np.arange(70 * j, 70 * (j + 1))) for j in range(STACK + 2)]
    stacked = train_many(start, samples, recipe, range(STACK + 2))
    for j in (0, STACK + 1):
        alone = train(start, samples[j], recipe, seed=j)
        for name, array in alone.items():
            assert stacked[j][name].dtype == array.dtype
            if optimizer == "sgd":
                assert np.allclose(stacked[j][name], array, atol=1e-4), name
        losses = [evaluate(w, splits.validation, "digits-cnn").loss for w in (alone, stacked[j])]
        assert losses[0] == pytest.approx(losses[1], abs=0.02)


def test_large_images_are_trained_in_turn_to_the_bit() -> None:
    generator = np.random.default_rng(0)
    from fedpeer.learning.datasets import LabelledData

    data = LabelledData(
        "x", generator.random((12, 1, 28, 28), dtype=np.float32), generator.integers(0, 10, 12), 10
    )
    recipe = replace(RECIPE, model="fashion-mnist-cnn", epochs=1, batch_size=6)
    start = initial_weights("fashion-mnist-cnn", 0)
    (stacked,) = train_many(start, [data], recipe, [3])
    alone = train(start, data, recipe, seed=3)
    assert all(np.array_equal(stacked[name], alone[name]) for name in alone)


def test_sets_of_different_sizes_are_refused() -> None:
    splits, start = load_splits("digits", seed=0), initial_weights("digits-cnn", 0)
    with pytest.raises(DataError, match="data sets of one size"):
        train_many(start, [splits.train, splits.test], RECIPE, [0, 1])
    assert train_many(start, [], RECIPE, []) == []
