"""Labels and inputs as people have them, as arrays that can be counted and trained on; nothing is rounded or cut off.

A label is a whole number from 0 to I - 1, or one of the learner's class names, whose order is the reference's. What is
neither (a regression target, a text without a list of classes, NaN) is refused with a sentence.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpeer.learning.arrays import as_numpy
from fedpeer.learning.errors import DataError
from mechanism.errors import kind_of

#: The number of labels, or their names in the order of the reference.
Classes = int | Sequence[str]


def class_count(classes: Any) -> int:
    """I of a number of labels, or of a list of their names.

    Raises:
        DataError: fewer than two, names that repeat, or something else.
    """
    names = class_names(classes)
    if names is not None:
        return len(names)
    number = as_numpy(classes)
    if number.shape == () and number.dtype.kind in "iuf" and float(number).is_integer() and number >= 2:
        return int(number)
    raise DataError(
        f"the classes are {classes!r:.120}; expected their number, at least 2, or a list of their names in the "
        "reference's order"
    )


def class_names(classes: Any) -> tuple[str, ...] | None:
    """The names of the labels, or None where only their number is given.

    Raises:
        DataError: fewer than two, or names that repeat.
    """
    if isinstance(classes, str | bytes):
        raise DataError(f"the classes are {classes!r:.120}; expected their number, or a list of their names")
    if isinstance(classes, set | frozenset | dict):
        raise DataError(f"the classes are {kind_of(classes)}; expected a list in the reference's order")
    names = as_numpy(classes)
    if names.ndim != 1 or (names.size and not all(isinstance(name, str) for name in names.tolist())):
        return None
    found = tuple(str(name) for name in names.tolist())
    if len(found) < 2 or len(set(found)) != len(found):
        raise DataError(f"the class names are {found!r:.120}; expected at least two, each once")
    return found


def whole_labels(labels: Any, classes: Classes) -> npt.NDArray[np.int64]:
    """Labels as int64 in [0, I), shape (n,).

    Args:
        labels: one a sample: whole numbers of any type, or class names where `classes` lists them.
        classes: the number of labels, or their names in the reference's order.

    Raises:
        DataError: another shape, a label that is not a whole number or not a class, or one outside the range.
    """
    count, names = class_count(classes), class_names(classes)
    array = as_numpy(labels)
    if array.ndim != 1:
        raise DataError(f"labels have shape {array.shape}; expected (n,), one label a sample")
    if array.dtype.kind == "b":
        array = array.astype(np.int64)
    if array.dtype.kind == "f":
        odd = array[~(np.isfinite(array) & (array == np.floor(array)))]
        if odd.size:
            raise DataError(
                f"a label is {odd[0]}; expected whole numbers from 0 to {count - 1}: a target that is measured is no "
                "label"
            )
    elif array.dtype.kind not in "iu":
        array = _named(array, names, count)
    if array.size and not (array.min() >= 0 and array.max() < count):
        raise DataError(f"labels run from {array.min()} to {array.max()}; expected 0 to {count - 1}")
    return array.astype(np.int64)


def real_inputs(inputs: Any, dtype: type[np.floating[Any]]) -> npt.NDArray[Any]:
    """Inputs as an array of `dtype`.

    Raises:
        DataError: no real numbers, or values that are NaN, infinite or too large for the type.
    """
    array = as_numpy(inputs)
    if array.dtype.kind not in "fiub":
        raise DataError(f"the inputs are an array of {array.dtype}; expected real numbers")
    with np.errstate(over="ignore"):  # looked for below
        array = array.astype(dtype)
    if bad := int(array.size - np.count_nonzero(np.isfinite(array))):
        raise DataError(
            f"the inputs have {bad} values that are NaN, infinite or too large; expected finite numbers"
        )
    return array


def _named(array: npt.NDArray[Any], names: tuple[str, ...] | None, count: int) -> npt.NDArray[Any]:
    """Labels that are not numbers to NumPy: class names, or whole numbers in an array of objects."""
    values = array.tolist()
    positions = {} if names is None else {name: position for position, name in enumerate(names)}
    found = []
    for value in values:
        whole = value if isinstance(value, int) else positions.get(value) if isinstance(value, str) else None
        if whole is None:
            how = (
                f"expected one of the classes {names!r:.120}"
                if names is not None
                else f"expected whole numbers from 0 to {count - 1}; for labels that are texts give `classes` as the "
                "learner's list of class names, in the reference's order"
            )
            raise DataError(f"a label is {value!r:.60}; {how}")
        found.append(whole)
    if any(not 0 <= label < count for label in found):
        raise DataError(f"there are labels outside the range; expected 0 to {count - 1}")
    return np.array(found, dtype=np.int64)
