"""Whether a model was trained on given samples as a recipe says: how it stands among models that were.

m models are trained on the samples by the recipe from the same start, each with a seed of its own; l_i are the losses
of model i on these samples, l_0 those of the model at hand:

    distance_i = mean over j other than i of sd(l_i - l_j)

A model has by heart what it was trained on, so that one of a part of the samples, or of others, is far from all of
them, whatever its mix. One that was trained so itself, too, is one of m + 1 that can be exchanged: it is the farthest
with probability 1 / (m + 1), exactly, on any data and for any model. Only the seed may differ: another recipe is seen,
too.

Source: Vovk, Gammerman and Shafer 2005, conformal prediction, section 2.2 (exchangeability).
"""

from collections.abc import Sequence
from fractions import Fraction
from math import ceil

import numpy as np
import numpy.typing as npt

from fedpeer.learning.samples import Samples, Weights
from fedpeer.learning.workloads.protocol import Workload

#: In place of a loss that is not finite.
_LARGE = 1e12


def comparisons(rate: Fraction) -> int:
    """m, the fewest models against which the farthest is one of honest ones with probability at most `rate`."""
    return max(2, ceil(1 / rate) - 1)


def is_farthest(workload: Workload, submitted: Weights, trained: Sequence[Weights], opened: Samples) -> bool:
    """Whether the model at hand is farther from the others than each of those is.

    Args:
        trained: two at least, on `opened`.
    """
    losses = np.array(
        [workload.judge(model, opened).losses for model in (submitted, *trained)], dtype=np.float64
    )
    found = distances(losses)
    return bool(found[0] > found[1:].max())


def distances(losses: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Of models with these losses, shape (models, samples); a loss that is not finite counts as a very large one."""
    found = np.nan_to_num(losses, nan=_LARGE, posinf=_LARGE, neginf=-_LARGE)
    apart = (found[:, None] - found[None]).std(axis=2)
    mean: npt.NDArray[np.float64] = apart.sum(axis=1) / (len(losses) - 1)
    return mean
