"""How often a model saw each of its samples, from how far it strays.

Who has half of the samples that the recipe asks for, and repeats each, takes the recipe's steps and learns the mix as
well. But what its own samples add to its update does not average out as it would over twice as many: it strays further
from what any other model of the mix does. With v the update, c the mean and P the first axes of the sound shadows of
the other half of D_c,

    straying e = (|v - c|^2 - |P (v - c)|^2) / L^2,         length = |v| / L,   L the usual |v| of sound shadows

what mixes do lies along the axes, so that e has what is the model's own: of n distinct samples about A / n + B, with B
what the order of training adds. Any other model is held against both halves; the mean counts.

How often a sample is seen, y = n_recipe / n, is read from e, the length and the features in the regressors of the
degree, together f, with the mix's own regressors b (its distance from the reference, and what its shares sum to above
multiples of it):

    f = g + G b + h y + error,      y = (f - g - G b) S^-1 h / (h S^-1 h),    S the covariance of the errors

by ridge regression on *repeated* shadows (`fedpeer.evidence.planning`) and the sound ones that are no anchors, S shrunk
as Ledoit and Wolf do. It is not y regressed on f: where a mix has few samples in D_c its shadows repeat them, and a
skewed model would be taken for one of few samples. y of a shadow is the mean over its strata of how often it saw a
sample of the stratum.

Errors grow with x, what a model's shares sum to above a multiple of the reference, as s(x) = s_0 + s_1 x; shadows are
weighted by 1 / s^2. Each *family* of repeated shadows, by how they were trained, has a line of its own, and the largest
y counts: who trains fewer samples more calmly than the recipe says strays less, but its update is shorter and its
losses are others.

What is logged says y - u (1 + k x), u and k >= 0, so that sound shadows, each estimated by maps that have not seen it,
keep `KEPT` of their weight in the mean: the half that is nearest to the reference, and the other half. So honest
participants lose at most that in expectation, as far as they are like sound shadows. Of the multiples, k and u that do,
those count that take the least off the near half: it is paid most, and one margin for all would be that of skewed
models, of which hardly anything is known.

Shadows of earlier rounds join with g and G of their own start, and the h and S of all.

Sources: Brown 1982, multivariate calibration; Ledoit, Wolf 2004, a well-conditioned estimator for large covariance
matrices.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls
from sklearn.covariance import ledoit_wolf

from fedpeer.evidence.regression import Line, folds
from fedpeer.evidence.sketch import Array
from fedpeer.evidence.vector_maps import Halves
from fedpeer.learning.strata import Codes
from mechanism.coverage import POWER
from mechanism.degree_map import EXCESS_LEVELS

#: Weight that sound shadows keep in the mean, whatever is read of their samples.
KEPT = 0.98

#: Axes that are taken off, over the number of sound shadows.
_AXES = 0.2

#: Fewest shadows of a family from which anything is read.
LEAST = 3

#: Fewest sound shadows of a round that are no anchors: fewer do not show a loss of 1 - KEPT in the mean. Of 50, 42 are
#: none, and a tenth of these may have diverged.
LEAST_SOUND = 37

#: Least deviation of a regressor, below which it tells nothing.
_LEAST_SPREAD = 1e-9

#: Candidates of the ridge penalty, over a shadow's part in the sum of squares.
_PENALTIES = np.logspace(-1, 3, 9)

_CHECK_FOLDS = 10

#: Passes in which the errors' scale and the weights agree.
_PASSES = 3

#: Candidates of u and of k, and the multiples of the reference from which x is summed.
_MARGINS, _SLOPES = np.linspace(0, 10, 1001), (0, 0.25, 0.5, 1, 2, 4, 8, 16)
_MULTIPLES = (Fraction(1), Fraction(3, 2), Fraction(2), Fraction(3))

_TINY = 1e-12


@dataclass(frozen=True, eq=False)
class Straying:
    """What the sound shadows of one start span.

    Attributes:
        centres: mean updates of either half, (2, B).
        axes: the first axes of either half, (2, k, B).
        scale: usual length.
    """

    centres: Array
    axes: Array
    scale: float

    @classmethod
    def of(cls, updates: Array, halves: Halves) -> "Straying":
        """Args: updates: of the sound shadows, (n, B)."""
        parts = [updates[halves == half] for half in (0, 1)]
        count = min(round(_AXES * len(updates)), *(len(part) - 2 for part in parts))
        centres = np.array([part.mean(axis=0) for part in parts])
        axes = [_axes(part - centre, max(count, 0)) for part, centre in zip(parts, centres, strict=True)]
        lengths = [float(np.median(np.linalg.norm(part, axis=1))) for part in parts]
        return cls(centres, np.array(axes), float(np.exp(np.log(np.maximum(lengths, _TINY)).mean())))

    def __call__(self, updates: Array) -> Array:
        """e and length of models that are no shadows, (n, B) to (n, 2)."""
        return self._beside(updates, np.mean([self._from(half, updates) for half in (0, 1)], axis=0))

    def of_half(self, updates: Array, halves: Halves) -> Array:
        """Of shadows of the given halves."""
        return self._beside(updates, np.where(halves == 0, self._from(1, updates), self._from(0, updates)))

    def _beside(self, updates: Array, straying: Array) -> Array:
        return np.column_stack([straying, np.linalg.norm(updates, axis=1) / self.scale])

    def _from(self, half: int, updates: Array) -> Array:
        away = updates - self.centres[half]
        along = away @ self.axes[half].T
        result: Array = (np.square(away).sum(axis=1) - np.square(along).sum(axis=1)) / self.scale**2
        return result


def _axes(vectors: Array, count: int) -> Array:
    """The first right singular vectors, (count, B)."""
    values, left = np.linalg.eigh(vectors @ vectors.T)
    chosen = slice(len(values) - count, len(values))
    result: Array = (left[:, chosen] / np.sqrt(np.maximum(values[chosen], _TINY))).T @ vectors
    return result


def times_seen(rows: npt.NDArray[np.int64], codes: Codes) -> float:
    """y of a model that is trained on `rows`: of each of its strata, how often the mean row's sample is among its rows;
    their mean. 1 where no sample is there twice.
    """
    samples, counts = np.unique(rows, return_counts=True)
    of = codes[samples]
    squares, totals = (np.bincount(of, weights=part.astype(np.float64)) for part in (counts**2, counts))
    return float((squares[totals > 0] / totals[totals > 0]).mean())


@dataclass(frozen=True, eq=False)
class Taught:
    """Sound shadows that are no anchors, and repeated ones, of one start.

    Attributes:
        z: regressors of the degree, (n, R); beside: straying and length, (n, 2); times: y, (n,).
        family: of each, (n,): 0 where it is sound, else the number of how a repeated one was trained.
    """

    z: Array
    beside: Array
    times: Array
    family: npt.NDArray[np.int64]

    def of(self, family: int) -> "Taught":
        """The sound ones, then those of a family."""
        return self.rows(np.concatenate([np.flatnonzero(self.family == number) for number in (0, family)]))

    def rows(self, chosen: npt.NDArray[np.int64]) -> "Taught":
        return Taught(self.z[chosen], self.beside[chosen], self.times[chosen], self.family[chosen])


def fit_times(
    taught: Taught, carried: Sequence[Taught], strata: int, sorted_columns: int, whole_from: Fraction
) -> tuple[Line, ...]:
    """From regressors, straying and length to how often a sample is seen, less the margin: one line for each family of
    which there are enough.

    Args:
        taught: of this round; carried: of earlier ones, by this round's maps.
        sorted_columns: features whose sorted values are the first regressors.
        whole_from: c of the weight (`mechanism.coverage`).
    """
    if (taught.family == 0).sum() < LEAST_SOUND:
        return ()
    families = [
        number for number in np.unique(taught.family) if number and (taught.family == number).sum() >= LEAST
    ]
    if not families:
        return ()
    distance = strata * (sorted_columns + 1)
    sound = taught.z[taught.family == 0]
    order = np.argsort(sound[:, distance], kind="stable")
    near, far = order[: len(order) // 2], order[len(order) // 2 :]
    best: tuple[float, list[_Fitted], float, float] | None = None
    for column in (distance + 1 + EXCESS_LEVELS.index(multiple) for multiple in _MULTIPLES):
        found = [
            _fitted(taught.of(family), [each.of(family) for each in carried], distance, strata, column)
            for family in families
        ]
        errors, x = np.array([each.errors for each in found]), sound[:, column]
        for slope in _SLOPES:
            margin = _margin(errors, 1 + slope * x, (near, far), float(whole_from))
            taken = margin * (1 + slope * float(x[near].mean()))
            if best is None or taken < best[0]:
                best = taken, found, margin, slope
    assert best is not None
    _, found, margin, slope = best
    return tuple(each.less(margin, slope) for each in found)


@dataclass(frozen=True, eq=False)
class _Fitted:
    """One family's line, and how it errs.

    Attributes:
        column: of x among the regressors.
        errors: on sound shadows of this round that it has not seen.
    """

    line: Line
    column: int
    errors: Array

    def less(self, margin: float, slope: float) -> Line:
        coefficients = self.line.coefficients.copy()
        coefficients[self.column] -= margin * slope
        return Line(coefficients, self.line.intercept - margin)


def _fitted(taught: Taught, carried: Sequence[Taught], distance: int, strata: int, column: int) -> _Fitted:
    """Args: distance: the regressor of that name; column: that of x."""
    every = [taught, *carried]
    x = [np.column_stack([each.z, each.beside]) for each in every]
    of_mix = np.arange(distance, distance + 1 + len(EXCESS_LEVELS))
    # Shares in order of size are the mix's, too; the sums over levels have what they have.
    own = np.setdiff1d(np.arange(x[0].shape[1]), np.arange(distance - strata, of_mix[-1] + 1))
    own = own[np.min([part[:, own].std(axis=0) for part in x], axis=0) > _LEAST_SPREAD]
    shadows = _Shadows(
        np.concatenate([part[:, own] for part in x]),
        _basis([part[:, of_mix] for part in x]),
        np.concatenate([each.times for each in every]),
    )
    here, far = np.arange(len(taught.times)), np.concatenate([part[:, column] for part in x])
    scale, errors = np.ones(len(far)), np.zeros(len(here))
    for _ in range(_PASSES):
        errors = _held_out(shadows, scale, here)
        terms = _spread(np.abs(errors), far[here], scale[here])
        scale = terms[0] + terms[1] * far
    direction, of_basis, constant = shadows.calibrated(scale)
    line = np.zeros(x[0].shape[1])
    line[own] = direction
    line[of_mix] = of_basis[: len(of_mix)]
    return _Fitted(Line(line, constant), column, errors[taught.family == 0])


@dataclass(frozen=True, eq=False)
class _Shadows:
    """f, b with what is added for carried ones, and y; one row a shadow."""

    features: Array
    basis: Array
    times: Array

    def rows(self, chosen: npt.NDArray[np.int64]) -> "_Shadows":
        return _Shadows(self.features[chosen], self.basis[chosen], self.times[chosen])

    def calibrated(self, scale: Array) -> tuple[Array, Array, float]:
        """The weights of f and of b in y, and the constant."""
        centre, spread = self.basis.mean(axis=0), np.maximum(self.basis.std(axis=0), 1e-9)
        x = np.column_stack([np.ones(len(self.times)), (self.basis - centre) / spread, self.times])
        weights = 1 / scale**2
        weights /= weights.mean()
        weighted = (weights[:, None] * x).T
        deviation = np.maximum(self.features.std(axis=0), _TINY)
        free = np.ones(x.shape[1])
        free[[0, -1]] = 0  # neither the mean nor the slope on y is held back
        best, slopes, errors = np.inf, np.zeros((x.shape[1], self.features.shape[1])), self.features
        for penalty in _PENALTIES:
            hat = np.linalg.solve(weighted @ x + penalty * np.diag(free), weighted)
            found = hat @ self.features
            leverage = np.einsum("ij,ji->i", x, hat)
            off = (self.features - x @ found) / np.maximum(1 - leverage, 1e-9)[:, None]
            if (error := float((weights[:, None] * np.square(off / deviation)).mean())) < best:
                best, slopes, errors = error, found, off
        errors = np.sqrt(weights)[:, None] * errors
        size = np.maximum(np.sqrt(np.square(errors).mean(axis=0)), _TINY)
        shrunk, _ = ledoit_wolf(errors / size, assume_centered=True)
        of_times = slopes[-1] / size
        direction = np.linalg.solve(shrunk, of_times)
        direction = direction / max(float(of_times @ direction), _TINY) / size
        of_basis = -(slopes[1:-1] @ direction) / spread
        return direction, of_basis, -float(slopes[0] @ direction) - float(centre @ of_basis)


def _basis(mixes: Sequence[Array]) -> Array:
    """b, and for each start that is carried over whether a shadow is of it, alone and times b: g and G of its own."""
    parts = []
    for place, mix in enumerate(mixes):
        added = [
            np.column_stack([np.ones(len(mix)), mix]) * (place == start) for start in range(1, len(mixes))
        ]
        parts.append(np.column_stack([mix, *added]))
    return np.concatenate(parts)


def _held_out(shadows: _Shadows, scale: Array, here: npt.NDArray[np.int64]) -> Array:
    """What maps are off by on this round's shadows that they have not seen."""
    found = np.empty(len(here))
    carried = np.arange(len(here), len(scale))
    for rest, fold in folds(here, _CHECK_FOLDS):
        seen, unseen = np.concatenate([rest, carried]), shadows.rows(fold)
        direction, of_basis, constant = shadows.rows(seen).calibrated(scale[seen])
        found[fold] = unseen.features @ direction + unseen.basis @ of_basis + constant - unseen.times
    return found


def _spread(errors: Array, excess: Array, scale: Array) -> Array:
    """s_0 and s_1, neither below 0; s_0 no less than a fifth of the mean error."""
    x = np.column_stack([np.ones(len(errors)), excess]) / scale[:, None]
    terms, _ = nnls(x, errors / scale)
    return np.array([max(float(terms[0]), float(errors.mean()) / 5, _TINY), float(terms[1])])


def _margin(errors: Array, shape: Array, parts: Sequence[npt.NDArray[np.int64]], whole_from: float) -> float:
    """The least u at which models that saw each sample once, of these errors by each line, (lines, n), less u times
    `shape`, keep `KEPT` of their weight in the mean of each part, the largest error counting.
    """

    def kept(margin: float) -> bool:
        off = (errors - margin * shape).max(axis=0)
        weights = np.minimum(1, 1 / (whole_from * np.maximum(1 + off, 1))) ** POWER
        return all(float(weights[part].mean()) >= KEPT for part in parts)

    place = bisect_left(range(len(_MARGINS) - 1), True, key=lambda k: kept(float(_MARGINS[k])))
    return float(_MARGINS[place])
