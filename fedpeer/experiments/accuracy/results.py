"""What the starts of a task say together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from fedpeer.experiments.cells import Cell, Record

#: Mean error and rank correlation that are aimed at, with 100 shadows, at fresh and half-trained starts.
GOALS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "digits": {"fresh": (0.038, 0.975), "half": (0.045, 0.96)},
    "fashion-mnist": {"fresh": (0.035, 0.98), "half": (0.055, 0.95)},
    "fashion-resnet": {"fresh": (0.040, 0.97), "half": (0.055, 0.955)},
    "flights-mlp": {"fresh": (0.032, 0.98), "half": (0.045, 0.96)},
    "flights-softmax": {"fresh": (0.030, 0.98), "half": (0.040, 0.97)},
    "flights-air-time": {"fresh": (0.055, 0.93), "half": (0.065, 0.90)},
}


@dataclass(frozen=True)
class Figures:
    """Of one task and start, over all of its seeds.

    Attributes:
        error: mean of |estimate - degree|; bias: mean of estimate - degree.
        rank: Spearman's correlation.
        coverage: share of degrees within the interval; worst: of a single seed.
        half_width: of the interval, mean over the seeds.
        refused: share of participants, all honest, that fail a test.
        trainings: what the evidence of a round cost before a submission was measured, in a participant's trainings.
    """

    error: float
    bias: float
    rank: float
    coverage: float
    worst: float
    half_width: float
    refused: float
    trainings: float
    starts: int


@dataclass(frozen=True)
class AccuracyResult:
    """Finished cells."""

    cells: Sequence[tuple[Cell, Record]]

    def figures(self) -> dict[tuple[str, str], Figures]:
        """By task and start."""
        groups: dict[tuple[str, str], list[Record]] = {}
        for cell, record in self.cells:
            groups.setdefault((cell.parameters["task"], cell.parameters["start"]), []).append(record)
        return {key: figures(records) for key, records in groups.items()}

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {f"{task} {start}": vars(found) for (task, start), found in self.figures().items()}


def figures(records: Sequence[Record]) -> Figures:
    """Of several seeds of one task and start."""
    degree, estimate = (
        np.concatenate([np.array(r[name]) for r in records]) for name in ("degree", "estimate")
    )
    inside = [
        np.abs(np.array(r["estimate"]) - np.array(r["degree"])) <= r["half_width"] + 1e-6 for r in records
    ]
    failed = [bool(f) for r in records for f in r["failed"]]
    return Figures(
        error=float(np.abs(estimate - degree).mean()),
        bias=float((estimate - degree).mean()),
        rank=float(spearmanr(estimate, degree).statistic),
        coverage=float(np.concatenate(inside).mean()),
        worst=min(float(part.mean()) for part in inside),
        half_width=float(np.mean([r["half_width"] for r in records])),
        refused=float(np.mean(failed)),
        trainings=float(np.mean([r["preparing_trainings"] for r in records])),
        starts=len(records),
    )
