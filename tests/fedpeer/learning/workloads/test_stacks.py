"""Models trained together are those that are trained one after another, up to rounding; on whichever device."""

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
import torch
from torch import nn

from fedpeer.learning.errors import ModelError
from fedpeer.learning.samples import Samples
from fedpeer.learning.workloads.cnns import CnnWorkload
from fedpeer.learning.workloads.protocol import NewWeights, flat_change, in_stacks, train_all
from fedpeer.learning.workloads.torch import TorchWorkload
from mechanism.privacy import Privacy
from mechanism.terms import Recipe

pytestmark = pytest.mark.arithmetic

RECIPE = Recipe("digits-cnn", 3, 16, "sgd", Decimal("0.05"), 60)

#: Where models are trained together; what is not here is skipped, in words.
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(
            not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine"
        ),
    ),
]

#: How far the changes of two trainings are apart at most, over their length, where rounding alone differs.
CLOSE = 1e-3


class Normalised(nn.Module):
    """Layers of every kind that a batch treats in its own way, a frozen one, and two names of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3)
        self.normal = nn.BatchNorm2d(4)
        self.layer = nn.LayerNorm(4)
        self.frozen = nn.Linear(4, 4)
        with torch.no_grad():
            self.frozen.weight.copy_(torch.eye(4))
            self.frozen.bias.zero_()
        for parameter in self.frozen.parameters():
            parameter.requires_grad = False
        self.out = nn.Linear(4, 4)
        self.again = nn.Linear(4, 4)
        self.again.weight = self.out.weight

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        seen = torch.relu(self.normal(self.convolution(images))).mean(dim=(2, 3))
        found: torch.Tensor = self.again(torch.relu(self.out(self.frozen(self.layer(seen)))))
        return found


class Named(nn.Module):
    """Inputs by name, one of whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(9, 5), nn.Linear(6, 1)

    def forward(self, word: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(torch.cat([self.words(word).mean(dim=1), size[:, None]], dim=1))
        return found


def images(seed: int, count: int = 60) -> Samples:
    dice = np.random.default_rng(seed)
    labels = dice.integers(0, 4, count)
    found = dice.random((count, 1, 6, 6), dtype=np.float32)
    found[np.arange(count), 0, labels] += 1
    return Samples(found, labels)


def named(seed: int, count: int = 60) -> Samples:
    dice = np.random.default_rng(seed)
    size = dice.random(count, dtype=np.float32)
    return Samples({"word": dice.integers(0, 9, (count, 3)), "size": size}, (2 * size).astype(np.float32))


def distance(one: NewWeights, other: NewWeights, start: NewWeights, names: tuple[str, ...]) -> float:
    """Between two changes of the start, over the length of one."""
    first, second = (flat_change(names, made, start) for made in (one, other))
    return float(np.linalg.norm(first - second) / np.linalg.norm(first))


WORKLOADS: dict[str, tuple[TorchWorkload, Callable[[int], Samples]]] = {
    "a line": (TorchWorkload(lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 4)), classes=4), images),
    "normalised": (TorchWorkload(Normalised, classes=4), images),
    "what is trained travels": (TorchWorkload(Normalised, classes=4, travels="trained"), images),
    "inputs by name": (TorchWorkload(Named, "squared_error"), named),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_models_of_a_stack_are_those_of_a_training_each(name: str, optimizer: str, device: str) -> None:
    workload, samples = WORKLOADS[name]
    rate = Decimal("0.05" if optimizer == "sgd" else "0.003")
    recipe = replace(RECIPE, optimizer=optimizer, learning_rate=rate, proximal=Decimal("0.1"))
    start, parts, seeds = workload.build(3), [samples(k) for k in range(5)], [10, 11, 12, 13, 14]
    alone = train_all(workload, start, parts, recipe, seeds)
    stack = train_all(workload, start, parts, recipe, seeds, device)
    # A bias before a normalisation has no gradient but rounding, by which Adam divides it.
    moved = tuple(n for n in workload.trainable if n != "convolution.bias")
    for one, other in zip(alone, stack, strict=True):
        assert one.keys() == other.keys()
        assert all(one[n].dtype == other[n].dtype and one[n].shape == other[n].shape for n in one)
        assert distance(one, other, start, moved) < CLOSE
        for buffer in one.keys() - set(workload.trainable):
            np.testing.assert_allclose(other[buffer], one[buffer], rtol=1e-3, atol=1e-3)
    # And they are no one's but their own.
    assert distance(alone[0], alone[1], start, moved) > 20 * CLOSE
    assert [stack[0].keys(), list(stack[0])] == [alone[0].keys(), list(alone[0])]


@pytest.mark.parametrize("device", DEVICES)
def test_what_a_stack_comes_to_is_the_same_again_and_hangs_on_no_other_member(device: str) -> None:
    workload, _ = WORKLOADS["normalised"]
    start, parts = workload.build(3), [images(k) for k in range(4)]
    first, again = (train_all(workload, start, parts, RECIPE, [1, 2, 3, 4], device) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in one)
    turned = train_all(workload, start, parts[::-1], RECIPE, [4, 3, 2, 1], device)[::-1]
    for one, other in zip(first, turned, strict=True):
        assert distance(one, other, start, workload.trainable) < CLOSE


def test_data_sets_of_several_sizes_and_the_noise_of_a_recipe_are_each_ones_own() -> None:
    workload, _ = WORKLOADS["a line"]
    noisy = replace(RECIPE, privacy=Privacy("update", Decimal(1), Decimal("0.1"), Decimal("1e-5")))
    start, parts = workload.build(3), [images(0, 60), images(1, 33), images(2, 60), images(3, 33)]
    alone = train_all(workload, start, parts, noisy, [5, 6, 7, 8])
    stack = train_all(workload, start, parts, noisy, [5, 6, 7, 8], "cpu")
    for one, other in zip(alone, stack, strict=True):
        assert distance(one, other, start, workload.trainable) < CLOSE


def test_what_cannot_be_stacked_is_trained_alone_or_refused_with_what_to_do() -> None:
    private = replace(RECIPE, privacy=Privacy("dp-sgd", Decimal(1), Decimal(1), Decimal("1e-5")))
    assert not in_stacks(WORKLOADS["a line"][0], private)
    assert in_stacks(CnnWorkload("digits-cnn"), RECIPE)

    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(36, 4)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.out(inputs.flatten(1))
            return found if found.sum().item() > 0 else -found

    looks = TorchWorkload(Looks, classes=4)
    with pytest.raises(ModelError, match=r"cannot be trained in stacks .*leave workers\.device out"):
        train_all(looks, looks.build(0), [images(0), images(1)], RECIPE, [1, 2], "cpu")
