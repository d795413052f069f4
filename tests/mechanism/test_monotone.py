"""The accelerated climb: its proof near tangencies, its jumps, and one limit for both sides."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from mechanism import monotone
from mechanism.contraction import contraction
from mechanism.cost import LinearCost
from mechanism.effort import ExponentialEffort
from mechanism.equilibrium import ENOUGH, equilibrium, solve
from mechanism.field import FINE, Field, Layout, Pool
from mechanism.game import Game
from mechanism.jump import Profile, jumps
from mechanism.monotone import Climb, applies
from mechanism.payment import Log
from mechanism.verify import verify
from tests.mechanism.games import BOUND, PAYMENTS, random_game

pytestmark = pytest.mark.arithmetic


def field_of(game, degree):
    with Pool(game.size) as pool:
        return Field.of(Layout.of(game.score, game.lowest**2, game.highest**2, FINE), degree, pool)


def tangent_game(distances, size=20_000):
    """A random game and participants whose u' at the inflection p of u misses 0 by these shares of their cost."""
    rng = np.random.default_rng(11)
    start, rate = rng.uniform(0.3, 1.0, size), rng.uniform(0.5, 2.0, size)
    cost, extra = rng.uniform(0.3, 1.2, size), len(distances)
    p = tangent = 0.8
    # The newcomers move the field that they are to be tangent to.
    for _ in range(5):
        effort = ExponentialEffort(np.append(start, np.full(extra, p)), np.append(rate, np.full(extra, 2.0)))
        costs = np.append(cost, tangent * (1 - np.array(distances)))
        game = Game(Log(), 2000.0, BOUND, effort, LinearCost(costs))
        degree = equilibrium(game).degree
        peers = np.square(np.delete(degree, size))

        def slopes(x, peers=peers):
            z = x**2 + peers + BOUND.ratio
            return -2 * x * (1 / z).mean(), -2 * (1 / z).mean() + 4 * x**2 * (1 / z**2).mean()

        p = brentq(lambda x: slopes(x)[1], 0.3, 1.2)
        tangent = -slopes(p)[0]
    return game


@pytest.mark.parametrize("distances", [[1e-6], [2e-6, 1e-5]])
def test_participants_close_to_a_tangency_do_not_spoil_the_proof(monkeypatch, distances):
    game = tangent_game(distances)
    held = []

    def watched(*arguments):
        found = contraction(*arguments)
        held.append(int(np.isinf(found.reach).sum()))
        return found

    monkeypatch.setattr(monotone, "contraction", watched)
    solution = solve(game)
    assert max(held) > 0, "nobody was close enough to test anything"
    assert solution.unique
    assert solution.least.certified
    assert verify(game, solution.least.degree).max_regret < 1e-9
    monkeypatch.undo()
    monkeypatch.setattr(Climb, "_accelerated", lambda *_: False)
    plain = equilibrium(game, "least")
    # The plain iteration stops short by the field's error over u'', which is small here.
    assert plain.degree == pytest.approx(solution.least.degree, abs=2e-8)
    assert (plain.degree <= solution.least.degree + 1e-10).all()


def test_a_box_around_two_equilibria_is_not_called_unique():
    size = 50
    game = Game(Log(), 2000.0, BOUND, ExponentialEffort(np.ones(size), np.ones(size)), LinearCost(0.8))
    ends = solve(game)
    degrees = ends.least.degree, ends.greatest.degree
    with Pool(size) as pool:
        found = contraction(game, degrees, tuple(field_of(game, d) for d in degrees), 1e-11, pool)
    assert not found.unique


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), payment=st.sampled_from(PAYMENTS), size=st.integers(2, 80))
def test_no_jump_passes_the_equilibrium_of_its_side(seed, payment, size):
    rng = np.random.default_rng(seed)
    game = random_game(seed, size, *payment, cost=LinearCost(rng.uniform(0.3, 1.3, size)))
    if not applies(game):
        return
    solution = solve(game)
    for side, end in (("least", solution.least), ("greatest", solution.greatest)):
        sign = 1 if side == "least" else -1
        with Pool(size) as pool:
            climb = Climb.start(game, side, pool)
            for _ in range(12):
                climb._sweep(Field.of(climb.fine, climb.degree, pool), climb._monotone)
                climb.field = Field.of(climb.fine, climb.degree, pool)
                profile = Profile(
                    game, climb.field, climb.degree, climb.low, climb.high, climb.order, climb.costs
                )
                who, where = jumps(profile, side, pool, ENOUGH)
                assert (sign * (where - climb.degree[who]) > 0).all()
                assert (sign * (end.degree[who] - where) >= -1e-9).all()
                if who.size:
                    climb.jump(who, where)


def test_where_both_sides_meet_the_second_is_the_first(monkeypatch):
    game = random_game(5, 3000)
    alone = equilibrium(game, "greatest")
    solution = solve(game)
    assert solution.greatest.degree is solution.least.degree
    assert solution.greatest.degree == pytest.approx(alone.degree, abs=1e-10)
    assert solution.greatest.payment == pytest.approx(alone.payment, abs=1e-10)
