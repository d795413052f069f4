"""A whole task over real gRPC and TLS: from an invitation to a settlement and a verified balance."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from coordinator.storage.rounds import SettlementRow
from coordinator.storage.store import MarketStore
from fedpeer.audit.sql.errors import DatabaseLocked
from fedpeer.protocol.model_file import encode_model
from fedpeer.v1 import ledger_pb2, market_pb2
from mechanism.ledger.tlog_proof import TlogProof
from tests.integration.market import (
    Client,
    close,
    enrol,
    in_training,
    make_folder,
    model_like,
    open_task,
    running,
    task_config,
    verified,
)


async def fetch(client: Client, round_: int) -> bytes:
    request = market_pb2.FetchModelRequest(task_id="task", round=round_)
    return b"".join([frame.data async for frame in client.market.FetchModel(request)])


async def received_settlements(client: Client, number: int | None) -> list[market_pb2.Settlement]:
    """The settlements that a participant receives in a whole task; it takes part where it has a number."""
    received = []
    async for event in client.market.Watch(market_pb2.WatchRequest(task_id="task")):
        if event.state == market_pb2.TASK_STATE_EFFORT and number is not None:
            await client.claim(counts=(3 + number, 3, 3, 3))
        elif event.state == market_pb2.TASK_STATE_TRAINING and number is not None:
            await client.submit(model_like(number), event.round)
        elif event.state == market_pb2.TASK_STATE_SETTLED and event.round_settled.HasField("settlement"):
            received.append(event.round_settled.settlement)
    return received


async def take_part(client: Client, number: int, rounds: int) -> None:
    await client.until("EFFORT")
    receipt = await client.claim(counts=(3 + number, 3, 3, 3))
    assert receipt.kind == "claim"
    for round_ in range(1, rounds + 1):
        await client.until("TRAINING", round_=round_)
        assert load(await fetch(client, round_))
        receipt = await client.submit(model_like(number), round_)
        assert not receipt.late
    await client.until("CLOSED")


async def test_watchers_receive_what_the_last_settled_round_paid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path))
    reads = []
    read = MarketStore.round_settlements

    def counted(store: MarketStore, task_id: str, round_: int) -> list[SettlementRow]:
        reads.append(round_)
        return read(store, task_id, round_)

    monkeypatch.setattr(MarketStore, "round_settlements", counted)
    async with running(folder) as coordinator:
        clients = [await enrol(coordinator, name) for name in ("ann", "bob", "cyd")]
        stranger = await enrol(coordinator, "dan")
        numbers: tuple[int | None, ...] = (0, 1, 2, None)
        *received, nothing = await asyncio.gather(*map(received_settlements, (*clients, stranger), numbers))
        assert nothing == [], "nothing was settled for who did not train"
        for client, found in zip(clients, received, strict=True):
            assert [s.round for s in found] == [1, 2]
            for settlement in found:
                assert settlement.participant_id == client.name
                request = market_pb2.GetSettlementRequest(task_id="task", round=settlement.round)
                asked = await client.market.GetSettlement(request)
                for message in (asked, settlement):
                    assert TlogProof.parse(message.proof).index == message.ledger_index
                    message.ClearField("proof")  # by another head
                assert asked == settlement
        again = [event async for event in clients[0].market.Watch(market_pb2.WatchRequest(task_id="task"))]
        settled = [e.round_settled for e in again if e.state == market_pb2.TASK_STATE_SETTLED]
        assert [s.HasField("settlement") for s in settled] == [False, True], "the last one alone"
        for client in (*clients, stranger):
            await client.close()
    assert reads == [1, 2], "once for all who watch"


async def test_a_fetch_comes_in_frames_of_the_size_that_was_asked_for(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    (tmp_path / "initial.safetensors").write_bytes(encode_model({"weight": np.zeros(800_000, np.float32)}))
    open_task(folder, task_config(tmp_path))
    async with running(folder) as coordinator:
        clients = await in_training(coordinator, ("ann", "bob", "cyd"))
        for asked, largest in ((0, 1 << 20), (1, 64 << 10), (300_000, 300_000), (1 << 30, 2 << 20)):
            request = market_pb2.FetchModelRequest(task_id="task", round=1, max_frame_bytes=asked)
            found = [len(frame.data) async for frame in clients[0].market.FetchModel(request)]
            assert max(found) == found[0] == largest
            assert sum(found) > 3_200_000
        await close(clients)


async def test_payments_that_cannot_be_read_do_not_hold_up_the_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = MarketStore.round_settlements

    def locked_at_first(store: MarketStore, task_id: str, round_: int) -> list[SettlementRow]:
        if round_ == 1:
            raise DatabaseLocked("another process holds the lock")
        return read(store, task_id, round_)

    monkeypatch.setattr(MarketStore, "round_settlements", locked_at_first)
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path))
    async with running(folder) as coordinator:
        clients = [await enrol(coordinator, name) for name in ("ann", "bob", "cyd")]
        received = await asyncio.gather(*map(received_settlements, clients, range(3)))
        assert [[settlement.round for settlement in found] for found in received] == [[2], [2], [2]]
        request = market_pb2.GetSettlementRequest(task_id="task", round=1)
        assert (await clients[0].market.GetSettlement(request)).paid_micro > 0
        for client in clients:
            await client.close()


async def test_a_task_runs_from_invitation_to_payment(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path))
    async with running(folder) as coordinator:
        clients = [await enrol(coordinator, name) for name in ("ann", "bob", "cyd")]
        await asyncio.gather(*(take_part(client, i, 2) for i, client in enumerate(clients)))
        paid = {}
        for client in clients:
            for round_ in (1, 2):
                settlement = await client.market.GetSettlement(
                    market_pb2.GetSettlementRequest(task_id="task", round=round_)
                )
                assert settlement.paid_micro > 0
                assert len(settlement.peers) == 1
                assert settlement.proof.startswith("c2sp.org/tlog-proof")
                paid[client.name] = paid.get(client.name, 0) + settlement.paid_micro
            balance = await client.ledger.GetBalance(
                ledger_pb2.GetBalanceRequest(account=f"payable:{client.name}")
            )
            assert balance.credits_posted_micro == paid[client.name]
        escrow = await clients[0].ledger.GetBalance(ledger_pb2.GetBalanceRequest(account="escrow:task"))
        assert escrow.credits_pending_micro == 0
        assert escrow.credits_posted_micro == escrow.debits_posted_micro
        mean = load(await fetch(clients[0], 2))
        models = [load(model_like(i)) for i in range(3)]
        for name, value in mean.items():
            expected = sum(m[name].astype(np.float64) for m in models) / 3
            np.testing.assert_array_equal(value, expected.astype(np.float32))
        for client in clients:
            await client.close()
    report = verified(folder)
    assert report.counts.payments == 6
    assert report.counts.paid_micro == sum(paid.values())
    assert report.open_tasks == {}
