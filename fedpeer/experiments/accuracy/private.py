"""What noise costs: degrees, refusals and accuracy where every model is private to an epsilon.

A cell is one fresh start. Participants train with noise that gives a round (epsilon, delta); shadows have the noise
too, as terms that state it have them; and, beside that, none, as where noise is a participant's own choice beyond the
terms.
Accuracy is that of the mean of all models, on D_c, which no participant has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from fedpeer.experiments.accuracy.results import StartFigures, figures
from fedpeer.experiments.accuracy.tasks import TASKS
from fedpeer.experiments.accuracy.trial import Trial
from fedpeer.experiments.cells import Cell, Record
from fedpeer.learning.mean import weighted_mean
from fedpeer.learning.workloads.protocol import loss_and_accuracy
from mechanism.privacy import MAX_NOISE_MULTIPLIER, Privacy, gaussians
from mechanism.settlement import MICRO
from mechanism.terms import Recipe
from participant.accounting import epsilon_of

#: Tasks whose models DP-SGD trains, and epsilons; None: no noise.
PRIVATE_TASKS = ("digits-mlp", "flights-mlp")
EPSILONS: tuple[float | None, ...] = (1.0, 2.0, 4.0, 8.0, None)

#: Well below one over the samples of a round.
DELTA = Decimal("0.00001")

#: Norm to which a sample's gradient, or a participant's update, is clipped.
CLIP = Decimal(1)

#: The noise multiplier's places.
_PLACES = 3


def private_cells(
    tasks: Sequence[str],
    seeds: Sequence[int],
    *,
    epsilons: Sequence[float | None] = EPSILONS,
    method: str = "dp-sgd",
    shadows: int = 100,
    participants: int = 48,
) -> list[Cell]:
    """One cell a task, epsilon and seed; all epsilons of a seed before the next."""
    return [
        Cell(
            "private",
            {
                "task": task,
                "seed": seed,
                "epsilon": epsilon,
                "method": method,
                "shadows": shadows,
                "participants": participants,
            },
            seed,
        )
        for task in tasks
        for epsilon in epsilons
        for seed in seeds
    ]


def private_cell(parameters: Record, device: str) -> Record:
    """True degrees; estimates and failed tests with and without noise in the shadows; accuracy."""
    del device
    task, shadows = TASKS[parameters["task"]], int(parameters["shadows"])
    trial = Trial(task, int(parameters["seed"]), 0)
    privacy = None
    if parameters["epsilon"] is not None:
        privacy = privacy_for(float(parameters["epsilon"]), parameters["method"], task.recipe)
    trial.recipe = replace(task.recipe, privacy=privacy)
    mixes, models = trial.participants(int(parameters["participants"]))
    ensembles = {"terms": trial.recipe} | ({} if privacy is None else {"own": task.recipe})
    counts = {}
    for name, recipe in ensembles.items():
        trial.evidence = replace(trial.evidence, recipe=recipe)
        observed = trial.observed(shadows)
        ensemble = observed.ensemble(trial.evidence, shadows)
        found = [ensemble.of(observed.observer(model)) for model in models]
        counts[name] = {
            "estimate": [f.degree_micro / MICRO for f in found],
            "half_width": ensemble.fitted.model.half_width / MICRO,
            "failed": [list(f.failed) for f in found],
        }
    mean = weighted_mean(models, [task.recipe.samples] * len(models))
    validation = trial.parts.validation
    _, accuracy = loss_and_accuracy(
        trial.workload, trial.workload.judge(mean, validation), validation.targets
    )
    return {
        "degree": [float(mix.degree) for mix in mixes],
        "noise_multiplier": None if privacy is None else str(privacy.noise_multiplier),
        "accuracy": accuracy,
        "shadows": counts,
    }


def privacy_for(epsilon: float, method: str, recipe: Recipe) -> Privacy:
    """The least noise, in thousandths, by which one round of the recipe is (epsilon, `DELTA`)-private."""
    step = Decimal(1).scaleb(-_PLACES)
    low, high = 0, int(MAX_NOISE_MULTIPLIER / step)
    while high - low > 1:
        middle = (low + high) // 2
        made = Privacy(method, CLIP, middle * step, DELTA)
        spent = epsilon_of([gaussians(made, recipe.samples, recipe.batch_size, recipe.epochs)], float(DELTA))
        low, high = (low, middle) if spent <= epsilon else (middle, high)
    return Privacy(method, CLIP, high * step, DELTA)


@dataclass(frozen=True)
class PrivateFigures:
    """Of one task and epsilon, over all seeds.

    Attributes:
        noise_multiplier: None: no noise.
        terms: of shadows with the noise of the terms; own: of shadows without it, None where there is none.
        accuracy: of the mean of all models, mean over the seeds.
    """

    noise_multiplier: str | None
    terms: StartFigures
    own: StartFigures | None
    accuracy: float
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class PrivateResult:
    """Finished cells."""

    cells: Sequence[tuple[Cell, Record]]

    def figures(self) -> dict[tuple[str, float | None], PrivateFigures]:
        """By task and epsilon."""
        groups: dict[tuple[str, float | None], list[tuple[Cell, Record]]] = {}
        for cell, record in self.cells:
            groups.setdefault((cell.parameters["task"], cell.parameters["epsilon"]), []).append(
                (cell, record)
            )
        return {key: _figures(group) for key, group in groups.items()}

    def record(self) -> dict[str, Any]:
        """For JSON."""
        first = self.cells[0][0].parameters
        return {
            "method": first["method"],
            "delta": str(DELTA),
            "clip": str(CLIP),
            "shadows": first["shadows"],
            "participants": first["participants"],
            "tasks": [
                {
                    "task": task,
                    "epsilon": epsilon,
                    "noise_multiplier": found.noise_multiplier,
                    "accuracy": found.accuracy,
                    "seeds": list(found.seeds),
                    "shadows_with_noise": _shown(found.terms),
                    "shadows_without": None if found.own is None else _shown(found.own),
                }
                for (task, epsilon), found in self.figures().items()
            ],
        }

    def draw(self, path: Path) -> None:
        """Error, refusals and accuracy by epsilon as a PNG."""
        from matplotlib.figure import Figure

        found = self.figures()
        tasks = list(dict.fromkeys(task for task, _ in found))
        epsilons = list(dict.fromkeys(epsilon for _, epsilon in found))
        figure = Figure(figsize=(11, 3.4), layout="constrained")
        axes = figure.subplots(1, 3)
        names = ["none" if e is None else f"{e:g}" for e in epsilons]
        for task in tasks:
            rows = [found[task, e] for e in epsilons]
            axes[0].plot(names, [row.terms.error for row in rows], "o-", label=task)
            axes[1].plot(names, [100 * row.terms.refused for row in rows], "o-", label=task)
            own = [100 * (row.own or row.terms).refused for row in rows]
            axes[1].plot(names, own, "x:", label=f"{task}, own choice")
            axes[2].plot(names, [row.accuracy for row in rows], "o-", label=task)
        for axis, title in zip(
            axes, ("mean error of the degree", "honest refused, %", "accuracy on D_c"), strict=True
        ):
            axis.set_title(title)
            axis.set_xlabel("epsilon of a round")
            axis.legend(fontsize="small")
        figure.savefig(path, dpi=150)


def _figures(group: Sequence[tuple[Cell, Record]]) -> PrivateFigures:
    records = [record for _, record in group]
    return PrivateFigures(
        records[0]["noise_multiplier"],
        _of(records, "terms"),
        _of(records, "own") if "own" in records[0]["shadows"] else None,
        float(np.mean([record["accuracy"] for record in records])),
        tuple(cell.parameters["seed"] for cell, _ in group),
    )


def _of(records: Sequence[Record], name: str) -> StartFigures:
    """Figures of one kind of shadows; nothing is said of costs."""
    free = {"shadow_trainings": 0.0, "measuring_trainings": 0.0}
    return figures(
        [
            {
                **free,
                "degree": record["degree"],
                "counts": {
                    "0": {**record["shadows"][name], "fitting_trainings": 0.0, "telling_trainings": 0.0}
                },
            }
            for record in records
        ],
        0,
    )


def _shown(found: StartFigures) -> Mapping[str, float]:
    names = ("error", "bias", "rank", "coverage", "half_width", "refused")
    return {name: getattr(found, name) for name in names}
