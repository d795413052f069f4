"""Draw shares over real gRPC: what is refused, what a puppet of the coordinator can choose, and what becomes of a
participant that has lost its chain."""

import asyncio
import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coordinator.folder import StateFolder
from fedpeer.audit.sources import open_source
from fedpeer.protocol.errors import Code
from fedpeer.v1 import ledger_pb2, market_pb2
from mechanism.ledger.entry import Entry
from mechanism.peers import draw_head, draw_share
from participant import Activity, AsyncParticipant, Participant, SharesLostError
from participant.identity import IdentityFolder
from participant.journal import Journal
from participant.service import Service
from tests.integration.market import (
    Client,
    close,
    enrol,
    frames,
    in_training,
    make_folder,
    model_like,
    open_task,
    refused,
    running,
    share_secret,
    signed,
    signed_as,
    task_config,
    verified,
)
from tests.integration.serving import Served, Shift, served
from tests.integration.test_service import config, shift

NAMES = ("ann", "bob", "cyd")
EVEN = [5, 5, 5, 5]


def recorded(folder: StateFolder, kind: str) -> list[Entry]:
    """Entries of one kind in the folder's ledger."""
    with ExitStack() as resources:
        source = open_source(folder.database_url(folder.config()), resources)
        found = [Entry.parse(data) for data in source.entries()]
    return [entry for entry in found if entry.kind == kind]


async def ledger_size(client: Client) -> int:
    note = (await client.ledger.GetCheckpoint(ledger_pb2.GetCheckpointRequest())).note
    return int(note.split("\n")[1])


# What the coordinator takes


async def test_a_share_that_is_not_the_rounds_is_refused_at_the_header(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path))
    async with running(folder) as coordinator:
        members = await in_training(coordinator, NAMES)
        ann = members[0]
        before = await ledger_size(ann)
        own = share_secret("ann")
        wrong = [bytes(32), draw_share(own, 2, 2), draw_share(share_secret("bob"), 2, 1)]
        # More often than uploads may be begun in a round: who is refused has begun none.
        for number, share in enumerate(wrong * 4):
            statement = await ann.model_statement(
                model_like(0), 1, draw_share=share, submission_id=f"try-{number}"
            )
            header = market_pb2.ModelHeader(model=signed(statement, ann.key))
            call = ann.upload([market_pb2.SubmitModelRequest(header=header)])
            found = await refused(call, Code.DRAW_SHARE_INVALID)
            assert "'ann'" in found.message
            assert "round 1" in found.message
        for length in (0, 31, 33):
            statement = await ann.model_statement(model_like(0), 1)
            message = signed_as(statement, ann.key, draw_share="00" * length)
            header = market_pb2.ModelHeader(model=message)
            call = ann.upload([market_pb2.SubmitModelRequest(header=header), *frames(model_like(0))])
            found = await refused(call, Code.FIELD_INVALID)
            assert [violation.field for violation in found.violations] == ["draw_share"]
        assert await ledger_size(ann) == before
        for number, client in enumerate(members):
            await client.submit(model_like(number), 1)
        await ann.until("SETTLED")
        await close(members)
    verified(folder)


async def test_who_withholds_its_share_is_not_scored(tmp_path: Path) -> None:
    """A model without the share is not a model: the round closes without it, and pays it nothing."""
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path, schedule={"rounds": 1, "capacity": 4}))
    async with running(folder) as coordinator:
        members = await in_training(coordinator, (*NAMES, "dan"))
        dan = members[3]
        await refused(dan.submit(model_like(3), 1, draw_share=bytes(32)), Code.DRAW_SHARE_INVALID)
        for number, client in enumerate(members[:3]):
            await client.submit(model_like(number), 1)
        await dan.fail(1)
        await dan.until("SETTLED")
        paid = await dan.market.GetSettlement(market_pb2.GetSettlementRequest(task_id="task", round=1))
        assert paid.paid_micro == 0
        await close(members)
    assert verified(folder).counts.payments == 4
    assert all("dan" not in peers for _, peers in peers_of(folder).draws)


async def test_a_claim_has_a_head_and_a_repeated_one_the_same(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path))
    async with running(folder) as coordinator:
        ann = await enrol(coordinator, "ann")
        await ann.until("EFFORT")
        assert (await ann.task()).draw_head == b""
        for length in (0, 31, 33):
            statement = await ann.claim_statement()
            message = signed_as(statement, ann.key, draw_head="00" * length)
            found = await refused(ann.market.SubmitEffort(message), Code.FIELD_INVALID)
            assert [violation.field for violation in found.violations] == ["draw_head"]
        first = await ann.claim()
        assert await ann.claim() == first
        await refused(ann.claim(draw_head=bytes(32)), Code.SUBMISSION_CONFLICT)
        head = draw_head(share_secret("ann"), 2)
        assert (await ann.task()).draw_head == head
        await close([ann])
    [claim] = recorded(folder, "claim")
    assert claim.body["statement"]["draw_head"] == head.hex()  # type: ignore[index,call-overload]


async def test_a_late_model_needs_its_share_and_has_no_part_in_the_key(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path, schedule={"rounds": 2, "capacity": 4}))
    async with running(folder) as coordinator:
        members = await in_training(coordinator, (*NAMES, "dan"))
        dan = members[3]
        for number, client in enumerate(members[:3]):
            await client.submit(model_like(number), 1)
        await dan.fail(1)
        await dan.until("TRAINING", round_=2)
        await refused(dan.submit(model_like(3), 1, draw_share=bytes(32)), Code.DRAW_SHARE_INVALID)
        receipt = await dan.submit(model_like(3), 1)
        assert receipt.late
        assert await dan.submit(model_like(3), 1) == receipt
        for number, client in enumerate(members):
            await client.submit(model_like(number), 2)
        await dan.until("CLOSED")
        await close(members)
    verified(folder)


# What a puppet can choose


@dataclass(frozen=True)
class Peers:
    """What a settled round was drawn from, and who met whom."""

    key: str
    draws: list[Any]


def peers_of(folder: StateFolder) -> Peers:
    [entry] = recorded(folder, "peers")
    return Peers(str(entry.body["key"]), list(entry.body["draws"]))  # type: ignore[arg-type]


async def settled_with(path: Path, puppet: int | None) -> Peers:
    """A round of three honest participants and a puppet, which sends the model that a number gives, or none.

    The coordinator's secret is the same every time, as if it had tried one after another before it chose.
    """
    folder = make_folder(path / "state")
    open_task(folder, task_config(path, schedule={"rounds": 1, "capacity": 4}))
    async with running(folder) as coordinator:
        members = await in_training(coordinator, (*NAMES, "puppet"))
        for number, client in enumerate(members[:3]):
            await client.submit(model_like(number), 1)
        if puppet is None:
            await members[3].fail(1)
        else:
            await members[3].submit(model_like(puppet), 1)
        await members[0].until("CLOSED")
        await close(members)
    verified(folder)
    return peers_of(folder)


async def test_models_that_a_puppet_tries_change_no_draw_and_withholding_gives_one_other(
    tmp_path: Path,
) -> None:
    found = []
    for number, puppet in enumerate((100, 101, 102, None, None)):
        folder = tmp_path / str(number)
        folder.mkdir()
        found.append(await settled_with(folder, puppet))
    sent, withheld = found[:3], found[3:]
    assert sent[0] == sent[1] == sent[2]
    assert withheld[0] == withheld[1]
    assert sent[0].key != withheld[0].key


# Participants of the SDK


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "coordinator") as serving:
        yield serving


def others(coordinator: Served, folder: Path) -> list[threading.Thread]:
    threads = []
    for name in ("ben", "cho"):
        participant = coordinator.participant(name, folder)
        run = threading.Thread(
            target=participant.run, args=(Shift(EVEN), "task"), kwargs={"effort": 0.0}, daemon=True
        )
        run.start()
        threads.append(run)
    return threads


def ended(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()


def secret_of(state: Path) -> bytes | None:
    journal = Journal(state / "journal.db", writer=False)
    try:
        record = journal.task("task")
        return None if record is None else record.draw_secret
    finally:
        journal.close()


def claim_and_leave(coordinator: Served, state: Path) -> None:
    with Participant(state, coordinator.market) as me:
        me.join("task").claim(0.0, EVEN)


def forget(state: Path) -> None:
    """The journal is lost, the key is not."""
    for file in state.glob("journal.*"):
        file.unlink()


def replace_state(coordinator: Served, state: Path) -> None:
    """Everything is lost; the participant enrols again under its name, and says which key was its own."""
    known = IdentityFolder(state).own_keys()
    shutil.rmtree(state)
    coordinator.enrol(state.name, state)
    for sha256 in known:
        IdentityFolder(state).add_own_key(sha256)


@pytest.mark.parametrize("lost", ["nothing", "the journal"])
def test_a_chain_outlives_restarts_and_the_journal(coordinator: Served, tmp_path: Path, lost: str) -> None:
    coordinator.open()
    state = coordinator.enrol("ada", tmp_path / "ada")
    claim_and_leave(coordinator, state)
    first = secret_of(state)
    threads = others(coordinator, tmp_path)
    with Participant(state, coordinator.market) as me:
        next(me.join("task").rounds()).train(Shift(EVEN))
    if lost == "the journal":
        forget(state)
    with Participant(state, coordinator.market) as me:
        report = me.run(Shift(EVEN), "task", effort=0.0)
    ended(threads)
    assert [line.receipt is not None for line in report.rounds] == [True, True]
    assert secret_of(state) == first != None  # noqa: E711 - both at once
    verified(coordinator.folder)


def test_each_task_has_a_chain_of_its_own(coordinator: Served, tmp_path: Path) -> None:
    for task_id in ("one", "two"):
        coordinator.open(task_id)
    with coordinator.participant("ada", tmp_path) as ada:
        for task_id in ("one", "two"):
            ada.join(task_id).claim(0.0, EVEN)
    heads = {str(entry.body["statement"]["draw_head"]) for entry in recorded(coordinator.folder, "claim")}  # type: ignore[index,call-overload]
    assert len(heads) == 2


class Counted(Shift):
    """Says what was asked of it."""

    def __init__(self) -> None:
        super().__init__(EVEN)
        self.collected = 0

    def collect(self, effort: float) -> None:
        self.collected += 1


def test_a_lost_chain_is_an_error_before_any_effort_is_made(coordinator: Served, tmp_path: Path) -> None:
    coordinator.open()
    state = coordinator.enrol("ada", tmp_path / "ada")
    claim_and_leave(coordinator, state)
    replace_state(coordinator, state)
    task = Counted()
    with Participant(state, coordinator.market) as me:
        with pytest.raises(SharesLostError, match="Restore the folder from a backup") as caught:
            me.run(task, "task", effort=0.5)
        assert "task task" in str(caught.value)
        assert (task.trained, task.collected) == ([], 0)
        joined = me.join("task")
        with pytest.raises(SharesLostError):
            joined.claim(0.0, EVEN)
        with pytest.raises(SharesLostError):
            next(joined.rounds())
        # It goes on with other tasks.
        assert me.find_task() is None
        coordinator.open("second")
        assert me.find_task() == "second"


async def test_asyncio_tells_it_too(tmp_path: Path) -> None:
    with served(tmp_path / "coordinator") as coordinator:
        await asyncio.to_thread(coordinator.open)
        state = await asyncio.to_thread(coordinator.enrol, "ada", tmp_path / "ada")
        await asyncio.to_thread(claim_and_leave, coordinator, state)
        await asyncio.to_thread(replace_state, coordinator, state)
        async with AsyncParticipant(state, coordinator.market) as me:
            task = Counted()
            with pytest.raises(SharesLostError):
                await me.run(task, "task", effort=0.5)
            assert (task.trained, task.collected) == ([], 0)
            with pytest.raises(SharesLostError):
                await (await me.join("task")).claim(0.0, EVEN)


def test_a_service_leaves_the_task_and_takes_the_next(
    coordinator: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("participant.service.LOOK_SECONDS", 0.05)
    coordinator.open()
    state = coordinator.enrol("ada", tmp_path / "ada")
    claim_and_leave(coordinator, state)
    replace_state(coordinator, state)
    coordinator.open("second")
    seen, claimed = [], threading.Event()

    def tell(activity: Activity) -> None:
        seen.append((activity.task_id, activity.kind))
        if activity.kind == "claimed":
            claimed.set()

    service = Service(config(coordinator, state, shift(None)), tell)
    running_ = threading.Thread(target=service.run)
    running_.start()
    try:
        assert claimed.wait(60)
    finally:
        service.stop()
        running_.join(60)
    assert not running_.is_alive()
    assert {task_id for task_id, _ in seen} == {"second"}
    with Participant(state, coordinator.market) as me:
        assert "draw shares" in me.join("task").report().note


def test_a_process_that_claimed_first_wins_and_the_other_ends_with_an_error(
    coordinator: Served, tmp_path: Path
) -> None:
    """Both had joined before either claimed; the second one has another key."""
    coordinator.open()
    state, elsewhere = coordinator.enrol("ada", tmp_path / "ada"), tmp_path / "elsewhere"
    with Participant(state, coordinator.market) as slow:
        joined = slow.join("task")
        shutil.copytree(state, elsewhere, ignore=shutil.ignore_patterns("journal.*"))
        with Participant(elsewhere, coordinator.market) as fast:
            other = fast.join("task")
            # As a journal has it that was made with another key.
            other._engagement.journal.set_claim("task", json.dumps(EVEN), None, hashlib.sha256(b"x").digest())
            other.claim(0.0, EVEN)
        with pytest.raises(SharesLostError):
            joined.claim(0.0, EVEN)
