"""The paper's architectures as workloads."""

from collections.abc import Sequence
from dataclasses import replace

from fedpeer.learning.datasets import LabelledData
from fedpeer.learning.models import Weights, architecture
from fedpeer.learning.samples import Samples
from fedpeer.learning.stacked import train_many
from fedpeer.learning.workloads.protocol import NewWeights
from fedpeer.learning.workloads.torch import TorchWorkload
from mechanism.terms import Recipe


class CnnWorkload(TorchWorkload):
    """An architecture of `fedpeer.learning.models` on images of shape (n, channels, height, width), float32.

    Raises:
        ModelError: no such architecture.
    """

    def __init__(self, name: str) -> None:
        form = architecture(name)
        self._name = name
        super().__init__(form.module, classes=form.classes)

    def train_many(
        self, weights: Weights, samples: Sequence[Samples], recipe: Recipe, seeds: Sequence[int]
    ) -> list[NewWeights]:
        """All at once where images are small: `fedpeer.learning.stacked`."""
        data = [
            LabelledData(self._name, part.inputs, part.targets, architecture(self._name).classes)  # type: ignore[arg-type]  # an array, or LabelledData says what it is
            for part in samples
        ]
        return train_many(weights, data, replace(recipe, model=self._name), seeds)
