"""Training in a process of its own: results, failures, crashes, kills, and the parent's end."""

import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedpeer.protocol.model_file import encode_model
from participant.errors import ConfigurationError, TaskError, TrainingError, WeightsError
from participant.model_store import read_weights
from participant.task import TrainingCancelled, TrainingRound
from participant.trainer_process import ProcessTrainer, TaskSpec
from tests.participant.simulated_market import PARTICIPANT, start_weights, terms

TASKS = """
import os, signal, sys, time
import numpy as np
from participant import Task, Trained

class Odd(Task):
    def __init__(self, mode="good"):
        self.mode, self.held = mode, [3, 1]
    def label_counts(self):
        return {"fraction": [3.5, 1], "word": ["three", 1], "none": None}.get(self.mode, self.held)
    def collect(self, effort):
        self.held = [3, 1 + round(2 * effort)]
    def train(self, weights, round):
        print("words on standard output are the user's own")
        round.progress(0.25, loss=2.0)
        if self.mode == "raise":
            raise ValueError("no film in the camera")
        if self.mode == "exit":
            sys.exit(7)
        if self.mode == "memory":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.mode == "words":
            return Trained({n: a * 2 for n, a in weights.items()}, metrics={"loss": np.float32(0.5), "note": "good"})
        if self.mode == "shape":
            return {"w": np.zeros(2, np.float32), "n": weights["n"]}
        if self.mode == "wait":
            time.sleep(600)
        return Trained({n: a * 2 for n, a in weights.items()}, samples=self.held[1], metrics={"loss": 1.0})

def broken():
    raise RuntimeError("no data folder")

def nothing():
    return 3

def leave():
    sys.exit(3)
"""


@pytest.fixture(autouse=True)
def importable_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd_tasks.py").write_text(TASKS)
    (tmp_path / "failing_module.py").write_text("1 / 0")
    (tmp_path / "leaving_module.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.fixture
def start(tmp_path: Path) -> Path:
    path = tmp_path / "start.safetensors"
    path.write_bytes(encode_model(start_weights()))
    return path


def make(mode: str) -> ProcessTrainer:
    trainer = ProcessTrainer(TaskSpec("odd_tasks:Odd", {"mode": mode}))
    trainer.prepare(terms())
    trainer.collect(0.5)
    return trainer


@pytest.fixture
def trainer(request: pytest.FixtureRequest) -> Iterator[ProcessTrainer]:
    made = make(request.param)
    yield made
    made.close()


def training_round(seen: list[tuple[float, dict[str, float]]] | None = None) -> TrainingRound:
    record = seen if seen is not None else []
    return TrainingRound(
        terms(), PARTICIPANT, 1, None, lambda done, figures: record.append((done, dict(figures)))
    )


@pytest.mark.parametrize("trainer", ["good"], indirect=True)
def test_it_trains_and_tells_progress(trainer: ProcessTrainer, start: Path, tmp_path: Path) -> None:
    assert trainer.counts() == [3, 2]
    seen: list[tuple[float, dict[str, float]]] = []
    made = trainer.train(start, tmp_path / "trained", training_round(seen))
    assert made.samples == 2
    assert made.metrics == {"loss": 1.0}
    assert seen == [(0.25, {"loss": 2.0})]
    assert np.array_equal(read_weights(tmp_path / "trained")["w"], start_weights()["w"] * 2)
    assert trainer.pid is not None
    first = trainer.pid
    trainer.train(start, tmp_path / "trained", training_round())
    assert trainer.pid == first, "one process for all rounds: frameworks take seconds to import"


@pytest.mark.parametrize("trainer", ["words"], indirect=True)
def test_a_word_among_the_metrics_costs_no_round(
    trainer: ProcessTrainer, start: Path, tmp_path: Path
) -> None:
    assert trainer.train(start, tmp_path / "trained", training_round()).metrics == {"loss": 0.5}


@pytest.mark.parametrize("trainer", ["fraction", "word", "none"], indirect=True)
def test_counts_that_are_no_whole_numbers(trainer: ProcessTrainer) -> None:
    with pytest.raises(
        TaskError, match=r"Odd.label_counts cannot be used: .*Give one whole number for each of"
    ):
        trainer.counts()


@pytest.mark.parametrize(
    ("trainer", "kind", "words"),
    [
        ("raise", TrainingError, "no film in the camera"),
        ("exit", TrainingError, "exit code 7"),
        ("memory", TrainingError, "killed by SIGKILL; the system may have run out of memory"),
        ("shape", WeightsError, "expected F32 of shape"),
    ],
    indirect=["trainer"],
)
def test_a_failure_says_why_and_the_next_call_works(
    trainer: ProcessTrainer, kind: type[TaskError], words: str, start: Path, tmp_path: Path
) -> None:
    with pytest.raises(TaskError, match=words) as caught:
        trainer.train(start, tmp_path / "trained", training_round())
    assert "camera" not in caught.value.public, "what an exception says may quote the data"
    assert trainer.counts() == [3, 2], "started again, prepared, and brought to the same effort"


@pytest.mark.parametrize("trainer", ["wait"], indirect=True)
def test_a_training_can_be_cancelled(trainer: ProcessTrainer, start: Path, tmp_path: Path) -> None:
    begun = threading.Event()
    context = TrainingRound(terms(), PARTICIPANT, 1, None, lambda done, figures: begun.set())
    threading.Thread(target=lambda: (begun.wait(), trainer.cancel())).start()
    with pytest.raises(TrainingCancelled):
        trainer.train(start, tmp_path / "trained", context)
    assert trainer.pid is None


@pytest.mark.parametrize(
    ("factory", "options", "words"),
    [
        ("odd_tasks", {}, "expected module:name"),
        ("no_such_module:X", {}, "PYTHONPATH"),
        ("odd_tasks:Nothing", {}, "PYTHONPATH"),
        ("odd_tasks:Odd", {"colour": 1}, "unexpected keyword argument 'colour'"),
        ("odd_tasks:broken", {}, "no data folder"),
        ("odd_tasks:nothing", {}, "expected a Task"),
        ("odd_tasks:leave", {}, "failed: SystemExit: 3"),
        ("failing_module:X", {}, "cannot be imported: ZeroDivisionError: division by zero"),
        ("leaving_module:X", {}, "cannot be imported: SystemExit: 3"),
    ],
)
def test_a_factory_that_makes_no_task(factory: str, options: dict[str, int], words: str) -> None:
    trainer = ProcessTrainer(TaskSpec(factory, options))
    with pytest.raises(ConfigurationError, match=words):
        trainer.prepare(terms())
    trainer.close()
    with pytest.raises(ConfigurationError, match=words):  # `explain` makes it in its own process
        TaskSpec(factory, options).build()


def test_the_child_ends_with_its_parent(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from participant.trainer_process import ProcessTrainer, TaskSpec
        from participant.task import TrainingRound
        from tests.participant.simulated_market import terms
        trainer = ProcessTrainer(TaskSpec("odd_tasks:Odd", {"mode": "wait"}))
        trainer.prepare(terms())
        report = lambda done, figures: print(trainer.pid, flush=True)
        folder = Path(sys.argv[1])
        trainer.train(folder / "start.safetensors", folder / "trained", TrainingRound(terms(), "p", 1, None, report))
        """
    )
    (tmp_path / "start.safetensors").write_bytes(encode_model(start_weights()))
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path.cwd())])},
    )
    assert parent.stdout is not None
    child = os.pidfd_open(int(parent.stdout.readline()))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    ended, _, _ = select.select([child], [], [], 20)  # readable once the process is gone
    os.close(child)
    parent.stdout.close()
    assert ended


def test_a_folder_of_ones_own_that_is_called_as_ours_does_not_hide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task's modules come from the working folder, ours do not."""
    for name in ("fedpeer", "participant", "mechanism"):
        (tmp_path / "project" / name).mkdir(parents=True)
        (tmp_path / "project" / name / "__init__.py").write_text("raise ImportError('mine')")
    (tmp_path / "project" / "own_tasks.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path / "project")
    trainer = ProcessTrainer(TaskSpec("own_tasks:Odd"))
    try:
        trainer.start()
        assert trainer.pid is not None
    finally:
        trainer.close()
