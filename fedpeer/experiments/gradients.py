"""Gradients and smoothness along a federation: what the paper's G and L are on real training.

    batch norm      |grad of the mean loss of a batch|, as training sees it
    sample norm     |grad of the loss of one sample|, batch normalisation by its running statistics
    smoothness      the largest |eigenvalue| of the Hessian of F_c by power iteration
    secant          |grad F_c(w_(r+1)) - grad F_c(w_r)| / |w_(r+1) - w_r|, a lower bound on L
    likelihood      1 / (probability of the true label), the largest over samples of D_c: what the paper calls L

Source: Pang et al. 2025, appendix (hyperparameter analysis); Assumptions 2 and 4.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedpeer.experiments.data import generator, splits
from fedpeer.experiments.federation import order_seed, recipe_of, rounds
from fedpeer.learning.datasets import LabelledData
from fedpeer.learning.models import Weights, build, load_weights
from fedpeer.learning.optimizers import optimizer_of
from fedpeer.learning.training import epoch_batches, log_probabilities, one_thread
from mechanism.terms import Recipe

#: Samples of D_c for the Hessian and for F_c's gradient, and single samples of a participant.
HESSIAN_SAMPLES, SINGLE_SAMPLES = 256, 32
#: Power iterations: the estimate comes from below and settles to a few per cent.
POWER_STEPS = 12
#: Probes of the smoothness along the training.
PROBES = 5

_PROBE = 3  # the purpose of this module's random streams, beside those of `fedpeer.experiments.federation`


def gradients_cell(parameters: dict[str, Any], device: str) -> dict[str, Any]:
    """Norms of two participants in every round, and the smoothness in a few.

    Returns:
        "norms": rows of round, participant, first (of the round's first batch), largest (of all its batches),
            single (root mean square over samples), single_largest;
        "smoothness": rows of round, smoothness, secant (None in the first), likelihood.
    """
    parts = splits(parameters["dataset"], parameters["seed"])
    recipe, last, seed = recipe_of(parameters), parameters["rounds"], parameters["seed"]
    probe = parts.validation.select(np.arange(min(HESSIAN_SAMPLES, len(parts.validation)), dtype=np.int64))
    probed = {round(r) for r in np.linspace(1, last, PROBES)}
    norms, smoothness = [], []
    before: tuple[torch.Tensor, torch.Tensor] | None = None
    for r in rounds(parts, recipe, parameters["counts"], last, seed, device):
        for k in parameters["track"]:
            batches = batch_norms(r.start, r.samples[k], recipe, order_seed(seed, r.number, k))
            singles = sample_norms(r.start, r.samples[k], recipe.model)
            norms.append(
                {
                    "round": r.number,
                    "participant": k,
                    "first": batches[0],
                    "largest": max(batches),
                    "single": float(np.sqrt(np.mean(np.square(singles)))),
                    "single_largest": max(singles),
                }
            )
        here = flat_gradient(r.merged, probe, recipe.model)
        if r.number in probed:
            secant = None
            if before is not None:
                step = float((here[0] - before[0]).norm())
                secant = float((here[1] - before[1]).norm()) / step if step else None
            likely = log_probabilities(r.merged, probe.images, recipe.model)
            smoothness.append(
                {
                    "round": r.number,
                    "smoothness": largest_curvature(r.merged, probe, recipe.model, seed),
                    "secant": secant,
                    # Bounded by what float32 can hold of a probability.
                    "likelihood": float(
                        np.exp(-likely[np.arange(len(probe)), probe.labels].astype(np.float64).min())
                    ),
                }
            )
        before = here
    return {"norms": norms, "smoothness": smoothness}


def batch_norms(weights: Weights, data: LabelledData, recipe: Recipe, seed: int) -> list[float]:
    """The gradient's norm at each step of local training, in the order that training takes."""
    module = _module(weights, recipe.model).train()
    images, labels = torch.from_numpy(data.images), torch.from_numpy(data.labels)
    parameters = _trained(module)
    optimizer = optimizer_of(parameters, recipe)
    norms = []
    with one_thread():
        for batches in epoch_batches(len(labels), recipe, seed):
            for batch in batches:
                functional.cross_entropy(module(images[batch]), labels[batch]).backward()  # type: ignore[no-untyped-call]  # torch's own stub
                norms.append(float(torch.cat([p.grad.ravel() for p in parameters]).norm()))  # type: ignore[union-attr]  # set by backward
                optimizer.step()
    return norms


def sample_norms(weights: Weights, data: LabelledData, model: str) -> list[float]:
    """Norms of the gradients of single samples."""
    module = _module(weights, model).eval()
    with one_thread():
        return [
            float(_gradient(module, data.select(np.array([j], dtype=np.int64))).norm())
            for j in range(min(SINGLE_SAMPLES, len(data)))
        ]


def flat_gradient(weights: Weights, data: LabelledData, model: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(w, grad F(w)) as flat vectors of the trained parameters; F is the mean loss on `data`."""
    module = _module(weights, model).eval()
    with one_thread():
        point = torch.cat([p.detach().ravel() for p in _trained(module)])
        return point, _gradient(module, data)


def largest_curvature(weights: Weights, data: LabelledData, model: str, seed: int) -> float:
    """The largest absolute eigenvalue of the Hessian of the mean loss, by power iteration: from below."""
    module = _module(weights, model).eval()
    parameters = _trained(module)
    images, labels = torch.from_numpy(data.images), torch.from_numpy(data.labels)
    size = sum(p.numel() for p in parameters)
    direction = torch.from_numpy(generator(seed, _PROBE).standard_normal(size).astype(np.float32))
    direction /= direction.norm()
    value = 0.0
    with one_thread():
        loss = functional.cross_entropy(module(images), labels)
        slopes = torch.autograd.grad(loss, parameters, create_graph=True)
        flat = torch.cat([slope.ravel() for slope in slopes])
        for _ in range(POWER_STEPS):
            product = torch.autograd.grad(flat @ direction, parameters, retain_graph=True)
            image = torch.cat([part.ravel() for part in product])
            value = float(image.norm())
            if value == 0:
                break
            direction = image / value
    return value


def _module(weights: Weights, model: str) -> nn.Sequential:
    module = build(model, seed=0)
    load_weights(module, weights)
    return module


def _trained(module: nn.Module) -> Sequence[nn.Parameter]:
    return list(module.parameters())


def _gradient(module: nn.Module, data: LabelledData) -> torch.Tensor:
    loss = functional.cross_entropy(module(torch.from_numpy(data.images)), torch.from_numpy(data.labels))
    return torch.cat([slope.ravel() for slope in torch.autograd.grad(loss, _trained(module))])
