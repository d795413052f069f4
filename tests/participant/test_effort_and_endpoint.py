"""Effort strategies with their explanation, and addresses."""

import socket
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from fedpeer.protocol.certificates import make_authority
from mechanism.cost import CallableCost, LinearCost
from mechanism.effort import CallableEffort, ExponentialEffort, TabulatedEffort
from mechanism.risk import CARA
from participant.effort import BestResponse, Fixed, strategy_of
from participant.endpoint import Endpoint
from participant.errors import ConfigurationError, EffortError, UnreachableError
from tests.participant.simulated_market import terms

COUNTS = [30, 10]  # a degree of 1/4 against (1/2, 1/2)


def test_the_best_response_is_better_than_every_effort_on_a_fine_grid() -> None:
    for cost in (0.05, 0.5, 2.0, 50.0):
        strategy = BestResponse(cost=LinearCost(cost), peers=[0.1, 0.3])
        answer = strategy.decide(terms(), COUNTS).answer
        assert answer is not None
        curve, published = ExponentialEffort(0.25), terms()
        for effort in np.linspace(0, 1, 201):
            degree = float(curve.degree(effort))
            gaps = 10 * (degree**2 + np.square([0.1, 0.3])) + 1
            paid = float(np.mean(published.payment.value(100 / gaps)))
            assert paid - cost * (0.25 - degree) <= answer.utility + answer.certificate.max_regret + 1e-12


def test_risk_is_weighed_where_peers_are_drawn_and_differ() -> None:
    published = terms()
    assert published.rule.peers == 1
    believed = [0.0, 0.1, 0.8, 1.0]
    neutral = BestResponse(cost=LinearCost(1.2), peers=believed).explain(published, COUNTS)
    averse = BestResponse(cost=LinearCost(1.2), peers=believed, attitude=CARA(2.0)).explain(published, COUNTS)
    assert averse.decision.effort < neutral.decision.effort
    assert "for sure. No other effort is worth more than" in averse.decision.reason
    assert "for sure" not in neutral.decision.reason
    for point, same in zip(averse.points, neutral.points, strict=True):
        gaps = 10 * (point.degree**2 + np.square(believed)) + 1
        paid = published.payment.value(100 / gaps)
        assert point.payment == same.payment == pytest.approx(paid.mean())
        assert point.deviation == same.deviation == pytest.approx(paid.std())
        assert point.equivalent == pytest.approx(-np.log(np.exp(-2 * paid).mean()) / 2 - point.cost)
        assert same.equivalent == same.utility
    # Drawn among four without replacement; with everybody there is no draw.
    for count in (2, 3, 4):
        some = replace(published, rule=replace(published.rule, peers=count))
        explained = BestResponse(cost=LinearCost(1.2), peers=believed, attitude=CARA(2.0)).explain(
            some, COUNTS
        )
        factor = np.sqrt((4 - count) / (3 * count))
        assert explained.points[5].deviation == pytest.approx(averse.points[5].deviation * factor)
    assert explained.decision == neutral.decision
    everybody = replace(published, rule=replace(published.rule, peers=published.schedule.capacity - 1))
    told = BestResponse(cost=LinearCost(1.2), peers=believed, attitude=CARA(2.0)).explain(everybody, COUNTS)
    assert told.decision == neutral.decision
    assert told.points[0].deviation == 0


def test_an_attitude_that_cannot_be_weighed_is_one_sentence() -> None:
    strategy = BestResponse(peers=[0.1, 0.9], attitude=CARA(1e4))
    with pytest.raises(EffortError, match="no best effort can be computed: cara is"):
        strategy.decide(terms(), COUNTS)


def test_costs_decide_the_effort() -> None:
    assert BestResponse(cost=LinearCost(1e-6)).decide(terms(), COUNTS).effort == 1
    assert BestResponse(cost=LinearCost(1e6)).decide(terms(), COUNTS).effort == 0
    assert "No effort is best" in BestResponse(cost=LinearCost(1e6)).decide(terms(), COUNTS).reason


def test_an_explanation_prints_the_curve_and_the_reason() -> None:
    explanation = BestResponse(cost=LinearCost(1.0)).explain(terms(), COUNTS)
    text = str(explanation)
    assert "degree of 0.2500" in text
    assert text.count("\n") >= 14
    assert explanation.decision.reason in text
    assert [point.effort for point in explanation.points] == pytest.approx(np.linspace(0, 1, 11))
    assert explanation.points[0].cost == 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: BestResponse(curve=TabulatedEffort([0, 1], [0.5, 0.1])), "starts at a degree of 0.5"),
        (lambda: BestResponse(curve=lambda start: CallableEffort(lambda e: start + e / 4)), "non-increasing"),
        (
            lambda: BestResponse(
                curve=lambda start: ExponentialEffort(start, -1.0),
            ),
            "rate",
        ),
        (lambda: BestResponse(peers=[1.5]), r"degrees in \[0, 1\]"),
    ],
)
def test_curves_and_beliefs_that_cannot_be(make: Any, words: str) -> None:
    with pytest.raises(EffortError, match=words):
        make().decide(terms(), COUNTS)


def test_a_cost_that_decreases_is_refused_where_it_is_made() -> None:
    with pytest.raises(ValueError, match="an increasing function"):
        CallableCost(1.0, lambda x: -x, lambda x: -np.ones_like(x), np.zeros_like)


def test_what_a_user_means_by_an_effort() -> None:
    assert strategy_of(0.25) == Fixed(0.25)
    assert strategy_of(0.25).decide(terms(), COUNTS).effort == Decimal("0.250000")
    own = strategy_of(lambda published, counts: counts[1] / counts[0])
    assert own.decide(terms(), COUNTS).effort == Decimal("0.333333")
    strategy = BestResponse()
    assert strategy_of(strategy) is strategy
    for wrong in (1.5, -0.1, float("nan"), "much"):
        with pytest.raises(EffortError, match="from 0 to 1"):
            strategy_of(wrong)  # type: ignore[arg-type]  # one of them is not a number
    with pytest.raises(EffortError, match="from 0 to 1"):
        strategy_of(lambda published, counts: 7.0).decide(terms(), COUNTS)


@pytest.mark.parametrize("address", ["", "host", "host:", ":7443", "host:port", "host:0", "host:70000"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ConfigurationError, match="host:port"):
        Endpoint(address)


def test_addresses() -> None:
    assert Endpoint("[::1]:7443").host_and_port() == ("::1", 7443)
    assert Endpoint("market.example:7443").host_and_port() == ("market.example", 7443)


def test_a_port_that_listens_and_does_not_serve_yet_is_no_reason_to_give_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So a coordinator looks while it starts: what is waited for, not what is refused."""
    monkeypatch.setattr("participant.endpoint.PROBE_SECONDS", 0.2)
    authority = make_authority("test", datetime.now(UTC))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = Endpoint(f"127.0.0.1:{silent.getsockname()[1]}", authority.certificate_pem)
        assert isinstance(endpoint.diagnose(), UnreachableError)
