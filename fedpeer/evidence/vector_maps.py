"""From a long vector of a model, such as its update, to the shares of the strata that it was trained on.

Every stratum pulls a model its own way, so that the shares are nearly linear in where it went. With vectors d, centred
on the shadows' mean c, and shares centred on their mean s,

    p = s + A (d - c)

and A a ridge regression in the dual: with the Gram matrix V w V' of the centred vectors D, A' = D' V (w + a)^-1 V' P.

A *whole* map is fitted on all shadows; what it gives of one is what it would give had that one been left out, by its
residual over 1 - 1/n - H_ii with H = V w (w + a)^-1 V'. *Halved* maps are fitted on the shadows of each half of D_c: a
shadow is estimated by the other half's map, a model of other samples by the mean of both. The penalty a has the least
error on shadows so estimated.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedpeer.evidence.sketch import Array

Halves = npt.NDArray[np.int64]

#: Candidates of the penalty a, over the largest eigenvalue of the Gram matrix.
_PENALTIES = np.logspace(-4, 1, 14)

#: Least deviation of a coordinate that is divided by it, over that of all coordinates.
_LEAST_SPREAD = 1e-3


@dataclass(frozen=True)
class Scale:
    """Coordinates made comparable: each centred and over its deviation; or, without those, the vector's direction."""

    centre: Array | None
    deviation: Array | None

    def __call__(self, vectors: Array) -> Array:
        if self.centre is None or self.deviation is None:
            scaled: Array = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
            return scaled
        return (vectors - self.centre) / self.deviation

    @classmethod
    def of(cls, vectors: Array) -> "Scale":
        deviation = vectors.std(axis=0)
        return cls(vectors.mean(axis=0), np.maximum(deviation, _LEAST_SPREAD * vectors.std() + 1e-12))


#: The direction alone: a model that is pulled back to the start says what it said before.
DIRECTION = Scale(None, None)


@dataclass(frozen=True)
class _Linear:
    centre: Array
    coefficients: Array
    intercept: Array

    def __call__(self, vectors: Array) -> Array:
        estimated: Array = (vectors - self.centre) @ self.coefficients + self.intercept
        return estimated


@dataclass(frozen=True)
class VectorMap:
    """Vectors to shares; see the module's text."""

    scale: Scale
    maps: tuple[_Linear, ...]

    def __call__(self, vectors: Array) -> Array:
        """Of models that are no shadows: shape (n, B) to (n, S)."""
        scaled = self.scale(vectors)
        estimated: Array = np.mean([each(scaled) for each in self.maps], axis=0)
        return estimated

    def of_half(self, vectors: Array, halves: Halves) -> Array:
        """Of shadows of the given halves, by the other half's map; by the whole one where there is one."""
        if len(self.maps) == 1:
            return self(vectors)
        scaled = self.scale(vectors)
        estimated = np.array([each(scaled) for each in self.maps])
        mine: Array = estimated[1 - halves, np.arange(len(halves))]
        return mine


def fit_whole(vectors: Array, shares: Array, scale: Scale) -> tuple[VectorMap, Array]:
    """The map of all shadows, and what it gives of each without it, shape (n, S)."""
    d = _Dual(scale(vectors), shares)
    best, found, left_out = np.inf, 0.0, shares
    for penalty in _PENALTIES * d.values[-1]:
        residuals = d.left_out(penalty)
        if (error := float(np.square(residuals).mean())) < best:
            best, found, left_out = error, float(penalty), shares - residuals
    return VectorMap(scale, (d.map(found),)), left_out


def fit_halved(vectors: Array, shares: Array, halves: Halves, scale: Scale) -> tuple[VectorMap, Array]:
    """A map for each half, and what the other half's map estimates of each shadow, shape (n, S)."""
    scaled = scale(vectors)
    parts = [_Dual(scaled[halves == half], shares[halves == half]) for half in (0, 1)]
    # Products with the vectors of the half that is fitted on, so that a penalty costs no pass over the vectors.
    products = [part.products(scaled[halves == 1 - half]) for half, part in enumerate(parts)]
    best, found, estimated = np.inf, 0.0, shares
    for penalty in _PENALTIES:
        said = np.empty_like(shares)
        for half, (part, product) in enumerate(zip(parts, products, strict=True)):
            said[halves == 1 - half] = product @ part.weights(penalty * part.values[-1]) + part.intercept
        if (error := float(np.square(said - shares).mean())) < best:
            best, found, estimated = error, float(penalty), said
    return VectorMap(scale, tuple(part.map(found * part.values[-1]) for part in parts)), estimated


class _Dual:
    """The Gram matrix of centred vectors, decomposed."""

    def __init__(self, vectors: Array, shares: Array) -> None:
        self.centre, self.intercept = vectors.mean(axis=0), shares.mean(axis=0)
        self._vectors, self._shares = vectors - self.centre, shares - self.intercept
        values, self._axes = np.linalg.eigh(self._vectors @ self._vectors.T)
        self.values = np.maximum(values, 0)
        self._projected = self._axes.T @ self._shares

    def products(self, vectors: Array) -> Array:
        """Of other vectors, centred alike, with its own."""
        result: Array = (vectors - self.centre) @ self._vectors.T
        return result

    def weights(self, penalty: float) -> Array:
        """Of its own vectors in the map: A' is their sum, so weighted."""
        result: Array = self._axes @ (self._projected / (self.values + max(penalty, 1e-300))[:, None])
        return result

    def map(self, penalty: float) -> _Linear:
        return _Linear(self.centre, self._vectors.T @ self.weights(penalty), self.intercept)

    def left_out(self, penalty: float) -> Array:
        """What the map is off by on each of its own vectors, had that one been left out."""
        kept = self.values / (self.values + max(penalty, 1e-300))
        leverage = (self._axes**2) @ kept + 1 / len(self._vectors)
        fitted = self._axes @ (kept[:, None] * self._projected)
        off: Array = (self._shares - fitted) / np.maximum(1 - leverage, 1e-9)[:, None]
        return off
