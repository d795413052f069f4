"""A round's micro-credits from floating-point arithmetic, where its error cannot change any of them.

A settlement is defined in decimals of 50 digits; what is paid are integers. For a whole round at once this computes

    gross_k = m_k mean_j f(Q / (Phi v_k^2 + Phi v_j^2 + Upsilon)),   net_k = max(0, gross_k - penalty_k)

in float64, each with an interval that holds its decimal value, and takes the integers if every floor, the sum of the
fractions and the order in which they are rounded up are the same anywhere in the intervals. Otherwise, about once in a
thousand rounds of a hundred, it answers nothing, and the decimals decide.

Error: squares of degrees in millionths are exact; x = Q / gap is off by at most 8 units in the last place, 2^-53 each.
For every payment function of `mechanism.payment` f >= 0 and x f'(x) <= 1 + f(x), and NumPy's logarithm and power err
by a few units. So 2^-40 (1 + f), a hundred times as much and more, bounds a payment's error and what follows adds.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mechanism.payment import PaymentFunction

_MICRO = 1e6

#: Share of 1 + f by which a computed payment may be off.
_ERROR = 2.0**-40

#: Micro-credits above which an interval would be wider than its use.
_MOST = 2.0**50


class Micros(NamedTuple):
    """A round's integers, in the order of its participants, and what is left for rounding (0 or 1)."""

    gross: list[int]
    paid: list[int]
    rounding: int


def enclosed(
    function: PaymentFunction,
    constants: tuple[float, float, float],
    degrees: Sequence[int],
    opposite: Sequence[Sequence[int]],
    multipliers: Sequence[int],
    penalties: Sequence[float],
) -> Micros | None:
    """The integers of a round of n participants, or None where the intervals leave one of them open.

    Args:
        function: f.
        constants: Q, Phi, Upsilon.
        degrees: v_k, millionths.
        opposite: v_j of each one's peers, as many for each, at least one.
        multipliers: m_k, millionths.
        penalties: of the claims, credits, correctly rounded.
    """
    q, phi, upsilon = constants
    own, others = np.asarray(degrees, dtype=np.float64), np.asarray(opposite, dtype=np.float64)
    squares = (np.square(own)[:, None] + np.square(others)) * 1e-12
    payments = function.value(q / (phi * squares + upsilon)).mean(axis=1)
    lost = np.asarray(penalties) * _MICRO
    share = np.asarray(multipliers, dtype=np.float64)  # of a million: credits times this are micro-credits
    gross, error = payments * share, (1 + payments) * (_ERROR * _MICRO)
    net, net_error = np.maximum(gross - lost, 0), error + lost * _ERROR
    if not np.all(gross + lost < _MOST):
        return None
    gross_floor, paid = _floor(gross, error), _floor(net, net_error)
    if gross_floor is None or paid is None:
        return None
    fractions = net - paid
    rest, rest_error = float(fractions.sum()), float(net_error.sum()) * 2
    units = int(rest)
    if not units < rest - rest_error or not rest + rest_error < units + 1:
        return None
    if units:
        order = np.argsort(-fractions)
        last, next_ = fractions[order[units - 1]], fractions[order[units]]
        if not last - next_ > 2 * net_error.max():
            return None
        paid[order[:units]] += 1
    return Micros(gross_floor.astype(np.int64).tolist(), paid.astype(np.int64).tolist(), 1)


def _floor(value: npt.NDArray[np.float64], error: npt.NDArray[np.float64]) -> npt.NDArray[np.float64] | None:
    """Floor of the amounts, not negative, that lie within `error` of `value`; None where one is open."""
    least = np.floor(np.maximum(value - error, 0))
    return least if np.array_equal(least, np.floor(value + error)) else None
