"""What an operator does to a running service and what it does by itself: cancelling, deadlines, absences, quotas."""

import asyncio
import errno
import json
import re
import threading
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from typer.testing import CliRunner

from coordinator.blobs import BlobStore
from coordinator.cli import app
from coordinator.clock import ManualClock
from coordinator.folder import StateFolder
from coordinator.operator import Operator, TaskOverview
from coordinator.server import INSECURE_NAME
from coordinator.transaction import Transaction
from fedpeer.audit.sources import open_source
from fedpeer.protocol.certificates import new_key, signing_request
from fedpeer.protocol.errors import Code, refusal_of
from fedpeer.v1 import enrolment_pb2, enrolment_pb2_grpc, ledger_pb2, market_pb2, market_pb2_grpc
from mechanism.ledger.entry import Entry
from tests.integration.market import (
    CONFIG,
    PATIENCE,
    Client,
    close,
    delivered,
    enrol,
    frames,
    in_training,
    invite,
    make_folder,
    model_like,
    open_task,
    refused,
    running,
    signed,
    task_config,
    verified,
)

NAMES = ("ann", "bob", "cyd", "dan")


def cancel(folder: StateFolder, task_id: str) -> TaskOverview:
    operator = Operator(folder)
    try:
        return operator.cancel(task_id, "the data were wrong")
    finally:
        operator.close()


async def drain(events: AsyncIterator[Any]) -> None:
    async for _ in events:
        pass


async def ask(client: Client, times: int) -> None:
    for _ in range(times):
        await client.task()


async def balance(client: Client, account: str) -> ledger_pb2.Balance:
    return await client.ledger.GetBalance(ledger_pb2.GetBalanceRequest(account=account))


async def test_a_balance_is_of_an_account(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    async with running(folder) as coordinator:
        ann = await enrol(coordinator, "ann")
        assert (await balance(ann, "payable:nobody-yet")).credits_posted_micro == 0
        for account in ("", "a\0b", "payable:a\0b", "payable:", "x" * 1000):
            await refused(balance(ann, account), Code.FIELD_INVALID)
        await close([ann])


async def test_cancelling_refunds_what_is_not_paid_and_tells_everyone(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path, rule={"stake_micro": 1000}))
    async with running(folder) as coordinator:
        members = await delivered(coordinator, NAMES[:3])
        await members[0].until("TRAINING", round_=2)
        watch = asyncio.create_task(members[1].until("CANCELLED"))
        before = await balance(members[0], "escrow:task")
        assert before.credits_pending_micro == 3 * 1_609_438
        report = await asyncio.to_thread(cancel, folder, "task")
        assert report.escrow_micro == 0
        assert (await watch).cancelled.reason == "the data were wrong"
        await refused(members[0].submit(model_like(0), 2), Code.TASK_ENDED)
        after = await balance(members[0], "escrow:task")
        assert after.credits_pending_micro == 0
        stake = await balance(members[0], "stake:task:ann")
        assert stake.credits_posted_micro == stake.debits_posted_micro == 1000
        owed = await balance(members[0], "payable:ann")
        assert owed.credits_posted_micro - owed.debits_posted_micro == report.paid_micro["ann"] > 0
        await close(members)
    verified(folder)


async def test_a_round_is_settled_only_with_a_model_that_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopt, computed = BlobStore.adopt, Transaction.settle
    order = []

    def full_at_first(store: BlobStore, source: Path, digest: bytes, *, flushed: bool = False) -> Path:
        if source.suffix != ".scratch":
            return adopt(store, source, digest, flushed=flushed)
        if "full" not in order:
            order.append("full")
            raise OSError(errno.ENOSPC, "No space left on device")
        order.append("stored")
        return adopt(store, source, digest, flushed=flushed)

    def settle(t: Transaction, *arguments: Any) -> Any:
        found = computed(t, *arguments)
        order.append("computed")
        return found

    monkeypatch.setattr(BlobStore, "adopt", full_at_first)
    monkeypatch.setattr(Transaction, "settle", settle)
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path, schedule={"capacity": 3, "rounds": 1}))
    async with running(folder) as coordinator:
        members = await delivered(coordinator, NAMES[:3])
        await members[0].until("CLOSED")
        events = [event async for event in members[0].market.Watch(market_pb2.WatchRequest(task_id="task"))]
        assert [e.state for e in events].count(market_pb2.TASK_STATE_SETTLED) == 1
        await close(members)
    assert order == ["full", "stored", "computed"]
    assert verified(folder).counts.payments == 3


async def test_nobody_waits_for_a_disk_that_is_slow_with_the_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopt, storing, stored = BlobStore.adopt, threading.Event(), threading.Event()

    def slow(store: BlobStore, source: Path, digest: bytes, *, flushed: bool = False) -> Path:
        if source.suffix == ".scratch":
            storing.set()
            assert stored.wait(30)
        return adopt(store, source, digest, flushed=flushed)

    monkeypatch.setattr(BlobStore, "adopt", slow)
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path, schedule={"capacity": 3, "rounds": 1}))
    async with running(folder) as coordinator:
        members = await delivered(coordinator, NAMES[:3])
        assert await asyncio.to_thread(storing.wait, 30)
        async with asyncio.timeout(PATIENCE):
            for _ in range(20):
                assert (await members[0].task()).state == market_pb2.TASK_STATE_SCORED
        stored.set()
        await members[0].until("CLOSED")
        await close(members)
    assert verified(folder).counts.payments == 3


async def test_several_tasks_run_at_once(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    ids = [f"task-{i}" for i in range(3)]
    async with running(folder) as coordinator:
        members = [await enrol(coordinator, name) for name in NAMES[:3]]

        async def take_part(client: Client, task_id: str, number: int) -> None:
            mine = Client(
                client.name, client.key, client.certificate, client.authority, client.address, task_id
            )
            await mine.until("EFFORT")
            await mine.claim()
            for round_ in (1, 2):
                await mine.until("TRAINING", round_=round_)
                await mine.submit(model_like(number), round_)
            await mine.until("CLOSED")
            await mine.close()

        for task_id in ids:
            await asyncio.to_thread(open_task, folder, task_config(tmp_path, task_id))
        await asyncio.gather(*(take_part(c, t, i) for i, c in enumerate(members) for t in ids))
        listed = await members[0].market.ListTasks(market_pb2.ListTasksRequest())
        assert [task.task_id for task in listed.tasks] == ids
        assert {task.state for task in listed.tasks} == {market_pb2.TASK_STATE_CLOSED}
        await close(members)
    assert verified(folder).counts.payments == 3 * 2 * 3


async def test_who_has_gone_does_not_hold_the_round_and_who_is_late_is_not_scored(tmp_path: Path) -> None:
    clock = ManualClock(time.time())
    folder = make_folder(tmp_path / "state", CONFIG + "absence_seconds = 30\n")
    open_task(folder, task_config(tmp_path, schedule={"capacity": 4, "rounds": 1, "round_seconds": 10_000}))
    async with running(folder, clock) as coordinator:
        members = await in_training(coordinator, NAMES)
        for number, client in enumerate(members[:3]):
            await client.submit(model_like(number), 1)
        await members[3].close()
        clock.advance(20)
        assert (await members[0].task()).state == market_pb2.TASK_STATE_TRAINING
        clock.advance(11)
        await members[0].until("CLOSED")
        settlement = await members[3].market.GetSettlement(
            market_pb2.GetSettlementRequest(task_id="task", round=1)
        )
        assert settlement.paid_micro == 0
        await close(members)
    assert verified(folder).open_tasks == {}
    with ExitStack() as resources:
        logged = open_source(folder.database_url(folder.config()), resources).entries()
        [closing] = [entry.body for entry in map(Entry.parse, logged) if entry.kind == "closing"]
    assert closing["absent"] == ["dan"]


async def test_status_says_who_stands_where_and_what_failed(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path, schedule={"capacity": 4, "round_seconds": 7200}))
    async with running(folder) as coordinator:
        members = await in_training(coordinator, NAMES)
        for number, client in enumerate(members[:3]):
            await client.submit(model_like(number), 1)
        await members[3].fail(1, "the disk is [red]full\x1b[2J")
        await members[0].until("TRAINING", round_=2)
        await members[0].submit(model_like(0), 2)
        text = await asyncio.to_thread(command, "status", "task", folder=folder)
        overview = await asyncio.to_thread(command, "status", folder=folder)
        report = await asyncio.to_thread(command, "status", "task", "--json", folder=folder)
        await close(members)
    words = " ".join(text.split())
    assert "serving" in words
    assert "state TRAINING, round 2 of 2" in words
    assert re.search(r"deadline [12] h \d+ min left", words)
    assert "4 claimed of at most 4, 3 awaited, 1 delivered" in words
    assert "credits in 1 settled round" in words
    assert "escrow left 6.437752 of 12.875504 credits" in words  # half of it: the round's own is resolved
    assert "round 1: dan reported: the disk is [red]full\N{REPLACEMENT CHARACTER}[2J" in text
    assert "ann │ delivered │ 0 │ " in words
    assert "dan │ awaited │ 0 │ 0.000000" in words
    assert "4 participants, 1 task, " in overview
    [task] = json.loads(report)["tasks"]
    assert [person["standing"] for person in task["participants"]] == ["delivered", *["awaited"] * 3]
    assert [(f["round"], f["participant_id"]) for f in task["failed"]] == [(1, "dan")]


def command(*arguments: str, folder: StateFolder) -> str:
    """What a command of the operator prints."""
    done = CliRunner().invoke(app, [*arguments, "--state", str(folder.path)])
    assert done.exit_code == 0, done.output
    return done.stdout


async def test_deadlines_close_the_phases(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path, schedule={"capacity": 10, "rounds": 1}))
    clock = ManualClock(time.time())
    async with running(folder, clock) as coordinator:
        members = [await enrol(coordinator, name) for name in NAMES]
        await members[0].until("EFFORT")
        for client in members:
            await client.claim()
        watches = [client.market.Watch(market_pb2.WatchRequest(task_id="task")) for client in members]
        for watch in watches:
            await anext(aiter(watch))
        clock.advance(60)
        await members[0].until("TRAINING")
        for number, client in enumerate(members[:3]):
            await client.submit(model_like(number), 1)
        clock.advance(59)
        assert (await members[0].task()).state == market_pb2.TASK_STATE_TRAINING
        clock.advance(1)
        await members[0].until("CLOSED")
        await close(members)


async def test_too_few_claims_cancel_the_task_with_both_numbers(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path))
    clock = ManualClock(time.time())
    async with running(folder, clock) as coordinator:
        ann = await enrol(coordinator, "ann")
        await ann.until("EFFORT")
        await ann.claim()
        clock.advance(60)
        event = await ann.until("CANCELLED")
        assert "1 claim came in" in event.cancelled.reason
        assert "quorum of 3" in event.cancelled.reason
        assert (await balance(ann, "escrow:task")).credits_pending_micro == 0
        await ann.close()
    verified(folder)


async def test_a_second_session_takes_over_and_the_first_ends_with_an_error(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path))
    async with running(folder) as coordinator:
        ann = await enrol(coordinator, "ann")
        first = aiter(ann.market.Watch(market_pb2.WatchRequest(task_id="task")))
        assert (await anext(first)).cursor == 1
        second = aiter(ann.market.Watch(market_pb2.WatchRequest(task_id="task", cursor=1)))
        assert (await anext(second)).cursor == 2
        with pytest.raises(grpc.RpcError) as caught:
            await drain(first)
        found = refusal_of(caught.value)
        assert found is not None
        assert found.code is Code.SESSION_TAKEN_OVER
        await ann.close()


async def test_watchers_are_sent_away_with_a_reason_when_the_service_stops(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path))
    async with running(folder) as coordinator:
        ann = await enrol(coordinator, "ann")
        events = aiter(ann.market.Watch(market_pb2.WatchRequest(task_id="task")))
        await anext(events)
        stopping = asyncio.create_task(coordinator.stop(5))
        with pytest.raises(grpc.RpcError) as caught:
            await drain(events)
        found = refusal_of(caught.value)
        assert found is not None
        assert found.code is Code.DRAINING
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await stopping
        await ann.close()


async def test_health_turns_not_serving_while_calls_in_progress_are_drained(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    authority = (folder.path / "authority.pem").read_bytes()
    async with running(folder) as coordinator:
        credentials = grpc.ssl_channel_credentials(authority)
        async with grpc.aio.secure_channel(coordinator.public_address, credentials) as channel:
            watch = aiter(health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()))
            assert (await anext(watch)).status == health_pb2.HealthCheckResponse.SERVING
            stopping = asyncio.create_task(coordinator.stop(20))
            async with asyncio.timeout(20):
                assert (await anext(watch)).status == health_pb2.HealthCheckResponse.NOT_SERVING
        await stopping


async def test_slow_uploads_do_not_keep_an_honest_participant_out(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state", CONFIG + "concurrent_uploads = 2\n")
    open_task(folder, task_config(tmp_path))
    async with running(folder) as coordinator:
        members = await in_training(coordinator, NAMES[:3])
        stuck = [await trickle(client) for client in members[:2]]
        async with asyncio.timeout(15):
            receipt = await members[2].submit(model_like(2), 1)
        assert not receipt.late
        # The slow ones learn that they are, and go on where they were.
        with pytest.raises(grpc.RpcError, match="can be resumed"):
            await stuck[0]
        assert not (await members[0].submit(model_like(0), 1, offset=40)).late
        await close(members)


async def test_frames_are_welcome_when_there_is_a_slot_and_not_before(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state", CONFIG + "concurrent_uploads = 1\n")
    open_task(folder, task_config(tmp_path))
    async with running(folder) as coordinator:
        members = await in_training(coordinator, NAMES[:3])
        first, second = [await announce(client) for client in members[:2]]
        welcome = asyncio.create_task(second.initial_metadata())
        await first.initial_metadata()
        assert not welcome.done()
        await first.write(frames(model_like(0))[0])
        await first
        await welcome
        await second.write(frames(model_like(1))[0])
        assert not (await second).late
        await close(members)


async def announce(client: Client) -> Any:
    """An upload that has sent its header."""
    statement = await client.model_statement(model_like(NAMES.index(client.name)), 1)
    header = market_pb2.ModelHeader(model=signed(statement, client.key))
    call = client.market.SubmitModel()
    await call.write(market_pb2.SubmitModelRequest(header=header))
    return call


async def trickle(client: Client) -> Any:
    """Sends one small frame and then nothing, for ever."""
    call = await announce(client)
    await call.write(frames(model_like(NAMES.index(client.name)), size=40)[0])
    request = market_pb2.GetUploadRequest(task_id="task", submission_id=f"model-1-{client.name}")
    async with asyncio.timeout(PATIENCE):
        while (await client.market.GetUpload(request)).offset < 40:
            pass  # each turn asks the coordinator
    return call


async def test_a_flood_of_requests_is_turned_away_and_others_are_served(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state", CONFIG + "requests_per_second = 5\n")
    open_task(folder, task_config(tmp_path))
    async with running(folder) as coordinator:
        ann, bob = [await enrol(coordinator, name) for name in NAMES[:2]]
        with pytest.raises(grpc.RpcError) as caught:
            await ask(ann, 60)
        found = refusal_of(caught.value)
        assert found is not None
        assert found.code is Code.QUOTA_EXCEEDED
        assert (await bob.task()).nonce
        await close([ann, bob])


async def test_bytes_are_counted_and_the_next_stream_is_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state", CONFIG + "bytes_per_hour = 1000\n")
    open_task(folder, task_config(tmp_path))
    async with running(folder) as coordinator:
        members = await in_training(coordinator, NAMES[:3])
        ann, bob, _ = members
        await ann.submit(model_like(0), 1)  # some hundreds of bytes

        async def fetch(client: Client) -> list[Any]:
            request = market_pb2.FetchModelRequest(task_id="task", round=1)
            return [frame async for frame in client.market.FetchModel(request)]

        async def fetch_often() -> None:
            for _ in range(20):
                await fetch(ann)

        with pytest.raises(grpc.RpcError) as caught:
            await fetch_often()
        found = refusal_of(caught.value)
        assert found is not None
        assert found.code is Code.QUOTA_EXCEEDED
        assert "in an hour" in found.message
        assert await fetch(bob)
        await close(members)


async def test_participants_are_listed_with_their_certificates(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    async with running(folder) as coordinator:
        members = [await enrol(coordinator, name) for name in NAMES[:2]]
        await asyncio.to_thread(command, "revoke", "bob", folder=folder)
        text = await asyncio.to_thread(command, "participants", folder=folder)
        listed = json.loads(await asyncio.to_thread(command, "participants", "--json", folder=folder))
        await close(members)
    assert re.search(r"ann .* enrolled", text)
    assert re.search(r"bob .* revoked", text)
    ann, bob = listed["participants"]
    assert (ann["standing"], bob["standing"]) == ("enrolled", "revoked")
    assert ann["certificate_expires"] > time.time() + 80 * 86_400


@pytest.fixture
async def insecure(tmp_path: Path) -> AsyncIterator[Any]:
    folder = make_folder(tmp_path / "state", CONFIG + "insecure = true\n")
    open_task(folder, task_config(tmp_path))
    async with running(folder) as coordinator:
        yield coordinator


async def test_insecure_mode_believes_names_and_still_checks_signatures(insecure: Any) -> None:
    token = await asyncio.to_thread(invite, insecure.folder, "ann")
    key = new_key()
    async with grpc.aio.insecure_channel(insecure.public_address) as channel:
        await enrolment_pb2_grpc.EnrolmentStub(channel).Enroll(
            enrolment_pb2.EnrollRequest(
                participant_id="ann", token=token, certificate_signing_request=signing_request("ann", key)
            )
        )
    async with grpc.aio.insecure_channel(insecure.market_address) as channel:
        market = market_pb2_grpc.MarketStub(channel)
        request = market_pb2.GetTaskRequest(task_id="task")
        assert (await market.GetTask(request, metadata=((INSECURE_NAME, "ann"),))).nonce
        await refused(market.GetTask(request), Code.CERTIFICATE_REQUIRED)
        await refused(market.GetTask(request, metadata=((INSECURE_NAME, "bob"),)), Code.CERTIFICATE_REQUIRED)
