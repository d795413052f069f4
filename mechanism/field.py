"""What the peers do to everyone's payment: one function of s = delta^2 for all.

    M(s) = (1/N) sum_j phi(s + delta_j^2),     H_k = (N M(s) - phi(s + delta_k^2)) / (N - 1)

M is analytic, so a Chebyshev interpolant q of M' carries N peers: a sweep costs O(N m), not O(N^2). The sums
over peers go the same way: phi'(node + t) is interpolated in t over each block of peers, so that a block needs
its power sums alone. Blocks of participants whose degrees lie close together need few terms.

Error bound. For the functions that ship, phi' is a mixture of -1/(z + r + tau)^2 with tau >= 0 and weights of
one sign (`mechanism.score`). On an interval mapped to [-1, 1] with the nearest singularity at -x0, x0 > 1, the
Chebyshev coefficients of 1/(x + x0)^2 are

    a_k = (-1)^k 2 rho^-k (k + x0/w) / w^2,     w = sqrt(x0^2 - 1),  rho = x0 + w

of alternating sign whatever x0, so that the mixture's fall at least as fast as the nearest one's:
|a_{k+1}| <= |a_k| rho^-1 (k + 2)/(k + 1), thus |a_k| <= |a_1| rho^(1-k) (k + 1)/2, and |a_1| <= (2/pi) osc.
Interpolation in n + 1 Chebyshev points aliases each coefficient beyond n once, so that

    |M' - q| <= 2 sum_{k>n} |a_k|,      |M'' - q'| <= 2 sum_{k>n} k^2 |a_k| * 2/(b - a).

Nothing is assumed about the peers. Intervals are cut so that (b + r)/(a + r) is at most `RATIO`.

Source: Trefethen, Approximation Theory and Approximation Practice, chapters 3, 4 and 8 (aliasing).
"""

import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from numpy.polynomial import chebyshev

from mechanism.payment import Linear, Log
from mechanism.score import Score

Array = npt.NDArray[np.float64]
Item = TypeVar("Item")
Result = TypeVar("Result")

#: Greatest ratio of the distances of an interval's ends to the nearest singularity: rho >= 4.4.
RATIO = 2.5
#: Interpolation errors relative to M': while participants still move far, and for the answer.
COARSE, FINE = 1e-5, 2e-13
#: Bound on the Lebesgue constant of fewer than 200 Chebyshev points: (2/pi) ln(200) + 1 < 4.4.
LEBESGUE = 5.0
#: Terms beyond which summing over the peers directly is cheaper than interpolating.
MAX_TERMS = 40
#: Participants worked on at once: enough to hide the interpreter, few enough to stay in the second-level cache.
BLOCK = 32768
#: Threads are worth their start only above this many participants.
THREADED = 3 * BLOCK
#: Arrays up to this size are worked on in fewer, larger calls.
SMALL = 512
#: More threads than these wait for the interpreter between a block's array operations.
THREADS = 2

_EPS = float(np.finfo(np.float64).eps)


def blocks(size: int) -> list[slice]:
    """[0, size) in pieces of `BLOCK`."""
    return [slice(i, min(i + BLOCK, size)) for i in range(0, size, BLOCK)]


class Pool:
    """Maps over blocks, in threads where there are many; results keep the order of the blocks."""

    def __init__(self, size: int) -> None:
        self._executor = ThreadPoolExecutor(THREADS) if size >= THREADED else None

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        if self._executor is not None:
            self._executor.shutdown()

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        return (
            list(self._executor.map(work, items)) if self._executor is not None else [work(i) for i in items]
        )


@dataclass(frozen=True)
class Basis:
    """n + 1 Chebyshev points of [-1, 1] and the way from values there to coefficients."""

    points: Array
    to_chebyshev: Array
    to_power: Array

    def power(self, values: Array) -> Array:
        """Coefficients of powers of v of the interpolant of `values`, shape (n + 1,) or (n + 1, m).

        In two steps: the matrices' product has entries of 2^n, whose rounding the second step keeps small by
        multiplying with coefficients that fall as fast.
        """
        return np.asarray(self.to_power @ (self.to_chebyshev @ values))


@lru_cache(maxsize=256)
def basis(n: int) -> Basis:
    angles = np.pi * (np.arange(n + 1) + 0.5) / (n + 1)
    to_chebyshev = np.cos(np.outer(np.arange(n + 1), angles)) * (2 / (n + 1))
    to_chebyshev[0] /= 2
    to_power = np.zeros((n + 1, n + 1))
    for k in range(n + 1):
        to_power[: k + 1, k] = chebyshev.cheb2poly(np.eye(n + 1)[k])[: k + 1]
    return Basis(np.cos(angles), to_chebyshev, to_power)


@dataclass(frozen=True)
class Panel:
    """An interval of s, with as many Chebyshev points as an accuracy takes.

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
    def over(cls, low: float, high: float, shift: float, relative_error: float) -> "Panel":
        """For mixtures whose nearest singularity is at s = -shift < low."""
        # An interval of one point still needs a width to map; 1e-9 is below any difference that matters.
        high = max(high, low + 1e-9)
        half = (high - low) / 2
        x0 = (shift + (low + high) / 2) / half
        rho = x0 + math.sqrt(x0**2 - 1)
        n = 2
        while tail(rho, n, 0) > relative_error:
            n += 1
        return cls(low, high, n, rho)

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2

    @property
    def nodes(self) -> Array:
        return np.asarray(self.low + self.half * (basis(self.degree).points + 1))

    def local(self, s: Array) -> Array:
        """v of s."""
        v = s - (self.low + self.high) / 2
        v *= 1 / self.half
        return v

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
    """The panels that cover every s a game can reach, at one accuracy.

    Attributes:
        shift: distance of s = 0 from the nearest singularity, r + min delta^2.
        edges: ends of the panels, increasing.
        nodes: the nodes of all panels, in order.
        kernel: where there is one panel, what `block_sums` multiplies a small block's power sums with.
    """

    score: Score
    shift: float
    accuracy: float
    panels: tuple[Panel, ...]
    edges: Array
    nodes: Array
    kernel: Array | None

    @classmethod
    def of(cls, score: Score, low: float, high: float, accuracy: float = FINE) -> "Layout":
        """Panels over [low, high], for peers whose delta^2 lies there too."""
        shift = score.bound.ratio + low
        high = max(high, low + 1e-9)
        count = max(1, math.ceil(math.log((high + shift) / (low + shift)) / math.log(RATIO)))
        edges = np.geomspace(low + shift, high + shift, count + 1) - shift
        edges[0], edges[-1] = low, high
        pairs = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        panels = tuple(Panel.over(a, b, shift, accuracy) for a, b in pairs)
        nodes = np.concatenate([p.nodes for p in panels])
        kernel = None
        if count == 1:
            kernel = basis(panels[0].degree).power(
                first_below_kink(score, nodes[None, :] + nodes[:, None], score.bound.ratio)
            )
        return cls(score, shift, accuracy, panels, edges, nodes, kernel)

    def block_sums(self, squares: Array) -> Array:
        """sum_j phi'(node + delta_j^2) over one block of peers, whose delta_j^2 are `squares`."""
        if self.kernel is not None and squares.size <= SMALL:
            sums = powers(self.panels[0].local(squares), self.kernel.shape[0]).sum(axis=1)
            return np.asarray(sums @ self.kernel)
        panel = Panel.over(float(squares.min()), float(squares.max()), self.shift, self.accuracy)
        ratio = self.score.bound.ratio
        if panel.degree > MAX_TERMS or squares.size <= panel.degree:
            return np.array(
                [first_below_kink(self.score, squares + node, ratio).sum() for node in self.nodes]
            )
        values = first_below_kink(self.score, self.nodes[None, :] + panel.nodes[:, None], ratio)
        return power_sums(panel.local(squares), panel.degree + 1) @ basis(panel.degree).power(values)


class PeerField(Protocol):
    """What the solvers need of a field: M up to a constant, M' and M'', and bounds on their errors."""

    @property
    def error(self) -> float: ...

    @property
    def slope_error(self) -> float: ...

    @property
    def size(self) -> float: ...

    def level(self, s: Array) -> Array: ...

    def slopes(self, s: Array) -> tuple[Array, Array]: ...

    def near(self, s: Array) -> tuple[Array, Array, Array | float]: ...

    def first_error(self, s: Array) -> Array | float:
        """Bound on the error of M'(s)."""


@dataclass(frozen=True)
class Field:
    """M', M'' and differences of M, for one profile.

    Attributes:
        means: M' at the nodes of all panels, in order.
        first: coefficients of q in powers of v, one array a panel; second: of q'; integral: of its integral.
        offsets: integral of q up to the left end of each panel.
        error, slope_error: bounds on |M' - q| and |M'' - q'|, rounding and the sums over peers included.
        size: a bound on |M'|.
    """

    layout: Layout
    means: Array
    first: tuple[Array, ...]
    second: tuple[Array, ...]
    integral: tuple[Array, ...]
    offsets: Array
    error: float
    slope_error: float
    size: float

    @classmethod
    def of(cls, layout: Layout, degree: Array, pool: Pool) -> "Field":
        """The field of a profile."""
        sums = pool.map(lambda b: layout.block_sums(np.square(degree[b])), blocks(degree.size))
        return cls.from_means(layout, np.sum(sums, axis=0) / degree.size)

    @classmethod
    def from_means(cls, layout: Layout, means: Array) -> "Field":
        """The field whose M' at the nodes of all panels, in order, is `means`."""
        first, second, integral, offsets = [], [], [], []
        total, at, error, slope_error = 0.0, 0, 0.0, 0.0
        # M' is negative and rises: |M'| is greatest at the left end. The first node lies so close to it that
        # |M'| is at most 1.075 times larger there (RATIO 2.5, n >= 4, order (z + r)^-2 at most).
        size = 1.1 * float(np.abs(means).max())
        # What the sums over the peers are off by: the interpolation in t, whose |a_1| is at most (2/pi) times the
        # greatest |phi'| of any peer at any node, and rounding, pairwise and of products.
        peak = float(
            np.abs(first_below_kink(layout.score, 2 * layout.edges[:1], layout.score.bound.ratio))[0]
        )
        at_nodes = 2 / math.pi * peak * layout.accuracy + 60 * _EPS * size
        for panel in layout.panels:
            values = means[at : at + panel.degree + 1]
            at += values.size
            q = basis(panel.degree).power(values)
            powers = np.arange(1, q.size + 1)
            primitive = np.concatenate([[0.0], q / powers * panel.half])
            primitive[0] = -float(primitive @ (-1.0) ** np.arange(primitive.size))  # 0 at the left end
            first.append(q)
            second.append(q[1:] * powers[:-1] / panel.half)
            integral.append(primitive)
            offsets.append(total)
            total += float(primitive.sum())
            one = _interpolation_error(panel, size, at_nodes)
            error = max(error, one[0])
            slope_error = max(slope_error, one[1])
        return cls(
            layout,
            means,
            tuple(first),
            tuple(second),
            tuple(integral),
            np.array(offsets),
            error,
            slope_error,
            size,
        )

    def slopes(self, s: Array) -> tuple[Array, Array]:
        """q(s) and q'(s)."""
        if len(self.first) == 1:
            v = self.layout.panels[0].local(s)
            if s.size <= SMALL and s.ndim == 1:
                terms = powers(v, self.first[0].size)
                return self.first[0] @ terms, self.second[0] @ terms[:-1]
            return horner(self.first[0], v), horner(self.second[0], v)
        first, second = np.empty_like(s), np.empty_like(s)
        for i, members in self._members(s):
            v = self.layout.panels[i].local(s[members])
            first[members], second[members] = horner(self.first[i], v), horner(self.second[i], v)
        return first, second

    def first_error(self, s: Array) -> float:
        del s  # the same everywhere
        return self.error

    def bends(self, s: Array) -> Array:
        """q'(s)."""
        if len(self.second) == 1:
            return horner(self.second[0], self.layout.panels[0].local(s))
        return self.slopes(s)[1]

    def bends_above(self, s: Array) -> Array:
        """A bound on M''(s) from above: its chord over the range of `s`, as M'' is convex."""
        ends = np.array([s.min(), s.max()])
        left, right = (self.bends(ends) + self.slope_error).tolist()
        slope = (right - left) / max(float(ends[1] - ends[0]), 1e-300)
        return np.asarray(left + slope * (s - ends[0]))

    def level(self, s: Array) -> Array:
        """M(s) up to a constant: the integral of q from the left end of the first panel."""
        if len(self.first) == 1:
            v = self.layout.panels[0].local(s)
            if s.size <= SMALL and s.ndim == 1:
                return np.asarray(self.integral[0] @ powers(v, self.integral[0].size))
            return horner(self.integral[0], v)
        value = np.empty_like(s)
        for i, members in self._members(s):
            value[members] = self.offsets[i] + horner(
                self.integral[i], self.layout.panels[i].local(s[members])
            )
        return value

    def near(self, s: Array) -> tuple[Array, Array, float]:
        """q(s) to this field's accuracy and q'(s) to `COARSE`, for one block; and the error bound of the first.

        Interpolates the field again over the range of the block, in fewer terms where that is narrow.
        """
        if s.size <= SMALL:
            return *self.slopes(s), self.error
        panel = Panel.over(float(s.min()), float(s.max()), self.layout.shift, self.layout.accuracy)
        if panel.degree + 4 >= min(p.degree for p in self.layout.panels):
            return *self.slopes(s), self.error
        rough = Panel.over(panel.low, panel.high, self.layout.shift, COARSE)
        first = basis(panel.degree).power(self.slopes(panel.nodes)[0])
        second = basis(rough.degree).power(self.slopes(rough.nodes)[1])
        v = panel.local(s)
        return horner(first, v), horner(second, v), _interpolation_error(panel, self.size, self.error)[0]

    def first_near(self, s: Array) -> tuple[Array, float]:
        """q(s) to this field's accuracy, for one block, and its error bound: as `near`, without q'."""
        panel = Panel.over(float(s.min()), float(s.max()), self.layout.shift, self.layout.accuracy)
        if s.size > SMALL and panel.degree + 4 < min(p.degree for p in self.layout.panels):
            q = basis(panel.degree).power(self.slopes(panel.nodes)[0])
            return horner(q, panel.local(s)), _interpolation_error(panel, self.size, self.error)[0]
        if len(self.first) == 1:
            return horner(self.first[0], self.layout.panels[0].local(s)), self.error
        return self.slopes(s)[0], self.error

    def _members(self, s: Array) -> list[tuple[int, npt.NDArray[np.bool_]]]:
        which = np.searchsorted(self.layout.edges[1:-1], s, side="right")
        found = [(i, which == i) for i in range(len(self.first))]
        return [(i, members) for i, members in found if members.any()]


def _interpolation_error(panel: Panel, size: float, at_nodes: float) -> tuple[float, float]:
    """Bounds on |M' - q| and |M'' - q'| on a panel, where |M'| <= size is known to `at_nodes` at the nodes."""
    first = 2 / math.pi * size
    # Coefficients fall like rho^-k, those of T_k add up to at most 2.42^k: in powers they add up to at most 8 |M'|
    # for rho >= 4.4, and Horner rounds as much in each of 2 n steps.
    rounding = 16 * panel.degree * 8 * _EPS * size
    error = first * panel.error + LEBESGUE * at_nodes + rounding
    slope_error = first * panel.slope_error + (LEBESGUE * at_nodes + rounding) * panel.degree**2 / panel.half
    return error, slope_error


def horner(coefficients: Array, v: Array) -> Array:
    """sum_i coefficients[i] v^i."""
    result = np.full_like(v, coefficients[-1])
    for c in coefficients[-2::-1].tolist():
        result *= v
        result += c
    return result


def powers(v: Array, count: int) -> Array:
    """v^k for k < count, shape (count, size), in one call: for arrays so small that calls cost most."""
    terms = np.empty((count, v.size))
    terms[0], terms[1:] = 1.0, v
    return np.multiply.accumulate(terms, axis=0, out=terms)


def power_sums(v: Array, count: int) -> Array:
    """sum_j v_j^k for k < count: powers up to half way, then products of pairs."""
    half = (count + 2) // 2
    terms = np.empty((half, v.size))
    terms[0] = 1.0
    for k in range(1, half):
        np.multiply(terms[k - 1], v, out=terms[k])
    last = terms[half - 1]
    low = [float(v.size)] + [terms[k].sum() for k in range(1, min(half, count))]
    return np.array(low + [float(np.einsum("i,i->", last, terms[k - half + 1])) for k in range(half, count)])


def second_below_kink(score: Score, z: Array) -> Array:
    """phi''(z) below the kink, in the form that takes the fewest passes."""
    if isinstance(score.function, Log):
        return np.asarray(1.0 / np.square(z + score.bound.ratio))
    return score.second(z)


def first_below_kink(score: Score, z: Array, ratio: float) -> Array:
    """phi'(z) below the kink, in the form that takes the fewest passes."""
    if isinstance(score.function, Log):
        return np.asarray(-1.0 / (z + ratio))
    if isinstance(score.function, Linear):
        return np.asarray(-(float(score.function.kappa) * score.Q / score.bound.phi) / np.square(z + ratio))
    return score.first(z)
