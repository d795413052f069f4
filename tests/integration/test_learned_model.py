"""The learner gets the model that it paid for: the ledger's, whole or not at all, and before retention takes it."""

import asyncio
import hashlib
import io
import json
import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from coordinator.blobs import BlobStore
from coordinator.cli import app
from coordinator.errors import FolderError, MarketTaskError
from coordinator.fetching import write_model
from coordinator.folder import StateFolder
from coordinator.operator import Operator
from coordinator.server import Coordinator
from coordinator.storage.rounds import Retention
from coordinator.storage.store import MarketStore
from fedpeer.audit.export import export_json_lines
from fedpeer.audit.sources import open_source
from fedpeer.audit.sql.database import Database
from fedpeer.protocol.model_file import open_model
from tests.integration.market import (
    CONFIG,
    WEIGHTS,
    close,
    delivered,
    make_folder,
    model_like,
    open_task,
    running,
    task_config,
    verified,
)
from tests.integration.test_operations import command

NAMES = ("ann", "bob", "cyd")


async def played(folder: StateFolder, path: Path) -> None:
    """A task of two rounds, which ends."""
    open_task(folder, task_config(path))
    async with running(folder) as service:
        members = await delivered(service, NAMES)
        await members[0].until("TRAINING", round_=2)
        for number, client in enumerate(members):
            await client.submit(model_like(number + 10), 2)
        await members[0].until("CLOSED")
        await close(members)


def recorded(folder: StateFolder, path: Path) -> dict[int, str]:
    """The models' digests of all rounds, as an exported ledger has them."""
    with ExitStack() as resources:
        export_json_lines(open_source(folder.database_url(folder.config()), resources), path)
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    bodies = [entry.get("entry", entry) for entry in entries]
    found = [body for body in bodies if body.get("kind") == "aggregation"]
    return {body["body"]["round"]: body["body"]["model_sha256"] for body in found}


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


async def test_the_model_is_the_ledgers_while_the_task_runs_and_when_it_has_ended(tmp_path: Path) -> None:
    folder, out = make_folder(tmp_path / "state"), tmp_path / "model.safetensors"
    open_task(folder, task_config(tmp_path))
    async with running(folder) as service:
        early = CliRunner().invoke(app, ["model", "task", "-o", str(out), "--state", str(folder.path)])
        assert isinstance(early.exception, MarketTaskError)
        assert "has trained no model: it is " in str(early.exception)
        assert "--round 0 fetches what it began with" in str(early.exception)
        assert not out.exists()
        zero = ("model", "task", "--round", "0", "-o", str(out))
        assert "after round 0" in await asyncio.to_thread(command, *zero, folder=folder)
        assert open_model(out).weights().keys() == WEIGHTS.keys()
        members = await delivered(service, NAMES)
        await members[0].until("TRAINING", round_=2)
        arguments = ("model", "task", "-o", str(out), "--force", "--json")
        first = json.loads(await asyncio.to_thread(command, *arguments, folder=folder))
        assert first["round"] == 1
        assert first["model_sha256"] == digest_of(out)
        for number, client in enumerate(members):
            await client.submit(model_like(number + 10), 2)
        await members[0].until("CLOSED")
        await close(members)
    last = json.loads(command("model", "task", "-o", str(tmp_path / "last"), "--json", folder=folder))
    assert last["bytes"] == (tmp_path / "last").stat().st_size
    [task] = json.loads(command("status", "--json", folder=folder))["tasks"]
    digests = {line["round"]: line["model_sha256"] for line in task["history"]}
    assert digests == recorded(folder, tmp_path / "ledger.jsonl")
    assert digests == {1: first["model_sha256"], 2: digest_of(tmp_path / "last")}
    assert task["model_sha256"] == digests[2]
    assert all(line["fetched"] for line in task["history"])
    text = " ".join(command("status", "task", folder=folder).split())
    assert f"SHA-256 {digests[2]} after round 2, fetched " in text
    command("model", "task", "--round", "1", "-o", str(tmp_path / "first"), folder=folder)
    assert digest_of(tmp_path / "first") == digests[1]
    verified(folder)


async def test_a_model_is_handed_over_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    await played(folder, tmp_path)
    out = tmp_path / "model.safetensors"
    out.write_text("mine")

    def refused(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["model", "task", *arguments, "--state", str(folder.path)])
        assert isinstance(done.exception, MarketTaskError | FolderError), done.output
        assert not list(tmp_path.glob(".*.part"))
        return str(done.exception)

    assert "give --force" in refused("-o", str(out))
    assert "not a regular file" in refused("-o", str(tmp_path), "--force")
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refused("-o", str(tmp_path / "pipe"), "--force")
    assert "make it first" in refused("-o", str(tmp_path / "nowhere" / "m"))
    beyond = refused("-o", str(tmp_path / "m"), "--round", "3")
    assert "has no round 3: its terms have 2; expected 0, what it began with, to 2" in beyond
    assert "for --json" in refused("-o", "-", "--json")
    operator = Operator(folder)
    file = operator.model("task").path
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"\x00\x01")
    assert "is damaged" in refused("-o", str(out), "--force")
    assert out.read_text() == "mine"
    file.unlink()
    assert "restore the file from a backup" in refused("-o", str(out), "--force")
    with pytest.raises(MarketTaskError, match="no task 'other'"):
        operator.model("other")
    operator.close()


async def test_a_model_goes_down_a_pipe(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    await played(folder, tmp_path)
    done = CliRunner().invoke(app, ["model", "task", "-o", "-", "--state", str(folder.path)])
    assert done.exit_code == 0
    [task] = json.loads(command("status", "--json", folder=folder))["tasks"]
    assert hashlib.sha256(done.stdout_bytes).hexdigest() == task["model_sha256"]
    assert task["model_sha256"] in done.stderr


class _Clock:
    """A year later."""

    def now(self) -> float:
        return time.time() + 366 * 86_400.0

    async def wait(self, *_: Any) -> None:
        await asyncio.Event().wait()


async def swept(folder: StateFolder) -> None:
    """Housekeeping has been done, a year later."""
    for path in folder.models.rglob("*.safetensors"):
        os.utime(path, (0, 0))
    service = Coordinator(folder, clock=_Clock())
    await service.start()
    while service.metrics.registry.get_sample_value("fedpeer_duty_failing", {"duty": "housekeeping"}) is None:
        await asyncio.sleep(0.01)
    while len(list(folder.models.rglob("*.safetensors"))) > 1:
        await asyncio.sleep(0.01)
    await service.stop(0)


async def test_retention_leaves_the_model_that_was_paid_for_until_it_was_fetched(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    await played(folder, tmp_path)
    operator = Operator(folder)
    digest, blobs = operator.model("task").digest, BlobStore(folder.models)
    await swept(folder)
    assert blobs.intact(digest)
    with pytest.raises(MarketTaskError, match="kept for 30 days after a task has ended"):
        operator.model("task", 1)
    command("model", "task", "-o", str(tmp_path / "model"), folder=folder)
    operator.close()
    assert operator_keeps(folder) == set()


def operator_keeps(folder: StateFolder) -> set[bytes]:
    """What retention keeps a year later."""
    database = Database(folder.database_url(folder.config()))
    try:
        with database.read() as connection:
            unfetched = folder.config().storage.keep_unfetched
            return MarketStore(connection).referenced_models(Retention(time.time() + 1e8, unfetched))
    finally:
        database.close()


async def test_retention_takes_it_where_the_configuration_says_so(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state", CONFIG + "[storage]\nkeep_unfetched = false\n")
    await played(folder, tmp_path)
    assert operator_keeps(folder) == set()


async def test_a_backup_has_the_model_that_nobody_has_fetched(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state", CONFIG + "[storage]\nretention_days = 0\n")
    await played(folder, tmp_path)
    operator = Operator(folder)
    assert operator.back_up(tmp_path / "kept.tar").models == 1
    operator.fetched(operator.model("task"))
    assert operator.back_up(tmp_path / "fetched.tar").models == 0
    operator.close()


def test_bytes_of_a_pipe_are_checked_before_the_first_is_written(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"damaged")
    out = io.BytesIO()
    with pytest.raises(FolderError, match="is damaged"):
        write_model(tmp_path / "m", bytes(32), out)
    assert out.getvalue() == b""
