"""Tricked shadows: what they hold, how they are trained, and what is learnt of them."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from torch import nn

from fedpeer.evidence import EvidenceTask
from fedpeer.evidence.levelling import Levels, fit_level
from fedpeer.evidence.measuring import prepare_ensemble
from fedpeer.evidence.planning import plan_shadows, trainings, tricked_count
from fedpeer.evidence.regression import Line
from fedpeer.evidence.sketch import Array
from fedpeer.evidence.tricks import TRICKS, Held, adjusted, output_bias, resized
from fedpeer.learning.samples import Samples
from fedpeer.learning.workloads.protocol import flat_change
from fedpeer.learning.workloads.torch import TorchWorkload
from mechanism.terms import Recipe

pytestmark = pytest.mark.arithmetic

STRATA = 3
REFERENCE = (Fraction(1, STRATA),) * STRATA
RECIPE = Recipe("custom", 6, 10, "adam", Decimal("0.02"), 60)


def samples(counts: list[int], seed: int) -> Samples:
    codes = np.repeat(np.arange(STRATA), counts)
    inputs = np.random.default_rng(seed).normal(size=(len(codes), 4)) + 2 * np.eye(STRATA, 4)[codes]
    return Samples(inputs.astype(np.float32), codes)


WORKLOAD = TorchWorkload(lambda: nn.Linear(4, STRATA), classes=STRATA)
START = WORKLOAD.build(0)
SKEWED = samples([46, 10, 4], 1)
HELD = Held(SKEWED, SKEWED.targets, REFERENCE)


def rare_losses(model: Any) -> float:
    """Mean loss on the two strata of which little is held."""
    seen = samples([0, 200, 200], 2)
    return float(WORKLOAD.judge(model, seen).losses.mean())


@pytest.mark.parametrize("name", TRICKS)
def test_a_trick_makes_a_model_know_what_it_holds_little_of(name: str) -> None:
    plain = [rare_losses(WORKLOAD.train(START, SKEWED, RECIPE, seed)) for seed in range(6)]
    tricked = [rare_losses(TRICKS[name].trained(WORKLOAD, START, HELD, RECIPE, seed)) for seed in range(6)]
    assert np.mean(tricked) < np.mean(plain)


def test_longer_training_keeps_its_length_in_bounds() -> None:
    usual = np.linalg.norm(flat_change(WORKLOAD.trainable, WORKLOAD.train(START, SKEWED, RECIPE, 1), START))
    for seed in range(4):
        made = TRICKS["repeat"].trained(WORKLOAD, START, HELD, RECIPE, seed)
        assert 0.6 < np.linalg.norm(flat_change(WORKLOAD.trainable, made, START)) / usual < 1.5


def test_the_same_seed_gives_the_same_model() -> None:
    one, again, other = (TRICKS["repeat"].trained(WORKLOAD, START, HELD, RECIPE, s) for s in (1, 1, 2))
    assert all(np.array_equal(one[name], again[name]) for name in one)
    assert any(not np.array_equal(one[name], other[name]) for name in one)


def test_a_bias_is_moved_where_there_is_one_and_changes_are_resized() -> None:
    assert output_bias(WORKLOAD, START) == "bias"
    moved = adjusted(START, "bias", HELD, 1.0)["bias"] - START["bias"]
    assert (np.diff(moved) > 0).all(), "the rarer, the higher"
    model = WORKLOAD.train(START, SKEWED, RECIPE, 1)
    half = flat_change(WORKLOAD.trainable, resized(WORKLOAD, START, model, 0.5), START)
    assert np.allclose(half, flat_change(WORKLOAD.trainable, model, START) / 2, atol=1e-6)
    without = TorchWorkload(lambda: nn.Linear(4, STRATA, bias=False), classes=STRATA)
    TRICKS["logits"].trained(without, without.build(0), HELD, RECIPE, 1)


CODES = np.repeat(np.arange(STRATA), 60)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5])
def test_as_many_are_planned_as_are_asked_for_and_all_others_are_the_same(share: float) -> None:
    plain, plans = (plan_shadows(CODES, REFERENCE, 60, 40, (3, 4), of) for of in (0.0, share))
    tricked = [plan for plan in plans if plan.trick]
    assert len(tricked) == tricked_count(40, share) == 40 * share
    assert len(plans) == trainings(40, tricked=share)
    for one, other in zip(plain, plans, strict=False):
        assert (one.seed, one.trick) == (other.seed, "")
        assert np.array_equal(one.rows, other.rows)
    assert len({plan.trick for plan in tricked}) == (len(TRICKS) if share else 0), "each in its turn"
    for plan in tricked:
        assert not any([plan.sound, plan.flawed, plan.repeated, plan.keeps])
        assert tuple(np.bincount(CODES[plan.rows], minlength=STRATA)) == plan.mix.counts
        assert 1 / 8 <= plan.mix.degree / (1 - min(REFERENCE)) <= 5 / 8
    others = plan_shadows(CODES, REFERENCE, 60, 40, (3, 5), share)
    assert not share or [p.seed for p in others if p.trick] != [p.seed for p in tricked]


def test_samples_so_few_that_no_mix_is_between_the_ends_are_planned_too() -> None:
    two = (Fraction(1, 2), Fraction(1, 2))
    plans = plan_shadows(np.repeat([0, 1], 60), two, 2, 12, (3, 4), 0.5)
    assert sum(bool(plan.trick) for plan in plans) == tricked_count(12, 0.5)


def test_a_round_learns_of_tricked_shadows_and_reads_degrees_from_sound_ones_alone() -> None:
    data = samples([160, 160, 160], 5)
    task = EvidenceTask(
        WORKLOAD, replace(RECIPE, epochs=1), data, data.targets, STRATA, strata_are_classes=True
    )
    plain = prepare_ensemble(task, START, 7, shadows=60)
    taught = prepare_ensemble(replace(task, tricked=0.5), START, 7, shadows=60)
    assert plain.shadows.tricked is None
    assert taught.shadows.tricked is not None
    assert len(taught.shadows.tricked.degrees) == 30
    assert taught.fitted.model == plain.fitted.model
    assert len(plain.times) <= len(taught.times) <= len(plain.times) + 1


def levels(count: int, off: float, seed: int) -> Levels:
    """Shadows of which a tenth of the numbers tells tricked ones, by `off` deviations each."""
    generator = np.random.default_rng(seed)
    sound, tricked = (generator.normal(size=(n, 20)) for n in (count, count // 2))
    tricked[:, :2] += off
    return Levels(sound, tricked, generator.uniform(size=count))


def kept(line: Line, x: Array) -> Array:
    """The weight that a line to y leaves, where 0.85 of the recipe's samples are enough."""
    return np.minimum(1, 1 / (0.85 * np.maximum(line(x), 1))) ** 3


def test_who_follows_the_recipe_keeps_its_weight_and_who_fills_up_loses_it() -> None:
    [line] = fit_level(levels(100, 2.5, 1), [], Fraction(85, 100))
    fresh = levels(4_000, 2.5, 2)
    assert kept(line, fresh.sound).mean() > 0.97
    assert kept(line, fresh.tricked).mean() < 0.8
    assert np.median(kept(line, fresh.sound)) == 1


def test_tricks_that_look_like_sound_shadows_cost_nobody_anything() -> None:
    assert [fit_level(levels(100, 0.0, seed), [], Fraction(85, 100)) for seed in range(8)] == [()] * 8


def test_earlier_rounds_teach_too_wherever_their_starts_lie() -> None:
    own, before = levels(40, 2.5, 1), levels(100, 2.5, 2)
    moved = replace(before, sound=before.sound + 7, tricked=before.tricked + 7)
    fresh = levels(4_000, 2.5, 3)
    alone, near, far = (fit_level(own, each, Fraction(85, 100))[0] for each in ([], [before], [moved]))
    assert np.allclose(near.coefficients, far.coefficients)
    assert near.intercept == pytest.approx(far.intercept)
    lost = [float(1 - kept(line, fresh.tricked).mean()) for line in (alone, near)]
    assert lost[1] > lost[0]


def test_few_shadows_teach_nothing() -> None:
    assert fit_level(levels(30, 2.5, 1), [], Fraction(85, 100)) == ()
