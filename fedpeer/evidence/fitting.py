"""From trained shadows to the map of `mechanism.degree_map`, and its interval.

Long vectors are mapped to shares (`fedpeer.evidence.vector_maps`), which are the last features of a
stratum, after the logarithm of p^(c). A ridge regression, one for all strata, takes features to shares, and from
these the degree is the mean of a line and of extremely randomised trees: either alone is off by more. Every step sees
of a shadow what the step before says without it, as it does of a participant.

The interval is a tolerance interval: with confidence `CONFIDENCE` it covers 1 - ALPHA of the models that are
exchangeable with the shadows of this start, by what cross-validation of all steps is off by
(`regression.tolerance_quantile`). Every participant of a round is measured by the same maps, so that a rate over all
starts together would leave single rounds short of it. A twentieth of the shadows is left out at a time: a tenth would
leave maps that are off by some hundredths more, and the interval wider by as much, and single ones cost five times the
fits. A shadow that is left out still shares samples of D_c with others of its half, as no participant does. What an
update says of it comes from the other half's map, which has not seen them. What is left of that help is of the size of
what stands against it (fewer samples of D_c to observe it on, one half's map where a participant has two), as long as
a half has enough samples of every stratum: `fedpeer.evidence.planning.scarcity`.

Some shadows have *wrong targets*, as honest data may, so that no screen refuses these. What wrong targets add to each
feature, the same for all strata, is the slope of what is left of it beyond a ridge regression on the mix. It is taken
off the shadows on which the maps from features are fitted, which are so those of models with right targets; shadows
that are held out, and those that the screens look at, are as they were observed. Else all participants with right
targets would be estimated too low by what the shadows are off by on average.

Shadows of earlier rounds can be *carried over*: they join every fit as they were observed at their own starts, and the
features of the start distinguish the starts. What is held out, and so the interval, is of this round's shadows alone.

Sources: Geurts, Ernst, Wehenkel 2006, extremely randomized trees; Vovk 2015, cross-conformal predictors; Vovk 2012,
Conditional validity of inductive conformal predictors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from fedpeer.evidence.errors import EvidenceError
from fedpeer.evidence.likeness import mix_of
from fedpeer.evidence.mix_lines import lines_and_rest
from fedpeer.evidence.observing import SORTED_FEATURES, Observation
from fedpeer.evidence.regression import (
    Indices,
    Line,
    LineAndTrees,
    folds,
    label_rows,
    micro,
    ridge,
    tolerance_quantile,
)
from fedpeer.evidence.sketch import Array
from fedpeer.evidence.vector_maps import DIRECTION, Halves, Scale, VectorMap, fit_halved, fit_whole
from mechanism.degree_map import DegreeMap, regressors
from mechanism.settlement import MICRO

#: Nominal rate of misses of the prediction interval.
ALPHA = 0.1

#: Confidence that an interval misses no more: of those that tables of tolerance intervals have (0.5, 0.75, 0.9) the
#: lowest with which hardly a start covers less than 0.78, over seven tasks, fresh and half-trained (docs/evidence.md).
CONFIDENCE = 0.75

#: Fewest sound shadows: of fewer, each half of D_c has too few to be distinguished.
MIN_SHADOWS = 12

_CROSS_FOLDS = 8

#: Parts of the shadows that are held out in turn, for the interval.
_CHECK_FOLDS = 20


@dataclass(frozen=True, eq=False)
class ShadowTable:
    """Observations of shadows and what they were trained on.

    Attributes:
        features: (n, S, m), as observed.
        vectors: long vectors by name, (n, B) each.
        shares: (n, S); degrees: (n,).
        halves: of D_c, (n,).
        groups: those of one group are left out together, (n,).
        added: to the features of each stratum by wrong targets, as far as it is known without the shadow, (n, m).
        reference: p^(c).
        sorted_columns: of the features.
    """

    features: Array
    vectors: Mapping[str, Array]
    shares: Array
    degrees: Array
    halves: Halves
    groups: Indices
    added: Array
    reference: tuple[Fraction, ...]
    sorted_columns: tuple[int, ...]

    @classmethod
    def of(
        cls,
        observations: Sequence[Observation],
        names: Sequence[str],
        shares: Array,
        halves: Halves,
        groups: Indices,
        reference: tuple[Fraction, ...],
        wrong: Array | None = None,
    ) -> "ShadowTable":
        """Args: names: of the features; wrong: share of wrong targets, (n,); None: there are none."""
        q = np.array([float(p) for p in reference])
        features, vectors = _stacked(observations)
        return cls(
            features,
            vectors,
            shares,
            np.abs(shares - q).sum(axis=1) / 2,
            halves,
            groups,
            _added(features, shares, np.zeros(len(shares)) if wrong is None else wrong),
            reference,
            tuple(names.index(name) for name in SORTED_FEATURES if name in names),
        )

    def seen_as(self, observations: Sequence[Observation]) -> "ShadowTable":
        """The same shadows by other observations."""
        features, vectors = _stacked(observations)
        return replace(self, features=features, vectors=vectors)

    def rows(self, chosen: Indices) -> "ShadowTable":
        return ShadowTable(
            self.features[chosen],
            {name: part[chosen] for name, part in self.vectors.items()},
            self.shares[chosen],
            self.degrees[chosen],
            self.halves[chosen],
            self.groups[chosen],
            self.added[chosen],
            self.reference,
            self.sorted_columns,
        )

    def joined(self, other: "ShadowTable | None") -> "ShadowTable":
        """Its rows, then those of another one of the same form."""
        if other is None:
            return self
        return ShadowTable(
            np.concatenate([self.features, other.features]),
            {name: np.concatenate([part, other.vectors[name]]) for name, part in self.vectors.items()},
            np.concatenate([self.shares, other.shares]),
            np.concatenate([self.degrees, other.degrees]),
            np.concatenate([self.halves, other.halves]),
            np.concatenate([self.groups, self.groups.max(initial=-1) + 1 + other.groups]),
            np.concatenate([self.added, other.added]),
            self.reference,
            self.sorted_columns,
        )

    def z(self, features: Array, shares: Array) -> Array:
        """The regressors, computed by the very function that settles."""
        rows = [
            regressors(self.reference, self.sorted_columns, _integers(x), _integers(p))
            for x, p in zip(features, shares, strict=True)
        ]
        return np.array(rows, dtype=np.float64) / MICRO


@dataclass(frozen=True, eq=False)
class Maps:
    """Vectors to shares, features to shares, regressors to degree.

    Attributes:
        vector_maps: by the vector's name, in the order in which their shares follow the features.
    """

    vector_maps: Mapping[str, VectorMap]
    shares: Line
    degree: LineAndTrees

    def features(self, observed: Array, vectors: Mapping[str, Array], reference: Sequence[Fraction]) -> Array:
        """All features of models that are no shadows, shape (n, S, m + 1 + vector_maps)."""
        return _extended(observed, {n: of(vectors[n]) for n, of in self.vector_maps.items()}, reference)

    def of_shadows(self, table: ShadowTable) -> Array:
        """All features of shadows that the maps have not seen."""
        return _extended(table.features, _by_other_half(table, self.vector_maps), table.reference)

    def shadow_shares(self, features: Array) -> Array:
        """Of the strata, (n, S), from all features."""
        shares: Array = self.shares(label_rows(features)).reshape(features.shape[:2])
        return shares

    def estimates(self, table: ShadowTable) -> Array:
        """Degrees of shadows that the maps have not seen."""
        features = self.of_shadows(table)
        shares = self.shadow_shares(features)
        found: Array = np.clip(self.degree(table.z(features, shares)), 0, 1 - float(min(table.reference)))
        return found

    def degree_map(self, table: ShadowTable, half_width: int) -> DegreeMap:
        """In integers."""
        columns = table.features.shape[2] + 1 + len(self.vector_maps)
        own, intercept = self.shares.nano()
        weights, constant = self.degree.line.nano()
        return DegreeMap(
            reference=table.reference,
            share_own=own[:columns],
            share_mean=own[columns:],
            share_intercept=intercept,
            sorted_columns=table.sorted_columns,
            weights=weights,
            intercept=constant,
            forest=self.degree.forest(),
            half_width=half_width,
        )


@dataclass(frozen=True, eq=False)
class Fitted:
    """What the shadows support.

    Attributes:
        maps: as fitted; model: in integers, as logged.
        features: all features of the table's shadows, shape (n, S, m), each estimated without itself.
        shares: of the strata, as estimated of each shadow without it, (n, S).
        z: regressors of the degree, of this round's shadows, (n, R); carried: of those of earlier rounds.
        residuals: cross-validated errors of the degree, (n,).
    """

    maps: Maps
    model: DegreeMap
    features: Array
    shares: Array
    z: Array
    carried: Array
    residuals: Array


def fit_degree(table: ShadowTable, carried: ShadowTable | None = None) -> Fitted:
    """The map that the sound shadows of `table` support.

    Args:
        carried: sound shadows of earlier rounds.

    Raises:
        EvidenceError: too few of them.
    """
    count = len(table.degrees)
    if count < MIN_SHADOWS:
        raise EvidenceError(f"{count} sound shadows; expected at least {MIN_SHADOWS}")
    every = table.joined(carried)
    maps, features, shares = fit_maps(every)
    z = every.z(features, shares)
    residuals = _residuals(table, carried)
    half_width = micro(tolerance_quantile(np.abs(residuals), ALPHA, CONFIDENCE))
    return Fitted(
        maps,
        maps.degree_map(table, half_width),
        features[:count],
        shares[:count],
        z[:count],
        z[count:],
        residuals,
    )


def _stacked(observations: Sequence[Observation]) -> tuple[Array, dict[str, Array]]:
    """Features, and long vectors by name."""
    features = np.array([each.features for each in observations], dtype=np.float64) / MICRO
    return features, {
        n: np.array([each.vectors[n] for each in observations]) for n in observations[0].vectors
    }


def _added(features: Array, shares: Array, wrong: Array) -> Array:
    """What wrong targets add to the features of each shadow, the same for all strata, (n, m): their share times the
    slope on it, without the shadow, of what a ridge regression on the mix leaves of the features.
    """
    around = wrong - wrong.mean()
    squares = np.square(around)
    if not squares.any():
        return np.zeros((len(features), features.shape[2]))
    flat = features.reshape(len(features), -1)
    spread = np.maximum(flat.std(axis=0), 1e-9)
    _, rest = lines_and_rest((flat - flat.mean(axis=0)) / spread, mix_of(shares))
    beyond = (rest * spread).reshape(features.shape).mean(axis=1)
    slope = around @ beyond / squares.sum()
    off = (beyond - np.outer(around, slope)) / (1 - squares / squares.sum())[:, None]
    without_it = slope - around[:, None] * off / squares.sum()
    result: Array = wrong[:, None] * without_it
    return result


def _residuals(table: ShadowTable, carried: ShadowTable | None) -> Array:
    """What maps are off by on each part of the shadows, fitted on all others."""
    found = np.empty(len(table.degrees))
    for rest, fold in folds(table.groups, _CHECK_FOLDS):
        maps, *_ = fit_maps(table.rows(rest).joined(carried))
        found[fold] = maps.estimates(table.rows(fold)) - table.degrees[fold]
    return found


def fit_maps(table: ShadowTable) -> tuple[Maps, Array, Array]:
    """All steps; the features of the table's own shadows as observed, and their shares, each without that shadow."""
    vector_maps, estimated = {}, {}
    for name, vectors in table.vectors.items():
        if name == "update" and len(np.unique(table.halves)) > 1:
            vector_maps[name], estimated[name] = fit_halved(vectors, table.shares, table.halves, DIRECTION)
        else:
            scale = DIRECTION if name == "update" else Scale.of(vectors)
            vector_maps[name], estimated[name] = fit_whole(vectors, table.shares, scale)
    features = _extended(table.features, estimated, table.reference)
    right = _extended(table.features - table.added[:, None, :], estimated, table.reference)
    crossed, of_right = np.empty_like(table.shares), np.empty_like(table.shares)
    for rest, fold in folds(table.groups, _CROSS_FOLDS):
        line = ridge(label_rows(right[rest]), table.shares[rest].ravel())
        for found, seen in ((crossed, features), (of_right, right)):
            found[fold] = line(label_rows(seen[fold])).reshape(len(fold), -1)
    shares = ridge(label_rows(right), table.shares.ravel())
    z = table.z(right, of_right)
    return Maps(vector_maps, shares, LineAndTrees.fit(z, table.degrees)), features, crossed


def _by_other_half(table: ShadowTable, vector_maps: Mapping[str, VectorMap]) -> dict[str, Array]:
    """Shares by the vectors of shadows that the maps have not seen."""
    return {n: of.of_half(table.vectors[n], table.halves) for n, of in vector_maps.items()}


def _extended(observed: Array, estimated: Mapping[str, Array], reference: Sequence[Fraction]) -> Array:
    """Features with the logarithm of p^(c), then the shares by the vectors, in whole millionths as logged."""
    logs = np.log(np.array([float(q) for q in reference]))
    parts = [np.broadcast_to(logs, observed.shape[:2]), *estimated.values()]
    return np.concatenate([observed, *(np.rint(p * MICRO)[:, :, None] / MICRO for p in parts)], axis=2)


def _integers(units: Array) -> Any:
    """Integers of Python, whose squares do not overflow, in lists of the array's form."""
    return np.rint(units * MICRO).astype(np.int64).tolist()
