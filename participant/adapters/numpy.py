"""Tasks in plain NumPy.

FunctionTask         your own function over arrays
SoftmaxRegression    multinomial logistic regression by mini-batch gradient descent:
                     p(i | x) = softmax(x W^T + b)_i, weights {"bias": (I,), "weight": (I, d)}
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mechanism.terms import Terms
from participant.errors import TaskError
from participant.task import Task, Trained, TrainingRound, Weights

#: (weights, round) to the new weights, or a `Trained`.
TrainFunction = Callable[[Weights, TrainingRound], Weights | Trained]


class FunctionTask(Task):
    """A task made of functions, for who would rather not write a class.

    Args:
        train: see `Task.train`.
        counts: label counts of the data as they are.
        collect: effort to the label counts that it brings about; None: effort changes nothing.
    """

    def __init__(
        self,
        train: TrainFunction,
        counts: Sequence[int],
        collect: Callable[[float], Sequence[int]] | None = None,
    ) -> None:
        self._train = train
        self._counts = tuple(counts)
        self._collect = collect

    def label_counts(self) -> Sequence[int]:
        return self._counts

    def collect(self, effort: float) -> None:
        if self._collect is not None:
            self._counts = tuple(self._collect(effort))

    def train(self, weights: Weights, round: TrainingRound) -> Weights | Trained:  # noqa: A002 - as Task.train
        return self._train(weights, round)


class SoftmaxRegression(Task):
    """Multinomial logistic regression on the participant's own arrays, by the task's recipe.

    Args:
        inputs: shape (n, d).
        labels: shape (n,), integers in [0, classes).
        classes: number of labels I.
        l2: weight decay, >= 0.
        seed: decides the order of the samples.
    """

    def __init__(
        self, inputs: npt.ArrayLike, labels: npt.ArrayLike, *, classes: int, l2: float = 0.0, seed: int = 0
    ) -> None:
        self.inputs = np.asarray(inputs, dtype=np.float32)
        self.labels = np.asarray(labels, dtype=np.int64)
        self.classes, self.l2, self.seed = classes, l2, seed
        if self.inputs.ndim != 2 or self.labels.shape != self.inputs.shape[:1]:
            raise TaskError(
                f"inputs have shape {self.inputs.shape} and labels {self.labels.shape}; expected (n, d) and (n,)"
            )

    def start_weights(self) -> dict[str, npt.NDArray[Any]]:
        """Zeros of the right shapes: what a learner would publish."""
        return {
            "bias": np.zeros(self.classes, np.float32),
            "weight": np.zeros((self.classes, self.inputs.shape[1]), np.float32),
        }

    def prepare(self, terms: Terms) -> None:
        """Refuses a task whose model is not of these shapes."""
        wanted = {spec.name: spec.shape for spec in terms.contract.tensors}
        own = {name: array.shape for name, array in self.start_weights().items()}
        if wanted != own:
            raise TaskError(
                f"the task's model is {wanted}, this one {own}; use the learner's features and labels"
            )

    def label_counts(self) -> Sequence[int]:
        counts: list[int] = np.bincount(self.labels, minlength=self.classes).tolist()
        return counts

    def train(self, weights: Weights, round: TrainingRound) -> Trained:  # noqa: A002 - as Task.train
        weight, bias = np.array(weights["weight"]), np.array(weights["bias"])
        recipe, generator = round.recipe, np.random.default_rng(round.seed(self.seed))
        rate = float(recipe.learning_rate)
        for epoch in range(recipe.epochs):
            order = generator.permutation(len(self.labels))
            for first in range(0, len(order), recipe.batch_size):
                batch = order[first : first + recipe.batch_size]
                inputs, error = self.inputs[batch], self._probabilities(weight, bias, batch)
                error[np.arange(len(batch)), self.labels[batch]] -= 1
                error /= len(batch)
                weight -= rate * (error.T @ inputs + self.l2 * weight)
                bias -= rate * error.sum(axis=0)
            round.progress((epoch + 1) / recipe.epochs)
        trained = {"bias": bias, "weight": weight}
        return Trained(trained, len(self.labels), self.metrics(trained))

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
