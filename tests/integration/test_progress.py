"""Progress of training: kept as it was last said, of those who train now, and in nothing that lasts."""

import asyncio
import threading
from pathlib import Path
from typing import Any

from coordinator.control_socket import progress, round_progress
from fedpeer.protocol.errors import Code
from fedpeer.testing import LocalMarket
from fedpeer.v1 import market_pb2
from participant import AsyncParticipant, Task, TrainingRound, Weights
from tests.fedpeer.console.visiting import eventually
from tests.integration.market import Client, enrol, make_folder, open_task, refused, running, task_config
from tests.integration.serving import WEIGHTS, served, stepped
from tests.integration.test_refusals import ledger_size


async def say(client: Client, done: int, round_: int = 1, task_id: str = "task") -> Any:
    return await client.market.ReportProgress(
        market_pb2.ReportProgressRequest(task_id=task_id, round=round_, done_millionths=done)
    )


async def test_the_last_word_of_who_trains_is_kept_until_the_round_is_over(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path, schedule={"capacity": 3}))
    async with running(folder) as coordinator:
        ann, bob, cyd, eve = [await enrol(coordinator, name) for name in ("ann", "bob", "cyd", "eve")]
        await ann.until("EFFORT")
        await refused(say(ann, 0), Code.WRONG_STATE)
        for client in (ann, bob, cyd):
            await client.claim()
        await ann.until("TRAINING")
        size = await ledger_size(ann)
        await say(ann, 200_000)
        await say(ann, 600_000)
        await say(bob, 0)
        assert await asyncio.to_thread(said, folder.control_socket) == {"ann": 600_000, "bob": 0}
        await refused(say(eve, 1), Code.NOT_SELECTED)
        await refused(say(ann, 1, round_=2), Code.WRONG_ROUND)
        await refused(say(ann, 1_000_001), Code.FIELD_INVALID)
        await refused(say(ann, 1, task_id="other"), Code.TASK_UNKNOWN)
        assert await asyncio.to_thread(said, folder.control_socket) == {"ann": 600_000, "bob": 0}
        assert await ledger_size(ann) == size
        for client in (ann, bob, cyd):
            await client.fail(1)
        await ann.until("CANCELLED")
        assert await asyncio.to_thread(said, folder.control_socket) == {}
        for client in (ann, bob, cyd, eve):
            await client.close()


class Telling(Task):
    """Says how far it is, and goes on when it is let."""

    go = threading.Event()

    def start_weights(self) -> dict[str, Any]:
        return dict(WEIGHTS)

    def counts(self) -> list[int]:
        return [25, 25, 25, 25]

    def train(self, weights: Weights, round: TrainingRound) -> dict[str, Any]:  # noqa: A002 - as Task.train
        round.progress(1.0, loss=0.5)
        assert self.go.wait(120)
        return dict(stepped(weights))


def test_a_task_object_tells_what_its_training_tells() -> None:
    Telling.go.clear()
    try:
        with LocalMarket(Telling, 3, rounds=1) as market:
            market.start()
            market.until("TRAINING")
            path = market.coordinator.folder.control_socket
            eventually(lambda: set(said(path).values()) == {1_000_000} and len(said(path)) == 3)
            Telling.go.set()
            market.finish()
            assert said(path) == {}
    finally:
        Telling.go.set()


def test_a_loop_of_ones_own_tells_by_a_call(tmp_path: Path) -> None:
    with served(tmp_path / "coordinator") as coordinator:
        coordinator.open(schedule={"rounds": 1})
        path = coordinator.folder.control_socket
        everyone = [coordinator.participant(name, tmp_path) for name in ("ada", "ben", "cho")]
        joined = [one.join("task") for one in everyone]
        for one in joined:
            one.claim(0.5, [25, 25, 25, 25])
        first, *rest = (next(iter(one.rounds())) for one in joined)
        first.progress(0.25)
        eventually(lambda: said(path) == {"ada": 250_000})
        first.progress(0.5)  # within two seconds
        first.progress(1)
        eventually(lambda: said(path) == {"ada": 1_000_000})
        for round_ in (first, *rest):
            round_.submit(stepped(round_.weights()), samples=100)
        for participant in everyone:
            participant.close()
        first.progress(1)  # a closed connection is no reason to fail


async def test_the_same_with_asyncio(tmp_path: Path) -> None:
    with served(tmp_path / "coordinator") as coordinator:
        coordinator.open(schedule={"rounds": 1})
        path = coordinator.folder.control_socket
        states = {name: coordinator.enrol(name, tmp_path / name) for name in ("ada", "ben", "cho")}
        told = {"ada": 400_000, "ben": 1_000_000, "cho": 1_000_000}

        async def one(name: str) -> None:
            async with AsyncParticipant(states[name], coordinator.market) as me:
                if name != "ada":
                    await me.run(Telling(), "task", effort=0.0)
                    return
                joined = await me.join("task")
                await joined.claim(0.0, [25, 25, 25, 25])
                async for round_ in joined.rounds():
                    await round_.progress(0.4)
                    await asyncio.to_thread(eventually, lambda: said(path) == told)
                    Telling.go.set()
                    await round_.submit(stepped(await round_.weights()), samples=100)

        Telling.go.clear()
        await asyncio.gather(*(one(name) for name in states))


def said(path: Path) -> dict[str, int]:
    return round_progress(progress(path), "task", 1).done_micro
