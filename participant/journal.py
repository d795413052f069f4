"""What a participant has done and must not do twice: a small SQLite database in its state folder.

Every submission is written down before it is sent, with its statement, signature and model file, and its
receipt after the answer. So after a crash, on either side and at any moment, the participant sends the same
bytes under the same id again or fetches the receipt; it never claims or submits a second time.

    submission.status   prepared -> recorded     the coordinator holds it: there is a receipt
                                 -> refused      it will never be accepted: `reason`
    round.status        missed                   nothing was submitted: `reason`
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_type_hints

from mechanism.privacy import Gaussians
from participant.errors import ConfigurationError, DiskFullError, JournalError
from participant.persistence import may_pass

if TYPE_CHECKING:
    from filelock import BaseFileLock

#: Version of the tables; a journal of a newer one is refused.
VERSION = 4

#: Name of the log's verification key among the facts of the journal.
LOG_KEY = "log_key"

#: Name of the receipts, as JSON, of every change of the log's key since.
LOG_KEY_CHANGES = "log_key_changes"

#: Name of the market that the state folder was last used with: "tls host:port" or "plain host:port".
MARKET = "market"

#: Names of what the last look at this participant's keys found, a line each, and of how much of the key history a
#: receipt has proven.
KEY_PROBLEMS, KEYS_PROVEN = "key_problems", "keys_proven"

#: Name of what the models so far tell of the data, as JSON (`participant.accounting`).
PRIVACY = "privacy"

#: Beyond the index of any entry.
MAX_INDEX = 2**63 - 1

#: Seconds that a reader waits for the writer; one transaction takes milliseconds.
BUSY_SECONDS = 10.0

#: Seconds between attempts at a statement where the machine fails in a way that may pass.
_PAUSES = (0.05, 0.2, 1.0)

Kind = Literal["claim", "model", "failure"]
Row = TypeVar("Row")


@dataclass(frozen=True)
class TaskRecord:
    """One task, and its table: a column is what its SQL says.

    Attributes:
        terms: canonical JSON.
        effort: what was decided before the claim.
        counts: JSON, what was claimed.
        salt: of the commitment to private counts.
        draw_secret: the end of the chain of draw shares that the claim commits to.
    """

    task_id: Annotated[str, "TEXT PRIMARY KEY"]
    terms: Annotated[bytes, "BLOB NOT NULL"]
    state: Annotated[int, "INTEGER NOT NULL DEFAULT 0"]
    cursor: Annotated[int, "INTEGER NOT NULL DEFAULT 0"]
    effort: Annotated[str | None, "TEXT"]
    counts: Annotated[str | None, "TEXT"]
    salt: Annotated[bytes | None, "BLOB"]
    draw_secret: Annotated[bytes | None, "BLOB"]
    note: Annotated[str, "TEXT NOT NULL DEFAULT ''"]


@dataclass(frozen=True)
class SubmissionRecord:
    """One submission.

    Attributes:
        kind: claim, model, failure.
        message: the signed statement; of a failure, the request.
        file: of the model, below the models folder.
    """

    submission_id: Annotated[str, "TEXT PRIMARY KEY"]
    task_id: Annotated[str, "TEXT NOT NULL"]
    kind: Annotated[str, "TEXT NOT NULL"]
    round: Annotated[int, "INTEGER NOT NULL"]
    message: Annotated[bytes, "BLOB NOT NULL"]
    file: Annotated[str, "TEXT NOT NULL DEFAULT ''"]
    status: Annotated[str, "TEXT NOT NULL DEFAULT 'prepared'"]
    receipt: Annotated[bytes | None, "BLOB"]
    reason: Annotated[str, "TEXT NOT NULL DEFAULT ''"]


@dataclass(frozen=True)
class RoundRecord:
    """One round; `model_sha256` is what it starts from."""

    task_id: Annotated[str, "TEXT NOT NULL"]
    round: Annotated[int, "INTEGER NOT NULL"]
    model_sha256: Annotated[bytes | None, "BLOB"]
    status: Annotated[str, "TEXT NOT NULL DEFAULT ''"]
    reason: Annotated[str, "TEXT NOT NULL DEFAULT ''"]
    metrics: Annotated[str, "TEXT NOT NULL DEFAULT '{}'"]


@dataclass(frozen=True)
class KeyRow:
    """One enrolment or revocation.

    Attributes:
        number: of it, anybody's, from 0 on.
        entry_index: where it stands in the ledger.
        digest: of the key history after it.
        entry: where it is about this participant.
    """

    number: Annotated[int, "INTEGER PRIMARY KEY"]
    entry_index: Annotated[int, "INTEGER NOT NULL"]
    digest: Annotated[bytes, "BLOB NOT NULL"]
    entry: Annotated[bytes | None, "BLOB"]


@dataclass(frozen=True)
class PrivacyRecord:
    """What one round's model tells of the data (`mechanism.privacy.Gaussians`).

    Attributes:
        number: by which rows are distinguished; None of one that is to be added.
        delta: of the noise; None: there is none.
        sent: 1 once the model is about to be sent, 0 while the round is reserved for its training.
    """

    number: Annotated[int | None, "INTEGER PRIMARY KEY"]
    task_id: Annotated[str, "TEXT NOT NULL"]
    round: Annotated[int, "INTEGER NOT NULL"]
    noise_multiplier: Annotated[float, "REAL NOT NULL"]
    sample_rate: Annotated[float, "REAL NOT NULL"]
    steps: Annotated[int, "INTEGER NOT NULL"]
    delta: Annotated[str | None, "TEXT"]
    sent: Annotated[int, "INTEGER NOT NULL"]

    @property
    def gaussians(self) -> Gaussians:
        return Gaussians(self.noise_multiplier, self.sample_rate, self.steps)


def _table(name: str, record: type, *constraints: str) -> str:
    columns = get_type_hints(record, include_extras=True).items()
    parts = [*(f"{column} {kind.__metadata__[0]}" for column, kind in columns), *constraints]
    return f"CREATE TABLE {name} ({', '.join(parts)});"


_TABLES = "\n".join(
    [
        "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);",
        _table("task", TaskRecord),
        _table("submission", SubmissionRecord, "UNIQUE (task_id, kind, round)"),
        _table("round", RoundRecord, "PRIMARY KEY (task_id, round)"),
        _table("key_history", KeyRow),
        _table("privacy", PrivacyRecord),
        "CREATE TABLE declined (task_id TEXT PRIMARY KEY, reason TEXT NOT NULL);",
        "CREATE TABLE settlement (task_id TEXT NOT NULL, round INTEGER NOT NULL, message BLOB NOT NULL, "
        "stored_at INTEGER NOT NULL DEFAULT (CAST(strftime('%s', 'now') AS INTEGER)), "
        "PRIMARY KEY (task_id, round));",
    ]
)


class Journal:
    """The journal of one participant. Safe to use from several threads; one process at a time writes it.

    Args:
        path: the database file; made on the first use.
        writer: take the lock of the state folder. A reader (`status`, `earnings`) goes without.

    Raises:
        JournalError: another process holds it, or it is damaged or of a newer version.
    """

    def __init__(self, path: Path, *, writer: bool = True) -> None:
        self._path = path
        self._mutex = threading.RLock()
        self._lock = _take_lock(path) if writer else None
        try:
            with self._translated():
                self._connection = self._open(writer)
        except BaseException:
            self._release()
            raise

    def close(self) -> None:
        """Closes the database and gives up the lock."""
        with self._mutex:
            self._connection.close()
            self._release()

    @property
    def folder(self) -> Path:
        """The state folder that it lies in."""
        return self._path.parent

    def own(self, participant_id: str) -> None:
        """Notes whose journal this is.

        Raises:
            ConfigurationError: it is another participant's.
        """
        self._execute("INSERT OR IGNORE INTO meta VALUES ('participant_id', ?)", participant_id)
        if (owner := self.meta("participant_id")) != participant_id:
            raise ConfigurationError(
                f"{self._path} is the journal of {owner}, not of {participant_id}; use another state folder"
            )

    def meta(self, name: str) -> str | None:
        row = self._row("SELECT value FROM meta WHERE name = ?", name)
        return None if row is None else str(row[0])

    def set_meta(self, name: str, value: str) -> None:
        self._execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", name, value)

    def tasks(self) -> list[TaskRecord]:
        return self._records(TaskRecord, "SELECT * FROM task ORDER BY task_id")

    def task(self, task_id: str) -> TaskRecord | None:
        return next(iter(self._records(TaskRecord, "SELECT * FROM task WHERE task_id = ?", task_id)), None)

    def add_task(self, task_id: str, terms: bytes) -> None:
        """Notes the terms that were agreed to; keeps those that stand."""
        self._execute("INSERT OR IGNORE INTO task (task_id, terms) VALUES (?, ?)", task_id, terms)

    def set_progress(self, task_id: str, state: int, cursor: int) -> None:
        """Notes that the events up to `cursor` have been dealt with."""
        statement = "UPDATE task SET state = ?, cursor = max(cursor, ?) WHERE task_id = ?"
        self._execute(statement, state, cursor, task_id)

    def set_note(self, task_id: str, note: str) -> None:
        """Keeps a sentence on how the task went: why it was cancelled, say."""
        self._execute("UPDATE task SET note = ? WHERE task_id = ?", note, task_id)

    def set_effort(self, task_id: str, effort: str) -> None:
        """Notes the decision, before data are collected for it."""
        self._execute("UPDATE task SET effort = ? WHERE task_id = ?", effort, task_id)

    def set_claim(self, task_id: str, counts: str, salt: bytes | None, draw_secret: bytes) -> None:
        """Notes what is about to be claimed."""
        statement = "UPDATE task SET counts = ?, salt = ?, draw_secret = ? WHERE task_id = ?"
        self._execute(statement, counts, salt, draw_secret, task_id)

    def submissions(self, task_id: str) -> list[SubmissionRecord]:
        statement = "SELECT * FROM submission WHERE task_id = ? ORDER BY round, kind"
        return self._records(SubmissionRecord, statement, task_id)

    def submission(self, task_id: str, kind: Kind, round_: int = 0) -> SubmissionRecord | None:
        statement = "SELECT * FROM submission WHERE task_id = ? AND kind = ? AND round = ?"
        return next(iter(self._records(SubmissionRecord, statement, task_id, kind, round_)), None)

    def prepare(
        self, submission_id: str, task_id: str, kind: Kind, round_: int, message: bytes, file: str = ""
    ) -> SubmissionRecord:
        """Writes a submission down before it is sent. One that stands already is returned instead."""
        self._execute(
            "INSERT OR IGNORE INTO submission (submission_id, task_id, kind, round, message, file) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            submission_id, task_id, kind, round_, message, file,
        )  # fmt: skip
        record = self.submission(task_id, kind, round_)
        if record is None:
            raise JournalError(f"{self._path} has {submission_id} for another task; restore it from a backup")
        return record

    def discard(self, submission_id: str) -> None:
        """Takes back a submission that was never accepted: its model file is lost, say."""
        self._execute("DELETE FROM submission WHERE submission_id = ? AND receipt IS NULL", submission_id)

    def record_receipt(self, submission_id: str, receipt: bytes) -> None:
        statement = (
            "UPDATE submission SET status = 'recorded', receipt = ?, reason = '' WHERE submission_id = ?"
        )
        self._execute(statement, receipt, submission_id)

    def record_refusal(self, submission_id: str, reason: str) -> None:
        statement = "UPDATE submission SET status = 'refused', reason = ? WHERE submission_id = ?"
        self._execute(statement, reason, submission_id)

    def rounds(self, task_id: str) -> list[RoundRecord]:
        return self._records(RoundRecord, "SELECT * FROM round WHERE task_id = ? ORDER BY round", task_id)

    def open_round(self, task_id: str, round_: int, model_sha256: bytes) -> None:
        self._execute(
            "INSERT INTO round (task_id, round, model_sha256) VALUES (?, ?, ?) "
            "ON CONFLICT DO UPDATE SET model_sha256 = excluded.model_sha256",
            task_id, round_, model_sha256,
        )  # fmt: skip

    def miss_round(self, task_id: str, round_: int, reason: str) -> None:
        """Notes that nothing was submitted for a round, and why; the first reason stands."""
        self._execute(
            "INSERT INTO round (task_id, round, status, reason) VALUES (?, ?, 'missed', ?) "
            "ON CONFLICT DO UPDATE SET status = 'missed', reason = excluded.reason WHERE status = ''",
            task_id, round_, reason,
        )  # fmt: skip

    def set_metrics(self, task_id: str, round_: int, metrics: str) -> None:
        self._execute(
            "UPDATE round SET metrics = ? WHERE task_id = ? AND round = ?", metrics, task_id, round_
        )

    def settlements(self, task_id: str) -> list[tuple[int, bytes]]:
        """Round and settlement message, in round order."""
        rows = self._rows("SELECT round, message FROM settlement WHERE task_id = ? ORDER BY round", task_id)
        return [(int(round_), _bytes(message)) for round_, message in rows]

    def add_settlement(self, task_id: str, round_: int, message: bytes) -> None:
        statement = "INSERT OR REPLACE INTO settlement (task_id, round, message) VALUES (?, ?, ?)"
        self._execute(statement, task_id, round_, message)

    def stored_at(self, task_id: str, round_: int) -> int:
        """When the settlement of a round was stored, seconds since the epoch; 0 where there is none."""
        row = self._row("SELECT stored_at FROM settlement WHERE task_id = ? AND round = ?", task_id, round_)
        return 0 if row is None else int(row[0])

    def decline(self, task_id: str, reason: str) -> None:
        """Notes that the owner's policy does not accept a task's terms, and why."""
        self._execute("INSERT OR REPLACE INTO declined VALUES (?, ?)", task_id, reason)

    def accept(self, task_id: str) -> None:
        """Takes that back: the terms, or the policy, are others now."""
        self._execute("DELETE FROM declined WHERE task_id = ?", task_id)

    def declined(self) -> list[tuple[str, str]]:
        """Task ids with the reason, by id."""
        rows = self._rows("SELECT task_id, reason FROM declined ORDER BY task_id")
        return [(str(task_id), str(reason)) for task_id, reason in rows]

    def privacy(self) -> list[PrivacyRecord]:
        """Every round that is reserved or sent, in the order in which they were."""
        return self._records(PrivacyRecord, "SELECT * FROM privacy ORDER BY number")

    def add_privacy(self, record: PrivacyRecord) -> None:
        self._execute("INSERT INTO privacy VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *vars(record).values())

    def spend_privacy(self, task_id: str, round_: int) -> None:
        """Notes that a reserved round's model is about to be sent."""
        self._execute("UPDATE privacy SET sent = 1 WHERE task_id = ? AND round = ?", task_id, round_)

    def release_privacy(self, task_id: str, round_: int) -> bool:
        """Drops a round that is reserved and not sent; whether there was one."""
        statement = "DELETE FROM privacy WHERE task_id = ? AND round = ? AND sent = 0 RETURNING number"
        return bool(self._rows(statement, task_id, round_))

    @contextmanager
    def holding(self) -> Iterator[None]:
        """No other thread reads or writes inside."""
        with self._mutex:
            yield

    def key_history(self) -> tuple[int, bytes]:
        """How many enrolments and revocations are known, and the digest over them."""
        return self.keys_before(MAX_INDEX)

    def add_keys(self, rows: Sequence[KeyRow]) -> None:
        """Notes further ones. Another thread may have noted the same, or have dropped those before them: then not."""
        with self._mutex, self._translated():
            if not rows or rows[0].number > self.key_history()[0]:
                return
            self._connection.executemany(
                "INSERT OR IGNORE INTO key_history VALUES (?, ?, ?, ?)",
                [(row.number, row.entry_index, row.digest, row.entry) for row in rows],
            )

    def own_key_rows(self) -> list[KeyRow]:
        """Those about this participant, in order."""
        return self._records(KeyRow, "SELECT * FROM key_history WHERE entry IS NOT NULL ORDER BY number")

    def keys_before(self, index: int) -> tuple[int, bytes]:
        """How many of the known ones stand before entry `index` of the ledger, and the digest over them."""
        row = self._row(
            "SELECT number, digest FROM key_history WHERE entry_index < ? ORDER BY number DESC LIMIT 1", index
        )
        return (0, bytes(32)) if row is None else (int(row[0]) + 1, _bytes(row[1]))

    def prove_keys(self, count: int) -> None:
        """Notes that the first `count` are all that there were when an own entry was recorded."""
        if count > self.proven_keys():
            self.set_meta(KEYS_PROVEN, str(count))

    def proven_keys(self) -> int:
        return int(self.meta(KEYS_PROVEN) or 0)

    def forget_keys(self) -> None:
        """Drops the key history: it did not hold."""
        self._execute("DELETE FROM key_history")
        self.set_meta(KEYS_PROVEN, "0")

    def _open(self, writer: bool) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{self._path.absolute().as_uri()}?mode={'rwc' if writer else 'ro'}",
            uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False,
        )  # fmt: skip
        if writer:
            # A receipt that is noted must survive a power cut.
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version == 0 and writer:
            connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {VERSION}; COMMIT;")
        elif version != VERSION:
            connection.close()
            raise JournalError(
                f"{self._path} has version {version}, this release knows version {VERSION}; "
                "install the release that wrote it, or a newer one"
            )
        return connection

    def _execute(self, statement: str, *values: Any) -> None:
        self._rows(statement, *values)

    def _rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """What the statement gives; each is a transaction of its own, so one that failed can be tried again."""
        with self._mutex, self._translated():
            for seconds in _PAUSES:
                try:
                    return self._connection.execute(statement, values).fetchall()
                except sqlite3.OperationalError as error:
                    if not may_pass(error):
                        raise
                sleep(seconds)
            return self._connection.execute(statement, values).fetchall()

    def _records(self, kind: Callable[..., Row], statement: str, *values: Any) -> list[Row]:
        return [kind(*row) for row in self._rows(statement, *values)]

    def _row(self, statement: str, *values: Any) -> tuple[Any, ...] | None:
        rows = self._rows(statement, *values)
        return rows[0] if rows else None

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", "") or ""
            if name == "SQLITE_FULL":
                raise DiskFullError(
                    f"{self._path} cannot be written ({error}); make space and start again, nothing is lost"
                ) from error
            advice = "check its permissions, or restore it from a backup"
            if name.startswith("SQLITE_IOERR"):
                advice = (
                    "the disk fails, or a quota or a limit of file sizes is used up: look at the system's log"
                )
            raise JournalError(
                f"{self._path} cannot be used ({error}); {advice}: the coordinator still knows what it received"
            ) from error


def key_problems(journal: Journal) -> tuple[str, ...]:
    """What the last look at this participant's keys found, as sentences."""
    return tuple((journal.meta(KEY_PROBLEMS) or "").splitlines())


def _bytes(value: Any) -> bytes:
    """A blob; what a damaged file has in its place as bytes that decode to nothing."""
    return value if isinstance(value, bytes) else repr(value).encode()


def _take_lock(path: Path) -> "BaseFileLock":
    """A lock that the operating system gives back when the process ends, however it ends."""
    from filelock import FileLock, Timeout

    journal = path.resolve()  # one lock, whatever links lead there
    lock = FileLock(journal.with_suffix(".lock"), mode=0o600, blocking=False)
    try:
        if journal.exists() and journal.stat().st_nlink > 1:
            raise JournalError(
                f"{path} has several names (hard links), and SQLite keeps its log next to a name; remove the others"
            )
        lock.acquire()
    except Timeout:
        raise JournalError(
            f"{path.parent} is in use by another process; one participant runs once, stop the other first"
        ) from None
    except OSError as error:
        raise JournalError(
            f"{lock.lock_file} cannot be opened ({error.strerror}); check the folder"
        ) from error
    return lock
