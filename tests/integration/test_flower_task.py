"""Flower's quickstart-style PyTorch client, unchanged, through a whole task at a real coordinator."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from participant.adapters.flower import ClientAppTask
from tests.integration.serving import Served, served
from tests.integration.test_examples import idle

flwr = pytest.importorskip("flwr", reason="Flower is not installed here; `make test-flower` has it")


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "coordinator") as running:
        yield running


def quickstart_app() -> Any:
    """The client of Flower's PyTorch quickstart, with scikit-learn's digits in place of CIFAR-10."""
    import torch
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]  # untyped where Flower is absent
    def train(msg: Message, context: Context) -> Message:
        model = torch.nn.Linear(64, 10)
        model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=msg.content["config"]["lr"], momentum=0.9)
        for _ in range(context.run_config["local-epochs"]):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
        metrics = {"train_loss": loss.item(), "num-examples": len(labels)}
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)})
        return Message(content=content, reply_to=msg)

    return app


def test_a_flower_app_is_paid_for_every_round(coordinator: Served, tmp_path: Path) -> None:
    coordinator.open(
        weights={"weight": np.zeros((10, 64), np.float32), "bias": np.zeros(10, np.float32)},
        reference=["1/10"] * 10,
    )
    peers = {name: coordinator.participant(name, tmp_path) for name in ("b", "c")}
    threads = [
        threading.Thread(target=peer.run, args=(idle(name), "task"), kwargs={"effort": 0.0})
        for name, peer in peers.items()
    ]
    for thread in threads:
        thread.start()
    task = ClientAppTask(quickstart_app(), [178] * 10, run_config={"local-epochs": 5}, config={"lr": 0.1})
    with coordinator.participant("flower", tmp_path) as me:
        report = me.run(task, "task", effort=0.0)
    for thread in threads:
        thread.join(60)
    for peer in peers.values():
        peer.close()
    assert report.state == "CLOSED"
    assert report.paid_micro > 0
    losses = [line.metrics["train_loss"] for line in report.rounds]
    assert losses[1] < losses[0]
