"""Payment functions f, non-decreasing on R+.

    log      f(x) = A max(0, ln x)          the paper's, with A = 1
    log1p    f(x) = A ln(1 + x)
    linear   f(x) = A x
    power    f(x) = A x^a                   0 < a <= 1

The scale A, credits, is what effort is bought with: under a logarithm Q drops out of every best response, so that A
alone weighs a lower degree against its cost, and Q buys participation (docs/mechanism.md, section 5).

Each gives its value and two derivatives in floating point, for the solvers, and its value in `decimal`, for
the money. The game is supermodular where the relative curvature -x f''(x) / f'(x) is at most 2, that is
x f''(x) + 2 f'(x) >= 0; all of the above satisfy it, and declare their bound as `relative_curvature`.

Source: Pang et al. 2025, section 4; the curvature condition is docs/mechanism.md, section 5.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Context, Decimal
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from mechanism.errors import FieldError
from mechanism.logarithm import ln

Array = npt.NDArray[np.float64]


@runtime_checkable
class PaymentFunction(Protocol):
    """f with its derivatives; arrays in, arrays of the same shape out, credits."""

    def value(self, x: npt.ArrayLike) -> Array: ...

    def first(self, x: npt.ArrayLike) -> Array: ...

    def second(self, x: npt.ArrayLike) -> Array: ...


@runtime_checkable
class ExactPaymentFunction(PaymentFunction, Protocol):
    """A payment function that also settles money: exact in `decimal`; its name and fields stand in the terms."""

    name: ClassVar[str]

    @property
    def scale(self) -> Decimal: ...

    def exact(self, x: Decimal, context: Context) -> Decimal:
        """f(x) to the precision of `context`, correctly rounded in its last step; x > 0."""

    def exact_mean(self, xs: Sequence[Decimal], context: Context) -> Decimal:
        """The mean of f over `xs`, at least one, to the precision of `context`, in a stated order of operations."""


@dataclass(frozen=True)
class Scaled:
    """f = A f0 for an f0 that has no unit: A is what one of it is worth.

    Attributes:
        scale: A > 0, credits.

    Raises:
        FieldError: on construction, a parameter out of its range.
    """

    scale: Decimal = Decimal(1)

    def __post_init__(self) -> None:
        _positive("payment.scale", self.scale)

    def value(self, x: npt.ArrayLike) -> Array:
        return np.asarray(float(self.scale) * self.plain(np.asarray(x, dtype=np.float64)))

    def first(self, x: npt.ArrayLike) -> Array:
        return np.asarray(float(self.scale) * self.plain_first(np.asarray(x, dtype=np.float64)))

    def second(self, x: npt.ArrayLike) -> Array:
        return np.asarray(float(self.scale) * self.plain_second(np.asarray(x, dtype=np.float64)))

    def exact(self, x: Decimal, context: Context) -> Decimal:
        return context.multiply(self.scale, self.plain_exact(x, context))

    def exact_mean(self, xs: Sequence[Decimal], context: Context) -> Decimal:
        """A times the sum of f0, added from 0 in order and rounded each time, over their number."""
        return context.multiply(self.scale, context.divide(self.plain_sum(xs, context), len(xs)))

    def plain(self, x: Array) -> Array:
        """f0(x)."""
        raise NotImplementedError

    def plain_first(self, x: Array) -> Array:
        """f0'(x)."""
        raise NotImplementedError

    def plain_second(self, x: Array) -> Array:
        """f0''(x)."""
        raise NotImplementedError

    def plain_exact(self, x: Decimal, context: Context) -> Decimal:
        """f0(x), rounded to `context`."""
        raise NotImplementedError

    def plain_sum(self, xs: Sequence[Decimal], context: Context) -> Decimal:
        """The sum of f0 over `xs`."""
        total = Decimal(0)
        for x in xs:
            total = context.add(total, self.plain_exact(x, context))
        return total


@dataclass(frozen=True)
class Log(Scaled):
    """f(x) = A max(0, ln x). The kink at x = 1 has the right-hand derivative."""

    name: ClassVar[str] = "log"
    relative_curvature: ClassVar[float] = 1.0

    def plain(self, x: Array) -> Array:
        return np.log(np.maximum(x, 1.0))

    def plain_first(self, x: Array) -> Array:
        return np.where(x >= 1, 1 / np.maximum(x, 1.0), 0.0)

    def plain_second(self, x: Array) -> Array:
        return np.where(x >= 1, -1 / np.square(np.maximum(x, 1.0)), 0.0)

    def plain_exact(self, x: Decimal, context: Context) -> Decimal:
        return ln(x, context) if x > 1 else Decimal(0)

    def plain_sum(self, xs: Sequence[Decimal], context: Context) -> Decimal:
        """The logarithm of one product, which takes a fraction of the time that as many logarithms take."""
        product = Decimal(1)
        for x in xs:
            if x > 1:
                product = context.multiply(product, x)
        return ln(product, context)


@dataclass(frozen=True)
class Log1p(Scaled):
    """f(x) = A ln(1 + x)."""

    name: ClassVar[str] = "log1p"
    relative_curvature: ClassVar[float] = 1.0

    def plain(self, x: Array) -> Array:
        return np.log1p(x)

    def plain_first(self, x: Array) -> Array:
        return np.asarray(1 / (1 + x))

    def plain_second(self, x: Array) -> Array:
        return np.asarray(-1 / np.square(1 + x))

    def plain_exact(self, x: Decimal, context: Context) -> Decimal:
        return ln(context.add(1, x), context)


@dataclass(frozen=True)
class Linear(Scaled):
    """f(x) = A x."""

    name: ClassVar[str] = "linear"
    relative_curvature: ClassVar[float] = 0.0

    def plain(self, x: Array) -> Array:
        return x

    def plain_first(self, x: Array) -> Array:
        return np.ones_like(x)

    def plain_second(self, x: Array) -> Array:
        return np.zeros_like(x)

    def plain_exact(self, x: Decimal, context: Context) -> Decimal:
        return x


@dataclass(frozen=True)
class Power(Scaled):
    """f(x) = A x^a, 0 < a <= 1."""

    name: ClassVar[str] = "power"
    relative_curvature: ClassVar[float] = 1.0
    exponent: Decimal = Decimal("0.5")

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("payment.exponent", self.exponent)
        if self.exponent > 1:
            raise FieldError("payment.exponent", self.exponent, "a number in (0, 1]")

    def plain(self, x: Array) -> Array:
        return np.asarray(np.power(x, float(self.exponent)))

    def plain_first(self, x: Array) -> Array:
        a = float(self.exponent)
        return np.asarray(a * np.power(x, a - 1))

    def plain_second(self, x: Array) -> Array:
        a = float(self.exponent)
        return np.asarray(a * (a - 1) * np.power(x, a - 2))

    def plain_exact(self, x: Decimal, context: Context) -> Decimal:
        return context.power(x, self.exponent)


#: Those that terms may name.
PAYMENT_FUNCTIONS: tuple[Any, ...] = (Log, Log1p, Linear, Power)


def payment_function(name: str, parameters: Mapping[str, Decimal] | None = None) -> ExactPaymentFunction:
    """The payment function that terms name.

    Raises:
        FieldError: an unknown name, a parameter that the function does not have, or one out of range.
    """
    given = dict(parameters or {})
    kinds = {kind.name: kind for kind in PAYMENT_FUNCTIONS}
    if name not in kinds:
        raise FieldError("payment.name", name, "one of " + ", ".join(kinds))
    kind = kinds[name]
    accepted = {field.name for field in fields(kind)}
    for key in given:
        if key not in accepted:
            raise FieldError(f"payment.{key}", given[key], f"no such parameter for {name}")
    function: ExactPaymentFunction = kind(**given)
    return function


def _positive(field: str, value: Decimal) -> None:
    if not isinstance(value, Decimal) or not value.is_finite() or value <= 0:
        raise FieldError(field, value, "a decimal above 0")
