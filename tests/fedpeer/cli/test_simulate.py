"""`fedpeer new` and `fedpeer simulate`: from an empty folder to who would be paid what."""

import json
import os
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest

from fedpeer.cli.errors import CommandError
from fedpeer.cli.simulate import find_task
from fedpeer.protocol.model_file import encode_model, open_model

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]


def fedpeer(*arguments: str, folder: Path) -> "CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "fedpeer", *arguments],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"},
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("somebody") / "project"
    done = fedpeer("new", str(folder), folder=folder.parent)
    assert done.returncode == 0, done.stderr
    assert "fedpeer simulate my_task:MyTask" in done.stdout
    return folder


def test_a_new_folder_runs_as_it_stands(project: Path) -> None:
    done = fedpeer("simulate", "my_task:MyTask", "--participants", "5", "--json", folder=project)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["task"]["state"] == "CLOSED"
    assert found["ledger"]["verified"]
    assert len(found["rounds"]) == 3
    people = found["participants"]
    assert [person["id"] for person in people] == ["p1", "p2", "p3", "p4", "p5"]
    by_degree = sorted(people, key=lambda person: float(person["claimed_degree"]))
    paid = [person["paid_micro"] for person in by_degree]
    assert paid == sorted(paid, reverse=True), "better data are paid more"


def test_the_table_keeps_its_columns_at_eighty(project: Path) -> None:
    done = fedpeer("simulate", "my_task:MyTask", "--participants", "3", "--rounds", "1", folder=project)
    assert done.returncode == 0, done.stderr
    assert "ledger verified" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert [line.split()[0] for line in done.stdout.splitlines() if line.startswith(" p")] == [
        "participant", "p1", "p2", "p3",
    ]  # fmt: skip


def test_the_scaffolds_own_test_passes(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "fedpeer.pytest_plugin", "-p", "no:cacheprovider"],
        cwd=project, env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{project}"},
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert "1 passed" in done.stdout, done.stdout


def test_the_first_model_is_the_tasks(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", [*sys.path])
    task = find_task("my_task:MyTask")()  # type: ignore[operator]
    start = open_model(project / "start.safetensors").weights()
    assert {n: (a.shape, a.dtype) for n, a in start.items()} == {
        n: (a.shape, a.dtype) for n, a in task.start_weights().items()
    }


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    done = fedpeer("new", ".", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "fedpeer: . exists and is not an empty folder; name another\n"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


WRONG_SHAPE = """
import numpy as np
from fedpeer import Task

class Wrong(Task):
    def start_weights(self):
        return {"w": np.zeros(3, np.float32)}
    def label_counts(self):
        return [1, 1]
    def train(self, weights, round):
        print("training")
        return {"w": np.ones(4, np.float32)}
"""


def test_a_training_of_the_wrong_shape_is_named(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(WRONG_SHAPE)
    done = fedpeer("simulate", "wrong:Wrong", "--json", folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "shape" in done.stderr
    assert "(4,)" in done.stderr or "[4]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("nothing", "", "the task is 'nothing'; expected module:Name"),
        ("absent_module:Task", "", "there is no module 'absent_module' in "),
        (
            "m1:Absent",
            "from fedpeer import Task\nclass Mine(Task): pass\n",
            "the module m1 has no Absent; it has Mine",
        ),
        (
            "m2:Mine",
            "1 / 0\n",
            r"importing m2 raised ZeroDivisionError: division by zero \(.*m2.py, line 1\)",
        ),
        (
            "m3:Mine",
            "class Mine:\n    pass\n",
            "m3:Mine is a class that is no Task; derive it from fedpeer.Task",
        ),
        ("m4:Mine", "import nowhere_at_all\n", "m4 imports nowhere_at_all, which is not installed"),
        ("m5:Mine", "class Mine(:\n", "m5.py, line 1: invalid syntax"),
    ],
)
def test_a_mistake_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / f"{name.partition(':')[0]}.py").write_text(content) if content else None
    with pytest.raises(CommandError, match=sentence) as caught:
        find_task(name)
    assert "\n" not in str(caught.value)


def test_terms_that_do_not_fit_are_named(project: Path, tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text('Q = 1000\ninitial_model = "gone.safetensors"\n')
    done = fedpeer("simulate", "my_task:MyTask", "--terms", str(tmp_path / "other.toml"), folder=project)
    assert done.returncode == 2
    assert "gone.safetensors is missing" in done.stderr
    (tmp_path / "gone.safetensors").write_bytes(encode_model({"w": np.zeros(2, np.float32)}))
    done = fedpeer("simulate", "my_task:MyTask", "--terms", str(tmp_path / "other.toml"), folder=project)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise SystemExit(0)", "importing bad raised SystemExit"),
        (
            "from fedpeer import Task\n"
            "class X(Task):\n"
            "    def label_counts(self): return [5, 5]\n"
            "    def start_weights(self): raise KeyError('w')\n"
            "    def train(self, weights, round): return weights\n",
            "start_weights raised KeyError",
        ),
    ],
)
def test_a_module_that_leaves_or_a_first_model_that_fails_is_one_sentence(
    tmp_path: Path, source: str, said: str
) -> None:
    (tmp_path / "bad.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-m", "fedpeer", "simulate", "bad:X"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
