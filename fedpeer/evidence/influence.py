"""What a submission adds to the aggregate, measured on D_c.

    harm_k = (L(all) - L(all but k)) / L(all but k)        L: mean cross-entropy of the weighted mean of models

Positive harm means that the aggregate is better without k. Leave-one-out and Shapley values are those of
`mechanism.baselines`, of coalitions that are worth minus the loss of their mean.

Models are loaded one at a time; a running sum stands for all of them.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedpeer.learning.datasets import LabelledData
from fedpeer.learning.mean import ModelSum
from fedpeer.learning.models import Weights
from fedpeer.learning.training import evaluate
from mechanism.baselines import Coalitions, LeaveOneOut, TruncatedMonteCarlo

#: Samples of D_c on which aggregates and outputs are compared. Differences are paired, so few samples tell them apart;
#: with 400 of 2,000 the evidence cost 1.34 forward passes, 0.24 of it here.
PROBE_SAMPLES = 256

#: Orders of the participants that a Shapley value averages over, and the loss difference, nats, at which the rest
#: of an order counts as adding nothing.
SHAPLEY_ORDERS, SHAPLEY_TRUNCATION = 24, 0.005

Load = Callable[[str], Weights]


class Aggregate:
    """Losses of weighted means of submissions.

    Args:
        load: participant id to weights; called each time.
        samples: the weight n_k of each participant.
        layout: weights that have the names, shapes and types of all.
    """

    def __init__(
        self, load: Load, samples: Mapping[str, int], layout: Weights, probe: LabelledData, model: str
    ) -> None:
        self._load = load
        self._samples = dict(samples)
        self._layout = layout
        self._probe = probe
        self._model = model

    def harms(self, names: Sequence[str]) -> dict[str, float]:
        """Harm of each of `names` in the mean over all of them; empty for fewer than two."""
        ordered = sorted(names)
        if len(ordered) < 2:
            return {}
        source = self._coalitions(ordered, np.nan)
        gains = LeaveOneOut().scores(source, np.random.default_rng(0))
        harms = {}
        for k, name in enumerate(ordered):
            without = -source(source.everyone - {k})
            harms[name] = float(-gains[k] / max(without, 1e-9))
        return harms

    def shapley(self, names: Sequence[str], start: Weights, seed: int) -> dict[str, float]:
        """Shapley value of each, nats: what it takes off the start's loss on average."""
        ordered = sorted(names)
        if not ordered:
            return {}
        source = self._coalitions(ordered, self._loss(start))
        values = TruncatedMonteCarlo(SHAPLEY_ORDERS, SHAPLEY_TRUNCATION).scores(
            source, np.random.default_rng(seed)
        )
        return dict(zip(ordered, values.tolist(), strict=True))

    def _coalitions(self, names: Sequence[str], nobody: float) -> Coalitions:
        """The value of each set of `names`: minus the loss of its mean; `nobody` is the loss of the empty set."""
        total, members = ModelSum(self._layout), frozenset[int]()

        def value(coalition: frozenset[int]) -> float:
            nonlocal total, members
            if not coalition:
                return -nobody
            gone = members - coalition
            if len(gone) == 1 and len(members) == len(names):
                (out,) = (names[k] for k in gone)
                return -self._loss(total.without(self._load(out), self._samples[out]).rounded())
            if gone:
                total, members = ModelSum(self._layout), frozenset()
            for name in (names[k] for k in sorted(coalition - members)):
                total.add(self._load(name), self._samples[name])
            members = coalition
            return -self._loss(total.rounded())

        return Coalitions(len(names), value)

    def _loss(self, weights: Weights) -> float:
        loss = evaluate(weights, self._probe, self._model).loss
        # An aggregate that overflows is as bad as can be.
        return loss if np.isfinite(loss) else 1e6
