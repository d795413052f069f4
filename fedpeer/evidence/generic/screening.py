"""Tests that an honest model fails at a stated rate, whatever the workload: their limits come from the shadows.

A score is larger the less a model resembles the shadows. The limit of a test at rate a is the conformal quantile, so
that of models that are exchangeable with n shadows at most a fail it. Where a is smaller than 1 / (n + 1), which no
quantile of n scores can show, the scores beyond the median are taken to fall off exponentially.

*Trained* is one test of four scores: how far the length of the update is from the usual, its cosine with the mean
update, the largest deviation of a tensor's share in the change, and the gain on the strata that the model seems to have
been trained on. What is usual is taken of the shadows of one half of D_c: a shadow is held against the other half's, as
it shares no sample with them, and any other model against both, of which the mean counts. Each score is put on one
scale, its excess over the median in units of the mean excess, and the largest decides: so the four together fail an
honest model at the rate of one.

*Samples* is the distance from flawed shadows, by a ridge regression from the regressors of the degree.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpeer.evidence.generic.fitting import Fitted, Table
from fedpeer.evidence.generic.observing import Observation
from fedpeer.evidence.generic.telling import Halves
from fedpeer.evidence.regression import Line, folds, label_rows, ridge
from fedpeer.evidence.sketch import Array, cosine

#: Rate at which each of the two tests fails an honest model.
RATE = 0.01

_CHECK_FOLDS = 10

#: The scores of "trained", in their order.
TRAINED = ("length", "direction", "tensors", "gain")


@dataclass(frozen=True)
class Tail:
    """A score's median among the shadows, and the mean excess over it of those beyond it."""

    median: float
    excess: float

    @classmethod
    def of(cls, scores: Array) -> "Tail":
        median = float(np.median(scores))
        beyond = scores[scores > median] - median
        return cls(median, max(float(beyond.mean()) if len(beyond) else 0.0, 1e-9))

    def scaled(self, scores: Array) -> Array:
        result: Array = (scores - self.median) / self.excess
        return result


def limit_at(scores: Array, rate: float) -> float:
    """What an exchangeable score exceeds at `rate`; see the module's text."""
    ordered = np.sort(scores)
    rank = int(np.ceil((1 - rate) * (len(ordered) + 1)))
    if rank <= len(ordered):
        return float(ordered[rank - 1])
    tail = Tail.of(scores)
    return max(float(ordered[-1]), tail.median + tail.excess * float(np.log(0.5 / rate)))


@dataclass(frozen=True, eq=False)
class Usual:
    """What is usual among the shadows of one half of D_c.

    Attributes:
        length: median of the updates' lengths.
        update: their mean, (B,).
        changes: mean and standard deviation of each tensor's logarithmic share in the change.
    """

    length: float
    update: Array
    changes: tuple[Array, Array]

    @classmethod
    def of(cls, shadows: Sequence[Observation]) -> "Usual":
        updates = np.array([each.vectors["update"] for each in shadows])
        changes = np.array([each.changes for each in shadows])
        deviation = changes.std(axis=0)
        # A tensor whose share hardly varies is judged as if it varied by a tenth of what the others do.
        least = max(0.1 * float(np.median(deviation)), 1e-9)
        length = float(np.median(np.linalg.norm(updates, axis=1)))
        return cls(length, updates.mean(axis=0), (changes.mean(axis=0), np.maximum(deviation, least)))

    def scores(self, seen: Observation) -> tuple[float, float, float]:
        """Of length, direction and tensors."""
        update = seen.vectors["update"]
        length = abs(np.log(max(float(np.linalg.norm(update)), 1e-300) / max(self.length, 1e-300)))
        tensors = np.abs((seen.changes - self.changes[0]) / self.changes[1]).max()
        return float(length), 1 - cosine(update, self.update), float(tensors)


@dataclass(frozen=True, eq=False)
class Screens:
    """The two tests of one start.

    Attributes:
        usual: of the shadows of either half.
        tails: of the four scores, in the order of `TRAINED`; limit: of the largest on their common scale.
        quality: regressors to 1 for sound and 0 for flawed shadows; least_quality: from which a model passes.
    """

    usual: tuple[Usual, Usual]
    tails: tuple[Tail, ...]
    limit: float
    quality: Line
    least_quality: float

    def scores(self, seen: Observation, shares: Array) -> Array:
        """The four scores of one model that is no shadow, in its own units; `shares` as estimated, (S,)."""
        return _scores(self.usual, seen, shares)

    def limits(self) -> Array:
        """Of the four scores, each in its own units."""
        return np.array([tail.median + tail.excess * self.limit for tail in self.tails])


def gain_on_shown(seen: Observation, shares: Array) -> float:
    """Mean gain over the strata, by the square of their estimated shares: small ones are mostly errors."""
    weights = np.maximum(shares, 0) ** 2
    return float(seen.gains @ weights / max(weights.sum(), 1e-12))


def fit_screens(sound: Sequence[Observation], fitted: Fitted, table: Table, flawed: Table | None) -> Screens:
    """Tests whose limits the sound shadows give; without flawed ones everything passes the second."""
    halves: Halves = table.halves
    first, second = (
        Usual.of([each for each, of in zip(sound, halves, strict=True) if of == half]) for half in (0, 1)
    )
    scores = np.array(
        [
            _scores((second,) if half == 0 else (first,), each, shares)
            for each, shares, half in zip(sound, fitted.shares, halves, strict=True)
        ]
    )
    tails = tuple(Tail.of(column) for column in scores.T)
    common = np.max([tail.scaled(column) for tail, column in zip(tails, scores.T, strict=True)], axis=0)
    quality, least = _fit_quality(fitted, table, flawed)
    return Screens((first, second), tails, limit_at(common, RATE), quality, least)


def _scores(usual: Sequence[Usual], seen: Observation, shares: Array) -> Array:
    found = np.mean([each.scores(seen) for each in usual], axis=0)
    return np.array([*found, -gain_on_shown(seen, shares)])


def _fit_quality(fitted: Fitted, table: Table, flawed: Table | None) -> tuple[Line, float]:
    z = table.z(fitted.features, fitted.shares)
    if flawed is None:
        return Line(np.zeros(z.shape[1]), 1.0), -np.inf
    features = fitted.maps.of_shadows(flawed)
    shares = fitted.maps.shares(label_rows(features)).reshape(flawed.shares.shape)
    both = np.concatenate([z, flawed.z(features, shares)])
    target = np.concatenate([np.ones(len(z)), np.zeros(len(both) - len(z))])
    held = np.empty(len(both))
    for rest, fold in folds(len(both), _CHECK_FOLDS):
        held[fold] = ridge(both[rest], target[rest])(both[fold])
    return ridge(both, target), -limit_at(-held[: len(z)], RATE)
