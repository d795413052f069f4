"""Training repeats to the bit and learns; evaluation says how well, overall and by label."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch

from fedpeer.learning.datasets import LabelledData, Splits, load_splits
from fedpeer.learning.errors import DataError, ModelError
from fedpeer.learning.models import initial_weights
from fedpeer.learning.training import evaluate, log_probabilities, train
from mechanism.terms import Recipe

pytestmark = pytest.mark.arithmetic

RECIPE = Recipe(
    "digits-cnn", epochs=3, batch_size=20, optimizer="adam", learning_rate=Decimal("0.005"), samples=150
)


@pytest.fixture(scope="module")
def splits() -> Splits:
    return load_splits("digits", seed=0)


def same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return all(np.array_equal(first[name], second[name]) for name in first)


def test_the_same_seed_gives_the_same_bits_whatever_the_threads(splits: Splits) -> None:
    start, data = initial_weights("digits-cnn", 0), splits.train.select(np.arange(150))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        first = train(start, data, RECIPE, seed=5)
        torch.set_num_threads(2)
        again = train(start, data, RECIPE, seed=5)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert same(first, again)
    assert not same(first, train(start, data, RECIPE, seed=6))


def test_training_learns_and_leaves_its_start_alone(splits: Splits) -> None:
    start = initial_weights("digits-cnn", 0)
    kept = {name: array.copy() for name, array in start.items()}
    trained = train(start, splits.train.select(np.arange(150)), replace(RECIPE, epochs=8), seed=0)
    assert same(start, kept)
    before, after = (evaluate(weights, splits.validation, "digits-cnn") for weights in (start, trained))
    assert after.accuracy > 0.8 > 0.3 > before.accuracy
    assert after.loss < before.loss
    assert trained["norm1.num_batches_tracked"] == 8 * 8


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_last_batch_of_one_sample_is_left_out(splits: Splits, optimizer: str) -> None:
    recipe = replace(RECIPE, optimizer=optimizer, epochs=1)
    trained = train(initial_weights("digits-cnn", 0), splits.train.select(np.arange(41)), recipe, seed=0)
    assert trained["norm1.num_batches_tracked"] == 2
    assert all(np.isfinite(array).all() for array in trained.values())


def test_an_evaluation_is_the_mean_over_the_samples(splits: Splits) -> None:
    weights, data = initial_weights("digits-cnn", 0), splits.validation
    result = evaluate(weights, data, "digits-cnn")
    logs = log_probabilities(weights, data.images, "digits-cnn")
    assert np.allclose(np.exp(logs).sum(axis=1), 1, atol=1e-5)
    assert result.loss == pytest.approx(-logs[np.arange(len(data)), data.labels].mean())
    assert result.accuracy == pytest.approx((logs.argmax(axis=1) == data.labels).mean())


def test_a_label_without_samples_changes_nothing(splits: Splits) -> None:
    data = splits.validation.select(np.flatnonzero(splits.validation.labels != 4))
    assert np.isfinite(evaluate(initial_weights("digits-cnn", 0), data, "digits-cnn").loss)


def test_what_cannot_be_trained_or_evaluated_is_refused(splits: Splits) -> None:
    start = initial_weights("digits-cnn", 0)
    with pytest.raises(DataError, match="expected at least 2"):
        train(start, splits.train.select(np.arange(1)), RECIPE, seed=0)
    with pytest.raises(ModelError, match="there is no model 'custom'"):
        train(start, splits.train, replace(RECIPE, model="custom"), seed=0)
    with pytest.raises(ModelError, match="lack"):
        train({}, splits.train, RECIPE, seed=0)
    empty = LabelledData("digits", np.zeros((0, 1, 8, 8), np.float32), np.zeros(0, np.int64), 10)
    with pytest.raises(DataError):
        evaluate(start, empty, "digits-cnn")
