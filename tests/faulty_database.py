"""A SQLite that fails on demand, as on a disk that returns an error once: a coordinator's database, or a
participant's journal."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy.engine import make_url

import fedpeer.audit.sql.database

#: Decides by a statement's text and number, from 1 on, whether it fails; the number counts while it decides.
Decide = Callable[[str, int], bool]


class Faults:
    """What fails, and what has failed."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.statements = 0
        #: Whether a commit that fails has happened all the same: its answer was lost.
        self.committed = False
        self._decide: Decide | None = None
        self._lock = threading.Lock()

    @contextmanager
    def when(self, decide: Decide) -> Iterator[None]:
        """Fails inside, as `decide` says."""
        self.statements, self._decide = 0, decide
        try:
            yield
        finally:
            self._decide = None

    def fails(self, text: str) -> bool:
        with self._lock:
            if self._decide is None:
                return False
            self.statements += 1
            if not self._decide(text, self.statements):
                return False
            self.failed.append(text)
            return True


def each_statement_once() -> Decide:
    """Every distinct statement fails when it is first met."""
    met: set[str] = set()

    def decide(text: str, _: int) -> bool:
        new = text not in met and not text.startswith(("ROLLBACK", "PRAGMA"))
        met.add(text)
        return new

    return decide


def _error() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = "SQLITE_IOERR_READ"
    return error


def _connection(faults: Faults) -> type[sqlite3.Connection]:
    class Cursor(sqlite3.Cursor):
        def execute(self, text: str, *values: Any) -> Any:
            if faults.fails(text):
                if text == "COMMIT" and faults.committed:
                    super().execute(text)
                raise _error()
            return super().execute(text, *values)

        def executemany(self, text: str, *values: Any) -> Any:
            if faults.fails(text):
                raise _error()
            return super().executemany(text, *values)

    class Connection(sqlite3.Connection):
        def cursor(self, *arguments: Any, **options: Any) -> Any:
            return super().cursor(Cursor)

        def execute(self, text: str, *values: Any) -> Any:
            return self.cursor().execute(text, *values)

    return Connection


@contextmanager
def faulty_journals(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    """Participants' journals that are opened inside fail as the faults say."""
    faults, connect = Faults(), sqlite3.connect

    def faulty(database: Any, *arguments: Any, **options: Any) -> sqlite3.Connection:
        if "journal" in str(database):  # a coordinator in this process has a database, too
            options["factory"] = _connection(faults)
        return connect(database, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", faulty)
        yield faults


@contextmanager
def faulty_sqlite(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    """Coordinators' databases that are opened inside fail as the faults say."""
    faults = Faults()
    make = fedpeer.audit.sql.database.create_engine

    def faulty(url: Any, **options: Any) -> Any:
        path = make_url(url).database
        if make_url(url).get_backend_name() == "sqlite":
            options["creator"] = lambda: sqlite3.connect(
                path, factory=_connection(faults), **options["connect_args"]
            )
        return make(url, **options)

    with monkeypatch.context() as patch:
        patch.setattr(fedpeer.audit.sql.database, "create_engine", faulty)
        yield faults
