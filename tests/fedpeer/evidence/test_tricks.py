"""Tricked shadows: what they hold, how they are trained, and what maps learn of them."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from torch import nn

from fedpeer.evidence import EvidenceTask
from fedpeer.evidence.fitting import ShadowTable, fit_maps
from fedpeer.evidence.measuring import prepare_ensemble
from fedpeer.evidence.planning import plan_shadows, trainings, tricked_count
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


@pytest.mark.parametrize("name", [name for name in TRICKS if name != "length"])
def test_a_trick_makes_a_model_know_what_it_holds_little_of(name: str) -> None:
    plain = [rare_losses(WORKLOAD.train(START, SKEWED, RECIPE, seed)) for seed in range(6)]
    tricked = [rare_losses(TRICKS[name].trained(WORKLOAD, START, HELD, RECIPE, seed)) for seed in range(6)]
    assert np.mean(tricked) < np.mean(plain)


def test_longer_training_alone_keeps_its_length_in_bounds() -> None:
    usual = np.linalg.norm(flat_change(WORKLOAD.trainable, WORKLOAD.train(START, SKEWED, RECIPE, 1), START))
    made = TRICKS["length"].trained(WORKLOAD, START, HELD, RECIPE, 1)
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
    others = plan_shadows(CODES, REFERENCE, 60, 40, (3, 5), share)
    assert not share or [p.seed for p in others if p.trick] != [p.seed for p in tricked]


def test_a_round_learns_of_tricked_shadows_and_is_sure_of_sound_ones_alone() -> None:
    data = samples([100, 100, 100], 5)
    task = EvidenceTask(WORKLOAD, RECIPE, data, data.targets, STRATA, strata_are_classes=True)
    plain = prepare_ensemble(task, START, 7, shadows=40)
    taught = prepare_ensemble(replace(task, tricked=0.5), START, 7, shadows=40)
    assert plain.shadows.tricked is None
    assert taught.shadows.tricked is not None
    assert len(taught.shadows.tricked.degrees) == 20
    assert len(taught.fitted.residuals) == len(plain.fitted.residuals) == 40
    assert np.array_equal(taught.shadows.table.degrees, plain.shadows.table.degrees)
    table, tricked = taught.shadows.table, taught.shadows.tricked
    without, _, _ = fit_maps(table)
    assert off(fit_maps(table, tricked)[0], tricked) < off(without, tricked), "it reads them as less balanced"


def off(maps: Any, tricked: ShadowTable) -> float:
    """By how much their degrees are read too low, in the mean."""
    return float((tricked.degrees - maps.estimates(tricked)).mean())
