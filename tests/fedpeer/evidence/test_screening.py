"""Limits that an honest model passes at a stated rate."""

import numpy as np
import pytest

from fedpeer.evidence.observing import Observation
from fedpeer.evidence.screening import (
    RATE,
    SCORES,
    Figures,
    Tail,
    Usual,
    limit_at,
    limit_at_worst,
    limit_of_few_strata,
    significantly_lower,
)


@pytest.mark.parametrize("rate", [0.2, 0.05, 0.01])
@pytest.mark.parametrize("draw", ["normal", "exponential", "standard_cauchy"])
def test_a_new_score_exceeds_the_limit_at_the_rate_at_most(rate: float, draw: str) -> None:
    """Conformal: over draws of shadows and of a new score, whatever their distribution."""
    generator = np.random.default_rng(0)
    misses = []
    for _ in range(4_000):
        scores = getattr(generator, draw)(size=101)
        misses.append(scores[100] > limit_at(scores[:100], rate))
    assert np.mean(misses) < rate + 4 * np.sqrt(rate / len(misses))


@pytest.mark.parametrize("count", [4, 12, 30, 60])
def test_a_rate_beyond_the_scores_is_held_where_tails_fall_off(count: int) -> None:
    """Of few scores, too: by their mean excess alone four would let honest ones fail at 0.06."""
    generator = np.random.default_rng(1)
    for draw in ("normal", "exponential"):
        scores = getattr(generator, draw)(size=(4_000, count + 1))
        misses = np.mean([row[-1] > limit_at(row[:-1], 0.01) for row in scores])
        assert misses < 0.01 + 4 * np.sqrt(0.01 / len(scores)), draw


def test_a_finer_rate_has_a_higher_limit_and_beyond_all_scores() -> None:
    scores = np.random.default_rng(2).normal(size=2_500)
    limits = [limit_at(scores, rate) for rate in (0.1, 1e-2, 1e-3, 1e-4, 1e-5)]
    assert limits == sorted(limits)
    assert limits[-2] >= scores.max()


def test_equal_scores_have_a_limit() -> None:
    assert limit_at(np.zeros(40), 0.01) == 0
    assert limit_at(np.ones(1), 0.01) == 1
    assert Tail.of(np.zeros(40)).excess > 0


@pytest.mark.parametrize(("few", "many"), [(4, 18), (10, 38), (25, 100)])
def test_a_group_like_the_other_is_significantly_lower_at_the_rate_at_most(few: int, many: int) -> None:
    generator = np.random.default_rng(5)
    found = [
        significantly_lower(generator.standard_cauchy(few), generator.standard_cauchy(many))
        for _ in range(2_000)
    ]
    assert np.mean(found) < RATE + 4 * np.sqrt(RATE / len(found))
    assert significantly_lower(generator.normal(-4, size=few), generator.normal(size=many))
    assert not significantly_lower(generator.normal(size=many), generator.normal(-4, size=few))


def test_every_score_is_larger_the_less_a_model_resembles_the_shadows() -> None:
    usual = Figures(1.0, 0.5, 2.0, 0.4, 1.0, 0.1, -1)
    worse = (
        Figures(0.5, 0.5, 2.0, 0.4, 1.0, 0.1, -1),
        Figures(1.0, 0.2, 2.0, 0.4, 1.0, 0.1, -1),
        Figures(1.0, 0.5, 9.0, 0.4, 1.0, 0.1, -1),
        Figures(1.0, 0.5, 2.0, -0.4, 1.0, 0.1, -1),
        Figures(1.0, 0.5, 2.0, 0.4, 0.0, 0.1, -1),
        Figures(1.0, 0.5, 2.0, 0.4, 1.0, 0.9, -1),
    )
    assert len(worse) == len(SCORES)
    for place, figures in enumerate(worse):
        assert (figures.scores() > usual.scores()).tolist() == [i == place for i in range(len(SCORES))]
    doubled = Figures(2.0, 0.5, 2.0, 0.4, 1.0, 0.1, -1).scores()
    np.testing.assert_allclose(doubled[0], worse[0].scores()[0])


def test_the_limit_is_that_of_the_group_in_which_it_is_the_greatest() -> None:
    generator = np.random.default_rng(3)
    scores, degrees = generator.normal(size=90), np.arange(90) / 100
    scores[60:] += 4
    shares = np.full((90, 4), 0.25)
    assert limit_at_worst(scores, degrees) == limit_at(scores[60:], 0.01)
    few = np.arange(3, 90, 9)
    shares[few] = [0.97, 0.01, 0.01, 0.01]
    assert limit_of_few_strata(scores, shares) == limit_at(scores[few], 0.01)


def test_a_gain_is_held_against_what_shadows_of_the_same_strata_gain() -> None:
    """The start knows stratum 2 well: who has nothing else gains little, and as much as is usual."""
    generator = np.random.default_rng(4)
    shares = generator.dirichlet(np.full(3, 0.5), 60)
    usual_gains = np.array([1.0, 0.5, 0.1])

    def seen(mix: np.ndarray, factor: float = 1.0) -> Observation:
        gains = factor * np.where(mix > 0.05, usual_gains, -3.0)
        vectors = {"update": generator.normal(size=8)}
        return Observation(
            np.zeros((3, 1), np.int64), vectors, np.zeros(4), gains, np.zeros((1, 1), np.float32)
        )

    usual = Usual.of([seen(mix) for mix in shares], shares, shares)
    for stratum in range(3):
        # What it seems to have is told with errors, and other strata lose much.
        mix = np.where(np.arange(3) == stratum, 0.9, 0.05)
        assert 0.8 < usual.improvement(seen(np.eye(3)[stratum]), mix) < 1.2
        assert usual.improvement(seen(np.eye(3)[stratum], 0.1), mix) < 0.15
