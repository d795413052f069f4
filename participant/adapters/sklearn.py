"""Tasks for scikit-learn's linear models with `partial_fit`: SGDClassifier, Perceptron, PassiveAggressive...

What travels is {"coef_": (I, d), "intercept_": (I,)}, or (1, d) and (1,) for two labels, as scikit-learn has it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone

from mechanism.terms import Terms
from participant.errors import TaskError
from participant.task import Task, Trained, TrainingRound, Weights


class SklearnTask(Task):
    """Trains a linear classifier by `partial_fit`, one pass over the data for each epoch of the recipe.

    Args:
        estimator: unfitted; its own settings (loss, learning rate, penalty) decide how it learns. Averaging
            (`average=True`) keeps a second set of coefficients and is refused.
        inputs: shape (n, d).
        labels: shape (n,), integers in [0, classes).
        classes: number of labels I.
        seed: decides the order of the samples.
    """

    def __init__(
        self, estimator: Any, inputs: npt.ArrayLike, labels: npt.ArrayLike, *, classes: int, seed: int = 0
    ) -> None:
        if not hasattr(estimator, "partial_fit"):
            raise TaskError(f"{type(estimator).__name__} has no partial_fit; use SGDClassifier, for one")
        if getattr(estimator, "average", False):
            raise TaskError("an averaging estimator keeps two sets of coefficients; set average=False")
        self.inputs = np.asarray(inputs, dtype=np.float64)
        self.labels = np.asarray(labels, dtype=np.int64)
        if self.inputs.ndim != 2 or self.labels.shape != self.inputs.shape[:1]:
            raise TaskError(
                f"inputs have shape {self.inputs.shape} and labels {self.labels.shape}; expected (n, d) and (n,)"
            )
        self.estimator = estimator
        self.classes = classes
        self.seed = seed

    def start_weights(self) -> dict[str, npt.NDArray[Any]]:
        """Zeros of the right shapes: what a learner would publish."""
        rows = 1 if self.classes == 2 else self.classes
        return {"coef_": np.zeros((rows, self.inputs.shape[1])), "intercept_": np.zeros(rows)}

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
        model, epochs = self._at(weights), round.recipe.epochs
        generator = np.random.default_rng(round.seed(self.seed))
        for epoch in range(epochs):
            order = generator.permutation(len(self.labels))
            model.partial_fit(self.inputs[order], self.labels[order])
            round.progress((epoch + 1) / epochs)
        trained = {"coef_": np.array(model.coef_), "intercept_": np.array(model.intercept_)}
        return Trained(trained, len(self.labels), {"accuracy": float(model.score(self.inputs, self.labels))})

    def metrics(self, weights: Weights) -> Mapping[str, float]:
        return {"accuracy": float(self._at(weights).score(self.inputs, self.labels))}

    def _at(self, weights: Weights) -> Any:
        """A fresh estimator that stands at `weights`."""
        model = clone(self.estimator)
        # The first call allocates what later ones update in place.
        model.partial_fit(self.inputs[:1], self.labels[:1], classes=np.arange(self.classes))
        model.coef_ = np.array(weights["coef_"], dtype=model.coef_.dtype, order="C")
        model.intercept_ = np.array(weights["intercept_"], dtype=model.intercept_.dtype)
        if hasattr(model, "t_"):
            model.t_ = 1.0  # the step that learning rates which decay count from
        return model
