"""Flower's quickstart-style PyTorch clients, unchanged, through a whole task at a real coordinator; and a Flower run
that scores and settles itself."""

import itertools
import json
import threading
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from time import time
from typing import Any

import numpy as np
import pytest

from mechanism.peers import check_round_seed
from participant.adapters.flower import ClientAppTask, NumPyClientTask, add_settlement, run_terms
from tests.integration.serving import Served, served
from tests.integration.test_examples import idle

pytestmark = pytest.mark.arithmetic

flwr = pytest.importorskip("flwr", reason="Flower is not installed here; `make test-flower` has it")

SECRET = bytes(range(32))


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


def quickstart_client() -> Any:
    """The NumPyClient of Flower's older PyTorch quickstart: get_parameters, set_parameters, fit, evaluate."""
    import torch
    from flwr.client import NumPyClient
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    net = torch.nn.Linear(64, 10)

    class FlowerClient(NumPyClient):  # type: ignore[misc]  # untyped where Flower is absent
        def get_parameters(self, config: Any) -> list[Any]:
            return [value.cpu().numpy() for value in net.state_dict().values()]

        def set_parameters(self, parameters: list[Any]) -> None:
            net.load_state_dict(
                {n: torch.tensor(v) for n, v in zip(net.state_dict(), parameters, strict=True)}, strict=True
            )

        def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
            self.set_parameters(parameters)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
            for _ in range(config["local_epochs"]):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(net(inputs), targets)
                loss.backward()
                optimizer.step()
            return self.get_parameters({}), len(labels), {"train_loss": loss.item()}

    return FlowerClient()


def quickstart_tasks() -> list[Any]:
    app = ClientAppTask(quickstart_app(), [178] * 10, run_config={"local-epochs": 5}, config={"lr": 0.1})
    return [app, NumPyClientTask(quickstart_client(), [178] * 10, names=["weight", "bias"])]


@pytest.mark.parametrize("kind", [0, 1], ids=["ClientApp", "NumPyClient"])
def test_a_flower_client_is_paid_for_every_round(coordinator: Served, tmp_path: Path, kind: int) -> None:
    coordinator.open(
        weights={"weight": np.zeros((10, 64), np.float32), "bias": np.zeros(10, np.float32)},
        reference=["1/10"] * 10,
        recipe={"model": "custom", "epochs": 5, "samples": 100},
    )
    peers = {name: coordinator.participant(name, tmp_path) for name in ("b", "c")}
    threads = [
        threading.Thread(target=peer.run, args=(idle(name), "task"), kwargs={"effort": 0.0})
        for name, peer in peers.items()
    ]
    for thread in threads:
        thread.start()
    with coordinator.participant("flower", tmp_path) as me:
        report = me.run(quickstart_tasks()[kind], "task", effort=0.0)
    for thread in threads:
        thread.join(60)
    for peer in peers.values():
        peer.close()
    assert report.state == "CLOSED"
    assert report.paid_micro > 0
    losses = [line.metrics["train_loss"] for line in report.rounds]
    assert losses[1] < losses[0]


@pytest.fixture
def server_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's runner tells a process which run it serves; here the test is the runner."""
    identity = pytest.importorskip("flwr.supercore.task_identity").TaskIdentity
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(identity, name, 1)


class InProcessGrid:
    """Delivers a Flower server's messages to client apps of this process; every node has its own context."""

    def __init__(self, app: Any, nodes: dict[int, dict[str, Any]]) -> None:
        from flwr.app import Context, RecordDict

        self._app = app
        self._contexts = {
            node: Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config={})
            for node, config in nodes.items()
        }

    def get_node_ids(self) -> list[int]:
        return list(self._contexts)

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Any]:
        from flwr.app import DEFAULT_TTL, Message, Metadata

        replies = []
        for number, message in enumerate(messages):
            node = message.metadata.dst_node_id
            metadata = Metadata(
                1, str(number), 0, node, "", "1", time(), DEFAULT_TTL, message.metadata.message_type
            )
            delivered = Message(content=message.content, metadata=metadata)
            replies.append(self._app(delivered, self._contexts[node]))
        return replies


def reporting_app() -> Any:
    """A Flower client that reports its label counts; node-config says which labels it has."""
    import torch
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    app = ClientApp()

    def mine(context: Context) -> Any:
        return np.flatnonzero(labels < context.node_config["labels"])

    @app.train()  # type: ignore[untyped-decorator]  # untyped where Flower is absent
    def train(msg: Message, context: Context) -> Message:
        chosen = mine(context)
        inputs, targets = torch.tensor(images[chosen] / 16, dtype=torch.float32), torch.tensor(labels[chosen])
        model = torch.nn.Linear(64, 10)
        model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(10):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        counts = np.bincount(labels[chosen], minlength=10).tolist()
        metrics = MetricRecord({"num-examples": len(chosen), "label-counts": counts})
        return Message(
            RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg
        )

    @app.evaluate()  # type: ignore[untyped-decorator]  # untyped where Flower is absent
    def evaluate(msg: Message, context: Context) -> Message:
        model = torch.nn.Linear(64, 10)
        model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        hits = model(torch.tensor(images / 16, dtype=torch.float32)).argmax(dim=1).numpy() == labels
        metrics = MetricRecord({"num-examples": len(labels), "accuracy": float(hits.mean())})
        return Message(RecordDict({"metrics": metrics}), reply_to=msg)

    return app


@pytest.mark.usefixtures("server_process")
def test_a_whole_flower_run_is_scored_and_settled(tmp_path: Path) -> None:
    """Flower's own strategy, loop and client apps; each round is paid by the mechanism, best data best."""
    import torch
    from flwr.app import ArrayRecord
    from flwr.serverapp.strategy import FedAvg

    initial = ArrayRecord({"weight": torch.zeros(10, 64), "bias": torch.zeros(10)})
    published = run_terms("run", initial, reference=["1/10"] * 10, rounds=3, clients=3, secret=SECRET)
    ledger = tmp_path / "ledger.jsonl"
    nodes: dict[int, dict[str, Any]] = {11: {"labels": 10}, 12: {"labels": 6}, 13: {"labels": 3}}
    result = add_settlement(FedAvg(min_available_nodes=3), published, SECRET, ledger).start(
        grid=InProcessGrid(reporting_app(), nodes), initial_arrays=initial, num_rounds=3
    )
    accuracies = [float(m["accuracy"]) for m in result.evaluate_metrics_clientapp.values()]
    assert accuracies[-1] > 0.5
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]
    previous = published.seed_commitment
    for line in lines:
        check_round_seed(bytes.fromhex(line["seed"]), previous)
        previous = bytes.fromhex(line["seed"])
        degrees = {node: Fraction(degree) for node, degree in line["degrees"].items()}
        assert degrees["11"] < degrees["12"] < degrees["13"]
        paid = {node: payment["paid_micro"] for node, payment in line["payments"].items()}
        assert all(micro > 0 for micro in paid.values())
        # Of two that were scored against the same peer, the one with better data gets more.
        for one, other in itertools.combinations(paid, 2):
            if line["payments"][one]["peers"] == line["payments"][other]["peers"]:
                assert (paid[one] > paid[other]) == (degrees[one] < degrees[other])
