"""Submissions that are audited, and how each audit stands."""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import bindparam, func, select

from coordinator.storage.rows import Id, Rows, table_of_task
from fedpeer.audit.sql.statements import Statement, insertion

#: What is awaited: an audit, an appeal against one that failed, or the audit after an appeal.
OPEN, FAILED, APPEALED = PENDING = "open", "failed", "appealed"

#: What it has come to: the pay in question is released; the participant has failed; the pay has gone back.
RELEASED, CONVICTED, REFUNDED = "released", "convicted", "refunded"


@dataclass(frozen=True)
class AuditRow:
    """An audit of what a participant has submitted in a round.

    Attributes:
        question_micro: of the round's pay, what is in question.
        stage: of `PENDING`, or what it has come to.
        due_at: until when what is awaited may come, seconds since the epoch; None where nothing is.
        explanation: of the last verdict, or why there was none; empty before.
    """

    round: int
    participant_id: Id
    question_micro: int
    stage: str
    due_at: float | None
    explanation: str = ""

    @property
    def pending(self) -> bool:
        return self.stage in PENDING

    @property
    def number(self) -> int:
        """Of the audit that comes next."""
        return 1 if self.stage == OPEN else 2


audits = table_of_task("audits", AuditRow, key=("round", "participant_id"))


class Audits(Rows):
    """Audits."""

    def add_audits(self, task_id: str, rows: Iterable[AuditRow]) -> None:
        insertion(audits).run_many(self._connection, ({**vars(row), "task_id": task_id} for row in rows))

    def audits(self, task_id: str) -> list[AuditRow]:
        """Of a task, in the order of rounds and participants."""
        return self._all(AuditRow, audits, "round", "participant_id", task_id=task_id)

    def audit(self, task_id: str, round_: int, participant_id: str) -> AuditRow | None:
        key = {"task_id": task_id, "round": round_, "participant_id": participant_id}
        return self._one(AuditRow, audits, **key)

    def set_audit(self, task_id: str, row: AuditRow) -> None:
        """Gives a known audit another standing."""
        key = {"task_id": task_id, "round": row.round, "participant_id": row.participant_id}
        self._set(audits, key, stage=row.stage, due_at=row.due_at, explanation=row.explanation)

    def audits_due(self, task_id: str) -> float | None:
        """When the first thing that an audit awaits is over; None where none is pending."""
        due = _FIRST_DUE.value(self._connection, {"task_id": task_id})
        return None if due is None else float(due)


_FIRST_DUE = Statement(select(func.min(audits.c.due_at)).where(audits.c.task_id == bindparam("task_id")))
