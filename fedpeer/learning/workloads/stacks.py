"""Models of one architecture trained together: one forward and one backward pass for all of them.

The modules' parameters are stacked, and `torch.vmap` maps the loss over the stack, each with its own samples in its own
order; the gradient of the sum of all losses is each model's own. Steps are those of `fedpeer.learning.optimizers` over
the stack: element by element, so what they would be one after another. One code path for every device.

Sums are taken in another order than by a training alone, so that the last digits differ, and with them more of what
rounding alone moves (a bias before a normalisation, under Adam). Layers that draw random numbers draw others.

Source: `torch.func`, model ensembling.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, vmap

from fedpeer.learning.errors import ModelError
from fedpeer.learning.optimizers import optimizer_of
from fedpeer.learning.training import epoch_batches
from mechanism.terms import Recipe

#: Takes inputs, by position or by name, as a module does.
Call = Callable[..., Any]

#: Inputs of one model, or stacked ones of all.
Inputs = torch.Tensor | dict[str, torch.Tensor]


def train_stack(
    module: nn.Module,
    tensors: dict[str, torch.Tensor],
    loss: Callable[[Call, Any, torch.Tensor], torch.Tensor],
    inputs: Sequence[Inputs],
    targets: Sequence[torch.Tensor],
    recipe: Recipe,
    seeds: Sequence[int],
    device: str,
) -> list[dict[str, torch.Tensor]]:
    """The tensors of a model for each seed, trained on its own inputs and targets; on the CPU again.

    Args:
        module: at the start; `tensors` are its parameters and buffers, each under one name.
        loss: of a batch, given what calls the model.
        inputs, targets: of each model; as many samples of all.
        device: of torch, such as "cuda".

    Raises:
        ModelError: a module that cannot be mapped, such as one that looks at values.
    """
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    buffers = {name for name, _ in module.named_buffers()}
    module = module.to(device)
    fixed: dict[str, torch.Tensor] = {}
    stacked: dict[str, torch.Tensor] = {}
    moved: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        there = tensor.detach().to(device)
        if name in trained or name in buffers:
            part = there.expand(len(seeds), *there.shape).clone(memory_format=torch.contiguous_format)
            (stacked if name in trained else moved)[name] = part
        else:
            fixed[name] = there
    by_type: dict[torch.dtype, list[torch.Tensor]] = {}
    for part in stacked.values():
        by_type.setdefault(part.dtype, []).append(part.requires_grad_())
    optimizers = [optimizer_of(group, recipe) for group in by_type.values()]
    own_inputs, own_targets = _together(inputs, device), torch.stack(list(targets)).to(device)
    rows = torch.arange(len(seeds), device=device)[:, None]

    def of_one(
        parameters: dict[str, torch.Tensor],
        states: dict[str, torch.Tensor],
        batch: Inputs,
        wanted: torch.Tensor,
    ) -> torch.Tensor:
        def call(*arguments: Any, **named: Any) -> Any:
            return functional_call(module, {**fixed, **parameters, **states}, arguments, named)

        return loss(call, batch, wanted)

    of_all = vmap(of_one, randomness="different")
    with _plain(device):
        for batches in zip(*(_steps(len(targets[0]), recipe, seed) for seed in seeds), strict=True):
            chosen = torch.stack(batches).to(device)
            try:
                losses = of_all(stacked, moved, _chosen(own_inputs, rows, chosen), own_targets[rows, chosen])
            except RuntimeError as error:
                raise ModelError(
                    f"the module cannot be trained in stacks ({str(error).splitlines()[0]:.200}); leave workers.device "
                    "out, so that models are trained one after another"
                ) from None
            losses.sum().backward()  # type: ignore[no-untyped-call]  # torch's own stub
            for optimizer in optimizers:
                optimizer.step()
    made = {name: part.detach().cpu() for name, part in {**stacked, **moved}.items()}
    rest = {name: part.cpu() for name, part in fixed.items()}
    return [{**rest, **{name: part[place] for name, part in made.items()}} for place in range(len(seeds))]


def _steps(samples: int, recipe: Recipe, seed: int) -> Iterator[torch.Tensor]:
    for batches in epoch_batches(samples, recipe, seed):
        yield from batches


def _together(inputs: Sequence[Inputs], device: str) -> Inputs:
    first = inputs[0]
    if isinstance(first, dict):
        return {name: torch.stack([each[name] for each in inputs]).to(device) for name in first}  # type: ignore[index]
    return torch.stack(list(inputs)).to(device)  # type: ignore[arg-type]


def _chosen(inputs: Inputs, rows: torch.Tensor, chosen: torch.Tensor) -> Inputs:
    if isinstance(inputs, dict):
        return {name: part[rows, chosen] for name, part in inputs.items()}
    return inputs[rows, chosen]


@contextmanager
def _plain(device: str) -> Iterator[None]:
    """Full float32, and the same kernels each time, where the device has a choice."""
    if not device.startswith("cuda"):
        yield
        return
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = False
        try:
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before
