"""How far a round is stands on the operator's page, in words, and nowhere else."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from coordinator.cli import app
from coordinator.task_text import training
from fedpeer.console.sessions import Role
from fedpeer.testing import LocalMarket
from participant import Task, TrainingRound, Weights
from tests.fedpeer.console.visiting import eventually, visited

#: A round of a real model whose evidence is prepared while participants train.
MEASURED: dict[str, Any] = {
    "recipe": {"model": "digits-cnn", "samples": 100, "epochs": 5},
    "data": {"dataset": "digits", "seed": 1},
    "evidence": {"shadows": 30},
    "rule": {"name": "verified", "peers": 2},
}


class Telling(Task):
    """Says how far it is, and waits."""

    go = threading.Event()

    def __init__(self, participant: int = 0) -> None:
        self._done = (0.0, 0.5, 1.0)[participant]

    def counts(self) -> list[int]:
        return [10] * 10

    def train(self, weights: Weights, round: TrainingRound) -> Weights:  # noqa: A002 - as Task.train
        round.progress(self._done)
        assert self.go.wait(120)
        return {name: array + np.float32(0.01) for name, array in weights.items()}


@contextmanager
def telling_market() -> Iterator[LocalMarket]:
    Telling.go.clear()
    try:
        with LocalMarket(Telling, 3, rounds=1, terms=MEASURED) as market:
            market.start()
            market.until("TRAINING")
            yield market
    finally:
        Telling.go.set()


def test_training_and_evidence_are_told_to_the_operator_alone() -> None:
    with (
        telling_market() as market,
        visited(market.coordinator.folder, market.coordinator.clock) as console,
    ):
        visit = console.signed_in(Role.OPERATOR)

        def told() -> dict[str, Any]:
            found: dict[str, Any] = json.loads(visit.get("/operator/tasks/task.json").text)
            return found

        def done() -> list[int | None]:
            return [person["done_micro"] for person in told()["people"]]

        eventually(lambda: done() == [0, 500_000, 1_000_000])
        page = visit.get("/operator/tasks/task/").main
        for words in (
            "in training, epoch 1 of 5",
            "in training, epoch 3 of 5",
            "trained; its model is on its way",
        ):
            assert words in page
        eventually(lambda: (found := told()["shadows"]) is not None and found["trained"] == found["of"], 120)
        page = visit.get("/operator/tasks/task/").main
        assert f"{told()['shadows']['of']} shadow models of this round are trained" in page
        status = CliRunner().invoke(app, ["status", "task", "--state", str(market.coordinator.folder.path)])
        assert "in training, epoch 3 of 5" in status.output
        assert f"{told()['shadows']['of']} shadow models are trained" in status.output
        for path in ("/tasks/task/", "/tasks/task.json"):
            assert "in training" not in console.public().get(path).text
            assert "done_micro" not in console.public().get(path).text
        Telling.go.set()
        market.finish()
        assert done() == [None, None, None]
        assert told()["shadows"] is None


@pytest.mark.parametrize(
    ("done", "epochs", "words"),
    [
        (None, 5, ""),
        (0, 5, "in training, epoch 1 of 5"),
        (400_000, 5, "in training, epoch 3 of 5"),
        (999_999, 5, "in training, epoch 5 of 5"),
        (1_000_000, 5, "trained; its model is on its way"),
        (250_000, 1, "in training, 25%"),
    ],
)
def test_a_share_of_the_work_is_an_epoch_of_the_recipe(done: int | None, epochs: int, words: str) -> None:
    assert training(done, epochs) == words
