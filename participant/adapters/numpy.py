"""Tasks in plain NumPy.

FunctionTask         your own function over arrays
SoftmaxRegression    multinomial logistic regression by mini-batch gradient descent:
                     p(i | x) = softmax(x W^T + b)_i, weights {"bias": (I,), "weight": (I, d)}
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpeer.learning.labels import Classes
from mechanism.terms import Terms
from mechanism.variation import FOLLOWED
from participant.adapters.fitting import CountedTask, LinearTask, check_finite, kept, tried
from participant.adapters.following import check_followed, keep, wished
from participant.task import Counts, Trained, TrainingRound, Weights

#: (weights, round) to the new weights, or a `Trained`.
TrainFunction = Callable[[Weights, TrainingRound], Weights | Trained]


class FunctionTask(CountedTask):
    """A task made of functions, for those who would rather not write a class.

    Args:
        train: see `Task.train`.
        counts: counts of the data as they are; see `Task.counts`.
        collect: effort to the counts that it brings about; None: effort changes nothing.
    """

    def __init__(
        self,
        train: TrainFunction,
        counts: Counts,
        collect: Callable[[float], Counts] | None = None,
    ) -> None:
        super().__init__(counts)
        self._train = train
        self._collect = collect

    def collect(self, effort: float) -> None:
        if self._collect is not None:
            self._counts = kept(self._collect(effort), self._terms)

    def train(self, weights: Weights, round: TrainingRound) -> Weights | Trained:  # noqa: A002 - as Task.train
        return self._train(weights, round)


class SoftmaxRegression(LinearTask):
    """Multinomial logistic regression on the participant's own arrays, by the task's recipe.

    Args:
        inputs: shape (n, d), real and finite.
        labels: shape (n,), whole numbers in [0, I), or class names.
        classes: I, or the learner's list of class names in the reference's order.
        l2: weight decay, >= 0, kept within what the terms allow.
        recipe: how one would rather train, such as {"epochs": 6}: parts of `mechanism.terms.Recipe`, followed as nearly
            as the terms allow.
        seed: decides the order of the samples.
    """

    def __init__(
        self,
        inputs: npt.ArrayLike,
        labels: npt.ArrayLike,
        *,
        classes: Classes,
        l2: float = 0.0,
        seed: int = 0,
        recipe: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(inputs, labels, classes, np.float32, seed)
        self.wishes = wished({**({"weight_decay": l2} if l2 else {}), **(recipe or {})})

    def start_weights(self) -> dict[str, npt.NDArray[Any]]:
        return {
            "bias": np.zeros(self.classes, np.float32),
            "weight": np.zeros((self.classes, self.inputs.shape[1]), np.float32),
        }

    def prepare(self, terms: Terms) -> None:
        """Refuses a task whose model is not of these shapes, and one that a step fails in."""
        check_followed(terms.recipe, FOLLOWED | {"weight_decay"}, "SoftmaxRegression")
        recipe = keep(terms.recipe, self.wishes, say=True)
        start = self.zeros(terms)
        batch = np.arange(min(len(self.labels), recipe.batch_size))
        with tried():
            self._step(start["weight"], start["bias"], batch, float(recipe.learning_rate))
        check_finite(start)

    def train(self, weights: Weights, round: TrainingRound) -> Trained:  # noqa: A002 - as Task.train
        weight, bias = np.array(weights["weight"]), np.array(weights["bias"])
        recipe, generator = keep(round.recipe, self.wishes), np.random.default_rng(round.seed(self.seed))
        rate, mu = float(recipe.learning_rate), float(recipe.proximal)
        decay = 1 - rate * float(recipe.weight_decay)
        for epoch in range(recipe.epochs):
            order = generator.permutation(len(self.labels))
            for first in range(0, len(order), recipe.batch_size):
                pull = mu * (weight - weights["weight"]), mu * (bias - weights["bias"])
                weight *= decay
                bias *= decay
                self._step(weight, bias, order[first : first + recipe.batch_size], rate)
                weight -= rate * pull[0]
                bias -= rate * pull[1]
            round.progress((epoch + 1) / recipe.epochs)
        trained = {"bias": bias, "weight": weight}
        return Trained(trained, len(self.labels), self.metrics(trained))

    def _step(
        self, weight: npt.NDArray[Any], bias: npt.NDArray[Any], batch: npt.NDArray[np.int64], rate: float
    ) -> None:
        """One step of gradient descent on a batch, in place."""
        error = self._probabilities(weight, bias, batch)
        error[np.arange(len(batch)), self.labels[batch]] -= 1
        error /= len(batch)
        weight -= rate * (error.T @ self.inputs[batch])
        bias -= rate * error.sum(axis=0)

    def metrics(self, weights: Weights) -> Mapping[str, float]:
        everything = np.arange(len(self.labels))
        probabilities = self._probabilities(weights["weight"], weights["bias"], everything)
        likelihood = probabilities[everything, self.labels].astype(np.float64)
        return {
            "loss": float(-np.log(np.maximum(likelihood, np.finfo(np.float64).tiny)).mean()),
            "accuracy": float((probabilities.argmax(axis=1) == self.labels).mean()),
        }

    def _probabilities(
        self, weight: npt.NDArray[Any], bias: npt.NDArray[Any], rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        logits = self.inputs[rows] @ weight.T + bias
        logits -= logits.max(axis=1, keepdims=True)
        shares: npt.NDArray[np.float32] = np.exp(logits)
        shares /= shares.sum(axis=1, keepdims=True)
        return shares
