"""What a workload is: the four things that a learner needs of a model, whatever library computes it.

    weights = workload.build(seed)
    trained = workload.train(weights, samples, recipe, seed)
    judged = workload.judge(trained, samples)          # a loss a sample, and outputs where there are any

Participant and coordinator use the same object. A workload holds no state between calls: the same arguments give the
same result on one machine.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedpeer.learning.errors import ModelError
from fedpeer.learning.samples import Samples, Weights
from mechanism.privacy import noised
from mechanism.terms import Recipe
from mechanism.variation import FOLLOWED, asked_beyond, varied

#: Separates the seed of a shadow's noise from that of its training.
_NOISE = 1

#: Tensors by name, new ones.
NewWeights = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Judged:
    """How a model does on samples.

    Attributes:
        losses: one a sample, float64, shape (n,); smaller is better. NaN or infinite where the model overflows.
        outputs: float64, shape (n, K): log-probabilities of the classes where the workload has `classes`, else its
            predictions; None where it has neither.
    """

    losses: npt.NDArray[np.float64]
    outputs: npt.NDArray[np.float64] | None = None


class Workload(Protocol):
    """A model's way from samples to weights to losses."""

    @property
    def classes(self) -> int | None:
        """Number of classes of a classifier, whose targets are numbers from 0; None for anything else."""

    @property
    def trainable(self) -> tuple[str, ...]:
        """The names of the tensors that training moves, in the order of the model."""

    def build(self, seed: int) -> NewWeights:
        """Fresh weights: what round 1 starts from. All that travels between the two sides, and nothing else."""

    def train(self, weights: Weights, samples: Samples, recipe: Recipe, seed: int) -> NewWeights:
        """New weights after training on all of `samples` from `weights` by the recipe; `seed` decides their order.

        It may have one parameter more, `on_epoch`, which takes the number of passes that are done, after each.

        Raises:
            LearningError: weights, samples or a recipe that do not fit.
        """

    def judge(self, weights: Weights, samples: Samples) -> Judged:
        """Losses and outputs on `samples`.

        Raises:
            LearningError: weights or samples that do not fit.
        """


@runtime_checkable
class HasGradients(Protocol):
    """A workload that can tell how much each tensor's gradient is, so that tensors without one are found."""

    def gradient_sizes(self, weights: Weights, samples: Samples) -> Mapping[str, float]:
        """The root mean square of the mean loss's gradient, of each trainable tensor, in training mode and float64."""


@runtime_checkable
class HasFrozen(Protocol):
    """A workload some of whose tensors do not travel, since every side makes them.

    Attributes:
        frozen: SHA-256 over names, types, shapes and bytes of these, hexadecimal; empty where all travel. Who has
            another base would train another model, and is refused.
    """

    frozen: str


def frozen_of(workload: Workload) -> str:
    """Which tensors do not travel."""
    return workload.frozen if isinstance(workload, HasFrozen) else ""


@runtime_checkable
class HasDpSgd(Protocol):
    """A workload whose `train` follows a recipe with the privacy method "dp-sgd"."""

    dp_sgd: bool


@runtime_checkable
class HasStacks(Protocol):
    """A workload that can train several models together, on a device."""

    stacks: bool

    def train_stacked(
        self, weights: Weights, samples: Sequence[Samples], recipe: Recipe, seeds: Sequence[int], device: str
    ) -> list[NewWeights]:
        """`train` of each of some data sets of one size, up to rounding."""


def in_stacks(workload: Workload, recipe: Recipe) -> bool:
    """Whether models of a recipe can be trained together: not where each step clips and draws noise of its own, nor
    where inputs, targets or numbers are others than they came."""
    private = recipe.privacy is not None and recipe.privacy.method == "dp-sgd"
    other = recipe.label_smoothing or recipe.augmentation != "none" or recipe.precision != "tensors"
    return isinstance(workload, HasStacks) and workload.stacks and not private and not other


@runtime_checkable
class Follows(Protocol):
    """A workload that says which parts of a recipe its `train` follows.

    Attributes:
        follows: names of `Recipe`'s fields.
    """

    follows: frozenset[str]


def followed(workload: Workload) -> frozenset[str]:
    """The parts of a recipe that the workload's `train` follows."""
    return workload.follows if isinstance(workload, Follows) else FOLLOWED


def unfollowed(workload: Workload, recipe: Recipe) -> list[str]:
    """What the recipe asks for or lets vary, and the workload's `train` does not look at."""
    follows = followed(workload)
    return sorted({*asked_beyond(recipe, follows), *(varied(recipe).keys() - follows)})


def trains_dp_sgd(workload: Workload) -> bool:
    return isinstance(workload, HasDpSgd) and workload.dp_sgd


def train_reporting(
    workload: Workload,
    weights: Weights,
    samples: Samples,
    recipe: Recipe,
    seed: int,
    on_epoch: Callable[[int], None],
) -> NewWeights:
    """`workload.train`, with `on_epoch` called after each pass, or at the end alone where a workload has no such."""
    if "on_epoch" in inspect.signature(workload.train).parameters:
        train = cast("Callable[..., NewWeights]", workload.train)
        return train(weights, samples, recipe, seed, on_epoch=on_epoch)
    made = workload.train(weights, samples, recipe, seed)
    on_epoch(recipe.epochs)
    return made


def train_all(
    workload: Workload,
    weights: Weights,
    samples: Sequence[Samples],
    recipe: Recipe,
    seeds: Sequence[int],
    device: str = "",
) -> list[NewWeights]:
    """One model a data set, each as a participant would send it: with the noise of the recipe's privacy.

    That noise follows from the seed: it makes a model like a participant's and hides nothing.

    Args:
        device: of torch, where those of as many samples are trained together, if `in_stacks`; empty: one after another.
    """
    if not device or not in_stacks(workload, recipe):
        return [
            train_sent(workload, weights, part, recipe, s) for part, s in zip(samples, seeds, strict=True)
        ]
    assert isinstance(workload, HasStacks)
    by_size: dict[int, list[int]] = {}
    for place, part in enumerate(samples):
        by_size.setdefault(len(part), []).append(place)
    found: dict[int, NewWeights] = {}
    for places in by_size.values():
        chosen = [seeds[place] for place in places]
        stack = workload.train_stacked(weights, [samples[place] for place in places], recipe, chosen, device)
        found |= {
            place: sent(weights, made, recipe, seeds[place])
            for place, made in zip(places, stack, strict=True)
        }
    return [found[place] for place in range(len(samples))]


def train_sent(
    workload: Workload, weights: Weights, samples: Samples, recipe: Recipe, seed: int
) -> NewWeights:
    """As `train_all`, of one data set."""
    return sent(weights, workload.train(weights, samples, recipe, seed), recipe, seed)


def sent(weights: Weights, made: NewWeights, recipe: Recipe, seed: int) -> NewWeights:
    """A model that was made from `weights`, with the noise that the recipe has added to what is sent."""
    if recipe.privacy is None or recipe.privacy.method != "update":
        return made
    return noised(weights, made, recipe.privacy, np.random.default_rng([seed, _NOISE]))


def loss_and_accuracy(
    workload: Workload, judged: Judged, targets: npt.NDArray[Any]
) -> tuple[float, float | None]:
    """The mean loss and, of a classifier, the share of `targets` that it recognises; None of any other model."""
    accuracy = None
    if workload.classes is not None and judged.outputs is not None:
        accuracy = float((judged.outputs.argmax(axis=1) == targets).mean())
    return float(judged.losses.mean()), accuracy


def accuracy_by_label(workload: Workload, judged: Judged, targets: npt.NDArray[Any]) -> list[float | None]:
    """Of a classifier, the share that it recognises of each class, None of a class without samples; empty of any
    other model.
    """
    if workload.classes is None or judged.outputs is None:
        return []
    right = judged.outputs.argmax(axis=1) == targets
    of_class = [right[targets == label] for label in range(judged.outputs.shape[1])]
    return [float(found.mean()) if found.size else None for found in of_class]


def flat_change(names: Sequence[str], weights: Weights, start: Weights) -> npt.NDArray[np.float64]:
    """weights - start of the tensors `names`, one after another, float64."""
    return np.concatenate([(weights[n].astype(np.float64) - start[n]).ravel() for n in names])


def check_layout(weights: Weights, expected: Weights) -> None:
    """Raises ModelError where `weights` have not the names, shapes and types of `expected`."""
    if weights.keys() != expected.keys():
        missing, unknown = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
        raise ModelError(
            f"weights lack {missing} and have the unknown {unknown}; expected {sorted(expected)}"
        )
    for name, target in expected.items():
        array = np.asarray(weights[name])
        if array.shape != target.shape or array.dtype != target.dtype:
            raise ModelError(
                f"tensor {name} is {array.dtype} of shape {array.shape}; expected {target.dtype} of shape "
                f"{target.shape}"
            )
