"""Shadow plans."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from fedpeer.evidence.planning import (
    BY_RECIPE,
    CALM_FAMILIES,
    calmer,
    later_shadows,
    most_shadows,
    plan_shadows,
    repeated_count,
    scarcity,
    trainings,
    variations,
    varying,
)
from fedpeer.learning.strata import balanced_halves, reference_over
from mechanism.terms import Recipe
from mechanism.variation import Allowed, Numbers, varied

CODES = np.random.default_rng(1).permutation(np.repeat(np.arange(5), [40, 40, 60, 20, 40]))
REFERENCE = reference_over(CODES, 5)


def plans(count: int = 64) -> list:
    return plan_shadows(CODES, REFERENCE, 50, count, (7,))


def test_halves_are_disjoint_and_balanced() -> None:
    first, second = balanced_halves(CODES, np.random.default_rng(0))
    assert sorted([*first, *second]) == list(range(len(CODES)))
    counts = np.bincount(CODES[first], minlength=5), np.bincount(CODES[second], minlength=5)
    assert np.abs(counts[0] - counts[1]).max() <= 1


def test_a_shadow_is_trained_on_one_half_at_its_mix() -> None:
    rows = [set(), set()]
    for plan in plans():
        rows[plan.half] |= set(plan.rows.tolist())
        assert len(plan.rows) == 50
        if plan.sound:
            assert tuple(np.bincount(CODES[plan.rows], minlength=5)) == plan.mix.counts
    assert not rows[0] & rows[1]


def test_about_half_of_the_sound_shadows_have_a_few_wrong_targets() -> None:
    sound = [plan for plan in plans(200) if plan.sound]
    wrong = np.array([(CODES[plan.rows] != CODES[plan.targets_from]).sum() for plan in sound])
    assert 40 < (wrong > 0).sum() < 100, (
        "half of those that are no anchors, less a quarter that rounds to none"
    )
    assert wrong.max() == 2
    for plan, count in zip(sound, wrong, strict=True):
        assert (plan.rows != plan.targets_from).sum() == count


def test_each_shadow_varies_what_the_terms_allow() -> None:
    recipe = Recipe("custom", 5, 20, "adam", Decimal("0.004"), 50)
    assert all(plan.recipe is None for plan in varying(plans(), recipe, (7, 1)))
    wide = replace(
        recipe,
        allowed=Allowed(
            batch_factor=Decimal(2),
            epochs=1,
            learning_rate=Decimal("0.25"),
            label_smoothing=Decimal("0.1"),
            augmentation=True,
        ),
    )
    found = [plan.recipe for plan in varying(plans(), wide, (7, 1)) if plan.recipe is not None]
    assert len(found) == sum(plan.anchor is None for plan in plans())
    for name, range_ in varied(wide).items():
        values = [getattr(each, name) for each in found]
        own = np.mean([value == getattr(recipe, name) for value in values])
        assert 0.45 < own < 0.7, f"half have the recipe's {name}, and some are drawn as near"
        if isinstance(range_, Numbers):
            ends = [np.mean([value == end for value in values]) for end in (range_.low, range_.high)]
            assert all(range_.low <= value <= range_.high for value in values)
            assert ends[1] > 0.1
            assert ends[0] > 0.1
    assert all(each.allowed is None for each in found)
    assert len({(each.epochs, each.batch_size, each.learning_rate) for each in found}) > 40, "each by itself"
    one, again, other = (varying(plans(), wide, (7, seed)) for seed in (1, 1, 2))
    assert [plan.recipe for plan in one] == [plan.recipe for plan in again]
    assert [plan.recipe for plan in one] != [plan.recipe for plan in other]
    columns = variations(one, wide)
    assert columns.shape == (len(one), 9), (
        "targets, batches, epochs and rates either way, smoothing, augmentation"
    )
    assert columns.min() == 0
    assert columns[:, 1:].max() == pytest.approx(1)
    for plan, row in zip(one, columns, strict=True):
        assert row[1:].any() == (plan.recipe is not None and plan.recipe != replace(wide, allowed=None))
        assert row[0] == pytest.approx((plan.rows != plan.targets_from).mean() / 0.04)
    assert variations(plans(), recipe).shape == (len(one), 1)


def test_every_family_and_every_number_of_strata_is_in_both_halves() -> None:
    sound = [plan for plan in plans(200) if plan.sound and plan.anchor is None]
    for family in range(4):
        assert {plan.half for plan in sound[family::4]} == {0, 1}
    few = {(plan.half, int((np.array(plan.mix.counts) > 0).sum())) for plan in sound[3::4]}
    assert {(half, kept) for half in (0, 1) for kept in (1, 2, 3)} <= few


@pytest.mark.parametrize("count", [2, 12, 30, 100])
def test_as_many_are_planned_as_are_said_to_be_trained(count: int) -> None:
    assert len(plans(count)) == trainings(count)
    assert sum(plan.sound for plan in plans(count)) == count
    again = sum(plan.keeps for plan in plans(count))
    assert trainings(count) + 2 * again == trainings(count, later=True)


def test_the_same_seed_gives_the_same_plans() -> None:
    for one, other in zip(plans(8), plans(8), strict=True):
        assert np.array_equal(one.rows, other.rows)
        assert one.seed == other.seed


def test_anchors_are_of_one_mix_and_half_and_of_other_samples_or_the_same() -> None:
    anchors = [plan for plan in plans() if plan.anchor is not None]
    assert [plan.anchor for plan in anchors] == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 4, 4]
    shares = []
    for k in range(5):
        first, second, *again = [plan for plan in anchors if plan.anchor == k]
        third = again[0] if again else first
        assert np.array_equal(first.rows, third.rows)
        assert not set(first.rows.tolist()) & set(second.rows.tolist())
        assert first.mix == second.mix == third.mix
        assert {plan.half for plan in (first, second, third)} == {k % 2}
        assert len({plan.seed for plan in (first, second, *again)}) == 3 - k % 2
        assert [plan.sound for plan in (first, second, *again)] == [True, True, False][: 3 - k % 2]
        assert tuple(np.bincount(CODES[second.rows], minlength=5)) == first.mix.counts
        of_half = {row for plan in plans() if plan.half != k % 2 for row in plan.rows.tolist()}
        assert not of_half & {row for plan in (first, second) for row in plan.rows.tolist()}
        shares.append(sum(float(p) ** 2 for p in first.mix.distribution))
    assert shares[0] == min(shares) < 0.23, "from the reference"
    assert shares[-1] > 0.99, "to a single stratum"


def test_flawed_shadows_look_balanced_by_their_targets_or_repeat_a_handful() -> None:
    flawed = [plan for plan in plans() if plan.flawed]
    assert len(flawed) == 16
    for k, plan in enumerate(flawed):
        if k % 2:
            assert len(set(plan.rows.tolist())) <= 10
            continue
        shown = np.bincount(CODES[plan.targets_from], minlength=5) / 50
        assert np.abs(shown - [float(q) for q in REFERENCE]).max() < 0.03
        assert (CODES[plan.rows] != CODES[plan.targets_from]).any()
        assert plan.mix.degree > Fraction(1, 20)


def test_scarcity_is_that_of_the_scarcest_stratum() -> None:
    assert scarcity(CODES, 50) == 0.2


def test_all_rounds_of_a_task_have_the_same_halves_and_each_its_own_shadows() -> None:
    rounds = [plan_shadows(CODES, REFERENCE, 50, 40, (7, start)) for start in (1, 2)]
    for half in (0, 1):
        mine, theirs = ({*rows} for rows in _rows(rounds, half))
        assert len(mine | theirs) <= (len(CODES) + 1) // 2
    assert not np.array_equal(rounds[0][0].rows, rounds[1][0].rows)


def _rows(rounds: list, half: int) -> list:
    return [[row for plan in plans_ if plan.half == half for row in plan.rows.tolist()] for plans_ in rounds]


@pytest.mark.parametrize("limit", [0, 1, 18, 19, 25, 131, 10**9])
@pytest.mark.parametrize("later", [False, True])
def test_the_most_shadows_within_a_limit_of_trainings(limit: int, later: bool) -> None:
    most = most_shadows(limit, later=later)
    assert most == 0 or trainings(most, later=later) <= limit
    assert limit < trainings(most + 1, later=later)


def test_later_rounds_have_half_the_shadows_but_never_fewer_than_a_fit_needs() -> None:
    assert [later_shadows(count) for count in (12, 17, 25, 100, 101)] == [12, 12, 13, 50, 51]


def test_repeated_shadows_have_a_part_of_their_samples_as_often_as_it_takes() -> None:
    repeated = [plan for plan in plans() if plan.repeated]
    assert (repeated_count(64), repeated_count(49)) == (13, 0)
    assert [plan.family for plan in repeated].count(BY_RECIPE) == 13
    assert {family: [plan.family for plan in repeated].count(family) for family in CALM_FAMILIES} == {
        2: 4,
        3: 5,
        4: 4,
    }
    assert {plan.half for plan in repeated} == {0, 1}
    for plan in repeated:
        assert len(plan.rows) == sum(plan.mix.counts)
        assert (plan.rows == plan.targets_from).all()
        assert len(np.unique(plan.rows)) <= round(0.85 * len(plan.rows))
        assert not plan.sound
        assert not plan.flawed


def test_each_calm_family_is_trained_by_a_calmer_recipe() -> None:
    recipe = Recipe("custom", 5, 20, "adam", Decimal("0.004"), 50)
    assert calmer(recipe, 0) == calmer(recipe, BY_RECIPE) == recipe
    made = [calmer(recipe, family) for family in CALM_FAMILIES]
    assert [(r.epochs, r.batch_size, r.learning_rate) for r in made] == [
        (5, 40, Decimal("0.004")), (5, 20, Decimal("0.003")), (4, 20, Decimal("0.004")),
    ]  # fmt: skip
    assert calmer(replace(recipe, epochs=1), 4).epochs == 1
