"""The market's rows as values. One store is one open transaction; nothing is kept between calls.

A transition names the version of the task that it follows, so that two processes (a service and a `cancel` on
the command line) cannot both take a step from the same state.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from typing import Any, TypeVar

from sqlalchemy import (
    Column,
    Connection,
    ScalarSelect,
    Table,
    and_,
    bindparam,
    exists,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.sql.elements import ColumnElement

from coordinator.states import Progress
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
from fedpeer.audit.sql.statements import Statement
from mechanism.lifecycle import State, check_step
from mechanism.terms import Terms

#: A dataclass whose fields are columns.
Row = TypeVar("Row")


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
    """A claim that came in time. `effort` is a decimal, `degree` a rational; the commitment is to private counts, the
    head that of the chain of draw shares."""

    participant_id: str
    submission_id: str
    effort: str
    degree: str
    selected: bool
    draw_head: bytes
    counts_commitment: bytes | None = None


@dataclass(frozen=True)
class ModelStanding:
    """What is recorded about one submission of a model, and decides what becomes of it.

    Attributes:
        receipt: the submission's, where it has one.
        selected: whether the participant trains.
        draw_head: of the chain of draw shares in its claim; empty where it has not claimed.
        delivered: whether a model of the participant for the round is recorded, under whatever id.
        sequence: the submission's place in the order of commitments, where its upload has begun.
        committed: the digest of the statement that it began with.
        begun: uploads that the participant has begun for the round.
    """

    receipt: ReceiptRow | None
    selected: bool
    draw_head: bytes
    delivered: bool
    sequence: int | None
    committed: bytes | None
    begun: int


@dataclass(frozen=True)
class ModelRow:
    """A model that came in time and passed its contract."""

    participant_id: str
    submission_id: str
    sequence: int
    model_sha256: bytes
    model_bytes: int
    samples: int
    draw_share: bytes


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
        found = _TASK.row(self._connection, {"id": task_id})
        return None if found is None else _task(found)

    def tasks(self) -> list[TaskRow]:
        """All tasks, the oldest first."""
        return [_task(row) for row in _TASKS.rows(self._connection)]

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
            LifecycleError: `state` may not follow `task.state`.
        """
        entered = task.round if round_ is None else round_
        # A row enters SCORED when the round's models are fixed, and leaves it when the verdicts are recorded.
        check_step(task.terms.schedule, task.state, task.round, state, entered, reason or "", judged=False)
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
        last = _LAST_EVENT.row(self._connection, {"task_id": task_id})
        cursor, before = (0, now) if last is None else last
        values = {
            "task_id": task_id,
            "cursor": cursor + 1,
            "state": state.value,
            "round": round_,
            "deadline": deadline,
            "detail_json": json.dumps(detail),
            # Never before the event before it, though a clock may be set back.
            "at": max(now, before),
        }
        _insertion(events).run(self._connection, values)

    def latest_event_at(self, task_id: str) -> float:
        """When the task entered its state."""
        last = _LAST_EVENT.row(self._connection, {"task_id": task_id})
        assert last is not None  # its opening is an event
        return float(last[1])

    def events(self, task_id: str, after: int = 0) -> list[EventRow]:
        """Events with a cursor above `after`, in order."""
        found = _EVENTS.rows(self._connection, {"task_id": task_id, "after": after})
        return [
            EventRow(cursor, State(state), round_, deadline, json.loads(detail), at)
            for cursor, state, round_, deadline, detail, at in found
        ]

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
        )

    # Submissions

    def receipt(self, task_id: str, participant_id: str, submission_id: str) -> ReceiptRow | None:
        names = {"participant_id": participant_id, "submission_id": submission_id}
        found = self._rows(ReceiptRow, receipts, task_id, **names)
        return found[0] if found else None

    def receipts(self, task_id: str, participant_id: str) -> list[ReceiptRow]:
        """A participant's receipts in a task, in ledger order."""
        found = self._rows(ReceiptRow, receipts, task_id, participant_id=participant_id)
        return sorted(found, key=lambda row: row.ledger_index)

    def add_receipt(self, row: ReceiptRow) -> None:
        self._insert(receipts, row)

    def claims(self, task_id: str) -> list[ClaimRow]:
        """Claims that came in time, in participant-id order."""
        return self._rows(ClaimRow, claims, task_id)

    def claim(self, task_id: str, participant_id: str) -> ClaimRow | None:
        found = self._rows(ClaimRow, claims, task_id, participant_id=participant_id)
        return found[0] if found else None

    def count_claims(self, task_id: str) -> int:
        """How many places of the task are taken; a claimant that was revoked since keeps its own."""
        return int(_CLAIMED.value(self._connection, {"task_id": task_id}))

    def add_claim(self, task_id: str, row: ClaimRow) -> None:
        self._insert(claims, row, task_id=task_id)

    def select_participants(self, task_id: str, chosen: Sequence[str]) -> None:
        rows = [{"of_task": task_id, "of_participant": name, "chosen": True} for name in chosen]
        _SELECT_CLAIM.run_many(self._connection, rows)

    def model_standing(
        self, task_id: str, participant_id: str, submission_id: str, round_: int
    ) -> ModelStanding:
        """How a participant's submission of a model stands, by one query: everybody causes two a round."""
        who: dict[str, Any] = {
            "task_id": task_id,
            "participant_id": participant_id,
            "submission_id": submission_id,
        }
        found = _MODEL_STANDING.mappings(self._connection, {**who, "round": round_})[0]
        receipt = {name: found[f"receipt_{name}"] for name in _RECEIPT_COLUMNS}
        return ModelStanding(
            receipt=None if receipt["kind"] is None else ReceiptRow(**who, **receipt),
            selected=bool(found["selected"]),
            draw_head=found["draw_head"] or b"",
            delivered=found["delivered"] is not None,
            sequence=found["sequence"],
            committed=found["committed"],
            begun=found["begun"],
        )

    def add_upload(
        self, task_id: str, participant_id: str, submission_id: str, round_: int, digest: bytes, now: float
    ) -> int:
        """Records a commitment; returns its sequence number, the next of the task."""
        sequence: int = _LAST_SEQUENCE.value(self._connection, {"task_id": task_id}) + 1
        values = {
            "task_id": task_id,
            "participant_id": participant_id,
            "submission_id": submission_id,
            "round": round_,
            "sequence": sequence,
            "digest": digest,
            "at": now,
        }
        _insertion(uploads).run(self._connection, values)
        return sequence

    def models(self, task_id: str, round_: int) -> list[ModelRow]:
        """Models of a round that came in time, in participant-id order."""
        return self._rows(ModelRow, models, task_id, round=round_)

    def add_model(self, task_id: str, round_: int, row: ModelRow) -> None:
        self._insert(models, row, task_id=task_id, round=round_)

    def failures(self, task_id: str, round_: int) -> list[FailureRow]:
        return self._rows(FailureRow, failures, task_id, round=round_)

    def all_failures(self, task_id: str) -> list[FailureRow]:
        """What was reported in any round, in order of rounds, then of ids."""
        found = self._rows(FailureRow, failures, task_id)
        return sorted(found, key=lambda f: (f.round, f.participant_id))

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
        return [RoundRow(*row) for row in _ROUNDS.rows(self._connection, {"task_id": task_id})]

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

    def round_settlements(self, task_id: str, round_: int) -> list[tuple[str, int, Mapping[str, Any]]]:
        """(participant, ledger index, record) of everyone whom a round was settled for, in the ledger's order."""
        rows = _ROUND_SETTLEMENTS.rows(self._connection, {"task_id": task_id, "round": round_})
        return [(name, index, json.loads(record)) for name, index, record in rows]

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
        row = _PARTICIPANT.row(self._connection, {"id": participant_id})
        return None if row is None else ParticipantRow(*row)

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

    def certificates(self, participant_id: str | None = None) -> list[CertificateRow]:
        """All certificates, or one participant's, the oldest first."""
        query = select(certificates).order_by(certificates.c.issued_at)
        if participant_id is not None:
            query = query.where(certificates.c.participant_id == participant_id)
        return [CertificateRow(**row._mapping) for row in self._connection.execute(query)]

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

    def withdraw_invitations(self, participant_id: str, now: float) -> int:
        """Ends the unused invitations of a participant; returns how many could still be used.

        They end at the beginning of time, not now: the process that one is brought to may have another clock.
        """
        unused = invitations.c.participant_id == participant_id, invitations.c.serial.is_(None)
        usable = select(func.count()).select_from(invitations).where(*unused, invitations.c.expires_at > now)
        count = self._connection.execute(usable).scalar_one()
        self._connection.execute(update(invitations).where(*unused).values(expires_at=0.0))
        return count

    def _rows(self, kind: Callable[..., Row], table: Table, task_id: str, **equal: Any) -> list[Row]:
        """A task's rows with these values, in participant-id order."""
        query = _selection(kind, table, tuple(equal))
        return [kind(*row) for row in query.rows(self._connection, {"task_id": task_id, **equal})]

    def _insert(self, table: Table, row: Any, **more: Any) -> None:
        _insertion(table).run(self._connection, {**vars(row), **more})


def _columns(kind: Any, table: Table) -> list[Column[Any]]:
    """What a value of the dataclass `kind` is made from."""
    return [table.c[field.name] for field in fields(kind)]


def _equal(table: Table, *columns: str) -> ColumnElement[bool]:
    """The rows of a task with these values, each a parameter of the column's name."""
    return and_(*(table.c[name] == bindparam(name) for name in ("task_id", *columns)))


def _number(table: Table, *columns: str) -> ScalarSelect[int]:
    """How many rows those are, within another query."""
    counted = select(func.count()).select_from(table).where(_equal(table, *columns))
    return counted.correlate(None).scalar_subquery()


_PARTICIPANT = Statement(
    select(*_columns(ParticipantRow, participants)).where(participants.c.id == bindparam("id"))
)
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
_LAST_EVENT = Statement(
    select(events.c.cursor, events.c.at)
    .where(events.c.task_id == bindparam("task_id"))
    .order_by(events.c.cursor.desc())
    .limit(literal_column("1"))
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
#: Claims that count: a revoked participant cannot train, so it is not selected. Who was selected before stays so.
_COUNTED = or_(
    claims.c.selected,
    ~exists().where(participants.c.id == claims.c.participant_id, participants.c.revoked_at.is_not(None)),
)
_CLAIMANTS = Statement(select(claims.c.participant_id, claims.c.selected).where(_equal(claims), _COUNTED))
_DELIVERED = Statement(select(models.c.participant_id).where(_equal(models, "round")))
_FAILED = Statement(select(failures.c.participant_id).where(_equal(failures, "round")))
_CLAIMED = Statement(select(_number(claims).label("claimed")))
_RECEIPT_COLUMNS = ("kind", "round", "digest", "ledger_index", "late", "at")
_MODEL_STANDING = Statement(
    select(
        claims.c.selected,
        claims.c.draw_head,
        models.c.submission_id.label("delivered"),
        uploads.c.sequence,
        uploads.c.digest.label("committed"),
        _number(uploads, "participant_id", "round").label("begun"),
        *(receipts.c[name].label(f"receipt_{name}") for name in _RECEIPT_COLUMNS),
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
_ROUNDS = Statement(select(*_columns(RoundRow, rounds)).where(_equal(rounds)).order_by(rounds.c.round))
_ROUND_SETTLEMENTS = Statement(
    select(settlements.c.participant_id, settlements.c.ledger_index, settlements.c.record_json)
    .where(settlements.c.task_id == bindparam("task_id"), settlements.c.round == bindparam("round"))
    .order_by(settlements.c.ledger_index)
)
_SETTLEMENT = Statement(
    select(settlements.c.ledger_index, settlements.c.record_json).where(
        settlements.c.task_id == bindparam("task_id"),
        settlements.c.round == bindparam("round"),
        settlements.c.participant_id == bindparam("participant_id"),
    )
)


@cache
def _selection(kind: Callable[..., Any], table: Table, columns: tuple[str, ...]) -> Statement:
    chosen = select(*_columns(kind, table)).where(_equal(table, *columns))
    return Statement(chosen.order_by(table.c.participant_id))


@cache
def _round_update(columns: tuple[str, ...]) -> Statement:
    chosen = rounds.c.task_id == bindparam("of_task"), rounds.c.round == bindparam("of_round")
    return Statement(update(rounds).where(*chosen).values({n: bindparam(f"new_{n}") for n in columns}))


@cache
def _insertion(table: Table) -> Statement:
    return Statement(insert(table))


@lru_cache(maxsize=64)
def _terms(text: str) -> Terms:
    """Parsed once for a task: every call of a participant reads its row."""
    return Terms.from_record(json.loads(text))


@lru_cache(maxsize=64)
def _settings(text: str) -> Mapping[str, Any]:
    """Parsed once for a task, as its terms."""
    settings: Mapping[str, Any] = json.loads(text)
    return settings


def _task(values: tuple[Any, ...]) -> TaskRow:
    row = dict(zip(tasks.c.keys(), values, strict=True))
    return TaskRow(
        terms=_terms(row.pop("terms_json")),
        settings=_settings(row.pop("settings_json")),
        state=State(row.pop("state")),
        **row,
    )
