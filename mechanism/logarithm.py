"""The natural logarithm in `decimal`, rounded correctly: digit for digit what `Context.ln` gives, in a fraction of its
time.

With x = m * 2^p for m in (1/2, 2), and a ratio c / 2^8 near 1 / m,

    ln x = p ln 2 + ln(2^8 / c) + 2 artanh s,    s = (v - 1) / (v + 1),  v = m c / 2^8,  |s| < 2^-8

in integers, as multiples of 2^-128. The few ratios' logarithms are kept. The result is known to lie between two bounds.
Where both round to the same decimal, so does the logarithm; where they do not, as for an x hardly above 1, `Context.ln`
computes it.
"""

from decimal import Context, Decimal
from functools import cache

#: Bits after the point, and those by which a ratio is chosen.
_BITS, _RATIO_BITS = 128, 8

_ONE = 1 << _BITS

#: Of the series artanh(s) / s in s^2, last one first; the next term is below 2^-131.
_SERIES = tuple(_ONE // odd for odd in range(15, 0, -2))

#: What bounds the error, in multiples of 2^-128: each of some 20 roundings is below 2, and ln 2 is rounded.
_ROUNDINGS = 64

#: Digits beyond those of 2^-128, with its integer part.
_FINE = Context(prec=60)

_UNIT = Decimal(_ONE)


def ln(x: Decimal, context: Context) -> Decimal:
    """ln x for a finite x >= 1, rounded half-even to the digits of `context`."""
    over, under = x.as_integer_ratio()
    power = over.bit_length() - under.bit_length()
    shift = _BITS - power
    mantissa = (over << shift) // under if shift >= 0 else (over >> -shift) // under
    ratio = ((4 << 2 * _RATIO_BITS) // (2 * (mantissa >> _BITS - _RATIO_BITS) + 1) + 1) // 2
    near, one = mantissa * ratio, _ONE << _RATIO_BITS
    s = (near - one << _BITS) // (near + one)
    square, series = s * s >> _BITS, 0
    for term in _SERIES:
        series = (series * square >> _BITS) + term
    found = power * _inverse_ln(1, 2) + _inverse_ln(ratio, 1 << _RATIO_BITS) + (2 * s * series >> _BITS)
    error = _ROUNDINGS + abs(power)
    low, high = (context.divide(Decimal(found + sign * error), _UNIT) for sign in (-1, 1))
    return low if low == high else context.ln(x)


@cache
def _inverse_ln(over: int, under: int) -> int:
    """ln(under / over) in multiples of 2^-128, rounded."""
    exact = _FINE.ln(_FINE.divide(under, over))
    return int(_FINE.multiply(exact, _UNIT).to_integral_value())
