"""Every script of examples/ goes through a whole task at a real coordinator and is paid."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from participant import Participant, TrainingRound, Weights
from participant.adapters.numpy import FunctionTask
from tests.integration.serving import Served, served

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]

SOFTMAX = {"bias": np.zeros(10, np.float32), "weight": np.zeros((10, 64), np.float32)}
MODELS: dict[str, dict[str, np.ndarray[Any, Any]]] = {
    "torch_module.py": {
        "0.weight": np.full((32, 64), 0.01, np.float32),
        "0.bias": np.zeros(32, np.float32),
        "2.weight": np.full((10, 32), 0.01, np.float32),
        "2.bias": np.zeros(10, np.float32),
    },
    "sklearn_linear.py": {"coef_": np.zeros((10, 64)), "intercept_": np.zeros(10)},
    "flower_client.py": {"array-000": np.zeros((64, 10)), "array-001": np.zeros(10)},
    "asyncio_task.py": SOFTMAX,
    "own_loop.py": SOFTMAX,
}


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("coordinator")) as running:
        yield running


def test_every_example_is_tested_and_short() -> None:
    # Those that take part in a task by arguments; the others are played by test_workload_examples.py.
    scripts = {p.name: p for p in (ROOT / "examples").glob("*.py") if "sys.argv" in p.read_text()}
    assert scripts.keys() == MODELS.keys()
    for path in scripts.values():
        assert len(path.read_text().splitlines()) < 40


#: Played in the default suite; test_stopping.py has a loop of one's own.
PLAYED = ("asyncio_task.py",)


@pytest.mark.parametrize(
    "script",
    [
        script if script in PLAYED else pytest.param(script, marks=pytest.mark.extended)
        for script in sorted(MODELS)
    ],
)
def test_an_example_is_paid(coordinator: Served, tmp_path: Path, script: str) -> None:
    name = script.removesuffix(".py").replace("_", "-")
    task_ids = [f"{name}-1", f"{name}-2"] if script == "asyncio_task.py" else [f"{name}-1"]
    for task_id in task_ids:
        coordinator.open(
            task_id,
            weights=MODELS[script],
            reference=["1/10"] * 10,
            recipe={"model": "custom", "epochs": 3, "learning_rate": "0.1", "samples": 100},
        )
    others = {(peer, task_id): f"{name}-{peer}" for peer in ("b", "c") for task_id in task_ids}
    peers = {who: coordinator.participant(who, tmp_path) for who in set(others.values())}
    threads = [
        threading.Thread(target=peers[who].run, args=(idle(peer), task_id), kwargs={"effort": 0.0})
        for (peer, task_id), who in others.items()
    ]
    for thread in threads:
        thread.start()
    state = coordinator.enrol(name, tmp_path / "state")
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / script), str(state), coordinator.market, *task_ids],
        capture_output=True, text=True, timeout=200, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for thread in threads:
        thread.join(60)
    for peer in peers.values():
        peer.close()
    with Participant(state, coordinator.market) as me:
        reports = me.reports()
    assert [report.task_id for report in reports] == task_ids
    for report in reports:
        assert report.state == "CLOSED"
        assert [line.receipt is not None for line in report.rounds] == [True, True]
        assert report.paid_micro > 0
        accuracies = [line.metrics["accuracy"] for line in report.rounds if "accuracy" in line.metrics]
        # Of the participant's own data, after local training: other samples each round, so it may dip a little.
        assert all(accuracy > accuracies[0] - 0.05 for accuracy in accuracies), (
            "the models keep what they learn"
        )


def idle(peer: str) -> FunctionTask:
    """A peer that moves each weight a little, by an amount of its own."""
    step = 1e-4 * (1 + "bc".index(peer))

    def train(weights: Weights, _: TrainingRound) -> Weights:
        return {name: (array + step).astype(array.dtype) for name, array in weights.items()}

    return FunctionTask(train, [10] * 10)
