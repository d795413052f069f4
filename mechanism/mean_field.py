"""What the peers do to everyone's payment: one function of s = delta^2 for all.

    M(s) = (1/N) sum_j phi(s + delta_j^2),     H_k = (N M(s) - phi(s + delta_k^2)) / (N - 1)

M is analytic, so a Chebyshev interpolant q of M' carries N peers: a sweep costs O(N m), not O(N^2). The sums
over peers go the same way: phi'(node + t) is interpolated in t, so that a profile needs its power sums alone.

Error bound. For the functions that ship, phi' is a mixture of -1/(z + r + tau)^2 with tau >= 0 and weights of
one sign (`mechanism.score`). On an interval mapped to [-1, 1] with the nearest singularity at -x0, x0 > 1, the
Chebyshev coefficients of 1/(x + x0)^2 are

    a_k = (-1)^k 2 rho^-k (k + x0/w) / w^2,     w = sqrt(x0^2 - 1),  rho = x0 + w

of alternating sign whatever x0, so that the mixture's fall at least as fast as the nearest one's:
|a_{k+1}| <= |a_k| rho^-1 (k + 2)/(k + 1), thus |a_k| <= |a_1| rho^(1-k) (k + 1)/2, and |a_1| <= (2/pi) osc.
Interpolation in n + 1 Chebyshev points aliases each coefficient beyond n once, so that

    |M' - q| <= 2 sum_{k>n} |a_k|,      |M'' - q'| <= 2 sum_{k>n} k^2 |a_k| * 2/(b - a).

Nothing is assumed about the peers. Intervals are cut so that (b + r)/(a + r) is at most `RATIO`.

Other payments are summed over every peer (`PeerSums`), a clipped log as `mechanism.clipped` has it.

Source: Trefethen, Approximation Theory and Approximation Practice, chapters 3, 4 and 8 (aliasing).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
from numpy.polynomial import Polynomial, chebyshev

from mechanism.score import Score

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: Greatest ratio of the distances of an interval's ends to the nearest singularity: rho >= 4.4.
RATIO = 2.5
#: Interpolation error relative to M'.
FINE = 2e-13
#: Bound on the Lebesgue constant of fewer than 200 Chebyshev points: (2/pi) ln(200) + 1 < 4.4.
LEBESGUE = 5.0
#: Pairs of (degree, peer) that are evaluated at once where every peer is summed.
PAIRS = 1 << 21
#: Numbers that are evaluated at once: as many as stay in a processor's cache.
CACHED = 1 << 14

_EPS = float(np.finfo(np.float64).eps)


class PeerField(Protocol):
    """What the solver needs of a profile: M up to a constant, M' and M'', and bounds on their errors.

    Attributes:
        error, slope_error: bounds on the errors of M' and M''; level_error: of a difference of two M.
        size: a bound on |M'|.
    """

    @property
    def error(self) -> float: ...

    @property
    def slope_error(self) -> float: ...

    @property
    def level_error(self) -> float: ...

    @property
    def size(self) -> float: ...

    def level(self, s: Array) -> Array: ...

    def first(self, s: Array) -> Array: ...

    def second(self, s: Array) -> Array: ...

    def first_error(self, s: Array) -> Array | float:
        """Bound on the error of M'(s)."""

    def constant(self, degree: Array) -> float:
        """What the level lacks; `degree` is the profile."""


@cache
def _basis(n: int) -> tuple[Array, Array]:
    """The matrices from values at n + 1 Chebyshev points to coefficients of T_k, and from those to powers."""
    to_chebyshev = chebyshev.chebvander(chebyshev.chebpts1(n + 1), n).T * (2 / (n + 1))
    to_chebyshev[0] /= 2
    to_power = [np.pad(chebyshev.cheb2poly(row), (0, n - k)) for k, row in enumerate(np.eye(n + 1))]
    return np.asarray(to_chebyshev), np.stack(to_power, axis=1)


def coefficients(values: Array) -> Array:
    """Coefficients of T_k of what interpolates `values` at Chebyshev points, shape (n + 1,) or (n + 1, m)."""
    return np.asarray(_basis(values.shape[0] - 1)[0] @ values)


def power_coefficients(values: Array) -> Array:
    """The same of powers of v.

    In two steps: the matrices' product has entries of 2^n, whose rounding the second step keeps small by
    multiplying with coefficients that fall as fast.
    """
    return np.asarray(_basis(values.shape[0] - 1)[1] @ coefficients(values))


@dataclass(frozen=True)
class Panel:
    """An interval of s, with as many Chebyshev points as the accuracy takes.

    Attributes:
        low, high: the interval; s = low + half * (1 + v), v in [-1, 1].
        degree: n.
        rho: the ellipse of analyticity of the mixture.
    """

    low: float
    high: float
    degree: int
    rho: float

    @classmethod
    def over(cls, low: float, high: float, shift: float) -> "Panel":
        """For mixtures whose nearest singularity is at s = -shift < low."""
        half = (high - low) / 2
        x0 = (shift + (low + high) / 2) / half
        rho = x0 + math.sqrt(x0**2 - 1)
        n = 2
        while tail(rho, n, 0) > FINE:
            n += 1
        return cls(low, high, n, rho)

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2

    @property
    def nodes(self) -> Array:
        return np.asarray(self.low + self.half * (chebyshev.chebpts1(self.degree + 1) + 1))

    def local(self, s: Array) -> Array:
        """v of s."""
        return np.asarray((s - (self.low + self.high) / 2) / self.half)

    @property
    def error(self) -> float:
        """Bound on |M' - q| for |a_1| = 1."""
        return tail(self.rho, self.degree, 0)

    @property
    def slope_error(self) -> float:
        """Bound on |M'' - q'| for |a_1| = 1."""
        return tail(self.rho, self.degree, 2) / self.half


def tail(rho: float, n: int, power: int) -> float:
    """A bound on 2 sum_{k>n} k^power (k + 1)/2 rho^(1-k): the error for |a_1| = 1.

    The ratio of one term to the one before falls with k, so the sum is at most geometric.
    """
    k = n + 1
    ratio = (k + 2) / (k + 1) * ((k + 1) / k) ** power / rho
    if ratio >= 1:
        return math.inf
    return float((k**power * (k + 1)) * rho**-n / (1 - ratio))


@dataclass(frozen=True)
class Layout:
    """The panels that cover every s a game can reach.

    Attributes:
        shift: distance of s = 0 from the nearest singularity, r + min delta^2.
        edges: ends of the panels, increasing.
        nodes: the nodes of all panels, in order.
        kernels: for peers in each panel, what their power sums are multiplied with.
    """

    score: Score
    shift: float
    panels: tuple[Panel, ...]
    edges: Array
    nodes: Array
    kernels: tuple[Array, ...]

    @classmethod
    def of(cls, score: Score, low: float, high: float) -> "Layout":
        """Panels over [low, high], for peers whose delta^2 lies there too."""
        shift = score.bound.ratio + low
        high = max(high, low + 1e-9)  # an interval of one point still needs a width to map
        count = max(1, math.ceil(math.log((high + shift) / (low + shift)) / math.log(RATIO)))
        edges = np.geomspace(low + shift, high + shift, count + 1) - shift
        edges[0], edges[-1] = low, high
        pairs = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        panels = tuple(Panel.over(a, b, shift) for a, b in pairs)
        nodes = np.concatenate([p.nodes for p in panels])
        kernels = tuple(power_coefficients(score.first(nodes + p.nodes[:, None])) for p in panels)
        return cls(score, shift, panels, edges, nodes, kernels)

    def split(self, s: Array) -> Iterator[tuple[int, Mask | slice]]:
        """Panels and the entries of `s` in each."""
        if len(self.panels) == 1:
            yield 0, slice(None)
            return
        which = np.searchsorted(self.edges[1:-1], s, side="right")
        for i in range(len(self.panels)):
            members = which == i
            if members.any():
                yield i, members

    def means(self, degree: Array) -> Array:
        """M' at the nodes for a profile."""
        total = np.zeros(self.nodes.size)
        for at in range(0, degree.size, CACHED):
            squares = np.square(degree[at : at + CACHED])
            for i, members in self.split(squares):
                v = self.panels[i].local(squares[members])
                total += _power_sums(v, self.panels[i].degree + 1) @ self.kernels[i]
        return np.asarray(total / degree.size)


@dataclass(frozen=True)
class Field:
    """M', M'' and differences of M, for one profile and a payment that is such a mixture within reach.

    Attributes:
        means: M' at the nodes of all panels, in order.
        interpolants: q, one polynomial a panel.
    """

    layout: Layout
    means: Array
    interpolants: tuple[Polynomial, ...]
    error: float
    slope_error: float
    size: float

    @classmethod
    def of(cls, layout: Layout, degree: Array) -> "Field":
        """The field of a profile."""
        return cls.from_means(layout, layout.means(degree))

    @classmethod
    def from_means(cls, layout: Layout, means: Array) -> "Field":
        """The field whose M' at the nodes of all panels, in order, is `means`."""
        interpolants, at, error, slope_error = [], 0, 0.0, 0.0
        # M' is negative and rises: |M'| is greatest at the left end. The first node lies so close to it that
        # |M'| is at most 1.075 times larger there (RATIO 2.5, n >= 4, order (z + r)^-2 at most).
        size = 1.1 * float(np.abs(means).max())
        # What the sums over the peers are off by: the interpolation in t, whose |a_1| is at most (2/pi) times the
        # greatest |phi'| of any peer at any node, and rounding, pairwise and of products.
        peak = float(np.abs(layout.score.first(2 * layout.edges[:1]))[0])
        at_nodes = 2 / math.pi * peak * FINE + 60 * _EPS * size
        for panel in layout.panels:
            mine, at = means[at : at + panel.degree + 1], at + panel.degree + 1
            interpolants.append(Polynomial(power_coefficients(mine), (panel.low, panel.high)))
            # Coefficients fall like rho^-k, those of T_k add up to at most 2.42^k: in powers they add up to at most
            # 8 |M'| for rho >= 4.4, and Horner rounds as much in each of 2 n steps.
            rounding = 128 * panel.degree * _EPS * size
            one = 2 / math.pi * size * panel.error + LEBESGUE * at_nodes + rounding
            slope = 2 / math.pi * size * panel.slope_error
            slope += (LEBESGUE * at_nodes + rounding) * panel.degree**2 / panel.half
            error, slope_error = max(error, one), max(slope_error, slope)
        return cls(layout, means, tuple(interpolants), error, slope_error, size)

    @property
    def level_error(self) -> float:
        # The level of a chord's ends and of the profile are each off by the error of an integral over s <= 1.
        return 4 * self.error

    def level(self, s: Array) -> Array:
        """M(s) up to a constant."""
        return self._evaluated(self._integrals, s)

    def first(self, s: Array) -> Array:
        """q(s)."""
        return self._evaluated(self.interpolants, s)

    def second(self, s: Array) -> Array:
        """q'(s)."""
        return self._evaluated(self._derivatives, s)

    def first_error(self, s: Array) -> float:
        del s  # the same everywhere
        return self.error

    def constant(self, degree: Array) -> float:
        anchor = np.square(degree[:1])
        return float(self.layout.score.value(anchor + np.square(degree)).mean() - self.level(anchor)[0])

    @cached_property
    def _derivatives(self) -> tuple[Polynomial, ...]:
        return tuple(q.deriv() for q in self.interpolants)

    @cached_property
    def _integrals(self) -> tuple[Polynomial, ...]:
        found: list[Polynomial] = []
        total = 0.0
        for panel, q in zip(self.layout.panels, self.interpolants, strict=True):
            found.append(q.integ(k=total, lbnd=panel.low))
            total = float(found[-1](panel.high))
        return tuple(found)

    def _evaluated(self, polynomials: tuple[Polynomial, ...], s: Array) -> Array:
        value = np.empty_like(s)
        for i, members in self.layout.split(s):
            value[members] = _horner(
                np.asarray(polynomials[i].coef, np.float64), self.layout.panels[i].local(s[members])
            )
        return value


@dataclass(frozen=True)
class PeerSums:
    """M, M' and M'' by sums over every peer, for any payment: O(N) for each s.

    Attributes:
        squares: the peers' delta^2.
    """

    score: Score
    squares: Array
    error: float = 0.0
    slope_error: float = 0.0
    level_error: float = 0.0
    size: float = 0.0

    def level(self, s: Array) -> Array:
        return self._mean("value", s)

    def first(self, s: Array) -> Array:
        return self._mean("first", s)

    def second(self, s: Array) -> Array:
        return self._mean("second", s)

    def first_error(self, s: Array) -> float:
        del s  # rounding alone
        return self.error

    def constant(self, degree: Array) -> float:
        del degree  # the level lacks nothing
        return 0.0

    def _mean(self, function: str, s: Array) -> Array:
        evaluate, result = getattr(self.score, function), np.empty_like(s)
        rows = max(1, PAIRS // self.squares.size)
        for i in range(0, s.size, rows):
            result[i : i + rows] = evaluate(s[i : i + rows, None] + self.squares).mean(axis=1)
        return result


def _horner(coefficients: Array, v: Array) -> Array:
    """sum_i coefficients[i] v^i, in place: NumPy's own makes an array a step."""
    result = np.full_like(v, coefficients[-1])
    for c in coefficients[-2::-1].tolist():
        result *= v
        result += c
    return result


def _power_sums(v: Array, count: int) -> Array:
    """sum_j v_j^k for k < count."""
    sums, power = np.empty(count), np.ones_like(v)
    for k in range(count):
        sums[k] = power.sum()
        power *= v
    return sums
