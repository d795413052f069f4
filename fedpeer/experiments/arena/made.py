"""How often an auditor's test finds that opened samples were made up, and how often it accuses honest ones.

Somebody has collected samples of a majority-minority mix to a degree, fills the rare strata up to the reference in one
of the ways below, and opens what comes of it: about as large a share of it is made up as the degree says. The auditor
brings D_c as its reference (`fedpeer.learning.provenance`). Nothing is trained.

    honest         what was collected, eight times; label-noise: 2 % of its targets wrong
    repeat         rare samples again
    interpolate    between two of a stratum, up to half of the way or the whole
    augment        copies with noise of 0.05 or 0.2 deviations
    synthesise     the stratum's mean, and 0.48 or all of the deviations of others
    generated      normal, about the stratum's mean, with the covariance within strata
    relabelled     true samples of common strata, with a rare target
    moved          images, copied and moved by a pixel
    parts          a half of what was collected, each of them twice; with noise of 0.05 or 0.4 deviations
    public         true samples that anybody has; known: which the auditor brings, too
    snapped        interpolated, synthesised or generated, each number rounded to one that is there in its column
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from scipy import stats

from fedpeer.evidence import tricks as tricking
from fedpeer.evidence.tricks import Held, concatenated
from fedpeer.experiments.accuracy.tasks import TASKS
from fedpeer.experiments.accuracy.trial import drawn
from fedpeer.experiments.arena.tricks import jittered
from fedpeer.experiments.cells import Cell, CellStore, Record, run_cells
from fedpeer.experiments.statistics import LEVEL
from fedpeer.learning.duplicates import duplicates
from fedpeer.learning.partition import majority_minority
from fedpeer.learning.provenance import compare
from fedpeer.learning.samples import Samples
from fedpeer.learning.strata import reference_over

#: Of the collected samples, so that about such a share of what is opened is made up.
DEGREES = (Fraction(1, 10), Fraction(1, 4), Fraction(2, 5))

#: Of honest ones that are accused, at most.
RATE = Fraction(1, 20)

#: Times that honest ones are drawn; one of so many samples of the pool is public; wrong targets of label noise.
_HONEST, _PUBLIC, _NOISY = 8, 5, 0.02

#: Makes what is opened, of what was collected and of public samples.
_Making = Callable[[Held, Held, np.random.Generator], Samples]


def _counts(own: Held) -> tuple[Sequence[int], Sequence[int]]:
    """Rows of one's own up to the wanted counts, and the strata of what is missing."""
    kept: list[int] = []
    missing: list[int] = []
    for stratum, count in enumerate(tricking.wanted(own, 1)):
        members = np.flatnonzero(own.codes == stratum)[:count]
        kept += members.tolist()
        missing += [stratum] * (int(count) - len(members))
    return kept, missing


def _filled(own: Held, made: Samples) -> Samples:
    return concatenated(own.samples.select(np.array(_counts(own)[0], dtype=np.int64)), made)


def _relabelled(own: Held, public: Held, generator: np.random.Generator) -> Samples:
    kept, missing = _counts(own)
    rest = generator.permutation(np.setdiff1d(np.arange(len(own.codes)), kept))[: len(missing)]
    return _filled(own, own.samples.select(rest, np.array(missing, dtype=own.samples.targets.dtype)))


def _generated(own: Held, public: Held, generator: np.random.Generator) -> Samples:
    _, missing = _counts(own)
    shape = np.asarray(own.samples.inputs).shape[1:]
    x = np.asarray(own.samples.inputs, dtype=np.float64).reshape(len(own.codes), -1)
    means = np.array(
        [x[own.codes == s].mean(axis=0) if (own.codes == s).any() else 0 * x[0] for s in missing]
    )
    within = x - np.array([x[own.codes == s].mean(axis=0) for s in own.codes])
    made = means + generator.normal(size=(len(missing), len(x))) @ within / np.sqrt(len(x))
    inputs = made.reshape(-1, *shape).astype(np.asarray(own.samples.inputs).dtype)
    return _filled(own, Samples(inputs, np.array(missing, dtype=own.samples.targets.dtype)))


def _moved(own: Held, public: Held, generator: np.random.Generator) -> Samples:
    _, missing = _counts(own)
    rows = np.array([generator.choice(np.flatnonzero(own.codes == s)) for s in missing], dtype=np.int64)
    copies = own.samples.select(rows)
    images = np.asarray(copies.inputs)
    axes = (images.ndim - 2, images.ndim - 1)
    made = [
        np.roll(image, steps, axis=tuple(axis - 1 for axis in axes))
        for image, steps in zip(images, generator.choice([-1, 1], size=(len(images), 2)), strict=True)
    ]
    return _filled(own, Samples(np.array(made, dtype=images.dtype), copies.targets))


def _publicly(own: Held, public: Held, generator: np.random.Generator) -> Samples:
    _, missing = _counts(own)
    times = np.bincount(missing, minlength=len(own.reference))
    rows = [generator.permutation(np.flatnonzero(public.codes == s))[:n] for s, n in enumerate(times)]
    return _filled(own, public.samples.select(np.concatenate(rows).astype(np.int64)))


def _noisy(own: Held, public: Held, generator: np.random.Generator) -> Samples:
    wrong = generator.permutation(len(own.codes))[: round(_NOISY * len(own.codes))]
    targets = own.samples.targets.copy()
    targets[wrong] = (targets[wrong] + generator.integers(1, len(own.reference), len(wrong))) % len(
        own.reference
    )
    return replace(own.samples, targets=targets)


def _halves(noise: float) -> _Making:
    def make(own: Held, public: Held, generator: np.random.Generator) -> Samples:
        half = generator.permutation(len(own.codes))[: len(own.codes) // 2]
        return jittered(own.samples.select(np.resize(half, len(own.codes))), noise, generator)

    return make


def _snapped(make: _Making) -> _Making:
    def snap(own: Held, public: Held, generator: np.random.Generator) -> Samples:
        samples = make(own, public, generator)
        array = np.asarray(samples.inputs)
        there = np.asarray(own.samples.inputs).reshape(len(own.codes), -1)
        x = array.reshape(len(array), -1).copy()
        for i in range(x.shape[1]):
            values = np.unique(there[:, i])
            right = np.clip(np.searchsorted(values, x[:, i]), 1, max(len(values) - 1, 1))
            if len(values) > 1:
                lower, upper = values[right - 1], values[right]
                x[:, i] = np.where(x[:, i] - lower <= upper - x[:, i], lower, upper)
            else:
                x[:, i] = values[0]
        return replace(samples, inputs=x.reshape(array.shape))

    return snap


def _interpolated(reach: float) -> _Making:
    return lambda own, public, generator: tricking.interpolated(own, 1, reach, generator)


def _synthesised(spread: float) -> _Making:
    return lambda own, public, generator: tricking.synthesised(own, 1, spread, generator)


def _augmented(noise: float) -> _Making:
    return lambda own, public, generator: tricking.augmented(own, 1, noise, generator)


#: By name; the first two are honest.
MAKINGS: Mapping[str, _Making] = {
    "honest": lambda own, public, generator: own.samples,
    "label-noise": _noisy,
    "repeat": lambda own, public, generator: own.samples.select(tricking.repeated(own, 1, generator)),
    "interpolate-0.5": _interpolated(0.5),
    "interpolate-1": _interpolated(1),
    "augment-0.05": _augmented(0.05),
    "augment-0.2": _augmented(0.2),
    "synthesise-0.48": _synthesised(0.48),
    "synthesise-1": _synthesised(1),
    "generated": _generated,
    "relabelled": _relabelled,
    "moved": _moved,
    "parts": _halves(0),
    "parts-0.05": _halves(0.05),
    "parts-0.4": _halves(0.4),
    "interpolate-1-snapped": _snapped(_interpolated(1)),
    "synthesise-1-snapped": _snapped(_synthesised(1)),
    "generated-snapped": _snapped(_generated),
    "public": _publicly,
    "public-known": _publicly,
}

#: Tasks whose strata are classes and whose inputs are one array.
MADE_TASKS = ("digits", "flights-mlp")


def made_cells(tasks: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
    """One cell a task and seed."""
    return [Cell("made", {"task": task, "seed": seed}, seed) for task in tasks for seed in seeds]


def made_cell(parameters: Record, device: str) -> Record:
    """{"opened": [{"degree", "making", "found", "by", "distinct", "near"}]}."""
    task, seed = TASKS[parameters["task"]], int(parameters["seed"])
    parts, generator = task.parts(seed), np.random.default_rng([seed, 31])
    reference = reference_over(parts.validation_codes, parts.strata)
    public = np.arange(len(parts.pool)) % _PUBLIC == 0
    pool, codes = parts.pool.select(np.flatnonzero(~public)), parts.pool_codes[~public]
    given = Held(parts.pool.select(np.flatnonzero(public)), parts.pool_codes[public], reference)
    supply = np.bincount(codes, minlength=parts.strata)
    opened = []
    for degree in DEGREES:
        majority = int(generator.choice(np.flatnonzero(2 * supply >= supply.max())))
        mix = majority_minority(reference, task.recipe.samples, majority=majority, degree=degree)
        collected = [drawn(codes, mix.counts, generator) for _ in range(_HONEST)]
        held = [Held(pool.select(rows), codes[rows], reference) for rows in collected]
        for name, make, own in [
            *((name, make, held[0]) for name, make in MAKINGS.items()),
            *(("honest", MAKINGS["honest"], each) for each in held[1:]),
        ]:
            if name == "moved" and np.asarray(own.samples.inputs).ndim < 3:
                continue
            samples = make(own, given, generator)
            known = given.samples if name == "public-known" else None
            found = compare(
                samples, samples.targets, parts.validation, parts.validation_codes, generator, known
            )
            alike = duplicates(samples)
            opened.append({
                "degree": str(degree), "making": name, "found": found.p <= RATE, "by": found.by,
                "distinct": alike.distinct / len(samples), "near": alike.near / len(samples),
            })  # fmt: skip
    return {"opened": opened}


def run_made(
    tasks: Sequence[str],
    seeds: Sequence[int],
    store: CellStore,
    executor: Executor,
    done: Callable[[Cell, float], None] = lambda cell, seconds: None,
) -> dict[str, Any]:
    """The cells that `store` lacks; {task: {making: {degree: {"found", "of", "ci", "distinct", "near"}}}} beside
    {"rate", "seeds"}. The interval is Clopper and Pearson's, of the share that is found.

    Raises:
        CellError: a cell failed; the others are kept.
    """
    cells = made_cells(tasks, seeds)
    found = run_cells(cells, store, executor, done=done)
    by_task = {
        task: [x for cell in cells if cell.parameters["task"] == task for x in found[cell.key]["opened"]]
        for task in tasks
    }
    return {
        "rate": str(RATE),
        "seeds": len(seeds),
        **{
            task: {
                name: {
                    str(degree): _figures(
                        [x for x in each if x["making"] == name and x["degree"] == str(degree)]
                    )
                    for degree in DEGREES
                }
                for name in MAKINGS
                if any(x["making"] == name for x in each)
            }
            for task, each in by_task.items()
        },
    }


def _figures(opened: Sequence[Record]) -> dict[str, Any]:
    found = sum(x["found"] for x in opened)
    interval = stats.binomtest(found, len(opened)).proportion_ci(LEVEL, method="exact")
    return {
        "found": found,
        "of": len(opened),
        "ci": [round(float(interval.low), 4), round(float(interval.high), 4)],
        **{name: round(float(np.mean([x[name] for x in opened])), 3) for name in ("distinct", "near")},
    }
