"""What is proposed does what it is proposed for, by the solver and in closed form."""

import math
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechanism.best_response import best_response
from mechanism.cost import LinearCost
from mechanism.effort import ExponentialEffort
from mechanism.errors import FieldError
from mechanism.gap_bound import GapBound
from mechanism.payment import Log
from mechanism.proposal import MARGIN, Wishes, least_bill, propose, rounded, scales
from mechanism.settlement import MICRO
from tests.mechanism.stationary_points import log_stationary

WISHES = Wishes(0.2, (0.5, 1.0), (0.3, 0.9), 8, 3)
BOUND = GapBound(8.0, 1.2)


@given(r=st.floats(0.01, 3), share=st.floats(0.05, 0.99), c=st.floats(0.01, 100))
def test_at_the_least_scale_copies_of_the_dearest_answer_the_wanted_degree_with_itself(
    r: float, share: float, c: float
) -> None:
    wanted = share * math.sqrt(r / 2)
    low, sure = scales(r, wanted, 1.0, c)
    assert low <= sure
    assert float(log_stationary(c / low, wanted**2 + r)) == pytest.approx(wanted, rel=1e-6)


@given(r=st.floats(0.01, 0.5), c=st.floats(0.1, 10), wanted=st.floats(0.01, 0.9))
def test_less_is_paid_for_more_than_where_the_scale_is_least(r: float, c: float, wanted: float) -> None:
    """Above sqrt(r/2) the formula's scale would rise again, and bring participants below what is wanted."""
    low, _ = scales(r, wanted, 1.0, c)
    assert low <= c * (2 * wanted**2 + r) / (2 * wanted) * (1 + 1e-12)
    assert low >= c * math.sqrt(2 * r) * (1 - 1e-12)


def test_the_best_response_to_peers_at_the_wanted_degree_is_that_degree() -> None:
    low, _ = scales(BOUND.ratio, 0.2, 0.9, 1.0)
    answer = best_response(
        payment=Log(Decimal(low)),
        Q=100,
        bound=BOUND,
        effort=ExponentialEffort(0.9, 5.0),
        cost=LinearCost(1),
        peers=[0.2],
    )
    assert answer.degree == pytest.approx(0.2, abs=1e-6)


@settings(max_examples=8, deadline=None)
@given(
    wanted=st.floats(0.05, 0.35),
    top=st.floats(0.5, 1),
    cost=st.floats(0.01, 50),
    phi=st.floats(0.5, 50),
    r=st.floats(0.05, 1.5),
)
def test_nobody_is_above_the_wanted_degree_in_any_equilibrium(
    wanted: float, top: float, cost: float, phi: float, r: float
) -> None:
    wishes = Wishes(wanted, (cost / 3, cost), (0.4, top), 5, 2)
    made = propose(GapBound(phi, phi * r), wishes)
    assert made.greatest.degree.max() <= wanted + 1e-9
    assert (made.least.degree <= made.greatest.degree + 1e-9).all()
    assert made.greatest.utility.min() >= -1e-9
    assert float(made.bill) >= least_bill(wishes) * (1 - 1e-6)
    assert float(made.payment.scale) <= float(made.sure) * MARGIN * 1.001


def test_a_budget_is_spent_on_the_coefficient_and_never_exceeded() -> None:
    least = propose(BOUND, WISHES)
    richer = propose(BOUND, replace(WISHES, budget=100.0))
    assert richer.payment == least.payment
    assert richer.Q > least.Q
    assert least.bill < Decimal(99) < richer.bill <= 100
    assert richer.greatest.payment.min() > least.greatest.payment.max()
    assert richer.claim_penalty > least.claim_penalty
    assert richer.stake_micro == pytest.approx(least.stake_micro, rel=1e-3)


def test_a_budget_that_is_too_small_names_one_that_does() -> None:
    with pytest.raises(FieldError, match="at least") as refused:
        propose(BOUND, replace(WISHES, budget=least_bill(WISHES) * 1.01))
    enough = float(refused.value.expected.split()[2])
    assert float(propose(BOUND, replace(WISHES, budget=enough)).bill) == pytest.approx(enough, rel=0.01)


def test_a_budget_below_what_the_effort_costs_is_refused_whatever_the_bound_is() -> None:
    with pytest.raises(FieldError, match="the effort itself costs"):
        replace(WISHES, budget=least_bill(WISHES) * 0.99)
    # The dearest of copies: eight that start at 0.9, three rounds.
    copies = replace(WISHES, costs=(1.0, 1.0), starts=(0.9, 0.9))
    assert least_bill(copies) == pytest.approx(8 * 3 * 0.7)


def test_a_liar_loses_a_rounds_pay_and_what_it_saved() -> None:
    made = propose(BOUND, WISHES)
    assert float(made.claim_penalty) * (0.9 - 0.2) ** 2 == pytest.approx(
        made.greatest.payment.mean(), rel=1e-3
    )
    assert made.stake_micro / MICRO >= made.greatest.cost.max() - 1e-6


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"degree": 0.0}, "degree"),
        ({"degree": 0.9}, "degree"),
        ({"costs": (2.0, 1.0)}, "costs"),
        ({"costs": (0.0, 1.0)}, "costs"),
        ({"costs": (9e-7, 1.0)}, "costs"),
        ({"starts": (0.3, 1.5)}, "starts"),
        ({"participants": 1}, "participants"),
        ({"budget": -1.0}, "budget"),
        ({"budget": math.nan}, "budget"),
    ],
)
def test_wishes_out_of_their_range_are_refused(changes: dict[str, object], field: str) -> None:
    with pytest.raises(FieldError) as refused:
        replace(WISHES, **changes)  # type: ignore[arg-type]  # that is what is tried
    assert refused.value.field == field


def test_numbers_are_rounded_up_to_four_digits() -> None:
    assert [f"{rounded(x):f}" for x in (0.2, 1234.01, 1e-7, 8.00001)] == ["0.2", "1235", "0.0000001", "8.001"]
