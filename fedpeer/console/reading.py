"""The market as the console reads it: its folder, and its database without the right to write."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import text

from coordinator.clock import Clock, SystemClock
from coordinator.folder import StateFolder
from coordinator.storage.tasks import TaskRow
from coordinator.transaction import Transaction
from fedpeer.audit.sql.database import Database, parse_url, sqlite_file
from fedpeer.protocol.certificates import PublicKey, load_public_key

Result = TypeVar("Result")

#: Records that are kept for as long as the ledger does not grow: many watchers ask for the same.
_KEPT = 500

#: Seconds after which records are made again all the same: forgetting a participant changes rows, and no entry.
_KEPT_SECONDS = 60.0


class NotThere(LookupError):
    """There is no such task, participant, round or entry; the sentence says so."""


class Reader:
    """Reads one market. Threads may share it.

    Raises:
        CoordinatorError, StorageError: the folder or its database cannot be read, or is of another version.
    """

    def __init__(self, folder: StateFolder, clock: Clock | None = None) -> None:
        self.folder = folder
        self.config = folder.config()
        self.clock = clock or SystemClock()
        self.now: Callable[[], float] = self.clock.now
        self.url = folder.database_url(self.config)
        self._database = Database(self.url, read_only=True)
        self._database.check_schema()
        self._lock = threading.Lock()
        self._kept: dict[Any, Any] = {}
        self._size = -1
        self._since = 0.0

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """One state of market and ledger; nothing in it can be changed."""
        with self._database.read() as connection:
            yield Transaction(connection, self.now())

    def size(self) -> int:
        """Entries of the ledger: everything that pages show of a task is an entry of it."""
        with self.transaction() as t:
            return t.ledger.size()

    def record(self, key: Any, make: Callable[[Transaction], Result]) -> Result:
        """What `make` gives, once for as long as the ledger does not grow, and a minute at most.

        One reader at a time: that many ask at once must not cost the coordinator anything.
        """
        with self._lock, self.transaction() as t:
            size, age = t.ledger.size(), self.now() - self._since
            if size != self._size or len(self._kept) >= _KEPT or not 0 <= age < _KEPT_SECONDS:
                self._size, self._since, self._kept = size, self.now(), {}
            if key not in self._kept:
                self._kept[key] = make(t)
            found: Result = self._kept[key]
            return found

    def database_bytes(self) -> int:
        """How much of a disk the database takes, as far as it says."""
        if (file := sqlite_file(parse_url(self.url))) is not None:
            return sum(path.stat().st_size for path in file.parent.glob(f"{file.name}*") if path.is_file())
        with self._database.read() as connection:
            return int(connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one())

    def key_of(self, participant_id: str) -> PublicKey | None:
        """The key that counts for a participant now; None for strangers and the revoked."""
        with self.transaction() as t:
            row = t.market.participant(participant_id)
        return None if row is None or row.revoked_at is not None else load_public_key(row.public_key)


def task_of(t: Transaction, task_id: str) -> TaskRow:
    """Raises NotThere where there is no such task."""
    row = t.market.task(task_id)
    if row is None:
        raise NotThere(f"There is no task {task_id:.100}.")
    return row
