"""A coordinator that is stopped in any state and started again goes on where it was."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.runner import TaskRunner
from coordinator.server import Coordinator
from coordinator.states import Step
from fedpeer.v1 import ledger_pb2, market_pb2
from tests.integration.market import (
    PATIENCE,
    Client,
    enrol,
    make_folder,
    model_like,
    open_task,
    running,
    signed,
    task_config,
    verified,
)

NAMES = ("ann", "bob", "cyd")


class Stopped(RuntimeError):
    """Stands for the process that dies before a step is taken."""


async def run_until(
    folder: Path, clients: dict[str, Client], stop_before: str | None, patch: pytest.MonkeyPatch
) -> bool:
    """Runs the coordinator and whatever the participants have left to do; True when the task has ended.

    With `stop_before` the service stops when the runner is about to take that step.
    """
    stopped = asyncio.Event()
    take = TaskRunner._take

    async def guarded(self: TaskRunner, step: Step) -> Any:
        if type(step).__name__ == stop_before:
            stopped.set()
            await asyncio.Event().wait()  # never: the service is stopped while the step is pending
        return await take(self, step)

    patch.setattr(TaskRunner, "_take", guarded)
    from coordinator.folder import StateFolder

    async with running(StateFolder(folder)) as coordinator:
        for name in NAMES:
            if name not in clients:
                clients[name] = await enrol(coordinator, name)
            clients[name].address = coordinator.market_address
        work = asyncio.gather(*(participate(client, i) for i, client in enumerate(clients.values())))
        halt = asyncio.create_task(stopped.wait())
        async with asyncio.timeout(60):
            await asyncio.wait({work, halt}, return_when=asyncio.FIRST_COMPLETED)
        ended = work.done() and not stopped.is_set()
        if ended:
            await work
        else:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        halt.cancel()
        for client in clients.values():
            await client.close()
    return ended


async def participate(client: Client, number: int) -> None:
    """What a participant does whenever it reconnects: whatever is not yet done, and again what is."""
    await client.until("EFFORT")
    if f"claim-{client.name}" not in (await client.task()).submissions:
        await client.claim(counts=(3 + number, 3, 3, 3))
    for round_ in (1, 2):
        await client.until("TRAINING", round_=round_)
        # Submitted again after every restart: the same receipt comes back, however often.
        receipt = await client.submit(model_like(number), round_)
        assert not receipt.late
    await client.until("CLOSED")


async def amounts(folder: Path, client: Client) -> tuple[int, int]:
    from coordinator.folder import StateFolder

    async with running(StateFolder(folder)) as coordinator:
        client.address = coordinator.market_address
        paid = 0
        for round_ in (1, 2):
            settlement = await client.market.GetSettlement(
                market_pb2.GetSettlementRequest(task_id="task", round=round_)
            )
            paid += settlement.paid_micro
        balance = await client.ledger.GetBalance(
            ledger_pb2.GetBalanceRequest(account=f"payable:{client.name}")
        )
        await client.close()
        return paid, balance.credits_posted_micro


@pytest.mark.parametrize("step", ["BeginEffort", "Select", "OpenRound", "CloseRound", "Settle", "Close"])
async def test_a_task_that_was_stopped_before_a_step_resumes_and_pays_once(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path))
    clients: dict[str, Client] = {}
    with monkeypatch.context() as patch:
        assert not await run_until(folder.path, clients, step, patch)
    with monkeypatch.context() as patch:
        assert await run_until(folder.path, clients, None, patch)
    paid = [await amounts(folder.path, client) for client in clients.values()]
    assert all(settled == posted > 0 for settled, posted in paid)
    assert verified(folder).counts.payments == 6


async def test_an_interrupted_upload_survives_a_restart(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path))
    content = model_like(0)
    async with running(folder) as coordinator:
        members = [await enrol(coordinator, name) for name in NAMES]
        ann = members[0]
        await ann.until("EFFORT")
        for client in members:
            await client.claim()
        await ann.until("TRAINING")
        await interrupt(ann, content, 100)
        for client in members:
            await client.close()
    async with running(folder) as coordinator:
        ann.address = coordinator.market_address
        request = market_pb2.GetUploadRequest(task_id="task", submission_id="model-1-ann")
        assert (await ann.market.GetUpload(request)).offset == 100
        assert not (await ann.submit(content, 1, offset=100)).late
        await ann.close()


async def interrupt(client: Client, content: bytes, held: int) -> None:
    """Sends the first `held` bytes, waits until the coordinator has them, and breaks the connection."""

    statement = await client.model_statement(content, 1)
    call = client.market.SubmitModel()
    header = market_pb2.ModelHeader(model=signed(statement, client.key))
    await call.write(market_pb2.SubmitModelRequest(header=header))
    frame = market_pb2.ModelFrame(offset=0, data=content[:held])
    await call.write(market_pb2.SubmitModelRequest(frame=frame))
    request = market_pb2.GetUploadRequest(task_id="task", submission_id=statement.submission_id)
    async with asyncio.timeout(PATIENCE):
        while (await client.market.GetUpload(request)).offset < held:
            pass  # each turn asks the coordinator
    await client.close()


async def test_other_terms_than_the_ledgers_are_refused(tmp_path: Path) -> None:
    from sqlalchemy import text

    from fedpeer.audit.sql.database import Database

    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path))
    database = Database(folder.database_url(folder.config()))
    with database.begin() as connection:
        connection.execute(text("UPDATE tasks SET terms = replace(terms, '\"1000\"', '\"9000\"')"))
    database.close()
    async with running(folder) as coordinator:
        await until(lambda: coordinator.market.held("task").broken is not None)
        assert "terms" in str(coordinator.market.held("task").broken)
        assert coordinator.market.held("task").row.state == "OPEN"


async def until(condition: Callable[[], bool]) -> None:
    """Waits for a state of this process; the event loop goes on meanwhile."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


async def test_two_services_do_not_share_a_folder(tmp_path: Path) -> None:
    from coordinator.errors import AlreadyServed

    folder = make_folder(tmp_path / "state")
    async with running(folder):
        with pytest.raises(AlreadyServed, match="already serves"):
            await Coordinator(folder).start()


async def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    from coordinator.errors import ServeError

    first = make_folder(tmp_path / "first")
    async with running(first) as coordinator:
        config = (first.path / "coordinator.toml").read_text()
        taken = config.replace('market = "127.0.0.1:0"', f'market = "{coordinator.market_address}"')
        second = make_folder(tmp_path / "second", taken)
        with pytest.raises(ServeError, match=r"server\.market"):
            await Coordinator(second).start()
