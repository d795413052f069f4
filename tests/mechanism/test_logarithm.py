from decimal import ROUND_HALF_EVEN, Context, Decimal

from hypothesis import given
from hypothesis import strategies as st

from mechanism.logarithm import ln

CONTEXT = Context(prec=28, rounding=ROUND_HALF_EVEN)
digits = st.integers(1, 10**28 - 1)


@given(digits, st.integers(0, 400))
def test_the_logarithm_has_the_digits_of_decimal(coefficient: int, exponent: int) -> None:
    x = Decimal(coefficient).scaleb(exponent, CONTEXT)
    assert ln(x, CONTEXT).as_tuple() == CONTEXT.ln(x).as_tuple()


@given(digits, st.integers(28, 400))
def test_it_has_them_hardly_above_one(coefficient: int, places: int) -> None:
    x = Context(prec=500).add(1, Decimal(coefficient).scaleb(-places))
    assert ln(x, CONTEXT).as_tuple() == CONTEXT.ln(x).as_tuple()


@given(digits, st.integers(0, 27), st.integers(1, 60))
def test_it_has_as_many_as_the_context_asks_for(coefficient: int, places: int, precision: int) -> None:
    context = Context(prec=precision, rounding=ROUND_HALF_EVEN)
    x = 1 + Decimal(coefficient).scaleb(-places)
    assert ln(x, context).as_tuple() == context.ln(x).as_tuple()


def test_the_logarithm_of_one_is_nothing() -> None:
    assert ln(Decimal(1), CONTEXT).as_tuple() == Decimal(0).as_tuple()
