"""Integers from floating point are those of the decimals, or none."""

import decimal
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechanism import settlement
from mechanism.payment import Linear, Log, Log1p, PaymentFunction, Power
from mechanism.settlement import MICRO, Assessment, Settlement
from mechanism.terms import Rule, Schedule, Terms
from tests.mechanism.test_settlement import TERMS, settle

pytestmark = pytest.mark.arithmetic

FUNCTIONS = [Log(), Log1p(), Linear(Decimal(2)), Power(Decimal(3), Decimal("0.3"))]
micros = st.one_of(st.integers(0, MICRO), st.sampled_from([0, 1, MICRO // 2, MICRO - 1, MICRO]))
subjects = st.tuples(micros, micros, st.sampled_from([1, 3, 7]), st.sampled_from([MICRO, MICRO, 0, 333_333]))


def by_decimals(terms: Terms, everyone: list[Assessment]) -> Settlement:
    """The same settlement, its integers from the decimals alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settlement, "enclosed", lambda *_: None)
        return settle(terms, everyone)


def round_of(drawn: list[tuple[int, int, int, int]], twins: int = 0) -> list[Assessment]:
    return [
        Assessment(
            f"p{i:03}",
            i.to_bytes(32, "big"),
            Fraction(claim, MICRO * scale),
            degree,
            multiplier_ppm=multiplier,
            cluster="c" if i < twins else None,
        )
        for i, (degree, claim, scale, multiplier) in enumerate(drawn)
    ]


@settings(max_examples=300)
@given(
    st.lists(subjects, min_size=1, max_size=30),
    st.sampled_from(FUNCTIONS),
    st.sampled_from(["0", "5", "0.000001", "3000"]),
    st.sampled_from([1, 2]),
    st.integers(0, 3),
    st.sampled_from(["2000", "250", "0.3", "123456789.123456789"]),
)
def test_both_ways_give_one_settlement(
    drawn: list[tuple[int, int, int, int]],
    function: PaymentFunction,
    penalty: str,
    peers: int,
    twins: int,
    coefficient: str,
) -> None:
    rule = Rule(claim_penalty=Decimal(penalty), peers=peers)
    terms = replace(TERMS, payment=function, rule=rule, Q=Decimal(coefficient))
    everyone = round_of(drawn, twins)
    assert settle(terms, everyone) == by_decimals(terms, everyone)


def large_round(generator: np.random.Generator) -> tuple[Terms, list[Assessment]]:
    terms = replace(TERMS, schedule=Schedule(3, 3, 100, 60, 60))
    degrees = generator.integers(0, MICRO, size=100).tolist()
    claims = generator.integers(0, MICRO, size=100).tolist()
    return terms, round_of([(d, c, 1, MICRO) for d, c in zip(degrees, claims, strict=True)])


def test_nearly_every_large_round_is_decided_and_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    generator, answers = np.random.default_rng(7), []

    def noted(*given: Any) -> Any:
        answers.append(enclosed(*given))
        return answers[-1]

    enclosed = settlement.enclosed
    monkeypatch.setattr(settlement, "enclosed", noted)
    for _ in range(100):
        terms, everyone = large_round(generator)
        assert settle(terms, everyone) == by_decimals(terms, everyone)
    assert sum(answer is None for answer in answers) <= 5


@pytest.mark.parametrize("amount", ["10", "10.000001", "0.0000005"])
def test_what_lies_on_a_boundary_is_left_open(amount: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Amounts whose floor, or whose sum, no interval can decide."""
    answers = []
    enclosed = settlement.enclosed
    monkeypatch.setattr(settlement, "enclosed", lambda *given: answers.append(enclosed(*given)))
    terms = replace(TERMS, payment=Linear(Decimal(amount)), Q=TERMS.upsilon)
    paid = settle(terms, round_of([(0, 0, 1, MICRO)] * 4)).payments
    assert answers == [None]
    assert sum(line.paid_micro for line in paid) == int(4 * Decimal(amount) * MICRO)


def test_amounts_beyond_the_range_are_left_to_the_decimals() -> None:
    terms = replace(TERMS, payment=Linear(Decimal("1e20")))
    everyone = round_of([(123_456, 0, 1, MICRO), (7, 0, 1, MICRO)])
    assert settle(terms, everyone) == by_decimals(terms, everyone)


@pytest.mark.parametrize("precision", [3, 28, 60])
def test_the_programs_decimal_context_changes_no_payment(precision: int) -> None:
    terms, everyone = large_round(np.random.default_rng(1))
    before = by_decimals(terms, everyone)
    with decimal.localcontext(prec=precision, rounding=decimal.ROUND_UP):
        assert by_decimals(terms, everyone) == before
        assert settle(terms, everyone) == before
