"""What can be done to skewed data, and to a model of them, so that it seems to be of balanced ones.

    trick = TRICKS["repeat"]
    weights = trick.trained(workload, start, held, recipe, seed)

*Tricked* shadows are trained so (`fedpeer.evidence.planning`), each by a trick and numbers that its seed draws, and
teach what separates them from sound ones (`fedpeer.evidence.levelling`). One more trick is one more entry of `TRICKS`.

Each keeps the number of samples. `strength` s leads from the counts of one's own to those of the reference, over the
strata that one holds at all: (1 - s) own + s reference. Samples that are had count first; only what is missing is made
up.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedpeer.learning.samples import Samples, Weights
from fedpeer.learning.strata import Codes
from fedpeer.learning.workloads.protocol import NewWeights, Workload
from mechanism.terms import Recipe

Rows = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

#: Epochs over the recipe's, and the length of the update over the honest one's, that tricked shadows draw from.
_EPOCHS, _SIZE = (0.7, 2.0), (0.85, 1.15)

#: Least strength of a trick: less is hardly one.
_LEAST_STRENGTH = 0.5


class Data(Protocol):
    """Samples with their strata, and p^(c)."""

    @property
    def samples(self) -> Samples: ...

    @property
    def codes(self) -> Codes: ...

    @property
    def reference(self) -> Sequence[Fraction]: ...


@dataclass(frozen=True, eq=False)
class Held:
    """See `Data`."""

    samples: Samples
    codes: Codes
    reference: Sequence[Fraction]


def concatenated(first: Samples, second: Samples) -> Samples:
    """All samples of two, without their columns."""
    inputs: Any = {n: np.concatenate([a, second.arrays[n]]) for n, a in first.arrays.items()}
    if not isinstance(first.inputs, Mapping):
        inputs = inputs[""]
    return Samples(inputs, np.concatenate([first.targets, second.targets]))


def wanted(own: Data, strength: float) -> Rows:
    """Samples of each stratum, as many together as there are, shape (S,)."""
    have = np.bincount(own.codes, minlength=len(own.reference))
    level = np.array([float(q) for q in own.reference]) * (have > 0)
    if not level.sum():
        level = have.astype(np.float64)  # strata without a share in the reference alone
    shares = (1 - strength) * have / have.sum() + strength * level / level.sum()
    counts = np.floor(shares * len(own.codes)).astype(np.int64)
    rest = np.argsort(counts - shares * len(own.codes), kind="stable")
    counts[rest[: len(own.codes) - counts.sum()]] += 1
    return np.where(have > 0, counts, 0)


def repeated(own: Data, strength: float, generator: np.random.Generator) -> Rows:
    """Rows at the wanted counts: samples of common strata are left out, those of rare ones come again."""
    parts = [
        np.resize(generator.permutation(np.flatnonzero(own.codes == s)), n)
        for s, n in enumerate(wanted(own, strength))
        if n
    ]
    return generator.permutation(np.concatenate(parts)).astype(np.int64)


def weighted(own: Data, strength: float, generator: np.random.Generator) -> Rows:
    """Rows drawn with replacement, with the wanted counts as their expectation."""
    have = np.bincount(own.codes, minlength=len(own.reference))
    weight = (wanted(own, strength) / np.maximum(have, 1))[own.codes]
    chosen = generator.choice(len(own.codes), len(own.codes), p=weight / weight.sum())
    return chosen.astype(np.int64)


#: Of the rows of samples to start from, of the same stratum or of any, new inputs of one array.
_Making = Callable[[Array, Rows], Array]


def _filled(own: Data, strength: float, make: _Making, generator: np.random.Generator) -> Samples:
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


def _same_stratum(own: Data, rows: Rows, generator: np.random.Generator) -> Rows:
    """To each row another one of its stratum, by chance."""
    return np.array(
        [generator.choice(np.flatnonzero(own.codes == own.codes[row])) for row in rows], dtype=np.int64
    )


def _columns(size: int, array: Array) -> tuple[int, ...]:
    """The shape that broadcasts one number a sample over `array`."""
    return (size, *([1] * (array.ndim - 1)))


def interpolated(own: Data, strength: float, reach: float, generator: np.random.Generator) -> Samples:
    """Missing samples lie between two of their stratum, up to `reach` of the way."""

    def make(array: Array, rows: Rows) -> Array:
        others = _same_stratum(own, rows, generator)
        step = reach * generator.uniform(size=_columns(len(rows), array))
        made: Array = array[rows] + step * (array[others] - array[rows])
        return made

    return _filled(own, strength, make, generator)


def augmented(own: Data, strength: float, noise: float, generator: np.random.Generator) -> Samples:
    """Missing samples are others with noise, over the deviation of each input."""

    def make(array: Array, rows: Rows) -> Array:
        return with_noise(array[rows], array.std(axis=0), noise, generator)

    return _filled(own, strength, make, generator)


def synthesised(own: Data, strength: float, spread: float, generator: np.random.Generator) -> Samples:
    """Missing samples are the mean of their stratum and so much of what any sample deviates from its own."""

    def make(array: Array, rows: Rows) -> Array:
        means = {s: array[own.codes == s].mean(axis=0) for s in np.unique(own.codes)}
        donors = generator.integers(len(own.codes), size=len(rows))
        off = array[donors] - np.array([means[own.codes[d]] for d in donors])
        made: Array = np.array([means[own.codes[row]] for row in rows]) + spread * off
        return made

    return _filled(own, strength, make, generator)


def with_noise(array: Array, deviation: Array, noise: float, generator: np.random.Generator) -> Array:
    made: Array = array + noise * deviation * generator.normal(size=array.shape)
    return made


def output_bias(workload: Workload, model: Weights) -> str | None:
    """The tensor with one number a class that comes last among the trained ones; None where there is none."""
    found = [n for n in workload.trainable if model[n].shape == (workload.classes,)]
    return found[-1] if found else None


def adjusted(model: Weights, name: str, own: Data, tau: float) -> dict[str, Array]:
    """The model with tau * ln(reference / own share) added to its output's bias; a class without samples counts as
    having half of one, and so does one without a share."""
    have = np.maximum(np.bincount(own.codes, minlength=len(own.reference)), 0.5)
    level = np.maximum(np.array([float(q) for q in own.reference]) * len(own.codes), 0.5)
    shift = tau * np.log(level / have)
    return {**model, name: (model[name] + shift - shift.mean()).astype(model[name].dtype)}


def resized(workload: Workload, start: Weights, model: Weights, size: float) -> NewWeights:
    """The model with what it has changed of what is trained `size` times as large."""
    made = {name: np.array(array) for name, array in model.items()}
    for name in workload.trainable:
        change = model[name].astype(np.float64) - start[name]
        made[name] = (start[name] + size * change).astype(model[name].dtype)
    return made


@dataclass(frozen=True)
class Trick:
    """How a tricked shadow is made.

    Attributes:
        samples: what it is trained on, of what it holds.
        adjusts: whether the output's bias is moved by how rare each class is.
    """

    samples: Callable[[Data, np.random.Generator], Samples]
    adjusts: bool = False

    def trained(self, workload: Workload, start: Weights, own: Data, recipe: Recipe, seed: int) -> NewWeights:
        """A model, by numbers that the seed draws."""
        generator = np.random.default_rng(seed)
        samples = self.samples(own, generator)
        factor = float(np.exp(generator.uniform(*np.log(_EPOCHS))))
        longer = replace(recipe, epochs=max(1, round(factor * recipe.epochs)))
        model: Weights = workload.train(start, samples, longer, seed)
        name = output_bias(workload, model) if self.adjusts else None
        if name is not None:
            model = adjusted(model, name, own, float(generator.uniform(-0.3, 0.8)))
        # Longer training alone makes longer updates, which a trickster shrinks to what is usual.
        size = float(generator.uniform(*_SIZE)) * min(1.0, factor**-0.5)
        return resized(workload, start, model, size)


def _strength(generator: np.random.Generator) -> float:
    return float(generator.uniform(_LEAST_STRENGTH, 1))


#: By name.
TRICKS: Mapping[str, Trick] = {
    "repeat": Trick(lambda own, g: own.samples.select(repeated(own, _strength(g), g))),
    "reweight": Trick(lambda own, g: own.samples.select(weighted(own, _strength(g), g))),
    "interpolate": Trick(lambda own, g: interpolated(own, _strength(g), float(g.uniform()), g)),
    "augment": Trick(lambda own, g: augmented(own, _strength(g), float(g.uniform(0, 0.4)), g)),
    "synthesise": Trick(lambda own, g: synthesised(own, _strength(g), float(g.uniform(0, 1.5)), g)),
    "logits": Trick(lambda own, g: own.samples.select(repeated(own, _strength(g), g)), adjusts=True),
}
