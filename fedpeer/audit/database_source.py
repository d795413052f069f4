"""A ledger in a database: SQLite or PostgreSQL, opened for reading alone."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from sqlalchemy import Column, Connection, LargeBinary, Text, func, select, text

from fedpeer.audit.input_files import SourceError
from fedpeer.audit.sources import head_size
from fedpeer.audit.sql.database import Database
from fedpeer.audit.sql.errors import StorageError
from fedpeer.audit.sql.ledger_store import SqlLedgerStore
from fedpeer.audit.sql.statements import Statement
from fedpeer.audit.sql.tables import ACCOUNTS, BUNDLES, CHECKPOINTS, IDS, LOG, TILES, TOTALS, TRANSFERS
from mechanism.ledger.accounts import Balance
from mechanism.ledger.appending import Ledger
from mechanism.ledger.merkle import MAX_SIZE
from mechanism.ledger.tiles import Coordinates
from mechanism.ledger.tlog_proof import TlogProof
from mechanism.ledger.verify import IdRow, LedgerSource, StoredTables, TransferRow

#: What a ledger is read from in a database.
_LEDGER_TABLES = (LOG, BUNDLES, IDS, TILES, ACCOUNTS, TRANSFERS, TOTALS, CHECKPOINTS)


class DatabaseSource:
    """A coordinator's database, seen in one reading transaction: a `LedgerSource`, and its `StoredTables`."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self.name = database.display
        self._store = SqlLedgerStore(connection)
        self._ledger = Ledger(self._store)
        self._connection = connection
        self._cache: dict[Coordinates, bytes] = {}

    def verification_key(self) -> str:
        return self._signed(self._store.first_key())

    def checkpoint(self) -> str:
        return self._signed(self._store.checkpoint())

    def _signed(self, found: str | None) -> str:
        if found is None:
            raise SourceError(f"{self.name} has no signed head yet; there is nothing to verify")
        return found

    def heads(self) -> Iterator[str]:
        for size, note in self._store.checkpoints():
            if head_size(note) != size:
                raise SourceError(f"the head that is kept as that of {size} is of another size")
            yield note

    def entries(self, first: int = 0) -> Iterator[bytes]:
        if first:
            yield from self._store.entries(first, MAX_SIZE - first)
            return
        expected = 0
        try:
            for start, entries in self._store.bundles():
                if start != expected:
                    raise SourceError(f"the stored bundle at entry {start} should begin at entry {expected}")
                expected += len(entries)
                yield from entries
        except StorageError as error:
            raise SourceError(str(error)) from None

    def tile(self, level: int, index: int, width: int) -> bytes | None:
        if (level, index) not in self._cache:  # verification asks for one after the other
            self._cache = self._store.tile_run(level, index, 64)
        return self._cache.get((level, index), b"")

    def key_changes(self) -> list[TlogProof]:
        """The receipts of every change of the log's key."""
        return self._store.key_changes()

    def inclusion_proof(self, index: int, size: int) -> Sequence[bytes]:
        """The proof of entry `index` in the tree of `size`, from the few tiles that it takes."""
        return self._ledger.inclusion_proof(index, size)

    def consistency_proof(self, first: int, second: int) -> Sequence[bytes]:
        """The proof that the tree of `second` extends that of `first`."""
        return self._ledger.consistency_proof(first, second)

    def entry(self, index: int) -> bytes | None:
        """Entry `index`, None where there is none."""
        return next(self._store.entries(index, 1), None)

    def tables(self) -> StoredTables | None:
        return self

    def size(self) -> int:
        """-1 where the one row that says it is missing."""
        size = _SIZE.value(self._connection)
        return -1 if size is None else int(size)

    def transfers(self) -> Iterator[TransferRow]:
        return self._store.transfers(0, 2**62)

    def balances(self) -> Mapping[str, Balance]:
        return self._store.all_balances()

    def totals(self) -> Balance:
        row = _TOTALS.row(self._connection)
        return Balance(-1, -1, -1, -1) if row is None else Balance(*row)

    def ids(self) -> Iterator[IdRow]:
        return _IDS.stream(self._connection, at_once=1000)

    def keys(self) -> Iterator[tuple[int, int, bytes, bytes, str]]:
        return self._store.keys()

    def tiles(self) -> int:
        return int(_TILES.value(self._connection))


_SIZE = Statement(select(LOG.c.size).where(LOG.c.id == 1))
_TOTALS = Statement(select(*TOTALS.c[1:]).where(TOTALS.c.id == 1))
_IDS = Statement(select(IDS.c.id, IDS.c.entry_index).order_by(IDS.c.entry_index, IDS.c.id))
_TILES = Statement(select(func.count()).select_from(TILES))


def open_database(url: str, resources: ExitStack) -> LedgerSource:
    """The ledger at a URL, until `resources` are closed; its tables and the types in them are checked first."""
    database = Database(url, read_only=True)
    resources.callback(database.close)
    database.check_schema()
    connection = resources.enter_context(database.read())
    if database.dialect == "sqlite":
        _check_stored_types(database.display, connection)
    return DatabaseSource(database, connection)


def _check_stored_types(name: str, connection: Connection) -> None:
    """That each column of the ledger's tables holds what it should: SQLite keeps whatever was put there.

    Raises:
        SourceError: a table that is none or lacks a column, or a value of another type.
    """
    listed = connection.execute(text("SELECT name, type FROM pragma_table_list WHERE schema = 'main'"))
    kinds: dict[str, str] = {row[0]: row[1] for row in listed}
    for table in _LEDGER_TABLES:
        if kinds.get(table.name) != "table":
            found = kinds.get(table.name, "missing")
            raise SourceError(f"{name}: {table.name} is {found}; expected a table; it was altered")
        present = {
            row[0] for row in connection.execute(text(f"SELECT name FROM pragma_table_info('{table.name}')"))
        }
        missing = [column.name for column in table.c if column.name not in present]
        if missing:
            raise SourceError(f"{name}: the table {table.name} lacks the column {missing[0]}; it was altered")
        wrong = {column.name: _wrong_type(column) for column in table.c}
        query = f"SELECT {', '.join(wrong)} FROM {table.name} WHERE {' OR '.join(wrong.values())} LIMIT 1"
        row = connection.execute(text(query)).one_or_none()
        if row is not None:
            types = ", ".join(
                f"{column} {type(value).__name__}" for column, value in zip(wrong, row, strict=True)
            )
            raise SourceError(
                f"{name}: the table {table.name} holds a row of other types than fedpeer writes ({types}); "
                "it was altered"
            )


def _wrong_type(column: Column[Any]) -> str:
    """The condition, in SQLite's words, that a column's value is not of its type."""
    kind = {LargeBinary: "blob", Text: "text"}.get(type(column.type), "integer")
    allowed = f"'{kind}', 'null'" if column.nullable else f"'{kind}'"
    return f"typeof({column.name}) NOT IN ({allowed})"
