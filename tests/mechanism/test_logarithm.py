from decimal import ROUND_HALF_EVEN, Context, Decimal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mechanism import logarithm
from mechanism.logarithm import natural_logarithm

FIFTY = Context(prec=50, rounding=ROUND_HALF_EVEN)


@settings(max_examples=400)
@given(st.decimals("1", "1e40", allow_nan=False, places=None), st.sampled_from([9, 28, 50]))
@example(Decimal("2"), 50)
@example(Decimal("1.0000000000000000000000000000001"), 50)
@example(Decimal("1.00000001"), 50)
@example(Decimal("1e30"), 50)
@example(Decimal(10), 50)
def test_it_is_the_decimal_modules_own_to_the_last_digit(x: Decimal, digits: int) -> None:
    context = Context(prec=digits, rounding=ROUND_HALF_EVEN)
    assert str(natural_logarithm(x, context)) == str(context.ln(x))


@settings(max_examples=400)
@given(st.integers(1, 10**9), st.integers(1, 10**9))
def test_quotients_of_fifty_digits_come_out_the_same(numerator: int, denominator: int) -> None:
    x = FIFTY.divide(Decimal(numerator), Decimal(denominator))
    assert str(natural_logarithm(x, FIFTY)) == str(FIFTY.ln(x))


def test_most_values_take_the_fast_way() -> None:
    taken = [logarithm._fast(FIFTY.divide(Decimal(2000), 200 + Decimal(i) / 7), 50) for i in range(1000)]
    assert sum(value is None for value in taken) < 5


@pytest.mark.parametrize("x", ["0.5", "1", "0", "1e-70", "1e90"])
def test_what_lies_outside_its_range_goes_to_decimal(x: str) -> None:
    assert str(natural_logarithm(Decimal(x), FIFTY)) == str(FIFTY.ln(Decimal(x)))


def test_a_wider_context_goes_to_decimal() -> None:
    wide = Context(prec=80)
    assert natural_logarithm(Decimal(3), wide) == wide.ln(Decimal(3))


def test_an_undecided_rounding_is_left_to_decimal() -> None:
    """A result whose digits after the fiftieth are a half, as far as the error bound can tell."""
    exact = (
        10**49 + 1
    ) * 2 + 1  # half-way between two results of fifty digits, in units of half the last one
    assert logarithm._rounded((exact << logarithm._BITS) // (2 * 10**49), 50) is None
