"""From when two models count as one: their likeness, and a limit at a stated rate.

The likeness of two models is the mean of two: of their updates, and of what they give on a probe of D_c (outputs where
there are any, else losses). Either is a cosine without what all models have in common, and beyond what the two mixes
have in common explains (`fedpeer.evidence.likeness`).

What models of different samples have is seen on pairs of shadows of different halves of D_c. The limit for N
submissions is the conformal quantile of these at rate / (N - 1), so that one of N honest participants is taken for
another's copy at `rate` at most (union bound). Where so small a rate is beyond the pairs, their excess over the median
is taken to fall off exponentially.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedpeer.evidence.generic.observing import LOG_FLOOR, Observation
from fedpeer.evidence.generic.screening import RATE, limit_at
from fedpeer.evidence.generic.telling import Halves
from fedpeer.evidence.likeness import Likeness, fit_likeness, mix_of
from fedpeer.evidence.sketch import Array, directions, without
from fedpeer.learning.strata import Codes

#: Samples of D_c on which outputs, and aggregates, are compared. Differences are paired, so few tell them apart.
PROBE_SAMPLES = 256

#: What is compared of one model: directions of its update and of its outputs.
Compared = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Of the models of one start.

    Attributes:
        probe: samples of D_c.
        codes: their strata.
        log_probabilities: whether outputs are those of a classifier.
        mean_update, mean_outputs: of the shadows.
        update, output: likeness by either.
        apart: likeness of pairs of shadows of different halves.
    """

    probe: npt.NDArray[np.int64]
    codes: Codes
    log_probabilities: bool
    mean_update: Array
    mean_outputs: Array
    update: Likeness
    output: Likeness
    apart: Array

    def of(self, seen: Observation) -> Compared:
        """What is compared of one model."""
        own = directions(without(seen.vectors["update"], [self.mean_update]))
        return own.astype(np.float32), _distinct(seen, self).astype(np.float32)

    def likeness(self, one: Compared, others: tuple[Array, Array], common: Array) -> Array:
        """Of one model with others, stacked; `common` is sum_i p_i q_i of its mix with each."""
        by_update = self.update(others[0] @ one[0], common)
        by_output = self.output(others[1] @ one[1], common)
        result: Array = (by_update + by_output) / 2
        return result

    def limit(self, submissions: int) -> float:
        """Least likeness of copies among so many."""
        return limit_at(self.apart, RATE / max(submissions - 1, 1))


def fit_comparison(
    sound: Sequence[Observation],
    shares: Array,
    halves: Halves,
    codes: Codes,
    *,
    classifier: bool,
    seed: int,
) -> Comparison:
    """What the sound shadows say.

    Args:
        shares: of the strata, as estimated of each without it.
        codes: the stratum of each sample of D_c.
        classifier: whether outputs are log-probabilities.
        seed: of the probe.
    """
    probe = probe_of(codes, seed)
    plain = Likeness(0.0, 0.0)
    means = [np.mean([each.vectors["update"] for each in sound], axis=0)]
    means += [np.mean([_outputs(each, probe, classifier) for each in sound], axis=0)]
    first = Comparison(probe, codes[probe], classifier, means[0], means[1], plain, plain, np.zeros(1))
    parts = [np.array(part) for part in zip(*(first.of(each) for each in sound), strict=True)]
    mixes = mix_of(shares)
    one, other = halves == 0, halves == 1
    common = mixes[one] @ mixes[other].T
    update, output = (part[one] @ part[other].T for part in parts)
    by_update, by_output = fit_likeness(update, common), fit_likeness(output, common)
    apart = (by_update(update, common) + by_output(output, common)) / 2
    return Comparison(
        probe, codes[probe], classifier, means[0], means[1], by_update, by_output, np.sort(apart.ravel())
    )


def probe_of(codes: Codes, seed: int, size: int = PROBE_SAMPLES) -> npt.NDArray[np.int64]:
    """`size` samples, or all where there are fewer, with each stratum's share of the whole; ascending."""
    order = np.random.default_rng(seed).permutation(len(codes))
    order = order[np.argsort(codes[order], kind="stable")]
    places = np.linspace(0, len(order), min(size, len(order)), endpoint=False).astype(np.int64)
    return np.sort(order[places])


def _outputs(seen: Observation, probe: npt.NDArray[np.int64], classifier: bool) -> Array:
    found = seen.outputs[probe].astype(np.float64)
    return np.maximum(found, LOG_FLOOR) if classifier else found


def _distinct(seen: Observation, of: Comparison) -> Array:
    """Outputs without what all models, and all samples of a stratum, have in common; flat, of unit length."""
    rest = _outputs(seen, of.probe, of.log_probabilities) - of.mean_outputs
    if of.log_probabilities:
        rest = rest - rest.mean(axis=1, keepdims=True)
    for stratum in np.unique(of.codes):
        rest[of.codes == stratum] -= rest[of.codes == stratum].mean(axis=0)
    return directions(rest.ravel())
