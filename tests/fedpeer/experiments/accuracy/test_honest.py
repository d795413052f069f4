"""Honest participants whose training has something beside the recipe."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedpeer.cli.arena import arena
from fedpeer.cli.errors import CommandError
from fedpeer.experiments.accuracy.honest import (
    HABITS,
    Habit,
    HonestResult,
    honest_cell,
    honest_cells,
    train_with,
)
from fedpeer.experiments.accuracy.tasks import TASKS
from fedpeer.experiments.accuracy.trial import Trial
from fedpeer.learning.workloads.torch import TorchWorkload

pytestmark = pytest.mark.arithmetic


@pytest.fixture(scope="module")
def trial() -> Trial:
    return Trial(TASKS["digits"], 0, 0)


def trained(trial: Trial, habit: Habit) -> dict[str, np.ndarray]:
    assert isinstance(trial.workload, TorchWorkload)
    samples = trial.parts.pool.select(np.arange(100))
    return train_with(trial.workload, trial.start, samples, trial.recipe, 3, habit)


def far(trial: Trial, one: dict[str, Any], other: dict[str, Any]) -> float:
    """Over the length of the first one's update."""
    names = trial.workload.trainable
    change = np.concatenate([np.ravel(one[n] - other[n]) for n in names])
    update = np.concatenate([np.ravel(one[n] - trial.start[n]) for n in names])
    return float(np.linalg.norm(change) / np.linalg.norm(update))


def test_without_a_habit_the_loop_is_the_recipes(trial: Trial) -> None:
    samples = trial.parts.pool.select(np.arange(100))
    by_recipe = dict(trial.workload.train(trial.start, samples, trial.recipe, 3))
    own = trained(trial, HABITS["recipe"])
    assert far(trial, by_recipe, own) < 0.05
    assert {n: a.dtype for n, a in own.items()} == {n: a.dtype for n, a in by_recipe.items()}


@pytest.mark.parametrize(
    "name", [name for name in HABITS if name not in ("recipe", "overlap", "label-noise")]
)
def test_a_habit_changes_what_is_sent(trial: Trial, name: str) -> None:
    assert far(trial, trained(trial, HABITS["recipe"]), trained(trial, HABITS[name])) > 0


def test_eight_bits_leave_255_levels(trial: Trial) -> None:
    sent = trained(trial, HABITS["8-bits"])
    for name in trial.workload.trainable:
        update = (sent[name] - trial.start[name]).astype(np.float64)
        steps = update / (np.abs(update).max() / 127)
        assert np.abs(steps - np.rint(steps)).max() < 0.05, name


@pytest.mark.extended
def test_a_start_has_counts_of_every_habit_and_starts_are_summed() -> None:
    (cell,) = honest_cells(["digits"], [0], shadows=12, participants=2, starts=["fresh"])
    found = honest_cell(cell.parameters, "cpu")
    assert found.keys() == HABITS.keys()
    assert all(each["of"] == 2 and 0 <= each["hurt"] <= 2 for each in found.values())
    twice = HonestResult([(cell, found), (replace(cell), found)]).record()["digits fresh"]
    assert twice["habits"]["recipe"]["of"] == 4
    assert twice["habits"]["batch-x2"]["hurt"] == 2 * found["batch-x2"]["hurt"]


@pytest.mark.extended
def test_terms_that_allow_habits_have_shadows_that_vary(trial: Trial) -> None:
    plain, wide = (
        honest_cells(["digits"], [0], shadows=12, participants=2, starts=["fresh"], allow=allow)[0]
        for allow in (False, True)
    )
    assert plain.key != wide.key
    one, other = (honest_cell(cell.parameters, "cpu") for cell in (plain, wide))
    assert {name: each["of"] for name, each in one.items()} == {n: each["of"] for n, each in other.items()}
    assert {name: each["error"] for name, each in one.items()} != {n: e["error"] for n, e in other.items()}


def test_allow_goes_with_honest() -> None:
    with pytest.raises(CommandError, match="--allow: goes with --honest alone"):
        arena(allow=True)
