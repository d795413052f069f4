"""Rows of the market's tables as values: what the modules by noun share.

A value is a dataclass whose fields are columns of its table. Each kind of statement is built once for its form; see
`fedpeer.audit.sql.statements`.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import Connection, Table, bindparam, select, update

from fedpeer.audit.sql.statements import Statement, insertion

#: A dataclass whose fields are columns.
Row = TypeVar("Row")


class Rows:
    """Rows through one connection, inside the caller's transaction; nothing is kept between calls."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

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
