"""Scratch databases for tests: in-memory SQLite, file SQLite, PostgreSQL."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL, make_url

BACKENDS = ("memory", "sqlite", "postgresql")

#: The two that survive a process.
DURABLE = ("sqlite", "postgresql")


@contextmanager
def scratch_url(backend: str, folder: Path) -> Iterator[str]:
    """The URL of an empty database, which is gone after the block."""
    if backend == "memory":
        yield "sqlite://"
    elif backend == "sqlite":
        yield f"sqlite:///{folder / f'{uuid.uuid4().hex}.db'}"
    else:
        with _postgresql_schema() as url:
            yield url


_ENDED = """
SELECT pg_terminate_backend(pid, 1000) FROM (
    SELECT DISTINCT pid FROM pg_locks JOIN pg_class ON pg_class.oid = relation
    WHERE relnamespace = to_regnamespace(:schema) AND pid IN (
        SELECT pid FROM pg_stat_activity WHERE usename = current_user AND pid != pg_backend_pid()
    )
) AS holding
"""


@contextmanager
def _postgresql_schema() -> Iterator[str]:
    name = f"t{uuid.uuid4().hex}"
    withdrawn = f"{name}_withdrawn"
    with _created(f"SCHEMA {name}", f"SCHEMA {withdrawn} CASCADE") as server:
        url = server.update_query_dict({"options": f"-csearch_path={name}"})
        try:
            yield url.render_as_string(hide_password=False)
        finally:
            _withdraw(server, name, withdrawn)


def _withdraw(server: URL, schema: str, withdrawn: str) -> None:
    """Takes a schema from processes of a test that still run: dropping it would wait for them, and they for it.

    Under another name they find nothing more in it; what they have begun there is ended.
    """
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"ALTER SCHEMA {schema} RENAME TO {withdrawn}"))
        while connection.execute(text(_ENDED), {"schema": withdrawn}).all():
            pass
    engine.dispose()


@contextmanager
def postgresql_database() -> Iterator[str]:
    """The URL of an empty database of its own on the scratch server; for what works on databases, not on schemas."""
    name = f"d{uuid.uuid4().hex}"
    with _created(f"DATABASE {name}", f"DATABASE {name} WITH (FORCE)") as server:
        yield server.set(database=name).render_as_string(hide_password=False)


@contextmanager
def _created(what: str, dropped: str) -> Iterator[URL]:
    """The scratch server's URL, with `what` created on it for the block; skips the test where there is no server."""
    server = os.environ.get("FEDPEER_TEST_POSTGRESQL")
    if not server:
        pytest.skip("needs a PostgreSQL server: set FEDPEER_TEST_POSTGRESQL, or `source .ci/services.sh`")
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE {what}"))
    try:
        yield make_url(server)
    finally:
        with engine.connect() as connection:
            connection.execute(text(f"DROP {dropped}"))
        engine.dispose()


def emptied(url: str) -> None:
    """Drops everything in a PostgreSQL database."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    engine.dispose()
