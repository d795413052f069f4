"""What needs no learning: the mean of the targets, or the shares of the classes.

The floor that a real model is held against, and the smallest workload there is.
"""

import numpy as np

from fedpeer.learning.errors import DataError
from fedpeer.learning.samples import Samples, Weights
from fedpeer.learning.workloads.protocol import Judged, NewWeights, check_layout
from mechanism.terms import Recipe

#: Added to every class's count, so that a class without samples has a probability.
_PRIOR_COUNT = 1.0


class MeanWorkload:
    """Predicts the mean of the targets that it was trained on, shape (width,); or, with `classes`, their shares.

    Attributes:
        classes: number of classes; None where targets are measured.
    """

    trainable = ("mean",)

    def __init__(self, *, width: int = 1, classes: int | None = None) -> None:
        self.classes, self.follows = classes, frozenset[str]()
        self._width = classes or width

    def build(self, seed: int) -> NewWeights:
        return {"mean": np.full(self._width, 0.0 if self.classes is None else 1 / self.classes)}

    def train(self, weights: Weights, samples: Samples, recipe: Recipe, seed: int) -> NewWeights:
        check_layout(weights, self.build(0))
        if not len(samples):
            raise DataError("training on no samples; expected at least 1")
        if self.classes is None:
            return {"mean": self._targets(samples).mean(axis=0)}
        counts = np.bincount(samples.targets, minlength=self.classes) + _PRIOR_COUNT
        return {"mean": counts / counts.sum()}

    def judge(self, weights: Weights, samples: Samples) -> Judged:
        check_layout(weights, self.build(0))
        said = np.broadcast_to(weights["mean"], (len(samples), self._width))
        if self.classes is None:
            return Judged(((said - self._targets(samples)) ** 2).mean(axis=1), said.copy())
        logs = np.log(np.maximum(said, np.finfo(np.float64).tiny))
        return Judged(-logs[np.arange(len(samples)), samples.targets], logs)

    def _targets(self, samples: Samples) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
        targets = np.asarray(samples.targets, dtype=np.float64)
        if targets.size != len(samples) * self._width:
            raise DataError(f"the targets have shape {targets.shape}; expected (n, {self._width})")
        return targets.reshape(len(samples), self._width)
