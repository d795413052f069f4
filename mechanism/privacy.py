"""Noise that a participant adds, so that its model tells little of the samples that it was trained on.

    dp-sgd   each step draws its batch anew, each sample by itself with chance q = 1 / steps of an epoch; the gradient
             of each sample is clipped to the norm C, and N(0, (z C)^2) added to each number of their sum
    update   the change of all floating-point tensors together is clipped to the norm C, and N(0, (z C)^2) added to
             each number of it; every other tensor stays as it came

What it is worth is differential privacy (epsilon, delta), which `participant.accounting` computes: of dp-sgd for one
sample more or less; of an update for any other samples in the place of all, between which a clipped change differs by
2 C at most.

Sources: Abadi et al. 2016, Deep learning with differential privacy; Dwork and Roth 2014, appendix A, for Gaussian
noise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mechanism.errors import FieldError
from mechanism.records import check_decimal

#: See above.
PRIVACY_METHODS = ("dp-sgd", "update")

#: Largest clip and noise multiplier: far beyond any use, and safe to compute with.
MAX_CLIP, MAX_NOISE_MULTIPLIER = 10**6, 10**4

#: Ends of the names of tensors that are variances, whose root is taken: noise must not make them negative.
_VARIANCES = "running_var"


@dataclass(frozen=True)
class Privacy:
    """How much noise is added, and how.

    Attributes:
        method: one of `PRIVACY_METHODS`.
        clip: C, in (0, 10^6].
        noise_multiplier: z, in (0, 10^4].
        delta: in (0, 1), at which epsilon is stated.
    """

    method: str
    clip: Decimal
    noise_multiplier: Decimal
    delta: Decimal

    def __post_init__(self) -> None:
        if self.method not in PRIVACY_METHODS:
            raise FieldError("privacy.method", self.method, "one of " + ", ".join(PRIVACY_METHODS))
        for name, most in (("clip", MAX_CLIP), ("noise_multiplier", MAX_NOISE_MULTIPLIER)):
            value = getattr(self, name)
            check_decimal(f"privacy.{name}", value)
            if not 0 < value <= most:
                raise FieldError(f"privacy.{name}", value, f"a decimal above 0 and at most {most}")
        check_decimal("privacy.delta", self.delta)
        if not 0 < self.delta < 1:
            raise FieldError("privacy.delta", self.delta, "a decimal above 0 and below 1")

    def __str__(self) -> str:
        return f"{self.method}, clip {self.clip:f}, noise multiplier {self.noise_multiplier:f}, delta {self.delta:f}"


class Gaussians(NamedTuple):
    """What an accountant composes: `steps` Gaussian mechanisms, each on a sample of the data.

    Attributes:
        noise_multiplier: standard deviation of the noise over the sensitivity.
        sample_rate: chance of each sample, by itself, to be looked at in a step.
    """

    noise_multiplier: float
    sample_rate: float
    steps: int


def epoch_steps(samples: int, batch_size: int) -> int:
    """Steps of an epoch over `samples`, each of at most `batch_size`."""
    return -(-samples // batch_size)


def gaussians(privacy: Privacy, samples: int, batch_size: int, epochs: int) -> Gaussians:
    """What one round tells of the data."""
    multiplier = float(privacy.noise_multiplier)
    if privacy.method == "update":
        return Gaussians(multiplier / 2, 1.0, 1)
    steps = epoch_steps(samples, batch_size)
    return Gaussians(multiplier, 1 / steps, epochs * steps)


def noised(
    start: Mapping[str, npt.NDArray[Any]],
    trained: Mapping[str, npt.NDArray[Any]],
    privacy: Privacy,
    generator: "np.random.Generator",
) -> dict[str, npt.NDArray[Any]]:
    """`trained` as the method "update" sends it, in the types of `start`.

    Args:
        start, trained: tensors of the same names and shapes.
        generator: of the noise. Who knows its state takes the noise off again.

    Raises:
        FieldError: a change that is not finite, of which no norm can be taken.
    """
    floating = sorted(name for name, array in start.items() if array.dtype.kind == "f")
    changes = {name: np.asarray(trained[name], np.float64) - start[name] for name in floating}
    norm = float(np.sqrt(sum(float(np.square(change).sum()) for change in changes.values())))
    if not np.isfinite(norm):
        raise FieldError("weights", norm, "a change of finite norm")
    clip = float(privacy.clip)
    factor, deviation = min(1.0, clip / norm) if norm else 1.0, clip * float(privacy.noise_multiplier)
    made = {name: np.array(array) for name, array in start.items()}
    for name in floating:
        change = factor * changes[name] + generator.normal(0.0, deviation, changes[name].shape)
        moved = start[name] + change
        if name.endswith(_VARIANCES):
            moved = np.maximum(moved, 0.0)
        made[name] = moved.astype(start[name].dtype)
    return made
