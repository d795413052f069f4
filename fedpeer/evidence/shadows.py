"""Shadow models: what training by the recipe does to the round's start at a known degree.

A shadow is trained on samples of D_c drawn at given label counts, and observed on those samples of D_c that it
has not seen: participants do not see D_c either. So no shadow uses more than `SEEN` of any label's samples; what
its counts ask beyond these is repeated.

*Sound* shadows cover all degrees: majority-minority with even and long tails, few classes, Dirichlet. *Flawed*
ones are nearly balanced, but trained on a handful of samples over and over, or with a part of the labels drawn
at random; they teach the map of quality what that looks like.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from fedpeer.evidence.behaviour import Behaviour, behaviour
from fedpeer.evidence.sketch import Array, Sketcher
from fedpeer.learning.datasets import LabelledData
from fedpeer.learning.models import Weights
from fedpeer.learning.partition import LabelMix, dirichlet, majority_minority, number_of_classes
from fedpeer.learning.stacked import train_many
from fedpeer.learning.training import log_probabilities
from mechanism.terms import Recipe

#: Largest share of a label's samples in D_c that one shadow is trained on; the rest is what it is observed on.
SEEN = 0.6

#: Flawed shadows for each sound one.
FLAWED_SHARE = 0.25

#: Shadows in one task of the executor: a few seconds of work, small enough to spread.
CHUNK = 8

#: Takes how many shadows are trained, and of how many.
ReportProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class Plan:
    """One shadow before its training.

    Attributes:
        mix: its label counts.
        indices: the samples of D_c that it is trained on, repeats included.
        labels: what it is trained to give for them; not the true ones for a flawed shadow with noise.
        sound: trained as the recipe wants.
        seed: of its training.
    """

    mix: LabelMix
    indices: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    sound: bool
    seed: int


@dataclass(frozen=True)
class Shadow:
    """One trained shadow: what was observed of it; its weights are gone.

    Attributes:
        degree: delta of its label counts.
        shares: its label distribution, shape (I,).
        sound: see `Plan`.
        behaviour: features on the samples of D_c that it has not seen.
        sketch: of its update.
        outputs: log probabilities on the samples `probe` of D_c, float32, shape (probes, I).
    """

    degree: float
    shares: Array
    sound: bool
    behaviour: Behaviour
    sketch: Array
    outputs: npt.NDArray[np.float32]


@dataclass(frozen=True)
class ShadowContext:
    """What all shadows of a start have in common; travels to the executor's workers.

    Attributes:
        start: the round's start model.
        start_logs: its log probabilities on D_c.
        validation: D_c.
        probe: indices of the samples on which outputs are compared.
        trainable: names of the tensors that training moves.
        sketch_seed: of the sketch.
    """

    start: Weights
    start_logs: npt.NDArray[np.float32]
    validation: LabelledData
    probe: npt.NDArray[np.int64]
    reference: tuple[Fraction, ...]
    recipe: Recipe
    trainable: tuple[str, ...]
    sketch_seed: int


def plan_shadows(
    validation: LabelledData, reference: Sequence[Fraction], recipe: Recipe, count: int, seed: Sequence[int]
) -> list[Plan]:
    """`count` sound shadows and a quarter as many flawed ones; the same seed gives the same plans."""
    generator = np.random.default_rng(list(seed))
    plans = []
    for k in range(count):
        mix = sound_mix(k, reference, recipe.samples, generator)
        indices = _resample(validation, mix.counts, generator)
        plans.append(Plan(mix, indices, validation.labels[indices], True, int(generator.integers(2**31))))
    for k in range(round(count * FLAWED_SHARE)):
        plans.append(_flawed(k, validation, reference, recipe.samples, generator))
    return plans


def train_shadows(
    context: ShadowContext, plans: Sequence[Plan], executor: Executor | None, report: ReportProgress
) -> list[Shadow]:
    """The shadows of `plans`, in their order, on the executor or here; `report` gets how many are trained."""
    chunks = [plans[i : i + CHUNK] for i in range(0, len(plans), CHUNK)]
    if executor is None:
        trained = (_train_chunk(context, chunk) for chunk in chunks)
    else:
        futures = [executor.submit(_train_chunk, context, chunk) for chunk in chunks]
        trained = (future.result() for future in futures)
    shadows: list[Shadow] = []
    for chunk in trained:
        shadows += chunk
        report(len(shadows), len(plans))
    return shadows


def _train_chunk(context: ShadowContext, plans: Sequence[Plan]) -> list[Shadow]:
    validation, start = context.validation, context.start
    sketcher = Sketcher(context.trainable, start, context.sketch_seed)
    samples = [
        LabelledData(validation.name, validation.images[p.indices], p.labels, validation.classes)
        for p in plans
    ]
    shadows = []
    for plan, weights in zip(
        plans, train_many(start, samples, context.recipe, [p.seed for p in plans]), strict=True
    ):
        logs = log_probabilities(weights, validation.images, context.recipe.model)
        unseen = np.setdiff1d(np.arange(len(validation)), plan.indices)
        shadows.append(
            Shadow(
                degree=float(plan.mix.degree),
                shares=np.array([float(p) for p in plan.mix.distribution]),
                sound=plan.sound,
                behaviour=behaviour(
                    logs[unseen],
                    context.start_logs[unseen],
                    weights,
                    start,
                    validation.select(unseen),
                    context.reference,
                ),
                sketch=sketcher(weights, start),
                outputs=logs[context.probe],
            )
        )
    return shadows


def sound_mix(
    k: int, reference: Sequence[Fraction], samples: int, generator: np.random.Generator
) -> LabelMix:
    """The k-th label mix; the four families take turns."""
    labels = len(reference)
    majority = int(generator.integers(labels))
    order = [int(label) for label in generator.permutation(labels) if label != majority]
    if k % 4 == 0:
        degree = Fraction(float(generator.uniform())) * (1 - reference[majority])
        return majority_minority(reference, samples, majority=majority, degree=degree, order=order)
    if k % 4 == 1:
        tail = (1, Fraction(7, 10), Fraction(1, 2))[int(generator.integers(3))]
        share = float(generator.uniform(float(reference[majority]), 1))
        return majority_minority(reference, samples, majority=majority, share=share, tail=tail, order=order)
    if k % 4 == 2:
        # From nearly one label (0.1) to nearly the reference (20), evenly on a logarithmic scale.
        alpha = float(np.exp(generator.uniform(np.log(0.1), np.log(20))))
        return dirichlet(reference, samples, alpha=alpha, generator=generator)
    # One label, two, ...: a screen that has seen no model of a single label would refuse an honest one.
    kept = k // 4 % (labels - 1) + 1
    held = [int(label) for label in generator.choice(labels, kept, replace=False)]
    rest = float(generator.uniform()) if kept > 1 and generator.integers(2) else 0.0
    return number_of_classes(reference, samples, labels=held, rest=rest)


def _resample(
    validation: LabelledData, counts: Sequence[int], generator: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Samples of D_c at `counts`, from at most `SEEN` of each label's samples; the excess is repeated."""
    chosen = []
    for label, count in enumerate(counts):
        members = generator.permutation(np.flatnonzero(validation.labels == label))
        seen = members[: max(1, int(SEEN * len(members)))]
        chosen.append(seen[:count])
        if count > len(seen):
            chosen.append(generator.choice(seen, count - len(seen)))
    return generator.permutation(np.concatenate(chosen)).astype(np.int64)


def _flawed(
    k: int,
    validation: LabelledData,
    reference: Sequence[Fraction],
    samples: int,
    generator: np.random.Generator,
) -> Plan:
    majority = int(generator.integers(len(reference)))
    seed = int(generator.integers(2**31))
    if k % 2:
        # A handful, evenly repeated: from one sample a label to a fifth of what the recipe asks.
        most = max(len(reference) + 1, samples // 5)
        handful = int(np.exp(generator.uniform(np.log(len(reference)), np.log(most))))
        mix = majority_minority(reference, handful, majority=majority, degree=0)
        indices = np.resize(_resample(validation, mix.counts, generator), samples)
        return Plan(mix, indices, validation.labels[indices], False, seed)
    # A skewed set passed off as the reference: samples of frequent labels get the names of rare ones.
    degree = Fraction(float(generator.uniform(0.2, 0.8))) * (1 - reference[majority])
    order = [int(label) for label in generator.permutation(len(reference)) if label != majority]
    mix = majority_minority(reference, samples, majority=majority, degree=degree, order=order)
    indices = _resample(validation, mix.counts, generator)
    return Plan(mix, indices, relabelled(validation.labels[indices], reference, generator), False, seed)


def relabelled(
    labels: npt.NDArray[np.int64], reference: Sequence[Fraction], generator: np.random.Generator
) -> npt.NDArray[np.int64]:
    """`labels` with as few changed as makes their counts those of `reference`, within rounding."""
    wanted = np.floor(np.array([float(p) for p in reference]) * len(labels)).astype(np.int64)
    counts = np.bincount(labels, minlength=len(reference))
    surplus = np.concatenate(
        [
            generator.permutation(np.flatnonzero(labels == label))[: max(0, counts[label] - wanted[label])]
            for label in range(len(reference))
        ]
    )
    missing = np.repeat(np.arange(len(reference)), np.maximum(0, wanted - counts))
    changed = labels.copy()
    chosen = generator.permutation(surplus)[: len(missing)]
    changed[chosen] = generator.permutation(missing)[: len(chosen)]
    return changed
