"""Cells are computed once, kept whole, and survive their neighbours' failures."""

import json
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fedpeer.experiments import cells
from fedpeer.experiments.cells import Cell, CellStore, run_cells
from fedpeer.experiments.errors import CellError, ExperimentError

pytestmark = pytest.mark.arithmetic

CALLS: list[int] = []


def square(parameters: dict[str, Any], device: str) -> dict[str, Any]:
    """A cell that counts its calls, and fails where it is to."""
    CALLS.append(parameters["x"])
    if parameters.get("fail"):
        raise ZeroDivisionError("asked to fail")
    return {"value": parameters.get("result", parameters["x"] ** 2), "device": device}


@pytest.fixture(autouse=True)
def _square(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "COMPUTATIONS", {"square": (f"{__name__}:square", 1)})
    CALLS.clear()


class _Inline(Executor):
    """Runs a call when it is submitted, so that the order of calls can be seen."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def test_a_finished_cell_is_not_run_again(tmp_path: Path) -> None:
    store = CellStore(tmp_path)
    some = [Cell("square", {"x": x}) for x in range(4)]
    run_cells(some[:2], store, _Inline())
    assert CALLS == [0, 1]
    with ThreadPoolExecutor(2) as executor:
        results = run_cells(some, store, executor)
    assert sorted(CALLS) == [0, 1, 2, 3]
    assert [results[cell.key]["value"] for cell in some] == [0, 1, 4, 9]


def test_a_run_that_was_cut_short_goes_on_where_it_was(tmp_path: Path) -> None:
    store = CellStore(tmp_path)
    some = [Cell("square", {"x": x}) for x in range(3)]
    run_cells(some, store, _Inline())
    # What a kill leaves: a cell that is missing, and a file that was being written.
    (tmp_path / f"{some[1].key}.json").rename(tmp_path / f"{some[1].key}.123.partial")
    CALLS.clear()
    run_cells(some, store, _Inline())
    assert CALLS == [1]


def test_cells_are_computed_by_priority_and_each_once(tmp_path: Path) -> None:
    some = [
        Cell("square", {"x": 1}, priority=5),
        Cell("square", {"x": 2}, priority=1),
        Cell("square", {"x": 1}, priority=9),
    ]
    run_cells(some, CellStore(tmp_path), _Inline())
    assert CALLS == [2, 1]


def test_a_failing_cell_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    store = CellStore(tmp_path)
    good, bad = Cell("square", {"x": 3}), Cell("square", {"x": 4, "fail": True})
    with pytest.raises(CellError, match=rf"1 of 2 cells failed; the first, {bad.key}, .*asked to fail"):
        run_cells([bad, good], store, _Inline())
    assert store.get(good) == {"value": 9, "device": "cpu"}
    assert store.get(bad) is None


def test_a_result_that_json_does_not_have_fails_its_cell_alone(tmp_path: Path) -> None:
    store = CellStore(tmp_path)
    good, diverged = Cell("square", {"x": 3}), Cell("square", {"x": 4, "result": float("nan")})
    with pytest.raises(CellError, match=f"the first, {diverged.key}, "):
        run_cells([diverged, good], store, _Inline())
    assert store.get(good) is not None
    assert store.get(diverged) is None
    assert [path.name for path in tmp_path.iterdir()] == [f"{good.key}.json"]


def test_another_version_of_the_computation_is_another_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Cell("square", {"x": 1}).key
    monkeypatch.setattr(cells, "COMPUTATIONS", {"square": (f"{__name__}:square", 2)})
    assert Cell("square", {"x": 1}).key != before


def test_a_cell_records_what_computed_it(tmp_path: Path) -> None:
    cell = Cell("square", {"x": 5})
    run_cells([cell], CellStore(tmp_path), _Inline(), device="cpu")
    record = json.loads((tmp_path / f"{cell.key}.json").read_text())
    assert record["parameters"] == {"x": 5}
    assert record["device"] == "cpu"
    assert isinstance(record["seconds"], float)
    assert {"python", "numpy", "torch", "scipy", "matplotlib", "fedpeer"} <= record["versions"].keys()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"kind": "square"}', '{"result": 5}'])
def test_a_file_that_is_no_cell_is_refused_with_its_name(tmp_path: Path, content: str) -> None:
    cell = Cell("square", {"x": 1})
    (tmp_path / f"{cell.key}.json").write_text(content)
    with pytest.raises(ExperimentError, match=r"is not a finished cell.*delete it"):
        CellStore(tmp_path).get(cell)
