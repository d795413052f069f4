"""Rounds and what they paid."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, bindparam, exists, or_, select, union

from coordinator.storage.rows import Digest, Id, Rows, table_of_task
from coordinator.storage.submissions import models
from coordinator.storage.tasks import tasks
from fedpeer.audit.sql.statements import Statement, insertion
from mechanism.ledger.entries import assessment_from_record
from mechanism.settlement import Assessment


@dataclass(frozen=True)
class RoundRow:
    """A round.

    Attributes:
        server_state: of the server's optimiser, after the round; None where it keeps none.
        accuracy, loss: decimals, of the result model on held-out data; None where nothing is evaluated, and accuracy
            where nothing is classified.
        fetched_at: when the learner last fetched the result model.
        accuracy_by_label: a JSON list of decimals, null where a class has no sample.
    """

    round: int
    start_model: Digest
    start_bytes: int
    opened_at: float
    closed_at: float | None = None
    settled_at: float | None = None
    result_model: Digest | None = None
    server_state: Digest | None = None
    accuracy: str | None = None
    loss: str | None = None
    ledger_size: int | None = None
    fetched_at: float | None = None
    accuracy_by_label: str | None = None


@dataclass(frozen=True)
class Retention:
    """Which model files are kept: those of tasks that run, and of ended ones what is said here.

    Attributes:
        ended_before: all of a task that ended then or later.
        unfetched: the one that a task ended with, where the learner has not fetched it.
        held: ended tasks that have promised to keep what participants sent for longer.
        due: those that have promised to delete it by now.
    """

    ended_before: float
    unfetched: bool
    held: frozenset[str] = frozenset()
    due: frozenset[str] = frozenset()


@dataclass(frozen=True)
class SettlementRow:
    """What a round paid to one participant.

    Attributes:
        ledger_index: of the payment's entry.
        record: amounts, what was expected of the draw, peers and assessment, as `coordinator.transaction` writes them.
    """

    round: int
    participant_id: Id
    ledger_index: int
    record: Mapping[str, Any]

    @property
    def paid_micro(self) -> int:
        return int(self.record["paid_micro"])

    @property
    def expected_micro(self) -> int:
        """What the round would have paid against everybody (`mechanism.settlement.expected_payments`)."""
        return int(self.record["expected_micro"])

    @property
    def erased(self) -> bool:
        """Whether the assessment says no more than the ledger does (`coordinator.forgetting`)."""
        return bool(self.record.get("erased"))

    @property
    def assessment(self) -> Assessment:
        return assessment_from_record(self.record["assessment"])


rounds = table_of_task("rounds", RoundRow, key=("round",))
settlements = table_of_task("settlements", SettlementRow, key=("round", "participant_id"))


class Rounds(Rows):
    """Rounds and their settlements."""

    def open_round(self, task_id: str, round_: int, model: bytes, size: int, now: float) -> None:
        row = RoundRow(round=round_, start_model=model, start_bytes=size, opened_at=now)
        self._add(rounds, row, task_id=task_id)

    def update_round(self, task_id: str, round_: int, **values: Any) -> None:
        self._set(rounds, {"task_id": task_id, "round": round_}, **values)

    def rounds(self, task_id: str) -> list[RoundRow]:
        return self._all(RoundRow, rounds, "round", task_id=task_id)

    def add_settlements(self, task_id: str, rows: Iterable[SettlementRow]) -> None:
        insertion(settlements).run_many(self._connection, ({**vars(row), "task_id": task_id} for row in rows))

    def settlement(self, task_id: str, round_: int, participant_id: str) -> SettlementRow | None:
        """What a participant was paid in a round."""
        key = {"task_id": task_id, "round": round_, "participant_id": participant_id}
        return self._one(SettlementRow, settlements, **key)

    def set_settlement(self, task_id: str, row: SettlementRow) -> None:
        """Gives a known settlement another record."""
        key = {"task_id": task_id, "round": row.round, "participant_id": row.participant_id}
        self._set(settlements, key, record=row.record)

    def settled_rounds_of(self, participant_id: str, since: float) -> list[tuple[str, int]]:
        """Tasks and rounds that were settled since a time and in which a participant had been selected."""
        rows = _ROUNDS_OF.rows(self._connection, {"of": participant_id, "since": since})
        return [(str(task_id), int(round_)) for task_id, round_ in rows]

    def round_settlements(self, task_id: str, round_: int) -> list[SettlementRow]:
        """Of everyone whom a round was settled for, in the ledger's order."""
        return self._all(SettlementRow, settlements, "ledger_index", task_id=task_id, round=round_)

    def settlements(self, task_id: str) -> list[SettlementRow]:
        """Everything settled in a task, in order of rounds, then of ids."""
        return self._all(SettlementRow, settlements, "round", "participant_id", task_id=task_id)

    def paid_to(self, task_id: str, participant_id: str) -> list[SettlementRow]:
        """What a task has paid to one participant, in order of rounds."""
        return self._all(SettlementRow, settlements, "round", task_id=task_id, participant_id=participant_id)

    def referenced_models(self, retention: Retention) -> set[bytes]:
        """Digests of the model files that are kept."""
        found = _REFERENCED_MODELS.rows(self._connection, {"ended_before": retention.ended_before})
        if retention.unfetched:
            found = [*found, *_UNFETCHED_MODELS.rows(self._connection)]
        kept = {bytes(digest) for (digest,) in found}
        for task_id, digest in _SENT_MODELS.rows(self._connection, {"ended_before": retention.ended_before}):
            if task_id not in retention.due:
                kept.add(bytes(digest))
        return kept.union(*map(self.sent_models, retention.held))

    def sent_models(self, task_id: str) -> set[bytes]:
        """Digests of the models that participants sent in time."""
        rows = _SENT_IN.rows(self._connection, {"task_id": task_id})
        return {bytes(digest) for (digest,) in rows}


_KEPT_TASKS = select(tasks.c.id).where(
    or_(tasks.c.ended_at.is_(None), tasks.c.ended_at >= bindparam("ended_before"))
)
_REFERENCED_MODELS = Statement(
    union(
        select(tasks.c.model).where(tasks.c.id.in_(_KEPT_TASKS)),
        *(
            select(model).where(rounds.c.task_id.in_(_KEPT_TASKS), model.is_not(None))
            for model in (rounds.c.start_model, rounds.c.result_model, rounds.c.server_state)
        ),
    )
)
_SENT_MODELS = Statement(
    select(models.c.task_id, models.c.model_sha256).where(models.c.task_id.in_(_KEPT_TASKS))
)
_SENT_IN = Statement(select(models.c.model_sha256).where(models.c.task_id == bindparam("task_id")))
_LAST_ROUND = exists().where(rounds.c.task_id == tasks.c.id, rounds.c.result_model == tasks.c.model)
_UNFETCHED_MODELS = Statement(
    select(tasks.c.model).where(_LAST_ROUND, ~_LAST_ROUND.where(rounds.c.fetched_at.is_not(None)))
)
_ROUNDS_OF = Statement(
    select(settlements.c.task_id, settlements.c.round)
    .join(rounds, and_(rounds.c.task_id == settlements.c.task_id, rounds.c.round == settlements.c.round))
    .where(settlements.c.participant_id == bindparam("of"), rounds.c.settled_at >= bindparam("since"))
    .order_by(settlements.c.task_id, settlements.c.round)
)
