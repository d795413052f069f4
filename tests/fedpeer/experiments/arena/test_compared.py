"""Scores of rules of other work, on reports of known kinds."""

from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pytest
from torch import nn

from fedpeer.evidence import EvidenceTask
from fedpeer.evidence.errors import EvidenceError
from fedpeer.experiments.arena import compared
from fedpeer.experiments.arena.compared import PartComparison
from fedpeer.learning.samples import Samples
from fedpeer.learning.workloads.protocol import Judged
from fedpeer.learning.workloads.torch import TorchWorkload
from mechanism.terms import Recipe

CLASSES = 4


@pytest.fixture
def probe() -> PartComparison:
    return _probe(CLASSES)


def _probe(classes: int | None) -> PartComparison:
    generator = np.random.default_rng(0)
    codes = np.repeat(np.arange(CLASSES), 60)
    targets = codes if classes else codes.astype(np.float32)
    workload = TorchWorkload(
        lambda: nn.Linear(3, classes or 1), "cross_entropy" if classes else "squared_error", classes=classes
    )
    samples = Samples(generator.normal(size=(240, 3)).astype(np.float32), targets)
    recipe = Recipe("custom", 1, 20, "sgd", Decimal("0.1"), 40)
    task = EvidenceTask(workload, recipe, samples, codes, CLASSES, strata_are_classes=classes is not None)
    return PartComparison(task, workload.build(0), 0)


def _saying(reports: npt.NDArray[np.int64], loss: float = 1.0) -> Judged:
    outputs = np.log(np.where(np.eye(CLASSES)[reports] > 0, 0.97, 0.01))
    return Judged(np.full(len(reports), loss), outputs)


def test_kfca_pays_nothing_for_one_label_and_most_for_agreement(probe: PartComparison) -> None:
    generator = np.random.default_rng(1)
    truth = generator.integers(CLASSES, size=len(probe.samples))
    wrong = generator.integers(CLASSES, size=len(truth))
    constant = np.zeros_like(truth)
    scores = compared._kfca(probe, [_saying(truth), _saying(truth), _saying(wrong), _saying(constant)])
    assert scores[0] == scores[1] > 0.25
    assert abs(scores[3]) < 1e-12
    assert abs(scores[2]) < 0.1


def test_kfca_does_not_pay_for_labels_that_are_flipped_alike(probe: PartComparison) -> None:
    """What a rule that learns from the reports which labels agree does not tell from honesty."""
    truth = np.random.default_rng(1).integers(CLASSES, size=len(probe.samples))
    flipped = CLASSES - 1 - truth
    scores = compared._kfca(probe, [_saying(truth), _saying(truth), _saying(flipped)])
    assert scores[2] < 0 < scores[0]


def test_kfca_is_refused_without_classes() -> None:
    probe = _probe(None)
    with pytest.raises(EvidenceError, match="pays on classes"):
        compared._kfca(probe, [Judged(np.zeros(2))])


def test_a_contest_of_two_moves_both_ratings_as_far() -> None:
    """mu +- sigma^2 / (2 c): the weaker of two equals was expected to win half of the time."""
    better, worse = compared._rated(np.array([1.0, 0.0])) - 25
    c = np.sqrt(2 * ((25 / 3) ** 2 + (25 / 6) ** 2))
    assert np.isclose(better, (25 / 3) ** 2 / c / 2)
    assert np.isclose(worse, -better)


def test_a_loss_that_rises_earns_nothing_whatever_its_place(probe: PartComparison) -> None:
    truth = np.zeros(len(probe.samples), dtype=np.int64)
    start = float(probe.start.losses.mean())
    scores = compared._gauntlet(probe, [_saying(truth, start - 1), _saying(truth, start + 1)])
    assert scores[0] > 0
    assert scores[1] == 0
    three = compared._gauntlet(probe, [_saying(truth, start + d) for d in (-3, -2, -1)])
    assert three[0] > three[1] > three[2] == 0


def test_the_same_distributions_score_one_and_those_that_do_not_overlap_less(probe: PartComparison) -> None:
    values = np.linspace(0, 1, 64)[:, None]
    same = compared._cramer_von_mises(probe, [Judged(np.zeros(64), values), Judged(np.zeros(64), values)])
    assert np.allclose(same, 1)
    apart = compared._cramer_von_mises(
        probe, [Judged(np.zeros(64), values), Judged(np.zeros(64), values + 5)]
    )
    assert np.abs(apart).max() < 0.03
