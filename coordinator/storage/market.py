"""The market's rows as values. One store is one open transaction; nothing is kept between calls.

A transition names the version of the task that it follows, so that two processes (a service and a `cancel` on
the command line) cannot both take a step from the same state.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from sqlalchemy import (
    Connection,
    Table,
    bindparam,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.sql.elements import ColumnElement

from coordinator.states import FOLLOWS, Progress, State
from coordinator.storage.market_tables import (
    certificates,
    claims,
    events,
    failures,
    invitations,
    models,
    participants,
    receipts,
    rounds,
    settlements,
    tasks,
    uploads,
)
from coordinator.storage.statements import Statement
from mechanism.terms import Terms


class StaleTask(RuntimeError):
    """The task has moved on since it was read; read it again and decide anew."""


@dataclass(frozen=True)
class TaskRow:
    """A task as stored. `root` is secret."""

    id: str
    terms: Terms
    terms_digest: bytes
    root: bytes
    settings: Mapping[str, Any]
    state: State
    round: int
    deadline: float | None
    version: int
    model: bytes
    opened_at: float
    ended_at: float | None
    reason: str | None


@dataclass(frozen=True)
class Tally:
    """Sizes of the sets of a `Progress`."""

    claimed: int
    selected: int
    delivered: int
    failed: int


@dataclass(frozen=True)
class EventRow:
    """One event of a task's stream; cursors run from 1 without a gap."""

    cursor: int
    state: State
    round: int
    deadline: float | None
    detail: Mapping[str, Any]
    at: float


@dataclass(frozen=True)
class ReceiptRow:
    """That a submission is durably recorded."""

    task_id: str
    participant_id: str
    submission_id: str
    kind: str
    round: int
    digest: bytes
    ledger_index: int
    late: bool
    at: float


@dataclass(frozen=True)
class ClaimRow:
    """A claim that came in time. `effort` is a decimal, `degree` a rational; the commitment is to private counts."""

    participant_id: str
    submission_id: str
    effort: str
    degree: str
    selected: bool
    counts_commitment: bytes | None = None


@dataclass(frozen=True)
class UploadRow:
    """A model that was committed to; `digest` is the statement's, `sequence` the order of commitment."""

    participant_id: str
    submission_id: str
    round: int
    sequence: int
    digest: bytes


@dataclass(frozen=True)
class ModelRow:
    """A model that came in time and passed its contract."""

    participant_id: str
    submission_id: str
    sequence: int
    model_sha256: bytes
    model_bytes: int
    samples: int


@dataclass(frozen=True)
class FailureRow:
    participant_id: str
    round: int
    reason: str
    at: float


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
class ParticipantRow:
    id: str
    public_key: str
    enrolled_at: float
    revoked_at: float | None


@dataclass(frozen=True)
class CertificateRow:
    serial: str
    participant_id: str
    pem: str
    issued_at: float
    expires_at: float
    revoked_at: float | None


@dataclass(frozen=True)
class InvitationRow:
    token_digest: bytes
    participant_id: str
    created_at: float
    expires_at: float
    serial: str | None


class MarketStore:
    """The market's tables through one connection, inside the caller's transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    # Tasks

    def add_task(self, row: TaskRow) -> None:
        """Stores a new task; its id must be new."""
        self._connection.execute(
            insert(tasks).values(
                id=row.id,
                terms_json=json.dumps(row.terms.record()),
                terms_digest=row.terms_digest,
                root=row.root,
                settings_json=json.dumps(row.settings),
                state=row.state,
                round=row.round,
                deadline=row.deadline,
                version=row.version,
                model=row.model,
                opened_at=row.opened_at,
            )
        )

    def task(self, task_id: str) -> TaskRow | None:
        found = _TASK.mappings(self._connection, {"id": task_id})
        return _task(found[0]) if found else None

    def tasks(self) -> list[TaskRow]:
        """All tasks, the oldest first."""
        return [_task(row) for row in _TASKS.mappings(self._connection)]

    def advance(
        self,
        task: TaskRow,
        state: State,
        *,
        now: float,
        round_: int | None = None,
        deadline: float | None = None,
        model: bytes | None = None,
        reason: str | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> TaskRow:
        """Moves a task on and writes the event that says so.

        Raises:
            StaleTask: the task is no longer at `task.version`.
            ValueError: `state` may not follow `task.state`.
        """
        if state not in FOLLOWS[task.state]:
            raise ValueError(f"{state} cannot follow {task.state}")
        entered = task.round if round_ is None else round_
        values = {
            "task_id": task.id,
            "from_version": task.version,
            "new_state": state.value,
            "new_round": entered,
            "new_deadline": deadline,
            "new_version": task.version + 1,
            "new_model": model or task.model,
            "new_reason": reason,
            "new_ended_at": now if state.final else None,
        }
        changed = _ADVANCE.run(self._connection, values)
        if changed.rowcount != 1:
            raise StaleTask(f"task {task.id} has moved on from version {task.version}")
        self.add_event(task.id, state, entered, deadline, detail or {}, now)
        moved = self.task(task.id)
        assert moved is not None
        return moved

    def add_event(
        self,
        task_id: str,
        state: State,
        round_: int,
        deadline: float | None,
        detail: Mapping[str, Any],
        now: float,
    ) -> None:
        last = _LAST_CURSOR.value(self._connection, {"task_id": task_id})
        values = {
            "task_id": task_id,
            "cursor": last + 1,
            "state": state.value,
            "round": round_,
            "deadline": deadline,
            "detail_json": json.dumps(detail),
            "at": now,
        }
        _insertion(events).run(self._connection, values)

    def events(self, task_id: str, after: int = 0) -> list[EventRow]:
        """Events with a cursor above `after`, in order."""
        found = _EVENTS.rows(self._connection, {"task_id": task_id, "after": after})
        return [
            EventRow(cursor, State(state), round_, deadline, json.loads(detail), at)
            for cursor, state, round_, deadline, detail, at in found
        ]

    def progress(self, task: TaskRow) -> Progress:
        """What decides the task's next step; nobody is absent as far as the database knows."""
        taken = self.claims(task.id)
        return Progress(
            state=task.state,
            round=task.round,
            deadline=task.deadline,
            claimed=frozenset(c.participant_id for c in taken),
            selected=frozenset(c.participant_id for c in taken if c.selected),
            delivered=frozenset(m.participant_id for m in self.models(task.id, task.round)),
            failed=frozenset(f.participant_id for f in self.failures(task.id, task.round)),
        )

    def tally(self, task: TaskRow) -> Tally:
        """How many there are of those that `progress` names: cheap, whatever their number."""
        return Tally(
            claimed=self._count(claims, task.id),
            selected=self._count(claims, task.id, selected=True),
            delivered=self._count(models, task.id, round=task.round),
            failed=self._count(failures, task.id, round=task.round),
        )

    # Submissions

    def receipt(self, task_id: str, participant_id: str, submission_id: str) -> ReceiptRow | None:
        found = self._rows(receipts, task_id, participant_id=participant_id, submission_id=submission_id)
        return ReceiptRow(task_id=task_id, **found[0]) if found else None

    def receipts(self, task_id: str, participant_id: str) -> list[ReceiptRow]:
        """A participant's receipts in a task, in ledger order."""
        found = self._rows(receipts, task_id, participant_id=participant_id)
        rows = [ReceiptRow(task_id=task_id, **row) for row in found]
        return sorted(rows, key=lambda row: row.ledger_index)

    def add_receipt(self, row: ReceiptRow) -> None:
        self._insert(receipts, row)

    def claims(self, task_id: str) -> list[ClaimRow]:
        """Claims that came in time, in participant-id order."""
        return [ClaimRow(**row) for row in self._rows(claims, task_id)]

    def claim(self, task_id: str, participant_id: str) -> ClaimRow | None:
        found = self._rows(claims, task_id, participant_id=participant_id)
        return ClaimRow(**found[0]) if found else None

    def count_claims(self, task_id: str) -> int:
        return self._count(claims, task_id)

    def add_claim(self, task_id: str, row: ClaimRow) -> None:
        self._insert(claims, row, task_id=task_id)

    def select_participants(self, task_id: str, chosen: Sequence[str]) -> None:
        rows = [{"of_task": task_id, "of_participant": name, "chosen": True} for name in chosen]
        _SELECT_CLAIM.run_many(self._connection, rows)

    def upload(self, task_id: str, participant_id: str, submission_id: str) -> UploadRow | None:
        found = self._rows(uploads, task_id, participant_id=participant_id, submission_id=submission_id)
        return UploadRow(**_without(found[0], "at")) if found else None

    def uploads(self, task_id: str, participant_id: str, round_: int) -> list[UploadRow]:
        found = self._rows(uploads, task_id, participant_id=participant_id, round=round_)
        return [UploadRow(**_without(row, "at")) for row in found]

    def add_upload(
        self, task_id: str, participant_id: str, submission_id: str, round_: int, digest: bytes, now: float
    ) -> UploadRow:
        """Records a commitment; its sequence number is the next of the task."""
        last = _LAST_SEQUENCE.value(self._connection, {"task_id": task_id})
        row = UploadRow(participant_id, submission_id, round_, last + 1, digest)
        self._insert(uploads, row, task_id=task_id, at=now)
        return row

    def models(self, task_id: str, round_: int) -> list[ModelRow]:
        """Models of a round that came in time, in participant-id order."""
        return [ModelRow(**_without(row, "round")) for row in self._rows(models, task_id, round=round_)]

    def model(self, task_id: str, round_: int, participant_id: str) -> ModelRow | None:
        found = self._rows(models, task_id, round=round_, participant_id=participant_id)
        return ModelRow(**_without(found[0], "round")) if found else None

    def add_model(self, task_id: str, round_: int, row: ModelRow) -> None:
        self._insert(models, row, task_id=task_id, round=round_)

    def failures(self, task_id: str, round_: int) -> list[FailureRow]:
        return [FailureRow(**row) for row in self._rows(failures, task_id, round=round_)]

    def all_failures(self, task_id: str) -> list[FailureRow]:
        """What was reported in any round, in order of rounds, then of ids."""
        found = self._rows(failures, task_id)
        return sorted((FailureRow(**row) for row in found), key=lambda f: (f.round, f.participant_id))

    def add_failure(self, task_id: str, row: FailureRow) -> None:
        self._insert(failures, row, task_id=task_id)

    # Rounds

    def open_round(self, task_id: str, round_: int, model: bytes, size: int, now: float) -> None:
        row = RoundRow(round=round_, start_model=model, start_bytes=size, opened_at=now)
        self._insert(rounds, row, task_id=task_id)

    def update_round(self, task_id: str, round_: int, **values: Any) -> None:
        new = {f"new_{name}": value for name, value in values.items()}
        statement = _round_update(tuple(values))
        statement.run(self._connection, {"of_task": task_id, "of_round": round_, **new})

    def rounds(self, task_id: str) -> list[RoundRow]:
        return [
            RoundRow(**_without(row, "task_id"))
            for row in _ROUNDS.mappings(self._connection, {"task_id": task_id})
        ]

    def add_settlements(
        self, task_id: str, round_: int, lines: Iterable[tuple[str, int, Mapping[str, Any]]]
    ) -> None:
        """Stores what a round paid: (participant, ledger index, record) for everyone."""
        rows = [
            {
                "task_id": task_id,
                "round": round_,
                "participant_id": participant_id,
                "ledger_index": ledger_index,
                "record_json": json.dumps(record),
            }
            for participant_id, ledger_index, record in lines
        ]
        _insertion(settlements).run_many(self._connection, rows)

    def settlement(
        self, task_id: str, round_: int, participant_id: str
    ) -> tuple[int, Mapping[str, Any]] | None:
        """Ledger index and record of what a participant was paid in a round."""
        values = {"task_id": task_id, "round": round_, "participant_id": participant_id}
        row = _SETTLEMENT.row(self._connection, values)
        return None if row is None else (row[0], json.loads(row[1]))

    def settlements(self, task_id: str) -> list[tuple[int, str, Mapping[str, Any]]]:
        """(round, participant, record) of everything settled in a task."""
        found = self._connection.execute(
            select(settlements)
            .where(settlements.c.task_id == task_id)
            .order_by(settlements.c.round, settlements.c.participant_id)
        )
        return [(r.round, r.participant_id, json.loads(r.record_json)) for r in found]

    def referenced_models(self, ended_before: float) -> set[bytes]:
        """Digests of the model files that a task needs that runs, or that ended at `ended_before` or later."""
        kept = select(tasks.c.id).where((tasks.c.ended_at.is_(None)) | (tasks.c.ended_at >= ended_before))
        queries = (
            select(tasks.c.model).where(tasks.c.id.in_(kept)),
            select(models.c.model_sha256).where(models.c.task_id.in_(kept)),
            select(rounds.c.start_model).where(rounds.c.task_id.in_(kept)),
            select(rounds.c.result_model).where(
                rounds.c.task_id.in_(kept), rounds.c.result_model.is_not(None)
            ),
        )
        return {bytes(digest) for query in queries for digest in self._connection.execute(query).scalars()}

    # Identity

    def participants(self) -> list[ParticipantRow]:
        found = self._connection.execute(select(participants).order_by(participants.c.id))
        return [ParticipantRow(**row._mapping) for row in found]

    def participant(self, participant_id: str) -> ParticipantRow | None:
        row = self._connection.execute(
            select(participants).where(participants.c.id == participant_id)
        ).one_or_none()
        return None if row is None else ParticipantRow(**row._mapping)

    def put_participant(self, row: ParticipantRow) -> None:
        """Adds a participant, or gives a known one a new key and standing."""
        if self.participant(row.id) is None:
            self._insert(participants, row)
        else:
            self._connection.execute(
                update(participants)
                .where(participants.c.id == row.id)
                .values(public_key=row.public_key, enrolled_at=row.enrolled_at, revoked_at=row.revoked_at)
            )

    def add_certificate(self, row: CertificateRow) -> None:
        self._insert(certificates, row)

    def certificate(self, serial: str) -> CertificateRow | None:
        row = self._connection.execute(
            select(certificates).where(certificates.c.serial == serial)
        ).one_or_none()
        return None if row is None else CertificateRow(**row._mapping)

    def certificates(self) -> list[CertificateRow]:
        found = self._connection.execute(select(certificates).order_by(certificates.c.issued_at))
        return [CertificateRow(**row._mapping) for row in found]

    def revoke(self, participant_id: str, now: float) -> None:
        """Revokes a participant and every certificate that it has."""
        self._connection.execute(
            update(participants).where(participants.c.id == participant_id).values(revoked_at=now)
        )
        self._connection.execute(
            update(certificates)
            .where(certificates.c.participant_id == participant_id, certificates.c.revoked_at.is_(None))
            .values(revoked_at=now)
        )

    def add_invitation(self, row: InvitationRow) -> None:
        self._insert(invitations, row)

    def invitation(self, token_digest: bytes) -> InvitationRow | None:
        row = self._connection.execute(
            select(invitations).where(invitations.c.token_digest == token_digest)
        ).one_or_none()
        return None if row is None else InvitationRow(**row._mapping)

    def redeem_invitation(self, token_digest: bytes, serial: str) -> None:
        self._connection.execute(
            update(invitations).where(invitations.c.token_digest == token_digest).values(serial=serial)
        )

    def withdraw_invitations(self, participant_id: str, now: float) -> None:
        """Unused invitations of a participant expire now."""
        self._connection.execute(
            update(invitations)
            .where(invitations.c.participant_id == participant_id, invitations.c.serial.is_(None))
            .values(expires_at=now)
        )

    def _rows(self, table: Table, task_id: str, **equal: Any) -> list[dict[str, Any]]:
        """A task's rows with these values, in participant-id order, without their task id."""
        found = _selection(table, tuple(equal)).mappings(self._connection, {"task_id": task_id, **equal})
        return [_without(row, "task_id") for row in found]

    def _count(self, table: Table, task_id: str, **equal: Any) -> int:
        values = {"task_id": task_id, **equal}
        return int(_counting(table, tuple(equal)).value(self._connection, values))

    def _insert(self, table: Table, row: Any, **more: Any) -> None:
        _insertion(table).run(self._connection, {**vars(row), **more})


_TASK = Statement(select(tasks).where(tasks.c.id == bindparam("id")))
_TASKS = Statement(select(tasks).order_by(tasks.c.opened_at, tasks.c.id))
_ADVANCE = Statement(
    update(tasks)
    .where(tasks.c.id == bindparam("task_id"), tasks.c.version == bindparam("from_version"))
    .values(
        {
            name: bindparam(f"new_{name}")
            for name in ("state", "round", "deadline", "version", "model", "reason", "ended_at")
        }
    )
)
_LAST_CURSOR = Statement(
    select(func.coalesce(func.max(events.c.cursor), 0)).where(events.c.task_id == bindparam("task_id"))
)
_EVENTS = Statement(
    select(
        events.c.cursor, events.c.state, events.c.round, events.c.deadline, events.c.detail_json, events.c.at
    )
    .where(events.c.task_id == bindparam("task_id"), events.c.cursor > bindparam("after"))
    .order_by(events.c.cursor)
)
_SELECT_CLAIM = Statement(
    update(claims)
    .where(claims.c.task_id == bindparam("of_task"), claims.c.participant_id == bindparam("of_participant"))
    .values(selected=bindparam("chosen"))
)
_LAST_SEQUENCE = Statement(
    select(func.coalesce(func.max(uploads.c.sequence), 0)).where(uploads.c.task_id == bindparam("task_id"))
)
_ROUNDS = Statement(select(rounds).where(rounds.c.task_id == bindparam("task_id")).order_by(rounds.c.round))
_SETTLEMENT = Statement(
    select(settlements.c.ledger_index, settlements.c.record_json).where(
        settlements.c.task_id == bindparam("task_id"),
        settlements.c.round == bindparam("round"),
        settlements.c.participant_id == bindparam("participant_id"),
    )
)


@cache
def _selection(table: Table, columns: tuple[str, ...]) -> Statement:
    return Statement(select(table).where(*_equal(table, columns)).order_by(table.c.participant_id))


@cache
def _counting(table: Table, columns: tuple[str, ...]) -> Statement:
    return Statement(select(func.count()).select_from(table).where(*_equal(table, columns)))


@cache
def _round_update(columns: tuple[str, ...]) -> Statement:
    chosen = rounds.c.task_id == bindparam("of_task"), rounds.c.round == bindparam("of_round")
    return Statement(update(rounds).where(*chosen).values({n: bindparam(f"new_{n}") for n in columns}))


@cache
def _insertion(table: Table) -> Statement:
    return Statement(insert(table))


def _equal(table: Table, columns: tuple[str, ...]) -> list[ColumnElement[bool]]:
    return [table.c[name] == bindparam(name) for name in ("task_id", *columns)]


def _without(mapping: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if name != key}


@lru_cache(maxsize=64)
def _terms(text: str) -> Terms:
    """Parsed once for a task: every call of a participant reads its row."""
    return Terms.from_record(json.loads(text))


def _task(row: dict[str, Any]) -> TaskRow:
    return TaskRow(
        terms=_terms(row.pop("terms_json")),
        settings=json.loads(row.pop("settings_json")),
        state=State(row.pop("state")),
        **row,
    )
