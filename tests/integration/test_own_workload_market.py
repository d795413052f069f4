"""A market on a table with an operator's own perceptron: degrees are measured, and its last model is read."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from coordinator.cli import app
from fedpeer.learning.samples import Samples
from fedpeer.learning.workloads.loading import WorkloadSource
from fedpeer.protocol.model_file import open_model
from fedpeer.testing import LocalMarket
from participant import Task, Trained, TrainingRound, Weights

MODULE = """
from torch import nn

from fedpeer.learning.workloads.torch import TorchWorkload


def mlp():
    return TorchWorkload(lambda: nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)), classes=3)
"""

#: Samples of each class, of four participants: from balanced to one class.
COUNTS = ((50, 50, 50), (80, 40, 30), (20, 110, 20), (140, 5, 5))


def rows(counts: tuple[int, ...], seed: int) -> Samples:
    """Three clouds of points, which overlap."""
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(3), counts)
    centres = np.random.default_rng(99).normal(scale=1.5, size=(3, 4))
    return Samples(centres[labels] + generator.normal(size=(len(labels), 4)), labels.astype(np.int64))


class Own(Task):
    """Trains the workload of the terms' module on rows of its own."""

    def __init__(self, folder: Path, counts: tuple[int, ...], seed: int) -> None:
        self.own, self.seed = counts, seed
        self.source = WorkloadSource("table_models:mlp", folders=(str(folder),))

    def counts(self) -> tuple[int, ...]:
        return self.own

    def train(self, weights: Weights, round: TrainingRound) -> Trained:  # noqa: A002
        samples = rows(self.own, self.seed)
        made = self.source.load().train(dict(weights), samples, round.recipe, self.seed)
        return Trained(made, len(samples))


@pytest.mark.arithmetic
def test_a_market_on_a_table_pays_what_models_show(tmp_path: Path) -> None:
    (tmp_path / "table_models.py").write_text(MODULE)
    data = rows((300, 300, 300), 1)
    inputs, names = np.asarray(data.inputs), np.array(["low", "middle", "top"])[data.targets]
    columns: dict[str, Any] = {f"x{j}": inputs[:, j] for j in range(4)}
    np.savez(tmp_path / "table.npz", level=names, **columns)
    terms = {
        "rule": {"name": "verified", "peers": 3},
        "recipe": {
            "model": "table_models:mlp", "samples": 150, "epochs": 4, "batch_size": 30, "learning_rate": "0.01",
        },
        "data": {"file": "table.npz", "inputs": list(columns), "target": "level", "holdout": "0.2"},
        "evidence": {"shadows": 30},
    }  # fmt: skip
    tasks = [Own(tmp_path, counts, seed) for seed, counts in enumerate(COUNTS, 10)]
    with LocalMarket(
        [lambda task=task: task for task in tasks],  # type: ignore[misc]
        participants=4,
        rounds=1,
        terms=terms,
        effort=0.0,
        folder=tmp_path / "market",
        paths=tmp_path,
    ) as market:
        reports = market.run()
        market.verify()
        paid = [reports[f"p{k}"].paid_micro for k in range(1, 5)]
        assert paid[0] > paid[3]
        assert paid[0] > 0
        [round_] = market.coordinator.task(market.task_id).rounds
        assert round_.accuracy is not None
        assert float(round_.accuracy) > 0.5
        assert market.coordinator.task(market.task_id).row.terms.strata_names == ("low", "middle", "top")
    out = tmp_path / "model.safetensors"
    state = str(tmp_path / "market" / "coordinator")
    done = CliRunner().invoke(app, ["model", "task", "-o", str(out), "--state", state])
    assert done.exit_code == 0, done.output
    workload = WorkloadSource("table_models:mlp", folders=(str(tmp_path),)).load()
    judged = workload.judge(open_model(out).weights(), rows((40, 40, 40), 3))
    assert judged.outputs is not None
    assert float((judged.outputs.argmax(axis=1) == np.repeat(np.arange(3), 40)).mean()) > 0.5
