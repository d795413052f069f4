"""How many honest participants are hurt, by what their training has beside the recipe.

Participants of foreign mixes train on samples of their own, once for each *habit*: the same mixes, samples and seeds,
so that habits are compared in pairs. Those of one habit are assessed as a round, and claim the truth. One is *hurt*
where any screen fails, or its true claim is refuted. Samples in common are no fault: *linked* stands apart.

    recipe             as the task says
    float64            computed in float64
    epsilon-1e-7       of Adam, in place of 1e-8
    fedprox-0.01       a proximal term
    bfloat16, 8-bits   the update rounded, each tensor to 255 levels in the second
    label-noise        2 % of the targets are another class
    overlap            every second participant has the mix, and half of the samples, of the one before

and those that terms would have to allow:

    batch-x2, epochs-more, epochs-fewer, rate-higher, rate-lower (by 25 %), augmentation, label-smoothing (0.1)

The light augmentation moves a batch of images by a pixel at most, and adds noise of a twentieth to other inputs.

With `allow` the terms allow all of these, in ranges that end there (`ALLOWED`), so that shadows are trained by
variations. What each habit keeps of its weight, by its distinct samples, stands beside the counts.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from fedpeer.evidence import ShadowEvidence
from fedpeer.experiments.accuracy.tasks import TASKS
from fedpeer.experiments.accuracy.trial import Trial, drawn, foreign_mix
from fedpeer.experiments.cells import Cell, Record
from fedpeer.learning.models import Weights
from fedpeer.learning.samples import Samples
from fedpeer.learning.training import epoch_batches, one_thread
from fedpeer.learning.workloads.protocol import NewWeights
from fedpeer.learning.workloads.torch import TorchWorkload
from fedpeer.protocol.submission import Submission
from mechanism.coverage import weight
from mechanism.settlement import MICRO, Assessment
from mechanism.terms import Recipe, Rule
from mechanism.variation import Allowed

#: Tasks that habits are measured on: classifiers, whose loss label smoothing is known for.
HONEST_TASKS = ("digits", "fashion-mnist", "flights-mlp", "text-head")

_NOISY_LABELS, _NOISY_INPUTS, _SMOOTHING = 0.02, 0.05, 0.1


@dataclass(frozen=True)
class Habit:
    """What one's training has beside the recipe.

    Attributes:
        allowed: whether only terms that allow it let anybody do so.
        recipe: what becomes of the recipe.
        rounded: what becomes of an update's tensor.
    """

    allowed: bool = False
    recipe: Callable[[Recipe], Recipe] = lambda recipe: recipe
    dtype: torch.dtype = torch.float32
    epsilon: float = 1e-8
    noisy: bool = False
    overlap: bool = False
    augmented: bool = False
    smoothing: float = 0.0
    rounded: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] | None = None


#: What the terms allow where they allow the second kind.
ALLOWED = Allowed(
    batch_factor=Decimal(2),
    epochs=1,
    learning_rate=Decimal("0.25"),
    label_smoothing=Decimal("0.1"),
    augmentation=True,
)


def _bfloat16(update: npt.NDArray[Any]) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = torch.from_numpy(update).bfloat16().float().numpy()
    return found


def _eight_bits(update: npt.NDArray[Any]) -> npt.NDArray[Any]:
    step = float(np.abs(update).max()) / 127
    found: npt.NDArray[Any] = np.rint(update / step) * step if step > 0 else update
    return found


def _epochs(more: int) -> Callable[[Recipe], Recipe]:
    return lambda recipe: replace(recipe, epochs=max(recipe.epochs + more, 1))


def _rate(factor: str) -> Callable[[Recipe], Recipe]:
    return lambda recipe: replace(recipe, learning_rate=recipe.learning_rate * Decimal(factor))


HABITS: Mapping[str, Habit] = {
    "recipe": Habit(),
    "float64": Habit(dtype=torch.float64),
    "epsilon-1e-7": Habit(epsilon=1e-7),
    "fedprox-0.01": Habit(recipe=lambda recipe: replace(recipe, proximal=Decimal("0.01"))),
    "bfloat16": Habit(rounded=_bfloat16),
    "8-bits": Habit(rounded=_eight_bits),
    "label-noise": Habit(noisy=True),
    "overlap": Habit(overlap=True),
    "batch-x2": Habit(allowed=True, recipe=lambda recipe: replace(recipe, batch_size=2 * recipe.batch_size)),
    "epochs-more": Habit(allowed=True, recipe=_epochs(1)),
    "epochs-fewer": Habit(allowed=True, recipe=_epochs(-1)),
    "rate-higher": Habit(allowed=True, recipe=_rate("1.25")),
    "rate-lower": Habit(allowed=True, recipe=_rate("0.75")),
    "augmentation": Habit(allowed=True, augmented=True),
    "label-smoothing": Habit(allowed=True, smoothing=_SMOOTHING),
}


def honest_cells(
    tasks: Sequence[str],
    seeds: Sequence[int],
    *,
    shadows: int = 100,
    participants: int = 24,
    starts: Sequence[str] = ("fresh", "half"),
    allow: bool = False,
) -> list[Cell]:
    """One cell a task, seed and start.

    Args:
        allow: whether the terms allow the habits that they would have to allow.
    """
    return [
        Cell(
            "honest",
            {
                "task": task,
                "seed": seed,
                "start": start,
                "shadows": shadows,
                "participants": participants,
                "allow": allow,
            },
            priority,
        )
        for priority, task in enumerate(tasks)
        for start in starts
        for seed in seeds
    ]


def honest_cell(parameters: Record, device: str) -> Record:
    """By habit: participants, those that are hurt, by which screens, those that are linked to another, and the mean
    weight by distinct samples."""
    task = TASKS[parameters["task"]]
    if parameters["allow"]:
        task = replace(task, recipe=replace(task.recipe, allowed=ALLOWED))
    trial = Trial(task, int(parameters["seed"]), task.warm if parameters["start"] == "half" else 0)
    evidence = ShadowEvidence(trial.evidence, trial.seed, shadows=int(parameters["shadows"]))
    ensemble = evidence.prepare(trial.start, 1)
    generator = np.random.default_rng([trial.seed, 21])
    people = [_Person.of(trial, k, generator) for k in range(int(parameters["participants"]))]
    found = {}
    for name, habit in HABITS.items():
        round_ = [
            replace(one, mix=people[k - 1].mix, rows=_half_of(trial, people[k - 1], one))
            if habit.overlap and k % 2
            else one
            for k, one in enumerate(people)
        ]
        submissions = [
            Submission(
                f"p{k:02d}",
                one.trained(trial, habit),
                bytes([k % 256]) * 32,
                trial.recipe.samples,
                one.mix.degree,
                k,
            )
            for k, one in enumerate(round_)
        ]
        found[name] = _record(evidence.assess(ensemble, submissions).assessments)
    return found


@dataclass(frozen=True)
class HonestResult:
    """Finished cells."""

    cells: Sequence[tuple[Cell, Record]]

    def record(self) -> dict[str, Any]:
        """For JSON: by task and start the seeds, and of all of them together the counts of each habit."""
        groups: dict[str, list[tuple[Cell, Record]]] = {}
        for cell, found in self.cells:
            groups.setdefault(f"{cell.parameters['task']} {cell.parameters['start']}", []).append(
                (cell, found)
            )
        return {
            key: {
                "seeds": [cell.parameters["seed"] for cell, _ in group],
                "shadows": group[0][0].parameters["shadows"],
                "habits": {name: _together([found[name] for _, found in group]) for name in HABITS},
            }
            for key, group in groups.items()
        }


def _together(counts: Sequence[Record]) -> Record:
    by: Counter[str] = Counter()
    for each in counts:
        by.update(each["by"])
    return {
        **{n: sum(each[n] for each in counts) for n in ("of", "hurt", "linked")},
        **{
            n: round(
                sum(each["scored"] * each[n] for each in counts)
                / max(1, sum(each["scored"] for each in counts)),
                3,
            )
            for n in ("weight", "error", "covered")
        },
        "by": dict(sorted(by.items())),
    }


def _record(assessments: Sequence[Assessment]) -> Record:
    failed = [{v.screen for v in each.verdicts if not v.passed} for each in assessments]
    weights, off, covered = [], [], []
    for one in assessments:
        if one.verified_micro is None or one.lower_micro is None or one.upper_micro is None:
            continue
        weights.append(
            float(weight(Fraction(one.distinct_micro, MICRO), Fraction(1), Fraction(Rule.whole_from)))
        )
        off.append(float(abs(Fraction(one.verified_micro, MICRO) - one.claimed_degree)))
        covered.append(one.lower_micro <= one.claimed_degree * MICRO <= one.upper_micro)
    return {
        "of": len(failed),
        "scored": len(off),
        **{
            name: float(np.mean(values)) if off else 0.0
            for name, values in (("weight", weights), ("error", off), ("covered", covered))
        },
        "hurt": sum(bool(names - {"overlap"}) for names in failed),
        "by": dict(sorted(Counter(name for names in failed for name in names - {"overlap"}).items())),
        "linked": sum("overlap" in names for names in failed),
    }


@dataclass(frozen=True)
class _Person:
    """An honest participant: its mix, its samples among the pool, and the seed of its training."""

    mix: Any
    rows: npt.NDArray[np.int64]
    seed: int
    noise: npt.NDArray[np.int64] = field(repr=False)

    @classmethod
    def of(cls, trial: Trial, k: int, generator: np.random.Generator) -> "_Person":
        mix = foreign_mix(k, trial.reference, trial.recipe.samples, generator)
        rows = drawn(trial.parts.pool_codes, mix.counts, generator)
        return cls(mix, rows, int(generator.integers(2**31)), generator.permutation(len(rows)))

    def trained(self, trial: Trial, habit: Habit) -> NewWeights:
        samples = trial.parts.pool.select(self.rows)
        if habit.noisy:
            chosen = self.noise[: round(_NOISY_LABELS * len(samples))]
            targets = samples.targets.copy()
            classes = trial.workload.classes
            assert classes is not None, "the tasks are classifiers'"
            targets[chosen] = (targets[chosen] + 1 + chosen % (classes - 1)) % classes
            samples = samples.select(np.arange(len(samples)), targets)
        assert isinstance(trial.workload, TorchWorkload), "the tasks are torch's"
        return train_with(trial.workload, trial.start, samples, trial.recipe, self.seed, habit)


def _half_of(trial: Trial, first: _Person, second: _Person) -> npt.NDArray[np.int64]:
    """Half of the first one's samples, at random, and others of its mix in place of the rest."""
    generator = np.random.default_rng([second.seed, 5])
    own = generator.permutation(drawn(trial.parts.pool_codes, first.mix.counts, generator))
    common = generator.permutation(first.rows)[: len(first.rows) // 2]
    found: npt.NDArray[np.int64] = np.concatenate([common, own[len(common) :]])
    return found


def train_with(
    workload: TorchWorkload, start: Weights, samples: Samples, recipe: Recipe, seed: int, habit: Habit
) -> NewWeights:
    """A participant's own training loop, with torch's optimizers, by a classifier's recipe and its habit."""
    recipe = habit.recipe(recipe)
    module = workload.module_at(start).to(habit.dtype).train()
    parameters = [p for p in module.parameters() if p.requires_grad]
    begun = [p.detach().clone() for p in parameters]
    rate = float(recipe.learning_rate)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(parameters, rate, momentum=0.9)
    if recipe.optimizer == "adam":
        optimizer = torch.optim.Adam(parameters, rate, eps=habit.epsilon)
    inputs = torch.from_numpy(np.asarray(samples.inputs)).to(habit.dtype)
    targets = torch.from_numpy(samples.targets)
    draws = torch.Generator().manual_seed(seed)
    with one_thread():
        for batches in epoch_batches(len(samples), recipe, seed):
            for batch in batches:
                given = _augmented(inputs[batch], draws) if habit.augmented else inputs[batch]
                loss = functional.cross_entropy(
                    module(given), targets[batch], label_smoothing=habit.smoothing
                )
                if recipe.proximal:
                    far = sum(((p - b) ** 2).sum() for p, b in zip(parameters, begun, strict=True))
                    loss = loss + float(recipe.proximal) / 2 * far
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]  # torch's own stub
                optimizer.step()
    found = workload.weights_of(module.to(torch.float32))
    if habit.rounded is None:
        return found
    return {
        name: (start[name] + habit.rounded(part - start[name])).astype(part.dtype)
        if name in workload.trainable
        else part
        for name, part in found.items()
    }


def _augmented(inputs: torch.Tensor, draws: torch.Generator) -> torch.Tensor:
    """Images moved by a pixel at most; other inputs with noise."""
    if inputs.ndim == 4:
        down, right = torch.randint(-1, 2, (2,), generator=draws).tolist()
        return torch.roll(inputs, (down, right), (2, 3))
    noise = torch.randn(inputs.shape, generator=draws).to(inputs.dtype)
    return inputs + _NOISY_INPUTS * noise
