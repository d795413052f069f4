"""How often a model saw its samples, where an update is what the mix pulls and the mean of what its samples do."""

from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest

from fedpeer.evidence.regression import Line
from fedpeer.evidence.straying import KEPT, LEAST_SOUND, Straying, Taught, fit_times, times_seen
from mechanism.degree_map import regressors
from mechanism.settlement import MICRO

pytestmark = pytest.mark.arithmetic

STRATA, SAMPLES, WIDTH, C = 4, 120, 500, Fraction(85, 100)
REFERENCE = (Fraction(1, STRATA),) * STRATA
PULLS = np.random.default_rng(1).normal(size=(STRATA, WIDTH)) * 2

Vector = npt.NDArray[np.float64]


def mixes(count: int, generator: np.random.Generator) -> Vector:
    found: Vector = generator.dirichlet(np.full(STRATA, 4.0), count)
    return found


def updates(mix: Vector, times: Vector, generator: np.random.Generator) -> Vector:
    """Samples' own parts average out over as many as are distinct; the order of training adds its own."""
    own = generator.normal(size=(len(mix), WIDTH)) * np.sqrt(times / SAMPLES)[:, None]
    found: Vector = np.sqrt(mix) @ PULLS + own + generator.normal(size=(len(mix), WIDTH)) * 0.1
    return found


def z_of(mix: Vector, generator: np.random.Generator) -> Vector:
    """Regressors by shares that are told with an error, and a feature that says nothing of samples."""
    shares = np.rint((mix + generator.normal(size=mix.shape) * 0.02) * MICRO).astype(np.int64)
    features = np.rint(generator.normal(size=(*mix.shape, 1)) * MICRO).astype(np.int64)
    rows = [
        regressors(REFERENCE, (0,), x, p) for x, p in zip(features.tolist(), shares.tolist(), strict=True)
    ]
    return np.array(rows, dtype=np.float64) / MICRO


def taught(
    sound: int, repeated: int, seed: int, shift: float = 0.0, shown: bool = True
) -> tuple[Straying, Taught]:
    """Args: shown: whether an update shows how often its samples were seen."""
    generator = np.random.default_rng(seed)
    mix = mixes(sound + repeated, generator)
    times = np.concatenate([np.ones(sound), 1 / generator.uniform(0.3, 0.85, repeated)])
    halves = np.arange(sound + repeated) % 2
    vectors = updates(mix, times if shown else np.ones(len(times)), generator) + shift
    straying = Straying.of(vectors[:sound], halves[:sound])
    beside = straying.of_half(vectors, halves)
    return straying, Taught(
        z_of(mix, generator), beside, times, (np.arange(len(times)) >= sound).astype(np.int64)
    )


def told(straying: Straying, lines: tuple[Line, ...], times: float) -> Vector:
    """Weights of models that saw each of their samples so often."""
    generator = np.random.default_rng(7)
    mix = mixes(200, generator)
    vectors = updates(mix, np.full(200, times), generator)
    x = np.column_stack([z_of(mix, generator), straying(vectors)])
    found = np.max([line(x) for line in lines], axis=0)
    weights: Vector = np.minimum(1, 1 / (float(C) * np.maximum(found, 1))) ** 3
    return weights


def test_who_repeats_a_half_loses_more_than_half_and_who_does_not_keeps_its_weight() -> None:
    straying, shadows = taught(100, 20, 3)
    lines = fit_times(shadows, (), STRATA, 1, C)
    assert len(lines) == 1
    assert told(straying, lines, 1).mean() > KEPT - 0.04
    assert told(straying, lines, 2).mean() < 0.45
    assert told(straying, lines, 3).mean() < 0.2


def test_where_nothing_is_shown_lines_cost_nobody_much() -> None:
    """A line of chance is off by as much as it reads, and its margin is taken in what it is off by."""
    for seed in range(6):
        straying, shadows = taught(100, 20, 20 + seed, shown=False)
        assert told(straying, fit_times(shadows, (), STRATA, 1, C), 1).mean() > KEPT - 0.04


def test_shadows_of_an_earlier_start_sharpen_what_few_new_ones_say() -> None:
    alone, joined = [], []
    for seed in range(4, 9):
        straying, new = taught(40, 3, seed)
        _, old = taught(100, 20, seed + 50, shift=0.3)
        both = (fit_times(new, carried, STRATA, 1, C) for carried in ((), (old,)))
        for found, lines in zip((alone, joined), both, strict=True):
            found.append(told(straying, lines, 2).mean())
            assert told(straying, lines, 1).mean() > KEPT - 0.04
    assert np.mean(joined) < np.mean(alone) - 0.05


def with_errors(of: Taught, limit: float, deviation: float, generator: np.random.Generator) -> Taught:
    """What those beyond a distance from the reference stray hangs on much else."""
    beside, skewed = of.beside.copy(), of.z[:, STRATA * 2] > limit
    beside[skewed, 0] += generator.normal(size=skewed.sum()) * deviation
    return Taught(of.z, beside, of.times, of.family)


def test_neither_the_half_near_the_reference_nor_the_other_pays_for_the_other() -> None:
    kept: list[tuple[float, float]] = []
    for seed in range(3, 9):
        generator = np.random.default_rng(seed)
        shadows, others = taught(100, 20, seed)[1], taught(100, 0, seed + 50)[1]
        limit = float(np.median(shadows.z[shadows.family == 0, STRATA * 2]))
        deviation = 2 * float(shadows.beside[:, 0].std())
        shadows, others = (with_errors(each, limit, deviation, generator) for each in (shadows, others))
        lines = fit_times(shadows, (), STRATA, 1, C)
        x = np.column_stack([others.z, others.beside])
        found = np.max([line(x) for line in lines], axis=0)
        weights = np.minimum(1, 1 / (float(C) * np.maximum(found, 1))) ** 3
        near = others.z[:, STRATA * 2] <= limit
        kept.append((weights[near].mean(), weights[~near].mean()))
    assert np.min(np.mean(kept, axis=0)) > KEPT - 0.04


def test_each_family_has_its_line_and_too_few_have_none() -> None:
    _, shadows = taught(60, 12, 6)
    family = shadows.family.copy()
    family[-6:] = 2
    both = fit_times(Taught(shadows.z, shadows.beside, shadows.times, family), (), STRATA, 1, C)
    assert len(both) == 2
    family[-6:] = 1
    family[-1] = 2
    assert len(fit_times(Taught(shadows.z, shadows.beside, shadows.times, family), (), STRATA, 1, C)) == 1
    assert fit_times(taught(60, 2, 6)[1], (), STRATA, 1, C) == ()
    assert fit_times(taught(LEAST_SOUND - 1, 12, 6)[1], (), STRATA, 1, C) == ()


def test_a_sample_is_seen_as_often_as_its_stratum_says() -> None:
    codes = np.array([0, 0, 0, 0, 1, 1])
    assert times_seen(np.array([0, 1, 4]), codes) == 1
    assert times_seen(np.array([0, 0, 1, 1]), codes) == 2
    # Twice in one stratum, once in the other; three of one sample and one of another are 10 / 4.
    assert times_seen(np.array([0, 0, 4, 5]), codes) == pytest.approx(1.5)
    assert times_seen(np.array([0, 0, 0, 1]), codes) == pytest.approx(2.5)


def test_what_mixes_pull_is_no_straying() -> None:
    generator = np.random.default_rng(8)
    mix = mixes(100, generator)
    straying = Straying.of(updates(mix, np.ones(100), generator), np.arange(100) % 2)
    near, far = (
        updates(each, np.ones(30), generator)
        for each in (np.full((30, STRATA), 0.25), generator.dirichlet(np.full(STRATA, 1.0), 30))
    )
    away = [np.square(each - straying.centres[0]).sum(axis=1).mean() for each in (near, far)]
    assert away[1] > 10 * away[0]
    assert straying(far)[:, 0].mean() < 2 * straying(near)[:, 0].mean()
