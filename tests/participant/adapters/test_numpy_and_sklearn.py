"""The NumPy and scikit-learn tasks on real digits."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import PassiveAggressiveClassifier, Perceptron, SGDClassifier

from fedpeer.learning.partition import uniform_reference
from fedpeer.protocol.model_file import encode_model
from mechanism.terms import Recipe, Terms
from participant.adapters.numpy import FunctionTask, SoftmaxRegression
from participant.adapters.sklearn import SklearnTask
from participant.errors import TaskError
from participant.task import TrainingRound
from tests.participant.adapters.test_torch import terms_for

pytestmark = pytest.mark.arithmetic

INPUTS, LABELS = load_digits(return_X_y=True)
INPUTS = INPUTS / 16


def terms(weights: dict[str, Any], classes: int = 10) -> Terms:
    made = terms_for(weights, Recipe("custom", 4, 32, "sgd", Decimal("0.2"), 100))
    object.__setattr__(made, "reference", uniform_reference(classes))
    return made


MAKERS: dict[str, Callable[[], SoftmaxRegression | SklearnTask]] = {
    "softmax": lambda: SoftmaxRegression(INPUTS, LABELS, classes=10),
    "sgd": lambda: SklearnTask(SGDClassifier(loss="log_loss", random_state=0), INPUTS, LABELS, classes=10),
    "perceptron": lambda: SklearnTask(Perceptron(random_state=0), INPUTS, LABELS, classes=10),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_it_learns_goes_on_and_is_reproducible(kind: str) -> None:
    task = MAKERS[kind]()
    published = terms(task.start_weights())
    task.prepare(published)
    assert sum(task.label_counts()) == len(LABELS)
    done: list[float] = []
    first = task.train(
        task.start_weights(), TrainingRound(published, "ada", 1, None, lambda share, _: done.append(share))
    )
    assert done == [0.25, 0.5, 0.75, 1.0]
    assert first.metrics["accuracy"] > 0.85
    assert first.samples == len(LABELS)
    assert {n: (a.shape, a.dtype) for n, a in first.weights.items()} == {
        n: (a.shape, a.dtype) for n, a in task.start_weights().items()
    }
    again = MAKERS[kind]().train(task.start_weights(), TrainingRound(published, "ada", 1))
    assert encode_model(again.weights) == encode_model(first.weights)
    assert task.metrics(first.weights)["accuracy"] == pytest.approx(first.metrics["accuracy"])
    assert task.metrics(task.start_weights())["accuracy"] < 0.3, "metrics are of the weights that are given"


def test_training_starts_from_the_weights_that_are_given() -> None:
    task = MAKERS["sgd"]()
    published = terms(task.start_weights())
    first = task.train(task.start_weights(), TrainingRound(published, "ada", 1))
    second = task.train(first.weights, TrainingRound(published, "ada", 2))
    fresh = task.train(task.start_weights(), TrainingRound(published, "ada", 2))
    assert encode_model(second.weights) != encode_model(fresh.weights)


def test_two_labels_have_one_row() -> None:
    two = LABELS < 2
    task = SklearnTask(SGDClassifier(random_state=0), INPUTS[two], LABELS[two], classes=2)
    assert task.start_weights()["coef_"].shape == (1, 64)
    published = terms(task.start_weights(), classes=2)
    task.prepare(published)
    made = task.train(task.start_weights(), TrainingRound(published, "ada", 1))
    assert made.metrics["accuracy"] > 0.95


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SklearnTask(object(), INPUTS, LABELS, classes=10), "has no partial_fit"),
        (lambda: SklearnTask(SGDClassifier(average=True), INPUTS, LABELS, classes=10), "average=False"),
        (lambda: SklearnTask(SGDClassifier(early_stopping=True), INPUTS, LABELS, classes=10), "stops early"),
        (lambda: SklearnTask(PassiveAggressiveClassifier(), INPUTS, LABELS[:5], classes=10), r"\(n, d\)"),
        (lambda: SoftmaxRegression(INPUTS[0], LABELS, classes=10), r"\(n, d\)"),
    ],
)
def test_what_cannot_be_used_is_refused(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(TaskError, match=words):
        make()


@pytest.mark.parametrize("kind", ["softmax", "sgd"])
def test_a_task_of_other_features_is_refused(kind: str) -> None:
    task = MAKERS[kind]()
    other = {
        name: np.zeros((3, *array.shape[1:]), array.dtype) for name, array in task.start_weights().items()
    }
    with pytest.raises(TaskError, match="the learner's features and labels"):
        task.prepare(terms(other))


def test_functions_make_a_task() -> None:
    task = FunctionTask(
        lambda weights, _: {name: array + 1 for name, array in weights.items()},
        [5, 1],
        collect=lambda effort: [5, 1 + round(4 * effort)],
    )
    assert task.label_counts() == (5, 1)
    task.collect(0.5)
    assert task.label_counts() == (5, 3)
    start = {"w": np.zeros(2, np.float32)}
    made = task.train(start, TrainingRound(terms(start, 2), "ada", 1))
    assert np.array_equal(made["w"], [1, 1])  # type: ignore[index]  # bare weights: the function returned them
