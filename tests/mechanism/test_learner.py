"""The learner's problem: best coefficient, selection, budget."""

from decimal import Context, Decimal

import numpy as np
import pytest

from mechanism.budget import budget_bound
from mechanism.cost import LinearCost
from mechanism.effort import ExponentialEffort
from mechanism.equilibrium import equilibrium
from mechanism.errors import FieldError
from mechanism.game import Game
from mechanism.learner import Learner, best_offer, offer, payoff_curve
from mechanism.payment import Linear, Log, Power
from mechanism.selection import required_coefficients, select
from tests.mechanism.games import BOUND, random_game, symmetric_game, utility_at


def test_under_a_log_payment_the_best_coefficient_is_the_participation_boundary():
    game, learner = symmetric_game(0.5, 50), Learner(omega=1, gamma=5, reward=20_000)
    low = np.exp(-1)
    boundary = 300 * np.exp(0.5 * (1 - low)) * (2 * low**2 + 2 / 3)
    for side in ("least", "greatest"):
        best = best_offer(game, learner, side)
        assert boundary == pytest.approx(best.Q, rel=1e-9)
        assert best.on_boundary
        assert best.feasible
        assert best.slack == pytest.approx(0, abs=1e-9)
    # Just below, effort no longer pays and nobody makes any.
    assert equilibrium(game.with_q(boundary * (1 - 1e-6)), "least").effort.max() == 0
    assert offer(game.with_q(boundary * 1.001), learner).payoff < best_offer(game, learner).payoff


@pytest.mark.parametrize("seed", range(4))
def test_the_boundary_of_a_mixed_population_cannot_be_undercut(seed):
    game, learner = random_game(seed, 14), Learner(omega=1, gamma=5, reward=4000)
    best = best_offer(game, learner)
    free = equilibrium(game.with_q(5000.0))
    if best.on_boundary:
        assert best.profile.degree == pytest.approx(free.degree, abs=1e-9)
        again = equilibrium(game.with_q(best.Q * (1 + 1e-9)))
        assert again.degree == pytest.approx(free.degree, abs=1e-8)
        lower = equilibrium(game.with_q(best.Q * (1 - 1e-5)))
        assert np.abs(lower.degree - free.degree).max() > 1e-3 or lower.utility.min() < 0
    assert best.profile.utility == pytest.approx(
        utility_at(game.with_q(best.Q), best.profile.degree), abs=1e-9
    )
    for Q in np.geomspace(150, 3000, 25):
        assert offer(game.with_q(float(Q)), learner).payoff <= best.payoff + 1e-6


@pytest.mark.parametrize("payment", [Linear(), Power(Decimal(2), Decimal("0.5"))])
@pytest.mark.parametrize("side", ["least", "greatest"])
def test_no_coefficient_on_a_grid_beats_the_best(payment, side):
    game, learner = random_game(2, 8, payment), Learner(omega=1, gamma=5, reward=900, rounds=2)
    best = best_offer(game, learner, side)
    assert best.feasible
    for Q in np.geomspace(20, 20_000, 40):
        tried = offer(game.with_q(float(Q)), learner, side)
        assert not tried.feasible or tried.payoff <= best.payoff + 1e-6 * abs(best.payoff)


def test_a_learner_that_gains_nothing_pays_nothing():
    best = best_offer(random_game(1, 8), Learner(omega=1, gamma=5, reward=0))
    assert best.profile.payment.sum() == pytest.approx(0, abs=1e-12)


def test_the_curve_holds_the_best_and_is_ordered():
    curve = payoff_curve(random_game(1, 8), Learner(omega=1, gamma=5, reward=800))
    coefficients = [one.Q for one in curve]
    assert coefficients == sorted(coefficients)
    assert (
        max(one.payoff for one in curve if one.feasible)
        == best_offer(random_game(1, 8), Learner(omega=1, gamma=5, reward=800)).payoff
    )


def test_a_required_coefficient_pays_exactly_the_cost():
    for payment, Q in ((Log(), 2000.0), (Log(), 430.0), (Linear(), 500.0), (Power(), 900.0)):
        game = random_game(4, 9, payment, Q)
        profile = equilibrium(game)
        required = required_coefficients(game, profile)
        for k in np.flatnonzero(profile.cost > 0):
            at = utility_at(game.with_q(float(required[k])), profile.degree)[k]
            assert at == pytest.approx(0, abs=1e-8)


def test_a_costly_minority_is_not_selected():
    costs = np.array([0.4] * 8 + [2.5] * 2)
    game = Game(Log(), 2000, BOUND, ExponentialEffort(np.ones(10), np.ones(10)), LinearCost(costs))
    learner = Learner(omega=0.2, gamma=5, reward=60, variance=4)
    chosen = select(game, learner)
    assert set(chosen.selected) <= set(range(8))
    assert chosen.threshold == pytest.approx(chosen.required[chosen.selected].max())
    # Every size was worth at most the chosen one, and each was solved anew.
    assert max(chosen.payoffs.values()) == pytest.approx(chosen.offer.payoff)
    for size, payoff in chosen.payoffs.items():
        order = np.sort(np.argsort(chosen.required, kind="stable")[:size])
        assert best_offer(game.select(order), learner, partial=False).payoff == pytest.approx(
            payoff, abs=1e-9
        )


def test_the_budget_bounds_every_payment():
    game = random_game(5, 20)
    bound = budget_bound(Log(), Decimal(2000), Decimal(200), 20, 3)
    precise = Context(prec=60)
    exact = precise.multiply(Decimal(60), precise.ln(Decimal(10)))
    assert exact <= bound <= exact * (1 + Decimal("1e-25"))
    assert float(bound) >= 3 * equilibrium(game).payment.sum()
    assert budget_bound(Log(), Decimal(100), Decimal(200), 20, 3) == 0


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"omega": 0, "gamma": 1, "reward": 1}, "learner.omega"),
        ({"omega": 1, "gamma": -1, "reward": 1}, "learner.gamma"),
        ({"omega": 1, "gamma": float("nan"), "reward": 1}, "learner.gamma"),
        ({"omega": 1, "gamma": 1, "reward": lambda y: -y}, "learner.reward"),
        ({"omega": 1, "gamma": 1, "reward": 1, "rounds": 0}, "learner.rounds"),
        ({"omega": 1, "gamma": 1, "reward": 1, "weights": [0.5, 0.4]}, "learner.weights"),
    ],
)
def test_bad_objectives_are_refused_by_name(arguments, field):
    with pytest.raises(FieldError) as refused:
        Learner(**arguments)
    assert refused.value.field == field


def test_a_quorum_above_the_population_is_refused():
    with pytest.raises(FieldError, match="quorum"):
        select(random_game(1, 4), Learner(omega=1, gamma=5, reward=10), quorum=5)
