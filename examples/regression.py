"""How long does a flight take? Its fifths are counted, there being no labels. regression.toml has the terms.

fedpeer simulate examples/regression.py:owner
"""

from pathlib import Path

import numpy as np
from flights import flights, standardised
from torch import nn

from fedpeer.learning.workloads.torch import TorchWorkload
from participant.adapters.workload import SkewedTask


def workload(features=49, hidden=64):
    def perceptron():
        return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    return TorchWorkload(perceptron, "squared_error")


def rows(chosen):
    """Deviations from the mean air time, by distance and delay."""
    samples = flights(lambda rows: standardised(rows["air_time"]).astype(np.float32), "distance", "dep_delay")
    return samples.select(chosen)


def learner(size=4000):
    """D_c, and what the model is reported on."""
    return rows(np.arange(size)), rows(np.arange(size, size + 2000))


def owner(participant=0):
    """A tenth of the other flights, most of them in one fifth; effort brings in the others."""
    mine = rows(np.arange(6000 + participant % 10, 60_000, 10))
    return SkewedTask(
        mine, majority=participant % 5, degree=0.5, folders=[Path(__file__).parent], seed=participant
    )
