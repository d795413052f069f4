"""Effort curves: what degree an effort buys.

    delta_k : [0, 1] -> [0, 1], continuous and non-increasing

    exponential   delta(e) = delta_0 * exp(-rate * e)        the paper's, with rate 1 and delta_0 = 1
    tabulated     linear between given points
    callable      a user's own function, checked to be non-increasing

A curve may stand for one participant or for many: with arrays as parameters every method takes and returns
one entry a participant. The game is played in degrees; `effort` turns an answer back.

Source: Pang et al. 2025, section 3 (heterogeneous effort) and the appendix on hyperparameters.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from mechanism.errors import FieldError
from mechanism.ranges import all_within, vector

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]

#: Points at which a user's own curve is checked; a curve that rises between them is not noticed.
CHECK_POINTS = 1025
#: Halvings of [0, 1] when an effort is looked up: beyond 2^-53 a float no longer changes.
BISECTIONS = 60


@runtime_checkable
class EffortCurve(Protocol):
    """A non-increasing map from effort to degree."""

    @property
    def start(self) -> Array:
        """delta(0), the degree of the data as it is."""

    @property
    def floor(self) -> Array:
        """delta(1), the least degree that can be reached."""

    def degree(self, effort: npt.ArrayLike) -> Array:
        """delta(e) for efforts in [0, 1]."""

    def effort(self, degree: npt.ArrayLike) -> Array:
        """The least effort whose degree is at most `degree`; degrees outside the range are moved into it."""

    def take(self, index: Index) -> "EffortCurve":
        """The curves of the participants at `index`."""


@dataclass(frozen=True)
class ExponentialEffort:
    """delta(e) = delta_0 * exp(-rate * e).

    Attributes:
        delta_0: degree without effort, in [0, 1]; a number or one a participant.
        rate: > 0; a number or one a participant.
    """

    delta_0: npt.ArrayLike = 1.0
    rate: npt.ArrayLike = 1.0

    def __post_init__(self) -> None:
        delta_0, rate = vector("delta0", self.delta_0), vector("rate", self.rate)
        all_within("delta0", delta_0, (delta_0 >= 0) & (delta_0 <= 1), "a degree in [0, 1]")
        all_within("rate", rate, rate > 0, "a number above 0")
        try:
            shape = np.broadcast_shapes(delta_0.shape, rate.shape)
        except ValueError:
            raise FieldError("rate", rate.shape, f"as many as delta0 has: {delta_0.shape}") from None
        object.__setattr__(self, "delta_0", np.broadcast_to(delta_0, shape))
        object.__setattr__(self, "rate", np.broadcast_to(rate, shape))

    @property
    def start(self) -> Array:
        return np.asarray(self.delta_0, dtype=np.float64)

    @property
    def floor(self) -> Array:
        return np.asarray(self.start * np.exp(-np.asarray(self.rate)))

    def degree(self, effort: npt.ArrayLike) -> Array:
        return np.asarray(self.start * np.exp(-np.asarray(self.rate) * _efforts(effort)))

    def effort(self, degree: npt.ArrayLike) -> Array:
        inside = np.clip(np.asarray(degree, dtype=np.float64), self.floor, self.start)
        # A participant whose data already follow the reference has nothing to do: 0/0 stands for 1.
        ratio = np.divide(self.start, inside, out=np.ones_like(inside), where=inside > 0)
        return np.clip(np.log(ratio) / self.rate, 0.0, 1.0)

    def take(self, index: Index) -> "ExponentialEffort":
        return ExponentialEffort(self.start[index], np.asarray(self.rate)[index])


class _ForEveryone:
    """One curve for everyone, without an inverse of its own."""

    @property
    def start(self) -> Array:
        return self.degree(0.0)

    @property
    def floor(self) -> Array:
        return self.degree(1.0)

    def degree(self, effort: npt.ArrayLike) -> Array:
        raise NotImplementedError

    def effort(self, degree: npt.ArrayLike) -> Array:
        return _least_effort(self, degree)

    def take(self, index: Index) -> Self:
        del index
        return self


@dataclass(frozen=True)
class TabulatedEffort(_ForEveryone):
    """delta(e), linear between the points (efforts[i], degrees[i]).

    Attributes:
        efforts: strictly increasing from 0 to 1.
        degrees: non-increasing, in [0, 1], one an effort.
    """

    efforts: Sequence[float]
    degrees: Sequence[float]

    def __post_init__(self) -> None:
        efforts, degrees = vector("efforts", self.efforts), vector("degrees", self.degrees)
        if efforts.ndim != 1 or efforts.size < 2 or efforts.shape != degrees.shape:
            raise FieldError("efforts", self.efforts, "at least two efforts and one degree for each")
        if efforts[0] != 0 or efforts[-1] != 1 or (np.diff(efforts) <= 0).any():
            raise FieldError("efforts", self.efforts, "strictly increasing efforts from 0 to 1")
        all_within("degrees", degrees, (degrees >= 0) & (degrees <= 1), "degrees in [0, 1]")
        _non_increasing("degrees", efforts, degrees)
        object.__setattr__(self, "efforts", tuple(efforts.tolist()))
        object.__setattr__(self, "degrees", tuple(degrees.tolist()))

    def degree(self, effort: npt.ArrayLike) -> Array:
        return np.asarray(np.interp(_efforts(effort), self.efforts, self.degrees))


@dataclass(frozen=True)
class CallableEffort(_ForEveryone):
    """A user's own curve: a continuous, non-increasing function of one effort in [0, 1].

    It is checked at `CHECK_POINTS` points; continuity cannot be checked and is the user's word.
    """

    function: Callable[[float], float]

    def __post_init__(self) -> None:
        efforts = np.linspace(0.0, 1.0, CHECK_POINTS)
        degrees = np.array([self._one(e) for e in efforts])
        all_within("effort curve", degrees, (degrees >= 0) & (degrees <= 1), "degrees in [0, 1]")
        _non_increasing("effort curve", efforts, degrees)

    def degree(self, effort: npt.ArrayLike) -> Array:
        efforts = _efforts(effort)
        return np.array([self._one(e) for e in efforts.ravel()], dtype=np.float64).reshape(efforts.shape)

    def _one(self, effort: float) -> float:
        return float(self.function(float(effort)))


@dataclass(frozen=True)
class StackedEffort:
    """Curves of whatever kinds, each for one participant.

    Attributes:
        curves: the different curves.
        who: which of them each participant has; None where each curve is one participant's.
    """

    curves: Sequence[EffortCurve]
    who: Index | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "curves", tuple(self.curves))
        if self.who is None:
            object.__setattr__(self, "who", np.arange(len(self.curves)))

    @property
    def start(self) -> Array:
        return np.array([float(curve.start) for curve in self.curves])[self.who]

    @property
    def floor(self) -> Array:
        return np.array([float(curve.floor) for curve in self.curves])[self.who]

    def degree(self, effort: npt.ArrayLike) -> Array:
        return self._each("degree", _efforts(effort))

    def effort(self, degree: npt.ArrayLike) -> Array:
        return self._each("effort", np.asarray(degree, dtype=np.float64))

    def take(self, index: Index) -> "StackedEffort":
        return StackedEffort(self.curves, np.asarray(self.who)[index])

    def _each(self, method: str, values: Array) -> Array:
        who = np.asarray(self.who)
        values, result = np.broadcast_to(values, who.shape), np.empty(who.shape)
        for k in np.unique(who):
            result[who == k] = getattr(self.curves[k], method)(values[who == k])
        return result


def _least_effort(curve: EffortCurve, degree: npt.ArrayLike) -> Array:
    """inf { e : delta(e) <= degree } by bisection, for curves without an inverse."""
    target = np.clip(np.asarray(degree, dtype=np.float64), curve.floor, curve.start)
    low, high = np.zeros_like(target), np.ones_like(target)
    done = target >= curve.start
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        reached = curve.degree(middle) <= target
        high, low = np.where(reached, middle, high), np.where(reached, low, middle)
    return np.where(done, 0.0, high)


def _efforts(effort: npt.ArrayLike) -> Array:
    efforts = np.asarray(effort, dtype=np.float64)
    all_within("effort", efforts, (efforts >= 0) & (efforts <= 1), "a number in [0, 1]")
    return efforts


def _non_increasing(field: str, efforts: Array, degrees: Array) -> None:
    rises = np.diff(degrees) > 0
    if rises.any():
        i = int(np.argmax(rises))
        raise FieldError(
            field,
            [float(degrees[i]), float(degrees[i + 1])],
            f"a non-increasing curve; it rises between effort {efforts[i]:.6g} and {efforts[i + 1]:.6g}",
        )
