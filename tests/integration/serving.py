"""`fedpeer.testing`'s coordinator on real time, for participants that block or run elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.clock import Clock, SystemClock
from coordinator.config import TaskConfig
from fedpeer.testing import LocalCoordinator
from fedpeer.testing import terms as local_terms
from participant import Task, Trained, TrainingRound, Weights

#: A model without an architecture; two types and a scalar, as real state dicts have.
WEIGHTS = {
    "bias": np.zeros(4, np.float32),
    "steps": np.array(0, np.int64),
    "weight": np.ones((40, 30), np.float32),
}


class Served(LocalCoordinator):
    """Opens tasks by what is different about them."""

    def open(self, task_id: str = "task", **changes: Any) -> None:  # type: ignore[override]
        super().open(task_config(self.folder.path, task_id, **changes))


@contextmanager
def served(
    path: Path, *, insecure: bool = False, clock: Clock | None = None, database: str = ""
) -> Iterator[Served]:
    with Served(path, insecure=insecure, clock=clock or SystemClock(), database=database) as coordinator:
        yield coordinator


def task_config(folder: Path, task_id: str = "task", **changes: Any) -> TaskConfig:
    """A task of three on claimed degrees with a model of a few kilobytes; `changes` by section."""
    weights = changes.pop("weights", None) or WEIGHTS
    if "initial_model" in changes:
        weights = None
    changes["schedule"] = {"capacity": 3, **changes.get("schedule", {})}
    return local_terms.task_config(folder, weights, **{"id": task_id, "reference": ["1/4"] * 4, **changes})


def stepped(weights: Weights) -> Weights:
    """Weights after a step: what nothing has moved is not sent."""
    return {name: array + 1 if array.dtype == np.float32 else array for name, array in weights.items()}


class Shift(Task):
    """Moves every weight by a step of its own; needs no framework."""

    def __init__(self, counts: list[int], step: float = 1.0) -> None:
        self.start = list(counts)
        self.held = list(counts)
        self.step = step
        self.trained: list[int] = []

    def label_counts(self) -> list[int]:
        return list(self.held)

    def collect(self, effort: float) -> None:
        """Moves the counts toward their mean."""
        mean = sum(self.start) / len(self.start)
        self.held = [round(mean + (count - mean) * (1 - effort)) for count in self.start]

    def train(self, weights: Weights, round: TrainingRound) -> Trained:  # noqa: A002 - as Task.train
        self.trained.append(round.number)
        round.progress(1.0, loss=0.1)
        moved = {n: a + np.float32(self.step) if a.dtype == np.float32 else a for n, a in weights.items()}
        return Trained(moved, metrics={"step": self.step})
