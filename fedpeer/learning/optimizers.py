"""Adam and SGD on one flat vector of parameters.

torch.optim gives the same steps, but its first use imports torch's compiler, which takes seconds in every
participant's process, and it walks over tensors where a small model has one pass over a vector to make. A test
holds these steps against torch's own.

Sources: Kingma and Ba 2015, algorithm 1; Sutskever et al. 2013 for momentum, in torch's form; Loshchilov and Hutter
2019 for weight decay.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from fedpeer.learning.errors import RecipeError
from mechanism.terms import Recipe


class Optimizer(Protocol):
    """Moves the parameters that it was made with."""

    def step(self) -> None:
        """One step along the gradients gathered since the last; clears them."""


class FlatParameters:
    """Parameters as views of one vector, and their gradients as views of another.

    The given tensors are re-pointed at the vector: they must not have been used in a graph yet.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self.values = torch.cat([p.detach().reshape(-1) for p in parameters])
        self.gradients = torch.zeros_like(self.values)
        position = 0
        for parameter in parameters:
            part = slice(position, position + parameter.numel())
            parameter.data = self.values[part].view(parameter.shape)
            parameter.grad = self.gradients[part].view(parameter.shape)
            position += parameter.numel()


class Proximal:
    """FedProx: mu/2 |w - start|^2 beside the loss, so mu (w - start) beside its gradient. Source: Li et al. 2020."""

    def __init__(self, parameters: FlatParameters, mu: float, inner: Optimizer) -> None:
        self._flat = parameters
        self._mu = mu
        self._start = parameters.values.clone()
        self._inner = inner

    @torch.no_grad()
    def step(self) -> None:
        self._flat.gradients.add_(self._flat.values - self._start, alpha=self._mu)
        self._inner.step()


class Decaying:
    """w -= rate * decay * w before each step."""

    def __init__(self, parameters: FlatParameters, rate: float, decay: float, inner: Optimizer) -> None:
        self._flat = parameters
        self._kept = 1 - rate * decay
        self._inner = inner

    @torch.no_grad()
    def step(self) -> None:
        self._flat.values.mul_(self._kept)
        self._inner.step()


class Adam:
    """w -= rate * m_hat / (sqrt(v_hat) + epsilon)."""

    def __init__(self, parameters: FlatParameters, recipe: Recipe) -> None:
        self._flat = parameters
        self._rate, self._epsilon = float(recipe.learning_rate), float(recipe.epsilon)
        self._beta1, self._beta2 = float(recipe.momentum), float(recipe.beta2)
        self._first = torch.zeros_like(parameters.values)
        self._second = torch.zeros_like(parameters.values)
        self._steps = 0

    @torch.no_grad()
    def step(self) -> None:
        gradients = self._flat.gradients
        self._steps += 1
        self._first.lerp_(gradients, 1 - self._beta1)
        self._second.mul_(self._beta2).addcmul_(gradients, gradients, value=1 - self._beta2)
        scale = (1 - self._beta2**self._steps) ** 0.5
        denominator = (self._second.sqrt() / scale).add_(self._epsilon)
        self._flat.values.addcdiv_(
            self._first, denominator, value=-self._rate / (1 - self._beta1**self._steps)
        )
        gradients.zero_()


class Sgd:
    """m = momentum * m + g; w -= rate * m."""

    def __init__(self, parameters: FlatParameters, recipe: Recipe) -> None:
        self._flat = parameters
        self._rate, self._kept = float(recipe.learning_rate), float(recipe.momentum)
        self._momentum = torch.zeros_like(parameters.values)

    @torch.no_grad()
    def step(self) -> None:
        self._momentum.mul_(self._kept).add_(self._flat.gradients)
        self._flat.values.add_(self._momentum, alpha=-self._rate)
        self._flat.gradients.zero_()


def optimizer_of(parameters: Sequence[torch.Tensor], recipe: Recipe) -> Optimizer:
    """The recipe's optimizer over `parameters`, which stand at the start; with its proximal term and weight decay.

    Raises:
        RecipeError: an unknown optimizer.
    """
    kinds: dict[str, Callable[[FlatParameters, Recipe], Optimizer]] = {"adam": Adam, "sgd": Sgd}
    if recipe.optimizer not in kinds:
        raise RecipeError(f"there is no optimizer {recipe.optimizer!r}; expected adam or sgd")
    flat = FlatParameters(parameters)
    optimizer = kinds[recipe.optimizer](flat, recipe)
    if recipe.weight_decay:
        optimizer = Decaying(flat, float(recipe.learning_rate), float(recipe.weight_decay), optimizer)
    return Proximal(flat, float(recipe.proximal), optimizer) if recipe.proximal else optimizer
