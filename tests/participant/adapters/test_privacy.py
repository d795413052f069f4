"""Adapters under terms that ask for noise."""

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import SGDClassifier
from torch import nn
from torch.utils.data import TensorDataset

from fedpeer.learning.models import weights_of
from fedpeer.protocol.model_file import encode_model, open_model
from mechanism.privacy import Privacy
from mechanism.terms import Recipe, Terms
from participant.adapters.numpy import SoftmaxRegression
from participant.adapters.sklearn import SklearnTask
from participant.adapters.torch import TorchTask
from participant.adapters.workload import WorkloadTask
from participant.errors import TaskError
from participant.task import Task, TrainingRound
from participant.work import LocalTrainer
from tests.participant.adapters.test_torch import digits_terms, terms_for

pytest.importorskip("opacus")
pytestmark = pytest.mark.arithmetic

INPUTS = np.random.default_rng(3).normal(size=(60, 5)).astype(np.float32)
LABELS = np.arange(60) % 10
DP_SGD = Privacy("dp-sgd", Decimal(1), Decimal("0.01"), Decimal("0.00001"))
UPDATE = Privacy("update", Decimal("0.01"), Decimal(100), Decimal("0.00001"))


def private_terms(weights: Any, privacy: Privacy, **changes: Any) -> Terms:
    return terms_for(weights, Recipe("custom", 3, 8, "sgd", Decimal("0.1"), 60, privacy=privacy, **changes))


def torch_task(module: nn.Module | None = None, **options: Any) -> TorchTask:
    data = TensorDataset(torch.from_numpy(INPUTS), torch.from_numpy(LABELS))
    return TorchTask(module or nn.Linear(5, 10), data, classes=10, device="cpu", **options)


def linear(task: SoftmaxRegression | SklearnTask) -> Any:
    return {name: np.zeros(a.shape, np.float32) for name, a in task.start_weights().items()}


def sent(task: Task, terms: Terms, weights: Any, folder: Path) -> Any:
    """What a trainer would send after one round."""
    start, trained = folder / "start.safetensors", folder / "trained.safetensors"
    start.write_bytes(encode_model(weights))
    trainer = LocalTrainer(task)
    trainer.prepare(terms)
    made = trainer.train(start, trained, TrainingRound(terms, "clinic", 1))
    assert made.samples == 60
    return open_model(trained).weights()


@pytest.mark.parametrize("own", [False, True])
def test_a_module_is_trained_by_dp_sgd(own: bool, tmp_path: Path) -> None:
    options: Any = {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1)} if own else {}
    task = torch_task(**options)
    weights = weights_of(task.module)
    terms = private_terms(weights, DP_SGD)
    one = sent(task, terms, weights, tmp_path)
    two = sent(task, terms, weights, tmp_path)
    assert np.abs(one["weight"] - weights["weight"]).max() > 0.01, "it learns"
    assert not np.array_equal(one["weight"], two["weight"]), "from randomness that nobody knows"
    assert not any(hasattr(p, "grad_sample_hooks") for p in task.module.parameters())


def test_dp_sgd_learns(tmp_path: Path) -> None:
    task = torch_task()
    weights = weights_of(task.module)
    terms = private_terms(weights, DP_SGD)
    terms = replace(terms, recipe=replace(terms.recipe, epochs=40))
    made = sent(task, terms, weights, tmp_path)

    def loss(of: Any) -> float:
        logits = torch.from_numpy(INPUTS @ of["weight"].T + of["bias"])
        return float(nn.functional.cross_entropy(logits, torch.from_numpy(LABELS)))

    assert loss(made) < loss(weights) - 0.1


def test_batch_normalisation_is_refused_before_the_claim() -> None:
    module = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
    task = torch_task(module)
    with pytest.raises(TaskError, match="cannot be trained by DP-SGD"):
        LocalTrainer(task).prepare(private_terms(weights_of(module), DP_SGD))


@pytest.mark.parametrize("kind", ["softmax", "sklearn"])
def test_linear_models_have_updates_with_noise_and_no_dp_sgd(kind: str, tmp_path: Path) -> None:
    task: Any = (
        SoftmaxRegression(INPUTS, LABELS, classes=10)
        if kind == "softmax"
        else SklearnTask(SGDClassifier(loss="log_loss"), INPUTS, LABELS, classes=10)
    )
    weights = linear(task)
    with pytest.raises(TaskError, match="DP-SGD"):
        LocalTrainer(task).prepare(private_terms(weights, DP_SGD))
    made = sent(task, private_terms(weights, UPDATE), weights, tmp_path)
    every = np.concatenate([made[name].ravel() for name in sorted(made)])
    assert every.std() == pytest.approx(1.0, rel=0.3), "noise, and next to nothing else"


def test_a_workload_is_trained_by_dp_sgd_where_it_can_be(tmp_path: Path) -> None:
    """The digits' CNN has batch normalisation: noise on its update is what there is."""
    images = np.zeros((60, 1, 8, 8), np.float32)
    images[:, 0, 0, 0] = LABELS
    task = WorkloadTask(images, LABELS)
    with pytest.raises(TaskError, match="cannot be trained by DP-SGD"):
        LocalTrainer(task).prepare(digits_terms(privacy=DP_SGD))
    terms = digits_terms(privacy=replace(UPDATE, noise_multiplier=Decimal("0.001")))
    weights = WorkloadTask(images, LABELS)
    trainer = LocalTrainer(weights)
    trainer.prepare(terms)
    start = weights.workload.build(0)
    made = sent(WorkloadTask(images, LABELS), terms, start, tmp_path)
    change = np.concatenate([(made[n] - start[n]).ravel() for n in made if made[n].dtype == np.float32])
    assert np.linalg.norm(change) == pytest.approx(0.01, rel=0.1)
    assert made["norm1.num_batches_tracked"] == start["norm1.num_batches_tracked"]
