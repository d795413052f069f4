"""What a submission adds to the aggregate, measured on D_c.

    harm_k = (L(all) - L(all but k)) / L(all but k)        L: mean cross-entropy of the weighted mean of models

Positive harm means that the aggregate is better without k. Shapley values average the marginal gain
L(S) - L(S + k) over orders of the participants, truncated where the loss of everyone together is nearly reached.

Models are loaded one at a time; a running sum stands for all of them.

Sources: leave-one-out and truncated Monte Carlo Shapley, Ghorbani and Zou 2019, algorithm 1.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedpeer.learning.datasets import LabelledData
from fedpeer.learning.mean import ModelSum
from fedpeer.learning.models import Weights
from fedpeer.learning.training import evaluate

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
        load: participant id to weights; called anew each time.
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
        total = self._sum(ordered)
        everyone = self._loss(total)
        harms = {}
        for name in ordered:
            without = self._loss(total.without(self._load(name), self._samples[name]))
            harms[name] = (everyone - without) / max(without, 1e-9)
        return harms

    def shapley(self, names: Sequence[str], start: Weights, seed: int) -> dict[str, float]:
        """Shapley value of each, nats: what it takes off the start's loss on average."""
        ordered = sorted(names)
        generator = np.random.default_rng(seed)
        first = evaluate(start, self._probe, self._model).loss
        last = self._loss(self._sum(ordered)) if ordered else first
        values = dict.fromkeys(ordered, 0.0)
        # Orders have coalitions in common, small and large ones above all: each is judged once.
        losses: dict[frozenset[str], float] = {frozenset(ordered): last}
        for _ in range(SHAPLEY_ORDERS):
            before, total, members = first, ModelSum(self._layout), frozenset[str]()
            for j in generator.permutation(len(ordered)):
                if abs(before - last) < SHAPLEY_TRUNCATION and members:
                    break
                name = ordered[j]
                total.add(self._load(name), self._samples[name])
                members |= {name}
                if members not in losses:
                    losses[members] = self._loss(total)
                now = losses[members]
                values[name] += (before - now) / SHAPLEY_ORDERS
                before = now
        return values

    def _sum(self, names: Sequence[str]) -> ModelSum:
        total = ModelSum(self._layout)
        for name in names:
            total.add(self._load(name), self._samples[name])
        return total

    def _loss(self, total: ModelSum) -> float:
        loss = evaluate(total.rounded(), self._probe, self._model).loss
        # An aggregate that overflows is as bad as can be.
        return loss if np.isfinite(loss) else 1e6
