"""The one way in which rows are read and written does the same on every database."""

from collections.abc import Iterator

import pytest
from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    bindparam,
    select,
    update,
)

from fedpeer.audit.sql.database import Database
from fedpeer.audit.sql.statements import Statement, among, insert_all, insertion, listed


class Lower(TypeDecorator[str]):
    """Upper case in the program, lower case in the database."""

    impl = String(8)
    cache_ok = True

    def process_bind_param(self, value: object, dialect: object) -> str:
        return str(value).lower()

    def process_result_value(self, value: object, dialect: object) -> str:
        return str(value).upper()


THINGS = Table(
    "things",
    MetaData(),
    Column("name", Text, primary_key=True),
    Column("size", Integer),
    Column("large", Boolean),
    Column("mark", Lower, nullable=False),
)
PLAIN = Table("plain", THINGS.metadata, Column("name", Text), Column("size", Integer))
ROWS = [("a", 1, False, "X"), ("b", None, None, "Y"), ("c", 3, True, "Z")]
ALL = Statement(select(THINGS).order_by(THINGS.c.name))


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    with database.begin() as opened:
        THINGS.metadata.create_all(opened)
        insertion(THINGS).run_many(opened, [dict(zip(THINGS.c.keys(), row, strict=True)) for row in ROWS])
        yield opened
        THINGS.metadata.drop_all(opened)


def test_values_come_back_as_the_program_has_them(connection: Connection) -> None:
    assert ALL.rows(connection) == ROWS
    assert list(ALL.stream(connection, at_once=1)) == ROWS
    assert ALL.row(connection) == ROWS[0]
    assert ALL.value(connection) == "a"
    stored = Statement(select(THINGS.c.mark.cast(Text)).where(THINGS.c.name == "a"))
    assert stored.value(connection) == "x"


def test_parameters_are_converted_as_columns_are(connection: Connection) -> None:
    marked = Statement(select(THINGS.c.name).where(THINGS.c.mark == bindparam("mark")))
    assert marked.rows(connection, {"mark": "Z"}) == [("c",)]
    mark = Statement(
        update(THINGS).where(THINGS.c.name == bindparam("of_name")).values(mark=bindparam("new_mark"))
    )
    assert mark.run(connection, {"of_name": "a", "new_mark": "W"}).rowcount == 1
    assert ALL.row(connection) == ("a", 1, False, "W")


def test_a_query_without_a_row_gives_nothing(connection: Connection) -> None:
    none = Statement(select(THINGS).where(THINGS.c.name == bindparam("name"), THINGS.c.size > 0))
    for found in (none.row(connection, {"name": "d"}), none.value(connection, {"name": "d"})):
        assert found is None
    assert none.rows(connection, {"name": "a"}) == ROWS[:1], "a constant beside a parameter"


@pytest.mark.parametrize("names", [[], ["a"], ["c", "a", "none", "'", '"', "\\", "ü"], ["a"] * 5000])
def test_one_of_many_takes_one_parameter(connection: Connection, names: list[str]) -> None:
    found = Statement(select(THINGS.c.name).where(among(THINGS.c.name))).rows(connection, listed(names))
    assert sorted(found) == sorted({(name,) for name in names if name in ("a", "b", "c")})


@pytest.mark.parametrize("count", [0, 1, 3000])
def test_many_rows_are_written_as_they_are(connection: Connection, count: int) -> None:
    rows = [(f"\\N\t{i}\n'%s", None if i % 2 else i) for i in range(count)]
    insert_all(connection, PLAIN, rows)
    assert sorted(Statement(select(PLAIN)).rows(connection), key=str) == sorted(rows, key=str)
