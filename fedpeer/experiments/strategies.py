"""Participants that are not honest, for the demo, the arena and tests. No part of the SDK.

    OverClaim   keeps its data as they are and claims the degree of well-balanced ones
    FreeRide    claims well-balanced data, has none, and returns the weights that it was sent, but for a hair

Each is a `Task` as an honest participant's is, so the same client, protocol and settlement see it.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from fedpeer.learning.partition import LabelMix, toward_reference
from mechanism.terms import Terms
from participant import Task, Trained, TrainingRound, Weights
from participant.adapters.torch import DatasetTask


class OverClaim(DatasetTask):
    """Trains honestly on the data that it has, which no effort improves, and reports counts that it has not.

    Args:
        claimed: the degree of the reported counts.
        others: as `DatasetTask`.
    """

    def __init__(self, dataset: str, *, claimed: float | str = "0.02", **others: Any) -> None:
        super().__init__(dataset, **others)
        self.claimed = Fraction(str(claimed))
        self.reported: LabelMix | None = None

    def collect(self, effort: float) -> None:
        """No effort is made, whatever was decided; only the report changes."""
        del effort
        start = self._prepared(self.start)
        self.reported = toward_reference(start, min(self.claimed, start.degree))

    def counts(self) -> Sequence[int]:
        return super().counts() if self.reported is None else self.reported.counts


class FreeRide(Task):
    """Has no data. Claims counts of the degree `claimed` and returns each round's weights with one of them moved by a
    millionth of the model's length: the SDK sends no model that nothing has moved.

    Args:
        samples: how many it pretends to have; default: what the recipe asks for.
        claimed: the degree of the reported counts.
    """

    def __init__(self, *, samples: int | None = None, claimed: float | str = "0.02") -> None:
        self.samples = samples
        self.claimed = Fraction(str(claimed))
        self.reported: LabelMix | None = None

    def prepare(self, terms: Terms) -> None:
        samples = self.samples or terms.recipe.samples
        # All on one label, moved toward the reference: a mix of any degree that a lie may want.
        skewed = LabelMix((samples, *[0] * (len(terms.reference) - 1)), terms.reference)
        self.reported = toward_reference(skewed, min(self.claimed, skewed.degree))

    def counts(self) -> Sequence[int]:
        assert self.reported is not None, "prepare comes first"
        return self.reported.counts

    def train(self, weights: Weights, round: TrainingRound) -> Trained:  # noqa: A002 - as Task.train
        round.progress(1.0)
        floating = {name: array for name, array in weights.items() if array.dtype.kind == "f" and array.size}
        name = next(iter(floating))
        hair = floating[name].copy()
        hair.flat[0] += 1e-6 * np.sqrt(
            sum(float(np.square(array, dtype=np.float64).sum()) for array in floating.values())
        )
        return Trained({**weights, name: hair}, sum(self.counts()))
