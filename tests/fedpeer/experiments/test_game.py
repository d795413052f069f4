"""The equilibrium that the figures show: no trend, and no deviation that pays."""

from fractions import Fraction

import numpy as np
import pytest

from fedpeer.experiments.cells import compute
from fedpeer.experiments.figures.incentive import ARMS, arm_counts, purchased_samples
from fedpeer.experiments.game import (
    DEVIATIONS,
    START,
    costs,
    deviation_degrees,
    deviation_utilities,
    exact,
    play,
    population_game,
)
from fedpeer.experiments.learner import best_offer, offers
from fedpeer.experiments.populations import PARTITIONS, SHARES, Partition
from fedpeer.experiments.settings import PARTICIPANTS, Settings
from fedpeer.experiments.settlements import settlement_parameters
from fedpeer.experiments.statistics import slope_interval
from fedpeer.learning.partition import uniform_reference
from mechanism.degree import noniid_degree
from mechanism.payment import Log
from mechanism.settlement import MICRO

pytestmark = pytest.mark.arithmetic

SETTINGS = Settings("fashion-mnist")
EACH = pytest.mark.parametrize("partition", PARTITIONS.values(), ids=PARTITIONS)


@EACH
def test_no_deviation_on_the_grid_beats_the_equilibrium_by_calculation(partition: Partition) -> None:
    chosen = play(partition, SETTINGS)
    assert len(DEVIATIONS) == 21
    assert chosen.equilibrium.certified
    for k in range(PARTICIPANTS):
        degrees = deviation_degrees(chosen.game, k)
        assert degrees[0] == pytest.approx(0.8)
        assert (np.diff(degrees) < 0).all()
        utilities = deviation_utilities(chosen.game, chosen.equilibrium.degree, k, degrees)
        assert utilities.max() <= chosen.equilibrium.utility[k] + chosen.equilibrium.certificate.max_regret


@EACH
def test_a_profile_beside_the_equilibrium_is_beaten_on_the_same_grid(partition: Partition) -> None:
    """The check above can fail: everyone at half the effort leaves gains on the grid."""
    chosen = play(partition, SETTINGS)
    half = np.array(
        [float(deviation_degrees(chosen.game, k, [Fraction(1, 4)])[0]) for k in range(PARTICIPANTS)]
    )
    gains = [
        deviation_utilities(chosen.game, half, k, deviation_degrees(chosen.game, k)).max()
        - deviation_utilities(chosen.game, half, k, half[k : k + 1])[0]
        for k in range(PARTICIPANTS)
    ]
    assert max(gains) > 1e-3


@EACH
def test_label_counts_realise_the_equilibrium_within_a_sample(partition: Partition) -> None:
    chosen = play(partition, SETTINGS)
    for counts, degree in zip(chosen.counts, chosen.equilibrium.degree, strict=True):
        realised = float(noniid_degree(counts, uniform_reference(10)))
        assert abs(realised - degree) <= 1 / SETTINGS.samples


@EACH
def test_utilities_at_equilibrium_have_no_trend(partition: Partition) -> None:
    """Slopes over 60 settled rounds of 10 tasks: their 95 % intervals hold 0 as often as chance has it."""
    chosen = play(partition, SETTINGS)
    parameters = settlement_parameters([chosen.counts], Q=chosen.game.Q, rounds=60, repetitions=10, seed=3)
    tasks = np.array(compute("settlement", parameters, "cpu")[0]["paid_micro"])[0] / MICRO
    rounds = np.arange(60.0)
    slopes = [
        slope_interval(rounds.tolist(), task[:, k].tolist()) for task in tasks for k in range(PARTICIPANTS)
    ]
    # Of 100 intervals 5 are expected to miss; 13 or more have a probability of 0.2 %.
    assert sum(not i.low <= 0 <= i.high for i in slopes) <= 12
    centred = tasks - tasks.mean(axis=1, keepdims=True)
    pooled = slope_interval(
        np.tile(np.repeat(rounds, PARTICIPANTS), len(tasks)).tolist(), centred.ravel().tolist()
    )
    # Over all rounds together less than 0.02 credits, of payments near one credit.
    assert max(abs(pooled.low), abs(pooled.high)) * 60 < 0.02
    paid = tasks.reshape(-1, PARTICIPANTS)
    # The expectation is the equilibrium's, within four standard errors.
    error = paid.std(axis=0, ddof=1) / np.sqrt(len(paid))
    assert (np.abs(paid.mean(axis=0) - chosen.equilibrium.payment) < 4 * error + 2e-3).all()


def test_settled_rounds_are_reproducible_and_differ_between_repetitions() -> None:
    parameters = settlement_parameters(
        [play(SHARES, SETTINGS).counts], Q=1000.0, rounds=3, repetitions=2, seed=0
    )
    one, again = (compute("settlement", parameters, "cpu")[0] for _ in range(2))
    assert one == again
    assert one["paid_micro"][0][0] != one["paid_micro"][0][1]


def test_the_log_payments_best_q_is_the_least_that_keeps_everyone() -> None:
    best = best_offer()
    assert best.on_boundary
    assert best.profile.utility.min() >= 0
    assert best.payoff == max(o.payoff for o in offers("log") if o.feasible)
    # The equilibrium is that of the utility figures: Q drops out.
    np.testing.assert_allclose(best.profile.degree, play(SHARES, SETTINGS).equilibrium.degree, atol=1e-9)


def test_arms_differ_in_what_the_money_buys() -> None:
    reference = uniform_reference(10)
    degrees = {
        arm: [float(noniid_degree(counts, reference)) for counts in arm_counts(SETTINGS, arm)] for arm in ARMS
    }
    sizes = {arm: [sum(counts) for counts in arm_counts(SETTINGS, arm)] for arm in ARMS}
    assert degrees["no payment"] == pytest.approx([0.8] * 10)
    assert degrees["sample count"] == pytest.approx([0.8] * 10, abs=0.002)
    assert max(degrees["equilibrium"]) < 0.6
    assert sizes["no payment"] == sizes["equilibrium"] == [500] * 10
    assert sum(sizes["sample count"]) > 5_000


@pytest.mark.parametrize("budget", [0.0, 0.5, 3.6, 100.0])
def test_purchased_samples_stay_within_the_budget_and_the_double(budget: float) -> None:
    sizes = np.array(purchased_samples(budget, 500))
    sold = (sizes - 500) / 500
    sellers = costs()[sold > 0]
    assert (sizes <= 1_000).all()
    if sellers.size:
        assert float(sellers.max() * sold.sum()) <= budget + 1e-9
    assert sold.sum() == (0 if budget == 0 else pytest.approx(10) if budget == 100 else sold.sum())


def test_degrees_are_written_as_rationals_of_six_digits() -> None:
    assert exact(np.array([0.1234567, 0.8])) == [Fraction(123457, 10**6), START]


def test_the_game_is_the_papers_constants() -> None:
    game = population_game(SHARES)
    assert isinstance(game.payment, Log)
    assert (game.bound.phi, game.bound.upsilon) == (300, 200)
    assert game.start == pytest.approx([0.8] * 10)
