"""A whole market on a table by commands alone: what an operator and three data owners type, and nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedpeer.learning.tables import read_samples
from fedpeer.learning.workloads.loading import WorkloadSource
from fedpeer.protocol.model_file import open_model
from mechanism.workload import Columns
from tests.commands import fedpeer
from tests.integration.test_service_process import serving

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

pytest.importorskip("pyarrow")

ROOT = Path(__file__).resolve().parents[2]

MODEL = """
from torch import nn

from fedpeer.learning.workloads.torch import TorchWorkload


def perceptron(inputs=3, hidden=16, airlines=3):
    def made():
        return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, airlines))

    return TorchWorkload(made, classes=airlines)
"""

TASK = """
id = "airlines"
Q = 24
phi = 8
upsilon = 1.2
seed = 3

[rule]
name = "verified"
peers = 2

[schedule]
rounds = 1
capacity = 3

[recipe]
model = "airline_model:perceptron"
options = { hidden = 8 }
epochs = 5
batch_size = 20
learning_rate = 0.02
samples = 120

[data]
file = "flights.csv"
inputs = ["distance", "hour", "delay"]
target = "airline"
test_file = "held_out.csv"

[evidence]
shadows = 30
"""

PARTICIPANT = """
id = "{name}"

[coordinator]
market = "{market}"
public = "{public}"
authority = "authority.pem"

[[task]]
id = "airlines"
data = "mine.csv"
"""

#: Flights of each airline that each data owner has. The recipe asks for 120: `even` has five times as many.
OWNERS = {"even": (200, 200, 200), "uneven": (90, 30, 60), "skewed": (10, 10, 160)}

AIRLINES = ("AA", "B6", "UA")


def write_flights(path: Path, counts: tuple[int, ...], seed: int) -> None:
    """A table whose columns stand in another order than the task reads them, beside one that it does not read."""
    generator = np.random.default_rng(seed)
    airlines = generator.permutation(np.repeat(np.arange(3), counts))
    centres = np.array([[1.5, 0.0, -1.0], [-1.5, 1.0, 0.0], [0.0, -1.5, 1.0]])
    numbers = centres[airlines] + generator.normal(size=(len(airlines), 3))
    rows = [
        f"{d!r},x,{AIRLINES[a]},{k!r},{h!r}" for a, (k, h, d) in zip(airlines, numbers.tolist(), strict=True)
    ]
    path.write_text("\n".join(["delay,gate,airline,distance,hour", *rows]) + "\n")


def command(*words: str, cwd: Path, given: str = "") -> str:
    done = fedpeer(*words, folder=cwd, given=given)
    assert done.returncode == 0, done.stderr
    return done.stdout


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.mark.extended  # test_own_workload_market.py plays one in this process
def test_a_market_on_a_table(tmp_path: Path) -> None:
    operator, state = tmp_path / "operator", tmp_path / "operator" / "market"
    operator.mkdir()
    write_flights(operator / "flights.csv", (200, 200, 200), 1)
    write_flights(operator / "held_out.csv", (60, 60, 60), 2)
    (operator / "airline_model.py").write_text(MODEL)
    (operator / "task.toml").write_text(TASK)
    ports = ["--market", "127.0.0.1:0", "--public", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
    command(
        "coordinator", "init", "market", "--host", "localhost", "--host", "127.0.0.1", *ports, cwd=operator
    )
    on_state = ["--state", "market"]
    with serving(state) as (_, addresses):
        command("coordinator", "open", "task.toml", "--yes", *on_state, cwd=operator)
        running = {}
        for number, (name, counts) in enumerate(OWNERS.items(), 10):
            (folder := tmp_path / name).mkdir()
            write_flights(folder / "mine.csv", counts, number)
            (folder / "airline_model.py").write_text(MODEL)
            invited = json.loads(command("coordinator", "invite", name, "--json", *on_state, cwd=operator))
            (folder / "authority.pem").write_text(invited["authority"])
            (folder / "participant.toml").write_text(PARTICIPANT.format(name=name, **addresses))
            command("participant", "enroll", "--token", "-", cwd=folder, given=invited["token"] + "\n")
            running[name] = subprocess.Popen(
                [sys.executable, "-m", "fedpeer", "participant", "run"],
                cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
        for name, process in running.items():
            _, log = process.communicate(timeout=400)
            assert process.returncode == 0, (name, log)
            held = sum(OWNERS[name])
            assert f"Of {held} samples 120 are trained on" in log
        [task] = json.loads(command("coordinator", "status", "--json", *on_state, cwd=operator))["tasks"]
        fetched = ["airlines", "-o", "model.safetensors", "--json", *on_state]
        model = json.loads(command("coordinator", "model", *fetched, cwd=operator))
        command("ledger", "verify", str(state), cwd=operator)
    assert task["state"] == "CLOSED"
    paid = task["paid_micro"]
    assert paid["even"] > paid["skewed"] > 0
    workload = WorkloadSource("airline_model:perceptron", {"hidden": 8}, (str(operator),)).load()
    form = Columns(("distance", "hour", "delay"), "airline", "array")
    held_out = read_samples(operator / "held_out.csv", form, AIRLINES)
    judged = workload.judge(open_model(operator / "model.safetensors").weights(), held_out)
    assert judged.outputs is not None
    right = float((judged.outputs.argmax(axis=1) == held_out.targets).mean())
    assert model["accuracy"] == f"{right:.6f}"
    assert right > 0.5
    earned = json.loads(command("participant", "earnings", "--json", cwd=tmp_path / "even"))
    assert earned["paid_micro"] == paid["even"]
