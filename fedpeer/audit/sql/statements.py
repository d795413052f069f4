"""Statements that SQLAlchemy builds once and the driver runs.

SQLAlchemy knows tables, types and dialects. What it does anew at every execution (cache keys, contexts, metadata of
results) takes ten times as long as SQLite takes to answer, and a round of a hundred participants executes thousands.
So a `Statement` is compiled once for each dialect, and its text goes straight to the driver of the connection, inside
the transaction that the connection is in. The driver's own errors come out; `fedpeer.audit.sql.database.translated`
knows them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import orjson
from sqlalchemy import Boolean, Column, Connection, Dialect, Executable, Select, Table
from sqlalchemy.sql.compiler import SQLCompiler

#: A row's values, to what is bound.
_Bind = Callable[[Mapping[str, Any]], Any]


class Statement:
    """One statement with named parameters.

    Args:
        clause: as SQLAlchemy builds it, without lists that are expanded at execution.
    """

    def __init__(self, clause: Executable) -> None:
        self._clause = clause
        self._compiled: dict[str, tuple[str, _Bind]] = {}
        columns = list(clause.selected_columns) if isinstance(clause, Select) else []
        self._names = [column.name for column in columns]
        # SQLite has no truth values: what was stored as one comes back as a number.
        self._truths = [i for i, column in enumerate(columns) if isinstance(column.type, Boolean)]

    def run(self, connection: Connection, values: Mapping[str, Any] | None = None) -> Any:
        """Executes it with `values` by parameter name; returns the driver's cursor."""
        text, bind = self._for(connection.dialect)
        return driver(connection).execute(text, bind(values or {}))

    def run_many(self, connection: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
        """Executes it once for each row, in one call of the driver."""
        text, bind = self._for(connection.dialect)
        driver(connection).cursor().executemany(text, [bind(row) for row in rows])

    def rows(self, connection: Connection, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """All rows of a query, values in the order of its columns."""
        found: list[tuple[Any, ...]] = self.run(connection, values).fetchall()
        if not self._truths:
            return found
        return [self._truthful(row) for row in found]

    def mappings(
        self, connection: Connection, values: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """All rows of a query, values by column name."""
        return [dict(zip(self._names, row, strict=True)) for row in self.rows(connection, values)]

    def row(self, connection: Connection, values: Mapping[str, Any] | None = None) -> tuple[Any, ...] | None:
        """The only row of a query; None where there is none."""
        found = self.rows(connection, values)
        return found[0] if found else None

    def value(self, connection: Connection, values: Mapping[str, Any] | None = None) -> Any:
        """The first value of a query's only row; None where there is none."""
        found = self.row(connection, values)
        return None if found is None else found[0]

    def _truthful(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        values = list(row)
        for i in self._truths:
            values[i] = bool(values[i])
        return tuple(values)

    def _for(self, dialect: Dialect) -> tuple[str, _Bind]:
        found = self._compiled.get(dialect.name)
        if found is None:
            found = self._compiled[dialect.name] = _compiled(self._clause, dialect)
        return found


class Among:
    """The rows of a table whose `key`, a text, is one of many: all of those in one parameter."""

    def __init__(self, table: Table, key: Column[Any]) -> None:
        columns = ", ".join(column.name for column in table.c)
        query = f"SELECT {columns} FROM {table.name} WHERE {key.name}"
        self._sqlite = f"{query} IN (SELECT value FROM json_each(?))"
        self._postgresql = f"{query} = ANY(%s)"

    def rows(self, connection: Connection, keys: Sequence[str]) -> list[tuple[Any, ...]]:
        """The rows in no particular order, values in the order of the table's columns."""
        if connection.dialect.name == "sqlite":
            given = driver(connection).execute(self._sqlite, (orjson.dumps(list(keys)).decode(),))
        else:
            given = driver(connection).execute(self._postgresql, (list(keys),))
        found: list[tuple[Any, ...]] = given.fetchall()
        return found


def driver(connection: Connection) -> Any:
    """The driver's own connection (sqlite3 or psycopg) below `connection`."""
    return connection.connection.dbapi_connection


def _compiled(clause: Executable, dialect: Dialect) -> tuple[str, _Bind]:
    """The clause's text in a dialect, and how its parameters are passed."""
    compiled = cast(SQLCompiler, clause.compile(dialect=dialect))  # type: ignore[attr-defined]
    constants = {name: value for name, value in compiled.params.items() if value is not None}
    order: Sequence[str] | None = compiled.positiontup
    if order is None:
        return str(compiled), lambda values: {**constants, **values}
    names = tuple(order)
    if not constants:
        return str(compiled), lambda values: [values[name] for name in names]
    return str(compiled), lambda values: [values[n] if n in values else constants[n] for n in names]
