"""A whole task over real gRPC and TLS: from an invitation to a settlement and a verified balance."""

import asyncio
from pathlib import Path

import numpy as np
from safetensors.numpy import load

from protos.fedpeer.v1 import ledger_pb2, market_pb2
from tests.integration.market import (
    Client,
    enrol,
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
