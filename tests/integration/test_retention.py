"""Submitted models are deleted when the terms promise it, not before, and the log says when."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from coordinator.clock import SystemClock
from coordinator.folder import StateFolder
from fedpeer.audit.sql.database import Database
from fedpeer.audit.sql.ledger_store import SqlLedgerStore
from mechanism.canonical import parse_canonical
from tests.integration.market import (
    close,
    delivered,
    make_folder,
    open_task,
    running,
    task_config,
    verified,
)

NAMES = ("ada", "ben", "cho")
DAY = 86_400


class Later(SystemClock):
    """So many seconds from now, and no second look."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def now(self) -> float:
        return time.time() + self.seconds

    async def wait(self, *_: Any) -> None:
        await asyncio.Event().wait()


async def swept(folder: StateFolder, seconds: float) -> None:
    """Housekeeping has been done, so many seconds later, on files that are as old."""
    for path in folder.models.rglob("*.safetensors"):
        os.utime(path, (0, 0))
    await kept_house(folder, seconds)


async def kept_house(folder: StateFolder, seconds: float) -> None:
    async with running(folder, Later(seconds)) as coordinator:
        await coordinator._sweep_models()


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    return make_folder(tmp_path / "state")


async def ended(folder: StateFolder, **schedule: Any) -> set[Path]:
    """A task that has come to its end; the files of the models that were sent."""
    open_task(folder, task_config(folder.path, schedule={"rounds": 1, **schedule}))
    before = set(folder.models.rglob("*.safetensors"))
    async with running(folder) as coordinator:
        members = await delivered(coordinator, NAMES)
        await members[0].until("CLOSED")
        await close(members)
        sent = await coordinator._transact.read(lambda t: t.market.sent_models("task"))
    assert len(before) == 1
    return {path for path in folder.models.rglob("*.safetensors") if bytes.fromhex(path.stem) in sent}


def deletions(folder: StateFolder) -> list[Any]:
    database = Database(folder.database_url(folder.config()))
    try:
        with database.read() as connection:
            store = SqlLedgerStore(connection)
            read = [parse_canonical(data) for data in store.entries(0, store.size())]
    finally:
        database.close()
    return [entry for entry in read if entry["kind"] == "deletion"]


async def test_models_are_kept_for_as_long_as_promised_and_then_deleted(folder: StateFolder) -> None:
    sent = await ended(folder, retention_seconds=60 * DAY)
    assert len(sent) == 3
    await swept(folder, 59 * DAY)  # beyond the 30 days of the configuration
    assert all(path.exists() for path in sent)
    assert not deletions(folder)
    await swept(folder, 61 * DAY)
    assert not any(path.exists() for path in sent)
    [entry] = deletions(folder)
    assert entry["id"] == "task/deletion"
    assert verified(folder).verified
    await swept(folder, 90 * DAY)
    assert len(deletions(folder)) == 1


async def test_a_short_promise_is_kept_before_the_configuration_would(folder: StateFolder) -> None:
    sent = await ended(folder, retention_seconds=0)
    others = set(folder.models.rglob("*.safetensors")) - sent
    await swept(folder, 2 * 3600)
    assert not any(path.exists() for path in sent)
    assert others
    assert all(path.exists() for path in others), "starts and results are the learner's"
    assert len(deletions(folder)) == 1
    assert verified(folder).verified


async def test_without_a_promise_nothing_is_logged(folder: StateFolder) -> None:
    sent = await ended(folder)
    await swept(folder, 31 * DAY)
    assert not any(path.exists() for path in sent)
    assert not deletions(folder)


async def test_files_that_are_still_there_are_not_called_deleted(folder: StateFolder) -> None:
    """Young ones are never deleted: another task may be about to refer to them."""
    sent = await ended(folder, retention_seconds=0)
    await kept_house(folder, 2 * 3600)
    assert all(path.exists() for path in sent)
    assert not deletions(folder)
