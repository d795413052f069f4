"""Word from one process of a market to the others: PostgreSQL's NOTIFY, which goes out with the commit.

Who has changed what others hold in memory says so in the transaction that changes it. So nobody hears of what was
undone, and who hears of a change finds it in the database. The same word twice in one transaction is one. What is lost
with a connection is made up for by reading everything again; the database stays the only truth. A SQLite file has one
process, and nothing is said.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from uuid import uuid4

from sqlalchemy import Connection, bindparam, func, literal_column, select

from fedpeer.audit.sql.statements import Statement

#: This process, among those that serve one database.
PROCESS = uuid4().hex[:12]


class Kind(StrEnum):
    """What has changed; `Change.subject` says whose."""

    TASK = "task"  # (task,): it has a new event
    # (task, participant, submission): a claim, a model or a failure is recorded. They are counted, and PostgreSQL
    # delivers equal notices of one transaction once: so no two are equal.
    ARRIVED = "arrived"
    PERSON = "person"  # (participant,): enrolled, renewed, revoked or forgotten
    WATCHES = "watches"  # (task, participant): a session has begun
    PROGRESS = "progress"  # (task, participant, round, millionths): a training is that far
    CERTIFICATES = "certificates"  # (): the server's or the authorities' are others now
    SENDS = "sends"  # (task, participant, submission, turn): a stream of an upload has begun


@dataclass(frozen=True)
class Change:
    """One word.

    Attributes:
        process: whose word it is: a `PROCESS`.
        at: when it was given, seconds since the epoch.
    """

    kind: Kind
    subject: tuple[str, ...]
    process: str
    at: float

    @property
    def ours(self) -> bool:
        """Whether this process has said it."""
        return self.process == PROCESS

    @classmethod
    def parse(cls, payload: str) -> "Change":
        kind, process, at, *subject = json.loads(payload)
        return cls(Kind(kind), tuple(subject), process, at)


#: The tables' own, so that two markets in two schemas of one database do not hear each other.
CHANNEL = "'fedpeer_' || to_regclass('ledger_log')::oid"
_NOTIFY = Statement(select(func.pg_notify(literal_column(CHANNEL), bindparam("payload"))))
_TURN = Statement(select(func.pg_current_xact_id()))


def announce(connection: Connection, kind: Kind, *subject: str, at: float = 0.0) -> None:
    """Says it to all processes that listen, once this transaction is committed."""
    if connection.dialect.name == "postgresql":
        _NOTIFY.run(connection, {"payload": json.dumps([kind, PROCESS, at, *subject])})


def turn(connection: Connection) -> int:
    """This transaction's place in the order of those that write, of all processes: of two the later has the higher one.

    Word may come late: by the turns one sees whether what it tells of is older than what is here. PostgreSQL alone has
    them; it numbers a transaction once that has its first lock of a row, which is the ledger's.
    """
    return int(_TURN.value(connection))
