"""Non-iid degree: how far a label distribution is from the reference.

    delta = (1/2) * sum_i |p_i - p^(c)_i|                                          in [0, 1]

half the L1 distance, which is the total variation distance. (The paper calls it a Wasserstein distance;
with the discrete metric on labels the two coincide.) Money depends on it, so it is computed from integer
label counts with exact rationals: everyone gets the same number.

Source: Pang et al. 2025, section 3 (definition of delta_k).
"""

import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from numbers import Rational

import numpy as np
import numpy.typing as npt

from mechanism.errors import FieldError

#: How far from 1 the sum of a floating-point distribution may lie: the rounding of 10^6 terms.
SUM_TOLERANCE = 1e-9

_RATIONAL = re.compile(r"[+-]?[0-9]+(\.[0-9]+|/[0-9]+)?")


def reference_distribution(values: Sequence[int | str | Decimal | Fraction]) -> tuple[Fraction, ...]:
    """The exact reference distribution p^(c) that `values` write down.

    Args:
        values: one probability a label, as integers, decimals, rationals or strings such as "0.1" and "1/3".
            Floats are refused: 0.1 as a float is not one tenth.

    Raises:
        FieldError: fewer than two labels, an entry that is no number or negative, or a sum other than 1.
    """
    entries = [rational(f"reference[{i}]", v) for i, v in enumerate(values)]
    if len(entries) < 2:
        raise FieldError("reference", values, "at least two labels")
    for i, entry in enumerate(entries):
        if entry < 0:
            raise FieldError(f"reference[{i}]", str(entry), "a probability of at least 0")
    if sum(entries) != 1:
        raise FieldError(
            "reference", [str(e) for e in entries], f"probabilities that sum to 1, not {sum(entries)}"
        )
    return tuple(entries)


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
    """delta of a histogram of label counts, exactly.

    Args:
        counts: samples of each label, length I.
        reference: p^(c) from `reference_distribution`, length I.

    Raises:
        FieldError: as `label_distribution`, or where the lengths differ.
    """
    distribution = label_distribution(counts)
    if len(distribution) != len(reference):
        raise FieldError("counts", list(counts), f"{len(reference)} labels, as the reference has")
    return sum((abs(p - q) for p, q in zip(distribution, reference, strict=True)), Fraction(0)) / 2


def noniid_degree_of_distribution(
    distribution: npt.ArrayLike, reference: npt.ArrayLike
) -> npt.NDArray[np.float64]:
    """delta of floating-point distributions, for analysis and simulation.

    Args:
        distribution: shape (..., I); each last axis sums to 1.
        reference: shape (I,).

    Returns:
        shape (...).

    Raises:
        FieldError: an entry that is negative or not finite, a sum other than 1, or shapes that do not fit.
    """
    p = np.asarray(distribution, dtype=np.float64)
    q = np.asarray(reference, dtype=np.float64)
    if q.ndim != 1 or p.ndim == 0 or p.shape[-1] != q.shape[0]:
        raise FieldError("distribution", f"an array of shape {p.shape}", f"shape (..., {q.size})")
    for name, array in (("distribution", p), ("reference", q)):
        if not np.isfinite(array).all() or (array < 0).any():
            raise FieldError(name, array, "finite probabilities of at least 0")
        if (np.abs(array.sum(axis=-1) - 1) > SUM_TOLERANCE).any():
            raise FieldError(name, array, "probabilities that sum to 1")
    return np.asarray(np.abs(p - q).sum(axis=-1) / 2)


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
        return Fraction(value)
    except ZeroDivisionError:
        raise FieldError(field, value, expected) from None
