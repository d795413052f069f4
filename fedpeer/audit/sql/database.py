"""One database, by its URL: SQLite (WAL, synchronous=FULL, foreign keys) or PostgreSQL.

    sqlite:///path/to/fedpeer.db
    sqlite://                                  in memory, for tests
    postgresql+psycopg://user@host/name        (postgresql:// means the same)

`begin` is a transaction that writes, `read` one that sees a single state. Errors of the drivers become the
sentences of `fedpeer.audit.sql.errors`. A URL may hold a password, and not only in the place of one: nothing here
prints a URL as it was given, nor the parser's own words about it; `shown` says which database is meant.
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
from sqlalchemy.exc import ArgumentError, DBAPIError
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

#: How long a writer waits for another, seconds: longer than a settlement of a thousand participants takes.
LOCK_TIMEOUT_S = 30.0

#: Bytes of one value of a SQLite file that is opened for reading alone, and of one row: a bundle of entries is the
#: largest of the ledger's.
MAX_VALUE_BYTES = 32 << 20

#: A peer whose machine is gone is given up after 3 + 2 * 2 s where nothing is on its way; the default is two hours.
KEEPALIVES = {"keepalives_idle": "3", "keepalives_interval": "2", "keepalives_count": "2"}

#: So is one that does not take what is on its way, in milliseconds, and one that does not answer a new connection, in
#: seconds: TCP alone asks again after minutes, when the peer is long back.
_UNANSWERED = {"tcp_user_timeout": "7000", "connect_timeout": "10"}

#: The schema's revisions, the oldest first; `coordinator.storage.migrations` has the step to each.
REVISIONS = ("0001",)


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
        self.url = parse_url(url)
        self.dialect = self.url.get_backend_name()
        self._lock_timeout_s = lock_timeout_s
        self._read_only = read_only
        options: dict[str, Any] = {}
        if self.dialect == "sqlite":
            options["connect_args"] = {"timeout": lock_timeout_s, "check_same_thread": False}
            if sqlite_file(self.url) is None:
                options["poolclass"] = StaticPool
            else:
                options["creator"] = self.read_only_connection if read_only else self._new_sqlite_connection
        else:
            options["pool_pre_ping"] = True
        self._engine = create_engine(noticing(self.url), **options)
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

    def check_present(self) -> None:
        """That the database is there and holds a ledger, of whatever version.

        Raises:
            DatabaseUnreachable, NotALedger: it does not; a new one in its place would begin a second log under
                the same key.
        """
        path = sqlite_file(self.url)
        if path is not None and not path.is_file():
            raise DatabaseUnreachable(f"there is no database file {path}; {_LOST}")
        with self.read() as connection:
            if revision(connection) is None and not inspect(connection).has_table("ledger_log"):
                raise NotALedger(
                    f"{self.display} is a database without fedpeer's tables; is it the right one? {_LOST}"
                )

    def check_schema(self) -> None:
        """Raises NotALedger or UnknownSchema unless the database has exactly this version's schema."""
        self.check_present()
        with self.read() as connection:
            current = revision(connection)
        refuse_unknown(current)
        if current != REVISIONS[-1]:
            raise UnknownSchema(
                f"{self.display} has the schema {current}, this program has {REVISIONS[-1]}; "
                "start the coordinator once to migrate it"
            )

    def empty_log(self) -> bool:
        """Takes what was erased out of SQLite's write-ahead log, too; False where somebody still reads what is in it.
        Of other databases it is their server's matter."""
        if self.dialect != "sqlite":
            return True
        with translated(), self._engine.connect() as connection:
            busy, *_ = driver(connection).execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not busy

    def revision(self) -> str | None:
        """The version of its schema; None where there is none."""
        with self.read() as connection:
            return revision(connection)

    def tables(self) -> list[str]:
        """Names of all tables in the schema that the URL leads to."""
        with self.read() as connection:
            return inspect(connection).get_table_names()

    @property
    def display(self) -> str:
        """Which database this is, without a secret."""
        return shown(self.url)

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
        except _driver_errors():  # the first error is the one to tell
            connection.invalidate()

    def _new_sqlite_connection(self) -> sqlite3.Connection:
        path = sqlite_file(self.url)
        assert path is not None  # not in memory
        prepare_file(path)
        return sqlite3.connect(path.resolve(), timeout=self._lock_timeout_s, check_same_thread=False)

    def _configure_sqlite(self, connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None
        if not self._read_only:
            connection.execute("PRAGMA journal_mode = WAL")
            # What is erased is gone from the file's pages too.
            connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")

    def read_only_connection(self) -> sqlite3.Connection:
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
    except PoolTimeout as error:
        raise DatabaseLocked("all connections to the database are in use; try again later") from error
    except _driver_errors() as error:
        raise _storage_error(error.orig if isinstance(error, DBAPIError) else error) from error


@cache
def _driver_errors() -> tuple[type[Exception], ...]:
    """What SQLAlchemy raises, and the drivers where it does not stand between."""
    try:
        import psycopg
    except ImportError:
        return (DBAPIError, sqlite3.Error)
    return (DBAPIError, sqlite3.Error, psycopg.Error)


_LOCKED = "another process holds the database's lock for too long; try again later"
_FULL = "the database has no space left; make some, then go on: nothing was half-written"
_REFUSED = "the database refuses this write: {}"
_NO_TABLE = "the database lacks a table of fedpeer: {}"

#: What the first letters of an error's code mean, the longer ones first: SQLite's names.
_SQLITE: tuple[tuple[tuple[str, ...], type[StorageError], str], ...] = (
    (("SQLITE_BUSY", "SQLITE_LOCKED"), DatabaseLocked, _LOCKED),
    (("SQLITE_FULL",), DatabaseFull, _FULL),
    (
        ("SQLITE_READONLY",),
        DatabaseReadOnly,
        "the database accepts no writes; give its file and folder the right to write",
    ),
    (
        ("SQLITE_NOTADB", "SQLITE_CORRUPT", "SQLITE_FORMAT"),
        DatabaseDamaged,
        "the file is not a SQLite database, or is damaged: {}",
    ),
    (("SQLITE_CONSTRAINT",), ConstraintViolated, _REFUSED),
    (("SQLITE_TOOBIG",), DatabaseDamaged, f"the database holds a value of more than {MAX_VALUE_BYTES} bytes"),
    (
        ("SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_PERM", "SQLITE_AUTH", "SQLITE_PROTOCOL", "SQLITE_NOLFS"),
        DatabaseUnreachable,
        "the database file cannot be opened, read or written ({}); look at its rights, its disk and the quota",
    ),
)

_UNREACHABLE = (
    "the database cannot be reached: {}; check its server, and the host, name, user and password given for it"
)

#: The same for PostgreSQL's SQLSTATE.
_POSTGRESQL: tuple[tuple[tuple[str, ...], type[StorageError], str], ...] = (
    (("55P03", "57014", "40"), DatabaseLocked, _LOCKED),
    (("53100",), DatabaseFull, _FULL),
    (
        ("25006",),
        DatabaseReadOnly,
        "the database accepts no writes; connect to its primary with the right to write",
    ),
    (("42501",), DatabaseReadOnly, "the database's user lacks a right: {}"),
    (("23", "P0001"), ConstraintViolated, _REFUSED),
    (("42P01",), NotALedger, _NO_TABLE),
    # A connection that broke, a server that stops, refuses the user, lacks memory or connections, or cannot read its
    # disk.
    (("08", "57", "28", "3D", "53", "58"), DatabaseUnreachable, _UNREACHABLE),
    (("XX001", "XX002"), DatabaseDamaged, "the database's pages are broken: {}"),
)


def _storage_error(cause: BaseException | None) -> StorageError:
    sqlite = isinstance(cause, sqlite3.Error)
    code = getattr(cause, "sqlite_errorname" if sqlite else "sqlstate", None) or ""
    said = str(cause).strip().split("\n")[0] or type(cause).__name__
    for beginnings, kind, sentence in _SQLITE if sqlite else _POSTGRESQL:
        if code.startswith(beginnings):
            return kind(sentence.format(said))
    if "no such table" in said:
        return NotALedger(_NO_TABLE.format(said))
    kinds = {kind.__name__ for kind in type(cause).__mro__}
    if not sqlite and not code and kinds & {"OperationalError", "InterfaceError"}:
        return DatabaseUnreachable(_UNREACHABLE.format(said))
    return StorageError(f"the database refuses a statement ({code}): {said}")


def parse_url(url: str | URL) -> URL:
    """The URL of a database that can be used here.

    Raises:
        DatabaseUnreachable: of another form or driver, or a driver that is not installed. Never repeats the URL.
    """
    text = url if isinstance(url, str) else url.render_as_string(hide_password=False)
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise DatabaseUnreachable(f"this is not a usable database URL: {_form(text)}; {_FORMS}") from None
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    match parsed.drivername:
        case "sqlite" | "sqlite+pysqlite":
            if parsed.query or parsed.host:
                raise DatabaseUnreachable(
                    "a SQLite URL is sqlite:///FILE, relative, or sqlite:////FILE, and takes no parameters; "
                    f"this one has {'parameters' if parsed.query else 'a host'}"
                )
        case "postgresql+psycopg":
            if text.count("@") > 1:
                raise DatabaseUnreachable(
                    "the database URL has more than one @, so that it is not clear where its password ends; "
                    "write each @ in a user, password or parameter as %40"
                )
        case _:
            raise DatabaseUnreachable(
                f"this is not a usable database URL: {parsed.drivername} is not supported; {_FORMS}"
            )
    try:
        psycopg: Any = parsed.get_dialect().import_dbapi()
    except ImportError:
        raise DatabaseUnreachable(
            "PostgreSQL's driver is not installed; it comes with the extra fedpeer[postgresql]"
        ) from None
    if parsed.get_backend_name() == "postgresql":
        try:
            psycopg.conninfo.make_conninfo(**dict.fromkeys(parsed.query, "1"))
        except psycopg.ProgrammingError:
            raise DatabaseUnreachable(
                "the database URL has a parameter behind its ? that PostgreSQL does not know; expected some of its "
                "connection parameters, such as sslmode=verify-full"
            ) from None
    return parsed


def shown(url: URL) -> str:
    """Which database a URL means, for people: never its password or parameters, one of which may hold it."""
    if url.get_backend_name() == "sqlite":
        return f"sqlite:///{url.database or ''}"
    hosts = url.query.get("host", ())
    host = url.host or ",".join([hosts] if isinstance(hosts, str) else hosts)
    port = "" if url.port is None else f":{url.port}"
    service = f" of the service {url.query['service']}" if "service" in url.query else ""
    here = "" if host or service else f" (host: {os.environ.get('PGHOST') or 'the local socket'})"
    if host.startswith("/"):  # a socket's folder, which no URL has before its path
        host, here = "", f"?host={host}"
    return f"{url.drivername}://{host}{port}/{url.database or url.query.get('dbname', '')}{here}{service}"


def noticing(url: URL) -> URL:
    """A URL whose connections notice within ten seconds that a PostgreSQL server is gone; what it says itself stays."""
    if url.get_backend_name() != "postgresql":
        return url
    given = {**KEEPALIVES, **_UNANSWERED}
    return url.update_query_dict({name: value for name, value in given.items() if name not in url.query})


def sqlite_file(url: URL) -> Path | None:
    """The file of a SQLite database; None for one in memory, and for PostgreSQL."""
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return None
    return Path(url.database or "")


#: What a database URL may look like.
_FORMS = "expected sqlite:///FILE or postgresql+psycopg://USER@HOST/NAME"

#: What to do where a market's database is not where it should be.
_LOST = (
    "`fedpeer coordinator init` makes a market's database; where one was lost, restore a backup, since an empty one "
    "would begin another log under the same key"
)


def _form(text: str) -> str:
    """What is wrong with a URL that cannot be parsed, without a word of it."""
    if "://" not in text:
        return "it has no ://"
    return (
        "its host or port cannot be read; write each of : / ? # [ ] @ in a user or password as %3A and so on"
    )


def prepare_file(path: Path) -> None:
    """Makes a SQLite database's file where there is none, for its owner alone.

    Raises:
        DatabaseUnreachable: it cannot be made, or cannot be written without damage.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        pass
    except OSError as error:
        raise DatabaseUnreachable(
            f"the database file {path} cannot be opened or made: {error.strerror}"
        ) from None
    try:
        links = path.stat().st_nlink
    except OSError as error:
        raise DatabaseUnreachable(f"the database file {path} cannot be read: {error.strerror}") from None
    if path.is_file() and links > 1:
        raise DatabaseUnreachable(
            f"the database file {path} has {links} names (hard links); SQLite keeps its log next to a name, so that "
            "what is written under two of them damages it. Remove the others, and copy with `fedpeer coordinator "
            "backup`"
        )


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
