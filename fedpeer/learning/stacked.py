"""Many small models of one architecture, trained at once from the same start.

Shadow models are many, small and alike: on images of 8 x 8 a step of one model is mostly overhead. Here the
models lie along a leading axis, convolutions are matrix products over patches, and one step moves all of them.
The arithmetic is that of `fedpeer.learning.training.train`, with the same order of samples for the same seed; sums are
taken in another order, so weights agree to rounding and not to the bit.
"""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import torch
from torch.nn import functional

from fedpeer.learning.datasets import LabelledData
from fedpeer.learning.errors import DataError
from fedpeer.learning.models import Architecture, Weights, architecture, build, load_weights
from fedpeer.learning.optimizers import optimizer_of
from fedpeer.learning.training import epoch_batches, one_thread, train
from mechanism.terms import Recipe

#: Models in one stack: enough to hide the overhead of a step.
STACK = 8

#: Pixels of an image up to which stacking pays. With 8 x 8 digits a stacked step is faster; with
#: 28 x 28 the matrix products over patches are slower than torch's convolutions, so models are trained in turn.
STACKED_PIXELS = 16 * 16

#: torch's defaults of BatchNorm2d.
_NORM_EPSILON, _NORM_MOMENTUM = 1e-5, 0.1


def train_many(
    weights: Weights, samples: Sequence[LabelledData], recipe: Recipe, seeds: Sequence[int]
) -> list[dict[str, npt.NDArray[Any]]]:
    """`train(weights, samples[j], recipe, seeds[j])` for every j, to rounding.

    Args:
        weights: the common start, of the architecture `recipe.model`.
        samples: one data set a model, all of the same size.
        recipe: the common recipe.
        seeds: one a model.

    Raises:
        DataError: data sets of different sizes, of fewer than two samples, or not one a seed.
        ModelError, RecipeError: as `train`.
    """
    if len(samples) != len(seeds) or len({len(data) for data in samples}) > 1:
        raise DataError(
            f"{len(samples)} data sets of {sorted({len(d) for d in samples})} samples and {len(seeds)} seeds; "
            "expected data sets of one size, and a seed for each"
        )
    if samples and len(samples[0]) < 2:
        raise DataError(f"training on {len(samples[0])} samples; expected at least 2")
    _, height, width = architecture(recipe.model).image
    if height * width > STACKED_PIXELS:
        return [train(weights, data, recipe, seed) for data, seed in zip(samples, seeds, strict=True)]
    trained: list[dict[str, npt.NDArray[Any]]] = []
    with one_thread():
        for first in range(0, len(samples), STACK):
            stack = slice(first, first + STACK)
            trained += _train_stack(weights, samples[stack], recipe, seeds[stack])
    return trained


def _train_stack(
    weights: Weights, samples: Sequence[LabelledData], recipe: Recipe, seeds: Sequence[int]
) -> list[dict[str, npt.NDArray[Any]]]:
    module = build(recipe.model, seed=0)
    load_weights(module, weights)  # checks names, shapes and types
    trainable = {name for name, _ in module.named_parameters()}
    state = {
        name: torch.stack([tensor] * len(samples)).requires_grad_(name in trainable)
        for name, tensor in module.state_dict().items()
    }
    stack = _Stack(architecture(recipe.model), state)
    optimizer = optimizer_of([state[name] for name, _ in module.named_parameters()], recipe)
    # Channels last: patches of a convolution are then contiguous rows.
    images = [torch.from_numpy(data.images).permute(0, 2, 3, 1).contiguous() for data in samples]
    labels = [torch.from_numpy(data.labels) for data in samples]
    orders = [
        [batch for epoch in epoch_batches(len(data), recipe, seed) for batch in epoch]
        for data, seed in zip(samples, seeds, strict=True)
    ]
    for batches in zip(*orders, strict=True):
        x = torch.stack([image[batch] for image, batch in zip(images, batches, strict=True)])
        y = torch.stack([label[batch] for label, batch in zip(labels, batches, strict=True)])
        losses = functional.cross_entropy(stack.forward(x).flatten(0, 1), y.flatten(), reduction="sum")
        # Each model's own loss is a mean over its batch; models do not touch one another's weights.
        (losses / y.shape[1]).backward()  # type: ignore[no-untyped-call]  # torch's own stub
        optimizer.step()
    return [
        {name: tensor[j].detach().numpy().copy() for name, tensor in state.items()}
        for j in range(len(samples))
    ]


class _Stack:
    """Forward pass of S models in training mode: x of shape (S, batch, height, width, channels)."""

    def __init__(self, form: Architecture, state: dict[str, torch.Tensor]) -> None:
        self._form = form
        self._state = state

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i in (1, 2):
            x = self._norm(self._convolution(x, f"conv{i}"), f"norm{i}")
            # The maximum and ReLU commute; pooled first, ReLU has a quarter of the work.
            x = functional.relu(_pool(x))
        # The read-out counts features channel by channel, as the module's Flatten does.
        x = x.permute(0, 1, 4, 2, 3).flatten(2)
        for i in range(1, len(self._form.hidden) + 1):
            x = functional.relu(self._linear(x, f"hidden{i}"))
        return self._linear(x, "output")

    def _linear(self, x: torch.Tensor, layer: str) -> torch.Tensor:
        weight, bias = self._state[f"{layer}.weight"], self._state[f"{layer}.bias"]
        return torch.baddbmm(bias[:, None], x, weight.transpose(1, 2))

    def _convolution(self, x: torch.Tensor, layer: str) -> torch.Tensor:
        weight, bias = self._state[f"{layer}.weight"], self._state[f"{layer}.bias"]
        kernel, padding = self._form.kernel, self._form.padding
        if padding:
            x = functional.pad(x, (0, 0, padding, padding, padding, padding))
        models, batch, height, width, _ = x.shape
        height, width = height - kernel + 1, width - kernel + 1
        patches = torch.cat(
            [x[:, :, r : r + height, c : c + width] for r in range(kernel) for c in range(kernel)], dim=4
        )
        # (S, out, in, r, c) -> (S, (r, c, in), out), the order in which the patches lie.
        matrix = weight.permute(0, 3, 4, 2, 1).reshape(models, -1, weight.shape[1])
        product = torch.baddbmm(bias[:, None], patches.view(models, batch * height * width, -1), matrix)
        return product.view(models, batch, height, width, -1)

    def _norm(self, x: torch.Tensor, layer: str) -> torch.Tensor:
        """Batch normalisation, and the step of its running statistics."""
        models, channels = x.shape[0], x.shape[-1]
        # One batch norm over models x channels: torch's own kernel, with its own backward pass.
        rows = x.reshape(models, -1, channels).transpose(0, 1).reshape(-1, models * channels)
        state = self._state
        normal = functional.batch_norm(
            rows,
            state[f"{layer}.running_mean"].view(-1),
            state[f"{layer}.running_var"].view(-1),
            state[f"{layer}.weight"].reshape(-1),
            state[f"{layer}.bias"].reshape(-1),
            training=True,
            momentum=_NORM_MOMENTUM,
            eps=_NORM_EPSILON,
        )
        state[f"{layer}.num_batches_tracked"] += 1
        return normal.view(-1, models, channels).transpose(0, 1).reshape(x.shape)


def _pool(x: torch.Tensor) -> torch.Tensor:
    """2 x 2 max pooling."""
    models, batch = x.shape[:2]
    pooled = functional.max_pool2d(x.flatten(0, 1).permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)
    return pooled.reshape(models, batch, *pooled.shape[1:])
