"""From shadows to the map of the degree: what wrong targets of some add is not held against models without any."""

from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest

from fedpeer.evidence.fitting import ShadowTable, fit_degree
from fedpeer.evidence.observing import Observation

pytestmark = pytest.mark.arithmetic

STRATA, SHADOWS, WIDTH = 4, 80, 16
REFERENCE = (Fraction(1, STRATA),) * STRATA
NAMES = ("loss", "gain", "spread")

#: What a model of nothing but wrong targets would lose of the loss of every stratum.
HARM = 4.0

Array = npt.NDArray[np.float64]


def observed(shares: Array, wrong: float, generator: np.random.Generator) -> Observation:
    """The losses of all strata rise with the degree, and with wrong targets."""
    degree = np.abs(shares - 1 / STRATA).sum() / 2
    loss = degree + HARM * wrong + generator.normal(size=STRATA) * 0.05
    features = np.column_stack([loss, 1 - loss, generator.normal(size=STRATA) * 0.05])
    outputs = np.zeros((1, 1), np.float32)
    update = generator.normal(size=WIDTH)
    return Observation(
        np.rint(features * 1e6).astype(np.int64), {"update": update}, np.ones(1), features[:, 1], outputs
    )


def off(seed: int, *, known: bool) -> tuple[float, float]:
    """By how much maps are off on average: on models with right targets, and on shadows with wrong ones that they have
    not seen."""
    generator = np.random.default_rng(seed)
    mixes = generator.dirichlet(np.full(STRATA, 1.5), SHADOWS + 60)
    wrong = np.where(np.arange(SHADOWS) % 2, generator.uniform(0, 0.04, SHADOWS), 0.0)
    shadows, models = mixes[:SHADOWS], mixes[SHADOWS:]
    seen = [observed(mix, part, generator) for mix, part in zip(shadows, wrong, strict=True)]
    halves, groups = np.arange(SHADOWS) // 2 % 2, np.arange(SHADOWS)
    table = ShadowTable.of(seen, NAMES, shadows, halves, groups, REFERENCE, wrong if known else None)
    fitted = fit_degree(table)
    errors = []
    for mix in models:
        each = observed(mix, 0.0, generator)
        vectors = {name: part[None] for name, part in each.vectors.items()}
        rows = np.rint(fitted.maps.features(each.features[None] / 1e6, vectors, REFERENCE)[0] * 1e6)
        degree = fitted.model.degree_of(fitted.model.regressors(rows.astype(np.int64).tolist())) / 1e6
        errors.append(degree - np.abs(mix - 1 / STRATA).sum() / 2)
    return float(np.mean(errors)), float(fitted.residuals[wrong > 0.02].mean())


def test_models_with_right_targets_are_told_as_if_no_shadow_had_wrong_ones() -> None:
    before, after = (
        np.mean([off(seed, known=known) for seed in range(2)], axis=0) for known in (False, True)
    )
    assert before[0] < -0.015, (
        "shadows with wrong targets seem more skewed, so that others are told too little"
    )
    assert abs(after[0]) < abs(before[0]) / 3
    # Those who have wrong targets are told too much, and what maps are off by on such shadows counts for the interval.
    assert after[1] > before[1] + 0.01


def test_a_shadow_is_not_corrected_by_what_it_shows_itself() -> None:
    """The slope on wrong targets is that of the others: one shadow that is far off moves all others and not itself."""
    generator = np.random.default_rng(1)
    mixes = generator.dirichlet(np.full(STRATA, 1.5), SHADOWS)
    wrong = np.where(np.arange(SHADOWS) % 2, 0.02, 0.0)
    wrong[1] = 0.04
    halves, groups = np.arange(SHADOWS) % 2, np.arange(SHADOWS)

    def added(beyond: float) -> Array:
        shadows = np.random.default_rng(2)
        seen = [observed(mix, part, shadows) for mix, part in zip(mixes, wrong, strict=True)]
        seen[1].features[:, 0] += round(beyond * 1e6)
        return ShadowTable.of(seen, NAMES, mixes, halves, groups, REFERENCE, wrong).added[:, 0]

    moved = np.abs(added(1.0) - added(0.0))
    assert moved[1] < moved[3] / 4
    assert (moved[wrong == 0] == 0).all()


def test_without_wrong_targets_nothing_is_added() -> None:
    generator = np.random.default_rng(3)
    mixes = generator.dirichlet(np.full(STRATA, 1.5), 20)
    seen = [observed(mix, 0.0, generator) for mix in mixes]
    halves, groups = np.arange(20) % 2, np.arange(20)
    assert not ShadowTable.of(seen, NAMES, mixes, halves, groups, REFERENCE).added.any()
    assert not ShadowTable.of(seen, NAMES, mixes, halves, groups, REFERENCE, np.zeros(20)).added.any()
