"""Models that were sent out before a round's start, as directions from it.

A submission that repeats one of them is an echo. But who takes part moves them too: with three participants a third of
the step from one start to the next is one's own update, and who trains on the same samples in the next round moves
further that way. Shadows have no part in any step. So a participant is held against the steps that the others took,
without what it added itself, which is what shadows are held against.

With u_k the update of participant k in a round, w_k its part in the mean and s the step to the next start, the others'
step is (s - c w_k u_k) / (1 - w_k). c is 1 where the next start is the mean; of a server's optimiser it is the length
of the step along the mean, over the mean's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedpeer.evidence.observing import Observer
from fedpeer.evidence.sketch import Array
from fedpeer.learning.models import Weights
from fedpeer.protocol.model_file import open_model

#: A model, or the file that it is in.
Model = Weights | Path


@dataclass(frozen=True)
class Broadcast:
    """A model that the coordinator sent out before this round's start.

    Attributes:
        merged: what came back and was merged into the next one: the models by participant id, each with its samples.
        plain: whether the next one is their mean, not what a server's optimiser makes of it.
    """

    label: str
    model: Model
    merged: Mapping[str, tuple[Model, int]] = field(default_factory=dict)
    plain: bool = True

    def weights(self) -> Weights:
        return opened(self.model)


class SentModels:
    """Earlier models, oldest first, as sketched directions from the start that `observer` has.

    Attributes:
        directions: from the start to each.
    """

    def __init__(self, observer: Observer, broadcasts: Sequence[Broadcast]) -> None:
        self._observer, self._broadcasts = observer, tuple(broadcasts)
        self.directions = [observer.sketch(each.weights()) for each in self._broadcasts]
        self.labels = tuple(each.label for each in self._broadcasts)
        ends = [*self.directions[1:], *(np.zeros_like(d) for d in self.directions[-1:])]
        self._steps = [end - begin for begin, end in zip(self.directions, ends, strict=True)]
        self._scales = [self._scale(place) for place in range(len(self._broadcasts))]

    def without(self, name: str) -> list[Array]:
        """`directions` as the others alone would have made them."""
        steps = [self._others_step(place, name) for place in range(len(self._steps))]
        return list(-np.cumsum(steps[::-1], axis=0)[::-1])

    def _others_step(self, place: int, name: str) -> Array:
        step, merged = self._steps[place], self._broadcasts[place].merged
        if name not in merged:
            return step
        part = merged[name][1] / sum(samples for _, samples in merged.values())
        if part >= 1:
            return np.zeros_like(step)
        return (step - self._scales[place] * part * self._update(place, name)) / (1 - part)

    def _update(self, place: int, name: str) -> Array:
        return self._observer.sketch(opened(self._broadcasts[place].merged[name][0])) - self.directions[place]

    def _scale(self, place: int) -> float:
        """c of the module's text."""
        broadcast = self._broadcasts[place]
        if broadcast.plain or not broadcast.merged:
            return 1.0
        whole = sum(samples for _, samples in broadcast.merged.values())
        mean = np.zeros_like(self._steps[place])
        for name, (_, samples) in broadcast.merged.items():
            mean += samples / whole * self._update(place, name)
        length = float(mean @ mean)
        return max(float(self._steps[place] @ mean) / length, 0.0) if length > 0 else 1.0


def opened(model: Model) -> Weights:
    """The tensors of a model."""
    return open_model(model).weights() if isinstance(model, Path) else model
