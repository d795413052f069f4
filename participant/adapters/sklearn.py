"""Tasks for scikit-learn's linear models with `partial_fit`: SGDClassifier, Perceptron, PassiveAggressive...

What travels is {"coef_": (I, d), "intercept_": (I,)}, or (1, d) and (1,) for two labels, as scikit-learn has it.
The estimator computes in float64; what is returned is rounded to the type that the task's model has, float32 for one.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone, is_classifier

from fedpeer.learning.labels import Classes
from mechanism.terms import Terms
from mechanism.variation import FOLLOWED
from participant.adapters.fitting import LinearTask, check_finite, tried
from participant.adapters.following import check_followed
from participant.errors import TaskError
from participant.task import Trained, TrainingRound, Weights

#: Samples of the pass that is tried before the claim.
_TRIED = 64


class SklearnTask(LinearTask):
    """Trains a linear classifier by `partial_fit`, one pass over the data for each epoch of the recipe.

    Args:
        estimator: unfitted; its own settings (loss, learning rate, penalty) decide how it learns. Averaging
            (`average=True`) keeps a second set of coefficients and is refused, as is `early_stopping=True`.
        inputs: shape (n, d), real and finite.
        labels: shape (n,), whole numbers in [0, I), or class names.
        classes: I, or the learner's list of class names in the reference's order.
        seed: decides the order of the samples.
    """

    def __init__(
        self, estimator: Any, inputs: npt.ArrayLike, labels: npt.ArrayLike, *, classes: Classes, seed: int = 0
    ) -> None:
        name = type(estimator).__name__
        if not hasattr(estimator, "partial_fit"):
            raise TaskError(f"{name} has no partial_fit; use SGDClassifier, for one")
        if not is_classifier(estimator):
            raise TaskError(
                f"{name} is not a classifier, and labels are what a claim counts; use SGDClassifier, for one"
            )
        if getattr(estimator, "average", False):
            raise TaskError("an averaging estimator keeps two sets of coefficients; set average=False")
        if getattr(estimator, "early_stopping", False) is True:
            raise TaskError(
                "an estimator that stops early holds samples back; set early_stopping=False, since the recipe says how "
                "many epochs there are"
            )
        super().__init__(inputs, labels, classes, np.float64, seed)
        self.estimator = estimator

    def start_weights(self) -> dict[str, npt.NDArray[Any]]:
        rows = 1 if self.classes == 2 else self.classes
        return {"coef_": np.zeros((rows, self.inputs.shape[1])), "intercept_": np.zeros(rows)}

    def prepare(self, terms: Terms) -> None:
        """Refuses a task whose model is not of these shapes, and one that a pass over a few samples fails in."""
        if terms.recipe.proximal:
            raise TaskError(
                f"the recipe has a proximal term of {terms.recipe.proximal:f}, which partial_fit cannot add; use "
                "SoftmaxRegression or TorchTask, or stay out"
            )
        check_followed(terms.recipe, FOLLOWED, "SklearnTask")
        start = self.zeros(terms)
        with tried():
            model = self._at(start)
            rows = slice(min(len(self.labels), _TRIED))
            model.partial_fit(self.inputs[rows], self.labels[rows])
            check_finite(self._weights(model, start))
            model.score(self.inputs[rows], self.labels[rows])

    def train(self, weights: Weights, round: TrainingRound) -> Trained:  # noqa: A002 - as Task.train
        model, epochs = self._at(weights), round.recipe.epochs
        generator = np.random.default_rng(round.seed(self.seed))
        for epoch in range(epochs):
            order = generator.permutation(len(self.labels))
            model.partial_fit(self.inputs[order], self.labels[order])
            round.progress((epoch + 1) / epochs)
        trained = self._weights(model, weights)
        return Trained(trained, len(self.labels), {"accuracy": float(model.score(self.inputs, self.labels))})

    def metrics(self, weights: Weights) -> Mapping[str, float]:
        return {"accuracy": float(self._at(weights).score(self.inputs, self.labels))}

    def _weights(self, model: Any, start: Weights) -> dict[str, npt.NDArray[Any]]:
        """The model's coefficients, each rounded to the nearest of the type in which the task has it."""
        return {
            name: np.array(getattr(model, name)).astype(start[name].dtype) for name in self.start_weights()
        }

    def _at(self, weights: Weights) -> Any:
        """A fresh estimator that stands at `weights`."""
        model = clone(self.estimator)
        # The first call allocates what later ones update in place.
        model.partial_fit(self.inputs[:1], self.labels[:1], classes=np.arange(self.classes))
        for name, shape in ((n, a.shape) for n, a in self.start_weights().items()):
            own: Any = getattr(model, name, None)
            if not isinstance(own, np.ndarray) or own.shape != shape:
                raise TaskError(
                    f"{type(model).__name__} keeps no {name} of shape {shape}, so it is not a linear model that can "
                    "travel; use SGDClassifier, for one"
                )
            setattr(model, name, np.ascontiguousarray(weights[name].astype(own.dtype)))
        if hasattr(model, "t_"):
            model.t_ = 1.0  # the step that learning rates which decay count from
        return model
