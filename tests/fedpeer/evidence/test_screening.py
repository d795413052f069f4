"""Limits that an honest model passes at a stated rate."""

import numpy as np
import pytest

from fedpeer.evidence.screening import SCORES, Figures, Tail, limit_at


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


@pytest.mark.parametrize("count", [30, 60])
def test_a_rate_beyond_the_scores_is_held_where_tails_fall_off(count: int) -> None:
    generator = np.random.default_rng(1)
    for draw in ("normal", "exponential"):
        scores = getattr(generator, draw)(size=(4_000, count + 1))
        misses = np.mean([row[-1] > limit_at(row[:-1], 0.01) for row in scores])
        assert misses < 0.02, draw


def test_a_finer_rate_has_a_higher_limit_and_beyond_all_scores() -> None:
    scores = np.random.default_rng(2).normal(size=2_500)
    limits = [limit_at(scores, rate) for rate in (0.1, 1e-2, 1e-3, 1e-4, 1e-5)]
    assert limits == sorted(limits)
    assert limits[-2] >= scores.max()


def test_equal_scores_have_a_limit() -> None:
    assert limit_at(np.zeros(40), 0.01) == 0
    assert Tail.of(np.zeros(40)).excess > 0


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
