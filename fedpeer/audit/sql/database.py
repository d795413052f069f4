"""One database behind a URL: SQLite (WAL, synchronous=FULL, foreign keys) or PostgreSQL.

    sqlite:///path/to/fedpeer.db
    sqlite://                                  in memory, for tests
    postgresql+psycopg://user@host/name        (postgresql:// means the same)

`begin` is a transaction that writes, `read` one that sees a single state. Errors of the drivers become the
sentences of `fedpeer.audit.sql.errors`.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, event, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import StaticPool

from fedpeer.audit.sql.errors import (
    ConstraintViolated,
    DatabaseDamaged,
    DatabaseFull,
    DatabaseLocked,
    DatabaseReadOnly,
    DatabaseUnreachable,
    NotALedger,
    StorageError,
    UnknownSchema,
)
from fedpeer.audit.sql.statements import driver

#: How long a writer waits for another, seconds: a settlement of a thousand participants takes a tenth of that.
LOCK_TIMEOUT_S = 30.0

#: Bytes of one value of a SQLite file that is opened for reading alone, and of one row: a bundle of entries is the
#: largest of the ledger's.
MAX_VALUE_BYTES = 32 << 20

#: The schema's revisions, the oldest first; `coordinator.storage.migrations` has the step to each.
REVISIONS = ("0001", "0002", "0003", "0004")


class Database:
    """A pool of connections to one database.

    Args:
        url: SQLAlchemy URL, see above.
        lock_timeout_s: how long a writer waits for another before `DatabaseLocked`.
        read_only: opens a SQLite file without the right to write, for verification.

    Raises:
        DatabaseUnreachable: a URL of another form, or a driver that is not installed.
    """

    def __init__(
        self, url: str | URL, *, lock_timeout_s: float = LOCK_TIMEOUT_S, read_only: bool = False
    ) -> None:
        self.url = _parsed(url)
        self.dialect = self.url.get_backend_name()
        self._lock_timeout_s = lock_timeout_s
        self._read_only = read_only
        options: dict[str, Any] = {}
        if self.dialect == "sqlite":
            options["connect_args"] = {"timeout": lock_timeout_s, "check_same_thread": False}
            if _in_memory(self.url):
                options["poolclass"] = StaticPool
            elif read_only:
                options["creator"] = self._read_only_connection
        else:
            options["pool_pre_ping"] = True
        self._engine = create_engine(self.url, **options)
        if self.dialect == "sqlite":
            event.listen(self._engine, "connect", self._configure_sqlite)

    @contextmanager
    def begin(self, *, durable: bool = True) -> Iterator[Connection]:
        """One writing transaction: committed at the end of the block, rolled back where it raises.

        On SQLite it holds the write lock from its first moment, so it never fails half-way for want of it.

        Args:
            durable: whether the commit waits for the disk. One that does not is seen by everybody at once and
                outlives the process; a power failure undoes it, unless a later commit has waited for the disk:
                commits become durable in their order.

        Raises:
            StorageError: what the database refuses, its commit included.
        """
        with translated(), self._engine.connect() as connection, self._flushing(connection, durable):
            self._start(connection, "BEGIN IMMEDIATE", "READ COMMITTED")
            if not durable and self.dialect != "sqlite":
                driver(connection).execute("SET LOCAL synchronous_commit = off")
            try:
                yield connection
                self._commit(connection)
            except BaseException:
                self._rollback(connection)
                raise

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One reading transaction, which sees the state at its first read throughout."""
        with translated(), self._engine.connect() as connection:
            self._start(connection, "BEGIN", "REPEATABLE READ, READ ONLY")
            try:
                yield connection
            finally:
                self._rollback(connection)

    def check_schema(self) -> None:
        """Raises NotALedger or UnknownSchema unless the database has exactly this version's schema."""
        if self.dialect == "sqlite" and not _in_memory(self.url):
            path = Path(self.url.database or "")
            if not path.is_file():
                raise DatabaseUnreachable(f"there is no database file {path}")
        with self.read() as connection:
            current = revision(connection)
            if current is None and not inspect(connection).has_table("ledger_log"):
                raise NotALedger(
                    f"{self.display} is a database without fedpeer's tables; is it the right one?"
                )
        refuse_unknown(current)
        if current != REVISIONS[-1]:
            raise UnknownSchema(
                f"{self.display} has the schema {current}, this program has {REVISIONS[-1]}; "
                "start the coordinator once to migrate it"
            )

    @property
    def display(self) -> str:
        """The URL without its password."""
        return self.url.render_as_string(hide_password=True)

    def close(self) -> None:
        """Closes all connections."""
        self._engine.dispose()

    @contextmanager
    def _flushing(self, connection: Connection, durable: bool) -> Iterator[None]:
        """On SQLite: for the transaction inside, whether its commit flushes the log (the connection's default)."""
        if durable or self.dialect != "sqlite":
            yield
            return
        driver(connection).execute("PRAGMA synchronous = NORMAL")
        try:
            yield
        finally:
            if not connection.invalidated:
                try:
                    driver(connection).execute("PRAGMA synchronous = FULL")
                except sqlite3.Error:
                    connection.invalidate()

    def _start(self, connection: Connection, sqlite_begin: str, isolation: str) -> None:
        # The driver's own transactions are off on SQLite, so that BEGIN can ask for the write lock at once.
        connection.begin()
        if self.dialect == "sqlite":
            driver(connection).execute(sqlite_begin)
        else:  # both in one message to the server
            driver(connection).execute(
                f"SET TRANSACTION ISOLATION LEVEL {isolation}; "
                f"SET LOCAL lock_timeout = {int(self._lock_timeout_s * 1000)}"
            )

    def _commit(self, connection: Connection) -> None:
        if self.dialect == "sqlite":
            driver(connection).execute("COMMIT")
        connection.commit()

    def _rollback(self, connection: Connection) -> None:
        try:
            if self.dialect == "sqlite" and driver(connection).in_transaction:
                driver(connection).execute("ROLLBACK")
            connection.rollback()
        except DBAPIError:  # the first error is the one to tell
            connection.invalidate()
        except _driver_errors():
            connection.invalidate()

    def _configure_sqlite(self, connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None
        if not self._read_only:
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")

    def _read_only_connection(self) -> sqlite3.Connection:
        """Of a file that somebody else may have made: no value of it takes more than `MAX_VALUE_BYTES`."""
        path = Path(self.url.database or "").resolve()
        mode = "mode=ro"
        if not os.access(path.parent, os.W_OK):
            log = path.with_name(path.name + "-wal")
            if log.exists() and log.stat().st_size and not path.with_name(path.name + "-shm").exists():
                raise DatabaseReadOnly(
                    f"{path} has transactions in {log.name} that cannot be read where its folder accepts no writes; "
                    "copy both files to a folder of your own"
                )
            # Where SQLite cannot keep its own files beside the database, nobody else writes to it either.
            if not log.exists():
                mode = "mode=ro&immutable=1"
        connection = sqlite3.connect(
            f"{path.as_uri()}?{mode}", uri=True, timeout=self._lock_timeout_s, check_same_thread=False
        )
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        connection.execute("PRAGMA trusted_schema = OFF")
        return connection


@contextmanager
def translated() -> Iterator[None]:
    """Turns errors of the drivers into those of the storage."""
    try:
        yield
    except DBAPIError as error:
        raise _storage_error(error.orig) from error
    except PoolTimeout as error:
        raise DatabaseLocked("all connections to the database are in use; try again later") from error
    except _driver_errors() as error:
        raise _storage_error(error) from error


@cache
def _driver_errors() -> tuple[type[Exception], ...]:
    """What the drivers raise where SQLAlchemy does not stand between."""
    try:
        import psycopg
    except ImportError:
        return (sqlite3.Error,)
    return (sqlite3.Error, psycopg.Error)


def _storage_error(cause: BaseException | None) -> StorageError:
    if isinstance(cause, sqlite3.Error):
        return _sqlite_error(cause)
    state = getattr(cause, "sqlstate", None) or ""
    first = str(cause).strip().split("\n")[0]
    if state in ("55P03", "57014") or state[:2] == "40":
        return DatabaseLocked("another process holds the database's lock for too long; try again later")
    if state == "53100":
        return DatabaseFull("the database has no space left; make some, then go on: nothing was half-written")
    if state == "25006":
        return DatabaseReadOnly(
            "the database accepts no writes; connect to its primary with the right to write"
        )
    if state == "42501":
        return DatabaseReadOnly(f"the database's user lacks a right: {first}")
    if state[:2] == "23" or state == "P0001":
        return ConstraintViolated(f"the database refuses this write: {first}")
    if state == "42P01":
        return NotALedger(f"the database lacks a table of fedpeer: {first}")
    kinds = {kind.__name__ for kind in type(cause).__mro__}
    lost = not state and kinds & {"OperationalError", "InterfaceError"}
    # A connection that broke, a server that stops, refuses the user, lacks memory or connections, or cannot read its
    # disk.
    if lost or state[:2] in ("08", "57", "28", "3D", "53", "58"):
        return DatabaseUnreachable(f"the database cannot be reached: {first or type(cause).__name__}")
    if state in ("XX001", "XX002"):
        return DatabaseDamaged(f"the database's pages are broken: {first}")
    return StorageError(f"the database refuses a statement ({state}): {first}")


def _sqlite_error(error: sqlite3.Error) -> StorageError:
    name = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return DatabaseLocked("another process holds the database's lock for too long; try again later")
    if name.startswith("SQLITE_FULL") or name == "SQLITE_IOERR_WRITE":
        return DatabaseFull("the database has no space left; make some, then go on: nothing was half-written")
    if name.startswith("SQLITE_READONLY"):
        return DatabaseReadOnly("the database accepts no writes; give its file and folder the right to write")
    if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT", "SQLITE_FORMAT")):
        return DatabaseDamaged(f"the file is no SQLite database, or is damaged: {error}")
    if name.startswith("SQLITE_CONSTRAINT"):
        return ConstraintViolated(f"the database refuses this write: {error}")
    if name.startswith("SQLITE_TOOBIG"):
        return DatabaseDamaged(f"the database holds a value of more than {MAX_VALUE_BYTES} bytes")
    if name.startswith(
        ("SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_PERM", "SQLITE_AUTH", "SQLITE_PROTOCOL", "SQLITE_NOLFS")
    ):
        return DatabaseUnreachable(f"the database file cannot be opened or read: {error}")
    if "no such table" in str(error):
        return NotALedger(f"the database lacks a table of fedpeer: {error}")
    return StorageError(f"the database refuses a statement: {error}")


def _parsed(url: str | URL) -> URL:
    try:
        parsed = make_url(url)
        if parsed.drivername in ("postgresql", "postgres"):
            parsed = parsed.set(drivername="postgresql+psycopg")
        parsed.get_dialect().import_dbapi()
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        raise DatabaseUnreachable(
            f"{url!s:.200} is no usable database URL ({error}); expected sqlite:///FILE or "
            "postgresql+psycopg://USER@HOST/NAME, the latter with the extra fedpeer[postgresql]"
        ) from None
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise DatabaseUnreachable(f"{parsed.drivername} is not supported; expected sqlite or postgresql")
    return parsed


def _in_memory(url: URL) -> bool:
    return url.database in (None, "", ":memory:")


def revision(connection: Connection) -> str | None:
    """The schema's revision as the migrations left it; None where none ever ran."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return found


def refuse_unknown(revision: str | None) -> None:
    """Raises UnknownSchema for a revision that is none of `REVISIONS`."""
    if revision is not None and revision not in REVISIONS:
        raise UnknownSchema(
            f"the database has the schema {revision}, which this program does not know; use a newer fedpeer"
        )
