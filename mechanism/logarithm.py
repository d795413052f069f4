"""ln to the last digit of a decimal context, an order of magnitude faster than `decimal` has it.

    x = 2^k y,  y in [1, 2);   c the middle of the 1/256 that y lies in;   z = (y - c) / (y + c),  |z| < 2^-10
    ln x = k ln 2 + ln c + 2 z (1 + z^2 (1/3 + z^2 (1/5 + ...)))

in integers of 224 bits after the point. The error is bounded, and where the bound does not decide the rounding, or
the result is small, `decimal` itself answers: so the result is its own, bit for bit. A settlement takes a logarithm
for every payment, and verification recomputes them all.
"""

from decimal import Context, Decimal
from functools import cache

#: Bits after the point: 50 digits take 167, and 57 more make an undecided rounding a rarity.
_BITS = 224
_ONE = 1 << _BITS
_HALF, _FRACTION = _ONE >> 1, _ONE - 1

#: The table's step is 2^-8.
_STEP_BITS = 8

#: 1/21, 1/19, ..., 1/3 in units of 2^-224; z^23 / 23 < 2^-234 is the first term that is left out.
_RECIPROCALS = tuple(_ONE // odd for odd in range(21, 1, -2))

#: Each of the truncations above errs by less than one unit in the last place; there are fewer than this.
_ERROR = 64

#: Digits of a context for which the bound above leaves room, and the least result in units of 2^-224.
_MOST_DIGITS = 50
_LEAST = 1 << (_BITS - 8)

#: Digits on either side of the point beyond which the integers would be long; nothing that is paid comes near.
_MOST_EXPONENT = 60
_DENOMINATOR = 10**_MOST_EXPONENT
_DENOMINATOR_BITS = _DENOMINATOR.bit_length()

#: 10^i.
_POWERS = tuple(10**i for i in range(_MOST_DIGITS + 4))

_WIDE = Context(prec=120)


def natural_logarithm(x: Decimal, context: Context) -> Decimal:
    """ln x, rounded half-even to the precision of `context`, as `context.ln` has it."""
    found = _fast(x, context.prec) if x > 1 and context.prec <= _MOST_DIGITS else None
    return context.ln(x) if found is None else found


def _fast(x: Decimal, digits: int) -> Decimal | None:
    if x.adjusted() > _MOST_EXPONENT:
        return None
    shifted = x.scaleb(_MOST_EXPONENT, _WIDE)
    numerator = int(shifted)
    if numerator != shifted:
        return None
    k = numerator.bit_length() - _DENOMINATOR_BITS
    if numerator < _DENOMINATOR << k:  # x > 1, so k >= 0
        k -= 1
    y = (numerator << (_BITS - k)) // _DENOMINATOR
    step = (y >> (_BITS - _STEP_BITS)) & ((1 << _STEP_BITS) - 1)
    c = _ONE + (2 * step + 1 << (_BITS - _STEP_BITS - 1))
    z = ((y - c) << _BITS) // (y + c)
    square = z * z >> _BITS
    series = 0
    for reciprocal in _RECIPROCALS:
        series = (series + reciprocal) * square >> _BITS
    series = z + (z * series >> _BITS)
    return _rounded(k * _ln_two() + _ln_table(step) + 2 * series, digits)


def _rounded(value: int, digits: int) -> Decimal | None:
    """`value` 2^-224 to so many digits, or None where the error bound leaves it open."""
    if value < _LEAST:
        return None
    if value >= _ONE:
        places = digits - len(str(value >> _BITS))
    else:
        places = digits
        while value * _POWERS[places - digits + 1] < _ONE:
            places += 1
    scale = _POWERS[places]
    scaled = value * scale
    quotient, rest = scaled >> _BITS, scaled & _FRACTION
    error = _ERROR * scale
    if not error < rest < _ONE - error or -error <= rest - _HALF <= error:
        return None
    quotient += rest > _HALF
    if not _POWERS[digits - 1] <= quotient < _POWERS[digits]:
        return None
    return Decimal(quotient).scaleb(-places, _WIDE)


@cache
def _ln_two() -> int:
    return _fixed(_WIDE.ln(Decimal(2)))


@cache
def _ln_table(step: int) -> int:
    """ln c of the table's entry; computed when first needed, since a task's amounts use few of them."""
    return _fixed(_WIDE.ln(_WIDE.divide(Decimal(2 * step + 1 + (2 << _STEP_BITS)), Decimal(2 << _STEP_BITS))))


def _fixed(value: Decimal) -> int:
    return int(_WIDE.multiply(value, Decimal(_ONE)))
