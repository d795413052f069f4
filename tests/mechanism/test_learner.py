"""The learner's problem: best coefficient, selection."""

from decimal import Decimal

import numpy as np
import pytest

from mechanism.cost import LinearCost
from mechanism.effort import ExponentialEffort
from mechanism.equilibrium import equilibrium, solve
from mechanism.errors import FieldError
from mechanism.game import Game
from mechanism.learner import Learner, best_offer, offer, payoff_curve
from mechanism.payment import Linear, Log, Power
from mechanism.selection import required_coefficients, select
from tests.mechanism.games import BOUND, random_game, symmetric_game, utilities_on_grid, utility_at

pytestmark = [pytest.mark.arithmetic, pytest.mark.long]


def test_under_a_log_payment_the_best_coefficient_is_the_participation_boundary():
    game, learner = symmetric_game(0.5, 50), Learner(omega=1, gamma=5, reward=20_000)
    low = np.exp(-1)
    alone = 2 - np.sqrt(
        4 - 5 / 3
    )  # where 600 d / (500 + 300 d^2) = 0.5: the best degree among peers of degree 1
    boundaries = {
        # Full effort among those who make it pays its cost.
        "least": 300 * np.exp(0.5 * (1 - low)) * (2 * low**2 + 2 / 3),
        # Making no effort, for nothing, stops being an equilibrium.
        "greatest": (500 + 300 * alone**2) * np.exp(0.5 * (1 - alone)),
    }
    for side, boundary in boundaries.items():
        best = best_offer(game, learner, side)
        assert boundary == pytest.approx(best.Q, rel=1e-9)
        assert best.on_boundary
        assert best.feasible
        assert best.profile.degree == pytest.approx(low, abs=1e-9)
        # Just below, effort no longer pays and nobody makes any.
        assert equilibrium(game.with_q(boundary * (1 - 1e-6)), side).effort.max() == 0
        assert offer(game.with_q(boundary * 1.001), learner, side).payoff < best.payoff
    assert best_offer(game, learner).slack == pytest.approx(0, abs=1e-9)


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
    for payment, Q in (
        (Log(), 2000.0),
        (Log(Decimal("1.7")), 2000.0),
        (Log(), 430.0),
        (Linear(), 500.0),
        (Power(), 900.0),
    ):
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


#: Seeds and sizes of populations in which clipping adds equilibria of less effort.
CLIPPED = [(0, 5), (3, 4)]


@pytest.mark.parametrize(("seed", "size"), CLIPPED)
def test_what_is_promised_against_the_greatest_equilibrium_is_what_the_greatest_pays(seed, size):
    game, learner = random_game(seed, size), Learner(omega=1, gamma=5, reward=9000, rounds=3)
    best = best_offer(game, learner, "greatest")
    assert best.on_boundary
    greatest = solve(game.with_q(best.Q)).greatest
    assert best.payoff == learner.payoff(greatest)
    assert best.profile.degree.tolist() == greatest.degree.tolist()
    # By brute force: nobody's best response on a grid, from the greatest profile downwards, stops above it.
    assert brute_greatest(game.with_q(best.Q * (1 + 1e-4))) == pytest.approx(greatest.degree, abs=2e-3)
    # By bisection: right below, the greatest equilibrium is another one and pays less.
    assert learner.payoff(equilibrium(game.with_q(best.Q * (1 - 1e-9)), "greatest")) < best.payoff - 1
    assert brute_greatest(game.with_q(best.Q * (1 - 1e-3))).max() > greatest.degree.max() + 0.01
    low, high = 200.0, 2000.0
    while high > low * (1 + 1e-5):
        middle = (low * high) ** 0.5
        same = equilibrium(game.with_q(middle), "greatest").degree == pytest.approx(greatest.degree, abs=1e-6)
        low, high = (low, middle) if same else (middle, high)
    assert pytest.approx(high, rel=2e-5) == best.Q


def brute_greatest(game, points=2001):
    """Best responses on a grid, the greatest of equals, from everyone's greatest degree until nobody moves."""
    degree = game.start.copy()
    for _ in range(200):
        grid, utility = utilities_on_grid(game, degree, points)
        last = points - 1 - utility[:, ::-1].argmax(axis=1)
        new = np.minimum(degree, grid[np.arange(game.size), last])
        if (new == degree).all():
            break
        degree = new
    return degree


def test_every_offer_of_a_log_payment_is_worth_what_its_equilibrium_is_worth():
    game, learner = random_game(2, 6), Learner(omega=1, gamma=5, reward=2000)
    for side in ("least", "greatest"):
        offers = payoff_curve(game, learner, side)
        for one in offers[:: len(offers) // 6]:
            assert one.payoff == pytest.approx(offer(game.with_q(one.Q), learner, side).payoff, abs=1e-7)
            assert one.profile.utility == pytest.approx(
                utility_at(game.with_q(one.Q), one.profile.degree), abs=1e-9
            )
