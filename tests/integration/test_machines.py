"""Fronts of one market on several machines that have its state folder mounted: process groups of their own here."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from typing import Any

import numpy as np
import pytest

from coordinator.command_output import UNCONFIRMED
from coordinator.folder import StateFolder
from coordinator.opening import prepare_task
from coordinator.operator import Notice, Operator
from coordinator.storage.lease import Lease
from fedpeer.__main__ import main
from fedpeer.audit.sql.database import parse_url
from fedpeer.protocol.model_file import encode_model
from fedpeer.v1 import market_pb2
from tests.backends import scratch_url
from tests.integration.market import (
    CONFIG,
    PATIENCE,
    at,
    close,
    enrol,
    frames,
    in_training,
    make_folder,
    open_task,
    signed,
    stream,
    task_config,
    verified,
)
from tests.small_disk import Ballast, small_disk

NAMES = ("ann", "bob", "cyd")


@dataclass
class Machine:
    """`serve --fronts` and all that it has started."""

    folder: StateFolder
    process: Process
    market_address: str
    public_address: str

    async def fail(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()


async def served(folder: Path, log: Path, *options: str) -> Process:
    with log.open("ab") as file:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *("-P", "-m", "fedpeer", "coordinator", "serve", "--json", "--state", str(folder), *options),
            stdout=PIPE,
            stderr=file,
            start_new_session=True,
        )


@asynccontextmanager
async def machine(folder: StateFolder, log: Path, fronts: int = 1) -> AsyncIterator[Machine]:
    process = await served(folder.path, log, "--fronts", str(fronts))
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), PATIENCE)
        assert line, log.read_text()
        addresses = json.loads(line)["addresses"]
        yield Machine(folder, process, addresses["market"], addresses["public"])
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


@pytest.mark.long
async def test_a_market_goes_on_when_the_machine_that_leads_fails(tmp_path: Path) -> None:
    large = {"weight": np.ones((1 << 20,), np.float32)}
    (tmp_path / "initial.safetensors").write_bytes(encode_model(large))
    with scratch_url("postgresql", tmp_path) as database:
        folder = make_folder(tmp_path / "state", CONFIG + f"[storage]\ndatabase = {database!r}\n")
        one = {"rounds": 1}
        open_task(folder, task_config(tmp_path, contract={"max_norm": "1000000"}, schedule=one))
        async with (
            machine(folder, tmp_path / "first", 2) as first,
            machine(folder, tmp_path / "second") as second,
        ):
            members = await in_training(first, NAMES)
            content = [
                encode_model({"weight": np.arange(1 << 20, dtype=np.float32) / (n + 1e4)}) for n in range(3)
            ]
            statement = await members[0].model_statement(content[0], 1)
            header = market_pb2.SubmitModelRequest(
                header=market_pb2.ModelHeader(model=signed(statement, members[0].key))
            )
            pieces = frames(content[0])
            call = members[0].market.SubmitModel(stream([header, *pieces[: len(pieces) // 2 + 1]]))
            ann = at(members[0], second)
            held = market_pb2.GetUploadRequest(task_id="task", submission_id=statement.submission_id)
            async with asyncio.timeout(PATIENCE):
                while not (await ann.market.GetUpload(held)).offset:
                    await asyncio.sleep(0.02)
            await first.fail()
            call.cancel()
            offset = (await ann.market.GetUpload(held)).offset
            assert 0 < offset < len(content[0])
            assert not (await ann.submit(content[0], 1, offset=offset)).late
            others = [at(member, second) for member in members[1:]]
            for number, member in enumerate(others, 1):
                assert not (await member.submit(content[number], 1)).late
            await ann.until("CLOSED")
            # A command on a machine that does not lead: nobody answers at its socket, and the task runs all the same.
            folder.control_socket.unlink()
            with closing(Operator(folder)) as operator:
                operator.open(prepare_task(task_config(tmp_path, "later", schedule=one), 1_000.0))
                assert operator.notice is Notice.UNCONFIRMED
            ann.task_id = "later"
            await ann.until("EFFORT")
            async with machine(folder, tmp_path / "again") as again:
                dan = await enrol(again, "dan")
                assert (await dan.task()).task_id == "task"
                await close([dan])
            await close([*members, ann, *others])
        assert verified(folder).counts.payments == 3


@pytest.mark.extended
async def test_who_may_serve_beside_a_machine(tmp_path: Path) -> None:
    """Not a copy of its folder, whose uploads would lie apart, and not a process without fronts, which hears nobody."""
    with scratch_url("postgresql", tmp_path) as database:
        folder = make_folder(tmp_path / "state", CONFIG + f"[storage]\ndatabase = {database!r}\n")
        async with machine(folder, tmp_path / "log") as first:
            copied = tmp_path / "copy"  # with the mark of those that serve
            shutil.copytree(folder.path, copied, ignore=shutil.ignore_patterns("*.sock"))
            refused = [
                await served(copied, tmp_path / "copied", "--fronts", "1"),
                await served(folder.path, tmp_path / "alone"),
            ]
            assert [await asyncio.wait_for(process.wait(), PATIENCE) for process in refused] == [3, 3]
            assert "alone, from another folder" in (tmp_path / "copied").read_text()
            assert "already serves from" in (tmp_path / "alone").read_text()
            async with machine(folder, tmp_path / "beside") as beside:
                assert json.loads(folder.addresses.read_text())["market"] == beside.market_address
                beside.process.terminate()
                assert await asyncio.wait_for(beside.process.wait(), PATIENCE) == 0
            assert folder.addresses.is_file()
            first.process.terminate()
            assert await asyncio.wait_for(first.process.wait(), PATIENCE) == 0
        assert not folder.addresses.exists()


async def test_a_machine_starts_on_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path) as disk, scratch_url("postgresql", tmp_path) as database:
        folder = make_folder(disk / "state", CONFIG + f"[storage]\ndatabase = {database!r}\n")
        async with machine(folder, tmp_path / "first"):
            Ballast(disk).fill()
            async with machine(folder, tmp_path / "second"):
                assert "commands do not hear of the addresses" in (tmp_path / "second").read_text()


def test_the_first_machine_on_a_full_disk_ends_in_a_sentence_and_leaves_no_mark(tmp_path: Path) -> None:
    words = ["coordinator", "serve", "--fronts", "2", "--state"]
    with small_disk(tmp_path) as disk, scratch_url("postgresql", tmp_path) as database:
        folder = make_folder(disk / "state", CONFIG + f"[storage]\ndatabase = {database!r}\n")
        ballast = Ballast(disk)
        ballast.fill()
        command = [sys.executable, "-m", "fedpeer", *words, str(folder.path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
        assert done.returncode == 2, done.stderr
        last = done.stderr.splitlines()[-1]
        assert last.startswith("fedpeer: ")
        assert "serve.mark cannot be written: No space left on device; make room" in last
        assert "Traceback" not in done.stderr
        assert not (folder.path / "serve.mark").exists(), (
            "a machine of this instant may not serve by half of one"
        )
        ballast.empty()
        with folder.shared_lock() as mark:
            assert mark


def test_a_command_names_the_machine_that_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*words: str) -> tuple[Any, dict[str, Any], str]:
        command = ["fedpeer", "coordinator", *words, "--state", str(tmp_path / "state"), "--json"]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as ended:
            main()
        shown, code = capsys.readouterr(), ended.value.code
        return code, json.loads(shown.out), " ".join(shown.err.split())

    here = gethostname()
    with scratch_url("postgresql", tmp_path) as database:
        make_folder(tmp_path / "state", CONFIG + f"[storage]\ndatabase = {database!r}\n")
        lease = Lease(parse_url(database))
        with monkeypatch.context() as there:
            there.setattr("coordinator.storage.lease.gethostname", lambda: "market-1")
            lease.take()
        try:
            code, record, note = said("status")
            assert (code, record["machine"], record["answers"]) == (0, "market-1", False)
            assert "runs on another machine, market-1, and answers there" in note
            code, _, note = said("invite", "ann")
            assert code == UNCONFIRMED
            assert "NOT CONFIRMED" in note
            assert "runs on another machine, market-1" in note
        finally:
            lease.release()
        assert said("status")[1]["machine"] == ""
        lease.take()  # and nobody answers
        try:
            _, record, note = said("status")
            assert record["machine"] == here
            assert "has not answered" in note
        finally:
            lease.release()
