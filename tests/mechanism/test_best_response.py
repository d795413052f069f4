"""Best responses: closed forms, the certified search, and what is refused."""

import subprocess
import sys
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechanism.best_response import PeerRule, best_response
from mechanism.certificate import Status
from mechanism.cost import CallableCost, LinearCost, PowerCost
from mechanism.effort import CallableEffort, ExponentialEffort, TabulatedEffort
from mechanism.errors import FieldError
from mechanism.gap_bound import GapBound
from mechanism.payment import Linear, Log, Log1p, PaymentFunction, Power
from tests.mechanism.stationary_points import linear_stationary, log_stationary

pytestmark = pytest.mark.arithmetic

BOUND = GapBound(300, 200)
PAYMENTS: list[PaymentFunction] = [Log(), Log1p(), Linear(Decimal("0.7")), Power(Decimal(2), Decimal("0.4"))]


class Cubed:
    """f(x) = tanh(x)^3: its relative curvature exceeds 2 for large x."""

    def value(self, x):
        return np.tanh(x) ** 3

    def first(self, x):
        return 3 * np.tanh(x) ** 2 / np.cosh(x) ** 2

    def second(self, x):
        return 6 * np.tanh(x) / np.cosh(x) ** 4 - 6 * np.tanh(x) ** 3 / np.cosh(x) ** 2


def brute_force(payment, Q, cost, curve, peers, rule, points=200_001):
    """The best utility on a fine grid, by formulas of its own."""
    degree = np.linspace(float(curve.floor), float(curve.start), points)
    squares = [float(np.mean(np.square(peers)))] if rule is PeerRule.MEAN else list(np.square(peers))
    paid = sum(payment.value(Q / (300 * (degree**2 + s) + 200)) for s in squares) / len(squares)
    utility = paid - cost.value(float(curve.start) - degree)
    return float(utility.max()), float(degree[np.argmax(utility)])


def test_the_closed_form_of_log_gives_both_equilibria_of_the_papers_game():
    answers = [
        best_response(
            payment=Log(), Q=1000, bound=BOUND, effort=ExponentialEffort(), cost=LinearCost(c), peers=None
        ).degree
        for c in (0.5, 0.8, 0.9)
    ]
    # c = 0.8: 2 d^2 - 2 d / c + 2/3 = 0 at a symmetric equilibrium.
    interior = (1 / 0.8 - np.sqrt(1 / 0.64 - 4 / 3)) / 2
    assert answers == pytest.approx([np.exp(-1), interior, 1.0], abs=1e-12)


@settings(max_examples=60)
@given(
    payment=st.sampled_from(PAYMENTS),
    Q=st.floats(100, 5000),
    c=st.floats(0.02, 5),
    shape=st.sampled_from([None, 0.5, 1.0, 1.7, 3.0]),
    delta_0=st.floats(0.05, 1),
    rate=st.floats(0.1, 4),
    peers=st.lists(st.floats(0, 1), min_size=1, max_size=5),
    rule=st.sampled_from(list(PeerRule)),
)
def test_no_degree_on_a_fine_grid_beats_the_certificate(payment, Q, c, shape, delta_0, rate, peers, rule):
    curve = ExponentialEffort(delta_0, rate)
    cost = LinearCost(c) if shape is None else PowerCost(c, shape)
    answer = best_response(payment=payment, Q=Q, bound=BOUND, effort=curve, cost=cost, peers=peers, rule=rule)
    best, _ = brute_force(payment, Q, cost, curve, peers, rule, 20_001)
    assert answer.certificate.status is Status.PROVED
    assert answer.certificate.max_regret < 1e-11
    assert best <= answer.utility + answer.certificate.max_regret
    assert float(curve.degree(answer.effort)) == pytest.approx(answer.degree, abs=1e-12)
    assert answer.utility == pytest.approx(answer.expected_payment - answer.cost, abs=1e-15)


@given(c=st.floats(0.1, 3), peer=st.floats(0.01, 3))
def test_the_smaller_root_of_log_is_a_local_maximum(c, peer):
    root = float(log_stationary(c, peer))
    if np.isnan(root):
        assert 1 / c**2 < peer
        return
    assert root**2 - 2 * root / c + peer == pytest.approx(0, abs=1e-10)
    assert root <= 1 / c


@given(slope=st.floats(1e-3, 1e3), peer=st.floats(0.01, 3))
def test_the_smaller_root_of_linear_solves_the_quartic(slope, peer):
    root = float(linear_stationary(slope, peer))
    # delta / (delta^2 + A)^2 is greatest at delta^2 = A / 3: below that level there are two roots, above none.
    top = np.sqrt(peer / 3)
    level = (top**2 + peer) ** 2 / top
    if np.isnan(root):
        assert slope <= level * (1 + 1e-9)
        return
    assert slope >= level * (1 - 1e-9)
    assert (root**2 + peer) ** 2 == pytest.approx(slope * root, rel=1e-9)
    assert root <= top * (1 + 1e-6)


@settings(max_examples=60)
@given(
    payment=st.sampled_from([Log(), Log(Decimal("3.5")), Linear(Decimal("0.7"))]),
    Q=st.floats(1200, 5000),
    c=st.floats(0.1, 5),
    delta_0=st.floats(0.05, 1),
    peer=st.floats(0, 1),
)
def test_the_search_finds_the_better_of_the_closed_form_and_the_ends(payment, Q, c, delta_0, peer):
    curve, cost = ExponentialEffort(delta_0, 2.0), LinearCost(c)
    answer = best_response(payment=payment, Q=Q, bound=BOUND, effort=curve, cost=cost, peers=[peer])
    A = peer**2 + BOUND.ratio
    over = c / float(payment.scale)
    root = log_stationary(over, A) if isinstance(payment, Log) else linear_stationary(1.4 * Q / (c * 300), A)
    ends = [float(curve.floor), float(curve.start)]
    degrees = np.clip([*ends, float(np.nan_to_num(root, nan=ends[0]))], *ends)
    utility = payment.value(Q / (300 * (degrees**2 + peer**2) + 200)) - cost.value(ends[1] - degrees)
    assert answer.utility == pytest.approx(utility.max(), abs=1e-12)
    best = degrees[utility >= utility.max() - 1e-12]
    assert np.abs(best - answer.degree).min() < 1e-6


def test_a_payment_outside_the_condition_is_answered_conditionally_and_truly():
    curve, cost = ExponentialEffort(1.0, 2.0), LinearCost(0.1)
    answer = best_response(payment=Cubed(), Q=600, bound=BOUND, effort=curve, cost=cost, peers=[0.5, 0.2])
    best, _ = brute_force(Cubed(), 600, cost, curve, [0.5, 0.2], PeerRule.RANDOM)
    assert answer.certificate.status is Status.CONDITIONAL
    assert "exceeds 2" in answer.certificate.basis
    assert best <= answer.utility + answer.certificate.max_regret


def test_a_clipped_log_pays_nothing_for_nothing():
    answer = best_response(
        payment=Log(), Q=150, bound=BOUND, effort=ExponentialEffort(), cost=LinearCost(0.1), peers=[0.4]
    )
    assert (answer.effort, answer.expected_payment, answer.utility) == (0.0, 0.0, 0.0)


def test_own_curves_and_costs_answer_as_the_shipped_ones_they_copy():
    table = TabulatedEffort(np.linspace(0, 1, 2001), np.exp(-np.linspace(0, 1, 2001)))
    own_cost = CallableCost(0.7, lambda x: x**2, lambda x: 2 * x, lambda x: 2 + 0 * x)
    for curve in (table, CallableEffort(lambda e: float(np.exp(-e)))):
        for cost in (own_cost, PowerCost(0.7, 2.0)):
            answer = best_response(
                payment=Log(), Q=1000, bound=BOUND, effort=curve, cost=cost, peers=[0.5, 0.6]
            )
            assert answer.degree >= np.exp(-1) - 1e-9, "no effort above 1"
            assert answer.certificate.max_regret < 1e-4
            reference = best_response(
                payment=Log(),
                Q=1000,
                bound=BOUND,
                effort=ExponentialEffort(),
                cost=PowerCost(0.7, 2.0),
                peers=[0.5, 0.6],
            )
            assert answer.degree == pytest.approx(reference.degree, abs=1e-4)
            assert answer.effort == pytest.approx(reference.effort, abs=1e-3)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"Q": 0}, "Q"),
        ({"Q": float("nan")}, "Q"),
        ({"peers": []}, "peers"),
        ({"peers": [0.3, 1.2]}, "peers"),
        ({"peers": [float("nan")]}, "peers"),
    ],
)
def test_bad_terms_are_refused_by_name(change, field):
    terms = {
        "payment": Log(), "Q": 1000, "bound": BOUND, "effort": ExponentialEffort(), "cost": LinearCost(0.5),
        "peers": [0.5],
    }  # fmt: skip
    with pytest.raises(FieldError) as refused:
        best_response(**{**terms, **change})
    assert refused.value.field == field


class Falling:
    def value(self, x):
        return -np.asarray(x)

    def first(self, x):
        return -np.ones_like(x)

    def second(self, x):
        return np.zeros_like(x)


def test_a_payment_that_decreases_is_refused():
    with pytest.raises(FieldError, match="non-decreasing"):
        best_response(
            payment=Falling(),
            Q=1000,
            bound=BOUND,
            effort=ExponentialEffort(),
            cost=LinearCost(0.5),
            peers=[0.5],
        )


def test_a_participant_needs_neither_scipy_nor_torch():
    code = "import sys, mechanism.best_response; print([m for m in ('scipy', 'torch') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
