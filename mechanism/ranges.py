"""Numbers in their ranges; for others a FieldError that names the field, what was given and what was expected."""

import math
from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from mechanism.errors import FieldError

Array = npt.NDArray[np.float64]


def positive(field: str, value: Any) -> float:
    """A finite number above 0."""
    if not (number := _number(value)) > 0:
        raise FieldError(field, value, "a finite number above 0")
    return number


def positives(**values: float) -> list[float]:
    """`positive` of each, by the names of their fields."""
    return [positive(field, value) for field, value in values.items()]


def non_negative(field: str, value: Any) -> float:
    """A finite number of at least 0."""
    if not (number := _number(value)) >= 0:
        raise FieldError(field, value, "a finite number of at least 0")
    return number


def whole(field: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """An integer of at least `least`, and at most `most` where it is given."""
    good = isinstance(value, int) and not isinstance(value, bool)
    if not good or value < least or (most is not None and value > most):
        ends = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise FieldError(field, value, f"a whole number {ends}")
    return int(value)


def keyed(field: str, record: Any, keys: Collection[str]) -> dict[str, Any]:
    """A copy of an object that has exactly these keys."""
    if not isinstance(record, dict) or record.keys() != set(keys):
        raise FieldError(field, record, f"an object with the keys {', '.join(sorted(keys))}")
    return dict(record)


def listed(field: str, value: Any) -> tuple[Any, ...]:
    """A list as a tuple."""
    if not isinstance(value, list):
        raise FieldError(field, value, "a list")
    return tuple(value)


def integer(field: str, value: Any) -> None:
    """Refuses what is no integer; a boolean is none."""
    if type(value) is not int:
        raise FieldError(field, value, "an integer")


def integers(field: str, values: Any) -> None:
    """Refuses what is no tuple of integers."""
    if type(values) is not tuple:
        raise FieldError(field, values, "a sequence of integers")
    for i, value in enumerate(values) if set(map(type, values)) - {int} else ():
        integer(f"{field}[{i}]", value)


def sha256(field: str, value: bytes) -> None:
    """Refuses what is no digest of SHA-256."""
    if len(value) != 32:
        raise FieldError(field, value.hex(), "32 bytes of SHA-256")


def degree(field: str, value: float) -> float:
    """A degree in [0, 1]."""
    if not 0 <= value <= 1:
        raise FieldError(field, value, "a degree in [0, 1]")
    return value


def vector(field: str, value: Any) -> Array:
    """Numbers, in an array of their shape."""
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise FieldError(field, value, "a number") from None


def all_within(field: str, values: Array, good: npt.NDArray[np.bool_], expected: str) -> None:
    """Refuses the first entry that is not `good`, or is not finite."""
    bad = ~(np.asarray(good) & np.isfinite(values))
    if bad.any():
        where = int(np.argmax(bad))
        name = field if values.ndim == 0 else f"{field}[{where}]"
        raise FieldError(name, float(values.ravel()[where]), expected)


def _number(value: Any) -> float:
    """NaN for what is not a finite number."""
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return number if math.isfinite(number) else math.nan
