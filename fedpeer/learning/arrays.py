"""Arrays of whatever library as NumPy's own, of numbers, texts or dates.

    array = plain_array(values, "column code")      # lists, torch's tensors, columns of pandas

Nothing is rounded, and nothing that is missing becomes a value.
"""

import math
from collections.abc import Sequence
from datetime import date, time
from numbers import Number
from typing import Any

import numpy as np

from fedpeer.learning.errors import DataError
from mechanism.errors import kind_of

#: What pandas has in the place of a value, by its type's name: it need not be installed.
_NOTHING = ("NoneType", "NAType", "NaTType")


def as_numpy(values: Any, what: str = "") -> np.ndarray[Any, Any]:
    """Whatever library's array as NumPy's, of whatever elements.

    Args:
        what: the values are, for the sentence; left out: their type.

    Raises:
        DataError: no array, rows of different lengths, or masked values.
    """
    try:
        if hasattr(values, "detach") and hasattr(values, "cpu"):  # torch's
            values = values.detach().cpu()
            # NumPy lacks the short types of floating-point numbers but one.
            known = str(values.dtype) == "torch.float16" or values.dtype.itemsize > 2
            values = values if known or not values.is_floating_point() else values.float()
        if np.ma.is_masked(values):
            raise DataError(f"{what or 'an array'} has masked values; expected a value everywhere")
        return np.asarray(values)
    except DataError:
        raise
    except Exception as error:  # each library has its own
        raise DataError(
            f"{what or kind_of(values)} cannot be read as an array: {str(error).partition(chr(10))[0]}"
        ) from None


def plain_array(values: Any, what: str) -> np.ndarray[Any, Any]:
    """Values as an array with a row a sample. Of Python's objects, and in lists, numbers and texts become NumPy's own,
    numbers beside texts texts, rows that are lists another dimension.

    Args:
        what: the values are, for the sentence.

    Raises:
        DataError: no array, one value alone, a place without a value, whole numbers that no type of 64 bits has or
            that one would round, or objects that are neither numbers nor texts.
    """
    array = as_numpy(held_array(values, what), what)
    if array.dtype.kind in "OT":  # the latter are texts of any length, and perhaps places without one
        return _of_objects(array.astype(object), what)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def held_array(values: Any, what: str) -> np.ndarray[Any, Any]:
    """What `plain_array` is made of: an array that has lost nothing of the values, which may be objects, or masked.

    Raises:
        DataError: no array, or one value alone.
    """
    if isinstance(values, list | tuple):
        return _of_list(values, what)
    array = values if isinstance(values, np.ndarray) else as_numpy(values, what)
    if array.ndim == 0:
        raise DataError(f"{what} is {kind_of(values)}; expected an array, with a row a sample")
    return array


def number_text(value: float) -> str:
    """A number as text: a whole one its digits, a truth value true or false."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)


def _of_list(values: Sequence[Any], what: str) -> np.ndarray[Any, Any]:
    leaf: Any = values
    while isinstance(leaf, list | tuple) and leaf:
        leaf = leaf[0]
    arrays = not isinstance(leaf, list | tuple) and (np.ndim(leaf) > 0 or hasattr(leaf, "detach"))
    if not arrays:
        try:
            if (array := np.asarray(values)).dtype.kind not in "fUO":
                return array
            # NumPy writes NaN beside texts as one, and rounds large numbers beside fractions.
            return np.array(values, dtype=object)
        except (ValueError, OverflowError):  # of different lengths
            pass
    array = np.empty(len(values), dtype=object)
    for place, each in enumerate(values):
        array[place] = as_numpy(each, what) if hasattr(each, "detach") else each
    return array


def _of_objects(array: np.ndarray[Any, Any], what: str) -> np.ndarray[Any, Any]:
    values = [value.item() if isinstance(value, np.generic) else value for value in array.ravel().tolist()]
    if any(isinstance(value, list | tuple | np.ndarray) or np.ndim(value) for value in values):
        made = _stacked([_row(value, what) for value in values], what)
        return made.reshape(*array.shape, *made.shape[1:])
    for place, value in enumerate(values):
        row = place // max(1, array[:1].size)
        if type(value).__name__ in _NOTHING or (isinstance(value, float) and math.isnan(value)):
            raise DataError(
                f"{what} has no value in row {row}; expected a value everywhere: fill them in, or leave such rows out"
            )
        if not isinstance(value, str | int | float):
            raise DataError(
                f"{what} has {value!r:.60} in row {row}; expected numbers or texts{_advice(value)}"
            )
    if any(isinstance(value, str) for value in values):
        made = np.array([v if isinstance(v, str) else number_text(v) for v in values], dtype=np.str_)
    else:
        made = _numbers(values, what)
    return made.reshape(array.shape)


def _row(value: Any, what: str) -> np.ndarray[Any, Any]:
    return value if isinstance(value, np.ndarray) and value.ndim == 0 else plain_array(value, what)


def _numbers(values: Sequence[Any], what: str) -> np.ndarray[Any, Any]:
    kinds = set(map(type, values))
    if kinds == {bool}:
        return np.array(values)
    if float in kinds:
        made = np.array([_float(value) for value in values])
        if any(isinstance(v, int) and m != v for v, m in zip(values, made.tolist(), strict=True)):
            raise DataError(
                f"{what} has fractions and whole numbers beyond 2^53, which no type of 64 bits has both; expected "
                "smaller ones, or whole ones alone"
            )
        return made
    for kind in (np.int64, np.uint64):
        try:
            return np.array(values, dtype=kind)
        except OverflowError:
            pass
    raise DataError(
        f"{what} has whole numbers of more than 64 bits; expected numbers from -2^63 to 2^63 - 1, or texts"
    )


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _advice(value: Any) -> str:
    if isinstance(value, bytes):
        return ": decode them"
    if isinstance(value, date | time):
        return ": write dates and times in ISO 8601, as 2026-11-30T16:30:00Z"
    return ": write them as floating-point numbers" if isinstance(value, Number) else ""


def _stacked(parts: Sequence[np.ndarray[Any, Any]], what: str) -> np.ndarray[Any, Any]:
    try:
        return np.stack(parts)
    except ValueError:
        raise DataError(f"{what} has rows of different lengths; expected one length for all") from None
