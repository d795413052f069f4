"""The flat optimizers take torch's own steps."""

from collections.abc import Callable
from decimal import Decimal

import pytest
import torch

from fedpeer.learning.errors import RecipeError
from fedpeer.learning.optimizers import optimizer_of
from mechanism.terms import Recipe

pytestmark = pytest.mark.arithmetic


def recipe(optimizer: str) -> Recipe:
    return Recipe("digits-cnn", 1, 20, optimizer, Decimal("0.05"), 100)


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("adam", lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.9, 0.999))),
        ("sgd", lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
    ],
)
def test_steps_are_those_of_torch(
    name: str, reference: Callable[[list[torch.Tensor]], torch.optim.Optimizer]
) -> None:
    torch.manual_seed(0)
    shapes = [(3, 4), (5,), (2, 2, 2)]
    ours = [torch.rand(shape, requires_grad=True) for shape in shapes]
    theirs = [p.detach().clone().requires_grad_() for p in ours]
    flat, other = optimizer_of(ours, recipe(name)), reference(theirs)
    for step in range(30):
        for parameters in (ours, theirs):
            loss = sum(((p - step / 10) ** 2 * (p + 1)).sum() for p in parameters)
            loss.backward()  # type: ignore[union-attr]
        flat.step()
        other.step()
        other.zero_grad()
    for p, q in zip(ours, theirs, strict=True):
        assert torch.allclose(p, q, atol=1e-5)


def test_an_unknown_optimizer_is_refused() -> None:
    broken = recipe("adam")
    object.__setattr__(broken, "optimizer", "lion")
    with pytest.raises(RecipeError, match="expected adam or sgd"):
        optimizer_of([torch.zeros(2)], broken)
