"""`fedpeer new` and `fedpeer simulate`: from an empty folder to who would be paid what."""

import json
import os
import select
import signal
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
from tests.commands import fedpeer

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def eighty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


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
    for column in ("paid_micro", "expected_micro"):
        paid = [person[column] for person in by_degree]
        assert paid == sorted(paid, reverse=True), "better data are paid more"
    # Four of four are drawn as peers, so that the draw gives what is expected.
    assert all(abs(p["paid_micro"] - p["expected_micro"]) <= len(found["rounds"]) for p in people)


def test_the_table_keeps_its_columns_at_eighty(project: Path) -> None:
    done = fedpeer("simulate", "my_task:MyTask", "--participants", "3", "--rounds", "1", folder=project)
    assert done.returncode == 0, done.stderr
    assert "ledger verified" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert " expected " in done.stdout
    assert "measured" not in done.stdout, "under the rule `paper` nothing is"
    assert [line.split()[0] for line in done.stdout.splitlines() if line.startswith(" p")] == [
        "participant", "p1", "p2", "p3",
    ]  # fmt: skip


@pytest.mark.extended  # test_testing_page.py runs three tests of the kind
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
        (
            "m6:NotTask",
            "NotTask = 5\n",
            "m6:NotTask is 5, an int; expected a Task, or a class or function that ",
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
    done = fedpeer("simulate", "bad:X", folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_the_cost_decides_the_effort(project: Path) -> None:
    arguments = ("simulate", "my_task:MyTask", "--participants", "3", "--rounds", "1", "--json")
    efforts = []
    for cost in ("0.1", "50"):
        done = fedpeer(*arguments, "--cost", cost, folder=project)
        assert done.returncode == 0, done.stderr
        efforts.append([person["effort"] for person in json.loads(done.stdout)["participants"]])
    assert efforts[1] == [0.0, 0.0, 0.0]
    assert efforts[0][2] > 0
    for wrong, said in ((("--cost", "1", "--effort", "0"), "not both"), (("--cost", "0"), "cost is 0")):
        refused = fedpeer(*arguments, *wrong, folder=project)
        assert refused.returncode == 2
        assert said in refused.stderr
        assert refused.stderr.count("\n") == 1


START = """
import numpy as np
from fedpeer import Task

class Mine(Task):
    def start_weights(self):
        return {start}
    def label_counts(self):
        return [1, 1]
    def train(self, weights, round):
        {train}
"""


def simulated(
    folder: Path, start: str, train: str = "return {'w': weights['w'] + 1}"
) -> "CompletedProcess[str]":
    (folder / "mine.py").write_text(START.format(start=start, train=train))
    return fedpeer("simulate", "mine:Mine", "--participants", "3", "--rounds", "1", folder=folder)


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("{'w': np.full(3, np.nan, np.float32)}", "the first model cannot be used: "),
        ("None", "start_weights raised TypeError, or gives no names with their arrays"),
        ("[1, 2]", "start_weights raised TypeError, or gives no names with their arrays"),
        ("{'w': 'text'}", "start_weights raised FieldError, or gives no names with their arrays"),
        ("exit(3)", "start_weights raised SystemExit"),
    ],
)
def test_a_first_model_that_is_none_is_one_sentence_without_our_own_paths(
    tmp_path: Path, start: str, said: str
) -> None:
    done = simulated(tmp_path, start)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "fedpeer-market" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_training_that_leaves_is_the_participants_failure(tmp_path: Path) -> None:
    done = simulated(tmp_path, "{'w': np.zeros(3, np.float32)}", "raise SystemExit(3)")
    assert done.returncode == 2, done.stderr
    assert "p1, round 1: Mine.train raised SystemExit: 3 (2 more reasons like it)" in done.stderr


def test_the_terms_first_model_is_held_against_the_tasks_own(tmp_path: Path) -> None:
    (tmp_path / "task.toml").write_text('Q = 1000\ninitial_model = "start.safetensors"\n')
    start = tmp_path / "start.safetensors"
    start.write_bytes(encode_model({"w": np.zeros(4, np.float32)}))
    other = simulated(tmp_path, "{'w': np.zeros(3, np.float32)}")
    assert other.returncode == 2
    assert (
        "start.safetensors as the first model, whose tensor 'w' is of shape [4], and of shape [3]"
        in other.stderr
    )
    start.write_bytes(encode_model({"w": np.ones(3, np.float32)}))
    numbers = simulated(tmp_path, "{'w': np.zeros(3, np.float32)}")
    assert numbers.returncode == 0, numbers.stderr
    assert (
        "begins with start.safetensors, as task.toml says; start_weights() gives other numbers"
        in numbers.stderr
    )
    assert simulated(tmp_path, "{'w': np.ones(3, np.float32)}").stderr == ""


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.extended)])
def test_an_interruption_is_one_sentence(tmp_path: Path, number: int) -> None:
    reached = tmp_path / "reached"
    train = f"open({str(reached)!r}, 'w').close(); __import__('time').sleep(600)"
    (tmp_path / "mine.py").write_text(START.format(start="{'w': np.zeros(3, np.float32)}", train=train))
    process = subprocess.Popen(
        [sys.executable, "-m", "fedpeer", "simulate", "mine:Mine", "--participants", "3"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not reached.exists():
        assert process.poll() is None, process.communicate()
        select.select([], [], [], 0.02)
    process.send_signal(number)
    printed, said = process.communicate(timeout=60)
    assert (process.returncode, printed) == (130, "")
    assert said == "fedpeer: interrupted: the market is stopped, and nothing of it is kept\n"
    assert not list(tmp_path.glob("fedpeer-market-*"))


def test_a_folder_of_ones_own_that_is_called_fedpeer_beside_the_task(tmp_path: Path) -> None:
    """A command that has begun goes on; a script is told what hides what."""
    (tmp_path / "fedpeer").mkdir()
    (tmp_path / "fedpeer" / "__init__.py").write_text("")
    (tmp_path / "mine.py").write_text(
        START.format(start="{'w': np.zeros(3, np.float32)}", train="return {'w': weights['w'] + 1}")
    )
    program = "import sys; from fedpeer.__main__ import main; sys.argv[0] = 'fedpeer'; sys.exit(main())"
    arguments = ["simulate", "mine:Mine", "--participants", "3", "--rounds", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *arguments],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    script = subprocess.run(
        [sys.executable, "-c", "import participant"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    last = script.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: {tmp_path / 'fedpeer' / '__init__.py'} hides the package 'fedpeer'")


def test_a_script_beside_a_folder_that_is_called_participant_says_what_hides_what(tmp_path: Path) -> None:
    (tmp_path / "participant").mkdir()
    (tmp_path / "participant" / "__init__.py").write_text("")
    script = subprocess.run(
        [sys.executable, "-c", "from fedpeer import Task"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert f"ImportError: {tmp_path / 'participant'} hides the package 'participant'" in script.stderr
