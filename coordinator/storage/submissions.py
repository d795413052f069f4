"""What participants send: receipts, claims, models and failures, and how far a task has come by them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from sqlalchemy import (
    ColumnElement,
    Index,
    ScalarSelect,
    Table,
    and_,
    bindparam,
    exists,
    func,
    or_,
    select,
    update,
)

from coordinator.states import Progress
from coordinator.storage.audits import Audits
from coordinator.storage.changes import Kind
from coordinator.storage.identities import participants
from coordinator.storage.rows import Digest, Id, Rows, table_of_task
from coordinator.storage.tasks import TaskRow, tasks
from fedpeer.audit.sql.statements import Statement


@dataclass(frozen=True)
class ReceiptRow:
    """That a submission is durably recorded."""

    task_id: Id
    participant_id: Id
    submission_id: Id
    kind: str
    round: int
    digest: Digest
    ledger_index: int
    late: bool
    at: float


@dataclass(frozen=True)
class ClaimRow:
    """What is looked up of a claim that came in time; its statement stands in the ledger. `degree` is a rational, empty
    where it was erased, the commitment that to the counts, the head that of the chain of draw shares, the organisation
    its mark in the task (`derivation.organisation_mark`)."""

    participant_id: Id
    degree: str
    selected: bool
    draw_head: Digest
    counts_commitment: Digest
    organisation: Digest | None = None


@dataclass(frozen=True)
class UploadRow:
    """That a model was committed to, as the `sequence`-th of its task."""

    participant_id: Id
    submission_id: Id
    round: int
    sequence: int
    digest: Digest
    at: float


@dataclass(frozen=True)
class ModelRow:
    """What is looked up of a model that came in time and passed its contract."""

    participant_id: Id
    sequence: int
    model_sha256: Digest
    samples: int
    draw_share: Digest


@dataclass(frozen=True)
class FailureRow:
    participant_id: Id
    round: int
    reason: str
    at: float


receipts = table_of_task("receipts", ReceiptRow, key=("participant_id", "submission_id"))
claims = table_of_task("claims", ClaimRow, key=("participant_id",))
uploads = table_of_task(
    "uploads",
    UploadRow,
    Index(None, "task_id", "sequence", unique=True),
    key=("participant_id", "submission_id"),
)
models = table_of_task("models", ModelRow, key=("round", "participant_id"), round=int)
failures = table_of_task("failures", FailureRow, key=("round", "participant_id"))


@dataclass(frozen=True)
class ModelStanding:
    """What is recorded about one submission of a model, and decides what becomes of it.

    Attributes:
        selected: whether the participant trains.
        draw_head: of the chain of draw shares in its claim; empty where it has not claimed.
        delivered: whether a model of the participant for the round is recorded, under whatever id.
        sequence: the submission's place in the order of commitments, where its upload has begun.
        committed: the digest of the statement that it began with.
        begun: uploads that the participant has begun for the round.
        receipt: the submission's, where it has one.
    """

    selected: bool
    draw_head: bytes
    delivered: bool
    sequence: int | None
    committed: bytes | None
    begun: int
    receipt: ReceiptRow | None


class Submissions(Rows):
    """Receipts, claims, models and failures."""

    def receipt(self, task_id: str, participant_id: str, submission_id: str) -> ReceiptRow | None:
        return self._one(
            ReceiptRow, receipts, task_id=task_id, participant_id=participant_id, submission_id=submission_id
        )

    def receipts(self, task_id: str, participant_id: str) -> list[ReceiptRow]:
        """A participant's receipts in a task, in ledger order."""
        return self._all(ReceiptRow, receipts, "ledger_index", task_id=task_id, participant_id=participant_id)

    def add_receipt(self, row: ReceiptRow) -> None:
        self._add(receipts, row)
        self.announce(Kind.ARRIVED, row.task_id, row.participant_id, row.submission_id)

    def claims(self, task_id: str) -> list[ClaimRow]:
        """Claims that came in time, in participant-id order."""
        return self._all(ClaimRow, claims, "participant_id", task_id=task_id)

    def claim(self, task_id: str, participant_id: str) -> ClaimRow | None:
        return self._one(ClaimRow, claims, task_id=task_id, participant_id=participant_id)

    def count_claims(self, task_id: str) -> int:
        """How many places of the task are taken; a claimant that was revoked since keeps its own."""
        return int(_CLAIMED.value(self._connection, {"task_id": task_id}))

    def claimants_of(self, task_id: str, organisation: bytes) -> list[str]:
        """Who has claimed in a task for the organisation of this mark, those that were revoked since among them."""
        found = self._all(ClaimRow, claims, "participant_id", task_id=task_id, organisation=organisation)
        return [claim.participant_id for claim in found]

    def add_claim(self, task_id: str, row: ClaimRow) -> None:
        self._add(claims, row, task_id=task_id)

    def select_participants(self, task_id: str, chosen: Sequence[str]) -> None:
        rows = [{"of_task": task_id, "of_participant": name, "chosen": True} for name in chosen]
        _SELECT_CLAIM.run_many(self._connection, rows)

    def model_standing(
        self, task_id: str, participant_id: str, submission_id: str, round_: int
    ) -> ModelStanding:
        """How a participant's submission of a model stands, by one query: everybody causes two a round."""
        who = {"task_id": task_id, "participant_id": participant_id, "submission_id": submission_id}
        found = _MODEL_STANDING.row(self._connection, {**who, "round": round_})
        assert found is not None  # tasks are never deleted
        selected, draw_head, delivered, sequence, committed, begun, *receipt = found
        known = None if receipt[0] is None else ReceiptRow(*receipt)
        of_upload = sequence, committed, begun
        return ModelStanding(bool(selected), draw_head or b"", delivered is not None, *of_upload, known)

    def add_upload(
        self, task_id: str, participant_id: str, submission_id: str, round_: int, digest: bytes, now: float
    ) -> int:
        """Records a commitment; returns its sequence number, the next of the task."""
        sequence: int = _LAST_SEQUENCE.value(self._connection, {"task_id": task_id}) + 1
        row = UploadRow(participant_id, submission_id, round_, sequence, digest, now)
        self._add(uploads, row, task_id=task_id)
        return sequence

    def models(self, task_id: str, round_: int) -> list[ModelRow]:
        """Models of a round that came in time, in participant-id order."""
        return self._all(ModelRow, models, "participant_id", task_id=task_id, round=round_)

    def add_model(self, task_id: str, round_: int, row: ModelRow) -> None:
        self._add(models, row, task_id=task_id, round=round_)

    def erase_claim(self, task_id: str, participant_id: str) -> None:
        """Erases what the ledger only commits to of a claim, and its organisation's mark, which decides nothing more
        once claims are over."""
        key = {"task_id": task_id, "participant_id": participant_id}
        self._set(claims, key, degree="", organisation=None)

    def erase_models(self, task_id: str, participant_id: str) -> int:
        """Forgets the models of a participant, so that their files are kept for nobody; returns how many there were."""
        return self._delete(models, task_id=task_id, participant_id=participant_id)

    def failures(self, task_id: str, round_: int) -> list[FailureRow]:
        """What was reported in a round, in participant-id order."""
        return self._all(FailureRow, failures, "participant_id", task_id=task_id, round=round_)

    def all_failures(self, task_id: str) -> list[FailureRow]:
        """What was reported in any round, in order of rounds, then of ids."""
        return self._all(FailureRow, failures, "round", "participant_id", task_id=task_id)

    def add_failure(self, task_id: str, row: FailureRow) -> None:
        self._add(failures, row, task_id=task_id)

    def progress(self, task: TaskRow) -> Progress:
        """What decides the task's next step; nobody is absent as far as the database knows."""
        values = {"task_id": task.id, "round": task.round}
        claimed = _CLAIMANTS.rows(self._connection, values)
        return Progress(
            state=task.state,
            round=task.round,
            deadline=task.deadline,
            claimed=frozenset(name for name, _ in claimed),
            selected=frozenset(name for name, selected in claimed if selected),
            delivered=frozenset(name for (name,) in _DELIVERED.rows(self._connection, values)),
            failed=frozenset(name for (name,) in _FAILED.rows(self._connection, values)),
            audits_due=Audits(self._connection).audits_due(task.id) if task.terms.audit else None,
        )


def _equal(table: Table, *columns: str) -> ColumnElement[bool]:
    """The rows of a task with these values, each a parameter of the column's name."""
    return and_(*(table.c[name] == bindparam(name) for name in ("task_id", *columns)))


def _number(table: Table, *columns: str) -> ScalarSelect[int]:
    """How many rows those are, within another query."""
    counted = select(func.count()).select_from(table).where(_equal(table, *columns))
    return counted.correlate(None).scalar_subquery()


_SELECT_CLAIM = Statement(
    update(claims)
    .where(claims.c.task_id == bindparam("of_task"), claims.c.participant_id == bindparam("of_participant"))
    .values(selected=bindparam("chosen"))
)
#: Claims that count: a revoked participant cannot train, so it is not selected. One that was selected before stays so.
_COUNTED = or_(
    claims.c.selected,
    ~exists().where(participants.c.id == claims.c.participant_id, participants.c.revoked_at.is_not(None)),
)
_CLAIMANTS = Statement(select(claims.c.participant_id, claims.c.selected).where(_equal(claims), _COUNTED))
_DELIVERED = Statement(select(models.c.participant_id).where(_equal(models, "round")))
_FAILED = Statement(select(failures.c.participant_id).where(_equal(failures, "round")))
_CLAIMED = Statement(select(_number(claims)))
_MODEL_STANDING = Statement(
    select(
        claims.c.selected,
        claims.c.draw_head,
        models.c.model_sha256,
        uploads.c.sequence,
        uploads.c.digest,
        _number(uploads, "participant_id", "round").label("begun"),
        *(receipts.c[field.name] for field in fields(ReceiptRow)),
    )
    .select_from(tasks)
    .outerjoin(claims, _equal(claims, "participant_id"))
    .outerjoin(models, _equal(models, "participant_id", "round"))
    .outerjoin(uploads, _equal(uploads, "participant_id", "submission_id"))
    .outerjoin(receipts, _equal(receipts, "participant_id", "submission_id"))
    .where(tasks.c.id == bindparam("task_id"))
)
_LAST_SEQUENCE = Statement(
    select(func.coalesce(func.max(uploads.c.sequence), 0)).where(uploads.c.task_id == bindparam("task_id"))
)
