"""scikit-learn's estimators as workloads.

    SklearnWorkload(SGDClassifier(loss="log_loss"), features=58, classes=10)
    SklearnWorkload(MLPRegressor(hidden_layer_sizes=(64, 32)), features=58)

Linear models travel as {"coef_", "intercept_"}, perceptrons as {"coefs_0", "intercepts_0", ...}, in float64, in which
scikit-learn computes. An estimator with `partial_fit` makes a pass over the samples for each epoch of the recipe; one
with `fit` alone is fitted once, from the weights where it has `warm_start`. A perceptron takes the recipe's optimizer,
learning rate and batch size; a linear model's own settings decide how it learns.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import has_fit_parameter

from fedpeer.learning.errors import DataError, ModelError
from fedpeer.learning.samples import Samples, Weights
from fedpeer.learning.workloads.protocol import Judged, NewWeights, check_layout
from mechanism.terms import Recipe

#: Seeds that scikit-learn takes.
_SEEDS = 2**32


class SklearnWorkload:
    """See the module's text.

    Args:
        estimator: unfitted.
        features: d, of inputs of shape (n, d).
        classes: of a classifier, whose targets are numbers from 0; None for a regressor.

    Raises:
        ModelError: an estimator that is neither linear nor a perceptron, or that is a classifier without `classes`, or
            the other way round.
    """

    def __init__(self, estimator: Any, *, features: int, classes: int | None = None) -> None:
        name = type(estimator).__name__
        if is_classifier(estimator) != (classes is not None):
            kind = "a classifier" if is_classifier(estimator) else "no classifier"
            raise ModelError(f"{name} is {kind}; expected classes={'I' if classes is None else None} with it")
        if getattr(estimator, "average", False):
            raise ModelError("an averaging estimator keeps two sets of coefficients; expected average=False")
        if getattr(estimator, "early_stopping", False) is True:
            raise ModelError(
                f"{name} has early_stopping=True, which holds samples back and ends when it likes; expected "
                "early_stopping=False: the recipe says how many epochs there are"
            )
        self._estimator, self._features, self.classes = estimator, features, classes
        self._perceptron = hasattr(estimator, "hidden_layer_sizes")
        self.trainable = tuple(self.build(0))
        epochs = {"epochs"} if hasattr(estimator, "partial_fit") else set()
        self.follows = frozenset(epochs | ({"batch_size", "learning_rate"} if self._perceptron else set()))

    def build(self, seed: int) -> NewWeights:
        return self._weights(self._fresh(seed))

    def train(
        self,
        weights: Weights,
        samples: Samples,
        recipe: Recipe,
        seed: int,
        on_epoch: Callable[[int], None] | None = None,
    ) -> NewWeights:
        inputs, targets = self._arrays(samples)
        settings: dict[str, Any] = {"random_state": seed % _SEEDS}
        if self._perceptron:
            settings |= {
                "solver": recipe.optimizer,
                "learning_rate_init": float(recipe.learning_rate),
                "batch_size": min(recipe.batch_size, len(samples)),
            }
        known = self._estimator.get_params()
        model = self._at(weights, {name: value for name, value in settings.items() if name in known})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            if hasattr(model, "partial_fit"):
                generator = np.random.default_rng(seed)
                for epoch in range(1, recipe.epochs + 1):
                    order = generator.permutation(len(samples))
                    model.partial_fit(inputs[order], targets[order])
                    if on_epoch is not None:
                        on_epoch(epoch)
                return self._weights(model)
            return self._weights(self._fitted(model, inputs, targets))

    def judge(self, weights: Weights, samples: Samples) -> Judged:
        inputs, targets = self._arrays(samples)
        model = self._at(weights, {})
        if self.classes is None:
            predicted = np.asarray(model.predict(inputs), dtype=np.float64).reshape(len(samples), -1)
            errors = (predicted - targets.reshape(len(samples), -1)) ** 2
            return Judged(errors.mean(axis=1), predicted)
        if self._perceptron:
            logs = np.log(np.maximum(model.predict_proba(inputs), np.finfo(np.float64).tiny))
        else:
            scores = inputs @ model.coef_.T + model.intercept_
            if scores.shape[1] == 1:  # two classes have one row of coefficients
                scores = np.concatenate([np.zeros_like(scores), scores], axis=1)
            scores = scores - scores.max(axis=1, keepdims=True)
            logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        return Judged(-logs[np.arange(len(samples)), targets], logs)

    def _arrays(self, samples: Samples) -> tuple[npt.NDArray[np.float64], npt.NDArray[Any]]:
        inputs = np.asarray(samples.inputs)
        if inputs.ndim != 2 or inputs.shape[1] != self._features or not len(inputs):
            raise DataError(
                f"the inputs have shape {inputs.shape}; expected (n, {self._features}), n at least 1"
            )
        targets = np.asarray(samples.targets)
        if self.classes is not None and not (
            targets.dtype.kind in "iu" and targets.min() >= 0 and targets.max() < self.classes
        ):
            raise DataError(f"the targets are no class numbers from 0 to {self.classes - 1}")
        return inputs.astype(np.float64), targets

    def _fresh(self, seed: int) -> Any:
        """An estimator whose weights are allocated: those of `seed` for a perceptron, zeros for a linear model."""
        model = clone(self._estimator)
        if "random_state" in model.get_params():
            model.set_params(random_state=seed % _SEEDS)
        rows = self.classes or 2
        inputs, targets = (
            np.zeros((rows, self._features)),
            np.arange(rows) * (1 if self.classes is not None else 0.0),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if self._perceptron:
                # No step is made: the weights are as they were drawn. What trains is the recipe's optimizer.
                model.set_params(
                    solver="adam", max_iter=1, learning_rate_init=1e-300, alpha=0.0, early_stopping=False
                )
            model.fit(inputs, targets)
        if not self._perceptron:
            for name in ("coef_", "intercept_"):
                if not isinstance(getattr(model, name, None), np.ndarray | float):
                    raise ModelError(
                        f"{type(model).__name__} keeps no {name}; expected a linear model or a perceptron"
                    )
                setattr(model, name, np.zeros_like(np.atleast_1d(getattr(model, name)), dtype=np.float64))
        return model

    def _weights(self, model: Any) -> NewWeights:
        if self._perceptron:
            return {
                f"{kind}_{layer}": np.array(array, dtype=np.float64)
                for kind in ("coefs", "intercepts")
                for layer, array in enumerate(getattr(model, f"{kind}_"))
            }
        return {
            name: np.array(np.atleast_1d(getattr(model, name)), dtype=np.float64)
            for name in ("coef_", "intercept_")
        }

    def _at(self, weights: Weights, settings: dict[str, Any]) -> Any:
        """An estimator that stands at `weights`, with other settings than its own where they are given."""
        model = self._fresh(0)
        check_layout(weights, self._weights(model))
        own = self._estimator.get_params()
        model.set_params(**{**own, **settings})
        if self._perceptron:
            for kind in ("coefs", "intercepts"):
                layers = range(len(getattr(model, f"{kind}_")))
                setattr(model, f"{kind}_", [np.array(weights[f"{kind}_{layer}"]) for layer in layers])
            # The moments of the fit that allocated the weights; the next pass begins new ones.
            vars(model).pop("_optimizer", None)
        else:
            for name in ("coef_", "intercept_"):
                setattr(model, name, np.array(weights[name]))
            if "warm_start" in own:
                model.set_params(warm_start=True)
        if hasattr(model, "t_"):
            model.t_ = (
                1.0 if not self._perceptron else 0
            )  # the step that learning rates which decay count from
        return model

    def _fitted(self, model: Any, inputs: npt.NDArray[np.float64], targets: npt.NDArray[Any]) -> Any:
        """`model.fit`; a classifier learns of classes that the samples lack by a sample without weight."""
        lacking = np.setdiff1d(np.arange(self.classes or 0), targets)
        if not len(lacking):
            return model.fit(inputs, targets)
        if not has_fit_parameter(model, "sample_weight"):
            raise DataError(
                f"the samples have nothing of the classes {lacking.tolist()}, and {type(model).__name__} takes no "
                "weights; expected an estimator with partial_fit, or one whose fit takes sample_weight"
            )
        weights = np.r_[np.ones(len(targets)), np.zeros(len(lacking))]
        rows = np.concatenate([inputs, np.repeat(inputs[:1], len(lacking), axis=0)])
        return model.fit(rows, np.r_[targets, lacking], sample_weight=weights)
