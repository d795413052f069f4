"""Ridge regressions and trees, how they become the integers that are logged, and what they are off by."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr
from sklearn.ensemble import ExtraTreesRegressor

from fedpeer.evidence.sketch import Array
from mechanism.affine import NANO
from mechanism.settlement import MICRO
from mechanism.trees import Forest, Tree

Indices = npt.NDArray[np.int64]

#: Numbers beyond this are cut off before they are logged, so that their integers stay far below 53 bits.
FEATURE_LIMIT = 1e3

#: Candidates of the ridge penalty.
_PENALTIES = np.logspace(-1, 4, 16)

#: Trees; more brought nothing. Shadows in a leaf at least, and the share of the features that a node chooses among.
_TREES, _LEAF, _CHOICE = 64, 2, 0.3

#: Smallest standard deviation of a feature, so that one that hardly varies gets no huge coefficient.
_LEAST_SPREAD = 1e-4


def micro(value: float) -> int:
    """`value` in millionths, cut off at `FEATURE_LIMIT`; NaN counts as the limit, so that it never helps."""
    if np.isnan(value):
        return int(FEATURE_LIMIT) * MICRO
    return round(float(np.clip(value, -FEATURE_LIMIT, FEATURE_LIMIT)) * MICRO)


@dataclass(frozen=True)
class Line:
    """y = intercept + coefficients @ x, in units of the features."""

    coefficients: Array
    intercept: float

    def __call__(self, x: Array) -> Array:
        result: Array = x @ self.coefficients + self.intercept
        return result

    def nano(self) -> tuple[tuple[int, ...], int]:
        return tuple(round(c * NANO) for c in self.coefficients.tolist()), round(self.intercept * NANO)


@dataclass(frozen=True)
class LineAndTrees:
    """The mean of a line and of extremely randomised trees."""

    line: Line
    trees: ExtraTreesRegressor

    def __call__(self, z: Array) -> Array:
        result: Array = (self.line(z) + self.trees.predict(z)) / 2
        return result

    @classmethod
    def fit(cls, x: Array, y: Array) -> "LineAndTrees":
        """The same data give the same trees."""
        trees = ExtraTreesRegressor(_TREES, min_samples_leaf=_LEAF, max_features=_CHOICE, random_state=0)
        return cls(ridge(x, y), trees.fit(x, y))

    def forest(self) -> Forest:
        """The trees in integers."""
        return Forest(
            tuple(integer_tree(t.tree_) for t in self.trees.estimators_), len(self.line.coefficients)
        )


def integer_tree(fitted: Any) -> Tree:
    """scikit-learn's tree, whose nodes are in preorder already."""
    leaf = fitted.children_left < 0
    bounds = np.where(leaf, fitted.value[:, 0, 0], fitted.threshold)
    return Tree(
        tuple(np.where(leaf, -1, fitted.feature).tolist()),
        # Rounded down, so that a regressor, an integer, lies on the same side of the bound.
        tuple(np.where(leaf, np.rint(bounds * MICRO), np.floor(bounds * MICRO)).astype(np.int64).tolist()),
        tuple(np.where(leaf, 0, fitted.children_right).tolist()),
    )


def label_rows(features: Array) -> Array:
    """One row a stratum of a shadow: its own features, then their means over the shadow's strata."""
    means = np.broadcast_to(features.mean(axis=1, keepdims=True), features.shape)
    return np.concatenate([features, means], axis=2).reshape(-1, 2 * features.shape[2])


def folds(groups: Indices, parts: int) -> Iterator[tuple[Indices, Indices]]:
    """Indices of the rest and of the fold, for each fold of a fixed random partition; no fold is empty.

    Args:
        groups: of each row, (n,): rows of one group are in one fold.
    """
    names, of = np.unique(groups, return_inverse=True)
    order = np.random.default_rng(len(names)).permutation(len(names))
    for chosen in np.array_split(order, min(parts, len(names))):
        fold = np.isin(of, chosen)
        yield np.flatnonzero(~fold), np.flatnonzero(fold)


def conformal_quantile(scores: Array, rate: float) -> float:
    """What a new score exceeds with probability at most `rate`; the largest score where there are too few for that."""
    ordered = np.sort(scores)
    return float(ordered[min(len(ordered), int(np.ceil((1 - rate) * (len(ordered) + 1)))) - 1])


def tolerance_quantile(scores: Array, rate: float, confidence: float) -> float:
    """What at most the share `rate` of new scores exceeds, with `confidence` over the scores that are there.

    The largest of these where they are too few to say so: fewer than 14 at a rate of 0.1 and a confidence of 0.75.

    The k-th score of n, with the least k at which Bin(n, 1 - rate) reaches k with probability at most 1 - confidence.
    A conformal quantile holds its rate over all starts together, and half of the starts miss it.

    Sources: Wilks 1941, Determination of sample sizes for setting tolerance limits; Vovk 2012, Conditional validity of
    inductive conformal predictors; ISO 16269-6.
    """
    count = len(scores)
    reached = 1 - bdtr(np.arange(count), count, 1 - rate)
    place = int((reached > 1 - confidence).sum()) + 1
    return float(np.sort(scores)[min(place, count) - 1])


def ridge(x: Array, y: Array) -> Line:
    """Ridge regression on standardised features; the penalty has the least leave-one-out error.

    With the singular values s and left vectors U of the features, the fit at penalty a is U D U'y,
    D = s^2 / (s^2 + a), and the residual of a sample that is left out is its residual over 1 - 1/n - U_i D U_i'.
    """
    centre, spread = x.mean(axis=0), np.maximum(x.std(axis=0), _LEAST_SPREAD)
    mean = float(y.mean())
    left, squares, right = _decomposed((x - centre) / spread)
    projected, singular = left.T @ (y - mean), np.sqrt(squares)
    shrink = squares / (squares + _PENALTIES[:, None])
    residuals = (y - mean) - (shrink * projected) @ left.T
    leverage = shrink @ (left.T**2) + 1 / len(y)
    penalty = _PENALTIES[np.square(residuals / np.maximum(1 - leverage, 1e-9)).mean(axis=1).argmin()]
    coefficients: Array = (right @ (singular / (squares + penalty) * projected)) / spread
    return Line(coefficients, mean - float(centre @ coefficients))


def least_penalty(axes: Array, values: Array, vectors: Array, penalties: Array) -> tuple[float, Array]:
    """The ridge penalty with the least leave-one-out error, and the residuals of each vector without itself, (n, B).

    Args:
        axes: orthonormal, (n, r); values: what the fit has along each, (r,): at penalty a it keeps v / (v + a) of it.
        vectors: what is fitted, (n, B).
    """
    projected = axes.T @ vectors
    best, chosen, residuals = np.inf, 0.0, vectors
    for penalty in penalties:
        kept = values / (values + penalty)
        leverage = (axes**2) @ kept
        found = (vectors - axes @ (kept[:, None] * projected)) / np.maximum(1 - leverage, 1e-9)[:, None]
        if (error := float(np.square(found).sum())) < best:
            best, chosen, residuals = error, float(penalty), found
    return chosen, residuals


def _decomposed(a: Array) -> tuple[Array, Array, Array]:
    """U, s^2 and V of a = U s V', from the smaller of a a' and a' a: far faster than a singular value
    decomposition, and the precision that it loses drowns in the penalty."""
    rows, columns = a.shape
    squares, vectors = np.linalg.eigh(a @ a.T if rows <= columns else a.T @ a)
    kept = squares > squares[-1] * 1e-10
    squares, vectors = squares[kept], vectors[:, kept]
    other = (a.T @ vectors if rows <= columns else a @ vectors) / np.sqrt(squares)
    return (vectors, squares, other) if rows <= columns else (other, squares, vectors)
