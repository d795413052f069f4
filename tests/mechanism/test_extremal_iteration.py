"""The accelerated climb: its proof near tangencies, its jumps, and one limit for both sides."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from mechanism import extremal_iteration
from mechanism.cost import LinearCost
from mechanism.effort import ExponentialEffort
from mechanism.equilibrium import equilibrium, solve
from mechanism.extremal_iteration import Climb, applies, contraction, peer_fields
from mechanism.game import Game
from mechanism.payment import Log
from mechanism.regret import jumps, regret, survey
from mechanism.verify import verify
from tests.mechanism.games import BOUND, PAYMENTS, random_game

pytestmark = [pytest.mark.arithmetic, pytest.mark.long]


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


@pytest.mark.parametrize("distances", [[1e-6], pytest.param([2e-6, 1e-5], marks=pytest.mark.extended)])
def test_participants_close_to_a_tangency_do_not_spoil_the_proof(monkeypatch, distances):
    game = tangent_game(distances)
    factors = []

    def watched(*arguments):
        factors.append(contraction(*arguments))
        return factors[-1]

    monkeypatch.setattr(extremal_iteration, "contraction", watched)
    solution = solve(game)
    assert max(factors) == np.inf, "nobody was close enough to test anything"
    assert min(factors) < 1
    assert solution.unique
    assert solution.least.certified
    assert verify(game, solution.least.degree).max_regret < 1e-9
    monkeypatch.undo()
    monkeypatch.setattr(Climb, "_limit", lambda *_: None)
    plain = equilibrium(game, "least")
    # The plain iteration stops short by the field's error over u'', which is small here.
    assert plain.degree == pytest.approx(solution.least.degree, abs=2e-8)
    assert (plain.degree <= solution.least.degree + 1e-10).all()


def test_a_box_around_two_equilibria_is_not_called_unique():
    size = 50
    game = Game(Log(), 2000.0, BOUND, ExponentialEffort(np.ones(size), np.ones(size)), LinearCost(0.8))
    ends = solve(game)
    degrees, field_of = (ends.least.degree, ends.greatest.degree), peer_fields(game)
    assert contraction(game, degrees, tuple(field_of(d) for d in degrees), 1e-11) >= 1


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
        climb = Climb(game, side)
        for sweep in range(12):
            climb.move_to(climb.stepped(climb.field, climb.degree))
            quick = survey(game, climb.field, climb.degree)
            # Searching everyone says more than the survey, and takes longer.
            full = regret(game, climb.field, climb.degree, 0.0) if sweep % 4 == 0 else None
            for found in filter(None, (quick, full)):
                who, where = jumps(game, side, climb.field, climb.degree, found)
                assert (sign * (where - climb.degree[who]) > 0).all()
                assert (sign * (end.degree[who] - where) >= -1e-9).all()
            if quick:
                climb.jump(quick)


def test_where_both_sides_meet_they_agree_far_below_what_is_called_the_same():
    solution = solve(random_game(5, 3000))
    assert solution.unique
    assert solution.greatest.degree == pytest.approx(solution.least.degree, abs=1e-10)
    assert solution.greatest.payment == pytest.approx(solution.least.payment, abs=1e-10)
