"""DP-SGD: what is clipped, how much noise there is, and what it refuses."""

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedpeer.learning.dp_sgd import PrivateSteps
from fedpeer.learning.errors import RecipeError
from fedpeer.learning.samples import Samples
from fedpeer.learning.workloads.protocol import train_all, trains_dp_sgd
from fedpeer.learning.workloads.torch import TorchWorkload
from mechanism.privacy import Privacy
from mechanism.terms import Recipe

pytest.importorskip("opacus")
pytestmark = pytest.mark.arithmetic

#: So little noise that it is not seen.
QUIET = Decimal("0.000001")


def recipe(clip: str = "1000", multiplier: Decimal | str = QUIET, batch: int = 8, **changes: Any) -> Recipe:
    privacy = Privacy("dp-sgd", Decimal(clip), Decimal(multiplier), Decimal("0.00001"))
    plain = Recipe("custom", 1, batch, "sgd", Decimal("0.1"), 8, privacy=privacy)
    return replace(plain, **changes)


def workload(make: Callable[[], nn.Module] = lambda: nn.Linear(3, 2)) -> TorchWorkload:
    return TorchWorkload(make, classes=2)


def samples(count: int = 8) -> Samples:
    generator = np.random.default_rng(5)
    return Samples(
        generator.normal(size=(count, 3)).astype(np.float32),
        generator.integers(2, size=count).astype(np.int64),
    )


def change(made: Any, start: Any) -> Any:
    return np.concatenate([(made[name] - start[name]).ravel() for name in sorted(start)])


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("proximal", ["0", "0.5"])
def test_without_clip_and_noise_it_is_plain_training(optimizer: str, proximal: str) -> None:
    """One batch of everything: the same gradients, whatever their order."""
    own = workload()
    start = own.build(1)
    private = recipe(epochs=5, optimizer=optimizer, proximal=Decimal(proximal))
    made = own.train(start, samples(), private, 3)
    plain = own.train(start, samples(), replace(private, privacy=None), 3)
    np.testing.assert_allclose(change(made, start), change(plain, start), rtol=2e-3, atol=2e-5)


def test_each_samples_gradient_is_clipped() -> None:
    own, data, clip, rate = workload(), samples(), 0.1, 0.1
    start = own.build(1)
    made = own.train(start, data, recipe(clip=str(clip)), 3)
    weight, bias = start["weight"].astype(float), start["bias"].astype(float)
    logits = data.inputs @ weight.T + bias  # type: ignore[operator]  # one array
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    error = shares - np.eye(2)[data.targets]
    total = np.zeros(8)
    for row, inputs in zip(error, np.asarray(data.inputs), strict=True):
        gradient = np.concatenate([row, np.outer(row, inputs).ravel()])
        total += gradient * min(1.0, clip / float(np.linalg.norm(gradient)))
    np.testing.assert_allclose(change(made, start), -rate * total / 8, rtol=1e-3, atol=1e-6)


def test_the_noise_is_the_clip_times_the_multiplier_over_the_batch() -> None:
    own = TorchWorkload(lambda: nn.Linear(3_000, 2), classes=2)
    start = own.build(1)
    data = Samples(np.zeros((8, 3_000), np.float32), np.zeros(8, np.int64))  # no gradient for the weights
    made = own.train(start, data, recipe(clip="2", multiplier="3"), 3)
    deviation = (made["weight"] - start["weight"]).std()
    assert deviation == pytest.approx(0.1 * 2 * 3 / 8, rel=0.05)


def test_batches_are_drawn_anew_and_may_be_empty() -> None:
    module = nn.Linear(3, 2)
    steps = PrivateSteps(module.train(), recipe(batch=1), 4, 7)
    drawn = [[batch.tolist() for batch in steps.batches()] for _ in range(200)]
    sizes = [len(batch) for epoch in drawn for batch in epoch]
    assert {len(epoch) for epoch in drawn} == {4}
    assert np.mean(sizes) == pytest.approx(1.0, abs=0.15), "each sample with chance 1/4"
    assert 0 in sizes
    assert max(sizes) > 1
    steps.close()


def test_an_empty_batch_is_a_step_of_noise() -> None:
    module = nn.Linear(3, 2)
    before = module.weight.detach().clone()
    steps = PrivateSteps(module.train(), recipe(clip="1", multiplier="1"), 4, 7)
    assert steps.step(torch.arange(0), lambda _: torch.tensor(float("nan"))) == 0.0
    moved = (module.weight.detach() - before).abs()
    assert moved.min() > 0
    assert torch.isfinite(moved).all()
    steps.close()


def test_the_same_seed_gives_the_same_shadow() -> None:
    own = workload()
    start, noisy = own.build(1), recipe(multiplier="1", batch=2)
    one, same, other = train_all(own, start, [samples()] * 3, noisy, [3, 3, 4])
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert not np.array_equal(one["weight"], other["weight"])


def test_shadows_of_updates_with_noise() -> None:
    own = workload()
    start = own.build(1)
    privacy = Privacy("update", Decimal("0.001"), Decimal(5), Decimal("0.00001"))
    noisy = replace(recipe(), privacy=privacy)
    one, same, other = train_all(own, start, [samples()] * 3, noisy, [3, 3, 4])
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert not np.array_equal(one["weight"], other["weight"])
    assert np.abs(change(one, start)).max() < 0.001 + 5 * 0.005, "clipped, and noise on it"


def test_layers_over_which_samples_are_not_apart_are_refused() -> None:
    own = workload(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    with pytest.raises(RecipeError, match="cannot be trained by DP-SGD"):
        own.train(own.build(1), samples(), recipe(), 3)


def test_which_workloads_train_so() -> None:
    from sklearn.linear_model import SGDClassifier

    from fedpeer.learning.workloads.sklearn import SklearnWorkload

    assert trains_dp_sgd(workload())
    assert not trains_dp_sgd(SklearnWorkload(SGDClassifier(), features=3, classes=2))
