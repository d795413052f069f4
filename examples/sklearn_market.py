"""Which airline? Softmax regression by scikit-learn, on a table of flights. sklearn_market.toml has the terms.

fedpeer simulate examples/sklearn_market.py:owner
"""

from pathlib import Path

import numpy as np
from flights import airline, flights
from sklearn.linear_model import SGDClassifier

from fedpeer.learning.workloads.sklearn import SklearnWorkload
from participant.adapters.workload import SkewedTask


def workload(features=51, airlines=10, rate=0.01):
    """The estimator's own settings say how it learns; each pass of the recipe is a `partial_fit`."""
    estimator = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=rate)
    return SklearnWorkload(estimator, features=features, classes=airlines)


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
