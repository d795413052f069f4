"""The one way in which rows are read and written: clauses of SQLAlchemy Core, built once, run by the driver.

    _TASK = Statement(select(tasks).where(tasks.c.id == bindparam("id")))
    found = _TASK.row(connection, {"id": "digits"})

SQLAlchemy knows tables, types and dialects. What it does again at every execution (cache keys, contexts, metadata of
results) takes longer than SQLite takes to answer, and a round of a hundred participants executes thousands.
So a `Statement` is compiled once for each dialect, and its text goes straight to the driver of the connection, inside
the transaction that the connection is in. The driver's own errors come out; `fedpeer.audit.sql.database.translated`
knows them. No value ever stands in a statement's text.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, cast

import orjson
from sqlalchemy import (
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Dialect,
    Executable,
    Select,
    Table,
    Text,
    TypeDecorator,
    bindparam,
    insert,
    select,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

#: A value of a row or of a parameter to another: as the driver has it, or as the program has it.
_Convert = Callable[[Any], Any]


class Statement:
    """One statement with named parameters.

    Truth values and the columns whose type is a `TypeDecorator` are converted on the way in and out; whatever else
    there is passes as the driver has it.

    Args:
        clause: as SQLAlchemy builds it, without lists that are expanded at execution: see `among`.
    """

    def __init__(self, clause: Executable) -> None:
        self._clause = clause
        self._compiled: dict[str, _Compiled] = {}

    def run(self, connection: Connection, values: Mapping[str, Any] | None = None) -> Any:
        """Executes it with `values` by parameter name; returns the driver's cursor."""
        compiled = self._for(connection.dialect)
        return driver(connection).execute(compiled.text, compiled.bound(values or {}))

    def run_many(self, connection: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
        """Executes it once for each row, in one call of the driver."""
        compiled = self._for(connection.dialect)
        driver(connection).cursor().executemany(compiled.text, list(map(compiled.bound, rows)))

    def rows(self, connection: Connection, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """All rows of a query, values in the order of its columns."""
        found: list[tuple[Any, ...]] = self.run(connection, values).fetchall()
        results = self._for(connection.dialect).results
        return [_converted(row, results) for row in found] if results else found

    def row(self, connection: Connection, values: Mapping[str, Any] | None = None) -> tuple[Any, ...] | None:
        """The only row of a query; None where there is none."""
        found = self.rows(connection, values)
        return found[0] if found else None

    def value(self, connection: Connection, values: Mapping[str, Any] | None = None) -> Any:
        """The first value of a query's only row; None where there is none."""
        found = self.row(connection, values)
        return None if found is None else found[0]

    def stream(
        self, connection: Connection, values: Mapping[str, Any] | None = None, at_once: int = 64
    ) -> Iterator[tuple[Any, ...]]:
        """The rows of a query one after another, `at_once` in memory."""
        found = connection.execute(self._clause, values, execution_options={"yield_per": at_once})
        return map(tuple, chain.from_iterable(found.partitions(at_once)))

    def _for(self, dialect: Dialect) -> "_Compiled":
        found = self._compiled.get(dialect.name)
        if found is None:
            found = self._compiled[dialect.name] = _Compiled(self._clause, dialect)
        return found


def among(column: Column[Any]) -> ColumnElement[bool]:
    """That a text is one of those in the parameter "among", however many: `listed` makes its value."""
    each = _Each(bindparam("among", type_=Text)).table_valued("value")
    return column.in_(select(each.c.value))


def listed(keys: Iterable[str]) -> dict[str, str]:
    """The parameter of `among`."""
    return {"among": orjson.dumps(list(keys)).decode()}


class _Each(FunctionElement[str]):
    """The members of a JSON array of texts, as rows."""

    inherit_cache = True


@compiles(_Each, "sqlite")
def _each_sqlite(element: _Each, compiler: SQLCompiler, **options: Any) -> str:
    return f"json_each({compiler.process(element.clauses, **options)})"


@compiles(_Each, "postgresql")
def _each_postgresql(element: _Each, compiler: SQLCompiler, **options: Any) -> str:
    return f"jsonb_array_elements_text(CAST({compiler.process(element.clauses, **options)} AS jsonb))"


def insert_all(connection: Connection, table: Table, rows: Sequence[Sequence[Any]]) -> None:
    """Many rows by the driver's fastest way, into a table whose values the driver takes as they are.

    Args:
        rows: values of every column, in the table's order.
    """
    names = ", ".join(table.c.keys())
    if connection.dialect.name == "sqlite" or len(rows) == 1:
        marks = ", ".join(["?" if connection.dialect.name == "sqlite" else "%s"] * len(table.c))
        insertion = f"INSERT INTO {table.name} ({names}) VALUES ({marks})"
        driver(connection).cursor().executemany(insertion, rows)
        return
    with (
        driver(connection).cursor() as cursor,
        cursor.copy(f"COPY {table.name} ({names}) FROM STDIN") as copy,
    ):
        for row in rows:
            copy.write_row(row)


@cache
def insertion(table: Table) -> Statement:
    """One new row, a parameter for each of the columns by its name."""
    return Statement(insert(table))


def driver(connection: Connection) -> Any:
    """The driver's own connection (sqlite3 or psycopg) below `connection`."""
    return connection.connection.dbapi_connection


class _Compiled:
    """A clause in one dialect: its text, how parameters are passed, and what is done to each of its columns."""

    def __init__(self, clause: Executable, dialect: Dialect) -> None:
        compiled = cast(SQLCompiler, clause.compile(dialect=dialect))  # type: ignore[attr-defined]
        self.text = str(compiled)
        self._order: Sequence[str] | None = compiled.positiontup
        self._constants = {name: value for name, value in compiled.params.items() if value is not None}
        self._converted = {
            name: convert
            for name, parameter in compiled.binds.items()
            if (convert := _on_the_way_in(parameter.type, dialect)) is not None
        }
        columns = list(clause.selected_columns) if isinstance(clause, Select) else []
        #: Places of the values that are converted, and how.
        self.results = [
            (place, convert)
            for place, column in enumerate(columns)
            if (convert := _on_the_way_out(column.type, dialect)) is not None
        ]

    def bound(self, values: Mapping[str, Any]) -> Any:
        """The parameters as the driver takes them: in order, or by name."""
        if self._constants:
            values = {**self._constants, **values}
        if self._converted:
            changed = {n: convert(values[n]) for n, convert in self._converted.items() if n in values}
            values = {**values, **changed}
        return values if self._order is None else [values[name] for name in self._order]


def _on_the_way_in(kind: TypeEngine[Any], dialect: Dialect) -> _Convert | None:
    return kind.bind_processor(dialect) if isinstance(kind, TypeDecorator) else None


def _on_the_way_out(kind: TypeEngine[Any], dialect: Dialect) -> _Convert | None:
    own = isinstance(kind, TypeDecorator | Boolean)
    return kind.dialect_impl(dialect).result_processor(dialect, None) if own else None


def _converted(row: tuple[Any, ...], results: Sequence[tuple[int, _Convert]]) -> tuple[Any, ...]:
    values = list(row)
    for place, convert in results:
        values[place] = convert(values[place])
    return tuple(values)
