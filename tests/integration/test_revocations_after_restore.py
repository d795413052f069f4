"""A restored coordinator has forgotten what was revoked since its backup; a later copy of the log tells it again."""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest

from coordinator.backup import read_backup
from coordinator.errors import FolderError
from coordinator.folder import StateFolder
from coordinator.operator import Notice, Operator
from coordinator.revocations import CarriedOver
from coordinator.server import Coordinator
from fedpeer.__main__ import main
from fedpeer.audit.export import export_json_lines, export_tiles
from fedpeer.audit.sources import open_source
from fedpeer.protocol.certificates import PrivateKey, new_key, signing_request
from fedpeer.protocol.errors import Code
from fedpeer.v1 import enrolment_pb2, enrolment_pb2_grpc
from tests.backends import DURABLE, postgresql_database
from tests.integration.market import (
    CONFIG,
    Client,
    enrol,
    invite,
    make_folder,
    open_task,
    refused,
    revoke,
    running,
    task_config,
    verified,
)


def carry(folder: StateFolder, copy: Path) -> tuple[CarriedOver, Notice | None]:
    operator = Operator(folder)
    try:
        return operator.carry_over_revocations(str(copy)), operator.notice
    finally:
        operator.close()


async def redeem(coordinator: Coordinator, name: str, token: str, key: PrivateKey) -> None:
    authority = (coordinator.folder.path / "authority.pem").read_bytes()
    async with grpc.aio.secure_channel(
        coordinator.public_address, grpc.ssl_channel_credentials(authority)
    ) as channel:
        request = signing_request(name, key)
        await enrolment_pb2_grpc.EnrolmentStub(channel).Enroll(
            enrolment_pb2.EnrollRequest(participant_id=name, token=token, certificate_signing_request=request)
        )


@contextmanager
def databases(backend: str) -> Iterator[tuple[str, str | None]]:
    """The configuration of a folder and where a backup of it is restored to."""
    if backend == "sqlite":
        yield CONFIG, None
        return
    with postgresql_database() as first, postgresql_database() as second:
        yield f"{CONFIG}[storage]\ndatabase = {first!r}\n", second


@pytest.mark.parametrize("backend", DURABLE)
async def test_who_was_revoked_since_the_backup_stays_out_once_the_log_is_read(
    tmp_path: Path, backend: str
) -> None:
    with databases(backend) as (config, second):
        folder = make_folder(tmp_path / "state", config)
        open_task(folder, task_config(tmp_path))
        dans_key = new_key()
        async with running(folder) as coordinator:
            people = {name: await enrol(coordinator, name) for name in ("ann", "bob", "cyd")}
            dans_token = await asyncio.to_thread(invite, folder, "dan")
            operator = Operator(folder)
            await asyncio.to_thread(operator.back_up, tmp_path / "backup.tar")
            operator.close()
            before = exported(folder, tmp_path / "before")
            await redeem(coordinator, "dan", dans_token, dans_key)
            for name in ("bob", "cyd", "dan"):
                await asyncio.to_thread(revoke, folder, name)
            await (await enrol(coordinator, "cyd")).close()
            await asyncio.to_thread(invite, folder, "eve")  # signs a head over all of it
            for client in people.values():
                await client.close()
        after = exported(folder, tmp_path / "after")
        read_backup(tmp_path / "backup.tar", tmp_path / "restored", database=second)
        restored = StateFolder(tmp_path / "restored")
        async with running(restored) as coordinator:
            for client in people.values():
                client.address = coordinator.market_address
            await people["bob"].task()  # forgotten
            assert (await asyncio.to_thread(carry, restored, before))[0].revoked == ()
            carried, notice = await asyncio.to_thread(carry, restored, after)
            assert carried == CarriedOver(("bob", "cyd", "dan"), ("cyd",), shared=8, beyond=5)
            assert notice is Notice.CONFIRMED
            await out(people["bob"])
            await out(people["cyd"])
            await people["ann"].task()
            with pytest.raises(grpc.RpcError, match="no longer holds"):
                await redeem(coordinator, "dan", dans_token, dans_key)
            with pytest.raises(grpc.RpcError, match="was revoked; a new one of 'dan' is expected"):
                await enrol(coordinator, "dan", dans_key)
            for name in ("cyd", "dan"):
                await (await enrol(coordinator, name)).close()
            # The second time the log changes nothing: nobody who was let in since is put out.
            assert (await asyncio.to_thread(carry, restored, after))[0].revoked == ()
            for client in people.values():
                await client.close()
        verified(restored)
        verified(folder)


async def out(client: Client) -> None:
    await refused(client.task(), Code.CERTIFICATE_REVOKED)


def exported(folder: StateFolder, target: Path) -> Path:
    with ExitStack() as resources:
        source = open_source(folder.database_url(folder.config()), resources)
        if target.name == "before":
            export_tiles(source, target)
        else:
            export_json_lines(source, target)
    return target


def made(path: Path) -> StateFolder:
    """A folder that nobody serves, with a task of its name."""
    folder = make_folder(path)
    open_task(folder, task_config(path.parent, path.name))
    return folder


def test_only_a_copy_of_this_log_is_believed(tmp_path: Path) -> None:
    folder, other = made(tmp_path / "one"), made(tmp_path / "two")
    copy = exported(folder, tmp_path / "copy")
    foreign = exported(other, tmp_path / "foreign")
    altered = tmp_path / "altered"
    altered.write_bytes(copy.read_bytes().replace(b"OPEN", b"OPEM", 1))
    cut = tmp_path / "cut"
    cut.write_bytes(copy.read_bytes()[:-40])
    size = folder_size(folder)
    for source, words in (
        (foreign, "does not verify as a copy of this log"),
        (altered, "does not verify as a copy of this log"),
        (cut, "the file is truncated or damaged"),
        (tmp_path / "nowhere", "there is no ledger at"),
    ):
        with pytest.raises(ValueError, match=words):
            carry(folder, source)
    assert folder_size(folder) == size
    assert carry(folder, copy)[0] == CarriedOver((), (), shared=size, beyond=0)


def folder_size(folder: StateFolder) -> int:
    operator = Operator(folder)
    try:
        return operator.ledger_size()
    finally:
        operator.close()


def test_restore_warns_or_carries_over_in_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made(tmp_path / "one")
    copy = exported(folder, tmp_path / "copy")
    foreign = exported(made(tmp_path / "two"), tmp_path / "foreign")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedpeer", "coordinator", *arguments])
        try:
            code = main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    backup = str(tmp_path / "backup.tar")
    assert run("backup", backup, "--state", str(folder.path))[0] == 0
    assert run("check-backup", backup)[0] == 0
    code, _, stderr = run("restore", backup, str(tmp_path / "plain"))
    assert code == 0
    assert "REVOCATIONS made since then are forgotten" in stderr
    assert "will see a fork" in stderr
    command = ("restore", backup, str(tmp_path / "restored"), "--revocations-from")
    code, _, stderr = run(*command, str(foreign))
    assert (code, "does not verify as a copy of this log" in stderr) == (2, True)
    assert not (tmp_path / "restored").exists()
    code, out, stderr = run(*command, str(copy), "--json")
    assert code == 0
    assert json.loads(out)["carried_over"]["revoked"] == []
    assert "REVOCATIONS" not in stderr
    code, out, stderr = run("carry-revocations", str(copy), "--state", str(tmp_path / "plain"), "--json")
    assert (code, json.loads(out)["service"]) == (0, "not served")


def test_a_restored_log_of_another_beginning_is_not_mixed(tmp_path: Path) -> None:
    # Two logs under one key that share nothing but that: a folder that was copied before its first task.
    empty = make_folder(tmp_path / "empty")
    operator = Operator(empty)
    operator.back_up(tmp_path / "empty.tar")
    operator.close()
    read_backup(tmp_path / "empty.tar", tmp_path / "left")
    read_backup(tmp_path / "empty.tar", tmp_path / "right")
    for name in ("left", "right"):
        open_task(StateFolder(tmp_path / name), task_config(tmp_path, name))
    copy = exported(StateFolder(tmp_path / "left"), tmp_path / "copy")
    with pytest.raises(FolderError, match="is the copy of another log"):
        carry(StateFolder(tmp_path / "right"), copy)


def test_a_copy_counts_though_the_log_has_changed_its_key_since(tmp_path: Path) -> None:
    folder = made(tmp_path / "one")
    operator = Operator(folder)
    operator.back_up(tmp_path / "backup.tar")
    operator.change_log_key()
    operator.close()
    copy = exported(folder, tmp_path / "copy")
    read_backup(tmp_path / "backup.tar", tmp_path / "restored")
    restored = StateFolder(tmp_path / "restored")
    assert carry(restored, copy)[0].beyond == 1
    operator = Operator(restored)
    operator.change_log_key()  # another one than the copy's
    operator.close()
    assert carry(restored, copy)[0].beyond == 1
    verified(restored)
