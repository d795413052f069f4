"""Tables of the market: who takes part, what is offered, what was sent, what was settled.

The ledger's tables hold the evidence and the money; these hold what the service needs to go on after a restart.
Times are seconds since the epoch.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    TypeDecorator,
)

from fedpeer.audit.sql.tables import METADATA
from mechanism.lifecycle import State
from mechanism.terms import Terms

_ID = String(64)
_DIGEST = LargeBinary(32)


class _Record(TypeDecorator[Mapping[str, Any]]):
    """JSON that only we read."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> str:
        return json.dumps(value)

    def process_result_value(self, value: Any, dialect: Any) -> Mapping[str, Any]:
        found: Mapping[str, Any] = json.loads(value)
        return found


class _Settings(_Record):
    """A record that is parsed once for a task: every call of a participant reads its row."""

    cache_ok = True

    def process_result_value(self, value: Any, dialect: Any) -> Mapping[str, Any]:
        return _parsed_settings(value)


class _Terms(TypeDecorator[Terms]):
    """Terms, parsed once for a task, as its settings."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> str:
        return str(value.canonical, "utf-8")

    def process_result_value(self, value: Any, dialect: Any) -> Terms:
        return _parsed_terms(value)


class _State(TypeDecorator[State]):
    """A task's state, by its name."""

    impl = String(16)
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> str:
        return State(value).value

    def process_result_value(self, value: Any, dialect: Any) -> State:
        return State(value)


@lru_cache(maxsize=64)
def _parsed_settings(text: str) -> Mapping[str, Any]:
    settings: Mapping[str, Any] = json.loads(text)
    return settings


@lru_cache(maxsize=64)
def _parsed_terms(text: str) -> Terms:
    return Terms.parse(text.encode())


participants = Table(
    "participants",
    METADATA,
    Column("id", _ID, primary_key=True),
    Column("public_key", Text, nullable=False),
    Column("enrolled_at", Double, nullable=False),
    Column("revoked_at", Double),
)

certificates = Table(
    "certificates",
    METADATA,
    # Hexadecimal: serial numbers have 160 bits.
    Column("serial", String(48), primary_key=True),
    Column("participant_id", _ID, ForeignKey("participants.id"), nullable=False, index=True),
    Column("pem", Text, nullable=False),
    Column("issued_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("revoked_at", Double),
)

invitations = Table(
    "invitations",
    METADATA,
    # SHA-256 of the token: a reader of the database cannot enrol.
    Column("token_digest", _DIGEST, primary_key=True),
    Column("participant_id", _ID, nullable=False, index=True),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    # The certificate that it was traded for.
    Column("serial", String(48), ForeignKey("certificates.serial")),
)

tasks = Table(
    "tasks",
    METADATA,
    Column("id", _ID, primary_key=True),
    # Canonical, as they are published.
    Column("terms", _Terms, nullable=False),
    # Secret: the seeds of peers, nonces and shadows derive from it.
    Column("root", LargeBinary(32), nullable=False),
    Column("settings", _Settings, nullable=False),
    Column("state", _State, nullable=False, index=True),
    Column("round", Integer, nullable=False),
    Column("deadline", Double),
    # Counts transitions; a transition names the one that it follows.
    Column("version", Integer, nullable=False),
    # The model that the next round starts from.
    Column("model", _DIGEST, nullable=False),
    Column("opened_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("reason", Text),
)

events = Table(
    "events",
    METADATA,
    Column("task_id", _ID, ForeignKey("tasks.id"), primary_key=True),
    Column("cursor", Integer, primary_key=True),
    Column("state", _State, nullable=False),
    Column("round", Integer, nullable=False),
    Column("deadline", Double),
    Column("detail", _Record, nullable=False),
    Column("at", Double, nullable=False),
)

receipts = Table(
    "receipts",
    METADATA,
    Column("task_id", _ID, ForeignKey("tasks.id"), primary_key=True),
    Column("participant_id", _ID, primary_key=True),
    Column("submission_id", _ID, primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("round", Integer, nullable=False),
    Column("digest", _DIGEST, nullable=False),
    Column("ledger_index", BigInteger, nullable=False),
    Column("late", Boolean, nullable=False),
    Column("at", Double, nullable=False),
)

claims = Table(
    "claims",
    METADATA,
    Column("task_id", _ID, ForeignKey("tasks.id"), primary_key=True),
    Column("participant_id", _ID, primary_key=True),
    Column("degree", Text, nullable=False),
    Column("selected", Boolean, nullable=False),
    # Of the chain of draw shares that the participant's models reveal.
    Column("draw_head", _DIGEST, nullable=False),
    # Of private label counts; empty where they are open.
    Column("counts_commitment", _DIGEST),
)

uploads = Table(
    "uploads",
    METADATA,
    Column("task_id", _ID, ForeignKey("tasks.id"), primary_key=True),
    Column("participant_id", _ID, primary_key=True),
    Column("submission_id", _ID, primary_key=True),
    Column("round", Integer, nullable=False),
    # Order in which models were committed to, within the task: the earliest of duplicates is the original.
    Column("sequence", Integer, nullable=False),
    Column("digest", _DIGEST, nullable=False),
    Column("at", Double, nullable=False),
    Index("ix_uploads_task_id_sequence", "task_id", "sequence", unique=True),
)

models = Table(
    "models",
    METADATA,
    Column("task_id", _ID, ForeignKey("tasks.id"), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("participant_id", _ID, primary_key=True),
    Column("sequence", Integer, nullable=False),
    Column("model_sha256", _DIGEST, nullable=False),
    Column("samples", BigInteger, nullable=False),
    Column("draw_share", _DIGEST, nullable=False),
)

failures = Table(
    "failures",
    METADATA,
    Column("task_id", _ID, ForeignKey("tasks.id"), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("participant_id", _ID, primary_key=True),
    Column("reason", Text, nullable=False),
    Column("at", Double, nullable=False),
)

rounds = Table(
    "rounds",
    METADATA,
    Column("task_id", _ID, ForeignKey("tasks.id"), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("start_model", _DIGEST, nullable=False),
    Column("start_bytes", BigInteger, nullable=False),
    Column("opened_at", Double, nullable=False),
    Column("closed_at", Double),
    Column("settled_at", Double),
    Column("result_model", _DIGEST),
    # Of the server's optimiser, after the round.
    Column("server_state", _DIGEST),
    # Decimals, of the result model on held-out data; empty where nothing is evaluated.
    Column("accuracy", String(32)),
    Column("loss", String(32)),
    Column("ledger_size", BigInteger),
    # When the learner last fetched the result model.
    Column("fetched_at", Double),
)

settlements = Table(
    "settlements",
    METADATA,
    Column("task_id", _ID, ForeignKey("tasks.id"), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("participant_id", _ID, primary_key=True),
    Column("ledger_index", BigInteger, nullable=False),
    Column("record", _Record, nullable=False),
)
