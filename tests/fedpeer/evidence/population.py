"""Participants of a digits round, honest and not, for the tests of the evidence."""

import hashlib
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from fedpeer.learning.datasets import LabelledData, Splits
from fedpeer.learning.models import Weights
from fedpeer.learning.partition import draw, majority_minority, uniform_reference
from fedpeer.learning.training import train
from fedpeer.protocol.submission import Submission
from mechanism.terms import Recipe

UNIFORM = uniform_reference(10)
RECIPE = Recipe(
    "digits-cnn", epochs=5, batch_size=20, optimizer="adam", learning_rate=Decimal("0.003"), samples=150
)


def honest_models(
    splits: Splits, start: Weights, degrees: list[Fraction], seed: int
) -> list[tuple[Fraction, dict[str, Any]]]:
    """Exact degree and trained weights of participants with skewed digits."""
    generator = np.random.default_rng(seed)
    mixes = []
    for degree in degrees:
        majority = int(generator.integers(10))
        order = [int(label) for label in generator.permutation(10) if label != majority]
        mixes.append(
            majority_minority(UNIFORM, RECIPE.samples, majority=majority, degree=degree, order=order)
        )
    samples = [draw(splits.train, mix.counts, generator) for mix in mixes]
    trained = [train(start, part, RECIPE, seed * 100 + k) for k, part in enumerate(samples)]
    return [(mix.degree, weights) for mix, weights in zip(mixes, trained, strict=True)]


def submission(name: str, weights: Weights, claimed: Fraction, order: int = 0) -> Submission:
    return Submission(
        participant_id=name,
        model=weights,
        model_sha256=hashlib.sha256(name.encode()).digest(),
        samples=RECIPE.samples,
        claimed_degree=claimed,
        order=order,
    )


def between(start: Weights, weights: Weights, factor: float) -> dict[str, Any]:
    """start + factor * (weights - start), tensor by tensor in its own type."""
    return {
        name: (start[name] + factor * (weights[name] - start[name])).astype(start[name].dtype)
        for name in start
    }


def noisy(weights: Weights, start: Weights, trained: Weights, factor: float, seed: int) -> dict[str, Any]:
    """`weights` plus noise, tensor by tensor `factor` times as long as what training changed."""
    generator = np.random.default_rng(seed)
    result: dict[str, Any] = dict(weights)
    for name, array in weights.items():
        if array.dtype.kind == "f" and "running" not in name:
            noise = generator.normal(size=array.shape)
            noise *= np.linalg.norm(trained[name] - start[name]) / np.linalg.norm(noise)
            result[name] = (array + factor * noise).astype(array.dtype)
    return result


def mean_of(models: list[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        name: np.mean([m[name] for m in models], axis=0).astype(models[0][name].dtype) for name in models[0]
    }


def repeated(data: LabelledData, samples: int) -> LabelledData:
    return data.select(np.resize(np.arange(len(data)), samples))
