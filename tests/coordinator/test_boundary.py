"""Clients learn what goes wrong inside as what it is."""

import sqlite3
from typing import Any

import pytest

from coordinator.boundary import refusal_for
from coordinator.spool import SpoolFull
from fedpeer.audit.sql import errors
from fedpeer.audit.sql.database import translated
from fedpeer.audit.sql.errors import StorageError
from fedpeer.protocol.errors import Code

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, StorageError)]

#: Those that no call meets while it is served, and those that are faults of the program.
OURS = {"StorageError", "UnknownSchema", "ConstraintViolated", "LeaseTaken", "LeaseLost", "HeadRefused"}


@pytest.mark.parametrize("kind", KINDS)
def test_refusals_of_the_storage_may_pass_unless_they_are_our_fault(kind: type[StorageError]) -> None:
    full = kind is errors.DatabaseFull
    expected = (
        Code.INTERNAL if kind.__name__ in OURS else Code.STORAGE_FULL if full else Code.STORAGE_UNAVAILABLE
    )
    assert refusal_for(kind("why")).code is expected


def test_a_disk_that_is_foreseen_to_be_full_is_full() -> None:
    assert refusal_for(SpoolFull("3 bytes are announced, 2 are free")).code is Code.STORAGE_FULL


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("53300", Code.STORAGE_UNAVAILABLE),  # too many connections
        ("53200", Code.STORAGE_UNAVAILABLE),  # out of memory
        ("58030", Code.STORAGE_UNAVAILABLE),  # an I/O error of the server's disk
        ("57P01", Code.STORAGE_UNAVAILABLE),  # the server stops
        ("08006", Code.STORAGE_UNAVAILABLE),  # the connection broke
        ("40001", Code.STORAGE_UNAVAILABLE),
        ("40P01", Code.STORAGE_UNAVAILABLE),
        ("XX001", Code.STORAGE_UNAVAILABLE),
        ("53100", Code.STORAGE_FULL),
        ("42601", Code.INTERNAL),  # a statement with a mistake in it
    ],
)
def test_faults_of_postgresql_are_distinguished(state: str, code: Code) -> None:
    assert refusal_for(_translated(_psycopg_error(state))).code is code


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("SQLITE_BUSY", Code.STORAGE_UNAVAILABLE),
        ("SQLITE_IOERR_READ", Code.STORAGE_UNAVAILABLE),
        ("SQLITE_IOERR_WRITE", Code.STORAGE_UNAVAILABLE),
        ("SQLITE_CANTOPEN", Code.STORAGE_UNAVAILABLE),
        ("SQLITE_PROTOCOL", Code.STORAGE_UNAVAILABLE),
        ("SQLITE_CORRUPT", Code.STORAGE_UNAVAILABLE),
        ("SQLITE_FULL", Code.STORAGE_FULL),
        ("SQLITE_MISUSE", Code.INTERNAL),
    ],
)
def test_faults_of_sqlite_are_distinguished(name: str, code: Code) -> None:
    error: Any = sqlite3.OperationalError(name)
    error.sqlite_errorname = name
    assert refusal_for(_translated(error)).code is code


def _psycopg_error(state: str) -> Exception:
    psycopg = pytest.importorskip("psycopg")
    found: Exception = psycopg.errors.lookup(state)("why")
    return found


def _translated(error: Exception) -> Exception:
    with pytest.raises(StorageError) as caught, translated():
        raise error
    return caught.value
