"""Non-iid degree: how far a distribution over strata is from the reference. Labels are the usual strata.

    delta = (1/2) * sum_i |p_i - p^(c)_i|                                          in [0, 1]

half the L1 distance, which is the total variation distance. (The paper calls it a Wasserstein distance;
with the discrete metric on strata the two coincide.) Money depends on it, so it is computed from integer
counts with exact rationals: everyone gets the same number.

Source: Pang et al. 2025, section 3 (definition of delta_k).
"""

import array
import re
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from numbers import Rational
from typing import Any

import numpy as np

from mechanism.errors import FieldError, kind_of

_RATIONAL = re.compile(r"[+-]?[0-9]+(\.[0-9]+|/[0-9]+)?")


def reference_distribution(values: Sequence[int | str | Decimal | Fraction]) -> tuple[Fraction, ...]:
    """The exact reference distribution p^(c) that `values` write down.

    Args:
        values: one probability a stratum, as integers, decimals, rationals or strings such as "0.1" and "1/3".
            Floats are refused: 0.1 as a float is not one tenth.

    Raises:
        FieldError: fewer than two strata, an entry that is not a number or negative, or a sum other than 1.
    """
    entries = [rational(f"reference[{i}]", v) for i, v in enumerate(values)]
    if len(entries) < 2:
        raise FieldError("reference", values, "at least two strata")
    for i, entry in enumerate(entries):
        if entry < 0:
            raise FieldError(f"reference[{i}]", entry, "a probability of at least 0")
    if sum(entries) != 1:
        raise FieldError(
            "reference", [str(e) for e in entries], f"probabilities that sum to 1, not {sum(entries)}"
        )
    return tuple(entries)


def stratum_counts(counts: Any, names: Sequence[str]) -> tuple[int, ...]:
    """Samples of each stratum, in the reference's order, from whatever holds them.

    A list, a tuple or a one-dimensional array is read by position. A mapping (a Counter, a pandas Series) is read by
    its keys, which are the strata's names; or, where no name is a number, their numbers 0 to S - 1. Labels without
    names are called "0" to "I - 1". A stratum without a key has no samples. What has no order (a set, views of a
    dictionary) or gives its items once (an iterator) is refused, and so is every count that is not an integer: nothing
    is rounded.

    Raises:
        FieldError: one of these, a key that is no stratum, or another number of counts.
    """
    if isinstance(counts, Mapping) or (hasattr(counts, "keys") and hasattr(counts, "items")):
        found = _by_name(counts, names)
    else:
        found = _by_position(counts)
        if len(found) != len(names):
            raise FieldError("counts", found, f"{len(names)} strata, as the reference has")
    plain = [_scalar(count) for count in found]
    label_distribution(plain)
    return tuple(int(count) for count in plain)


def _scalar(count: Any) -> Any:
    """An array of no dimension, such as a sum over one, as the number that it holds."""
    return count.item() if getattr(count, "shape", None) == () and hasattr(count, "item") else count


def _by_name(counts: Any, names: Sequence[str]) -> list[Any]:
    known = {name: name for name in names}
    if not any(name.isdecimal() for name in names):
        known |= {str(number): name for number, name in enumerate(names)}
    found: dict[str, Any] = {}
    for key, count in counts.items():
        name = known.get(_named(key))
        if name is None:
            raise FieldError("counts", key, f"keys that are the strata {', '.join(names):.200}")
        if name in found:
            raise FieldError("counts", key, f"one count of the stratum {name}, it has two keys")
        found[name] = count
    return [found.get(name, 0) for name in names]


def _named(key: Any) -> str:
    """What a key may mean: its text, that of a whole number, or what no stratum is called."""
    key = _scalar(key)
    if isinstance(key, str):
        return key
    if isinstance(key, float) and key.is_integer():  # a Counter of float labels
        return str(int(key))
    return str(int(key)) if isinstance(key, int) and not isinstance(key, bool) else ""


def _by_position(counts: Any) -> list[Any]:
    expected = "a list with one count for each stratum, or a mapping of strata to counts"
    if isinstance(counts, str | bytes | bytearray):
        raise FieldError("counts", counts, expected)
    if isinstance(counts, Sequence | array.array):
        return list(counts)
    shape = getattr(counts, "shape", None)
    if shape is not None and hasattr(counts, "tolist"):  # an array of any library
        if len(shape) != 1:
            raise FieldError("counts", f"an array of shape {tuple(shape)}", "one dimension, the strata")
        if np.ma.is_masked(counts):
            raise FieldError("counts", "an array with masked counts", "a count for each stratum")
        return list(counts.tolist())
    order = ", which has no order of strata" if isinstance(counts, Collection) else ""
    raise FieldError("counts", f"{kind_of(counts)}{order}", expected)


def label_distribution(counts: Sequence[int]) -> tuple[Fraction, ...]:
    """p_i = n_i / sum_j n_j, exactly.

    Raises:
        FieldError: a count that is negative or no integer, or a histogram without samples.
    """
    exact = []
    for i, count in enumerate(counts):
        if isinstance(count, bool) or not isinstance(count, int | np.integer):
            raise FieldError(f"counts[{i}]", count, "an integer")
        if count < 0:
            raise FieldError(f"counts[{i}]", int(count), "a count of at least 0")
        exact.append(int(count))
    total = sum(exact)
    if total == 0:
        raise FieldError("counts", exact, "at least one sample")
    return tuple(Fraction(count, total) for count in exact)


def noniid_degree(counts: Sequence[int], reference: Sequence[Fraction]) -> Fraction:
    """delta of a histogram, exactly.

    Args:
        counts: samples of each stratum, length I.
        reference: p^(c) from `reference_distribution`, length I.

    Raises:
        FieldError: as `label_distribution`, or where the lengths differ.
    """
    if not isinstance(counts, Sequence | np.ndarray):  # a mapping would give its keys
        raise FieldError("counts", kind_of(counts), "a list; `stratum_counts` makes one")
    distribution = label_distribution(counts)
    if len(distribution) != len(reference):
        raise FieldError("counts", list(counts), f"{len(reference)} strata, as the reference has")
    return sum((abs(p - q) for p, q in zip(distribution, reference, strict=True)), Fraction(0)) / 2


def rational(field: str, value: int | str | Decimal | Fraction) -> Fraction:
    """The exact rational that `value` writes down: an integer, a plain decimal or a string such as "37/150".

    Exponents are refused in text: "1e999999999" is short to write and long to hold.

    Raises:
        FieldError: naming `field`, where `value` is something else, a float among them.
    """
    expected = 'an integer, a plain decimal or a rational such as "1/3" (not a float)'
    plain = isinstance(value, str) and _RATIONAL.fullmatch(value) is not None
    exact = isinstance(value, Rational) or (isinstance(value, Decimal) and value.is_finite())
    if isinstance(value, bool) or not (plain or exact):
        raise FieldError(field, value, expected)
    try:
        return _of_text(value) if plain else Fraction(value)
    except (ZeroDivisionError, ValueError):  # Python reads no whole number of more than 4300 digits
        raise FieldError(field, value, expected) from None


@lru_cache(maxsize=8192)
def _of_text(text: str) -> Fraction:
    """A claim's degree is read again in every round."""
    return Fraction(text)
