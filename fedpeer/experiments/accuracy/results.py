"""What the starts of a task say together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from fedpeer.experiments.cells import Cell, Record

#: Shadows of the goals.
GOAL_SHADOWS = 100

#: Mean error and rank correlation that are aimed at, at fresh and half-trained starts.
GOALS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "digits": {"fresh": (0.038, 0.975), "half": (0.045, 0.96)},
    "fashion-mnist": {"fresh": (0.035, 0.98), "half": (0.055, 0.95)},
    "fashion-resnet": {"fresh": (0.040, 0.97), "half": (0.055, 0.955)},
    "flights-mlp": {"fresh": (0.032, 0.98), "half": (0.045, 0.96)},
    "flights-softmax": {"fresh": (0.030, 0.98), "half": (0.040, 0.97)},
    "flights-air-time": {"fresh": (0.055, 0.93), "half": (0.065, 0.90)},
    "text-head": {"fresh": (0.030, 0.98), "half": (0.045, 0.97)},
    "text-lora": {"fresh": (0.045, 0.965), "half": (0.070, 0.92)},
}

#: A count of shadows is near enough to the best where its mean error is at most so many times that of the best.
_NEAR = 1.2


@dataclass(frozen=True)
class StartFigures:
    """Of one task, start and number of shadows, over all seeds.

    Attributes:
        error: mean of |estimate - degree|; bias: mean of estimate - degree.
        rank: Spearman's correlation.
        coverage: share of degrees within the interval; worst: of a single seed.
        half_width: of the interval, mean over the seeds.
        refused: share of participants, all honest, that fail a test.
        preparing: what the evidence of a round costs before a submission is measured, in a participant's trainings.
        measuring: what a submission costs, likewise.
    """

    error: float
    bias: float
    rank: float
    coverage: float
    worst: float
    half_width: float
    refused: float
    preparing: float
    measuring: float
    starts: int

    def trainings(self, participants: int) -> float:
        """A round's evidence, in trainings of one participant."""
        return self.preparing + participants * self.measuring


@dataclass(frozen=True)
class AccuracyResult:
    """Finished cells."""

    cells: Sequence[tuple[Cell, Record]]

    def groups(self) -> dict[tuple[str, str], list[tuple[Cell, Record]]]:
        """By task and start."""
        groups: dict[tuple[str, str], list[tuple[Cell, Record]]] = {}
        for cell, record in self.cells:
            groups.setdefault((cell.parameters["task"], cell.parameters["start"]), []).append((cell, record))
        return groups

    def figures(self) -> dict[tuple[str, str], dict[int, StartFigures]]:
        """By task and start, then by the number of shadows."""
        return {key: _by_count([record for _, record in group]) for key, group in self.groups().items()}

    def record(self) -> dict[str, Any]:
        """For JSON."""
        figures = self.figures()
        return {
            " ".join(key): {
                "seeds": [cell.parameters["seed"] for cell, _ in group],
                "shadows": {str(count): vars(found) for count, found in figures[key].items()},
            }
            for key, group in self.groups().items()
        }


def _by_count(records: Sequence[Record]) -> dict[int, StartFigures]:
    return {count: figures(records, count) for count in sorted(map(int, records[0]["counts"]))}


def shown(by_count: Mapping[int, StartFigures]) -> int:
    """The number of shadows that the goals are for, or the largest below it."""
    return max((count for count in by_count if count <= GOAL_SHADOWS), default=min(by_count))


def cheapest(by_count: Mapping[int, StartFigures]) -> int:
    """The fewest shadows whose mean error is within 20 % of the best."""
    best = min(found.error for found in by_count.values())
    return min(count for count, found in by_count.items() if found.error <= _NEAR * best)


def figures(records: Sequence[Record], count: int) -> StartFigures:
    """Of several seeds of one task and start."""
    measured = [record["counts"][str(count)] for record in records]
    degrees = [np.array(record["degree"]) for record in records]
    estimates = [np.array(each["estimate"]) for each in measured]
    degree, estimate = np.concatenate(degrees), np.concatenate(estimates)
    inside = [
        np.abs(found - true) <= each["half_width"] + 1e-6
        for each, found, true in zip(measured, estimates, degrees, strict=True)
    ]
    pairs = list(zip(records, measured, strict=True))
    preparing = [count * record["shadow_trainings"] + each["fitting_trainings"] for record, each in pairs]
    measuring = [record["measuring_trainings"] + each["telling_trainings"] for record, each in pairs]
    return StartFigures(
        error=float(np.abs(estimate - degree).mean()),
        bias=float((estimate - degree).mean()),
        rank=float(spearmanr(estimate, degree).statistic),
        coverage=float(np.concatenate(inside).mean()),
        worst=min(float(part.mean()) for part in inside),
        half_width=float(np.mean([each["half_width"] for each in measured])),
        refused=float(np.mean([bool(names) for each in measured for names in each["failed"]])),
        preparing=float(np.mean(preparing)),
        measuring=float(np.mean(measuring)),
        starts=len(records),
    )
