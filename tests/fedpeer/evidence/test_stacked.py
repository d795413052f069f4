"""Shadows that train together say of submissions what shadows say that train one after another."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from fedpeer.evidence import EvidenceTask, ShadowEvidence
from fedpeer.learning.datasets import load_splits
from fedpeer.learning.models import initial_weights
from mechanism.settlement import Assessment
from tests.fedpeer.evidence.population import RECIPE, UNIFORM, honest_models, submission

pytestmark = [pytest.mark.arithmetic, pytest.mark.extended]

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(
            not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine"
        ),
    ),
]


@pytest.mark.parametrize("device", DEVICES)
def test_degrees_agree_within_the_half_width_and_the_record_says_the_device(device: str) -> None:
    splits = load_splits("digits", validation=600, test=100, seed=3)
    start = initial_weights(RECIPE.model, seed=1)
    models = honest_models(splits, start, [Fraction(k, 12) for k in range(8)], 5)
    sent = [submission(f"p{k:02d}", weights, degree, k + 1) for k, (degree, weights) in enumerate(models)]

    def found(device: str) -> tuple[tuple[Assessment, ...], str, int]:
        task = replace(EvidenceTask.of_images(RECIPE, splits.validation, UNIFORM), device=device)
        evidence = ShadowEvidence(task, seed=5, shadows=40)
        ensemble = evidence.prepare(start, 1)
        model = ensemble.model(len(sent))
        return (
            evidence.assess(ensemble, sent).assessments,
            model.computed_on["device"],
            model.degree.half_width,
        )

    alone, cpu, half_width = found("")
    together, there, _ = found(device)
    assert cpu == "cpu"
    assert there.endswith(", in stacks")
    assert any(one.scored for one in alone)
    for one, other in zip(alone, together, strict=True):
        assert one.scored == other.scored
        assert one.refuted == other.refuted
        if one.verified_micro is not None and other.verified_micro is not None:
            assert abs(one.verified_micro - other.verified_micro) <= half_width
