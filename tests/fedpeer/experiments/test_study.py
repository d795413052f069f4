"""A whole study on real digits: computed once, drawn, written down, from the command line."""

import csv
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedpeer.experiments.errors import ExperimentError
from fedpeer.experiments.figures import FIGURES, figures
from fedpeer.experiments.figures.accuracy import AccuracyFigure
from fedpeer.experiments.populations import SHARES
from fedpeer.experiments.settings import EPOCHS_ONCE, Settings
from fedpeer.experiments.study import Drawn, Study
from tests.commands import fedpeer

pytestmark = [pytest.mark.arithmetic, pytest.mark.long]

#: One round, one seed, one epoch: the smallest study that goes all the way.
SMALL = AccuracyFigure(1, "accuracy", "Accuracy by degree", SHARES, (EPOCHS_ONCE,))


def _computed(folder: Path) -> tuple[Study, list[str]]:
    study = Study(Settings("digits", rounds=1, seeds=1, quick=True), [SMALL], folder)
    done: list[str] = []
    with ThreadPoolExecutor(1) as executor:
        study.compute(executor, done=lambda cell, seconds: done.append(cell.key))
    return study, done


@dataclass(frozen=True)
class Whole:
    """A study that is computed and drawn; the cells that were computed for it."""

    study: Study
    folder: Path
    done: list[str]
    drawn: Drawn


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("study")
    study, done = _computed(folder)
    (drawn,) = study.draw()
    return Whole(study, folder, done, drawn)


def test_a_study_is_computed_drawn_and_not_computed_again(whole: Whole) -> None:
    study, drawn = whole.study, whole.drawn
    assert len(whole.done) == len(study.cells()) == 4
    assert study.missing() == []
    assert [path.name for path in drawn.files] == [
        "accuracy-digits.csv",
        "accuracy-digits.png",
        "accuracy-digits.pdf",
        "accuracy-digits-peers.csv",
        "accuracy-digits-peers.png",
        "accuracy-digits-peers.pdf",
    ]
    for path in drawn.files:
        assert path.stat().st_size > 100
    assert all(path.stat().st_size < 100_000 for path in drawn.files if path.suffix == ".png")
    assert _computed(whole.folder)[1] == []


def test_every_number_of_the_plot_is_in_the_table(whole: Whole) -> None:
    study = whole.study
    with (whole.folder / "accuracy-digits.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["share"], row["degree"], row["seed"], row["round"]) for row in rows] == [
        ("0.1", "0", "0", "1"),
        ("0.5", "0.47", "0", "1"),
        ("0.9", "0.8", "0", "1"),
    ]
    results = study.store.finished(study.cells())
    for row, level in zip(rows, SHARES.levels, strict=True):
        cell = SMALL._level_cells(study.settings, level, EPOCHS_ONCE)[0]
        assert float(row["accuracy"]) == pytest.approx(results[cell.key]["global"][0]["accuracy"], rel=1e-5)


def test_settings_seeds_versions_and_findings_are_recorded(whole: Whole) -> None:
    record = json.loads((whole.folder / "accuracy-digits.json").read_text())
    assert record["settings"] == {"dataset": "digits", "rounds": 1, "seeds": 1, "quick": True}
    assert record["seeds"] == [0]
    assert {"torch", "numpy", "fedpeer"} <= record["versions"].keys()
    assert record["finished_cells"] == record["cells"] == 4
    assert all(finding["claim"] and finding["found"] for finding in record["findings"])
    text = (whole.folder / "findings-digits.md").read_text()
    assert all(finding["found"] in text for finding in record["findings"])


def test_without_finished_cells_nothing_is_drawn_and_that_is_said(tmp_path: Path) -> None:
    study = Study(Settings("digits", rounds=1, seeds=1), [SMALL], tmp_path)
    (drawn,) = study.draw()
    assert drawn.files == drawn.findings == ()
    assert (drawn.finished, drawn.cells) == (0, 4)
    assert "0 of 4 cells finished" in (tmp_path / "findings-digits.md").read_text()


def test_every_figure_has_a_number_a_name_and_known_cells() -> None:
    assert [figure.number for figure in FIGURES] == list(range(1, 10))
    assert len({figure.name for figure in FIGURES}) == 9
    for figure in figures():
        keys = [cell.key for cell in figure.cells(Settings("digits", rounds=2, seeds=2, quick=True))]
        assert len(set(keys)) == len(keys)


def test_figures_are_found_by_name_and_by_number() -> None:
    assert [figure.name for figure in figures(["payoff", "1"])] == ["accuracy", "payoff"]
    with pytest.raises(ExperimentError, match=r"no figure 'accurcy'; expected one of 1 \(accuracy\)"):
        figures(["accurcy"])


@pytest.mark.extended
def test_the_command_computes_draws_and_prints_json(tmp_path: Path) -> None:
    options = ("gradients", "--quick", "--rounds", "1", "--seeds", "1", "--jobs", "1", "--json")
    done = fedpeer("figures", *options, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (record,) = json.loads(done.stdout)
    assert record["name"] == "gradients"
    assert record["finished_cells"] == record["cells"] == 1
    assert len(list((tmp_path / "cells").glob("*.json"))) == 1
    assert "1 of 1 cells" in done.stderr
    again = fedpeer("figures", *options, "--out", str(tmp_path))
    assert json.loads(again.stdout) == [record]
    assert "cells" not in again.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nonsense",), "there is no figure 'nonsense'"),
        (("payoff", "--dataset", "imagenet"), "there is no data set 'imagenet'"),
        (("payoff", "--device", "tpu"), "--device is 'tpu'; expected auto, cpu or cuda"),
        (("gap", "--out", "/dev/null/figures"), "cannot be written"),
    ],
)
def test_a_users_mistake_is_one_sentence(arguments: tuple[str, ...], message: str) -> None:
    done = fedpeer("figures", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
