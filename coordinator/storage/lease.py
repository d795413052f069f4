"""The right to serve a database, held by one process at a time and given up with it, however it ends.

    PostgreSQL   a session-level advisory lock on a connection of its own; the server gives it up when the connection
                 breaks. It must be a connection to the server itself: a pooler in transaction mode keeps no session.
    SQLite       a lock (flock, which SQLite itself does not use) on the database's own file, so that it holds under
                 every name that leads there; the kernel gives it up with the process.

A second lock of the same kind says from which state folder a PostgreSQL database is served (`FolderLease`): uploads and
model files of two folders lie apart, and fronts of both would serve one market.

Commands on the command line need no lease: each is one transaction, and a task's version lets only one of two
transactions move it on. The lease keeps two services from doing the same work, and from answering participants out
of two memories.
"""

import os
import time
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from importlib.metadata import version
from pathlib import Path
from socket import gethostname

from sqlalchemy import Connection, TextClause, create_engine, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from fedpeer.audit.sql.database import (
    KEEPALIVES,
    Database,
    noticing,
    prepare_file,
    shown,
    sqlite_file,
    translated,
)
from fedpeer.audit.sql.errors import DatabaseUnreachable, LeaseTaken, StorageError

#: First half of the advisory lock's key, ours alone; the second is the hash of the schema that the ledger's tables are
#: in, or will be made in, so that two markets can share one database, and two search paths that lead to one market
#: meet in one lock.
_LOCK_CLASS, _FOLDER_CLASS = 731_372_654, 731_372_655
_SCHEMA = (
    "hashtext(coalesce((SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE c.oid = to_regclass('ledger_log')), current_schema(), ''))"
)
_LOCK = text(f"SELECT pg_try_advisory_lock(:class, {_SCHEMA})")
_UNLOCK = text(f"SELECT pg_advisory_unlock(:class, {_SCHEMA})")
_SHARE = text(f"SELECT pg_try_advisory_lock_shared(:class, {_SCHEMA})")
_UNSHARE = text(f"SELECT pg_advisory_unlock_shared(:class, {_SCHEMA})")

#: The connections that hold the lock.
_HELD = (
    "FROM pg_locks JOIN pg_stat_activity USING (pid) "
    "WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    f"AND classid::bigint = :class AND objid::bigint = ({_SCHEMA}::bigint & 4294967295) AND objsubid = 2 AND granted"
)

#: The names of others' among them.
_HOLDERS = text(f"SELECT DISTINCT application_name {_HELD} AND pid != pg_backend_pid()")
_COUNT = text(f"SELECT count(*) {_HELD}")
_HOLDER = text(f"SELECT application_name {_HELD}")

#: Seconds for which a lease is waited for: the server notices the end of a killed process within milliseconds.
WAIT_SECONDS = 5.0

#: The most seconds until who does not hold a lease asks for it again, however long the database has been away: somebody
#: leads within ten of its return.
AWAY_SECONDS = 2.0

#: Seconds between two attempts.
_PAUSE_SECONDS = 0.1


#: Of a connection's name, at most: what PostgreSQL keeps of it.
_NAME_CHARACTERS = 63

#: How the name of a connection begins that has a lease, or waits for it; its machine's follows.
_NAME = "fedpeer on "


class Lease:
    """One process's lease on the database at `url`."""

    _class = _LOCK_CLASS

    #: From where another has it, for an error.
    _where = ""

    def __init__(self, url: URL) -> None:
        self._url = url
        self._connection: Connection | None = None
        self._file: int | None = None
        self._descriptor: int | None = None

    def take(self, wait_s: float = WAIT_SECONDS) -> None:
        """Takes the lease, waiting for at most `wait_s` seconds.

        Raises:
            LeaseTaken: another process holds it.
            DatabaseUnreachable: the database cannot be reached.
        """
        give_up = time.monotonic() + wait_s
        while not self._try():
            if time.monotonic() >= give_up:
                self.release()
                raise LeaseTaken(
                    f"another coordinator already serves the database {shown(self._url)}{self._where}; "
                    "stop it first, or name another database in coordinator.toml"
                )
            time.sleep(_PAUSE_SECONDS)

    def attempt(self) -> bool:
        """Takes the lease if nobody holds it. The connection stays for the next attempt: a stand-by makes one a second,
        and connecting costs a hundred times as much as asking.

        Raises:
            DatabaseUnreachable: the database cannot be reached.
        """
        kept = self._connection is not None
        try:
            return self._try()
        except StorageError:
            self.release()
            if not kept:
                raise
            return self._try()  # the server may have been started again since the last attempt

    @property
    def descriptor(self) -> int | None:
        """Of the connection that holds the lease: readable when it has broken, or has something to say."""
        return self._descriptor

    def held(self) -> bool:
        """Whether the lease still holds; asks the server."""
        if self._connection is None:
            return self._file is not None
        try:
            self._connection.execute(text("SELECT 1"))
        except DBAPIError:
            return False
        return True

    def release(self) -> None:
        """Gives the lease up; does nothing where it is not held."""
        if self._connection is not None:
            self._connection.invalidate()  # closes it, broken or not, without a word to the server
            self._connection.close()
            self._connection.engine.dispose()
            self._connection = self._descriptor = None
        if self._file is not None:
            flock(self._file, LOCK_UN)
            # Left open: closing it would take from SQLite, in this process, its own locks on the file (POSIX).
            self._file = None

    def _try(self) -> bool:
        if self._url.get_backend_name() == "postgresql":
            return self._try_postgresql()
        path = sqlite_file(self._url)
        return path is None or self._try_file(path)  # nobody else reaches one in memory

    def _try_file(self, path: Path) -> bool:
        if self._file is None:
            prepare_file(path)
            try:
                self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise DatabaseUnreachable(f"{path} cannot be opened: {error.strerror}") from None
        try:
            flock(self._file, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise DatabaseUnreachable(
                f"{path} cannot be locked: {error.strerror}; keep it on a disk of this machine"
            ) from None
        return True

    def _try_postgresql(self) -> bool:
        with translated():
            if self._connection is None:
                engine = create_engine(
                    noticing(self._url.update_query_dict(KEEPALIVES)),
                    poolclass=NullPool,
                    isolation_level="AUTOCOMMIT",
                )
                self._connection = engine.connect()
                self._descriptor = self._connection.connection.driver_connection.fileno()  # type: ignore[union-attr]  # psycopg's
                # The server notices as soon: another leads within ten seconds, a stand-by asking once a second.
                for name, value in KEEPALIVES.items():
                    self._set(f"tcp_{name}", value)
                self._set("idle_session_timeout", "0")  # an idle session is what a lease is
                self._set("application_name", f"{_NAME}{gethostname()}"[:_NAME_CHARACTERS])
            return self._lock()

    def _lock(self) -> bool:
        """Of PostgreSQL."""
        return self._asked(_LOCK)

    def _asked(self, question: TextClause) -> bool:
        assert self._connection is not None
        return bool(self._connection.execute(question, {"class": self._class}).scalar_one())

    def _set(self, name: str, value: str) -> None:
        """Sets a parameter of the session where this version of the server has it."""
        assert self._connection is not None
        self._connection.execute(
            text("SELECT set_config(name, :value, false) FROM pg_settings WHERE name = :name"),
            {"name": name, "value": value},
        )


class FolderLease(Lease):
    """The right to serve a PostgreSQL database from a state folder.

    Those that serve together name their connections after the folder's mark and the program's version; who joins must
    find the others' named after its own. So machines that have the same folder mounted serve together, and a copy of
    the folder does not: the first to serve from a folder gives it a new mark (`StateFolder.shared_lock`). Neither does
    another version, which may write what this one does not know.

    Args:
        mark: of the folder; None: nobody may join.
    """

    _class = _FOLDER_CLASS
    _where = ", alone, from another folder, or over a file system that keeps each machine's locks apart"

    def __init__(self, url: URL, mark: str | None = None) -> None:
        super().__init__(url)
        self._mark = mark

    def _lock(self) -> bool:
        if self._mark is None:
            return super()._lock()
        folder, own = f"fedpeer folder {self._mark} ", version("fedpeer")
        name = f"{folder}{own}"[:_NAME_CHARACTERS]
        self._set("application_name", name)  # before the lock: others look at the names of those that hold it
        if super()._lock():
            return self._asked(_SHARE) and self._asked(_UNLOCK)
        if not self._asked(_SHARE):
            return False
        assert self._connection is not None
        others = set(self._connection.execute(_HOLDERS, {"class": self._class}).scalars()) - {name}
        if not others:
            return True
        if all(other.startswith(folder) for other in others):
            found = ", ".join(sorted(other.removeprefix(folder) for other in others))
            self._where = (
                f" from this folder by version {found}, beside which this one, {own}, does not serve"
            )
        self._asked(_UNSHARE)
        return False


def served(url: URL) -> bool:
    """Whether some process holds the lease on the database at `url`.

    Raises:
        DatabaseUnreachable: the database cannot be reached.
    """
    lease = Lease(url)
    try:
        lease.take(wait_s=0)
    except LeaseTaken:
        return True
    lease.release()
    return False


def holder(database: Database) -> str:
    """The name of the machine whose process holds the lease; "" where nobody does, or it cannot be known.

    Raises:
        DatabaseUnreachable: the database cannot be reached.
    """
    if database.dialect != "postgresql":
        return ""
    with database.read() as connection:
        name = connection.execute(_HOLDER, {"class": _LOCK_CLASS}).scalar()
    return str(name).removeprefix(_NAME) if str(name).startswith(_NAME) else ""


def machines(database: Database) -> int:
    """How many machines serve the database from their folder just now, as fronts.

    Raises:
        DatabaseUnreachable: the database cannot be reached.
    """
    with database.read() as connection:
        return int(connection.execute(_COUNT, {"class": _FOLDER_CLASS}).scalar_one())
