"""From when two models count as one: their likeness, and a limit at a stated rate.

The likeness of two models is the mean of two: of the directions of their updates, and of what they give on a probe of
D_c (outputs where there are any, else losses), either beyond what their mixes explain (`fedpeer.evidence.likeness`).

What models of different samples have is seen on pairs of shadows of different halves of D_c; for N submissions their
conformal quantile at rate / (N - 1) is what one of N honest participants reaches with another at `rate` at most (union
bound). Participants of one skewed mix have more different samples than the shadows, and are a little more alike. So the
limit lies half way from there to what shadows have with those on whose samples they were trained again, their median;
or at the first where it is the greater.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedpeer.evidence.likeness import Pull, fit_pull, mix_of
from fedpeer.evidence.observing import LOG_FLOOR, Observation
from fedpeer.evidence.screening import RATE, limit_at
from fedpeer.evidence.sketch import Array, directions
from fedpeer.evidence.telling import Halves
from fedpeer.learning.strata import Codes

#: Samples of D_c on which outputs, and aggregates, are compared. Differences are paired, so few tell them apart.
PROBE_SAMPLES = 256

#: Policy: a smaller market has the limit of one of so many. Where a pool is small, honest participants have some
#: samples in common by chance.
LEAST_MARKET = 50

#: Policy: a likeness that no two trainings have, whatever the tail of the shadows' pairs promises; 1 but for rounding.
_MOST = 0.999

#: What is left of one model's update, and of its outputs; unit vectors.
Left = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class Probe:
    """Samples of D_c, `codes` their strata; `classifier` where outputs are log-probabilities."""

    rows: npt.NDArray[np.int64]
    codes: Codes
    classifier: bool

    def __call__(self, seen: Observation) -> Array:
        """What a model gives, without what all samples of a stratum have in common; flat."""
        found = seen.outputs[self.rows].astype(np.float64)
        if self.classifier:
            found = np.maximum(found, LOG_FLOOR)
            found = found - found.mean(axis=1, keepdims=True)
        for stratum in np.unique(self.codes):
            found[self.codes == stratum] -= found[self.codes == stratum].mean(axis=0)
        return found.ravel()


@dataclass(frozen=True, eq=False)
class Comparison:
    """Of the models of one start.

    Attributes:
        update, output: what a mix does to either.
        apart: likeness of pairs of shadows of different halves.
        same: likeness of shadows with those on whose samples they were trained again.
    """

    probe: Probe
    update: Pull
    output: Pull
    apart: Array
    same: Array

    def left(self, seen: Observation, shares: Array) -> Left:
        """What is left of one model; `shares` of the strata as estimated, (S,)."""
        mix = mix_of(shares)
        update = self.update.left(_direction(seen), mix)
        return update.astype(np.float32), self.output.left(self.probe(seen), mix).astype(np.float32)

    def limit(self, submissions: int) -> float:
        """Least likeness of copies among so many."""
        highest = limit_at(self.apart, RATE / (max(submissions, LEAST_MARKET) - 1))
        half_way = (highest + float(np.median(self.same))) / 2 if len(self.same) else highest
        return min(max(highest, half_way), _MOST)


def likeness(one: Left, updates: Array, outputs: Array) -> Array:
    """Of one model with others, whose updates and outputs are stacked: at most 1, and 1 of a copy."""
    result: Array = (updates @ one[0] + outputs @ one[1]) / 2
    return result


def fit_comparison(
    sound: Sequence[Observation],
    shares: Array,
    halves: Halves,
    codes: Codes,
    again: Sequence[tuple[int, Observation]],
    *,
    classifier: bool,
    seed: int,
) -> Comparison:
    """What the sound shadows say, and those that are trained again.

    Args:
        shares: of the strata, as estimated of each without it.
        again: each with the place among `sound` of the one whose samples it has.
        codes: the stratum of each sample of D_c.
        classifier: whether outputs are log-probabilities.
        seed: of the probe.
    """
    rows = probe_of(codes, seed)
    probe = Probe(rows, codes[rows], classifier)
    mixes, first = mix_of(shares), halves == 0
    pulls, apart, same = [], np.zeros((first.sum(), (~first).sum())), np.zeros(len(again))
    for vector in (_direction, probe):
        vectors = np.array([vector(each) for each in sound])
        pull, said = fit_pull(vectors, mixes, halves)
        left = directions(vectors - said)
        apart += left[first] @ left[~first].T / 2
        for k, (place, seen) in enumerate(again):
            same[k] += float(directions(vector(seen) - said[place]) @ left[place]) / 2
        pulls.append(pull)
    return Comparison(probe, pulls[0], pulls[1], np.sort(np.ravel(apart)), np.sort(same))


def _direction(seen: Observation) -> Array:
    return directions(seen.vectors["update"])


def probe_of(codes: Codes, seed: int, size: int = PROBE_SAMPLES) -> npt.NDArray[np.int64]:
    """`size` samples, or all where there are fewer, with each stratum's share of the whole; ascending."""
    order = np.random.default_rng(seed).permutation(len(codes))
    order = order[np.argsort(codes[order], kind="stable")]
    places = np.linspace(0, len(order), min(size, len(order)), endpoint=False).astype(np.int64)
    return np.sort(order[places])
