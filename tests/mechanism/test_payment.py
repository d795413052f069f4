from decimal import ROUND_HALF_EVEN, Context, Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechanism.errors import FieldError
from mechanism.payment import ExactPaymentFunction, Linear, Log, Log1p, Power, payment_function

FUNCTIONS: list[ExactPaymentFunction] = [
    Log(),
    Log(Decimal("0.37")),
    Log1p(Decimal(3)),
    Linear(Decimal("1.5")),
    Power(Decimal(2), Decimal("0.5")),
    Power(Decimal("0.1"), Decimal(1)),
]
CONTEXT = Context(prec=50, rounding=ROUND_HALF_EVEN)
functions = st.sampled_from(FUNCTIONS)
points = st.floats(1e-3, 1e6)


@given(functions, points, points)
def test_a_payment_never_falls(function: ExactPaymentFunction, x: float, y: float) -> None:
    low, high = sorted((x, y))
    assert function.value(low) <= function.value(high)
    assert function.exact(Decimal(low), CONTEXT) <= function.exact(Decimal(high), CONTEXT)
    assert function.value(x) >= 0


@given(functions, points)
def test_the_exact_value_is_the_floating_one(function: ExactPaymentFunction, x: float) -> None:
    assert float(function.exact(Decimal(x), CONTEXT)) == pytest.approx(
        float(function.value(x)), rel=1e-12, abs=1e-12
    )


@given(functions, points, st.decimals("0.001", 1000, places=3))
def test_the_scale_multiplies_what_is_paid(function: ExactPaymentFunction, x: float, scale: Decimal) -> None:
    scaled = payment_function(function.name, {**vars(function), "scale": scale})
    plain = payment_function(function.name, {**vars(function), "scale": Decimal(1)})
    point = CONTEXT.create_decimal_from_float(x)
    assert scaled.exact(point, CONTEXT) == CONTEXT.multiply(scale, plain.exact(point, CONTEXT))
    for name in ("value", "first", "second"):
        whole, part = (float(getattr(one, name)(x)) for one in (scaled, plain))
        assert whole == pytest.approx(float(scale) * part, rel=1e-12)


@given(functions, st.floats(1.01, 1e4))
def test_derivatives_are_those_of_the_value(function: ExactPaymentFunction, x: float) -> None:
    step = x * 1e-6
    slope = (function.value(x + step) - function.value(x - step)) / (2 * step)
    bend = (function.first(x + step) - function.first(x - step)) / (2 * step)
    assert float(function.first(x)) == pytest.approx(float(slope), rel=1e-5)
    assert float(function.second(x)) == pytest.approx(float(bend), rel=1e-4, abs=1e-15)


@given(functions, points)
def test_the_relative_curvature_is_at_most_two(function: ExactPaymentFunction, x: float) -> None:
    left = x * function.second(x) + 2 * function.first(x)
    assert left >= -1e-12 * abs(float(function.first(x)))


def test_the_logarithm_pays_nothing_below_one() -> None:
    log = Log()
    np.testing.assert_array_equal(log.value([0.1, 0.5, 1.0]), 0)
    np.testing.assert_array_equal(log.first([0.1, 0.5]), 0)
    assert log.exact(Decimal("0.5"), CONTEXT) == 0


def test_arrays_keep_their_shape() -> None:
    x = np.linspace(0.5, 3, 6).reshape(2, 3)
    for function in FUNCTIONS:
        for method in (function.value, function.first, function.second):
            assert method(x).shape == (2, 3)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_comes_back_from_its_name_and_parameters(function: ExactPaymentFunction) -> None:
    assert payment_function(function.name, vars(function)) == function


@pytest.mark.parametrize(
    ("name", "parameters", "field"),
    [
        ("cubic", {}, "payment.name"),
        ("log", {"exponent": Decimal(1)}, "payment.exponent"),
        ("log", {"scale": Decimal(0)}, "payment.scale"),
        ("log1p", {"scale": Decimal("-1")}, "payment.scale"),
        ("linear", {"scale": Decimal(0)}, "payment.scale"),
        ("linear", {"scale": Decimal("NaN")}, "payment.scale"),
        ("power", {"exponent": Decimal("1.1")}, "payment.exponent"),
        ("power", {"exponent": Decimal(0)}, "payment.exponent"),
    ],
)
def test_a_payment_out_of_range_is_refused(name: str, parameters: dict[str, Decimal], field: str) -> None:
    with pytest.raises(FieldError) as refused:
        payment_function(name, parameters)
    assert refused.value.field == field
