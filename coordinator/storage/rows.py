"""Tables of the market and their rows as values: what the modules by noun share.

A value is a dataclass whose fields are columns of its table, which is made of them. Times are seconds since the epoch.
The ledger's tables hold the evidence and the money; these hold what the service needs to go on after a restart. Each
kind of statement is built once for its form; see `fedpeer.audit.sql.statements`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache, lru_cache
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    ForeignKeyConstraint,
    LargeBinary,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    TypeDecorator,
    bindparam,
    delete,
    select,
    update,
)
from sqlalchemy.schema import SchemaItem

from coordinator.storage.changes import Kind, announce, turn
from fedpeer.audit.sql.statements import Statement, insertion
from fedpeer.audit.sql.tables import METADATA
from mechanism.lifecycle import State
from mechanism.terms import Terms

#: A dataclass whose fields are columns.
Row = TypeVar("Row")


class _AsText(TypeDecorator[Any]):
    """A value that is stored as a text, which only we read."""

    impl = Text
    cache_ok = True

    def __init__(self, write: Callable[[Any], str], read: Callable[[str], Any]) -> None:
        super().__init__()
        self.write = write
        self.read = read

    def process_bind_param(self, value: Any, dialect: Any) -> str:
        return self.write(value)

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        return self.read(value)


@lru_cache(maxsize=64)
def _parsed_terms(text: str) -> Terms:
    return Terms.parse(text.encode())


#: Types of columns that the type of a value does not tell. Settings are parsed once for a task, as its terms are: every
#: call of a participant reads its row.
Id = Annotated[str, String(64)]
Digest = Annotated[bytes, LargeBinary(32)]
Settings = Annotated[Mapping[str, Any], _AsText(json.dumps, lru_cache(maxsize=64)(json.loads))]

_TYPES: dict[Any, Any] = {
    str: Text(),
    int: BigInteger(),
    float: Double(),
    bool: Boolean(),
    bytes: LargeBinary(),
    Mapping[str, Any]: _AsText(json.dumps, json.loads),
    State: _AsText(lambda state: State(state).value, State),
    Terms: _AsText(lambda terms: str(terms.canonical, "utf-8"), _parsed_terms),
}


def table(name: str, kind: type, *rest: SchemaItem, key: tuple[str, ...], **more: Any) -> Table:
    """The table whose columns are the fields of `kind`, and those of `more` by type, which its values leave out.

    Args:
        rest: indices and constraints.
        key: columns of the primary key.
    """
    hints = {**more, **get_type_hints(kind, include_extras=True)}
    columns = [_column(column, hint) for column, hint in hints.items()]
    return Table(name, METADATA, *columns, PrimaryKeyConstraint(*key), *rest)


def table_of_task(name: str, kind: type, *rest: SchemaItem, key: tuple[str, ...], **more: Any) -> Table:
    """As `table`, of rows that belong to a task each; `key` within it."""
    of_task = ForeignKeyConstraint(["task_id"], ["tasks.id"])
    return table(name, kind, of_task, *rest, key=("task_id", *key), task_id=Id, **more)


def _column(name: str, hint: Any) -> Column[Any]:
    optional = NoneType in get_args(hint)
    if optional:
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    (kind,) = getattr(hint, "__metadata__", None) or (_TYPES[hint],)
    return Column(name, kind, nullable=optional, autoincrement=False)


class Rows:
    """Rows through one connection, inside the caller's transaction; nothing is kept between calls."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def announce(self, kind: Kind, *subject: str, at: float = 0.0) -> None:
        """As `coordinator.storage.changes.announce`, in this transaction."""
        announce(self._connection, kind, *subject, at=at)

    def turn(self) -> int:
        """As `coordinator.storage.changes.turn`, of this transaction."""
        return turn(self._connection)

    def _all(self, kind: Callable[..., Row], table: Table, *order: str, **equal: Any) -> list[Row]:
        """The rows whose columns have these values, in the order of the columns `order`."""
        query = _selection(kind, table, order, tuple(equal))
        return [kind(*row) for row in query.rows(self._connection, equal)]

    def _one(self, kind: Callable[..., Row], table: Table, **key: Any) -> Row | None:
        """The row with this key."""
        row = _selection(kind, table, (), tuple(key)).row(self._connection, key)
        return None if row is None else kind(*row)

    def _add(self, table: Table, row: Any, **more: Any) -> None:
        """One new row: a value, and the columns that it has no field for."""
        insertion(table).run(self._connection, {**vars(row), **more})

    def _set(self, table: Table, key: Mapping[str, Any], **values: Any) -> int:
        """Gives columns of the rows with this key other values; returns how many rows there are."""
        given = {f"of_{n}": v for n, v in key.items()} | {f"new_{n}": v for n, v in values.items()}
        return int(_change(table, tuple(key), tuple(values)).run(self._connection, given).rowcount)

    def _delete(self, table: Table, **key: Any) -> int:
        """Deletes the rows with these values; returns how many there were."""
        return int(_deletion(table, tuple(key)).run(self._connection, key).rowcount)


@cache
def _selection(
    kind: Callable[..., Any], table: Table, order: tuple[str, ...], equal: tuple[str, ...]
) -> Statement:
    columns = [table.c[field.name] for field in fields(kind)]  # type: ignore[arg-type]  # a dataclass
    query = select(*columns).where(*(table.c[name] == bindparam(name) for name in equal))
    return Statement(query.order_by(*(table.c[name] for name in order)))


@cache
def _change(table: Table, key: tuple[str, ...], columns: tuple[str, ...]) -> Statement:
    change = update(table).where(*(table.c[name] == bindparam(f"of_{name}") for name in key))
    return Statement(change.values({name: bindparam(f"new_{name}") for name in columns}))


@cache
def _deletion(table: Table, key: tuple[str, ...]) -> Statement:
    return Statement(delete(table).where(*(table.c[name] == bindparam(name) for name in key)))
