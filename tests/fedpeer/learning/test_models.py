"""Architectures have the paper's widths; weights travel as arrays and come back unchanged."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedpeer.learning.errors import ModelError
from fedpeer.learning.models import (
    ARCHITECTURES,
    FOR_DATASET,
    architecture,
    build,
    initial_weights,
    load_weights,
    weights_of,
)

pytestmark = pytest.mark.arithmetic


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("mnist-cnn", (20, 1, 5, 5), (50, 20, 5, 5)),
        ("fashion-mnist-cnn", (16, 1, 5, 5), (32, 16, 5, 5)),
        ("cifar10-cnn", (6, 3, 5, 5), (16, 6, 5, 5)),
        ("cifar100-coarse-cnn", (6, 3, 5, 5), (16, 6, 5, 5)),
    ],
)
def test_convolutions_are_those_of_the_papers_appendix(
    name: str, first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    weights = initial_weights(name, 0)
    assert weights["conv1.weight"].shape == first
    assert weights["conv2.weight"].shape == second


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_model_gives_one_output_a_label(name: str) -> None:
    chosen = architecture(name)
    output = build(name, 0)(torch.zeros(3, *chosen.image))
    assert output.shape == (3, chosen.classes)


def test_every_data_set_has_its_model() -> None:
    assert set(FOR_DATASET) == {"digits", "mnist", "fashion-mnist", "cifar10", "cifar100-coarse"}


def test_the_seed_decides_the_weights_and_torchs_own_state_is_left_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    first, again, other = (initial_weights("digits-cnn", seed) for seed in (7, 7, 8))
    assert torch.rand(1) == expected
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["conv1.weight"], other["conv1.weight"])


def test_weights_survive_the_way_there_and_back() -> None:
    module = build("digits-cnn", 0)
    module(torch.rand(4, 1, 8, 8))  # moves the running statistics and the counter
    weights = weights_of(module)
    assert weights["norm1.num_batches_tracked"].dtype == np.int64
    assert weights["norm1.num_batches_tracked"].shape == ()
    assert weights["norm1.num_batches_tracked"] == 1
    other = build("digits-cnn", 1)
    load_weights(other, weights)
    assert all(np.array_equal(weights[name], array) for name, array in weights_of(other).items())


def test_weights_are_copies() -> None:
    module = build("digits-cnn", 0)
    weights = weights_of(module)
    weights["conv1.bias"][:] = 9
    assert float(module.state_dict()["conv1.bias"].max()) < 9
    frozen = {name: array.copy() for name, array in weights.items()}
    for array in frozen.values():
        array.setflags(write=False)
    load_weights(module, frozen)
    with torch.no_grad():
        module.get_parameter("conv1.bias").zero_()
    assert frozen["conv1.bias"].max() == 9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("conv1.bias"), r"lack \['conv1.bias'\]"),
        (lambda w: w.update(extra=np.zeros(1, np.float32)), r"unknown \['extra'\]"),
        (
            lambda w: w.update({"conv1.bias": np.zeros(3, np.float32)}),
            r"conv1.bias is float32 of shape \(3,\)",
        ),
        (lambda w: w.update({"conv1.bias": np.zeros(16)}), "conv1.bias is float64"),
    ],
)
def test_foreign_weights_are_refused_and_nothing_is_copied(
    change: Callable[[dict[str, Any]], object], message: str
) -> None:
    module = build("digits-cnn", 0)
    before = weights_of(module)
    weights = initial_weights("digits-cnn", 1)
    change(weights)
    with pytest.raises(ModelError, match=message):
        load_weights(module, weights)
    assert all(np.array_equal(before[name], array) for name, array in weights_of(module).items())


def test_an_unknown_model_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ModelError, match="digits-cnn, mnist-cnn"):
        build("resnet", 0)
