"""What a submission adds to the aggregate, measured on a probe of D_c.

    harm_k = (L(all) - L(all but k)) / max(|L(all but k)|, `LEAST_LOSS`)

with L the mean loss of the weighted mean of models, over the mean size of an untrained model's. Positive harm means
that the aggregate is better without k. Losses have no natural zero: a likelihood's are negative, and those of a model
that knows all are near 0, where any difference is large in proportion. Below `LEAST_LOSS` differences are taken over
that.

Shapley values are those of coalitions that are worth minus the loss of their mean. Models are loaded one at a time; a
running sum stands for all of them.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import repeat
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedpeer.evidence.evaluating import without_each
from fedpeer.learning.mean import ModelSum
from fedpeer.learning.models import Weights
from fedpeer.learning.samples import Samples
from fedpeer.learning.workloads.protocol import Workload
from fedpeer.protocol.model_file import ModelFileError, open_model
from mechanism.baselines import Coalitions, TruncatedMonteCarlo

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
        files: where models are files, by participant id.
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
        files: Mapping[str, Path] | None = None,
    ) -> None:
        self._load = load
        self._samples = dict(samples)
        self._layout = layout
        self._probe = probe
        self._workload = workload
        self._scale = scale
        self._files = files or {}

    def harms(
        self, names: Sequence[str], executor: Executor | None = None, of: Container[str] | None = None
    ) -> dict[str, float]:
        """Harm of each of `names` in the mean over all of them; empty for fewer than two.

        Args:
            executor: judges the means, where all models are files; None: all are judged here.
            of: whose harm alone is taken; None: everybody's.
        """
        ordered = sorted(names)
        if len(ordered) < 2:
            return {}
        total = ModelSum(self._layout)
        for name in ordered:
            total.add(self._load(name), self._samples[name])
        whole = self._loss(total.rounded())
        harms, chosen = {}, [name for name in ordered if of is None or name in of]
        for name, without in zip(chosen, self._without_each(chosen, total, executor), strict=True):
            if without is None:
                without = self._loss(total.without(self._load(name), self._samples[name]).rounded())
            harms[name] = (whole - without) / max(abs(without), LEAST_LOSS)
        return harms

    def _without_each(
        self, names: Sequence[str], total: ModelSum, executor: Executor | None
    ) -> Iterable[float | None]:
        """The loss of the mean without each, where an executor can tell; in order."""
        if executor is None or not all(name in self._files for name in names):
            return repeat(None, len(names))
        losses = partial(losses_without, *total.parts(), self._probe, self._workload, self._scale)
        return without_each(losses, [(self._files[name], self._samples[name]) for name in names], executor)

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
            if members - coalition:
                total, members = ModelSum(self._layout), frozenset()
            for name in (names[k] for k in sorted(coalition - members)):
                total.add(self._load(name), self._samples[name])
            members = coalition
            return -self._loss(total.rounded())

        return Coalitions(len(names), value)

    def _loss(self, weights: Weights) -> float:
        return mean_loss(weights, self._probe, self._workload, self._scale)


def mean_loss(weights: Weights, probe: Samples, workload: Workload, scale: float) -> float:
    """L of the module's text."""
    loss = float(workload.judge(weights, probe).losses.mean()) / scale
    return loss if np.isfinite(loss) else _WORST


def losses_without(
    sums: Mapping[str, npt.NDArray[np.float64]],
    rest: ModelSum,
    probe: Samples,
    workload: Workload,
    scale: float,
    parts: Sequence[tuple[Path, int]],
) -> list[float | None]:
    """The loss of the mean without each of some models, files with their samples; None where one cannot be read.

    Args:
        sums, rest: of all models, as `ModelSum.parts` gives them.
    """
    total, found = rest.with_parts(sums), list[float | None]()
    for file, samples in parts:
        try:
            weights = open_model(file).weights()
        except ModelFileError:
            found.append(None)
        else:
            found.append(mean_loss(total.without(weights, samples).rounded(), probe, workload, scale))
    return found
