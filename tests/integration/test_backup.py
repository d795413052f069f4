"""A backup that is taken while the service runs becomes a coordinator that goes on with the task."""

import asyncio
import shutil
from pathlib import Path

import pytest

from coordinator.backup import read_backup
from coordinator.errors import FolderError
from coordinator.folder import StateFolder
from coordinator.office import Office
from tests.backends import emptied, postgresql_database
from tests.integration.market import (
    CONFIG,
    Client,
    close,
    in_training,
    make_folder,
    model_like,
    open_task,
    running,
    task_config,
    verified,
)


def back_up(folder: StateFolder, target: Path) -> int:
    office = Office(folder)
    try:
        return office.back_up(target)
    finally:
        office.close()


async def test_a_task_goes_on_from_a_backup_of_its_middle(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    target = tmp_path / "backup.tar"
    members = await backed_up_in_training(folder, tmp_path, target)
    assert target.stat().st_mode & 0o077 == 0
    with pytest.raises(FolderError, match="exists already"):
        back_up(folder, target)
    read_backup(target, tmp_path / "restored")
    await go_on(StateFolder(tmp_path / "restored"), members)


async def test_a_task_goes_on_from_a_backup_of_postgresql(tmp_path: Path) -> None:
    if shutil.which("pg_dump") is None:
        pytest.skip("needs pg_dump of PostgreSQL's client programs")
    with postgresql_database() as url:
        folder = make_folder(tmp_path / "state", f"{CONFIG}[storage]\ndatabase = {url!r}\n")
        target = tmp_path / "backup.tar"
        members = await backed_up_in_training(folder, tmp_path, target)
        with pytest.raises(FolderError, match="tables; restore into an empty one"):
            read_backup(target, tmp_path / "restored")
        assert not (tmp_path / "restored" / "coordinator.toml").exists()
        emptied(url)
        read_backup(target, tmp_path / "restored")
        await go_on(StateFolder(tmp_path / "restored"), members)


async def backed_up_in_training(folder: StateFolder, tmp_path: Path, target: Path) -> list[Client]:
    """A task of two rounds whose first model is in when the backup is taken; its participants."""
    open_task(folder, task_config(tmp_path))
    async with running(folder) as coordinator:
        members = await in_training(coordinator, ("ann", "bob", "cyd"))
        await members[0].submit(model_like(0), 1)
        assert await asyncio.to_thread(back_up, folder, target) > 0
        await close(members)
    return members


async def go_on(restored: StateFolder, members: list[Client]) -> None:
    """Brings the task to its end from a restored folder, and checks the ledger."""
    async with running(restored) as coordinator:
        for number, client in enumerate(members):
            client.address = coordinator.market_address
            await client.submit(model_like(number), 1)
        await members[0].until("TRAINING", round_=2)
        for number, client in enumerate(members):
            await client.submit(model_like(number), 2)
        await members[0].until("CLOSED")
        for client in members:
            await client.close()
    assert verified(restored).counts.payments == 6


def test_what_is_no_backup_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    junk = tmp_path / "junk.tar"
    junk.write_bytes(b"not a tar file" * 100)
    with pytest.raises(FolderError, match="no backup"):
        read_backup(junk, tmp_path / "restored")
    with pytest.raises(FolderError, match="No such file"):
        read_backup(tmp_path / "missing.tar", tmp_path / "restored")
    assert not (tmp_path / "restored").exists()
    folder = make_folder(tmp_path / "state")
    with pytest.raises(FolderError, match="already"):
        read_backup(junk, folder.path)
