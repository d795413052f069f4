"""Estimators of label distributions of other work."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from torch import nn

from fedpeer.experiments.accuracy import estimators
from fedpeer.experiments.accuracy.estimators import estimator_cells, estimator_figures
from fedpeer.experiments.errors import ExperimentError
from fedpeer.learning.samples import Samples
from fedpeer.learning.workloads.torch import TorchWorkload


def test_least_squares_on_the_bias_recover_the_shares_of_one_small_step() -> None:
    """From a model that is equally unsure of all classes the bias moves by what each class is more than its share."""
    workload = TorchWorkload(lambda: nn.Linear(2, 3), classes=3)
    start = {name: np.zeros_like(array) for name, array in workload.build(0).items()}
    codes = np.repeat(np.arange(3), 20)
    validation = Samples(np.zeros((60, 2), dtype=np.float32), codes)
    shares = np.array([0.7, 0.2, 0.1])
    model = {**start, "bias": (1e-3 * (shares - 1 / 3)).astype(np.float32)}
    trial = SimpleNamespace(
        workload=workload,
        start=start,
        evidence=SimpleNamespace(validation=validation, codes=codes, strata=3),
    )
    told = estimators._rlu(cast(Any, SimpleNamespace(trial=trial, models=[model])))
    # The bias tells the shares up to their mean: the least that is not negative has none of the rarest class.
    assert told.argmax() == 0
    assert np.isclose(told.sum(), 1)
    assert told[0, 0] > told[0, 1] > told[0, 2]


def test_a_taught_network_tells_shares_of_models_like_its_shadows() -> None:
    generator = np.random.default_rng(0)
    shares = generator.dirichlet(np.ones(4), size=150)
    features = shares @ generator.normal(size=(4, 10)) + 0.01 * generator.normal(size=(150, 10))
    told = estimators._taught(features[:100], shares[:100], features[100:])
    assert np.allclose(told.sum(axis=1), 1, atol=1e-5)
    assert np.abs(told - shares[100:]).mean() < 0.03


def test_figures_are_means_over_starts() -> None:
    cells = estimator_cells(["digits"], [0, 1], 100)
    fresh = [cell for cell in cells if cell.parameters["start"] == "fresh"]
    records = [
        {"degree": [0.1, 0.2, 0.3], "estimates": {"ldia": [0.1, 0.2, 0.6]}},
        {"degree": [0.1, 0.2, 0.3], "estimates": {"ldia": [0.3, 0.2, 0.1]}},
    ]
    of = estimator_figures(list(zip(fresh, records, strict=True)))["digits fresh"]["ldia"]
    assert of == {"error": round((0.1 + 0.4 / 3) / 2, 4), "bias": 0.05, "rank": 0.0, "starts": 2}


def test_a_model_without_an_output_bias_is_refused() -> None:
    workload = TorchWorkload(lambda: nn.Linear(3, 4, bias=False), classes=4)
    with pytest.raises(ExperimentError, match="output layer and its bias"):
        estimators._output_layer(workload, workload.build(0))


@pytest.mark.arithmetic
@pytest.mark.extended
def test_a_start_of_digits_has_every_estimator() -> None:
    (cell, _) = estimator_cells(["digits"], [0], 24)
    record = estimators.estimator_cell(cell.parameters, "cpu")
    assert set(record["estimates"]) == {"ldia", "rlu", "whispers", "fedpeer"}
    of = estimator_figures([(cell, record)])["digits fresh"]
    assert of["fedpeer"]["error"] < 0.1
    assert of["whispers"]["rank"] > 0.6
