"""What attackers of the arena do to data, beside `fedpeer.evidence.tricks`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from fedpeer.evidence.tricks import Rows, concatenated, repeated, with_noise
from fedpeer.experiments.errors import ExperimentError
from fedpeer.learning.partition import LabelMix
from fedpeer.learning.samples import Samples, Weights
from fedpeer.learning.strata import Codes
from fedpeer.learning.workloads.protocol import Workload
from fedpeer.learning.workloads.torch import TorchWorkload


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


def jittered(samples: Samples, noise: float, generator: np.random.Generator) -> Samples:
    """The samples with noise, over the deviation of each input."""
    if not noise:
        return samples
    inputs: Any = {
        n: with_noise(a, a.std(axis=0), noise, generator).astype(a.dtype) if a.dtype.kind == "f" else a
        for n, a in samples.arrays.items()
    }
    return Samples(inputs if isinstance(samples.inputs, Mapping) else inputs[""], samples.targets)


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
