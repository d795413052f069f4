"""Flower clients as tasks, unchanged; and settlement for a Flower run.

    NumPyClientTask   an existing flwr.client.NumPyClient
    ClientAppTask     an existing flwr.clientapp.ClientApp with a train function
    add_settlement    makes a Flower strategy score and pay each round by the mechanism's own rules
    run_terms         the terms of such a run

In a ServerApp:

    secret = secrets.token_bytes(32)        # those who know it foresee the peers; keep it until the run has ended
    terms = run_terms("run-1", initial, reference=["1/10"] * 10, rounds=3, clients=20, secret=secret)
    strategy = add_settlement(FedAvg(), terms, secret, Path("settlements.jsonl"))
    strategy.start(grid=grid, initial_arrays=initial, num_rounds=3)

Flower pins protobuf below version 7; fedpeer runs on both.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
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
from mechanism.degree import noniid_degree, reference_distribution, stratum_counts
from mechanism.errors import FieldError, kind_of
from mechanism.payment import ExactPaymentFunction, Log
from mechanism.peers import DRAW_BYTES, Draw, round_seed, seed_commitment
from mechanism.records import decimal
from mechanism.settlement import MICRO, Assessment, settle_round, task_budget_micro
from mechanism.terms import Recipe, Rule, Schedule, Terms
from participant.adapters.fitting import CountedTask
from participant.errors import TaskError
from participant.task import Counts, Trained, TrainingRound, Weights


def array_names(count: int) -> list[str]:
    """Names of a model that Flower keeps as a bare list of arrays: "array-000", "array-001", ..., taken by number."""
    return [f"array-{position:03}" for position in range(count)]


class _FlowerTask(CountedTask):
    """What both kinds of client have: counts, names of their arrays in their own order, and a configuration."""

    def __init__(self, counts: Counts, names: Sequence[str] | None, config: Mapping[str, Any] | None) -> None:
        super().__init__(counts)
        if names is not None and (isinstance(names, str | Set) or len(set(names)) < len(list(names))):
            raise TaskError(
                f"names are {names!r:.200}; expected a list of the arrays' names in their order, each once"
            )
        self.names = None if names is None else list(names)
        self._config = dict(config or {})

    def prepare(self, terms: Terms) -> None:
        """Refuses a task whose tensors are not the client's."""
        super().prepare(terms)
        wanted = [spec.name for spec in terms.contract.tensors]
        if self.names is not None and sorted(self.names) != wanted:
            raise TaskError(
                f"the task's tensors are {wanted}, the client's {sorted(self.names)}; give the learner's names"
            )


class NumPyClientTask(_FlowerTask):
    """A Flower NumPyClient as a task.

    Args:
        client: anything with `fit(parameters, config)` as flwr.client.NumPyClient has it.
        counts: counts of its data; see `Task.counts`.
        names: of its arrays, in its own order, such as `list(model.state_dict())`. May be left out where the task's
            names are numbered (`array_names`, or Flower's own "0", "1", ...): they are taken by number.
        config: what `fit` is given besides the round.
    """

    def __init__(
        self,
        client: Any,
        counts: Counts,
        names: Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(counts, names, config)
        self.client = client

    def prepare(self, terms: Terms) -> None:
        """Refuses a task whose tensors are not the client's, or come in an order that nobody knows."""
        super().prepare(terms)
        shapes = {spec.name: spec.shape for spec in terms.contract.tensors}
        names = self._order(shapes)
        own = _own_arrays(self.client)
        if own and [np.shape(array) for array in own] != [shapes[name] for name in names]:
            raise TaskError(
                f"the client's arrays have the shapes {[np.shape(array) for array in own]}, the task's in the order "
                f"{names} have {[shapes[name] for name in names]}; give `names` in the client's own order"
            )

    def _order(self, names: Iterable[str]) -> list[str]:
        """The names of a task's tensors in the order of the client's arrays."""
        known = self.names or numbered_order(names)
        if known is None:
            raise TaskError(
                f"the task's tensors {sorted(names)!r:.200} are not numbered, so they do not say the order of a "
                "client's arrays; give `names`, such as list(model.state_dict())"
            )
        return known

    def train(self, weights: Weights, round: TrainingRound) -> Trained:  # noqa: A002 - as Task.train
        names = self._order(weights)
        config = {"server_round": round.number, "local_epochs": round.recipe.epochs, **_proximal(round, "_")}
        config |= self._config
        returned = self.client.fit([np.array(weights[name]) for name in names], config)
        if not isinstance(returned, tuple | list) or len(returned) != 3:
            raise TaskError(
                f"the Flower client's fit returned {kind_of(returned)}; expected arrays, samples, metrics"
            )
        arrays, samples, metrics = returned
        if len(arrays) != len(names):
            raise TaskError(f"the Flower client returned {len(arrays)} arrays; expected {len(names)}")
        round.progress(1.0)
        return Trained(dict(zip(names, arrays, strict=True)), samples, _numbers(metrics))


def _proximal(round: TrainingRound, hyphen: str) -> dict[str, float]:  # noqa: A002 - as Task.train
    """The recipe's proximal term under the name that Flower's own strategy has for it, where there is one."""
    return {f"proximal{hyphen}mu": float(round.recipe.proximal)} if round.recipe.proximal else {}


class ClientAppTask(_FlowerTask):
    """A Flower ClientApp as a task. Its context, and so its state, lives as long as the task object.

    Args:
        app: flwr.clientapp.ClientApp with `@app.train()`. For one made of a `client_fn`, give the client itself to
            `NumPyClientTask`.
        counts: counts of its data; see `Task.counts`.
        names: of its arrays in its own order, such as `list(model.state_dict())`. May be left out where the task's
            names are numbered, or where the app takes arrays by name (`to_torch_state_dict`) and returns them so.
        node_config: such as {"partition-id": 0, "num-partitions": 10}.
        run_config: such as {"local-epochs": 1}.
        config: what a train message carries under "config".
    """

    def __init__(
        self,
        app: Any,
        counts: Counts,
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
        super().__init__(counts, names, config)
        self.app = app
        self._context = Context(
            run_id=1,
            node_id=1,
            node_config=dict(node_config or {}),
            state=RecordDict(),
            run_config=dict(run_config or {}),
        )

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

        known = self.names or numbered_order(weights)
        names = known or list(weights)
        arrays = ArrayRecord({name: Array(np.array(weights[name])) for name in names})
        config = ConfigRecord({"server-round": round.number, **_proximal(round, "-"), **self._config})
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
            if known is None or numbered_order(returned) != list(returned):
                raise TaskError(
                    f"the Flower app returned arrays called {list(returned)!r:.200}; expected the names of the task, "
                    f"{names!r:.200}, or a bare list and `names` in its order, such as list(model.state_dict())"
                )
            returned = dict(zip(names, returned.values(), strict=True))  # a bare list: by position
        metrics = {k: v for record in reply.content.metric_records.values() for k, v in record.items()}
        samples = metrics.pop("num-examples", None)
        round.progress(1.0)
        return Trained(returned, samples, _numbers(metrics))


def numbered_order(names: Iterable[str]) -> list[str] | None:
    """The names of a bare list of arrays by their numbers, "2" before "10"; None where they are not numbered.

    Numbered are names that are the same up to a number at their end: "array-000", "0", "blocks.0".
    """
    found = {}
    for name in names:
        match = re.fullmatch(r"(.*?)([0-9]{1,9})", name, re.DOTALL)
        if match is None:
            return None
        found[name] = (match[1], int(match[2]))
    numbers = {number for _, number in found.values()}
    if len({stem for stem, _ in found.values()}) > 1 or len(numbers) < len(found):
        return None
    return sorted(found, key=lambda name: found[name][1])


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
    secret and from those who have reported in the round: publish the terms before clients connect, so that the secret
    cannot be chosen to suit one of them. Each settled round
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
    """What one client of a Flower run sent: its name, the digest of its arrays, its label counts or None."""

    client: str
    sha256: bytes
    counts: Any


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
    # Flower has no claims, in which clients could commit to shares of their own: only those who have reported enter.
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
    try:
        counts = stratum_counts(reported.counts, terms.strata_names)
    except FieldError as error:
        field = f"{error.field} of client {reported.client}"
        raise FieldError(field, error.value, error.expected) from None
    degree = noniid_degree(counts, terms.reference)
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
        counts = None if text is None else _json_counts(client.cid, text)
        read.append(_Reported(str(client.cid), _digest(outcome.parameters.tensors), counts))
    return read


def _json_counts(client: Any, text: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise FieldError(
            f"label_counts of client {client}", text, "JSON: a list with a count for each label"
        ) from None


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


def _own_arrays(client: Any) -> Sequence[Any]:
    """The arrays that a client says it has; none where it does not."""
    try:
        return list(client.get_parameters({}))
    except Exception:  # many clients have no such method, or need what only a run tells
        return []


def _numbers(metrics: Any) -> dict[str, float]:
    if not isinstance(metrics, Mapping):
        return {}
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
