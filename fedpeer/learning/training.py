"""Local training by a recipe, and evaluation: weights in, weights out.

Reproducible to the bit on one machine: the order of samples comes from a generator seeded with `seed`, no layer
draws random numbers, and the work runs on one thread (`one_thread`), because torch splits sums by the number
of threads and so rounds differently with another number. Another CPU may round differently still.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from fedpeer.learning.datasets import LabelledData
from fedpeer.learning.errors import DataError, RecipeError
from fedpeer.learning.models import Weights, build, load_weights, weights_of
from fedpeer.learning.optimizers import optimizer_of
from mechanism.terms import Recipe

#: Images in one forward pass of an evaluation. Larger batches cost page faults.
EVALUATION_BATCH = 256


@contextmanager
def one_thread() -> Iterator[None]:
    """torch computes on one thread inside; the number of threads is put back afterwards.

    The setting is the process's: threads of the same process that use torch meanwhile are slowed, not changed
    in their results.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train(
    weights: Weights,
    data: LabelledData,
    recipe: Recipe,
    seed: int,
    on_epoch: Callable[[int], None] | None = None,
    *,
    device: str = "cpu",
) -> dict[str, npt.NDArray[Any]]:
    """`recipe.epochs` passes over `data` from `weights`; returns the new weights.

    Cross-entropy, mean over the batch. Each epoch draws its order. See `epoch_batches` for a last batch of
    a single sample.

    Args:
        weights: of the architecture `recipe.model`.
        data: the participant's samples, all of which are used (`recipe.samples` says how many a round asks for).
        seed: decides the order of the samples.
        on_epoch: takes the number of passes that are done, after each.
        device: where torch computes; reproducible to the bit on "cpu" only.

    Raises:
        ModelError: an unknown architecture, or weights that are not its own.
        RecipeError: an unknown optimizer, batches of one sample, or what only a workload follows.
        DataError: fewer than two samples.
    """
    if len(data) < 2:
        raise DataError(f"training on {len(data)} samples; expected at least 2")
    for name in ("label_smoothing", "augmentation", "precision"):
        if getattr(recipe, name) != getattr(Recipe, name):
            raise RecipeError(f"the recipe asks for {name}, which this training has not; use CnnWorkload")
    module = build(recipe.model, seed=0)
    load_weights(module, weights)
    # Channels last is torch's faster layout for these convolutions on a CPU.
    module.to(device).train().to(memory_format=torch.channels_last)
    optimizer = optimizer_of(list(module.parameters()), recipe)
    images = torch.from_numpy(data.images).to(device).contiguous(memory_format=torch.channels_last)
    labels = torch.from_numpy(data.labels).to(device)
    with one_thread():
        for epoch, batches in enumerate(epoch_batches(len(data), recipe, seed), start=1):
            for batch in batches:
                functional.cross_entropy(module(images[batch]), labels[batch]).backward()  # type: ignore[no-untyped-call]  # torch's own stub
                optimizer.step()
            if on_epoch is not None:
                on_epoch(epoch)
    return weights_of(module)


@dataclass(frozen=True)
class Evaluation:
    """How a model does on labelled data.

    Attributes:
        loss: mean cross-entropy, nats.
        accuracy: share of samples whose most likely label is the true one, [0, 1].
    """

    loss: float
    accuracy: float


def evaluate(weights: Weights, data: LabelledData, model: str, *, device: str = "cpu") -> Evaluation:
    """Loss and accuracy of `weights` of the architecture `model` on `data`.

    Raises:
        ModelError: an unknown architecture, or weights that are not its own.
        DataError: no samples.
    """
    if not len(data):
        raise DataError("there are no samples to evaluate a model on; expected at least one")
    found = log_probabilities(weights, data.images, model, device=device)
    losses = -found[np.arange(len(data)), data.labels].astype(np.float64)
    return Evaluation(float(losses.mean()), float((found.argmax(axis=1) == data.labels).mean()))


def log_probabilities(
    weights: Weights, images: npt.NDArray[np.float32], model: str, *, device: str = "cpu"
) -> npt.NDArray[np.float32]:
    """log softmax of the model's outputs, natural logarithm, shape (n, I).

    Raises:
        ModelError: an unknown architecture, or weights that are not its own.
    """
    module = build(model, seed=0)
    load_weights(module, weights)
    return module_log_probabilities(module.to(device), images)


def module_log_probabilities(module: nn.Module, images: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """`log_probabilities` of a module that has its weights; leaves it in evaluation mode, on its device."""
    module.eval()
    device = next(module.parameters()).device
    outputs = []
    with one_thread(), torch.inference_mode():
        for batch in torch.split(torch.from_numpy(images), EVALUATION_BATCH):
            outputs.append(functional.log_softmax(module(batch.to(device)), dim=1).cpu())
    result: npt.NDArray[np.float32] = torch.cat(outputs).numpy()
    return result


def epoch_batches(samples: int, recipe: Recipe, seed: int) -> Iterator[list[torch.Tensor]]:
    """For each epoch the indices of its batches, in which every sample is once.

    A last batch of a single sample is added to the one before: batch normalisation has no variance over one.

    Raises:
        RecipeError: a batch size of 1, which leaves batch normalisation nothing but such batches.
    """
    if recipe.batch_size < 2:
        raise RecipeError(
            "batch_size is 1; expected at least 2: batch normalisation has no variance over one sample"
        )
    generator = torch.Generator().manual_seed(seed)
    for _ in range(recipe.epochs):
        yield joined_batches(torch.randperm(samples, generator=generator), recipe.batch_size)


def joined_batches(order: torch.Tensor, size: int) -> list[torch.Tensor]:
    """`order` in pieces of `size`; a last piece of one is added to the one before."""
    batches = list(torch.split(order, size))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def label_signal(log_probability: npt.NDArray[np.floating[Any]], labels: npt.NDArray[np.int64]) -> float:
    """How far a model tells `labels` apart, in standard deviations of a permutation test.

        z = (S - E[S]) / sd[S],   S = sum_i p_i(y_i)

    with mean and standard deviation over all permutations of the labels. Where outputs and labels are independent it
    is about standard normal; 0 where every permutation gives the same.

    Args:
        log_probability: of each class for each sample, shape (n, I).
        labels: shape (n,).

    Source: Hoeffding 1951, A combinatorial central limit theorem, theorem 2.
    """
    p, size = np.exp(log_probability.astype(np.float64)), len(labels)
    counts = np.bincount(labels, minlength=p.shape[1]).astype(np.float64)
    rows, columns = p @ (counts / size), p.mean(axis=0)
    variance = float((np.square(p - rows[:, None] - columns + rows.mean()) @ counts).sum()) / max(1, size - 1)
    surplus = float(p[np.arange(size), labels].sum() - rows.sum())
    # float32 outputs hold no finer differences than a millionth.
    return surplus / variance**0.5 if variance > size * 1e-12 else 0.0
