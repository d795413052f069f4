"""A step that fails for good ends its task with refunds; what passes or can be repaired is waited for."""

import asyncio
import errno
import json
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
import structlog

import coordinator.runner
from coordinator.errors import MarketTaskError
from coordinator.folder import StateFolder
from coordinator.scoring import Scorer
from coordinator.storage.store import MarketStore
from coordinator.transaction import Transaction
from fedpeer.audit.sql.errors import ConstraintViolated, DatabaseUnreachable
from fedpeer.learning.errors import DataError, DatasetMissingError
from mechanism.errors import SettlementError
from mechanism.lifecycle import State
from tests.integration.market import (
    close,
    delivered,
    enrol,
    in_training,
    make_folder,
    model_like,
    open_task,
    running,
    task_config,
    verified,
)
from tests.integration.test_operations import balance, command

NAMES = ("ann", "bob", "cyd")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(coordinator.runner, "_RETRY_SECONDS", 0.01)
    with structlog.testing.capture_logs():
        yield


class Scoring:
    """Fails with these errors, each once, the last for ever where `for_ever`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *errors: Exception, for_ever: bool = False) -> None:
        self.left, self.for_ever, self.met = list(errors), for_ever, 0
        score = Scorer.score

        def failing(scorer: Any, *arguments: Any) -> Any:
            if self.left:
                self.met += 1
                error = self.left[0]
                if len(self.left) > 1 or not self.for_ever:
                    self.left.pop(0)
                raise error
            return score(scorer, *arguments)

        monkeypatch.setattr(Scorer, "score", failing)


async def test_a_step_that_fails_for_good_ends_the_task_with_refunds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path, rule={"stake_micro": 1000}))
    async with running(folder) as service:
        members = await delivered(service, NAMES)
        await members[0].until("TRAINING", round_=2)
        faults = Scoring(monkeypatch, IndexError("list index \x1b[2J out of range"), for_ever=True)
        for number, client in enumerate(members):
            await client.submit(model_like(number + 10), 2)
        event = await members[0].until("CANCELLED")
        said = "a step of round 2 failed 3 times on the same input, the last time with IndexError: list index"
        assert event.cancelled.reason.startswith(said)
        assert "\x1b" not in event.cancelled.reason
        assert faults.met == 3
        assert (await balance(members[0], "escrow:task")).credits_pending_micro == 0
        stake = await balance(members[0], "stake:task:ann")
        assert stake.credits_posted_micro == stake.debits_posted_micro == 1000
        owed = await balance(members[0], "payable:ann")
        assert owed.credits_posted_micro > owed.debits_posted_micro
        while service.troubles():
            await asyncio.sleep(0.01)
        text = await asyncio.to_thread(command, "status", "task", folder=folder)
        status = json.loads(await asyncio.to_thread(command, "status", "--json", folder=folder))
        await close(members)
    assert said in " ".join(text.split())
    assert status["tasks"][0]["reason"].startswith(said)
    assert verified(folder).counts.payments == 3


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EMFILE, "Too many open files"),
        FileNotFoundError(errno.ENOENT, "No such file"),
        MemoryError(),
        RuntimeError("can't start new thread"),
        DatabaseUnreachable("the database cannot be reached"),
        MarketTaskError("the data of task 'task' are not those that its terms commit to"),
        DatasetMissingError("no such data"),
        BrokenProcessPool("a worker was killed"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_passes_is_waited_for_however_often_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    faults = Scoring(monkeypatch, *[error] * 7)
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path, schedule={"rounds": 1}))
    async with running(folder) as service:
        members = await delivered(service, NAMES)
        await members[0].until("CLOSED")
        await close(members)
    assert faults.met == 7
    assert verified(folder).counts.payments == 3


async def test_a_fault_that_passes_is_alarmed_while_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = Scoring(monkeypatch, OSError(errno.ENOSPC, "No space left on device"), for_ever=True)
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path, schedule={"rounds": 1}))
    async with running(folder) as service:
        members = await delivered(service, NAMES)

        def stalled() -> float | None:
            return service.metrics.registry.get_sample_value("fedpeer_task_stalled", {"task": "task"})

        while faults.met < 5:
            await asyncio.sleep(0.01)
        assert "No space left on device" in service.troubles()["task task"]
        assert stalled() == 1
        faults.left.clear()
        await members[0].until("CLOSED")
        while stalled():
            await asyncio.sleep(0.01)
        await close(members)


@pytest.mark.parametrize("error", [SettlementError("x"), DataError("y"), ConstraintViolated("z")], ids=repr)
async def test_a_fault_that_is_gone_at_the_third_attempt_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Passing ones between them do not count."""
    full = OSError(errno.ENOSPC, "No space left on device")
    Scoring(monkeypatch, error, full, full, error, full)
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path, schedule={"rounds": 1}))
    async with running(folder) as service:
        members = await delivered(service, NAMES)
        await members[0].until("CLOSED")
        await close(members)
    assert verified(folder).counts.payments == 3


async def test_the_rule_holds_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = Scoring(monkeypatch, ValueError("a bug"), for_ever=True)
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path, schedule={"rounds": 1}))
    with monkeypatch.context() as patch:
        patch.setattr(coordinator.runner, "_RETRY_SECONDS", 60.0)
        async with running(folder) as service:
            await close(await delivered(service, NAMES))
            while faults.met < 1:
                await asyncio.sleep(0.01)
    faults.met = 0
    async with running(folder) as service:
        client = await enrol(service, "dan")
        assert "ValueError: a bug" in (await client.until("CANCELLED")).cancelled.reason
        await client.close()
    assert faults.met == 3
    verified(folder)


async def test_a_step_before_the_first_round_that_fails_for_good_ends_the_task_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(MarketStore, "open_round", failing)
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path))
    async with running(folder) as service:
        members = [await enrol(service, name) for name in NAMES]
        await members[0].until("EFFORT")
        for client in members:
            await client.claim()
        event = await members[0].until("CANCELLED")
        assert "ZeroDivisionError" in event.cancelled.reason
        await close(members)
    verified(folder)


async def test_an_end_that_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Scoring(monkeypatch, ValueError("a bug"), for_ever=True)
    cancel, refused = Transaction.cancel, [OSError(errno.ENOSPC, "full")] * 2

    def failing(*arguments: Any) -> None:
        if refused:
            raise refused.pop()
        cancel(*arguments)

    monkeypatch.setattr(Transaction, "cancel", failing)
    folder: StateFolder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path, schedule={"rounds": 1}))
    async with running(folder) as service:
        members = await in_training(service, NAMES)
        for number, client in enumerate(members):
            await client.submit(model_like(number), 1)
        await members[0].until("CANCELLED")
        assert service.market.held("task").row.state is State.CANCELLED
        await close(members)
    assert refused == []
    verified(folder)
