"""What a weight of one's data does to best responses and equilibria (docs/mechanism.md, section 9)."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechanism.best_response import OptimalEffort, best_response
from mechanism.cost import CallableCost, Convexity, LinearCost, PowerCost, over
from mechanism.effort import ExponentialEffort
from mechanism.equilibrium import Equilibrium, equilibrium, solve
from mechanism.errors import FieldError
from mechanism.game import Game
from mechanism.gap_bound import GapBound
from mechanism.payment import Log

BOUND, EFFORT = GapBound(20.0, 1.0), ExponentialEffort(0.8, 3.0)
weights = st.floats(0.05, 1.0)


def weighted(game: Game, weight: npt.ArrayLike) -> Game:
    """The game in whose solution each is paid all of a payment, at 1/w_k times its cost."""
    return replace(game, cost=over(game.cost, np.broadcast_to(np.asarray(weight, float), game.start.shape)))


def in_credits(found: Equilibrium, weight: npt.ArrayLike, fee: float = 0.0) -> Equilibrium:
    """An equilibrium of the weighted game as it is paid: w_k H_k - fee (1 - w_k)."""
    w = np.asarray(weight, float)
    payment, cost = w * found.payment - fee * (1 - w), w * found.cost
    return replace(found, payment=payment, cost=cost, utility=payment - cost)


def answer(weight: float = 1.0, fee: float = 0.0, Q: float = 60.0, cost: float = 1.2) -> OptimalEffort:
    return best_response(
        payment=Log(), Q=Q, bound=BOUND, effort=EFFORT, cost=LinearCost(cost), peers=[0.1, 0.3], weight=weight,
        fee=fee,
    )  # fmt: skip


def utility(degree: float, weight: float, fee: float, Q: float = 60.0) -> float:
    paid = np.mean([np.log(Q / (20 * (degree**2 + peer**2) + 1)) for peer in (0.1, 0.3)])
    return float(max(0.0, weight * paid - fee * (1 - weight)) - 1.2 * (0.8 - degree))


@settings(deadline=None, max_examples=40)
@given(weights, st.floats(0.0, 3.0))
def test_no_degree_beats_the_best_response_to_a_weight_and_a_fee(weight: float, fee: float) -> None:
    found = answer(weight, fee)
    assert found.utility == pytest.approx(utility(found.degree, weight, fee), abs=1e-9)
    best = max(utility(float(d), weight, fee) for d in np.linspace(float(EFFORT.floor), 0.8, 400))
    assert found.utility >= best - 1e-9
    assert found.expected_payment >= 0


@settings(deadline=None, max_examples=30)
@given(weights, weights)
def test_a_lower_weight_means_no_more_effort(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert answer(low).degree >= answer(high).degree - 1e-9


@settings(deadline=None, max_examples=30)
@given(weights, st.floats(60.0, 5000.0))
def test_under_a_log_payment_q_still_drops_out(weight: float, Q: float) -> None:
    """Nothing is clipped here: 60 is above the largest gap."""
    assert answer(weight, Q=Q).degree == pytest.approx(answer(weight).degree, abs=1e-7)


def test_a_fee_above_what_is_paid_is_not_worked_for() -> None:
    found = answer(0.1, 3.0)
    assert (found.effort, found.degree, found.cost, found.utility) == (0.0, 0.8, 0.0, 0.0)


@settings(deadline=None, max_examples=15)
@given(st.lists(weights, min_size=2, max_size=5))
def test_extremal_equilibria_of_a_weighted_game_are_ordered_and_nobody_gains_by_leaving(
    own: list[float],
) -> None:
    weight = np.array(own)
    start = np.linspace(0.4, 0.9, len(own))
    cost = LinearCost(np.linspace(0.6, 1.4, len(own)))
    game = Game(Log(), 60.0, BOUND, ExponentialEffort(start, 3.0), cost)
    least, greatest = (in_credits(side, weight) for side in solve(weighted(game, weight)))
    assert (least.degree <= greatest.degree + 1e-9).all()
    for found in (least, greatest):
        np.testing.assert_allclose(found.cost, game.costs(found.degree), atol=1e-12)
        for k in range(len(own)):
            others = np.delete(found.degree, k)
            best = best_response(
                payment=Log(), Q=60.0, bound=BOUND, effort=ExponentialEffort(start[k], 3.0), peers=others,
                cost=LinearCost(float(np.asarray(cost.coefficient)[k])), weight=own[k],
            )  # fmt: skip
            assert best.utility <= found.utility[k] + found.certificate.max_regret + 1e-9


def test_with_whole_weights_it_is_the_game_itself() -> None:
    game = Game(Log(), 60.0, BOUND, ExponentialEffort(np.array([0.5, 0.8]), 3.0), LinearCost(1.0))
    plain, found = (
        equilibrium(game, "least"),
        in_credits(equilibrium(weighted(game, 1.0), "least"), 1.0, fee=2.0),
    )
    np.testing.assert_array_equal(plain.degree, found.degree)
    np.testing.assert_array_equal(plain.utility, found.utility)
    half = in_credits(equilibrium(weighted(game, [1.0, 0.5]), "least"), [1.0, 0.5], fee=2.0)
    assert half.payment[1] < 0.5 * plain.payment[1] - 0.9


def test_costs_of_every_kind_are_divided_by_the_weight() -> None:
    shaped = CallableCost(2.0, np.square, lambda x: 2 * x, lambda x: 2 + 0 * x, Convexity.CONVEX)
    for cost in (LinearCost(2.0), PowerCost(2.0, 3.0), shaped):
        x = np.array([0.25, 0.75])
        w = np.array([0.5, 0.8])
        divided = over(cost, w)
        for method in ("value", "first", "second"):
            np.testing.assert_allclose(getattr(divided, method)(x), getattr(cost, method)(x) / w)
    for wrong in (0.0, -1.0, 1.1, float("nan")):
        with pytest.raises(FieldError, match="weight"):
            over(LinearCost(1.0), wrong)
    with pytest.raises(FieldError, match="fee"):
        answer(0.5, -1.0)
