"""The dishonest participants do what their names say."""

import numpy as np
import pytest

from fedpeer.experiments.strategies import FreeRide, OverClaim
from fedpeer.learning.models import initial_weights
from fedpeer.learning.partition import uniform_reference
from fedpeer.protocol.model_file import encode_model
from mechanism.degree import noniid_degree
from participant.adapters.counting import count_labels
from participant.task import TrainingRound
from tests.participant.adapters.test_torch import digits_terms

pytestmark = pytest.mark.arithmetic

REFERENCE = uniform_reference(10)


def test_an_over_claimer_reports_better_data_than_it_trains_on() -> None:
    task = OverClaim("digits", claimed="0.05", majority=3, degree="0.6", seed=1)
    task.prepare(digits_terms())
    task.collect(0.7)
    assert float(noniid_degree(task.counts(), REFERENCE)) <= 0.055
    assert float(noniid_degree(count_labels(task.data(1).targets, 10), REFERENCE)) >= 0.59
    start = initial_weights("digits-cnn", 0)
    made = task.train(start, TrainingRound(digits_terms(), "liar", 1))
    assert encode_model(made.weights) != encode_model(start)


def test_a_free_rider_returns_what_it_was_sent_but_for_a_hair() -> None:
    task = FreeRide(claimed="0.05")
    task.prepare(digits_terms())
    assert float(noniid_degree(task.counts(), REFERENCE)) <= 0.055
    start = initial_weights("digits-cnn", 0)
    made = task.train(start, TrainingRound(digits_terms(), "rider", 1))
    assert encode_model(made.weights) != encode_model(start), "the SDK sends no model that nothing has moved"
    assert sum(int((made.weights[name] != start[name]).sum()) for name in start) == 1
    assert all(np.allclose(made.weights[name], start[name], rtol=0, atol=1e-4) for name in start)
    assert made.samples == sum(task.counts()) == 200
