"""Properties of the game that hold for every population."""

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mechanism.best_response import PeerRule
from mechanism.clipped import ClippedField
from mechanism.cost import LinearCost
from mechanism.curvature import Evidence, relative_curvature
from mechanism.effort import ExponentialEffort
from mechanism.equilibrium import solve
from mechanism.extremal_iteration import Climb, applies
from mechanism.game import Game
from mechanism.gap_bound import GapBound
from mechanism.learner import Learner, best_offer
from mechanism.mean_field import Field, Layout, PeerSums
from mechanism.payment import Log
from mechanism.score import Score
from tests.mechanism.games import BOUND, PAYMENTS, random_game, utilities_on_grid, utility_at

pytestmark = pytest.mark.arithmetic

degrees = st.floats(0, 1)
scales = st.decimals("0.01", 1000, places=2)
payments = st.sampled_from(PAYMENTS)


@given(payment=payments, mine=degrees, peer=degrees, more=st.floats(0, 0.5))
def test_a_payment_falls_in_both_degrees(payment, mine, peer, more):
    score = Score(*payment, BOUND)
    pay = lambda a, b: float(score.value(a**2 + b**2))  # noqa: E731
    slack = 1e-12
    assert pay(min(mine + more, 1), peer) <= pay(mine, peer) + slack
    assert pay(mine, min(peer + more, 1)) <= pay(mine, peer) + slack


@given(payment=payments, a=degrees, b=degrees, c=degrees, d=degrees)
def test_differences_increase_where_the_condition_holds(payment, a, b, c, d):
    (low, high), (peer_low, peer_high) = sorted((a, b)), sorted((c, d))
    score = Score(*payment, BOUND)
    assert relative_curvature(payment[0], *score.span).evidence is Evidence.DECLARED
    pay = lambda x, y: float(score.value(x**2 + y**2))  # noqa: E731
    against_low = pay(high, peer_low) - pay(low, peer_low)
    against_high = pay(high, peer_high) - pay(low, peer_high)
    assert against_high >= against_low - 1e-12


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000), payment=payments, size=st.integers(2, 3), costs=st.floats(0.3, 3),
    ratio=st.sampled_from([0.1, 2 / 3, 2.0]),
)  # fmt: skip
def test_the_two_ends_bracket_every_equilibrium_that_a_grid_finds(seed, payment, size, costs, ratio):
    rng = np.random.default_rng(seed)
    effort = ExponentialEffort(rng.uniform(0.3, 1, size), rng.uniform(0.5, 2, size))
    scale = (1 + ratio) / (1 + 2 / 3)
    game = Game(
        payment[0],
        payment[1] * scale,
        GapBound(300, 300 * ratio),
        effort,
        LinearCost(costs * rng.uniform(0.3, 1, size)),
    )
    solution = solve(game)
    # Every profile of a grid that no grid deviation beats by more than the grid's own coarseness allows: a
    # grid point next to an exact equilibrium has a regret of second order in the step.
    points = 25
    share = np.linspace(0, 1, points)
    axes = [game.floor[k] + (game.start[k] - game.floor[k]) * share for k in range(size)]
    utility = []
    mesh = np.stack(np.meshgrid(*axes, indexing="ij"))
    for k in range(size):
        gap = game.bound.phi * (mesh[k] ** 2 + np.delete(mesh, k, axis=0) ** 2) + game.bound.upsilon
        paid = game.payment.value(game.Q / gap).mean(axis=0)
        utility.append(paid - np.asarray(game.cost.coefficient)[k] * (game.start[k] - mesh[k]))
    best = [u.max(axis=k, keepdims=True) for k, u in enumerate(utility)]
    exact = np.all([u >= b - 1e-12 for u, b in zip(utility, best, strict=True)], axis=0)
    step = [(game.start[k] - game.floor[k]) / (points - 1) for k in range(size)]
    for found in np.argwhere(exact):
        profile = np.array([axes[k][found[k]] for k in range(size)])
        # A grid equilibrium is an equilibrium of the game played on the grid; its least and greatest lie
        # within a step of best responses of the continuous ones, amplified by how far those reach.
        slack = 4 * max(step) + 1e-9
        near_regret = utilities_on_grid(game, profile, 801)[1].max(axis=1) - utility_at(game, profile)
        if near_regret.max() > 1e-9:
            continue
        assert (profile >= solution.least.degree - slack).all()
        assert (profile <= solution.greatest.degree + slack).all()
    assert (solution.least.degree <= solution.greatest.degree + 1e-9).all()


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), payment=payments, size=st.integers(2, 40))
def test_each_sweep_moves_one_way_and_stays_on_its_side_of_the_answer(seed, payment, size):
    game = random_game(seed, size, *payment)
    if not applies(game):
        return
    solution = solve(game)
    for side, end in (("least", solution.least), ("greatest", solution.greatest)):
        climb, sign = Climb(game, side), 1 if side == "least" else -1
        for _ in range(12):
            before = climb.degree
            climb.move_to(climb.stepped(climb.field, before))
            assert (sign * (climb.degree - before) >= 0).all()
            # What is reached by climbing alone never passes the extremal equilibrium.
            assert (sign * (end.degree - climb.degree) >= -1e-9).all()


@settings(max_examples=15)
@given(
    seed=st.integers(0, 10_000),
    payment=payments,
    size=st.integers(2, 30),
    rule=st.sampled_from(list(PeerRule)),
)
def test_a_fine_search_finds_no_more_than_the_certificate_allows(seed, payment, size, rule):
    game = random_game(seed, size, *payment, rule=rule)
    for end in solve(game):
        now = utility_at(game, end.degree)
        gain = utilities_on_grid(game, end.degree, 1501)[1].max(axis=1) - now
        assert end.certified
        assert gain.max() <= end.certificate.max_regret
        assert end.certificate.max_regret < 1e-8


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), payment=payments, size=st.integers(2, 30))
def test_permuting_the_participants_permutes_the_answer(seed, payment, size):
    game = random_game(seed, size, *payment)
    order = np.random.default_rng(seed).permutation(size)
    for one, other in zip(solve(game), solve(game.select(order)), strict=True):
        assert other.degree == pytest.approx(one.degree[order], abs=2e-10)
        assert other.payment == pytest.approx(one.payment[order], abs=1e-9)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000), payment=st.sampled_from([p for i, p in enumerate(PAYMENTS) if i != 1]),
    ratio=st.floats(1e-3, 10), low=st.floats(0, 0.9), size=st.integers(2, 300),
)  # fmt: skip
def test_the_interpolated_field_is_within_its_error_bound(seed, payment, ratio, low, size):
    rng = np.random.default_rng(seed)
    squares = rng.uniform(low, 1, size)
    score = Score(payment[0], 1e9, GapBound(300, 300 * ratio))
    layout = Layout.of(score, low, 1.0)
    field = Field.of(layout, np.sqrt(squares))
    s = np.linspace(low, 1, 401)
    z = s[:, None] + np.square(np.sqrt(squares))
    first, second = field.first(s), field.second(s)
    size_of = np.abs(score.first(z)).mean(axis=1).max()
    rounding = 1e-13 * size_of
    assert np.abs(first - score.first(z).mean(axis=1)).max() <= field.error + rounding
    assert np.abs(second - score.second(z).mean(axis=1)).max() <= field.slope_error + rounding / ratio
    exact = score.value(z).mean(axis=1)
    level = field.level(s)
    drift = np.abs((level - level[0]) - (exact - exact[0]))
    assert drift.max() <= 2 * field.error + 1e-14 * np.abs(exact).max() + rounding


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000), ratio=st.floats(1e-2, 10), reach=st.floats(0.02, 1.2), size=st.integers(2, 300),
)  # fmt: skip
@example(seed=0, ratio=2.0, reach=1.0, size=32)
def test_the_field_of_a_clipped_payment_is_within_its_error_bound(seed, ratio, reach, size):
    squares = np.random.default_rng(seed).uniform(0, 1, size)
    bound = GapBound(300, 300 * ratio)
    score = Score(Log(), float(bound.gap(reach, 1.0)), bound)
    degree = np.sqrt(squares)
    field, sums = ClippedField.of(score, degree, 0.0, 1.0), PeerSums(score, np.square(degree))
    s = np.linspace(0, 1, 401)
    rounding = 1e-13 * (1 + 1 / ratio)
    assert np.abs(field.level(s) - sums.level(s)).max() <= field.level_error + rounding
    # At a kink the slopes jump, and rounding decides the side.
    near = np.abs(s[:, None] + np.square(degree) - score.kink).min(axis=1) < 1e-12
    for one, other, error in (
        (field.first(s), sums.first(s), field.first_error(s)),
        (field.second(s), sums.second(s), field.slope_error),
    ):
        assert (np.abs(one - other) <= error + rounding / ratio)[~near].all()
    nobody = s + np.square(degree).min() > score.kink + 1e-12
    assert (field.first(s)[nobody] == 0).all()
    assert (np.asarray(field.first_error(s))[nobody] == 0).all()


def scaled(game, factor):
    """`game` in another currency: a credit is now `factor`."""
    payment = replace(game.payment, scale=game.payment.scale * factor)
    cost = LinearCost(np.asarray(game.cost.coefficient) * float(factor))
    return Game(payment, game.Q, game.bound, game.effort, cost, game.rule)


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), payment=payments, size=st.sampled_from([2, 5, 40]), factor=scales)
def test_another_currency_multiplies_every_amount_and_moves_no_degree(seed, payment, size, factor):
    game = random_game(seed, size, *payment)
    one, other = solve(game), solve(scaled(game, factor))
    for side in ("least", "greatest"):
        mine, theirs = getattr(one, side), getattr(other, side)
        # At a tangency a degree is known to the root of what a utility is known to.
        np.testing.assert_allclose(theirs.degree, mine.degree, atol=2e-6)
        np.testing.assert_allclose(theirs.payment, float(factor) * mine.payment, rtol=1e-5, atol=1e-9)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), scale=scales, more=st.floats(1, 1000))
def test_under_a_log_the_coefficient_moves_no_degree_where_nothing_is_clipped(seed, scale, more):
    game = scaled(random_game(seed, 12, Log(), Q=900.0), scale)  # 2 Phi + Upsilon is 800
    one, other = solve(game), solve(game.with_q(900.0 * more))
    np.testing.assert_allclose(other.least.degree, one.least.degree, atol=2e-6)
    np.testing.assert_allclose(other.greatest.degree, one.greatest.degree, atol=2e-6)
    raised = float(scale) * np.log(more)
    np.testing.assert_allclose(other.least.payment - one.least.payment, raised, rtol=1e-5, atol=1e-9)


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), wanted=st.floats(0.02, 0.5), top=st.floats(0.55, 1), r=st.floats(0.02, 3))
def test_the_scale_of_a_wanted_degree_leaves_no_equilibrium_above_it(seed, wanted, top, r):
    rng = np.random.default_rng(seed)
    costs = rng.uniform(0.1, 5, 9)
    starts = np.append(rng.uniform(0.5, top, 8), top)
    scale = 1.0001 * costs.max() * max((2 * x**2 + r) / (2 * x) for x in (wanted, top))
    bound = GapBound(1, r)
    game = Game(
        Log(Decimal(scale)), 2 + r, bound, ExponentialEffort(starts, np.full(9, 9.0)), LinearCost(costs)
    )
    assert solve(game).greatest.degree.max() <= wanted + 1e-6


def test_the_best_coefficient_does_not_depend_on_the_currency():
    game, factor = random_game(3, 9), Decimal("12.5")
    one = best_offer(game, Learner(omega=1, gamma=5, reward=800))
    other = best_offer(scaled(game, factor), Learner(omega=1, gamma=5, reward=800 * float(factor)))
    assert pytest.approx(one.Q, rel=1e-9) == other.Q
    assert other.payoff == pytest.approx(float(factor) * one.payoff, rel=1e-9)
