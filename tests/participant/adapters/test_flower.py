"""Flower clients as tasks. The adapter's own logic runs everywhere; what needs Flower runs where it is installed
(`make test-flower`: it pins protobuf below 7 and so has an environment of its own)."""

import hashlib
import json
import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedpeer.learning.partition import uniform_reference
from mechanism.errors import FieldError
from mechanism.peers import Draw, seed_commitment
from mechanism.settlement import Assessment, settle_round
from mechanism.terms import Recipe, Rule, Terms
from participant.adapters.flower import ClientAppTask, NumPyClientTask, add_settlement, run_terms
from participant.errors import TaskError
from participant.task import TrainingRound
from tests.participant.adapters.test_torch import terms_for

pytestmark = pytest.mark.arithmetic

SECRET = bytes(range(32))
START = {"array-000": np.zeros((2, 3), np.float32), "array-001": np.zeros(2, np.float32)}


def terms(weights: dict[str, Any], rule: str = "paper") -> Terms:
    made = terms_for(weights, Recipe("custom", 2, 8, "sgd", Decimal("0.1"), 10))
    object.__setattr__(made, "reference", uniform_reference(2))
    object.__setattr__(made, "rule", Rule(rule))
    object.__setattr__(made, "seed_commitment", seed_commitment(SECRET, made.schedule.rounds))
    return made


class Adder:
    """What flwr.client.NumPyClient's `fit` has to look like."""

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
        assert config["server_round"] == 1
        return [array + config["local_epochs"] for array in parameters], 7, {"loss": 0.5, "note": "text"}


def test_a_numpy_client_trains() -> None:
    task, published = NumPyClientTask(Adder(), [4, 3]), terms(START)
    task.prepare(published)
    made = task.train(START, TrainingRound(published, "ada", 1))
    assert made.samples == 7
    assert made.metrics == {"loss": 0.5}
    assert made.weights.keys() == START.keys()
    assert np.array_equal(made.weights["array-000"], np.full((2, 3), 2))


def test_names_give_the_order_of_the_arrays() -> None:
    weights = {"b": np.zeros(1, np.float32), "a": np.ones(1, np.float32)}
    seen: list[Any] = []

    class Recorder:
        def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
            seen.extend(parameters)
            return parameters, 1, {}

    NumPyClientTask(Recorder(), [1, 1], names=["b", "a"]).train(
        weights, TrainingRound(terms(weights), "ada", 1)
    )
    assert [float(array[0]) for array in seen] == [0.0, 1.0]
    with pytest.raises(TaskError, match="learner's names"):
        NumPyClientTask(Recorder(), [1, 1], names=["b", "c"]).prepare(terms(weights))


class FitStrategy:
    """What flwr.server.strategy.Strategy has to look like."""

    def aggregate_fit(self, server_round: int, results: list[Any], failures: list[Any]) -> str:
        return f"aggregated {server_round} of {len(results)}"


def fit_results(*counts: list[int]) -> list[Any]:
    return [
        (
            SimpleNamespace(cid=f"client-{number}"),
            SimpleNamespace(
                parameters=SimpleNamespace(tensors=[bytes([number])]),
                metrics={"label_counts": json.dumps(one)},
            ),
        )
        for number, one in enumerate(counts)
    ]


def test_settlement_pays_each_round_of_a_run(tmp_path: Path) -> None:
    published, ledger = terms(START), tmp_path / "ledger.jsonl"
    strategy = add_settlement(FitStrategy(), published, SECRET, ledger)
    for round_ in (1, 2):
        outcome = strategy.aggregate_fit(round_, fit_results([5, 5], [8, 2], [9, 1]), [])
        assert outcome == f"aggregated {round_} of 3"
    strategy.aggregate_fit(2, fit_results([5, 5], [8, 2], [9, 1]), [])  # a run that is taken up again
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2]
    with pytest.raises(FieldError, match="no other settlement of round 2"):
        strategy.aggregate_fit(2, fit_results([5, 5], [8, 2], [8, 2]), [])
    assert lines[0]["degrees"] == {"client-0": "0", "client-1": "3/10", "client-2": "2/5"}
    # What stands there is what the mechanism pays on these degrees.
    for line in lines:
        assessments = [
            Assessment(
                f"client-{n}",
                hashlib.sha256((1).to_bytes(8, "big") + bytes([n])).digest(),
                degree,
                round(degree * 10**6),
            )
            for n, degree in enumerate(map(Fraction, line["degrees"].values()))
        ]
        draw = Draw(bytes.fromhex(line["seed"]), {f"client-{n}": bytes(32) for n in range(3)})
        assert line["shares"] == draw.digest.hex()
        settled = settle_round(published, line["round"], draw, assessments)
        assert {p.participant_id: p.paid_micro for p in settled.payments} == {
            name: payment["paid_micro"] for name, payment in line["payments"].items()
        }


def test_settlement_refuses_what_it_cannot_pay_by(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match="no evidence to verify by"):
        add_settlement(FitStrategy(), terms(START, rule="verified"), SECRET, tmp_path / "l")
    with pytest.raises(FieldError, match="commits to"):
        add_settlement(FitStrategy(), terms(START), bytes(32), tmp_path / "l")
    strategy = add_settlement(FitStrategy(), terms(START), SECRET, tmp_path / "l")
    results = fit_results([5, 5])
    results[0][1].metrics.clear()
    with pytest.raises(FieldError, match="label counts"):
        strategy.aggregate_fit(1, results, [])


def test_terms_for_a_run_hold_its_budget_and_its_seed() -> None:
    made = run_terms("run", START, reference=["1/2", "1/2"], rounds=2, clients=4, secret=SECRET)
    assert made.seed_commitment == seed_commitment(SECRET, 2)
    assert made.budget_micro == 2 * 4 * round(math.log(5) * 10**6)
    assert [spec.name for spec in made.contract.tensors] == sorted(START)
    with pytest.raises(FieldError, match="sum"):
        run_terms("run", START, reference=["1/2", "1/3"], rounds=2, clients=4, secret=SECRET)


class TestWithFlower:
    """Against the real library."""

    @pytest.fixture(autouse=True)
    def flwr(self) -> Any:
        return pytest.importorskip("flwr", reason="Flower is not installed here; `make test-flower` has it")

    def test_a_real_numpy_client(self) -> None:
        from flwr.client import NumPyClient

        class Real(Adder, NumPyClient):  # type: ignore[misc]  # untyped where Flower is absent
            pass

        published = terms(START)
        made = NumPyClientTask(Real(), [4, 3]).train(START, TrainingRound(published, "ada", 1))
        assert made.samples == 7

    def test_a_client_app_as_flowers_quickstart_has_it(self) -> None:
        """The client side of Flower's PyTorch quickstart: state dict in an ArrayRecord, metrics with num-examples."""
        import torch
        from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
        from flwr.clientapp import ClientApp

        app = ClientApp()

        @app.train()  # type: ignore[untyped-decorator]  # untyped where Flower is absent
        def train(msg: Message, context: Context) -> Message:
            model = torch.nn.Linear(3, 2)
            model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
            optimizer = torch.optim.SGD(model.parameters(), lr=msg.content["config"]["lr"])
            inputs, labels = torch.eye(3), torch.tensor([0, 1, 1])
            for _ in range(context.run_config["local-epochs"]):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(inputs), labels)
                loss.backward()
                optimizer.step()
            content = RecordDict(
                {
                    "arrays": ArrayRecord(model.state_dict()),
                    "metrics": MetricRecord({"train_loss": loss.item(), "num-examples": 3}),
                }
            )
            return Message(content=content, reply_to=msg)

        start = {"bias": np.zeros(2, np.float32), "weight": np.zeros((2, 3), np.float32)}
        task = ClientAppTask(app, [1, 2], run_config={"local-epochs": 5}, config={"lr": 0.5})
        published = terms(start)
        task.prepare(published)
        made = task.train(start, TrainingRound(published, "ada", 1))
        assert made.samples == 3
        assert made.metrics["train_loss"] < 0.69
        assert made.weights["weight"].shape == (2, 3)
        assert not np.array_equal(made.weights["weight"], start["weight"])

    def test_an_app_made_of_a_client_function_is_pointed_to_the_other_task(self) -> None:
        from flwr.client import NumPyClient
        from flwr.clientapp import ClientApp

        class Real(NumPyClient):  # type: ignore[misc]  # untyped where Flower is absent
            def fit(self, parameters: Any, config: Any) -> Any:
                return [array + 1 for array in parameters], 5, {}

        with pytest.raises(TaskError, match="NumPyClientTask"):
            ClientAppTask(ClientApp(client_fn=lambda context: Real().to_client()), [1, 1])

    def test_settlement_with_real_strategies(self, tmp_path: Path) -> None:
        from flwr.app import Array, ArrayRecord, Message, Metadata, MetricRecord, RecordDict
        from flwr.serverapp.strategy import FedAvg

        strategy = add_settlement(FedAvg(), terms(START), SECRET, tmp_path / "ledger")
        replies = []
        for node, counts in ((11, [5, 5]), (12, [8, 2]), (13, [9, 1])):
            metadata = Metadata(1, "m", 0, node, "", "1", 0.0, 60.0, "train")
            asked = Message(content=RecordDict(), metadata=metadata)
            content = RecordDict(
                {
                    "arrays": ArrayRecord({n: Array(a + node) for n, a in START.items()}),
                    "metrics": MetricRecord({"num-examples": 10, "label-counts": counts}),
                }
            )
            replies.append(Message(content, reply_to=asked))
        arrays, _ = strategy.aggregate_train(1, replies)
        assert np.allclose(arrays["array-001"].numpy(), 12)
        [line] = (tmp_path / "ledger").read_text().splitlines()
        assert sorted(json.loads(line)["degrees"].values()) == ["0", "2/5", "3/10"]
