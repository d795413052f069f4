"""The field under a logarithmic payment that is clipped at 0 within reach.

    M(s) = (A/N) sum over the j with s + t_j <= z_0 of  ln(Q / (Phi (s + t_j) + Upsilon)),
    t_j = delta_j^2,   z_0 = (Q - Upsilon) / Phi

M is convex with a kink at every z_0 - t_j, so no polynomial carries it. But with the t_j sorted, the sum runs over
a prefix: Chebyshev interpolants in s of the sums over the first i * `STRIDE` peers carry all but the last few, which
are summed one by one. One evaluation costs O(m + `STRIDE`), whatever N.

The interpolation error of the logarithm is 2 sum_{k>n} 2 rho^-k / k a peer, smaller than that of the kernel
1/(z + r)^2 which `mechanism.mean_field` bounds; its derivatives are those kernels.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.polynomial import chebyshev

from mechanism.mean_field import LEBESGUE, Layout, coefficients
from mechanism.score import Score

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]

#: Peers between two stored prefixes. The product of so many gaps stays within the range of a float.
STRIDE = 32
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class ClippedField:
    """M, M' and M'' of one profile, as a `mechanism.mean_field.PeerField`.

    Attributes:
        scale: A of the payment.
        sorted: the peers' delta^2, increasing.
        prefixes: for each panel, Chebyshev coefficients of sum_{j < i STRIDE} ln(s + r + t_j), one column an i.
    """

    layout: Layout
    scale: float
    sorted: Array
    prefixes: tuple[Array, ...]
    error: float
    slope_error: float
    level_error: float
    size: float

    @classmethod
    def of(cls, score: Score, degree: Array, low: float, high: float) -> "ClippedField":
        """The field of a profile, for s in [low, high] = [min delta_k(1)^2, max delta_k(0)^2]."""
        layout = Layout.of(score, low, high)
        squares = np.sort(np.square(degree))
        count = squares.size // STRIDE
        whole = squares[: count * STRIDE].reshape(count, STRIDE)
        prefixes = []
        error = slope_error = level_error = 0.0
        for panel in layout.panels:
            nodes = panel.nodes + score.bound.ratio
            sums = np.zeros((panel.degree + 1, count + 1))
            for i, node in enumerate(nodes):
                sums[i, 1:] = np.cumsum(np.log(np.prod(node + whole, axis=1)))
            prefixes.append(coefficients(sums))
            # A sum of logarithms, each rounded once, amplified by the interpolation; as much again for its evaluation.
            rounding = 8 * _EPS * LEBESGUE * (1 + math.log1p(1 / layout.shift))
            one = 4 * panel.rho ** -(panel.degree + 1) / (1 - 1 / panel.rho) + rounding
            level_error = max(level_error, 4 * one)  # four levels in a difference of two utilities
            # Markov: a polynomial's derivative on [-1, 1] is at most n^2 times it; twice for the second.
            error = max(error, panel.error / layout.shift + rounding * panel.degree**2 / panel.half)
            slope_error = max(
                slope_error,
                panel.slope_error / layout.shift + rounding * panel.degree**4 / (3 * panel.half**2),
            )
        scale = float(getattr(score.function, "scale", 1))
        bounds = (scale * bound for bound in (error, slope_error, level_error, 1 / (2 * layout.shift)))
        return cls(layout, scale, squares, tuple(prefixes), *bounds)

    def level(self, s: Array) -> Array:
        """M(s)."""
        score = self.layout.score
        active, row = self._active(s)
        gaps = np.ones_like(s)
        shifted = s + score.bound.ratio
        for inside, t in self._rest(active, row):
            gaps *= np.where(inside, shifted + t, 1.0)
        logs = self._prefix(s, row, 0) + np.log(gaps)
        paid = active * math.log(score.Q / score.bound.phi) - logs
        return np.asarray(self.scale * np.maximum(paid, 0.0) / self.sorted.size)

    def first(self, s: Array) -> Array:
        """M'(s), from the right at a kink."""
        return self._sum(s, 1, lambda gap: -1 / gap)

    def second(self, s: Array) -> Array:
        """M''(s), from the right at a kink."""
        return self._sum(s, 2, lambda gap: 1 / np.square(gap))

    def _sum(self, s: Array, derivative: int, of_gap: Callable[[Array], Array]) -> Array:
        active, row = self._active(s)
        shifted, total = s + self.layout.score.bound.ratio, -self._prefix(s, row, derivative)
        for inside, t in self._rest(active, row):
            total += np.where(inside, of_gap(shifted + t), 0.0)
        return np.asarray(self.scale * total / self.sorted.size)

    def first_error(self, s: Array) -> Array:
        """`error`, and 0 where no peer pays: what is a sum of nothing is exact."""
        return np.where(self._active(s)[0] > 0, self.error, 0.0)

    def constant(self, degree: Array) -> float:
        del degree  # the level lacks nothing
        return 0.0

    def _active(self, s: Array) -> tuple[Index, Index]:
        """How many peers pay at s, and the prefix before the last of them."""
        active = np.searchsorted(self.sorted, self.layout.score.kink - s, side="right")
        return active, active // STRIDE

    def _rest(self, active: Index, row: Index) -> Iterator[tuple[npt.NDArray[np.bool_], Array]]:
        """One by one the peers that are in no prefix: for whom they pay, and their degrees^2."""
        start = row * STRIDE
        last = self.sorted.size - 1
        for k in range(int((active - start).max(initial=0))):
            yield start + k < active, self.sorted[np.minimum(start + k, last)]

    def _prefix(self, s: Array, row: Index, derivative: int) -> Array:
        """The stored sum, or a derivative of it, at each s."""
        result = np.empty_like(s)
        for i, members in self.layout.split(s):
            panel = self.layout.panels[i]
            series = chebyshev.chebder(self.prefixes[i], derivative, scl=1 / panel.half)[:, row[members]]
            result[members] = chebyshev.chebval(panel.local(s[members]), series, tensor=False)
        return result
