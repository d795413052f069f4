"""What a submission adds to the aggregate, measured on D_c.

    harm_k = (L(all) - L(all but k)) / L(all but k)        L: mean cross-entropy of the weighted mean of models

Positive harm means that the aggregate is better without k. Shapley values average the marginal gain
L(S) - L(S + k) over orders of the participants, truncated where the loss of everyone together is nearly reached.

Models are loaded one at a time; a sum in float64 stands for all of them.

Sources: leave-one-out and truncated Monte Carlo Shapley, Ghorbani and Zou 2019, algorithm 1.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from fedpeer.learning.datasets import LabelledData
from fedpeer.learning.models import Weights
from fedpeer.learning.training import evaluate

#: Samples of D_c on which aggregates and outputs are compared. Differences are paired, so few samples tell them apart;
#: with 400 of 2,000 the evidence cost 1.34 forward passes, 0.24 of it here.
PROBE_SAMPLES = 256

#: Orders of the participants that a Shapley value averages over, and the loss difference, nats, at which the rest
#: of an order counts as adding nothing.
SHAPLEY_ORDERS, SHAPLEY_TRUNCATION = 24, 0.005

Sum = dict[str, npt.NDArray[np.float64]]
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
        total = self._zero()
        for name in ordered:
            self._add(total, name)
        everyone = self._loss(total, sum(self._samples[n] for n in ordered))
        harms = {}
        for name in ordered:
            weights, n = self._load(name), self._samples[name]
            rest = {key: value - n * weights[key] for key, value in total.items()}
            without = self._loss(rest, sum(self._samples[m] for m in ordered if m != name))
            harms[name] = (everyone - without) / max(without, 1e-9)
        return harms

    def shapley(self, names: Sequence[str], start: Weights, seed: int) -> dict[str, float]:
        """Shapley value of each, nats: what it takes off the start's loss on average."""
        ordered = sorted(names)
        generator = np.random.default_rng(seed)
        first = evaluate(start, self._probe, self._model).loss
        total = self._zero()
        for name in ordered:
            self._add(total, name)
        last = self._loss(total, sum(self._samples[n] for n in ordered)) if ordered else first
        values = dict.fromkeys(ordered, 0.0)
        # Orders have coalitions in common, small and large ones above all: each is judged once.
        losses: dict[frozenset[str], float] = {frozenset(ordered): last}
        for _ in range(SHAPLEY_ORDERS):
            before, sum_, count, members = first, self._zero(), 0, frozenset[str]()
            for j in generator.permutation(len(ordered)):
                if abs(before - last) < SHAPLEY_TRUNCATION and count:
                    break
                name = ordered[j]
                self._add(sum_, name)
                count += self._samples[name]
                members |= {name}
                if members not in losses:
                    losses[members] = self._loss(sum_, count)
                now = losses[members]
                values[name] += (before - now) / SHAPLEY_ORDERS
                before = now
        return values

    def _zero(self) -> Sum:
        return {name: np.zeros(array.shape) for name, array in self._layout.items()}

    def _add(self, total: Sum, name: str) -> None:
        weights, n = self._load(name), self._samples[name]
        for key, value in total.items():
            value += n * weights[key]

    def _loss(self, total: Sum, count: int) -> float:
        mean = {}
        for name, array in self._layout.items():
            value = total[name] / count
            mean[name] = (np.rint(value) if array.dtype.kind in "iu" else value).astype(array.dtype)
        loss = evaluate(mean, self._probe, self._model).loss
        # An aggregate that overflows is as bad as can be.
        return loss if np.isfinite(loss) else 1e6
