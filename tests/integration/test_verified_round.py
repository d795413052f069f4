"""The service's default rule on real data: digits, shadow models, verified degrees, an echo that earns nothing."""

import asyncio
from contextlib import ExitStack, closing
from pathlib import Path

import grpc
import numpy as np
import pytest
from prometheus_client import generate_latest

from coordinator.config import TaskConfig
from coordinator.operator import Operator
from coordinator.server import Coordinator
from fedpeer.audit.sources import open_source
from fedpeer.learning.datasets import LabelledData, load_splits
from fedpeer.learning.training import train
from fedpeer.protocol.model_file import encode_model, open_model
from fedpeer.v1 import ledger_pb2, ledger_pb2_grpc, market_pb2
from mechanism.canonical import canonical_bytes, parse_canonical
from mechanism.ledger.openings import Openings
from mechanism.ledger.verify import verify_ledger
from mechanism.terms import Recipe, Terms
from tests.integration.market import Client, enrol, make_folder, open_task, running, verified

pytestmark = pytest.mark.arithmetic

CONFIG = {
    "id": "task",
    "Q": "1000",
    "phi": "300",
    "upsilon": "200",
    "seed": 5,
    "schedule": {"rounds": 2, "quorum": 3, "capacity": 4, "effort_seconds": 120, "round_seconds": 120},
    "recipe": {"model": "digits-cnn", "samples": 120, "epochs": 3, "batch_size": 32},
    "data": {"dataset": "digits", "seed": 1},
    "evidence": {"shadows": 30},
}


async def fetched(client: Client, round_: int, folder: Path) -> Path:
    request = market_pb2.FetchModelRequest(task_id="task", round=round_)
    path = folder / f"{client.name}-{round_}"
    path.write_bytes(b"".join([frame.data async for frame in client.market.FetchModel(request)]))
    return path


async def take_part(client: Client, data: LabelledData, folder: Path, *, honest: bool) -> list[int]:
    await client.until("EFFORT")
    await client.claim(counts=data.counts())
    recipe: Recipe = Terms.parse((await client.task()).terms).recipe
    paid = []
    for round_ in (1, 2):
        await client.until("TRAINING", round_=round_)
        start = await fetched(client, round_, folder)
        content = start.read_bytes()
        if honest:
            weights = await asyncio.to_thread(train, open_model(start).weights(), data, recipe, round_)
            content = encode_model(weights)
        await client.submit(content, round_, samples=len(data))
        await client.until("SETTLED", round_=round_)
        settlement = await client.market.GetSettlement(
            market_pb2.GetSettlementRequest(task_id="task", round=round_)
        )
        paid.append(settlement.paid_micro)
        if not honest:
            assert any(not verdict.passed for verdict in settlement.verdicts)
    await client.until("CLOSED")
    return paid


async def test_honest_work_is_paid_and_an_echo_is_not(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    open_task(folder, TaskConfig.model_validate(CONFIG))
    pool = load_splits("digits", seed=1).train
    generator = np.random.default_rng(0)
    async with running(folder) as coordinator:
        members = {name: await enrol(coordinator, name) for name in ("ann", "bob", "cyd", "eve")}
        shares = {
            name: pool.select(generator.choice(len(pool), 120, replace=False).astype(np.int64))
            for name in members
        }
        paid = dict(
            zip(
                members,
                await asyncio.gather(
                    *(
                        take_part(client, shares[name], tmp_path, honest=name != "eve")
                        for name, client in members.items()
                    )
                ),
                strict=True,
            )
        )
        given = {name: await openings(client) for name, client in members.items()}
        shown = await everything_public(coordinator)
        for client in members.values():
            await client.close()
        assert paid.pop("eve") == [0, 0]
        assert all(amount > 0 for amounts in paid.values() for amount in amounts), paid
        status = coordinator.market.held("task")
        assert status.broken is None
    report = verified(folder)
    assert report.counts.payments == 8
    with ExitStack() as resources:
        source = open_source(folder.database_url(folder.config()), resources)
        every = resources.enter_context(closing(Operator(folder))).openings()
        for name, own in given.items():
            # A claim, and in each of two rounds a model, a verdict and, as the task has ended, the evidence.
            assert len(own.by_id) == 1 + 3 * 2
            assert {id_: every.by_id[id_] for id_ in own.by_id} == own.by_id
            seen = verify_ledger(source, openings=own)
            assert seen.verified, seen.problems
            assert seen.level == f"participant {name}"
            assert seen.counts.degrees == (0 if name == "eve" else 2)
    for opening in every.by_id.values():
        measured = opening.get("measurement") or {}
        secrets = [opening["salt"], *(canonical_bytes(row).decode() for row in measured.get("features", ()))]
        secrets += [v["explanation"] for v in opening.get("assessment", {}).get("verdicts", ())]
        assert not [secret for secret in secrets if secret.encode() in shown]


async def openings(client: Client) -> Openings:
    """What the coordinator opens to a participant."""
    found: dict[str, bytes] = {}
    async for part in client.market.GetOpenings(market_pb2.GetOpeningsRequest(task_id="task")):
        found[part.entry_id] = found.get(part.entry_id, b"") + part.data
    return Openings(client.name, {name: parse_canonical(data) for name, data in found.items()})


async def everything_public(coordinator: Coordinator) -> bytes:
    """Every byte of the public port's ledger, and of the metrics."""
    authority = (coordinator.folder.path / "authority.pem").read_bytes()
    async with grpc.aio.secure_channel(
        coordinator.public_address, grpc.ssl_channel_credentials(authority)
    ) as channel:
        stub = ledger_pb2_grpc.LedgerStub(channel)
        note = await stub.GetCheckpoint(ledger_pb2.GetCheckpointRequest())
        keys = await stub.GetKeys(ledger_pb2.GetKeysRequest())
        pages = [page async for page in stub.GetEntries(ledger_pb2.GetEntriesRequest())]
        balance = await stub.GetBalance(ledger_pb2.GetBalanceRequest(account="payable:ann"))
    metrics = generate_latest(coordinator.metrics.registry)
    assert b'"ann"' not in metrics
    entries = b"\n".join(entry for page in pages for entry in page.entries)
    assert b'"kind":"verdict"' in entries
    return b"\n".join([entries, *(m.SerializeToString() for m in (note, keys, balance)), metrics])
