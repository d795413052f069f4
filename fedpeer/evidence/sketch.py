"""Updates as short vectors with the same angles.

A count sketch adds every coordinate, with a random sign, to one of B buckets. It is linear and keeps inner
products: for a unit vector and a fixed other, the cosine is off by about 1/sqrt(B). So the coordinator compares
a hundred updates, with one another and with the shadows', without holding a hundred models. Where the model is
no larger than B the sketch is the update itself.

Source: Charikar, Chen, Farach-Colton 2002.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedpeer.learning.models import Weights

#: B. Cosines are off by 0.011; the screens' margins are ten times that.
BUCKETS = 8192

#: Length below which a vector has no direction.
_LEAST_LENGTH = 1e-12

Array = npt.NDArray[np.float64]


class Sketcher:
    """Sketches the trainable tensors `names` of models of one layout; one `seed` gives one sketch."""

    def __init__(self, names: Sequence[str], layout: Weights, seed: int) -> None:
        self._names = tuple(names)
        self._size, self._seed = sum(layout[name].size for name in self._names), seed
        self._draw()

    def _draw(self) -> None:
        self._bucket: npt.NDArray[np.intp] | None = None
        if self._size > BUCKETS:
            generator = np.random.default_rng(self._seed)
            self._bucket = generator.integers(BUCKETS, size=self._size, dtype=np.intp)
            self._sign = generator.integers(0, 2, size=self._size, dtype=np.int8) * 2 - 1

    def __getstate__(self) -> tuple[tuple[str, ...], int, int]:
        """Buckets are drawn again where it arrives: they take more room than the model."""
        return self._names, self._size, self._seed

    def __setstate__(self, state: tuple[tuple[str, ...], int, int]) -> None:
        self._names, self._size, self._seed = state
        self._draw()

    def __call__(self, weights: Weights, start: Weights) -> Array:
        """The sketch of weights - start."""
        changes = [(weights[name] - start[name]).ravel() for name in self._names]
        update: Array = np.concatenate(changes).astype(np.float64)
        if self._bucket is None:
            return update
        sketch = np.bincount(self._bucket, weights=update * self._sign, minlength=BUCKETS)
        return sketch.astype(np.float64, copy=False)


def cosine(a: Array, b: Array) -> float:
    """Cosine of two vectors; 0 where one of them is 0."""
    scale = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / scale if scale > 0 else 0.0


def directions(vectors: Array) -> Array:
    """Rows of unit length; a row of zeros stays one."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    result: Array = vectors / np.maximum(lengths, _LEAST_LENGTH)
    return result


def without(vectors: Array, directions: Sequence[Array]) -> Array:
    """`vectors`, shape (..., B), with their components along `directions` removed."""
    kept = [d for d in directions if np.linalg.norm(d) > 0]
    if not kept:
        return vectors
    basis, _ = np.linalg.qr(np.array(kept).T)
    result: Array = vectors - (vectors @ basis) @ basis.T
    return result
