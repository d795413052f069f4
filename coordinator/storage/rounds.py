"""Rounds and what they paid."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, or_, select, union

from coordinator.storage.market_tables import models, rounds, settlements, tasks
from coordinator.storage.rows import Rows
from fedpeer.audit.sql.statements import Statement, insertion


@dataclass(frozen=True)
class RoundRow:
    round: int
    start_model: bytes
    start_bytes: int
    opened_at: float
    closed_at: float | None = None
    settled_at: float | None = None
    result_model: bytes | None = None
    accuracy: str | None = None
    loss: str | None = None
    ledger_size: int | None = None


@dataclass(frozen=True)
class SettlementRow:
    """What a round paid to one participant.

    Attributes:
        ledger_index: of the payment's entry.
        record: amounts, peers and assessment, as `coordinator.steps` writes them.
    """

    round: int
    participant_id: str
    ledger_index: int
    record: Mapping[str, Any]


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

    def round_settlements(self, task_id: str, round_: int) -> list[SettlementRow]:
        """Of everyone whom a round was settled for, in the ledger's order."""
        return self._all(SettlementRow, settlements, "ledger_index", task_id=task_id, round=round_)

    def settlements(self, task_id: str) -> list[SettlementRow]:
        """Everything settled in a task, in order of rounds, then of ids."""
        return self._all(SettlementRow, settlements, "round", "participant_id", task_id=task_id)

    def referenced_models(self, ended_before: float) -> set[bytes]:
        """Digests of the model files that a task needs that runs, or that ended at `ended_before` or later."""
        found = _REFERENCED_MODELS.rows(self._connection, {"ended_before": ended_before})
        return {bytes(digest) for (digest,) in found}


_KEPT_TASKS = select(tasks.c.id).where(
    or_(tasks.c.ended_at.is_(None), tasks.c.ended_at >= bindparam("ended_before"))
)
_REFERENCED_MODELS = Statement(
    union(
        select(tasks.c.model).where(tasks.c.id.in_(_KEPT_TASKS)),
        select(models.c.model_sha256).where(models.c.task_id.in_(_KEPT_TASKS)),
        select(rounds.c.start_model).where(rounds.c.task_id.in_(_KEPT_TASKS)),
        select(rounds.c.result_model).where(
            rounds.c.task_id.in_(_KEPT_TASKS), rounds.c.result_model.is_not(None)
        ),
    )
)
