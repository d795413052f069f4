"""Norms and curvatures are those of the loss."""

import numpy as np
import pytest
import torch

from fedpeer.experiments.data import splits
from fedpeer.experiments.federation import federation_parameters
from fedpeer.experiments.gradients import (
    batch_norms,
    flat_gradient,
    gradients_cell,
    largest_curvature,
    sample_norms,
)
from fedpeer.experiments.populations import SHARES
from fedpeer.experiments.settings import EPOCHS_ONCE, Settings
from fedpeer.learning.models import build, initial_weights, load_weights
from fedpeer.learning.training import evaluate

pytestmark = pytest.mark.arithmetic

MODEL = "digits-cnn"


def test_a_gradient_predicts_the_change_of_the_loss() -> None:
    data = splits("digits", 0).validation.select(np.arange(64, dtype=np.int64))
    weights = initial_weights(MODEL, 0)
    _, gradient = flat_gradient(weights, data, MODEL)
    step, moved, at = 1e-3, {}, 0
    trained = {name for name, _ in build(MODEL, 0).named_parameters()}
    for name, _ in build(MODEL, 0).named_parameters():
        size = weights[name].size
        part = gradient[at : at + size].numpy().reshape(weights[name].shape)
        moved[name] = (weights[name] - step * part).astype(np.float32)
        at += size
    after = {name: moved.get(name, value) for name, value in weights.items()}
    assert at == len(gradient)
    assert trained == moved.keys()
    fall = evaluate(weights, data, MODEL).loss - evaluate(after, data, MODEL).loss
    assert fall / (step * float(gradient.norm()) ** 2) == np.clip(
        fall / (step * float(gradient.norm()) ** 2), 0.9, 1.1
    )


def test_no_direction_bends_more_than_the_largest_curvature() -> None:
    data = splits("digits", 0).validation.select(np.arange(64, dtype=np.int64))
    weights = initial_weights(MODEL, 0)
    largest = largest_curvature(weights, data, MODEL, seed=0)
    module = build(MODEL, 0)
    load_weights(module, weights)
    module.eval()
    parameters = list(module.parameters())
    loss = torch.nn.functional.cross_entropy(
        module(torch.from_numpy(data.images)), torch.from_numpy(data.labels)
    )
    flat = torch.cat([g.ravel() for g in torch.autograd.grad(loss, parameters, create_graph=True)])
    for seed in range(5):
        direction = torch.randn(len(flat), generator=torch.Generator().manual_seed(seed))
        direction /= direction.norm()
        product = torch.autograd.grad(flat @ direction, parameters, retain_graph=True)
        assert abs(float(torch.cat([p.ravel() for p in product]) @ direction)) <= 1.05 * largest
    assert largest > 0


def test_norms_of_batches_and_of_samples_are_positive_and_as_many_as_asked() -> None:
    recipe = Settings("digits").recipe(EPOCHS_ONCE)
    data = splits("digits", 0).train.select(np.arange(100, dtype=np.int64))
    weights = initial_weights(MODEL, 0)
    assert len(batch_norms(weights, data, recipe, 0)) == 4
    norms = sample_norms(weights, data, MODEL)
    assert len(norms) == 32
    assert min(norms) > 0


def test_the_cell_reports_both_participants_in_every_round() -> None:
    settings = Settings("digits", rounds=2, seeds=1)
    counts = [SHARES.mix(k, SHARES.default, 10, settings.samples).counts for k in range(3)]
    result = gradients_cell(federation_parameters(settings, counts, EPOCHS_ONCE, 0, track=(0, 2)), "cpu")
    assert [(row["round"], row["participant"]) for row in result["norms"]] == [(1, 0), (1, 2), (2, 0), (2, 2)]
    assert all(row["largest"] >= row["first"] for row in result["norms"])
    assert [row["secant"] is None for row in result["smoothness"]] == [True, False]
