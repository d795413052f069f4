"""Participants that are revoked by another process while they claim, send models, report failures and renew.

After each revocation nothing is recorded of its participant any more, and the ledger verifies: whatever the order in
which the two came, it is the order in which they stand there. The long version revokes a hundred on each database.
"""

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from coordinator.clock import ManualClock
from coordinator.folder import StateFolder
from coordinator.operator import Operator
from coordinator.server import Coordinator
from fedpeer.audit.sources import open_source
from fedpeer.protocol.errors import Code, refusal_of
from fedpeer.v1 import market_pb2
from mechanism.ledger.entry import Entry
from tests.backends import DURABLE, scratch_url
from tests.integration.market import (
    CONFIG,
    WRITE_FAILED,
    Client,
    close,
    enrol,
    frames,
    make_folder,
    model_like,
    open_task,
    running,
    signed,
    task_config,
    verified,
)
from tests.integration.test_standing import renew

HONEST = ("zoe-1", "zoe-2", "zoe-3")
KINDS = ("claim", "upload", "failure", "renewal")

#: Revokes those that standard input names; every other time it does not notify the service.
REVOKER = """
import sys
from pathlib import Path
from coordinator.folder import StateFolder
from coordinator.operator import Operator

operator = Operator(StateFolder(Path(sys.argv[1])))
for number, line in enumerate(sys.stdin):
    operator._silent = number % 2 == 0
    operator.revoke(line.strip(), "test")
    print("done", flush=True)
"""


class Revoker:
    """Another process that revokes."""

    def __init__(self, folder: StateFolder) -> None:
        command = [sys.executable, "-c", REVOKER, str(folder.path)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
        )

    async def revoke(self, name: str) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{name}\n")
        stdin.flush()
        assert await asyncio.to_thread(stdout.readline) == "done\n"

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(60) == 0


async def recorded(call: Any) -> bool:
    """Whether a call was carried out; if not, for no other reason than the revocation."""
    try:
        await call
    except grpc.RpcError as error:
        check_revoked(error)
        return False
    return True


def check_revoked(error: grpc.RpcError) -> None:
    if error.details() == WRITE_FAILED:
        return
    found = refusal_of(error)
    assert found is not None, error
    assert found.code is Code.CERTIFICATE_REVOKED, found


async def upload(client: Client, going_on: asyncio.Event) -> market_pb2.Receipt:
    """A model whose rest is sent when the revocation is on its way."""
    content = model_like(hash(client.name) % 2**32)
    statement = await client.model_statement(content, 1)
    header = market_pb2.ModelHeader(model=signed(statement, client.key))

    async def messages() -> AsyncIterator[market_pb2.SubmitModelRequest]:
        yield market_pb2.SubmitModelRequest(header=header)
        first, *others = frames(content, size=64)
        yield first
        await going_on.wait()
        for frame in others:
            yield frame

    return await client.market.SubmitModel(messages())


async def race(client: Client, kind: str, revoker: Revoker, moments: random.Random) -> bool:
    """One act of a participant beside its revocation; whether the act was recorded."""
    lead = moments.uniform(-0.1, 0.03)
    last = [client]

    async def act() -> bool:
        if kind == "upload":
            going_on = asyncio.Event()
            asyncio.get_running_loop().call_later(max(0.0, lead), going_on.set)
            return await recorded(upload(client, going_on))
        await asyncio.sleep(max(0.0, lead))
        if kind == "claim":
            return await recorded(client.claim())
        if kind == "failure":
            return await recorded(client.fail(1))
        while True:
            try:
                last.append(await renew(last[-1]))
            except grpc.RpcError as error:
                check_revoked(error)
                return len(last) > 1

    async def revoke() -> None:
        await asyncio.sleep(max(0.0, -lead))
        await revoker.revoke(client.name)

    done, _ = await asyncio.gather(act(), revoke())
    # From here on there is nothing that it could do, whether or not the service was notified.
    assert not await recorded(renew(last[-1]))
    assert not await recorded(client.claim() if kind == "claim" else client.fail(1))
    await close(last)
    return done


async def run(path: Path, backend: str, revocations: int, seed: int) -> None:
    moments = random.Random(seed)
    victims = [f"p{number:03d}" for number in range(revocations)]
    kinds = {name: KINDS[number % len(KINDS)] for number, name in enumerate(victims)}
    claiming = [name for name in victims if kinds[name] == "claim"]
    training = [*(name for name in victims if kinds[name] in ("upload", "failure")), *HONEST]
    with scratch_url(backend, path) as database:
        folder = make_folder(path / "state", CONFIG + f"[storage]\ndatabase = {database!r}\n")
        day = {"rounds": 1, "effort_seconds": 86_400, "round_seconds": 86_400}
        open_task(folder, task_config(path, "task", schedule={**day, "capacity": len(training)}))
        open_task(folder, task_config(path, "claims", schedule={**day, "capacity": len(claiming) + 9}))
        clock = ManualClock(time.time())
        async with running(folder, clock) as coordinator:
            members = {name: await enrol(coordinator, name) for name in (*victims, *HONEST)}
            for name in claiming:
                members[name].task_id = "claims"
            for task_id, name in (("task", training[0]), ("claims", claiming[0])):
                assert members[name].task_id == task_id
                await members[name].until("EFFORT")
            await asyncio.gather(*(members[name].claim() for name in training))
            await members[HONEST[0]].until("TRAINING")
            revoker = Revoker(folder)
            outcomes = []
            for number in range(0, revocations, 4):
                some = victims[number : number + 4]
                outcomes += [await race(members[name], kinds[name], revoker, moments) for name in some]
            revoker.close()
            for number, name in enumerate(HONEST):
                await members[name].submit(model_like(number), 1)
            await until_absent(coordinator, clock)
            await members[HONEST[0]].until("CLOSED")
            await close([members[name] for name in HONEST])
        operator = Operator(folder)
        operator.cancel("claims", "the end of the test")
        operator.close()
        print(f"{sum(outcomes)} of {revocations} came before their revocation")  # noqa: T201 - for -s
        report = verified(folder)
        assert report.open_tasks == {}
        assert report.counts.payments == len(training)
        check_order(folder, victims)


async def until_absent(coordinator: Coordinator, clock: ManualClock) -> None:
    """The round does not wait for who was revoked."""
    live = coordinator.market.held("task")
    while not live.row.state.final:
        clock.advance(coordinator.config.server.absence_seconds)
        live.changed.set()
        await asyncio.sleep(0.05)


def check_order(folder: StateFolder, revoked: list[str]) -> None:
    """Nothing that a participant did stands after its revocation."""
    gone: set[str] = set()
    with ExitStack() as resources:
        for data in open_source(folder.database_url(folder.config()), resources).entries():
            entry = Entry.parse(data)
            body: Any = entry.body.get("statement", entry.body)
            name = body.get("participant_id")
            if entry.kind == "revocation":
                gone.add(name)
            elif entry.kind in ("enrolment", "claim", "model", "failure", "dispute"):
                assert name not in gone, entry
    assert gone == set(revoked)


@pytest.mark.parametrize("backend", ["sqlite", pytest.param("postgresql", marks=pytest.mark.extended)])
async def test_participants_that_are_revoked_under_traffic(tmp_path: Path, backend: str) -> None:
    await run(tmp_path, backend, revocations=8, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", DURABLE)
async def test_a_hundred_revocations_under_traffic(tmp_path: Path, backend: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    await run(tmp_path, backend, revocations=100, seed=seed)
