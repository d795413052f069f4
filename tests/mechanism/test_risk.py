"""Those who dislike risk, held against every draw written out, and against what is proved of them."""

from decimal import Decimal
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechanism.averse_equilibrium import averse_equilibrium
from mechanism.best_response import PeerRule, best_response
from mechanism.certificate import Status
from mechanism.cost import LinearCost, PowerCost
from mechanism.effort import ExponentialEffort
from mechanism.equilibrium import equilibrium
from mechanism.errors import FieldError
from mechanism.game import Game
from mechanism.gap_bound import GapBound
from mechanism.payment import Linear, Log, Log1p, PaymentFunction, Power
from mechanism.risk import CARA, CRRA, Attitude, attitude_of, increasing_differences
from mechanism.score import Score
from tests.mechanism.test_best_response import Cubed

BOUND = GapBound(300, 200)
PAYMENTS: list[PaymentFunction] = [
    Log(),
    Log1p(Decimal("0.8")),
    Linear(Decimal("0.3")),
    Power(Decimal(1), Decimal("0.4")),
]
WEALTH = 12.0
attitudes = st.one_of(
    st.builds(CARA, st.floats(1e-3, 8)),
    st.builds(CRRA, st.one_of(st.just(1.0), st.floats(0.1, 0.97), st.floats(1.03, 8)), st.just(WEALTH)),
)
peer_lists = st.lists(st.floats(0, 1), min_size=2, max_size=6)


def respond(**changes: Any) -> Any:
    given_: dict[str, Any] = {
        "payment": Log(), "Q": 2000, "bound": BOUND, "effort": ExponentialEffort(), "cost": LinearCost(0.8),
    }  # fmt: skip
    return best_response(**{**given_, **changes})


def equivalents(
    attitude: Attitude,
    payment: PaymentFunction,
    Q: float,
    peers: list[float],
    drawn: int,
    degree: Any,
    cost: Any,
) -> Any:
    """Certainty equivalents by the definition, every draw written out."""
    paid = [payment.value(Q / (300 * (degree**2 + peer**2) + 200)) for peer in peers]
    draws = np.array([np.mean(some, axis=0) for some in combinations(paid, drawn)])
    if isinstance(attitude, CARA):
        a = attitude.aversion
        return draws.min(axis=0) - np.log(np.exp(-a * (draws - draws.min(axis=0))).mean(axis=0)) / a - cost
    left, g = attitude.wealth + draws - cost, attitude.aversion
    sure = np.exp(np.log(left).mean(axis=0)) if g == 1 else (left ** (1 - g)).mean(axis=0) ** (1 / (1 - g))
    return sure - attitude.wealth


@settings(max_examples=60, deadline=None)
@given(
    attitude=attitudes,
    payment=st.sampled_from(PAYMENTS),
    Q=st.floats(300, 5000),
    c=st.floats(0.05, 5),
    shape=st.sampled_from([None, 0.5, 1.7, 3.0]),
    delta_0=st.floats(0.1, 1),
    peers=peer_lists,
    drawn=st.integers(1, 6),
)
def test_no_degree_on_a_fine_grid_beats_the_certificate(
    attitude: Attitude, payment: PaymentFunction, Q: float, c: float, shape: float | None, delta_0: float,
    peers: list[float], drawn: int,
) -> None:  # fmt: skip
    curve, drawn = ExponentialEffort(delta_0, 1.5), min(drawn, len(peers))
    cost = LinearCost(c) if shape is None else PowerCost(c, shape)
    answer = respond(
        payment=payment, Q=Q, effort=curve, cost=cost, peers=peers, drawn=drawn, attitude=attitude
    )
    degree = np.linspace(float(curve.floor), float(curve.start), 2001)
    worth = equivalents(attitude, payment, Q, peers, drawn, degree, cost.value(delta_0 - degree))
    assert answer.certificate.status is Status.PROVED
    assert worth.max() <= answer.equivalent + answer.certificate.max_regret + 1e-11
    at = np.array([answer.degree])
    [own] = equivalents(attitude, payment, Q, peers, drawn, at, cost.value(delta_0 - at))
    assert answer.equivalent == pytest.approx(own, abs=1e-10)
    assert answer.equivalent <= answer.utility + 1e-11
    assert answer.certificate.max_regret < 1e-3


@settings(max_examples=60, deadline=None)
@given(
    attitude=attitudes,
    payment=st.sampled_from(PAYMENTS),
    c=st.floats(0.05, 5),
    shape=st.sampled_from([None, 0.6, 2.0]),
    peers=peer_lists,
    drawn=st.integers(1, 6),
)
def test_risk_aversion_never_raises_effort(
    attitude: Attitude,
    payment: PaymentFunction,
    c: float,
    shape: float | None,
    peers: list[float],
    drawn: int,
) -> None:
    """Up to degrees between which a neutral participant is as good as indifferent."""
    cost = LinearCost(c) if shape is None else PowerCost(c, shape)
    terms = {"payment": payment, "cost": cost, "peers": peers, "drawn": drawn}
    neutral, averse = respond(**terms), respond(**terms, attitude=attitude)
    if averse.degree < neutral.degree - 1e-6:
        assert neutral.utility - averse.utility <= 1e-9


@settings(max_examples=40, deadline=None)
@given(attitude=attitudes, c=st.floats(0.1, 3), peers=peer_lists)
def test_with_all_peers_every_attitude_answers_as_the_neutral_one(
    attitude: Attitude, c: float, peers: list[float]
) -> None:
    terms = {"cost": LinearCost(c), "peers": peers, "drawn": len(peers)}
    assert respond(**terms, attitude=attitude) == respond(**terms)
    assert respond(cost=LinearCost(c), peers=peers[:1], attitude=attitude) == respond(
        cost=LinearCost(c), peers=peers[:1]
    )
    mean = {"cost": LinearCost(c), "peers": peers, "rule": PeerRule.MEAN}
    assert respond(**mean, attitude=attitude) == respond(**mean)


@settings(max_examples=40, deadline=None)
@given(c=st.floats(0.1, 3), peers=peer_lists, drawn=st.integers(1, 5), payment=st.sampled_from(PAYMENTS))
def test_the_less_the_aversion_the_nearer_the_neutral_answer(
    c: float, peers: list[float], drawn: int, payment: PaymentFunction
) -> None:
    terms = {"cost": LinearCost(c), "peers": peers, "drawn": drawn, "payment": payment}
    neutral = respond(**terms)
    for a in (1e-4, 1e-7, 1e-10):
        # What is lost is at most half of a times the variance of a payment, which is below 100 here.
        lost = neutral.utility - respond(**terms, attitude=CARA(a)).equivalent
        assert -1e-11 <= lost <= 50 * a + 1e-10


def test_what_the_design_measured_one_who_weighs_risk_stops_where_others_work_and_more_peers_bring_it_back() -> (
    None
):
    peers = [0.37] * 6 + [1.0] * 2
    answers = {
        drawn: respond(peers=peers, cost=LinearCost(1.0), drawn=drawn, attitude=CARA(1.0))
        for drawn in (1, 3, 8)
    }
    assert [answer.effort > 0 for answer in answers.values()] == [False, True, True]
    assert answers[3].equivalent < answers[8].equivalent
    assert answers[8] == respond(peers=peers, cost=LinearCost(1.0), drawn=8)


def test_a_closed_form_of_two_peers() -> None:
    answer = respond(peers=[0.2, 0.9], cost=LinearCost(100.0), attitude=CARA(2.0))
    low, high = (float(np.log(2000 / (300 * (1 + peer**2) + 200))) for peer in (0.9, 0.2))
    assert answer.effort == 0
    assert answer.equivalent == pytest.approx(
        -np.log((np.exp(-2 * low) + np.exp(-2 * high)) / 2) / 2, abs=1e-13
    )
    logarithmic = respond(peers=[0.2, 0.9], cost=LinearCost(100.0), attitude=CRRA(1.0, 70.0))
    assert logarithmic.equivalent == pytest.approx(np.sqrt((70 + low) * (70 + high)) - 70, abs=1e-12)
    nearly = respond(peers=[0.2, 0.9], cost=LinearCost(100.0), attitude=CRRA(1 + 1e-9, 70.0))
    assert nearly.equivalent == pytest.approx(logarithmic.equivalent, abs=1e-9)


def test_cara_counts_every_draw_of_a_large_population_and_crra_says_that_it_does_not() -> None:
    peers = np.linspace(0.1, 1.0, 60).tolist()
    averse = respond(peers=peers, drawn=5, attitude=CARA(1.0))
    assert averse.exact
    assert averse.certificate.status is Status.PROVED
    # Against many draws.
    chance = np.random.default_rng(1)
    draws = np.array([chance.choice(peers, 5, replace=False) for _ in range(40_000)])
    paid = np.log(2000 / (300 * (averse.degree**2 + draws**2) + 200)).mean(axis=1)
    sampled = -np.log(np.exp(-paid).mean()) - averse.cost
    assert averse.equivalent == pytest.approx(sampled, abs=5 * paid.std() / 200)
    relative = respond(peers=peers, drawn=5, attitude=CRRA(2.0, 5.0))
    assert not relative.exact
    assert relative.certificate.status is Status.NONE
    assert relative.certificate.max_regret == np.inf
    assert "20000 draws in the place of all" in relative.certificate.basis


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: CARA(0.0), "cara"),
        (lambda: CARA(float("nan")), "cara"),
        (lambda: CRRA(-1.0, 1.0), "crra"),
        (lambda: CRRA(21.0, 1.0), "crra"),
        (lambda: CRRA(1.0, 0.0), "wealth"),
        (lambda: attitude_of(1.0, 1.0, 1.0), "crra"),
        (lambda: attitude_of(None, 1.0, None), "crra"),
        (lambda: attitude_of(1.0, None, 1.0, "risk."), "risk.wealth"),
        (lambda: attitude_of(-1.0, None, None, "risk."), "risk.cara"),
        (lambda: respond(peers=[0.1, 0.9], attitude=CARA(1e3)), "cara"),
        (lambda: respond(peers=[0.1, 0.9], cost=LinearCost(2.0), attitude=CRRA(1.0, 1.2)), "wealth"),
        (lambda: respond(peers=[0.1, 0.9], payment=Cubed(), Q=600, attitude=CARA(1.0)), "payment"),
        (lambda: respond(peers=[0.1, 0.9], drawn=0), "drawn"),
    ],
)
def test_what_cannot_be_weighed_is_refused_by_its_field(make: Any, field: str) -> None:
    with pytest.raises(FieldError) as refused:
        make()
    assert refused.value.field == field


def test_an_attitude_is_what_its_numbers_say() -> None:
    assert attitude_of(None, None, None) is None
    assert attitude_of(2, None, None) == CARA(2.0)
    assert attitude_of(None, 2, 3) == CRRA(2.0, 3.0)


# Populations


def game(payment: PaymentFunction | None = None, Q: float = 600.0, **more: Any) -> Game:
    start = np.array([0.45, 0.6, 0.75, 0.8, 0.93, 1.0, 1.0])
    cost = LinearCost(np.array([0.5, 0.8, 0.6, 0.7, 0.55, 5.0, 5.0]))
    return Game(payment or Log(), Q, BOUND, ExponentialEffort(start), cost, **more)


@pytest.mark.parametrize("side", ["least", "greatest"])
@pytest.mark.parametrize("attitude", [CARA(1.0), CRRA(2.0, 6.0)])
def test_nobody_gains_by_leaving_an_equilibrium(side: Any, attitude: Attitude) -> None:
    played = game()
    for drawn in (1, 3):
        found = averse_equilibrium(played, side, drawn, attitude)
        assert found.converged
        assert found.max_regret < 1e-6
        for k in range(played.size):
            degree = np.linspace(played.floor[k], played.start[k], 501)
            cost = np.asarray(played.cost.take(np.array([k])).value(played.start[k] - degree))
            others = np.delete(found.degree, k).tolist()
            worth = equivalents(attitude, played.payment, played.Q, others, drawn, degree, cost)
            assert worth.max() <= found.equivalent[k] + found.max_regret + 1e-9


@pytest.mark.parametrize("side", ["least", pytest.param("greatest", marks=pytest.mark.extended)])
def test_equilibria_have_less_effort_the_more_risk_is_weighed(side: Any) -> None:
    """Where the game is supermodular: best degrees rise with aversion, and so do both ends (Milgrom and Roberts)."""
    played = game()
    sure = equilibrium(played, side).degree
    for drawn in (1, 2, 4):
        before = sure
        for a in (0.2, 0.6, 1.0):
            found = averse_equilibrium(played, side, drawn, CARA(a))
            assert found.extremal
            assert (found.degree >= before - 1e-6).all()
            before = found.degree


def test_all_peers_are_the_game_of_those_who_weigh_no_risk() -> None:
    played = game()
    for drawn in (6, 20):
        found = averse_equilibrium(played, "least", drawn, CARA(3.0))
        assert found.degree == pytest.approx(equilibrium(played, "least").degree)
        assert found.equivalent == pytest.approx(found.payment - found.cost)


def test_what_no_equilibrium_is_looked_for_in_is_refused() -> None:
    with pytest.raises(FieldError, match="the mean of all is no draw"):
        averse_equilibrium(game(rule=PeerRule.MEAN), "least", 1, CARA(1.0))
    many = Game(Log(), 600.0, BOUND, ExponentialEffort(np.full(41, 0.9)), LinearCost(np.full(41, 0.5)))
    with pytest.raises(FieldError, match="at most 40"):
        averse_equilibrium(many, "least", 1, CARA(1.0))
    with pytest.raises(FieldError, match="bends as risk aversion needs it"):
        averse_equilibrium(game(Cubed()), "least", 1, CARA(1.0))


@settings(max_examples=80, deadline=None)
@given(
    payment=st.sampled_from(PAYMENTS),
    aversion=st.floats(0.05, 4),
    drawn=st.integers(1, 3),
    degrees=st.lists(st.floats(0.05, 1), min_size=4, max_size=4),
)
def test_increasing_differences_hold_where_they_are_claimed(
    payment: PaymentFunction, aversion: float, drawn: int, degrees: list[float]
) -> None:
    """The gain of a lower degree does not fall where a peer's degree does."""
    attitude, score = CARA(aversion), Score(payment, 2000.0, BOUND)
    if not increasing_differences(score, attitude, drawn):
        return
    own, *peers = degrees
    closer = [peers[0] * 0.8, *peers[1:]]
    at = np.array([own * 0.8, own])
    low, high = (
        equivalents(attitude, payment, 2000.0, who, min(drawn, 2), at, np.zeros(2)) for who in (closer, peers)
    )
    assert low[0] - low[1] >= high[0] - high[1] - 1e-11


def test_the_logarithm_is_supermodular_up_to_an_aversion_of_the_number_of_peers_over_its_scale() -> None:
    for scale, drawn in ((1.0, 1), (2.0, 1), (1.0, 3), (4.0, 3)):
        score = Score(Log(Decimal(scale)), 2000.0, BOUND)
        edge = drawn / scale
        assert increasing_differences(score, CARA(edge), drawn)
        assert not increasing_differences(score, CARA(edge * 1.001), drawn)
    assert not increasing_differences(Score(Log(), 2000.0, BOUND), CRRA(0.1, 100.0), 1)
