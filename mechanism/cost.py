"""What an effort costs.

    Cost_k = c_k * d(x),   x = delta_k(0) - delta_k(e_k) >= 0,   d(0) = 0, d increasing      credits

    linear   d(x) = x            the paper's
    power    d(x) = x^a          a > 0; convex for a > 1, concave for a < 1
    callable a user's own d, checked to be increasing

As an effort curve, a cost may stand for one participant or for many. `convexity` is what the certificates
lean on: a convex cost lies above its tangents, a concave one above its chords, and the marginal cost of either
is greatest and least at an interval's ends.

Source: Pang et al. 2025, section 4 (Cost_k).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from mechanism.errors import FieldError

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]

#: Points of [0, 1] at which a user's own cost is checked.
CHECK_POINTS = 1025


class Convexity(Enum):
    """Shape of d on [0, 1]."""

    LINEAR = "linear"
    CONVEX = "convex"
    CONCAVE = "concave"
    UNKNOWN = "unknown"


@runtime_checkable
class CostFunction(Protocol):
    """c * d(x) with its derivatives; x in [0, 1], arrays of one entry a participant."""

    @property
    def convexity(self) -> Convexity: ...

    def value(self, x: npt.ArrayLike) -> Array: ...

    def first(self, x: npt.ArrayLike) -> Array:
        """c * d'(x); infinity where the slope is infinite."""

    def second(self, x: npt.ArrayLike) -> Array:
        """c * d''(x)."""

    def take(self, index: Index) -> "CostFunction":
        """The costs of the participants at `index`."""


#: (cost, low, high) -> two numbers a participant, of its cost over [low, high].
Bounds = Callable[[CostFunction, Array, Array], tuple[Array, Array]]


@dataclass(frozen=True)
class LinearCost:
    """Cost = c * x.

    Attributes:
        coefficient: c > 0, credits a unit of degree; a number or one a participant.
    """

    coefficient: npt.ArrayLike

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficient", _positive("cost", self.coefficient))

    @property
    def convexity(self) -> Convexity:
        return Convexity.LINEAR

    def value(self, x: npt.ArrayLike) -> Array:
        return np.asarray(_array(self.coefficient) * np.asarray(x, dtype=np.float64))

    def first(self, x: npt.ArrayLike) -> Array:
        return np.asarray(_array(self.coefficient) + np.zeros_like(np.asarray(x, dtype=np.float64)))

    def second(self, x: npt.ArrayLike) -> Array:
        return np.zeros_like(self.first(x))

    def take(self, index: Index) -> "LinearCost":
        return LinearCost(_taken(self.coefficient, index))


@dataclass(frozen=True)
class PowerCost:
    """Cost = c * x^a.

    Attributes:
        coefficient: c > 0, credits; a number or one a participant.
        exponent: a > 0; one number for all.
    """

    coefficient: npt.ArrayLike
    exponent: float = 2.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficient", _positive("cost", self.coefficient))
        exponent = _positive("cost exponent", self.exponent)
        if exponent.ndim:
            raise FieldError("cost exponent", self.exponent, "one number for all participants")
        object.__setattr__(self, "exponent", float(exponent))

    @property
    def convexity(self) -> Convexity:
        if self.exponent == 1:
            return Convexity.LINEAR
        return Convexity.CONVEX if self.exponent > 1 else Convexity.CONCAVE

    def value(self, x: npt.ArrayLike) -> Array:
        return np.asarray(_array(self.coefficient) * np.power(np.asarray(x, dtype=np.float64), self.exponent))

    def first(self, x: npt.ArrayLike) -> Array:
        return np.asarray(_array(self.coefficient) * self.exponent * _power(x, self.exponent - 1))

    def second(self, x: npt.ArrayLike) -> Array:
        a = self.exponent
        if a == 1:
            return np.zeros_like(self.first(x))
        return np.asarray(_array(self.coefficient) * (a * (a - 1)) * _power(x, a - 2))

    def take(self, index: Index) -> "PowerCost":
        return PowerCost(_taken(self.coefficient, index), self.exponent)


@dataclass(frozen=True)
class CallableCost:
    """Cost = c * d(x) with a user's own d on [0, 1] and its two derivatives.

    d(0) = 0 and that d increases is checked at `CHECK_POINTS` points; so is a declared convexity. Between
    the points both are the user's word. Each function takes and returns an array.

    Attributes:
        coefficient: c > 0, credits; a number or one a participant.
        shape: the convexity of d; `UNKNOWN` costs sharpness of certificates, never their truth.
    """

    coefficient: npt.ArrayLike
    d: Callable[[Array], Array]
    d_first: Callable[[Array], Array]
    d_second: Callable[[Array], Array]
    shape: Convexity = Convexity.UNKNOWN

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficient", _positive("cost", self.coefficient))
        x = np.linspace(0.0, 1.0, CHECK_POINTS)
        values = np.asarray(self.d(x), dtype=np.float64)
        if values.shape != x.shape or not np.isfinite(values).all():
            raise FieldError("cost d", values, "finite values, one an entry")
        if values[0] != 0:
            raise FieldError("cost d(0)", float(values[0]), "0: no effort costs nothing")
        steps = np.diff(values)
        if (steps <= 0).any():
            i = int(np.argmax(steps <= 0))
            expected = f"an increasing function; it does not rise between {x[i]:.6g} and {x[i + 1]:.6g}"
            raise FieldError("cost d", [float(values[i]), float(values[i + 1])], expected)
        bends = np.diff(steps)
        # Rounding of d itself: a straight line may bend by a few units in the last place.
        slack = 8 * np.finfo(np.float64).eps * float(np.abs(values).max())
        wrong = {
            Convexity.LINEAR: np.abs(bends) > slack,
            Convexity.CONVEX: bends < -slack,
            Convexity.CONCAVE: bends > slack,
            Convexity.UNKNOWN: np.zeros_like(bends, dtype=bool),
        }[self.shape]
        if wrong.any():
            i = int(np.argmax(wrong))
            raise FieldError(
                "cost shape", self.shape.value, f"what d shows; it bends otherwise at {x[i + 1]:.6g}"
            )

    @property
    def convexity(self) -> Convexity:
        return self.shape

    def value(self, x: npt.ArrayLike) -> Array:
        return np.asarray(_array(self.coefficient) * self.d(np.asarray(x, dtype=np.float64)))

    def first(self, x: npt.ArrayLike) -> Array:
        return np.asarray(_array(self.coefficient) * self.d_first(np.asarray(x, dtype=np.float64)))

    def second(self, x: npt.ArrayLike) -> Array:
        return np.asarray(_array(self.coefficient) * self.d_second(np.asarray(x, dtype=np.float64)))

    def take(self, index: Index) -> "CallableCost":
        coefficient = _taken(self.coefficient, index)
        return CallableCost(coefficient, self.d, self.d_first, self.d_second, self.shape)


@dataclass(frozen=True)
class StackedCost:
    """Costs of whatever kinds, each for one participant.

    Attributes:
        costs: the different costs.
        who: which of them each participant has; None where each cost is one participant's.
    """

    costs: Sequence[CostFunction]
    who: Index | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "costs", tuple(self.costs))
        if self.who is None:
            object.__setattr__(self, "who", np.arange(len(self.costs)))

    @property
    def convexity(self) -> Convexity:
        shapes = {cost.convexity for cost in self.costs}
        if len(shapes) > 1:
            shapes.discard(Convexity.LINEAR)  # a line is convex and concave
        return shapes.pop() if len(shapes) == 1 else Convexity.UNKNOWN

    def value(self, x: npt.ArrayLike) -> Array:
        return self._each("value", x)

    def first(self, x: npt.ArrayLike) -> Array:
        return self._each("first", x)

    def second(self, x: npt.ArrayLike) -> Array:
        return self._each("second", x)

    def take(self, index: Index) -> "StackedCost":
        return StackedCost(self.costs, np.asarray(self.who)[index])

    def parted(self, bounds: "Bounds", low: Array, high: Array) -> tuple[Array, Array]:
        """What `bounds` says of each participant's own cost."""
        who = np.broadcast_to(np.asarray(self.who), low.shape)
        first, second = np.empty_like(low), np.empty_like(low)
        for k in np.unique(who):
            mine = who == k
            first[mine], second[mine] = bounds(self.costs[k], low[mine], high[mine])
        return first, second

    def _each(self, method: str, x: npt.ArrayLike) -> Array:
        who = np.asarray(self.who)
        gaps = np.asarray(x, dtype=np.float64)
        gaps = np.broadcast_to(gaps, np.broadcast_shapes(gaps.shape, who.shape))
        result = np.empty(gaps.shape)
        for k in np.unique(who):
            result[..., who == k] = getattr(self.costs[k], method)(gaps[..., who == k])
        return result


def marginal_range(cost: CostFunction, low: Array, high: Array) -> tuple[Array, Array]:
    """Bounds of c * d' over x in [low, high], one entry a participant: its ends, where d' is monotone."""
    if isinstance(cost, StackedCost):
        return cost.parted(marginal_range, low, high)
    if cost.convexity is Convexity.UNKNOWN:
        return np.zeros_like(low), np.full_like(low, np.inf)
    left, right = (np.broadcast_to(cost.first(x), low.shape) for x in (low, high))
    return (right, left) if cost.convexity is Convexity.CONCAVE else (left, right)


def line_below(cost: CostFunction, low: Array, high: Array) -> tuple[Array, Array]:
    """A line that c * d lies above for x in [low, high], one entry a participant: its value at `high`, its slope.

    A tangent of a convex cost, the chord of a concave one, and a constant for one of unknown shape.
    """
    if isinstance(cost, StackedCost):
        return cost.parted(line_below, low, high)
    shape = cost.convexity
    if shape is Convexity.UNKNOWN:
        return np.broadcast_to(cost.value(low), low.shape), np.zeros_like(low)
    if shape is Convexity.CONVEX:
        middle = (low + high) / 2
        slope = np.broadcast_to(cost.first(middle), low.shape)
        return np.asarray(cost.value(middle) + slope * (high - middle)), slope
    top = np.broadcast_to(cost.value(high), low.shape)
    width = high - low
    return top, np.asarray((top - cost.value(low)) / np.where(width > 0, width, 1.0))


def shape_known(cost: CostFunction, size: int) -> npt.NDArray[np.bool_]:
    """Whether the convexity of each participant's cost is known, shape (size,)."""
    if isinstance(cost, StackedCost):
        known = np.array([one.convexity is not Convexity.UNKNOWN for one in cost.costs])
        return np.broadcast_to(known[np.asarray(cost.who)], (size,))
    return np.full(size, cost.convexity is not Convexity.UNKNOWN)


def _power(x: npt.ArrayLike, exponent: float) -> Array:
    """x^exponent, infinity at 0 where the exponent is negative."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.power(np.asarray(x, dtype=np.float64), exponent))


def _positive(field: str, value: npt.ArrayLike) -> Array:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise FieldError(field, value, "a number above 0") from None
    bad = ~(np.isfinite(array) & (array > 0))
    if bad.any():
        where = int(np.argmax(bad))
        name = field if array.ndim == 0 else f"{field}[{where}]"
        raise FieldError(name, float(array.ravel()[where]), "a finite number above 0")
    return array


def _array(coefficient: npt.ArrayLike) -> Array:
    return np.asarray(coefficient, dtype=np.float64)


def _taken(coefficient: npt.ArrayLike, index: Index) -> Array:
    array = _array(coefficient)
    return array if array.ndim == 0 else array[index]
