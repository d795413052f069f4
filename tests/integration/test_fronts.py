"""Several processes serve one market: real ones, over TLS, on PostgreSQL, each with ports of its own here."""

import asyncio
import json
import math
import os
import shutil
import signal
import ssl
import sys
import threading
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from cryptography import x509
from sqlalchemy import text
from structlog.testing import capture_logs

from coordinator.control_socket import progress, round_progress
from coordinator.errors import AlreadyServed, ServeError
from coordinator.folder import StateFolder
from coordinator.fronts import _Front, _gone, _keep_lease, _taken_again, _watch_folder, serve_fronts
from coordinator.listening import listen
from coordinator.operator import Operator
from coordinator.server import Coordinator, Front
from coordinator.storage.changes import Change, Kind
from coordinator.storage.lease import _FOLDER_CLASS, FolderLease, Lease
from coordinator.storage.schema import migrate
from coordinator.storage.store import MarketStore
from fedpeer.audit.sql.database import Database, parse_url
from fedpeer.audit.sql.errors import LeaseTaken
from fedpeer.protocol.errors import Code, refusal_of
from fedpeer.protocol.model_file import encode_model
from fedpeer.v1 import market_pb2
from tests.backends import scratch_url
from tests.integration.market import (
    CONFIG,
    PATIENCE,
    Client,
    at,
    close,
    enrol,
    frames,
    in_training,
    make_folder,
    model_like,
    open_task,
    refused,
    revoke,
    running,
    signed,
    task_config,
    verified,
)

pytestmark = pytest.mark.long

NAMES = ("ann", "bob", "cyd")

STORED = CONFIG + "absence_seconds = {absence}\n[storage]\ndatabase = {database!r}\n"


@dataclass
class FrontProcess:
    """One front, as `serve --fronts` starts it; what tests ask of a `Coordinator` in this process."""

    folder: StateFolder
    process: Process
    market_address: str
    public_address: str

    async def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()


@asynccontextmanager
async def front(folder: StateFolder, number: int) -> AsyncIterator[FrontProcess]:
    command = ["-m", "fedpeer", "coordinator", "front", "--state", str(folder.path), "--number", str(number)]
    ports = ["--market", "127.0.0.1:0", "--public", "127.0.0.1:0"]
    with (folder.path / f"front-{number}.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", *command, *ports, stdin=PIPE, stdout=PIPE, stderr=log
        )
    try:
        assert process.stdout is not None
        addresses = json.loads(await process.stdout.readline())["addresses"]
        yield FrontProcess(folder, process, addresses["market"], addresses["public"])
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def fronts(
    path: Path, count: int, absence: float = 60, **task: Any
) -> AsyncIterator[list[FrontProcess]]:
    """Fronts over one folder with an open task; the first of them leads."""
    with scratch_url("postgresql", path) as database:
        folder = make_folder(path / "state", STORED.format(absence=absence, database=database))
        schema = Database(database)
        migrate(schema)
        schema.close()
        task["schedule"] = {"rounds": 1, **task.get("schedule", {})}
        open_task(folder, task_config(path, **task))
        async with AsyncExitStack() as running:
            found = [await running.enter_async_context(front(folder, 0))]
            await until(lambda: leads(folder, 0))
            for number in range(1, count):
                found.append(await running.enter_async_context(front(folder, number)))
            yield found


def leads(folder: StateFolder, number: int) -> bool:
    return "this process leads" in (folder.path / f"front-{number}.log").read_text()


def training(folder: StateFolder, round_: int) -> dict[str, int]:
    """What the process that leads knows of the participants' training."""
    return round_progress(progress(folder.control_socket), "task", round_).done_micro


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not reached():
            await asyncio.sleep(0.02)


async def watched(client: Client) -> Any:
    """A stream of events that has begun."""
    call = client.market.Watch(market_pb2.WatchRequest(task_id="task"))
    await call.read()
    return call


async def test_participants_of_different_fronts_are_one_market(tmp_path: Path) -> None:
    async with fronts(tmp_path, 2, schedule={"rounds": 2}) as (first, second):
        members = [await enrol(first if n % 2 else second, name) for n, name in enumerate(NAMES)]
        await asyncio.gather(*(client.until("EFFORT") for client in members))
        for client in members:
            await client.claim()
        for round_ in (1, 2):
            await asyncio.gather(*(client.until("TRAINING", round_=round_) for client in members))
            for client in members:
                said = market_pb2.ReportProgressRequest(task_id="task", round=round_, done_millionths=500_000)
                await client.market.ReportProgress(said)
            await until(lambda: training(first.folder, round_) == dict.fromkeys(NAMES, 500_000))  # noqa: B023
            for n, client in enumerate(members):
                # Each sends at the front that it has not talked to: any of them takes any call.
                other = at(client, second if n % 2 else first)
                receipt = await other.submit(model_like(10 * round_ + n), round_)
                assert not receipt.late
                await other.close()
        await asyncio.gather(*(client.until("CLOSED") for client in members))
        await close(members)
        report = verified(first.folder)
        assert report.counts.payments == 6
        assert not leads(second.folder, 1)


async def test_another_front_leads_within_ten_seconds_of_the_leaders_death(tmp_path: Path) -> None:
    async with fronts(tmp_path, 2) as (first, second):
        members = await in_training(second, NAMES)
        await first.kill()
        died = time.monotonic()
        for n, client in enumerate(members):
            await client.submit(model_like(n), 1)
        await until(lambda: leads(second.folder, 1))
        assert time.monotonic() - died < 10
        await members[0].until("CLOSED")
        await close(members)
        assert verified(second.folder).counts.payments == 3


async def test_who_comes_to_a_front_before_word_of_a_change_is_served_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hear_nothing(url: object, begun: Callable[[], Awaitable[None]], heard: object) -> None:
        await begun()
        await asyncio.Event().wait()

    monkeypatch.setattr("coordinator.server.listen", hear_nothing)
    async with fronts(tmp_path, 1) as (first,):
        late = Coordinator(first.folder, front=Front(1, "127.0.0.1:0", "127.0.0.1:0"))
        await late.start()
        try:
            open_task(first.folder, task_config(tmp_path, "task-2"))
            open_task(first.folder, task_config(tmp_path, "task-3", schedule={"rounds": 1}))
            members = [replace(await enrol(first, name), task_id="task-3") for name in NAMES]
            others = [replace(client, address=late.market_address, _channel=None) for client in members]
            # What the one front has said, the other stands by, though it has been told nothing since it began.
            await members[0].until("EFFORT")
            after = await others[0].market.ListTasks(market_pb2.ListTasksRequest(page="task-3"))
            assert not after.tasks
            for client in others:
                await client.claim()
            await members[0].until("TRAINING")
            selected = await others[0].market.ListSelected(market_pb2.ListSelectedRequest(task_id="task-3"))
            assert list(selected.participants) == list(NAMES)
            request = market_pb2.FetchModelRequest(task_id="task-3", round=1)
            assert [frame async for frame in others[1].market.FetchModel(request)]
            await others[2].market.ReportProgress(
                market_pb2.ReportProgressRequest(task_id="task-3", round=1, done_millionths=1)
            )
            for n, client in enumerate(others):
                await client.submit(model_like(n), 1)
            settled = await members[0].until("SETTLED")
            await members[0].until("CLOSED")
            seen = others[0].market.Watch(market_pb2.WatchRequest(task_id="task-3", cursor=settled.cursor))
            assert [event.state async for event in seen] == [market_pb2.TASK_STATE_CLOSED]
            paid = await others[1].market.GetSettlement(
                market_pb2.GetSettlementRequest(task_id="task-3", round=1)
            )
            assert paid.paid_micro > 0
            await others[0].market.GetTask(market_pb2.GetTaskRequest(task_id="task-2"))
            listed = await others[0].market.ListTasks(market_pb2.ListTasksRequest())
            assert [task.task_id for task in listed.tasks] == ["task", "task-2", "task-3"]
            await close([*members, *others])
        finally:
            await late.stop(0)


@pytest.mark.parametrize("stopped", [False, pytest.param(True, marks=pytest.mark.extended)])
async def test_an_upload_goes_on_at_another_front(tmp_path: Path, stopped: bool) -> None:
    large = {"weight": np.ones((1 << 20,), np.float32)}
    (tmp_path / "initial.safetensors").write_bytes(encode_model(large))
    async with fronts(tmp_path, 2, contract={"max_norm": "1000000"}) as (first, second):
        members = await in_training(second, NAMES)
        content = encode_model({"weight": np.arange(1 << 20, dtype=np.float32) / 1e4})
        statement = await members[0].model_statement(content, 1)

        async def half() -> AsyncIterator[market_pb2.SubmitModelRequest]:
            yield market_pb2.SubmitModelRequest(
                header=market_pb2.ModelHeader(model=signed(statement, members[0].key))
            )
            for message in frames(content)[: len(frames(content)) // 2 + 1]:
                yield message
            await asyncio.Event().wait()  # it neither ends nor goes on

        held = market_pb2.GetUploadRequest(task_id="task", submission_id=statement.submission_id)
        hanging = asyncio.ensure_future(refused(members[0].market.SubmitModel(half()), Code.QUOTA_EXCEEDED))
        other = at(members[0], first)
        async with asyncio.timeout(PATIENCE):
            while not (status := await other.market.GetUpload(held)).offset:
                await asyncio.sleep(0.02)
        assert not status.complete
        # The stream at the second front has not ended: it does, since the upload goes on here, unless that is stopped.
        if stopped:
            second.process.send_signal(signal.SIGSTOP)
        receipt = await other.submit(content, 1, offset=(await other.market.GetUpload(held)).offset)
        assert not receipt.late
        if stopped:
            second.process.send_signal(signal.SIGCONT)
        await hanging
        await close([*members, other])


async def test_late_word_of_an_older_stream_does_not_end_the_one_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_hear, heard_of, told = asyncio.Event(), [], listen

    async def hear_late(
        url: Any, begun: Callable[[], Awaitable[None]], heard: Callable[[Change], Awaitable[None]]
    ) -> None:
        async def late(change: Change) -> None:
            if change.kind is Kind.SENDS:
                await may_hear.wait()
            await heard(change)
            heard_of.append(change.kind)

        await told(url, begun, late)

    monkeypatch.setattr("coordinator.server.listen", hear_late)
    large = {"weight": np.ones((1 << 20,), np.float32)}
    (tmp_path / "initial.safetensors").write_bytes(encode_model(large))
    async with fronts(tmp_path, 1, contract={"max_norm": "1000000"}) as (first,):
        second = Coordinator(first.folder, front=Front(1, "127.0.0.1:0", "127.0.0.1:0"))
        await second.start()
        try:
            members = await in_training(first, NAMES)
            content = encode_model({"weight": np.arange(1 << 20, dtype=np.float32) / 1e4})
            statement = await members[0].model_statement(content, 1)
            other = at(members[0], second)
            held = market_pb2.GetUploadRequest(task_id="task", submission_id=statement.submission_id)

            async def some(offset: int, go_on: asyncio.Event) -> AsyncIterator[market_pb2.SubmitModelRequest]:
                """All frames but the last, which waits."""
                model = signed(statement, members[0].key)
                yield market_pb2.SubmitModelRequest(header=market_pb2.ModelHeader(model=model, offset=offset))
                *most, last = frames(content, offset)
                for message in most:
                    yield message
                await go_on.wait()
                yield last

            hanging = asyncio.ensure_future(
                refused(members[0].market.SubmitModel(some(0, asyncio.Event())), Code.QUOTA_EXCEEDED)
            )
            async with asyncio.timeout(PATIENCE):
                while not (offset := (await other.market.GetUpload(held)).offset):
                    await asyncio.sleep(0.02)
                going_on = other.market.SubmitModel(some(offset, go_on := asyncio.Event()))
                await going_on.initial_metadata()  # its frames are taken
                await hanging
            may_hear.set()
            await until(lambda: Kind.SENDS in heard_of)
            go_on.set()
            assert not (await going_on).late
            await close([*members, other])
        finally:
            await second.stop(0)


async def _rest(call: Any) -> None:
    """Reads a stream to its end."""
    while await call.read() is not grpc.aio.EOF:
        pass


@pytest.mark.extended
async def test_one_identity_has_one_session_whichever_front_it_is_at(tmp_path: Path) -> None:
    async with fronts(tmp_path, 2) as (first, second):
        ann = await enrol(first, "ann")
        here = await watched(ann)
        there = at(ann, second)
        watching = await watched(there)

        async with asyncio.timeout(PATIENCE):
            await refused(_rest(here), Code.SESSION_TAKEN_OVER)
        watching.cancel()
        await close([ann, there])


@pytest.mark.extended
async def test_who_watches_at_another_front_is_not_absent_and_who_has_left_is(tmp_path: Path) -> None:
    absence = 8.0
    schedule = {"round_seconds": 3600, "capacity": 5}
    async with fronts(tmp_path, 2, absence=absence, schedule=schedule) as (_, second):
        members = await in_training(second, ("ann", "bob", "cyd", "dan", "eve"))
        watch = await watched(members[3])
        for number, client in enumerate(members[:3]):
            await client.submit(model_like(number), 1)
        database = Database(second.folder.database_url(second.folder.config()))

        def eve_is_long_gone() -> bool:
            with database.read() as connection:
                heard = MarketStore(connection).heard("task")
            return heard.get("dan", 0.0) - heard.get("eve", math.inf) > 1.5 * absence

        await until(eve_is_long_gone)
        # dan watches at a front that does not lead, and is waited for.
        assert (await members[0].task()).state == market_pb2.TaskState.TASK_STATE_TRAINING
        await members[3].submit(model_like(3), 1)
        # eve never comes back, and is not.
        await members[0].until("CLOSED")
        watch.cancel()
        database.close()
        await close(members)
        assert verified(second.folder).counts.payments == 5


async def test_a_revocation_ends_streams_at_every_front(tmp_path: Path) -> None:
    async with fronts(tmp_path, 2) as (first, second):
        members = [await enrol(first, "ann"), await enrol(second, "bob")]
        calls = [await watched(at(members[0], second)), await watched(members[1])]
        for name in ("ann", "bob"):
            await asyncio.to_thread(revoke, first.folder, name)

        async with asyncio.timeout(PATIENCE):
            for call in calls:
                await refused(_rest(call), Code.CERTIFICATE_REVOKED)
        await close(members)


@pytest.mark.extended
async def test_new_certificates_reach_every_front(tmp_path: Path) -> None:
    def act(what: Callable[[Operator], Any]) -> Any:
        with closing(Operator(folder)) as operator:
            return what(operator)

    def serial(front_: FrontProcess) -> int:
        host, _, port = front_.public_address.rpartition(":")
        pem = ssl.get_server_certificate((host, int(port)))
        return x509.load_pem_x509_certificate(pem.encode()).serial_number

    async def listed(client: Client) -> grpc.RpcError | None:
        try:
            await client.market.ListTasks(market_pb2.ListTasksRequest())
        except grpc.RpcError as error:
            return error
        return None

    async with fronts(tmp_path, 2) as both:
        folder = both[0].folder
        made = await asyncio.to_thread(act, lambda operator: operator.renew_server([]))
        for front_ in both:
            await until(lambda: serial(front_) == made.certificate.serial_number)  # noqa: B023
        ann = await enrol(both[0], "ann")
        connected = [at(ann, front_) for front_ in both]
        for client in connected:
            await client.market.ListTasks(market_pb2.ListTasksRequest())
        await asyncio.to_thread(act, lambda operator: operator.begin_authority())
        bob = await enrol(both[1], "bob")
        for there in (at(bob, front_) for front_ in both):
            async with asyncio.timeout(PATIENCE):
                while await listed(there) is not None:
                    await asyncio.sleep(0.02)
            await there.close()
        await asyncio.to_thread(act, lambda operator: operator.end_authority(leave_behind=True))
        for client in connected:  # on open connections, too
            async with asyncio.timeout(PATIENCE):
                while (error := await listed(client)) is None:
                    await asyncio.sleep(0.02)
            found = refusal_of(error)
            assert found is not None
            assert found.code is Code.CERTIFICATE_REQUIRED
        await close(connected)


async def test_who_cannot_lead_leaves_it_to_another(tmp_path: Path) -> None:
    with scratch_url("postgresql", tmp_path) as database:
        folder = make_folder(tmp_path / "state", STORED.format(absence=60, database=database))
        schema = Database(database)
        migrate(schema)
        folder.control_socket.mkdir()  # where none can be made
        here = Coordinator(folder, front=Front(0, "127.0.0.1:0", "127.0.0.1:0"))
        await here.start()
        other = Lease(schema.url)
        try:
            await until(lambda: "standing by" in here.troubles())
            assert "control.sock cannot be made" in here.troubles()["standing by"]
            await until(other.attempt)
            folder.control_socket.rmdir()
            other.release()
            await until(folder.control_socket.is_socket)
        finally:
            other.release()
            await here.stop(0)
            schema.close()


async def test_a_machine_that_has_lost_the_folder_ends_while_others_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.fronts._LOOK_SECONDS", 0.02)
    monkeypatch.setattr("coordinator.fronts._GONE_SECONDS", 0.1)
    place, mounted = tmp_path / "place", tmp_path / "mounted"
    place.mkdir()
    looks: list[str] = []

    def gone(path: Path, begun: os.stat_result) -> str:
        looks.append(_gone(path, begun))
        return looks[-1]

    async def goes_on(found: str) -> bool:
        looks.clear()
        await until(lambda: watching.done() or looks.count(found) > 20)
        return not watching.done()

    monkeypatch.setattr("coordinator.fronts._gone", gone)
    begun = place.stat()
    with scratch_url("postgresql", tmp_path) as url:
        database = Database(url)
        migrate(database)
        leases = [FolderLease(database.url, "mark") for _ in range(2)]
        leases[0].take()
        watching = asyncio.create_task(_watch_folder(place, begun, database))
        place.rename(mounted)
        place.mkdir()
        # It waits for the folder where nobody else serves.
        assert await goes_on("is another folder by now: it was unmounted, or moved")
        leases[1].take()
        with pytest.raises(ServeError, match=r"another folder by now.*leaves the market to the others"):
            await asyncio.wait_for(watching, PATIENCE)
        place.rmdir()
        mounted.rename(place)
        watching = asyncio.create_task(_watch_folder(place, begun, database))
        assert await goes_on("")
        watching.cancel()
        for lease in leases:
            lease.release()
        database.close()


async def test_what_is_erased_is_served_no_more_at_any_front(tmp_path: Path) -> None:
    def act(folder: StateFolder) -> None:
        with closing(Operator(folder)) as operator:
            operator.cancel("task", "the learner withdrew")
            operator.revoke("ann", "as it asked")
            operator.forget("ann")

    async def told(client: Client, front: FrontProcess) -> Any:
        there = at(client, front)
        event = await there.until("SETTLED")
        await there.close()
        return event.round_settled.settlement

    async with fronts(tmp_path, 2, schedule={"rounds": 2}) as (first, second):
        members = await in_training(first, NAMES)
        for number, client in enumerate(members):
            await client.submit(model_like(number), 1)
        for front_ in (first, second):
            assert json.loads((await told(members[0], front_)).opening)["salt"]
        await asyncio.to_thread(act, first.folder)
        again = await enrol(
            second, "ann"
        )  # of which the other front hears after it has heard of what was erased
        for front_ in (second, first):
            assert not (await told(again, front_)).opening
        await close(members)


@pytest.mark.extended
async def test_a_front_that_loses_its_connections_to_the_database_reads_everything_again(
    tmp_path: Path,
) -> None:
    async with fronts(tmp_path, 2) as (first, second):
        members = [await enrol(second, name) for name in NAMES]
        database = Database(first.folder.database_url(first.folder.config()))
        with database.begin() as connection:
            ended = connection.execute(
                text(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                    "WHERE application_name = 'fedpeer changes' AND datname = current_database()"
                )
            ).scalar_one()
        database.close()
        assert ended >= 2
        await members[0].until("EFFORT")
        for client in members:
            await client.claim()
        for client in members:
            await client.until("TRAINING")
        await close(members)


async def test_fronts_need_postgresql_and_free_ports(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "sqlite")
    with pytest.raises(ServeError, match="one process serves; several fronts need PostgreSQL"):
        await serve_fronts(folder.path, 2)
    with scratch_url("postgresql", tmp_path) as database:
        folder = make_folder(tmp_path / "taken", STORED.format(absence=60, database=database))
        taken = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = taken.sockets[0].getsockname()[1]
        text = (folder.path / "coordinator.toml").read_text()
        (folder.path / "coordinator.toml").write_text(
            text.replace('market = "127.0.0.1:0"', f'market = "127.0.0.1:{port}"')
        )
        with pytest.raises(ServeError, match=r"server\.market = .* cannot be bound"):
            await serve_fronts(folder.path, 2)
        taken.close()
        await taken.wait_closed()


def holders(schema: Database) -> list[int]:
    """Processes of the server whose clients hold the right to serve from a folder."""
    with schema.read() as connection:
        return list(
            connection.execute(
                text(
                    "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = :class AND "
                    "objid = (hashtext(current_schema())::bigint & 4294967295)::oid"
                ),
                {"class": _FOLDER_CLASS},
            ).scalars()
        )


async def test_a_database_is_served_from_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads and model files of two folders would lie apart."""
    with scratch_url("postgresql", tmp_path) as database:
        first = make_folder(tmp_path / "first", STORED.format(absence=60, database=database))
        schema = Database(database)
        migrate(schema)
        second = StateFolder(tmp_path / "second")
        shutil.copytree(first.path, second.path)
        monkeypatch.setattr(Lease.take, "__defaults__", (0.0,))
        async with running(first):
            with pytest.raises(LeaseTaken, match="another coordinator already serves the database"):
                await serve_fronts(second.path, 1)
        # As it stands while the first one's fronts serve and none of them leads.
        lease = FolderLease(schema.url, "first")
        lease.take()
        for serve in (Coordinator(second).start, partial(serve_fronts, second.path, 1)):
            with pytest.raises(LeaseTaken):
                await serve()
        keeping = asyncio.create_task(_keep_lease(lease))
        await asyncio.sleep(0)
        [broken] = set(holders(schema))
        with schema.begin() as connection:
            connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": broken})
        await until(lambda: keeping.done() or not {broken, *holders(schema)} <= {broken})
        assert lease.held()
        keeping.cancel()
        lease.release()
        # Taken by another meanwhile: this one ends.
        other = FolderLease(schema.url, "second")
        other.take()
        monkeypatch.setattr("coordinator.fronts._LOST_SECONDS", 0.0)
        with pytest.raises(LeaseTaken):
            await _taken_again(lease)
        other.release()
        schema.close()


async def test_a_database_that_is_away_for_long_is_asked_again_as_soon_as_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within ten seconds of its return one of the fronts leads."""
    monkeypatch.setattr("coordinator.fronts._RETRY_SECONDS", 1e-3)
    monkeypatch.setattr("coordinator.fronts.AWAY_SECONDS", 2e-3)
    away = parse_url("postgresql+psycopg://market@127.0.0.1:1/market")
    with capture_logs() as lines:
        asking = asyncio.create_task(_taken_again(FolderLease(away, "mark")))
        await until(lambda: asking.done() or len(lines) >= 8)
        asking.cancel()
    assert [line["seconds"] for line in lines[:4]] == [1e-3, 2e-3, 2e-3, 2e-3]


async def test_a_front_that_has_ended_is_started_again_once_the_database_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.fronts._RETRY_SECONDS", math.inf)
    with scratch_url("postgresql", tmp_path) as database:
        schema = Database(database)
        migrate(schema)
        lease = FolderLease(schema.url, "mark")
        lease.take()
        front_ = _Front(0, ["--state", str(tmp_path / "nothing")])
        front_.serving.set_result(None)  # as it has before
        with capture_logs() as lines:
            keeping = (
                asyncio.create_task(front_.keep()),
                asyncio.create_task(_keep_lease(lease, front_.hurry)),
            )
            await until(lambda: len(lines) == 1)  # its end
            with schema.begin() as connection:
                [broken] = set(holders(schema))
                connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": broken})
            await until(lambda: sum("started again" in line["event"] for line in lines) == 2)
            for task in keeping:
                task.cancel()
        lease.release()
        schema.close()


def test_machines_that_start_at_the_same_instant_serve_together_and_copies_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 6
    begin, held = threading.Barrier(count, timeout=PATIENCE), threading.Barrier(count, timeout=PATIENCE)

    def start(folder: StateFolder) -> str:
        begin.wait()
        with folder.shared_lock() as mark:
            lease = FolderLease(database.url, mark)
            lease.take(wait_s=PATIENCE)
            held.wait()
            lease.release()
        return mark

    with scratch_url("postgresql", tmp_path) as url, ThreadPoolExecutor(count) as threads:
        folder = make_folder(tmp_path / "state", STORED.format(absence=60, database=url))
        database = Database(url)
        migrate(database)
        for _ in range(20):
            assert len(set(threads.map(start, [folder] * count))) == 1
        # Two that start together in a copy that was made while others serve do not take one another for those.
        with folder.shared_lock() as mark:
            serving = FolderLease(database.url, mark)
            serving.take()
            copy = StateFolder(tmp_path / "copy")
            shutil.copytree(folder.path, copy.path)
            with copy.shared_lock() as other, copy.shared_lock() as another:
                assert other == another
                with pytest.raises(LeaseTaken, match="alone, from another folder"):
                    FolderLease(database.url, other).take(wait_s=0)
            with pytest.raises(AlreadyServed), folder.lock():
                pass
            beside = FolderLease(database.url, mark)
            beside.take(wait_s=0)
            beside.release()
            serving.release()
            # Versions of one day, which differ at their end alone.
            monkeypatch.setattr("coordinator.storage.lease.version", lambda name: "1.20.0.dev5+g1234567")
            serving.take(wait_s=0)
            monkeypatch.setattr("coordinator.storage.lease.version", lambda name: "1.20.0.dev5+g1234568")
            with pytest.raises(LeaseTaken, match=r"by version .*67, beside which this one, .*68, does not"):
                beside.take(wait_s=0)
            serving.release()
        database.close()


async def test_fronts_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    with scratch_url("postgresql", tmp_path) as database:
        folder = make_folder(tmp_path / "state", STORED.format(absence=60, database=database))
        command = [
            "-m",
            "fedpeer",
            "coordinator",
            "serve",
            "--fronts",
            "2",
            "--json",
            "--state",
            str(folder.path),
        ]
        with (tmp_path / "log").open("ab") as log:
            served = await asyncio.create_subprocess_exec(
                sys.executable, "-P", *command, stdout=PIPE, stderr=log
            )
        assert served.stdout is not None
        assert json.loads(await served.stdout.readline())["addresses"]["market"].startswith("127.0.0.1:")
        children = Path(f"/proc/{served.pid}/task/{served.pid}/children").read_text().split()
        assert len(children) == 2
        served.kill()
        await served.wait()
        await until(lambda: not any(_alive(int(child)) for child in children))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
