"""What the mechanism refuses.

MechanismError(ValueError)
 +- FieldError       a value outside its range: names the field, the value and what was expected
 +- SettlementError  records that cannot be settled as they stand
 +- LifecycleError   a step that a task may not take
"""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

#: A decimal of more digits is shown with an exponent.
_PLAIN_DIGITS = 60


class _Missing:
    """What a document lacks; a value of `FieldError`."""

    def __repr__(self) -> str:
        return "missing"


MISSING = _Missing()


class MechanismError(ValueError):
    """Base of every refusal of this package."""


class FieldError(MechanismError):
    """A value lies outside its range.

    Attributes:
        field: name of the argument or the path of the key.
        value: what was given.
        expected: the range or form that is accepted, as words.
    """

    def __init__(self, field: str, value: Any, expected: str) -> None:
        super().__init__(f"{field} is {_shown(value)}; expected {expected}")
        self.field = field
        self.value = value
        self.expected = expected


class SettlementError(MechanismError):
    """Records that cannot be settled: an unknown participant, a missing degree, a seed that does not fit."""


class LifecycleError(MechanismError):
    """A step that a task may not take from where it stands."""


def kind_of(value: Any) -> str:
    """The type of a value, for a sentence: "an int", "a list"."""
    name = type(value).__name__
    return f"{'an' if name.lower().startswith(('a', 'e', 'i', 'o', 'ndarray')) else 'a'} {name}"


def _shown(value: Any) -> str:
    """`value` short enough for a sentence, decimals without an exponent."""
    if isinstance(value, Decimal) and value.is_finite() and abs(value.adjusted()) < _PLAIN_DIGITS:
        return f"{value:f}"
    if isinstance(value, Decimal | Fraction):
        return str(value) if len(str(value)) <= 120 else "a number of very many digits"
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        value = list(value)
    try:
        text = repr(value)
    except ValueError:  # Python prints no whole number of more than 4300 digits
        text = "a number of very many digits"
    return text if len(text) <= 120 else text[:117] + "..."
