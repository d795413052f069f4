"""A market worth a picture: six hospitals learn digits together, on measured degrees, for a trust's money."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from fedpeer.learning.datasets import LabelledData, load_splits
from fedpeer.learning.training import train
from fedpeer.testing import LocalMarket
from participant import Task, Trained, TrainingError, TrainingRound, Weights
from tests.browser.browsing import PATIENCE

#: Names, and of each the share of its scans that are of one digit.
SKEWED = {"charite": 0.0, "county": 0.3, "lakeside": 0.5, "mercy": 0.7, "riverside": 0.9, "st-anna": 0.1}

#: Whose data are mostly of which digit.
DIGIT = {name: place for place, name in enumerate(SKEWED)}

SAMPLES, EPOCHS, ROUNDS = 120, 5, 3

TERMS: dict[str, Any] = {
    "id": "digits-1",
    "seed": 5,
    "schedule": {"rounds": ROUNDS},
    "leaderboard": True,
    "funder": "health-trust",
    "price": {"credit": "0.75", "currency": "EUR"},
    "recipe": {"model": "digits-cnn", "samples": SAMPLES, "epochs": EPOCHS, "batch_size": 32},
    "data": {"dataset": "digits", "seed": 1},
    "evidence": {"shadows": 50},
    "rule": {"name": "verified", "peers": 3, "claim_penalty": "1", "stake_micro": 300_000},
}

#: A task file for the page that opens one.
TASK_FILE = """\
id = "digits-2"
Q = "1000"
phi = "300"
upsilon = "200"
funder = "health-trust"
[schedule]
rounds = 2
capacity = 6
effort_seconds = 3600
round_seconds = 3600
[price]
credit = 0.75
currency = "EUR"
[recipe]
model = "digits-cnn"
samples = 120
epochs = 3
[data]
dataset = "digits"
seed = 1
[evidence]
shadows = 30
[rule]
name = "verified"
"""

PAYER = '\n[payouts]\nholder = "Digits Market"\niban = "NL91ABNA0417164300"\nbic = "ABNANL2A"\n'

ACCOUNTS = {
    "charite": ("Charité", "DE89370400440532013000"),
    "county": ("County Hospital", "GB29NWBK60161331926819"),
    "lakeside": ("Lakeside Clinic", "FR1420041010050500013M02606"),
    "st-anna": ("St. Anna", "CH9300762011623852957"),
}


class Scans(Task):
    """Trains on scans of its own; in the second round it stays where it is until it is let."""

    go = threading.Event()

    def __init__(self, participant: int) -> None:
        self._name = sorted(SKEWED)[participant]
        self._data = _scans(self._name)

    def counts(self) -> Any:
        return self._data.counts()

    def train(self, weights: Weights, round: TrainingRound) -> Trained:  # noqa: A002 - as Task.train
        if round.number == 2:
            if self._name == "mercy":
                raise TrainingError("the scanner is in repair until Monday")
            round.progress(DIGIT[self._name] / len(DIGIT) + 0.1)
            assert self.go.wait(20 * PATIENCE)
        seed = round.seed(0) % 2**31
        trained = train(dict(weights), self._data, round.recipe, seed)
        if self._name == "riverside" and round.number == 3:  # returns what came, all but untouched
            trained = {
                name: array + np.float32(1e-6) if array.dtype == np.float32 else array
                for name, array in weights.items()
            }
        return Trained(trained, SAMPLES)


def _scans(name: str) -> LabelledData:
    pool = load_splits("digits", seed=1).train
    generator = np.random.default_rng(DIGIT[name])
    own = np.flatnonzero(pool.labels == DIGIT[name])
    many = round(SAMPLES * SKEWED[name])
    rows = np.concatenate(
        [generator.choice(own, many), generator.choice(len(pool), SAMPLES - many, replace=False)]
    )
    return pool.select(rows.astype(np.int64))


@contextmanager
def pictured_market() -> Iterator[LocalMarket]:
    """The market in its second round, where it stays until `Scans.go` is set."""
    Scans.go.clear()
    try:
        with LocalMarket(Scans, tuple(sorted(SKEWED)), terms=TERMS, effort=0.0) as market:
            config = market.coordinator.folder.path / "coordinator.toml"
            config.write_text(config.read_text() + PAYER)
            market.coordinator.operator(lambda o: o.fund("health-trust", "transfer-2026-11", 60_000_000))
            market.start()
            market.until("TRAINING", round=2, patience=20 * PATIENCE)
            yield market
    finally:
        Scans.go.set()
