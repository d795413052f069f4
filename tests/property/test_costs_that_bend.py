"""Equilibria and best responses under costs of every exponent, against brute force that shares no code with them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechanism.best_response import PeerRule, best_response
from mechanism.certificate import Status
from mechanism.cost import LinearCost, PowerCost
from mechanism.effort import ExponentialEffort
from mechanism.equilibrium import equilibrium, solve
from mechanism.game import Game
from mechanism.gap_bound import GapBound
from mechanism.learner import Learner, best_offer, offer
from mechanism.payment import Linear, Log, Log1p, Power
from tests.mechanism.games import utilities_on_grid, utility_at

PAYMENTS = st.sampled_from([Log(), Log1p(), Linear(), Power()])
EXPONENTS = st.one_of(st.sampled_from([1.0, 1.5, 2.0, 2.5, 3.0, 16.0, 20.0]), st.floats(1.0001, 20))
SCALES = st.floats(-4, 4).map(lambda power: 10.0**power)


@st.composite
def games(draw, most=5):
    """Populations of any costs, at degrees that reach their bounds, where Q pays everything or nothing."""
    size = draw(st.integers(2, most))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    phi, ratio = draw(st.floats(1, 1e4)), draw(st.floats(-3, 1).map(lambda power: 10.0**power))
    start = draw(st.sampled_from(["any", "one", "tiny"]))
    delta_0 = {"any": rng.uniform(0.05, 1, size), "one": np.ones(size), "tiny": rng.uniform(0, 1e-3, size)}[
        start
    ]
    effort = ExponentialEffort(
        delta_0, draw(st.sampled_from([0.01, 1.0, 2.0, 20.0])) * rng.uniform(0.5, 1, size)
    )
    scale = draw(st.sampled_from([0.01, 0.5, 5.0, 100.0]))
    mixed = draw(st.booleans())
    exponents = (
        [draw(EXPONENTS) if rng.random() < 0.6 else 1.0 for _ in range(size)] if mixed else draw(EXPONENTS)
    )
    cost = PowerCost(scale * rng.uniform(0.3, 1, size), exponents)
    Q = phi * ratio * draw(SCALES)
    return Game(draw(PAYMENTS), Q, GapBound(phi, phi * ratio), effort, cost, draw(st.sampled_from(PeerRule)))


@settings(max_examples=15)
@given(game=games())
def test_the_least_is_nowhere_above_the_greatest_and_each_is_proved_or_said_not_to_be(game):
    solution = solve(game)
    assert (solution.least.degree <= solution.greatest.degree).all()
    for end in solution:
        gain = utilities_on_grid(game, end.degree, 2001)[1].max(axis=1) - utility_at(game, end.degree)
        rounding = 1e-12 * (1 + np.abs(end.payment).max() + end.cost.max())
        assert gain.max() <= end.certificate.max_regret + rounding
        assert end.certificate.status is Status.PROVED
        if end.certified:
            assert end.within <= 1e-6
    if solution.unique:
        assert solution.least.certified
        assert solution.greatest.certified


@settings(max_examples=10)
@given(game=games(most=4))
def test_no_best_response_on_a_grid_leads_past_either_end(game):
    """From both ends of the game, best responses on a grid, rounded outwards, stay outside of what was found."""
    solution = solve(game)
    points = 4001
    step = (game.start - game.floor) / (points - 1)
    for side, end in (("least", solution.least), ("greatest", solution.greatest)):
        degree = (game.floor if side == "least" else game.start).copy()
        for _ in range(60):
            grid, utility = utilities_on_grid(game, degree, points)
            slack = 1e-12 * (1 + np.abs(utility).max(axis=1, keepdims=True))
            good = utility >= utility.max(axis=1, keepdims=True) - slack
            if side == "least":
                new = np.maximum(degree, grid[np.arange(game.size), good.argmax(axis=1)] - step)
            else:
                last = points - 1 - good[:, ::-1].argmax(axis=1)
                new = np.minimum(degree, grid[np.arange(game.size), last] + step)
            if (new == degree).all():
                break
            degree = np.clip(new, game.floor, game.start)
        # Rounded outwards, the grid's answer bounds the end from its own side: what was found lies between it and
        # every equilibrium, so that where both ends were found the whole range stays inside.
        if side == "least":
            assert (end.degree >= degree - 2 * step - 1e-9).all()
        else:
            assert (end.degree <= degree + 2 * step + 1e-9).all()


@settings(max_examples=40)
@given(
    payment=PAYMENTS, exponent=EXPONENTS, cost=st.sampled_from([0.01, 1.0, 5.0, 100.0]), scale=SCALES,
    start=st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1e-9, 1.0])), rate=st.sampled_from([0.01, 1.0, 2.0, 20.0]),
    peers=st.lists(st.floats(0, 1), min_size=1, max_size=5), rule=st.sampled_from(PeerRule),
)  # fmt: skip
def test_a_best_response_is_best_on_a_fine_grid(payment, exponent, cost, scale, start, rate, peers, rule):
    bound, curve, costs = GapBound(300, 200), ExponentialEffort(start, rate), PowerCost(cost, exponent)
    Q = 200 * scale
    answer = best_response(
        payment=payment, Q=Q, bound=bound, effort=curve, cost=costs, peers=peers, rule=rule
    )
    grid = np.linspace(float(curve.floor), float(curve.start), 20_001)
    squares = np.square(peers) if rule is PeerRule.RANDOM else np.array([np.mean(np.square(peers))])
    paid = payment.value(Q / (300 * (grid[:, None] ** 2 + squares) + 200)).mean(axis=1)
    best = (paid - cost * np.maximum(float(curve.start) - grid, 0) ** exponent).max()
    assert best <= answer.utility + answer.certificate.max_regret + 1e-12 * (1 + abs(best))
    assert answer.certificate.max_regret <= 1e-9 * (1 + abs(best))


def test_a_cost_that_bends_more_and_more_does_not_carry_the_greatest_past_the_only_equilibrium():
    game = Game(Log(), 2000, GapBound(300, 200), ExponentialEffort([1, 1], [2, 2]), PowerCost([5, 5], 2.5))
    solution = solve(game)
    assert solution.unique
    assert solution.least.degree == pytest.approx(0.838811, abs=1e-6)
    assert solution.greatest.degree == pytest.approx(0.838811, abs=1e-6)
    learner = Learner(omega=1, gamma=5, reward=2000, rounds=10)
    best = best_offer(game, learner, "greatest")
    # Making no effort stops being an equilibrium where the first effort that pays for its cost is offered.
    degree = np.linspace(np.exp(-2), 1, 1_000_001)[:-1]
    leaves = ((300 * (degree**2 + 1) + 200) * np.exp(5 * (1 - degree) ** 2.5)).min()
    assert leaves == pytest.approx(best.Q, rel=1e-9)
    for Q in np.geomspace(150, 4000, 15):
        tried = offer(game.with_q(float(Q)), learner, "greatest")
        assert not tried.feasible or tried.payoff <= best.payoff + 1e-6


@pytest.mark.parametrize("exponent", [1.5, 3.0, 16.0, 64.0])
@pytest.mark.parametrize("payment", [Log(), Log1p(), Linear()])
def test_where_nobody_is_paid_a_flat_cost_still_leaves_nobody_an_effort(exponent, payment):
    """Efforts of a few percent cost less than a float shows, and are still no equilibrium."""
    Q = 100.0 if isinstance(payment, Log) else 1e-9
    effort = ExponentialEffort([1.0, 0.9, 1.0], [2.0, 2.0, 3.0])
    game = Game(payment, Q, GapBound(300, 200), effort, PowerCost([5.0, 5.0, 1.0], exponent))
    solution = solve(game)
    for end in solution:
        assert end.certified
        if isinstance(payment, Log):
            assert end.degree == pytest.approx(game.start, abs=1e-9)
    assert solution.unique
    # Where next to nothing is paid the best effort is small, and known to the degree's own accuracy.
    mine = solution.least.degree
    slope = (
        2
        * mine
        * np.array([game.score.first(mine[k] ** 2 + np.delete(mine, k) ** 2).mean() for k in range(3)])
    )
    gap = (-slope / (exponent * np.asarray(game.cost.coefficient))) ** (1 / (exponent - 1))
    assert game.start - mine == pytest.approx(gap, abs=1e-9)


class Disguised:
    """A cost of which the solver knows its values and its shape alone."""

    def __init__(self, cost):
        self.cost = cost

    def __getattr__(self, name):
        return getattr(self.cost, name)

    def take(self, index):
        return Disguised(self.cost.take(index))


def test_lines_and_powers_are_solved_by_steps_as_they_are_by_brackets():
    """As they are they take the extremal iteration, in disguise the brackets of everyone's best responses."""
    effort = ExponentialEffort([1.0, 0.9, 0.8, 0.95], [2.0, 1.5, 1.0, 2.0])
    coefficients, exponents = [0.7, 1.5, 2.0, 0.9], [1.0, 2.0, 3.0, 1.0]
    plain = PowerCost(coefficients, exponents)
    ends = [
        solve(Game(Log(), 2000.0, GapBound(300, 200), effort, cost)) for cost in (plain, Disguised(plain))
    ]
    for one, other in zip(*ends, strict=True):
        assert one.certified
        assert other.converged
        assert other.within <= 1e-6
        assert other.certificate.status is Status.CONDITIONAL
        assert one.degree == pytest.approx(other.degree, abs=1e-8)
        assert one.cost == pytest.approx(other.cost, abs=1e-8)


@pytest.mark.parametrize("exponent", [1.3, 2.5, 7.0])
@pytest.mark.parametrize("size", [20, 200])
def test_larger_populations_are_bracketed_too(exponent, size):
    rng = np.random.default_rng(size)
    effort = ExponentialEffort(rng.uniform(0.3, 1, size), rng.uniform(0.5, 2, size))
    game = Game(Log1p(), 800.0, GapBound(300, 200), effort, PowerCost(rng.uniform(0.3, 3, size), exponent))
    solution = solve(game)
    assert (solution.least.degree <= solution.greatest.degree).all()
    for end in solution:
        assert end.certified
        gain = utilities_on_grid(game, end.degree, 801)[1].max(axis=1) - utility_at(game, end.degree)
        assert gain.max() <= end.certificate.max_regret


@pytest.mark.slow
@pytest.mark.parametrize("rule", list(PeerRule))
@pytest.mark.parametrize("exponent", [1.0, 1.6, 2.5])
@pytest.mark.parametrize("side", ["least", "greatest"])
def test_the_best_coefficient_stands_against_a_grid(rule, exponent, side):
    effort = ExponentialEffort([1.0, 0.8, 0.9], [2.0, 1.0, 1.5])
    cost = PowerCost([1.0, 0.7, 0.5], exponent) if exponent > 1 else LinearCost([1.0, 0.7, 0.5])
    game = Game(Log(), 1000.0, GapBound(300, 200), effort, cost, rule)
    learner = Learner(omega=1, gamma=5, reward=300, rounds=2)
    best = best_offer(game, learner, side)
    assert best.payoff == pytest.approx(offer(game.with_q(best.Q), learner, side).payoff, abs=1e-7)
    for Q in np.geomspace(150, 3000, 30):
        end = equilibrium(game.with_q(float(Q)), side)
        if end.converged and end.utility.min() >= 0:
            assert learner.payoff(end) <= best.payoff + 1e-4 * (1 + abs(best.payoff))


def brute_end(game, points, side):
    """An extremal equilibrium of the game on a grid; ties, up to rounding, to the side's own end."""
    index = np.full(game.size, 0 if side == "least" else points - 1)
    share, everyone = np.linspace(0, 1, points), np.arange(game.size)
    while True:
        degree = game.floor + (game.start - game.floor) * share[index]
        grid, utility = utilities_on_grid(game, degree, points)
        good = utility >= utility.max(axis=1, keepdims=True) - 1e-13
        new = good.argmax(axis=1) if side == "least" else points - 1 - good[:, ::-1].argmax(axis=1)
        if (new == index).all():
            return grid[everyone, index], utility[everyone, index]
        index = new


@pytest.mark.parametrize(
    ("payment", "rule", "exponent", "side"),
    [
        (Log(), PeerRule.RANDOM, 2.5, "least"),
        *(
            pytest.param(payment, rule, exponent, side, marks=pytest.mark.slow)
            for payment in (Log(), Log1p(), Linear())
            for rule in PeerRule
            for exponent in (1.0, 2.5, 6.0)
            for side in ("least", "greatest")
        ),
    ],
)
def test_no_coefficient_that_is_solved_by_brute_force_beats_the_best(payment, rule, exponent, side):
    """Both the profile and the payoff by a grid of degrees, none of it by the solver."""
    rng = np.random.default_rng(round(2 * exponent))
    effort = ExponentialEffort(rng.uniform(0.5, 1, 2), rng.uniform(0.5, 2, 2))
    game = Game(payment, 500.0, GapBound(300, 200), effort, PowerCost(rng.uniform(0.3, 3, 2), exponent), rule)
    learner = Learner(omega=1, gamma=5, reward=float(rng.uniform(50, 2000)), rounds=2)
    best = best_offer(game, learner, side)
    points = 1001
    for Q in np.geomspace(100, 3000, 12):
        tried = game.with_q(float(Q))
        degree, utility = brute_end(tried, points, side)
        payment_sum = float((utility + tried.costs(degree)).sum())
        payoff = learner.g(1 / learner.bound(degree)) - learner.rounds * payment_sum
        # What a grid's step moves the bound, the payments and, near a jump, the profile by.
        slack = 2e-2 * (1 + abs(payoff) + learner.rounds * payment_sum)
        if utility.min() >= 0:
            assert payoff <= best.payoff + slack
