"""A dispute over real gRPC: private counts are opened once, in time, and pay what the evidence bears out."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.config import TaskConfig
from fedpeer.learning.datasets import LabelledData, load_splits
from fedpeer.learning.training import train
from fedpeer.protocol.errors import Code
from fedpeer.protocol.model_file import encode_model, open_model
from fedpeer.v1 import market_pb2
from mechanism.terms import Terms
from participant import NotFoundError, StateError
from tests.integration.market import Client, enrol, make_folder, open_task, refused, running, verified
from tests.integration.serving import Served, served, stepped
from tests.integration.test_participant_command import DIGITS, fedpeer
from tests.integration.test_verified_round import CONFIG, fetched

pytestmark = pytest.mark.long

SALT = bytes(range(32))

#: Three participants; the first has nearly as many of each digit, so that its degree is read as higher.
NAMES = ("ann", "bob", "cyd")


def opening(counts: tuple[int, ...], salt: bytes = SALT) -> market_pb2.OpenDisputeRequest:
    return market_pb2.OpenDisputeRequest(task_id="task", counts=counts, salt=salt)


async def claim(client: Client, data: LabelledData) -> None:
    await client.until("EFFORT")
    await client.claim(counts=data.counts())


async def train_round(client: Client, data: LabelledData, folder: Path, round_: int) -> None:
    await client.until("TRAINING", round_=round_)
    start = await fetched(client, round_, folder)
    recipe = Terms.parse((await client.task()).terms).recipe
    weights = await asyncio.to_thread(train, open_model(start).weights(), data, recipe, round_)
    await client.submit(encode_model(weights), round_, samples=len(data))


async def paid(client: Client, round_: int) -> int:
    request = market_pb2.GetSettlementRequest(task_id="task", round=round_)
    return int((await client.market.GetSettlement(request)).paid_micro)


async def test_a_dispute_pays_what_the_evidence_bears_out_once_and_from_what_was_kept(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    waits = {"effort_seconds": 600, "round_seconds": 600, "dispute_seconds": 1}
    schedule = {**CONFIG["schedule"], "capacity": 3, **waits}  # type: ignore[dict-item]
    open_task(folder, TaskConfig.model_validate({**CONFIG, "schedule": schedule}))
    pool, generator = load_splits("digits", seed=1).train, np.random.default_rng(0)
    async with running(folder) as coordinator:
        ann, bob, _ = clients = [await enrol(coordinator, name) for name in NAMES]
        eve = await enrol(coordinator, "eve")
        even = np.concatenate([np.flatnonzero(pool.labels == label)[:12] for label in range(10)])
        drawn = [generator.choice(len(pool), 120, replace=False).astype(np.int64) for _ in clients[1:]]
        data = [pool.select(rows) for rows in (even, *drawn)]
        counts = data[0].counts()
        for client, own in zip(clients, data, strict=True):
            await claim(client, own)
        for client in clients:
            await client.until("SELECTED")
        await refused(ann.market.OpenDispute(opening(counts)), Code.NOT_YET)

        await asyncio.gather(*(train_round(c, d, tmp_path, 1) for c, d in zip(clients, data, strict=True)))
        await ann.until("SETTLED")
        swapped = (counts[0] + 1, counts[1] - 1, *counts[2:])
        for wrong in (swapped, counts[:9], (*counts, 1)):
            await refused(ann.market.OpenDispute(opening(wrong)), Code.FIELD_INVALID)
        for salt in (bytes(32), SALT[:31], b""):
            await refused(ann.market.OpenDispute(opening(counts, salt)), Code.FIELD_INVALID)
        await refused(bob.market.OpenDispute(opening(counts)), Code.FIELD_INVALID)
        await refused(eve.market.OpenDispute(opening(counts)), Code.NOT_SELECTED)
        first = await ann.market.OpenDispute(opening(counts))
        assert [r.round for r in first.rounds] == [1]
        assert not first.paid
        again = await ann.market.OpenDispute(opening(counts))
        assert again == first
        await refused(ann.market.OpenDispute(opening(swapped)), Code.FIELD_INVALID)

        await asyncio.gather(*(train_round(c, d, tmp_path, 2) for c, d in zip(clients, data, strict=True)))
        settled = await ann.until("SETTLED", round_=2)
        assert settled.HasField("deadline")
        await ann.until("CLOSED")
        await refused(bob.market.OpenDispute(opening(data[1].counts())), Code.TASK_ENDED)
        last = await ann.market.OpenDispute(opening(counts))
        assert (last.paid, last.ledger_index, last.rounds[0]) == (True, first.ledger_index, first.rounds[0])
        awarded = sum(r.award_micro for r in last.rounds)
        assert awarded > 0
        assert all(r.agreed for r in last.rounds if r.award_micro)
        earned = {c.name: await paid(c, 1) + await paid(c, 2) for c in clients}
        for client in (*clients, eve):
            await client.close()
    report = verified(folder)
    earned["ann"] += awarded
    assert {name: report.balances[f"payable:{name}"].holds for name in NAMES} == earned
    assert report.balances["escrow:task"].holds == report.balances["escrow:task"].credits_pending == 0
    assert report.balances["treasury"].debits_pending == 0


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "coordinator") as running_:
        yield running_


CONFIG_FILE = """
id = "ada"
state = "ada"
[coordinator]
market = "{market}"
authority = "authority.pem"
[[task]]
factory = "none:none"
"""


def test_the_sdk_and_the_command_open_what_the_journal_keeps(coordinator: Served, tmp_path: Path) -> None:
    task = {**DIGITS, "rule": {"name": "verified"}, "evidence": {"shadows": 14}}
    coordinator.open(schedule={"dispute_seconds": 600}, **task)
    ada = coordinator.participant("ada", tmp_path)
    others = [coordinator.participant(name, tmp_path) for name in ("ben", "cho")]
    joined = [p.join("task") for p in (ada, *others)]
    for one, counts in zip(joined, ([30, *[10] * 9], [12] * 10, [12] * 10), strict=True):
        one.claim(0.5, counts)
    rounds: list[Any] = [iter(one.rounds()) for one in joined]
    for number, waiting in enumerate(rounds):
        begun = next(waiting)
        if number == 0:
            with pytest.raises(NotFoundError, match="No round of task task is settled"):
                ada.dispute("task")
        # Nothing is trained, so nothing is scored: the wiring is at stake here, the money above.
        begun.submit(stepped(begun.weights()), samples=100)
    next(rounds[0])  # the second round: the first is settled
    with pytest.raises(StateError, match="no claim"):
        others[0].dispute("nope")
    found = ada.dispute("task")
    assert (found.paid, found.award_micro, len(found.rounds)) == (False, 0, 1)
    assert "bears the claim out" in found.rounds[0].explanation
    assert ada.dispute("task") == found

    (tmp_path / "participant.toml").write_text(CONFIG_FILE.format(market=coordinator.market))
    (tmp_path / "authority.pem").write_bytes(coordinator.authority)
    unknown = fedpeer(tmp_path, "dispute", "nope")
    assert unknown.returncode == 2
    assert "no claim for task 'nope'" in unknown.stderr
    refused_ = fedpeer(tmp_path, "dispute", "task")
    assert refused_.returncode == 2
    assert "give --yes" in refused_.stderr
    done = fedpeer(tmp_path, "dispute", "task", "--yes", "--json")  # beside `ada`, who holds the folder
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ledger_index"] == found.ledger_index
    assert "to be paid when the task ends" in fedpeer(tmp_path, "dispute", "task", "--yes").stdout
    listed = json.loads(fedpeer(tmp_path, "earnings", "--json").stdout)["disputes"]
    assert listed == [found.record()]
    assert f"dispute, as the coordinator states it: {found}" in fedpeer(tmp_path, "earnings").stdout
    for participant in (ada, *others):
        participant.close()
