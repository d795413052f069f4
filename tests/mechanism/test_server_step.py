"""The server's optimisers: their sources' formulas, element by element, and what terms may ask of them."""

from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechanism.errors import FieldError
from mechanism.server_step import AGGREGATIONS, FedAdam, FedAvgM, FedYogi, aggregation_rule

numbers = st.floats(-1e3, 1e3, allow_subnormal=False)
rounds = st.lists(numbers, min_size=1, max_size=6)
shares = st.decimals(min_value=0, max_value="0.99", places=2)
rates = st.decimals(min_value="0.01", max_value=2, places=2)


@given(numbers, rounds)
def test_momentum_at_rate_1_and_momentum_0_is_the_mean(start: float, means: list[float]) -> None:
    rule, w = FedAvgM(Decimal(1), Decimal(0)), np.array([start])
    state = rule.first_state(1)
    for mean in means:
        w, state = rule.step(w, np.array([mean]), state)
        assert w[0] == pytest.approx(mean, abs=1e-9)


@given(numbers, rounds, rates, shares)
def test_momentum_sums_what_the_rounds_moved(
    start: float, moves: list[float], rate: Decimal, beta: Decimal
) -> None:
    rule, w = FedAvgM(rate, beta), np.array([start])
    state, m, expected = rule.first_state(1), Fraction(0), Fraction(start)
    for move in moves:
        m = Fraction(beta) * m + (Fraction(float(w[0] + move)) - Fraction(float(w[0])))
        expected = Fraction(float(w[0])) + Fraction(rate) * m
        w, state = rule.step(w, w + move, state)
        assert w[0] == pytest.approx(float(expected), rel=1e-9, abs=1e-9)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6), rates, shares, shares)
def test_adam_and_yogi_are_algorithm_2(
    rounds: list[tuple[float, float]], rate: Decimal, beta1: Decimal, beta2: Decimal
) -> None:
    eta, b1, b2, tau = float(rate), float(beta1), float(beta2), 0.001
    for rule in (FedAdam(rate, beta1, beta2), FedYogi(rate, beta1, beta2)):
        state, m, v = rule.first_state(1), 0.0, tau**2
        for start, mean in rounds:
            delta = mean - start
            m = b1 * m + (1 - b1) * delta
            if isinstance(rule, FedYogi):
                v = v - (1 - b2) * delta**2 * np.sign(v - delta**2)
            else:
                v = b2 * v + (1 - b2) * delta**2
            moved, state = rule.step(np.array([start]), np.array([mean]), state)
            assert state[0][0] == pytest.approx(m, rel=1e-12, abs=1e-12)
            assert state[1][0] == pytest.approx(v, rel=1e-12, abs=1e-12)
            assert moved[0] == pytest.approx(start + eta * m / (np.sqrt(v) + tau), rel=1e-9, abs=1e-9)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=20), shares, shares)
def test_the_second_moment_never_falls_below_zero(
    rounds: list[tuple[float, float]], beta1: Decimal, beta2: Decimal
) -> None:
    for kind in (FedAdam, FedYogi):
        rule = kind(beta1=beta1, beta2=beta2)
        state = rule.first_state(1)
        for start, mean in rounds:
            moved, state = rule.step(np.array([start]), np.array([mean]), state)
            assert state[1][0] >= 0
            assert np.isfinite(moved[0])


@pytest.mark.parametrize("rule", AGGREGATIONS)
def test_every_rule_is_found_by_its_name_with_its_defaults(rule: Any) -> None:
    assert aggregation_rule(rule.name, {}) == rule()


@pytest.mark.parametrize(
    ("name", "parameters", "field", "expected"),
    [
        ("fedsgd", {}, "aggregation.name", "one of fedavg, fedavgm, fedadam, fedyogi"),
        ("fedavg", {"rate": Decimal(1)}, "aggregation.rate", "no such key: fedavg has no parameters"),
        ("fedavgm", {"tau": Decimal(1)}, "aggregation.tau", "no such key: fedavgm has rate, "),
        ("fedavgm", {"rate": Decimal(0)}, "aggregation.rate", "a decimal above 0"),
        ("fedavgm", {"momentum": Decimal(1)}, "aggregation.momentum", "a decimal of at least 0 and below 1"),
        ("fedadam", {"beta1": Decimal("-0.1")}, "aggregation.beta1", "a decimal of at least 0 and below 1"),
        ("fedadam", {"beta2": Decimal(1)}, "aggregation.beta2", "a decimal of at least 0 and below 1"),
        ("fedyogi", {"tau": Decimal(0)}, "aggregation.tau", "a decimal above 0"),
        ("fedyogi", {"tau": Decimal("NaN")}, "aggregation.tau", "a finite decimal"),
        ("fedadam", {"averaged": ("",)}, "aggregation.averaged", "patterns of 1 to 256 characters"),
        ("fedadam", {"averaged": ("b", "a")}, "aggregation.averaged", "patterns in order, each once"),
    ],
)
def test_what_no_server_can_do_is_refused(
    name: str, parameters: dict[str, Any], field: str, expected: str
) -> None:
    with pytest.raises(FieldError) as refusal:
        aggregation_rule(name, parameters)
    assert refusal.value.field == field
    assert expected in refusal.value.expected
