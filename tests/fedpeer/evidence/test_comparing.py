"""What a likeness says of samples in common, in a world in which a model is the mean of what its samples are."""

from dataclasses import replace
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import pytest

from fedpeer.evidence.comparing import STEPS, Anchor, Comparison, fit_comparison, likeness
from fedpeer.evidence.comparing import _deviations as deviations
from fedpeer.evidence.comparing import _same as same_of
from fedpeer.evidence.comparing import _scaled as scaled
from fedpeer.evidence.observing import Observation
from fedpeer.evidence.planning import plan_shadows
from fedpeer.evidence.regression import micro
from fedpeer.evidence.screening import RATE
from fedpeer.learning.partition import majority_minority
from mechanism.evidence import ONE_MODEL

pytestmark = pytest.mark.arithmetic

STRATA, SAMPLES, WIDTH = 4, 80, 300
REFERENCE = (Fraction(1, STRATA),) * STRATA
CODES = np.repeat(np.arange(STRATA), 60)
PULLS = np.random.default_rng(1).normal(size=(STRATA, WIDTH))
#: Of the samples of D_c, and of the participants'.
OWN, FOREIGN = (np.random.default_rng(seed).normal(size=(len(CODES), WIDTH)) * 4 for seed in (2, 3))


def seen(
    codes: npt.NDArray[np.int64], own: npt.NDArray[np.float64], generator: np.random.Generator
) -> Observation:
    update = PULLS[codes].mean(axis=0) + own.mean(axis=0) + generator.normal(size=WIDTH) * 0.05
    outputs = np.resize(update, (len(CODES), 2)).astype(np.float32)
    return Observation(
        np.zeros((STRATA, 1), np.int64), {"update": update}, np.zeros(1), np.zeros(STRATA), outputs
    )


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    generator = np.random.default_rng(4)
    plans = plan_shadows(CODES, REFERENCE, SAMPLES, 60, (5,))
    every = [(plan, seen(CODES[plan.rows], OWN[plan.rows], generator)) for plan in plans]
    sound = [pair for pair in every if pair[0].sound]
    shares = np.array([[float(p) for p in plan.mix.distribution] for plan, _ in sound])
    anchors = []
    for k in sorted({plan.anchor for plan, _ in every if plan.anchor is not None}):
        of = [pair for pair in every if pair[0].anchor == k]
        mix = np.array([float(p) for p in of[0][0].mix.distribution])
        distinct = min(len(np.unique(plan.rows)) for plan, _ in of)
        anchors.append(Anchor(mix, of[0][0].half, distinct, tuple(each for _, each in of)))
    halves = np.array([plan.half for plan, _ in sound])
    return fit_comparison(
        [each for _, each in sound], shares, halves, CODES, anchors, samples=SAMPLES, classifier=False, seed=0
    )


def rows_of(majority: int, degree: Fraction, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    counts = majority_minority(REFERENCE, SAMPLES, majority=majority, degree=degree).counts
    return np.concatenate(
        [generator.choice(np.flatnonzero(s == CODES), n, replace=n > 60) for s, n in enumerate(counts)]
    )


def told(
    comparison: Comparison, one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]
) -> tuple[float, float, float]:
    """Likeness of participants with these samples, and that of other and of the same samples at their mixes."""
    generator = np.random.default_rng(6)
    mixes = [np.bincount(CODES[rows], minlength=STRATA) / len(rows) for rows in (one, other)]
    left = [
        comparison.left(seen(CODES[rows], FOREIGN[rows], generator), mix)
        for rows, mix in zip((one, other), mixes, strict=True)
    ]
    alike = float(likeness(left[0], left[1][0][None], left[1][1][None])[0])
    r = float(comparison.common(mixes[0][None], mixes[1][None])[0, 0])
    return alike, *(float(np.interp(r, STEPS, table)) for table in (comparison.apart, comparison.same))


def test_a_likeness_lies_between_that_of_other_samples_and_of_the_same_by_what_is_in_common(
    comparison: Comparison,
) -> None:
    generator = np.random.default_rng(7)
    for degree in (Fraction(0), Fraction(1, 4)):
        base = rows_of(1, degree, generator)
        for share, least, most in ((0.0, -0.5, 0.25), (0.5, 0.3, 0.7), (1.0, 0.85, 1.15)):
            kept = generator.permutation(base)[: round(share * len(base))]
            fresh = np.setdiff1d(rows_of(1, degree, generator), base)
            rest = np.concatenate(
                [
                    fresh[CODES[fresh] == s][: int((CODES[base] == s).sum() - (CODES[kept] == s).sum())]
                    for s in range(STRATA)
                ]
            )
            alike, apart, same = told(comparison, base, np.concatenate([kept, rest]).astype(np.int64))
            assert least <= (alike - apart) / (same - apart) <= most, (degree, share)


def test_nobody_of_a_single_stratum_is_linked_for_it(comparison: Comparison) -> None:
    generator = np.random.default_rng(8)
    of_one = generator.permutation(np.flatnonzero(CODES == 2))
    alike, apart, _ = told(comparison, of_one[:30], of_one[30:])
    assert alike - apart < comparison.map(10).link / 1e6


def test_the_limit_rises_with_the_number_of_pairs_and_is_that_of_the_shadows(comparison: Comparison) -> None:
    links = [comparison.map(n).link for n in (2, 10, 50, 300)]
    assert links == sorted(links)
    assert links[0] < links[-1]
    beyond = (comparison.spread > links[0] / 1e6).mean()
    assert beyond <= 0.01


def test_without_anchors_nothing_but_a_copy_is_linked(comparison: Comparison) -> None:
    generator = np.random.default_rng(9)
    plans = [plan for plan in plan_shadows(CODES, REFERENCE, SAMPLES, 20, (5,)) if plan.sound]
    shadows = [seen(CODES[plan.rows], OWN[plan.rows], generator) for plan in plans]
    shares = np.array([[float(p) for p in plan.mix.distribution] for plan in plans])
    halves = np.array([plan.half for plan in plans])
    found = fit_comparison(shadows, shares, halves, CODES, [], samples=SAMPLES, classifier=False, seed=0).map(
        50
    )
    assert min(found.apart) + found.link > ONE_MODEL


def test_what_an_anchor_shows_is_scaled_to_what_a_participant_has() -> None:
    assert scaled(0.3, 1.0) == pytest.approx(0.3)
    assert scaled(0.5, 3.0) == pytest.approx(0.75)  # odds of 1, then of 3
    assert (scaled(-0.2, 3.0), scaled(0.0, 3.0)) == (pytest.approx(-0.6), 0.0)
    # Common error 0.2, samples 0.7, training 0.1: half the error, half as much of twice as many samples.
    assert same_of(0.9, 0.2, 0.5) == pytest.approx((0.1 + 0.35) / (0.1 + 0.35 + 0.1))
    assert same_of(0.9, 0.0, 1.0) == pytest.approx(0.9)


def test_who_varies_the_recipe_the_same_way_is_not_linked_for_it() -> None:
    """A longer training, say, moves every model the same way, on whichever samples; here by a direction of its own."""
    generator, way = np.random.default_rng(4), 2 * np.random.default_rng(11).normal(size=WIDTH)

    def moved(rows: npt.NDArray[np.int64], own: npt.NDArray[np.float64], by: float) -> Observation:
        found = seen(CODES[rows], own[rows], generator)
        update = found.vectors["update"] + by * way
        outputs = np.resize(update, found.outputs.shape).astype(np.float32)
        return replace(found, vectors={"update": update}, outputs=outputs)

    plans = [
        plan
        for plan in plan_shadows(CODES, REFERENCE, SAMPLES, 60, (5,))
        if plan.sound and plan.anchor is None
    ]
    by = generator.uniform(size=len(plans))
    shadows = [moved(plan.rows, OWN, each) for plan, each in zip(plans, by, strict=True)]
    shares = np.array([[float(p) for p in plan.mix.distribution] for plan in plans])
    halves = np.array([plan.half for plan in plans])
    one, other = rows_of(1, Fraction(0), generator), rows_of(1, Fraction(0), generator)
    other = np.setdiff1d(other, one)
    found = []
    for columns in (None, by[:, None]):
        comparison = fit_comparison(
            shadows, shares, halves, CODES, [], samples=SAMPLES, classifier=False, seed=0, variations=columns
        )
        left = [
            comparison.left(moved(rows, FOREIGN, 1.0), np.bincount(CODES[rows], minlength=STRATA) / len(rows))
            for rows in (one, other)
        ]
        found.append(float(likeness(left[0], left[1][0][None], left[1][1][None])[0]))
    assert found[0] > 0.5, "half of what all do is in the mean; the rest is alike"
    assert found[1] < found[0] / 2


def test_what_either_of_a_pair_adds_is_told_from_what_is_the_pairs() -> None:
    generator = np.random.default_rng(12)
    for each, of_pairs in ((0.0, 0.1), (0.05, 0.1), (0.2, 0.02)):
        rows, columns = (each * generator.normal(size=400) for _ in range(2))
        found = deviations(rows[:, None] + columns + of_pairs * generator.normal(size=(400, 400)))
        assert found == pytest.approx((each, of_pairs), rel=0.1, abs=0.005)
    assert deviations(np.array([[0.3]])) == (0.0, 0.0)
    assert deviations(np.array([[0.3, 0.1]]))[1] == 0.0


def test_a_groups_limits_are_what_its_means_are_off_by(comparison: Comparison) -> None:
    """By the text's formula, for three of five, of whom six groups of one may be found, and three sizes: where most is
    the pairs' own, and where most is what all have in common."""
    z, e = NormalDist(), float(np.sqrt(1 + 1 / 2))
    d, rate = float(np.sqrt(1 / 3 + 1 / (3 * 2))), RATE / (2 * 3 * 6)
    for rho, sigma, first in ((0.02, 0.1, True), (0.1, 0.02, False)):
        given = replace(comparison, of_each=rho, of_pairs=sigma)
        together = z.inv_cdf(1 - rate) * float(np.hypot(rho * e, sigma * d))
        apart = z.inv_cdf(1 - RATE / 4) * rho * e + z.inv_cdf(1 - rate / 2) * sigma * d
        assert (together < apart) == first
        assert given.group_limit(3, 5) == pytest.approx(min(together, apart))
        for beyond, pairs in ((-0.1, 1 / 2), (0.0, 1 / 2), (0.5, 3 / 4), (1.0, 1.0), (2.0, 1.0)):
            member = z.inv_cdf(1 - RATE / 4) * float(np.hypot(rho * e, sigma * np.sqrt(pairs)))
            assert given.member_limit(3, 5, beyond) == pytest.approx(member)
        assert given.map(5).group == tuple(micro(given.group_limit(size, 5)) for size in (3, 4))
    assert given.map(3).group == (), "nobody is outside"
    assert given.map(1000).group[-1] == micro(given.group_limit(64, 1000)), (
        "no size has a rate that is nothing"
    )


def test_r_is_a_part_of_1_and_grows_with_what_no_shadow_has(comparison: Comparison) -> None:
    even, single = np.full(STRATA, 1 / STRATA), np.eye(STRATA)[0]
    r = comparison.common(np.array([even, single]), np.array([even, single]))
    assert ((r >= 0) & (r <= 1)).all()
    assert r[0, 0] < r[1, 1]
