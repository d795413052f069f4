"""Flower clients as tasks, unchanged; and settlement for a Flower run.

    NumPyClientTask   an existing flwr.client.NumPyClient
    ClientAppTask     an existing flwr.clientapp.ClientApp with a train function
    add_settlement    makes a Flower strategy score and pay each round by the mechanism's own rules
    run_terms         the terms of such a run

In a ServerApp:

    secret = secrets.token_bytes(32)        # whoever knows it foresees the peers; keep it until the run has ended
    terms = run_terms("run-1", initial, reference=["1/10"] * 10, rounds=3, clients=20, secret=secret)
    strategy = add_settlement(FedAvg(), terms, secret, Path("settlements.jsonl"))
    strategy.start(grid=grid, initial_arrays=initial, num_rounds=3)

Flower pins protobuf below version 7; fedpeer runs on both.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from time import time
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpeer.protocol.model_file import contract_of, encode_model
from mechanism.canonical import Json, canonical_bytes
from mechanism.degree import noniid_degree, reference_distribution
from mechanism.errors import FieldError
from mechanism.payment import ExactPaymentFunction, Log
from mechanism.peers import DRAW_BYTES, Draw, round_seed, seed_commitment
from mechanism.settlement import MICRO, Assessment, settle_round, task_budget_micro
from mechanism.terms import Recipe, Rule, Schedule, Terms, decimal
from participant.errors import TaskError
from participant.task import Task, Trained, TrainingRound, Weights


def array_names(count: int) -> list[str]:
    """Names of a model that Flower keeps as a bare list of arrays: "array-000", "array-001", ..."""
    return [f"array-{position:03}" for position in range(count)]


class NumPyClientTask(Task):
    """A Flower NumPyClient as a task.

    Args:
        client: anything with `fit(parameters, config)` as flwr.client.NumPyClient has it.
        counts: label counts of its data.
        names: of its arrays, in its own order, such as `list(model.state_dict())`; None: `array_names`.
        config: what `fit` is given besides the round.
    """

    def __init__(
        self,
        client: Any,
        counts: Sequence[int],
        names: Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.client = client
        self.names = None if names is None else list(names)
        self._counts = tuple(counts)
        self._config = dict(config or {})

    def prepare(self, terms: Terms) -> None:
        """Refuses a task whose tensors are not the client's."""
        _check_names(self.names, terms)

    def label_counts(self) -> Sequence[int]:
        return self._counts

    def train(self, weights: Weights, round: TrainingRound) -> Trained:  # noqa: A002 - as Task.train
        names = self.names or sorted(weights)
        config = {"server_round": round.number, "local_epochs": round.recipe.epochs, **self._config}
        arrays, samples, metrics = self.client.fit([np.array(weights[name]) for name in names], config)
        if len(arrays) != len(names):
            raise TaskError(f"the Flower client returned {len(arrays)} arrays; expected {len(names)}")
        round.progress(1.0)
        trained = {name: np.asarray(array) for name, array in zip(names, arrays, strict=True)}
        return Trained(trained, int(samples), _numbers(metrics))


class ClientAppTask(Task):
    """A Flower ClientApp as a task. Its context, and so its state, lives as long as the task object.

    Args:
        app: flwr.clientapp.ClientApp with `@app.train()`. For one made of a `client_fn`, give the client itself to
            `NumPyClientTask`.
        counts: label counts of its data.
        names: of its arrays in its own order; None: the names in its ArrayRecord are the task's.
        node_config: such as {"partition-id": 0, "num-partitions": 10}.
        run_config: such as {"local-epochs": 1}.
        config: what a train message carries under "config".
    """

    def __init__(
        self,
        app: Any,
        counts: Sequence[int],
        *,
        names: Sequence[str] | None = None,
        node_config: Mapping[str, Any] | None = None,
        run_config: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        from flwr.app import Context, RecordDict

        if getattr(app, "_call", None) is not None:  # Flower has no public name for how an app was made
            raise TaskError(
                "this Flower app was made of a client_fn; give its client to NumPyClientTask instead"
            )
        self.app = app
        self.names = None if names is None else list(names)
        self._counts = tuple(counts)
        self._config = dict(config or {})
        self._context = Context(
            run_id=1,
            node_id=1,
            node_config=dict(node_config or {}),
            state=RecordDict(),
            run_config=dict(run_config or {}),
        )

    def prepare(self, terms: Terms) -> None:
        """Refuses a task whose tensors are not the app's."""
        _check_names(self.names, terms)

    def label_counts(self) -> Sequence[int]:
        return self._counts

    def train(self, weights: Weights, round: TrainingRound) -> Trained:  # noqa: A002 - as Task.train
        from flwr.app import (
            DEFAULT_TTL,
            Array,
            ArrayRecord,
            ConfigRecord,
            Message,
            Metadata,
            RecordDict,
        )

        names = self.names or list(weights)
        arrays = ArrayRecord({name: Array(np.array(weights[name])) for name in names})
        config = ConfigRecord({"server-round": round.number, **self._config})
        # Explicit metadata: no SuperLink assigns any here.
        metadata = Metadata(
            run_id=self._context.run_id,
            message_id=f"{round.task_id}/{round.number}",
            src_node_id=0,
            dst_node_id=self._context.node_id,
            reply_to_message_id="",
            group_id=str(round.number),
            created_at=time(),
            ttl=DEFAULT_TTL,
            message_type="train",
        )
        request = Message(content=RecordDict({"arrays": arrays, "config": config}), metadata=metadata)
        reply = self.app(request, self._context)
        if reply.has_error():
            raise TaskError(f"the Flower app failed: {reply.error.reason}")
        records = list(reply.content.array_records.values())
        if len(records) != 1:
            raise TaskError(f"the Flower app returned {len(records)} array records; expected one")
        returned: dict[str, npt.NDArray[Any]] = {key: array.numpy() for key, array in records[0].items()}
        if returned.keys() != set(names):
            if len(returned) != len(names):
                raise TaskError(f"the Flower app returned {len(returned)} arrays; expected {len(names)}")
            returned = dict(zip(names, returned.values(), strict=True))  # a bare list: by position
        metrics = {k: v for record in reply.content.metric_records.values() for k, v in record.items()}
        samples = metrics.pop("num-examples", None)
        round.progress(1.0)
        return Trained(returned, None if samples is None else int(samples), _numbers(metrics))


def run_terms(
    run_id: str,
    initial: Mapping[str, Any],
    *,
    reference: Sequence[str | Fraction],
    rounds: int,
    clients: int,
    secret: bytes,
    Q: str | Decimal = "1000",
    phi: str | Decimal = "300",
    upsilon: str | Decimal = "200",
    payment: ExactPaymentFunction | None = None,
    peers: int = 1,
) -> Terms:
    """Terms for a Flower run, to publish before it and to settle it by.

    Args:
        run_id: names the run in its settlements.
        initial: the start model: a Flower ArrayRecord, or names to NumPy arrays.
        reference: p^(c), one number such as "1/10" for each label; they sum to 1.
        clients: the most that train in a round; the budget follows from it.
        secret: 32 random bytes; peers are drawn from seeds that come of it.
        Q, phi, upsilon: of the payment f(Q / (phi*degree^2 + phi*peer_degree^2 + upsilon)), as decimals.
        payment: f; None: the natural logarithm.
        peers: drawn for each client; it is paid the mean.

    Raises:
        FieldError: a value out of range.
    """
    weights = {
        name: array.numpy() if hasattr(array, "numpy") else np.asarray(array)
        for name, array in initial.items()
    }
    content = encode_model(weights)
    terms = Terms(
        task_id=run_id,
        reference=reference_distribution(reference),
        Q=decimal("Q", Q),
        phi=decimal("phi", phi),
        upsilon=decimal("upsilon", upsilon),
        payment=payment or Log(),
        rule=Rule("paper", peers=peers),
        # Flower decides when a round is over.
        schedule=Schedule(rounds, 3, max(3, clients), effort_seconds=1, round_seconds=1),
        contract=contract_of(weights, max_norm=Decimal(10) ** 9, max_bytes=len(content)),
        recipe=Recipe("custom", 1, 1, "sgd", Decimal(1), 1),
        budget_micro=0,
        seed_commitment=seed_commitment(secret, rounds),
        validation_commitment=bytes(32),
        initial_model=hashlib.sha256(content).digest(),
    )
    return replace(terms, budget_micro=task_budget_micro(terms))


def add_settlement(strategy: Any, terms: Terms, secret: bytes, ledger: Path) -> Any:
    """Adds scoring and settlement to a Flower strategy, of flwr.serverapp or the older flwr.server, in place.

    Clients report their label counts among their metrics: a list under "label-counts" (flwr.serverapp) or JSON
    under "label_counts" (flwr.server). They are believed: the payment follows the paper's rule on claimed degrees,
    and nothing here checks a claim against behaviour, which needs the coordinator's evidence. Peers are drawn from the
    secret and from who has reported in the round: publish the terms before clients connect, so that the secret cannot
    be chosen to suit one of them. Each settled round
    is one line of canonical JSON in `ledger`; a round that is settled again with the same result is not written twice.

    Args:
        terms: of the run, as `run_terms` makes them; `rule.name` must be "paper".
        secret: 32 random bytes; `terms.seed_commitment` commits to them.
        ledger: the file that settlements are appended to, one for each run.

    Returns:
        the same strategy.

    Raises:
        FieldError: terms that settle by other evidence, or another secret; during the run, a client without label
            counts, or a round that the ledger has with another result.
    """
    if terms.rule.name != "paper":
        raise FieldError("rule.name", terms.rule.name, '"paper": a Flower run has no evidence to verify by')
    if seed_commitment(secret, terms.schedule.rounds) != terms.seed_commitment:
        raise FieldError("secret", "another secret", "the one that terms.seed_commitment commits to")
    for method, read in (("aggregate_fit", _read_fit), ("aggregate_train", _read_replies)):
        aggregate = getattr(strategy, method, None)
        if aggregate is not None:
            setattr(strategy, method, _settling(aggregate, read, terms, secret, ledger))
    return strategy


@dataclass(frozen=True)
class _Reported:
    """What one client of a Flower run sent: its name, the digest of its arrays, its label counts."""

    client: str
    sha256: bytes
    counts: Sequence[int] | None


def _settling(
    aggregate: Callable[..., Any],
    read: Callable[[Any], list[_Reported]],
    terms: Terms,
    secret: bytes,
    ledger: Path,
) -> Callable[..., Any]:
    def aggregated(server_round: int, results: Any, *rest: Any) -> Any:
        results = list(results)
        _write(ledger, _settled(terms, secret, server_round, read(results)))
        return aggregate(server_round, results, *rest)

    return aggregated


def _settled(terms: Terms, secret: bytes, round_: int, reported: list[_Reported]) -> dict[str, Json]:
    seed = round_seed(secret, terms.schedule.rounds, round_)
    assessments = [_assessment(terms, client) for client in reported]
    # Flower has no claims, in which clients could commit to shares of their own: who has reported is all that enters.
    draw = Draw(seed, {client.client: bytes(DRAW_BYTES) for client in reported})
    settlement = settle_round(terms, round_, draw, assessments)
    return {
        "run": terms.task_id,
        "round": round_,
        "seed": seed.hex(),
        "shares": draw.digest.hex(),
        "degrees": {a.participant_id: str(a.claimed_degree) for a in assessments},
        "payments": {
            p.participant_id: {"paid_micro": p.paid_micro, "peers": list(p.peers)}
            for p in settlement.payments
        },
        "rounding_micro": settlement.rounding_micro,
    }


def _assessment(terms: Terms, reported: _Reported) -> Assessment:
    if reported.counts is None:
        raise FieldError(f"metrics of client {reported.client}", None, "its label counts, to be paid for")
    degree = noniid_degree(reported.counts, terms.reference)
    return Assessment(reported.client, reported.sha256, degree, verified_micro=round(degree * MICRO))


def _write(ledger: Path, record: dict[str, Json]) -> None:
    line = canonical_bytes(record)
    for known in ledger.read_bytes().splitlines() if ledger.exists() else ():
        if known == line:
            return
        if json.loads(known)["round"] == record["round"]:
            raise FieldError(
                "ledger", str(ledger), f"no other settlement of round {record['round']}: a file a run"
            )
    with ledger.open("ab") as file:
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _read_fit(results: list[Any]) -> list[_Reported]:
    """Results of flwr.server: pairs of a client proxy and a FitRes."""
    read = []
    for client, outcome in results:
        text = outcome.metrics.get("label_counts")
        counts = None if text is None else json.loads(text)
        read.append(_Reported(str(client.cid), _digest(outcome.parameters.tensors), counts))
    return read


def _read_replies(replies: list[Any]) -> list[_Reported]:
    """Replies of flwr.serverapp: messages, those with an error left out."""
    read = []
    for reply in replies:
        if reply.has_error():
            continue
        arrays = [array.data for r in reply.content.array_records.values() for array in r.values()]
        metrics = {k: v for record in reply.content.metric_records.values() for k, v in record.items()}
        # The strategy averages metrics that are numbers; a list is ours alone.
        counts = metrics.get("label-counts")
        read.append(_Reported(str(reply.metadata.src_node_id), _digest(arrays), counts))
    return read


def _digest(tensors: Sequence[bytes]) -> bytes:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(len(tensor).to_bytes(8, "big") + tensor)
    return digest.digest()


def _check_names(names: list[str] | None, terms: Terms) -> None:
    wanted = [spec.name for spec in terms.contract.tensors]
    if names is not None and sorted(names) != wanted:
        raise TaskError(
            f"the task's tensors are {wanted}, the client's {sorted(names)}; give the learner's names"
        )


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
