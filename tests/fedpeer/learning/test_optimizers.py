"""The flat optimizers take torch's own steps."""

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

import pytest
import torch

from fedpeer.learning.errors import RecipeError
from fedpeer.learning.optimizers import optimizer_of
from mechanism.terms import Recipe

pytestmark = pytest.mark.arithmetic


def recipe(optimizer: str) -> Recipe:
    return Recipe("digits-cnn", 1, 20, optimizer, Decimal("0.05"), 100)


OTHER = {"momentum": Decimal("0.7"), "weight_decay": Decimal("0.3")}


@pytest.mark.parametrize(
    ("made", "reference"),
    [
        (recipe("adam"), lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.9, 0.999))),
        (recipe("sgd"), lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
        (
            replace(recipe("adam"), **OTHER, beta2=Decimal("0.95"), epsilon=Decimal("0.01")),
            lambda p: torch.optim.AdamW(p, lr=0.05, betas=(0.7, 0.95), eps=0.01, weight_decay=0.3),
        ),
        (
            replace(recipe("sgd"), momentum=Decimal(0), weight_decay=Decimal("0.3")),
            lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.3),
        ),
    ],
    ids=["adam", "sgd", "adamw", "decaying sgd"],
)
def test_steps_are_those_of_torch(
    made: Recipe, reference: Callable[[list[torch.Tensor]], torch.optim.Optimizer]
) -> None:
    torch.manual_seed(0)
    shapes = [(3, 4), (5,), (2, 2, 2)]
    ours = [torch.rand(shape, requires_grad=True) for shape in shapes]
    theirs = [p.detach().clone().requires_grad_() for p in ours]
    flat, other = optimizer_of(ours, made), reference(theirs)
    for step in range(30):
        for parameters in (ours, theirs):
            loss = sum(((p - step / 10) ** 2 * (p + 1)).sum() for p in parameters)
            loss.backward()  # type: ignore[union-attr]
        flat.step()
        other.step()
        other.zero_grad()
    for p, q in zip(ours, theirs, strict=True):
        assert torch.allclose(p, q, atol=1e-5)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_proximal_term_is_that_of_the_loss(optimizer: str) -> None:
    """Its gradient is what autograd makes of mu/2 |w - start|^2."""
    torch.manual_seed(1)
    ours = [torch.rand(3, 4, requires_grad=True), torch.rand(5, requires_grad=True)]
    theirs = [p.detach().clone().requires_grad_() for p in ours]
    start = [p.detach().clone() for p in ours]
    pulled = optimizer_of(ours, replace(recipe(optimizer), proximal=Decimal("0.3")))
    plain = optimizer_of(theirs, recipe(optimizer))
    for _ in range(20):
        sum(((p - 2) ** 2).sum() for p in ours).backward()  # type: ignore[union-attr]
        loss = sum(((p - 2) ** 2).sum() for p in theirs)
        proximal = sum(((p - s) ** 2).sum() for p, s in zip(theirs, start, strict=True))
        (loss + 0.15 * proximal).backward()
        pulled.step()
        plain.step()
    for p, q, s in zip(ours, theirs, start, strict=True):
        assert torch.allclose(p, q, atol=1e-4)
        assert not torch.allclose(p, s, atol=1e-2)


def test_an_unknown_optimizer_is_refused() -> None:
    broken = recipe("adam")
    object.__setattr__(broken, "optimizer", "lion")
    with pytest.raises(RecipeError, match="expected adam or sgd"):
        optimizer_of([torch.zeros(2)], broken)
