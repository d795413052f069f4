"""What is particular to torch modules."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.linear_model import SGDClassifier
from torch import nn

from fedpeer.evidence.observing import silent_tensors
from fedpeer.learning.datasets import LabelledData
from fedpeer.learning.errors import ModelError, RecipeError
from fedpeer.learning.models import initial_weights
from fedpeer.learning.samples import Samples
from fedpeer.learning.training import train
from fedpeer.learning.workloads.cnns import CnnWorkload
from fedpeer.learning.workloads.protocol import (
    Judged,
    accuracy_by_label,
    flat_change,
    loss_and_accuracy,
    unfollowed,
)
from fedpeer.learning.workloads.sklearn import SklearnWorkload
from fedpeer.learning.workloads.torch import TorchWorkload
from mechanism.variation import Allowed
from tests.fedpeer.learning.workloads.test_contract import (
    CLASSES,
    RECIPE,
    WIDTH,
    Adapted,
    Normed,
    Tied,
    classified,
    documents,
    images,
)


def test_a_cnn_is_what_it_was() -> None:
    workload, samples = CnnWorkload("digits-cnn"), images()
    start = workload.build(3)
    old = initial_weights("digits-cnn", 3)
    assert all(np.array_equal(start[name], old[name]) for name in old)
    data = LabelledData("digits", samples.inputs, samples.targets, 10)  # type: ignore[arg-type]
    expected = train(old, data, replace(RECIPE, model="digits-cnn"), 5)
    made = workload.train(start, samples, RECIPE, 5)
    assert all(np.array_equal(made[name], expected[name]) for name in expected)


def update(workload: TorchWorkload, samples: Samples, **parts: Any) -> npt.NDArray[np.float64]:
    """What training by the recipe with these parts changes."""
    start = workload.build(3)
    made = workload.train(start, samples, replace(RECIPE, **parts), 5)
    assert {n: a.dtype for n, a in made.items()} == {n: a.dtype for n, a in start.items()}
    return flat_change(workload.trainable, made, start)


@pytest.mark.parametrize(
    ("parts", "least", "most"),
    [
        ({"precision": "float64"}, 1e-9, 0.2),
        ({"precision": "bfloat16"}, 1e-5, 0.3),
        ({"augmentation": "light"}, 1e-3, 2),
        ({"label_smoothing": Decimal("0.2")}, 1e-3, 1),
        ({"weight_decay": Decimal("0.1")}, 1e-5, 0.5),
        ({"momentum": Decimal("0.5")}, 1e-3, 1.5),
        ({"epsilon": Decimal("0.001")}, 1e-3, 1),
    ],
    ids=lambda given: str(next(iter(given))) if isinstance(given, dict) else "",
)
def test_each_part_of_a_recipe_is_followed(parts: Any, least: float, most: float) -> None:
    workload, samples = CnnWorkload("digits-cnn"), images()
    parts, plain = (
        {"optimizer": "adam", **parts},
        update(CnnWorkload("digits-cnn"), samples, optimizer="adam"),
    )
    found = np.linalg.norm(update(workload, samples, **parts) - plain) / np.linalg.norm(plain)
    assert least < found < most


def test_what_only_a_classifier_has_is_refused_of_others_and_before_it_is_offered() -> None:
    workload = TorchWorkload(lambda: nn.Linear(WIDTH, 1), "squared_error")
    smoothed = replace(RECIPE, label_smoothing=Decimal("0.1"))
    with pytest.raises(RecipeError, match="label_smoothing"):
        workload.train(workload.build(0), classified(), smoothed, 0)
    assert unfollowed(workload, replace(RECIPE, allowed=Allowed(label_smoothing=Decimal("0.1")))) == [
        "label_smoothing"
    ]
    assert unfollowed(CnnWorkload("digits-cnn"), replace(smoothed, allowed=Allowed(augmentation=True))) == []
    linear = SklearnWorkload(SGDClassifier(), features=WIDTH, classes=CLASSES)
    wide = replace(RECIPE, allowed=Allowed(epochs=1, batch_factor=Decimal(2), learning_rate=Decimal("0.1")))
    assert unfollowed(linear, wide) == ["batch_size", "learning_rate"]


def test_tied_weights_travel_once_and_stay_tied() -> None:
    workload = TorchWorkload(Tied, classes=CLASSES)
    weights = workload.build(1)
    assert "there.weight" in weights
    assert "back.weight" not in weights
    trained = workload.train(weights, classified(), RECIPE, 1)
    assert set(trained) == set(weights)


def test_a_frozen_base_stays_at_home() -> None:
    workload = TorchWorkload(Adapted, classes=CLASSES, travels="trained")
    assert set(workload.build(0)) == {"down", "up", "head.weight", "head.bias"}
    assert len(workload.frozen) == 64
    assert workload.frozen == TorchWorkload(Adapted, classes=CLASSES, travels="trained").frozen
    assert TorchWorkload(Adapted, classes=CLASSES).frozen == ""


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float8_e4m3fn", "int8", "complex64"])
def test_a_frozen_base_is_another_in_another_type_and_the_same_however_it_lies_in_memory(kind: str) -> None:
    class Kept(nn.Module):
        def __init__(self, kept: torch.Tensor) -> None:
            super().__init__()
            self.register_buffer("kept", kept)

    def frozen(kept: torch.Tensor) -> str:
        base = Kept(kept)  # loaded, as from a file
        return TorchWorkload(
            lambda: nn.Sequential(base, nn.Linear(WIDTH, CLASSES)), classes=CLASSES, travels="trained"
        ).frozen

    values = torch.arange(6.0).reshape(2, 3)
    other = values.to(getattr(torch, kind))
    assert frozen(other) == frozen(other.t().contiguous().t()) == frozen(other.clone())
    assert frozen(other) != frozen(values)
    assert frozen(values) != frozen(values.reshape(3, 2))
    assert frozen(values + torch.nan) == frozen(values + torch.nan), "NaN may mask"


def test_a_buffer_that_no_state_dict_has_is_of_the_frozen_base_too() -> None:
    class Scaled(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.base, self.head = nn.Linear(WIDTH, WIDTH).requires_grad_(False), nn.Linear(WIDTH, CLASSES)
            nn.init.eye_(self.base.weight)
            nn.init.zeros_(self.base.bias)
            self.register_buffer("scale", torch.tensor(scale), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.head(self.scale * self.base(x))
            return found

    one, other = (
        TorchWorkload(lambda s=s: Scaled(s), classes=CLASSES, travels="trained") for s in (1.0, 2.0)
    )  # type: ignore[misc]
    assert set(one.build(0)) == set(other.build(0)) == {"head.weight", "head.bias"}
    assert one.frozen != other.frozen
    assert TorchWorkload(lambda: Scaled(2.0), classes=CLASSES, travels="trained").frozen == other.frozen


def test_a_buffer_of_a_frozen_base_must_not_depend_on_the_seed_either() -> None:
    def factory() -> nn.Module:
        norm = nn.BatchNorm1d(WIDTH).requires_grad_(False)
        norm.running_mean = torch.randn(WIDTH)
        return nn.Sequential(norm, nn.Linear(WIDTH, CLASSES))

    with pytest.raises(ModelError, match=r"0.running_mean.* differ from one call of the factory to the next"):
        TorchWorkload(factory, classes=CLASSES, travels="trained")


def test_a_frozen_base_that_depends_on_the_seed_must_travel() -> None:
    def factory() -> nn.Module:
        module = nn.Sequential(nn.Linear(WIDTH, 4), nn.Linear(4, CLASSES))
        module[0].requires_grad_(False)
        return module

    with pytest.raises(ModelError, match="travels"):
        TorchWorkload(factory, classes=CLASSES, travels="trained")
    assert "0.weight" in TorchWorkload(factory, classes=CLASSES).build(0)


def test_a_bias_before_a_batch_norm_is_silent_and_a_low_rank_factor_is_not() -> None:
    normed = TorchWorkload(lambda: Normed(lambda: nn.BatchNorm1d(8)), classes=CLASSES)
    start = normed.build(1)
    after = normed.train(start, classified(), RECIPE, 1)
    assert silent_tensors(normed, [start, after], classified()) == {"inner.bias"}
    adapted = TorchWorkload(Adapted, classes=CLASSES, travels="trained")
    start = adapted.build(1)
    after = adapted.train(start, documents(), RECIPE, 1)
    assert silent_tensors(adapted, [start], documents()) == {"down"}
    assert silent_tensors(adapted, [start, after], documents()) == frozenset()


@pytest.mark.parametrize(
    ("factory", "loss", "said"),
    [
        (
            nn.Linear(WIDTH, CLASSES),
            "cross_entropy",
            "is a Linear; expected a function that makes a new module",
        ),
        ("nn.Linear", "cross_entropy", "is a str; expected a function that makes a new module"),
        (lambda: "a text", "cross_entropy", "expected a torch.nn.Module"),
        (lambda: nn.Linear(WIDTH, CLASSES).requires_grad_(False), "cross_entropy", "something to train"),
        (lambda: nn.Linear(WIDTH, CLASSES), "crossentropy", "there is no loss"),
        (lambda: nn.Linear(WIDTH, CLASSES).half(), "cross_entropy", "parameters of torch.float16, in which"),
    ],
)
def test_a_factory_that_gives_no_model_is_refused(factory: object, loss: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        TorchWorkload(factory, loss, classes=CLASSES)  # type: ignore[arg-type]


def test_a_loss_that_is_averaged_already_is_refused() -> None:
    workload = TorchWorkload(
        lambda: nn.Linear(WIDTH, CLASSES), lambda out, y: nn.functional.cross_entropy(out, y), classes=CLASSES
    )
    with pytest.raises(ModelError, match="one loss a sample"):
        workload.train(workload.build(0), classified(), RECIPE, 0)


def test_outputs_of_another_number_of_classes_are_refused() -> None:
    workload = TorchWorkload(lambda: nn.Linear(WIDTH, 5), classes=CLASSES)
    with pytest.raises(ModelError, match=r"\(60, 5\)|a logit for each class"):
        workload.judge(workload.build(0), classified())


def test_dropout_follows_the_seed_of_the_training() -> None:
    workload = TorchWorkload(
        lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(WIDTH, CLASSES)), classes=CLASSES
    )
    start = workload.build(0)
    before = torch.random.get_rng_state()
    one, again, other = (workload.train(start, classified(), RECIPE, seed)["1.weight"] for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert torch.equal(before, torch.random.get_rng_state())


def test_participants_in_threads_of_one_process_train_as_alone() -> None:
    workload = TorchWorkload(
        lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(WIDTH, CLASSES)), classes=CLASSES
    )
    start = workload.build(0)

    def trained(seed: int) -> np.ndarray[Any, Any]:
        return workload.train(start, classified(), RECIPE, seed)["1.weight"]

    alone = [trained(seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as threads:
        assert all(np.array_equal(*pair) for pair in zip(threads.map(trained, range(8)), alone, strict=True))


def test_accuracy_by_label_adds_up_to_the_whole() -> None:
    workload, samples = TorchWorkload(lambda: nn.Linear(WIDTH, CLASSES), classes=CLASSES), classified()
    judged = workload.judge(workload.build(1), samples)
    kept = samples.targets != 1  # nobody shows this class
    targets = samples.targets[kept]
    some = Judged(judged.losses[kept], judged.outputs[kept])  # type: ignore[index]
    shares = accuracy_by_label(workload, some, targets)
    assert len(shares) == CLASSES
    assert shares[1] is None
    counts = np.bincount(targets, minlength=CLASSES)
    whole = sum(share * count for share, count in zip(shares, counts, strict=True) if share is not None)
    assert whole / len(targets) == pytest.approx(loss_and_accuracy(workload, some, targets)[1])
    numbers = TorchWorkload(lambda: nn.Linear(WIDTH, 1), classes=None, loss=nn.functional.mse_loss)
    assert accuracy_by_label(numbers, judged, samples.targets) == []
