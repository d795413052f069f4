"""What can be done to skewed data, and to a model of them, so that it seems to be of balanced ones.

Each keeps the recipe's number of samples. `strength` s leads from the counts of one's own to those of the reference,
over the strata that one holds at all: (1 - s) own + s reference. Samples that are had count first; only what is missing
is made up.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedpeer.experiments.errors import ExperimentError
from fedpeer.learning.partition import LabelMix
from fedpeer.learning.samples import Samples, Weights
from fedpeer.learning.strata import Codes
from fedpeer.learning.workloads.protocol import Workload
from fedpeer.learning.workloads.torch import TorchWorkload

Rows = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Collected:
    """Data that were collected at a cost.

    Attributes:
        mix: their counts; samples, codes: themselves and their strata.
        reference: p^(c).
        spent: credits.
    """

    mix: LabelMix
    samples: Samples
    codes: Codes
    reference: Sequence[Fraction]
    spent: float

    def select(self, rows: Rows) -> "Collected":
        counts = np.bincount(self.codes[rows], minlength=len(self.reference))
        mix = LabelMix(tuple(int(n) for n in counts), tuple(self.reference))
        return Collected(mix, self.samples.select(rows), self.codes[rows], self.reference, self.spent)


def joined(own: Collected, other: Collected) -> Collected:
    """What two have together."""
    samples = concatenated(own.samples, other.samples)
    codes = np.concatenate([own.codes, other.codes])
    counts = tuple(a + b for a, b in zip(own.mix.counts, other.mix.counts, strict=True))
    mix = LabelMix(counts, own.mix.reference)
    return Collected(mix, samples, codes, own.reference, own.spent + other.spent)


def concatenated(first: Samples, second: Samples) -> Samples:
    """All samples of two, without their columns."""
    inputs: Any = {n: np.concatenate([a, second.arrays[n]]) for n, a in first.arrays.items()}
    if not isinstance(first.inputs, Mapping):
        inputs = inputs[""]
    return Samples(inputs, np.concatenate([first.targets, second.targets]))


def wanted(own: Collected, strength: float) -> Rows:
    """Samples of each stratum, as many together as there are, shape (S,)."""
    have = np.bincount(own.codes, minlength=len(own.reference))
    level = np.array([float(q) for q in own.reference]) * (have > 0)
    shares = (1 - strength) * have / have.sum() + strength * level / level.sum()
    counts = np.floor(shares * len(own.codes)).astype(np.int64)
    rest = np.argsort(counts - shares * len(own.codes), kind="stable")
    counts[rest[: len(own.codes) - counts.sum()]] += 1
    return np.where(have > 0, counts, 0)


def repeated(own: Collected, strength: float, generator: np.random.Generator) -> Rows:
    """Rows at the wanted counts: samples of common strata are left out, those of rare ones come again."""
    parts = [
        np.resize(generator.permutation(np.flatnonzero(own.codes == s)), n)
        for s, n in enumerate(wanted(own, strength))
        if n
    ]
    return generator.permutation(np.concatenate(parts)).astype(np.int64)


def weighted(own: Collected, strength: float, generator: np.random.Generator) -> Rows:
    """Rows drawn with replacement, with the wanted counts as their expectation."""
    have = np.bincount(own.codes, minlength=len(own.reference))
    weight = (wanted(own, strength) / np.maximum(have, 1))[own.codes]
    chosen = generator.choice(len(own.codes), len(own.codes), p=weight / weight.sum())
    return chosen.astype(np.int64)


#: Of the rows of samples to start from, of the same stratum or of any, new inputs of one array.
_Making = Callable[[Array, Rows], Array]


def _filled(own: Collected, strength: float, make: _Making, generator: np.random.Generator) -> Samples:
    """One's own samples up to the wanted counts, and made ones where they are too few."""
    kept, extra = [], []
    for stratum, count in enumerate(wanted(own, strength)):
        members = generator.permutation(np.flatnonzero(own.codes == stratum))
        kept.append(members[:count])
        if count > len(members):
            extra.append(generator.choice(members, count - len(members)))
    real = own.samples.select(np.concatenate(kept).astype(np.int64))
    if not extra:
        return real
    rows = np.concatenate(extra).astype(np.int64)
    base = own.samples.select(rows)
    inputs: Any = {
        name: make(array, rows).astype(array.dtype) if array.dtype.kind == "f" else array[rows]
        for name, array in own.samples.arrays.items()
    }
    if not isinstance(own.samples.inputs, Mapping):
        inputs = inputs[""]
    return concatenated(real, Samples(inputs, base.targets))


def _same_stratum(own: Collected, rows: Rows, generator: np.random.Generator) -> Rows:
    """To each row another one of its stratum, by chance."""
    return np.array(
        [generator.choice(np.flatnonzero(own.codes == own.codes[row])) for row in rows], dtype=np.int64
    )


def _columns(size: int, array: Array) -> tuple[int, ...]:
    """The shape that broadcasts one number a sample over `array`."""
    return (size, *([1] * (array.ndim - 1)))


def interpolated(own: Collected, strength: float, reach: float, generator: np.random.Generator) -> Samples:
    """Missing samples lie between two of their stratum, up to `reach` of the way."""

    def make(array: Array, rows: Rows) -> Array:
        others = _same_stratum(own, rows, generator)
        step = reach * generator.uniform(size=_columns(len(rows), array))
        made: Array = array[rows] + step * (array[others] - array[rows])
        return made

    return _filled(own, strength, make, generator)


def augmented(own: Collected, strength: float, noise: float, generator: np.random.Generator) -> Samples:
    """Missing samples are others with noise, over the deviation of each input."""

    def make(array: Array, rows: Rows) -> Array:
        return _with_noise(array[rows], array.std(axis=0), noise, generator)

    return _filled(own, strength, make, generator)


def synthesised(own: Collected, strength: float, spread: float, generator: np.random.Generator) -> Samples:
    """Missing samples are the mean of their stratum and so much of what any sample deviates from its own."""

    def make(array: Array, rows: Rows) -> Array:
        means = {s: array[own.codes == s].mean(axis=0) for s in np.unique(own.codes)}
        donors = generator.integers(len(own.codes), size=len(rows))
        off = array[donors] - np.array([means[own.codes[d]] for d in donors])
        made: Array = np.array([means[own.codes[row]] for row in rows]) + spread * off
        return made

    return _filled(own, strength, make, generator)


def jittered(samples: Samples, noise: float, generator: np.random.Generator) -> Samples:
    """The samples with noise, over the deviation of each input."""
    if not noise:
        return samples
    inputs: Any = {
        n: _with_noise(a, a.std(axis=0), noise, generator).astype(a.dtype) if a.dtype.kind == "f" else a
        for n, a in samples.arrays.items()
    }
    return Samples(inputs if isinstance(samples.inputs, Mapping) else inputs[""], samples.targets)


def _with_noise(array: Array, deviation: Array, noise: float, generator: np.random.Generator) -> Array:
    made: Array = array + noise * deviation * generator.normal(size=array.shape)
    return made


def with_public(
    own: Collected,
    public: Samples,
    codes: Codes,
    each: int,
    strength: float,
    generator: np.random.Generator,
) -> Samples:
    """One's own samples and `each` public ones of every stratum, repeated up to the wanted counts."""
    found = [generator.permutation(np.flatnonzero(codes == s))[:each] for s in range(len(own.reference))]
    rows = np.concatenate(found).astype(np.int64)
    mix = LabelMix(tuple(len(part) for part in found), tuple(own.reference))
    both = joined(own, Collected(mix, public.select(rows), codes[rows], own.reference, 0.0))
    return both.samples.select(repeated(both, strength, generator)[: len(own.codes)])


def inverted(
    own: Collected,
    workload: Workload,
    start: Weights,
    strength: float,
    steps: int,
    pull: float,
    generator: np.random.Generator,
) -> Samples:
    """Missing samples are found by the gradient of the broadcast model's loss for the rare class, from samples of one's
    own; `pull` holds them near these. Strata that one lacks altogether are filled, too.

    Raises:
        ExperimentError: a workload that is no torch module with one array of real inputs.
    """
    if not isinstance(workload, TorchWorkload) or isinstance(own.samples.inputs, Mapping):
        raise ExperimentError("the family invert needs a torch module with one array of inputs")
    array = own.samples.inputs
    have, level = np.bincount(own.codes, minlength=len(own.reference)), np.array(own.reference, dtype=float)
    shares = (1 - strength) * have / have.sum() + strength * level
    counts = np.floor(shares * len(own.codes)).astype(np.int64)
    kept, missing = [], []
    for stratum, count in enumerate(counts):
        members = generator.permutation(np.flatnonzero(own.codes == stratum))
        kept.append(members[:count])
        missing += [stratum] * max(0, count - len(members))
    real = own.samples.select(np.concatenate(kept).astype(np.int64))
    if not missing:
        return real
    base = torch.from_numpy(array[generator.integers(len(array), size=len(missing))])
    targets = torch.tensor(missing)
    module = workload._at(start).eval()  # an attacker has the module: its gradients are no part of a workload
    deviation = torch.from_numpy(np.asarray(array.std(axis=0) + 1e-3, dtype=array.dtype))
    found = base.clone().requires_grad_(True)
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(module(found), targets, reduction="sum")
        loss = loss + pull * ((found - base) / deviation).square().mean(dim=tuple(range(1, base.ndim))).sum()
        (gradient,) = torch.autograd.grad(loss, found)
        length = gradient.flatten(1).norm(dim=1).clamp_min(1e-12).reshape(-1, *[1] * (base.ndim - 1))
        step = 0.2 * gradient / length * deviation.square().sum().sqrt()
        found = (found - step).detach().requires_grad_(True)
    return concatenated(
        real, Samples(found.detach().numpy(), np.array(missing, dtype=own.samples.targets.dtype))
    )


def output_bias(workload: Workload, model: Weights) -> str:
    """The tensor with one number a class that comes last among the trained ones.

    Raises:
        ExperimentError: there is none.
    """
    found = [n for n in workload.trainable if model[n].shape == (workload.classes,)]
    if not found:
        raise ExperimentError("the family logits needs a model whose output has a bias")
    return found[-1]


def adjusted(model: Weights, name: str, own: Collected, tau: float) -> dict[str, Array]:
    """The model with tau * ln(reference / own share) added to its output's bias; a class without samples counts as
    having half of one."""
    have = np.maximum(np.bincount(own.codes, minlength=len(own.reference)), 0.5)
    level = np.array([float(q) for q in own.reference])
    shift = tau * np.log(level / (have / have.sum()))
    return {**model, name: (model[name] + shift - shift.mean()).astype(model[name].dtype)}
