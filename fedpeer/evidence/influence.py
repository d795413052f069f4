"""What a submission adds to the aggregate, measured on a probe of D_c.

    harm_k = (L(all) - L(all but k)) / max(|L(all but k)|, `LEAST_LOSS`)

with L the mean loss of the weighted mean of models, over the mean size of an untrained model's. Positive harm means
that the aggregate is better without k. Losses have no natural zero: a likelihood's are negative, and those of a model
that knows all are near 0, where any difference is large in proportion. Below `LEAST_LOSS` differences are taken over
that.

Leave-one-out and Shapley values are those of `mechanism.baselines`, of coalitions that are worth minus the loss of
their mean. Models are loaded one at a time; a running sum stands for all of them.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedpeer.learning.mean import ModelSum
from fedpeer.learning.models import Weights
from fedpeer.learning.samples import Samples
from fedpeer.learning.workloads.protocol import Workload
from mechanism.baselines import Coalitions, LeaveOneOut, TruncatedMonteCarlo

#: Policy: a tenth of an untrained model's loss is the least that a harm is taken over.
LEAST_LOSS = 0.1

#: Loss of an aggregate that overflows: as bad as can be.
_WORST = 1e6

#: Orders of the participants that a Shapley value averages over, and the difference of losses, over an untrained
#: model's, at which the rest of an order counts as adding nothing.
SHAPLEY_ORDERS, SHAPLEY_TRUNCATION = 24, 0.002

Load = Callable[[str], Weights]


class Aggregate:
    """Losses of weighted means of submissions.

    Args:
        load: participant id to weights; called each time.
        samples: the weight n_k of each participant.
        layout: weights that have the names, shapes and types of all.
        scale: mean size of an untrained model's losses.
    """

    def __init__(
        self,
        load: Load,
        samples: Mapping[str, int],
        layout: Weights,
        probe: Samples,
        workload: Workload,
        scale: float,
    ) -> None:
        self._load = load
        self._samples = dict(samples)
        self._layout = layout
        self._probe = probe
        self._workload = workload
        self._scale = scale

    def harms(self, names: Sequence[str]) -> dict[str, float]:
        """Harm of each of `names` in the mean over all of them; empty for fewer than two."""
        ordered = sorted(names)
        if len(ordered) < 2:
            return {}
        source = self._coalitions(ordered, np.nan)
        gains = LeaveOneOut().scores(source, np.random.default_rng(0))
        harms = {}
        for k, name in enumerate(ordered):
            without = abs(source(source.everyone - {k}))
            harms[name] = float(-gains[k] / max(without, LEAST_LOSS))
        return harms

    def shapley(self, names: Sequence[str], start: Weights, seed: int) -> dict[str, float]:
        """Shapley value of each: what it takes off the start's loss on average."""
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
        loss = float(self._workload.judge(weights, self._probe).losses.mean()) / self._scale
        return loss if np.isfinite(loss) else _WORST
