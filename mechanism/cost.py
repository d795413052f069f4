"""What an effort costs.

    Cost_k = c_k * d(x),   x = delta_k(0) - delta_k(e_k) >= 0,   d(0) = 0, d increasing      credits

    linear   d(x) = x            the paper's
    power    d(x) = x^a          a > 0; convex for a > 1, concave for a < 1
    callable a user's own d, checked to be increasing

As an effort curve, a cost may stand for one participant or for many. Its shape is what the certificates lean
on: a convex cost lies above its tangents, a concave one above its chords, and the marginal cost of either is greatest
and least at an interval's ends.

Source: Pang et al. 2025, section 4 (Cost_k).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from mechanism.errors import FieldError
from mechanism.ranges import all_within, vector

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
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
    def convex(self) -> Mask:
        """Whether d is known to be convex; one entry a participant, or one for all."""

    @property
    def concave(self) -> Mask:
        """The same of concave; a line is both."""

    def value(self, x: npt.ArrayLike) -> Array: ...

    def first(self, x: npt.ArrayLike) -> Array:
        """c * d'(x); infinity where the slope is infinite."""

    def second(self, x: npt.ArrayLike) -> Array:
        """c * d''(x)."""

    def take(self, index: Index) -> "CostFunction":
        """The costs of the participants at `index`."""


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
    def convex(self) -> Mask:
        return np.asarray(True)

    concave = convex

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
        exponent: a > 0; a number or one a participant.
    """

    coefficient: npt.ArrayLike
    exponent: npt.ArrayLike = 2.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficient", _positive("cost", self.coefficient))
        object.__setattr__(self, "exponent", _positive("cost exponent", self.exponent))

    @property
    def convex(self) -> Mask:
        return _array(self.exponent) >= 1

    @property
    def concave(self) -> Mask:
        return _array(self.exponent) <= 1

    def value(self, x: npt.ArrayLike) -> Array:
        return np.asarray(_array(self.coefficient) * np.power(np.asarray(x, dtype=np.float64), self.exponent))

    def first(self, x: npt.ArrayLike) -> Array:
        a = _array(self.exponent)
        return np.asarray(_array(self.coefficient) * a * _power(x, a - 1))

    def second(self, x: npt.ArrayLike) -> Array:
        a = _array(self.exponent)
        bend = _array(self.coefficient) * (a * (a - 1)) * _power(x, np.where(a == 1, 0.0, a - 2))
        return np.asarray(bend)

    def take(self, index: Index) -> "PowerCost":
        return PowerCost(_taken(self.coefficient, index), _taken(self.exponent, index))


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
    def convex(self) -> Mask:
        return np.asarray(self.shape in (Convexity.LINEAR, Convexity.CONVEX))

    @property
    def concave(self) -> Mask:
        return np.asarray(self.shape in (Convexity.LINEAR, Convexity.CONCAVE))

    def value(self, x: npt.ArrayLike) -> Array:
        return np.asarray(_array(self.coefficient) * self.d(np.asarray(x, dtype=np.float64)))

    def first(self, x: npt.ArrayLike) -> Array:
        return np.asarray(_array(self.coefficient) * self.d_first(np.asarray(x, dtype=np.float64)))

    def second(self, x: npt.ArrayLike) -> Array:
        return np.asarray(_array(self.coefficient) * self.d_second(np.asarray(x, dtype=np.float64)))

    def take(self, index: Index) -> "CallableCost":
        coefficient = _taken(self.coefficient, index)
        return CallableCost(coefficient, self.d, self.d_first, self.d_second, self.shape)


def over(cost: CostFunction, weight: npt.ArrayLike) -> CostFunction:
    """Costs c_k d / w_k: those of participants who are paid w_k of a payment, in units of what they are paid.

    Args:
        cost: of a kind of this module.
        weight: w_k in (0, 1]; a number or one a participant.
    """
    array = vector("weight", weight)
    all_within("weight", array, (array > 0) & (array <= 1), "above 0 and at most 1")
    if not isinstance(cost, LinearCost | PowerCost | CallableCost):
        raise FieldError("cost", cost, "a linear, power or callable cost where there is a weight")
    return replace(cost, coefficient=_array(cost.coefficient) / array)


def own(cost: CostFunction) -> bool:
    """Whether some of it is a user's own function, known at the points alone at which it was checked."""
    return not isinstance(cost, LinearCost | PowerCost)


def shape_known(cost: CostFunction) -> Mask:
    """Whether a cost is known to be convex or concave; one entry a participant, or one for all."""
    return cost.convex | cost.concave


def marginal_range(cost: CostFunction, low: Array, high: Array) -> tuple[Array, Array]:
    """Bounds of c * d' over x in [low, high], one entry a participant: its ends, where d' is monotone."""
    known, left, right = shape_known(cost), cost.first(low), cost.first(high)
    return np.where(known, np.minimum(left, right), 0.0), np.where(known, np.maximum(left, right), np.inf)


def line_below(cost: CostFunction, low: Array, high: Array) -> tuple[Array, Array]:
    """A line that c * d lies above for x in [low, high], one entry a participant: its value at `high`, its slope.

    A tangent of a convex cost, the chord of a concave one, and a constant for one of unknown shape.
    """
    middle, width = (low + high) / 2, high - low
    tangent, bottom, top = cost.first(middle), cost.value(low), cost.value(high)
    chord = (top - bottom) / np.where(width > 0, width, 1.0)
    slope = np.where(cost.convex, tangent, np.where(cost.concave, chord, 0.0))
    with np.errstate(invalid="ignore"):  # a concave power's tangent at 0 is infinite, and not taken
        touched = cost.value(middle) + tangent * (width / 2)
    return np.where(cost.convex, touched, np.where(cost.concave, top, bottom)), slope


def _power(x: npt.ArrayLike, exponent: Array) -> Array:
    """x^exponent, infinity at 0 where the exponent is negative."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.power(np.asarray(x, dtype=np.float64), exponent))


def _positive(field: str, value: npt.ArrayLike) -> Array:
    array = vector(field, value)
    all_within(field, array, array > 0, "a finite number above 0")
    return array


def _array(coefficient: npt.ArrayLike) -> Array:
    return np.asarray(coefficient, dtype=np.float64)


def _taken(coefficient: npt.ArrayLike, index: Index) -> Array:
    array = _array(coefficient)
    return array if array.ndim == 0 else array[index]
