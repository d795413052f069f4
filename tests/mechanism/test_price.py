"""What credits are paid out as: never more than they are worth, and as much of it as the currency can express."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechanism.canonical import MAX_INTEGER
from mechanism.errors import FieldError
from mechanism.price import Price, credits_text, grouped_credits

amounts = st.decimals(min_value=Decimal("1e-9"), max_value=10**9, places=9, allow_nan=False).filter(bool)
prices = st.builds(Price, amounts, st.just("EUR"), st.integers(0, 4))


def worth(price: Price, micro: int) -> Fraction:
    """In units of the currency, exact."""
    return Fraction(price.amount) * 10**price.minor_unit * micro / 10**6


@given(prices, st.integers(0, 2**63 - 1))
def test_all_whole_units_are_paid_and_nothing_that_is_not_there(price: Price, micro: int) -> None:
    units = price.units(micro)
    assert 0 <= units <= worth(price, micro)
    if micro <= MAX_INTEGER and units < MAX_INTEGER:
        assert units + 1 > worth(price, micro)


@given(prices, st.integers(0, 2**63 - 1))
def test_units_take_the_least_credits_that_are_worth_them(price: Price, micro: int) -> None:
    units = price.units(micro)
    taken = price.micro(units)
    assert taken <= min(micro, MAX_INTEGER)
    assert worth(price, taken) >= units
    assert taken == 0 or worth(price, taken - 1) < units
    assert price.units(micro - taken) <= 1 or micro > MAX_INTEGER or units == MAX_INTEGER


@given(st.integers(-(2**63), 2**63 - 1))
def test_credits_are_written_exactly(micro: int) -> None:
    assert Decimal(credits_text(micro)) == Decimal(micro).scaleb(-6)
    assert grouped_credits(micro).replace(",", "") == credits_text(micro)


@pytest.mark.parametrize(
    ("amount", "currency", "places", "units", "text"),
    [
        ("0.75", "EUR", 2, 1230, "12.30 EUR"),
        ("1", "JPY", 0, 1230, "1230 JPY"),
        ("2.5", "KWD", 3, 5, "0.005 KWD"),
        ("1", "CLF", 4, MAX_INTEGER, "900719925474.0991 CLF"),
    ],
)
def test_units_are_written_with_all_their_places(
    amount: str, currency: str, places: int, units: int, text: str
) -> None:
    assert Price(Decimal(amount), currency, places).text(units) == text


def test_a_price_is_told_with_its_currency() -> None:
    assert str(Price(Decimal("0.75"), "EUR", 2)) == "0.75 EUR a credit"


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ((Decimal(0), "EUR", 2), "price.amount"),
        ((Decimal(-1), "EUR", 2), "price.amount"),
        ((Decimal("NaN"), "EUR", 2), "price.amount"),
        ((0.5, "EUR", 2), "price.amount"),
        ((Decimal(1), "eur", 2), "price.currency"),
        ((Decimal(1), "EURO", 2), "price.currency"),
        ((Decimal(1), 978, 2), "price.currency"),
        ((Decimal(1), "EUR", 5), "price.minor_unit"),
        ((Decimal(1), "EUR", -1), "price.minor_unit"),
        ((Decimal(1), "EUR", True), "price.minor_unit"),
    ],
)
def test_what_is_no_price_is_refused(values: tuple[object, object, object], field: str) -> None:
    with pytest.raises(FieldError) as refused:
        Price(*values)  # type: ignore[arg-type]
    assert refused.value.field == field


def test_a_record_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(FieldError) as refused:
        Price.from_record(5)
    assert refused.value.field == "price"
