"""The service: two gRPC ports, one for participants and one for the public, and a runner for each task.

market port   mutual TLS: Market, Ledger, renewal of certificates
public port   TLS with the server's certificate alone: Enrolment, health, reflection, Ledger where allowed

One process does all of it, or several share the ports (`coordinator.fronts`): each answers calls, takes uploads and
hears of changes by the others; the one of them that has the lease on the database *leads*, which is to run the tasks,
keep house and answer commands. When it ends, another takes the lease, and leads.
"""

import asyncio
import contextlib
import gc
import hashlib
import math
import multiprocessing.util
import os
import resource
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import takewhile
from math import inf
from pathlib import Path
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from coordinator.admission import check_name
from coordinator.alarms import expiring, failing, full, stalled
from coordinator.blobs import open_blobs
from coordinator.boundary import Authenticate, Boundary, caller
from coordinator.certificates import OLD_AUTHORITY, Certificates, read_certificates
from coordinator.clock import Clock, SystemClock
from coordinator.commits import Transactions
from coordinator.config import ServerSection, ServiceConfig, split_address
from coordinator.console_process import keep_console
from coordinator.control_socket import ControlSocket
from coordinator.errors import FolderError, ServeError
from coordinator.folder import StateFolder
from coordinator.identity import Caller, Enrolled, Roster, enrol, renew
from coordinator.listening import listen
from coordinator.live import Feed, Presence
from coordinator.market import Market
from coordinator.metrics import Metrics
from coordinator.notices import KEPT_SECONDS, Alarm, Notices
from coordinator.quotas import Quotas
from coordinator.receiving import Uploads
from coordinator.retention import DAY, promises, retention_at
from coordinator.runner import LiveTask, TaskRunner, Workplace
from coordinator.scraping import MetricsServer
from coordinator.services.enrolment_servicer import Enrol, EnrolmentServicer
from coordinator.services.health_servicer import HealthServicer
from coordinator.services.ledger_servicer import LedgerServicer
from coordinator.services.market_servicer import MarketServicer
from coordinator.spool import Spool, UploadKey
from coordinator.storage.changes import Change, Kind
from coordinator.storage.lease import AWAY_SECONDS, FolderLease, Lease
from coordinator.storage.schema import migrate
from coordinator.storage.tasks import TaskRow
from coordinator.supervision import Duty, Supervisor
from coordinator.tracing import Tracing, exporting
from coordinator.transaction import Transaction
from coordinator.worker_folders import open_workers
from fedpeer.audit.sql.database import Database
from fedpeer.audit.sql.errors import LeaseLost
from fedpeer.audit.sql.ledger_store import SignedLog
from fedpeer.exit_codes import REFUSED
from fedpeer.protocol.certificates import CertificateError, certificate_name, load_certificate
from fedpeer.protocol.errors import Code, Refusal
from fedpeer.protocol.limits import (
    HANDSHAKE_SECONDS,
    IDLE_CONNECTION_SECONDS,
    KEEPALIVE_SECONDS,
    KEEPALIVE_TIMEOUT_SECONDS,
    MARKET_PORT,
    MAX_MESSAGE_BYTES,
    OPEN_FILES,
    PUBLIC_PORT,
    UNSEEN_SECONDS,
    PortLimits,
)
from fedpeer.streams import end_with_parent
from fedpeer.v1 import (
    enrolment_pb2,
    enrolment_pb2_grpc,
    ledger_pb2,
    ledger_pb2_grpc,
    market_pb2,
    market_pb2_grpc,
)
from mechanism.ledger.entries import deletion_id

log = structlog.get_logger()

#: Metadata key by which a caller names itself where there is no TLS.
INSECURE_NAME = "fedpeer-participant"

#: Seconds for which a model file may be without a row that refers to it: `open` writes the file first.
_UNCOMMITTED = 3600.0

#: Seconds after which a process that does not lead asks for the lease again.
_STAND_BY_SECONDS = 1.0

#: Seconds after which a front looks for new certificates without word of any.
_CERTIFICATES_SECONDS = 60.0

#: Parts of `absence_seconds` after which processes tell one another whom they have heard.
_HEARD_OFTEN = 4

#: Seconds after which the holder of a certificate that is refused is looked up again, and of how many that is
#: remembered.
_REFUSED_SECONDS, _REFUSED = 2.0, 10_000

_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_SERVICES = (
    market_pb2.DESCRIPTOR.services_by_name["Market"].full_name,
    enrolment_pb2.DESCRIPTOR.services_by_name["Enrolment"].full_name,
    ledger_pb2.DESCRIPTOR.services_by_name["Ledger"].full_name,
)


@dataclass(frozen=True)
class Front:
    """One of several processes that share the ports.

    Attributes:
        number: 0, 1, ...
        market, public: host:port; another process has seen to it that they are free.
    """

    number: int
    market: str
    public: str


def _options(port: PortLimits, *, shared: bool) -> list[tuple[str, int]]:
    """A port's limits as gRPC takes them."""
    return [
        ("grpc.max_receive_message_length", port.message_bytes),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_metadata_size", port.metadata_bytes),
        ("grpc.absolute_max_metadata_size", port.metadata_bytes),
        ("grpc.max_concurrent_streams", port.streams),
        ("grpc.max_allowed_incoming_connections", port.connections),
        ("grpc.keepalive_time_ms", KEEPALIVE_SECONDS * 1000),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_SECONDS * 1000),
        ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_SECONDS * 500),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_SECONDS * 1000),
        ("grpc.server_max_unrequested_time_in_server", UNSEEN_SECONDS),
        # Beyond 1,000 that wait gRPC cancels some at random, beyond 3,000 all.
        ("grpc.server.max_pending_requests", port.calls),
        ("grpc.server.max_pending_requests_hard_limit", port.calls),
        ("grpc.max_connection_idle_ms", IDLE_CONNECTION_SECONDS * 1000),
        ("grpc.max_connection_age_ms", port.age_seconds * 1000),
        ("grpc.max_connection_age_grace_ms", port.grace_seconds * 1000),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", port.window_bytes),
        # Where no other process is meant to listen, a port that is taken is an error.
        ("grpc.so_reuseport", int(shared)),
    ]


class Coordinator:
    """One service over one state folder. `start`, then `stop`; addresses are known in between.

    Args:
        console: host:port of the web console that is kept beside the service; empty: none.
        front: None: this process serves alone. Else the folder's lock is somebody else's to hold, and the schema's to
            make.

    Raises:
        CoordinatorError, StorageError: on construction and on start, for what an operator can repair.
    """

    def __init__(
        self,
        folder: StateFolder,
        *,
        clock: Clock | None = None,
        tracing: Tracing | None = None,
        console: str = "",
        front: Front | None = None,
    ) -> None:
        self.folder = folder
        self._front = front
        #: Whether this process runs the tasks.
        self._leads = False
        self._console = console
        self.config: ServiceConfig = folder.config()
        self._tracing = tracing or exporting(self.config.tracing, self.config.name)
        self.metrics = Metrics()
        self._clock = clock or SystemClock()
        self._database = Database(folder.database_url(self.config))
        self._lease = Lease(self._database.url)
        #: Of fronts, the process that has started them holds it.
        self._folder_lease = FolderLease(self._database.url)
        #: Set when the service must end by itself: it may no longer serve its database.
        self.halted = asyncio.Event()
        self._log = SignedLog(self._database, folder.signing_key(), folder.changed_signing_key)
        self._transact = Transactions(self._database, self._log, self._clock, self.metrics)
        self._notices = Notices(self.config, self._transact, self._clock, self.metrics, self._alarms)
        self._roster = Roster()
        section = self.config.server
        blobs, spool = open_blobs(folder.models, self.config.s3, folder.path), Spool(folder.spool)
        self._work = Workplace(
            transact=self._transact,
            blobs=blobs,
            spool=spool,
            uploads=Uploads(spool, blobs, self.metrics, section.concurrent_uploads),
            clock=self._clock,
            metrics=self.metrics,
            tracing=self._tracing,
            absence_seconds=section.absence_seconds,
            refused=self._notices.refused,
            workers=open_workers(self.config.workers, folder, blobs),
            shared=front is not None,
        )
        workers = self._work.workers
        self.metrics.worker_calls.set_function(lambda: workers.outstanding)
        self.metrics.workers_waited_for.set_function(lambda: bool(workers.trouble))
        for place, standing in enumerate(("enrolled", "revoked")):
            self.metrics.participants.labels(standing).set_function(
                lambda place=place: self._roster.counts()[place]  # type: ignore[misc]
            )
        self.market = Market(self._work, self._catch_up)
        self._quotas = Quotas(
            time.monotonic,
            rate=section.requests_per_second,
            streams=section.streams_per_participant,
            bytes_per_hour=section.bytes_per_hour,
        )
        self._supervisor = Supervisor(self.metrics, self._raise_alarm)
        self._control_socket = ControlSocket(
            folder.control_socket, self._follow, self.troubles, self.market.rounds
        )
        #: Set when somebody may have changed what is held in memory, and who waits for it to be read again.
        self._outdated = asyncio.Event()
        self._following: list[asyncio.Future[None]] = []
        #: Set when a command has made certificates.
        self._new_certificates = asyncio.Event()
        #: Held by who takes over what the database has.
        self._reading = asyncio.Lock()
        #: Certificates that were refused, by digest, and when their holders were looked up.
        self._refused_at: dict[bytes, float] = {}
        self._health = HealthServicer(("", *_SERVICES))
        self._certificates = read_certificates(folder, self.config.server, datetime.now(UTC))
        #: Why those in the folder are not served; "" where they are.
        self._refused_certificates = ""
        self._credentials = None if section.insecure else _ServerCredentials(self._certificates)
        self._use_certificates(self._certificates)
        self._servers: list[grpc.aio.Server] = []
        self._boundaries: list[Boundary] = []
        self._draining = False
        self._exit = contextlib.ExitStack()
        self.market_address = ""
        self.public_address = ""
        self.metrics_address = ""

    async def start(self) -> None:
        """Takes up every task where it stands, and serves."""
        if self._front is None:
            self._exit.enter_context(self.folder.lock())
        try:
            await asyncio.to_thread(self._database.check_present)
            if self._front is None:
                if self._database.dialect == "postgresql":
                    await asyncio.to_thread(self._folder_lease.take)
                await asyncio.to_thread(self._lease.take)
                await asyncio.to_thread(migrate, self._database)
            await asyncio.to_thread(self._work.blobs.prepare)
            await asyncio.to_thread(self._claim_blobs)
            await self._bind()
            if self._front is None:
                await self._lead()
            else:
                await self._follow_changes()
            for server in self._servers:
                await server.start()
            self._raise_alarm(self._supervisor.alarmed)  # what has been taken up may fail already
            if self._front is None:
                self.folder.write_addresses(self.addresses())
        except BaseException:
            await self.stop(0)
            raise
        if self._front is not None:
            self._supervisor.begin("presence", self._share_presence)
            self._supervisor.begin("new certificates", self._follow_certificates)
            self._supervisor.begin("standing by", self._stand_by, limit=AWAY_SECONDS)
        if self._notices.receivers:
            self._supervisor.begin("notices", lambda duty: self._notices.keep_noting(duty.well), vital=False)
        if self._console:
            self._supervisor.begin(
                "console", lambda duty: keep_console(self.folder.path, self._console, duty.well), vital=False
            )
        log.info("serving", market=self.market_address, public=self.public_address)

    async def _lead(self) -> None:
        """Runs the tasks from here on; this process has the lease."""
        for lease in (self._lease, self._folder_lease):
            self._guard_lease(lease)
        await self._transact.sign_head()
        await self._notices.forget_others()
        for live in self.market.tasks():
            await self._work.tell(Kind.TASK, live.row.id)  # what the one before has settled is signed for now
        await self._clear_spool()
        # First the control socket: what a command changes after the reading here is notified.
        await self._control_socket.start()
        await self._reload()
        self._leads = True
        for live in self.market.tasks():
            live.presence.begin_again(self._clock.now())
            self._run(live)
        self._supervisor.begin("commands", self._follow_commands)
        self._supervisor.begin("housekeeping", self._keep_house, vital=False)
        for name in self._notices.receivers:
            self._supervisor.begin(f"notices to {name}", self._sending(name), vital=False)

    async def _stand_by(self, duty: Duty) -> None:
        """Leads once the lease is to be had."""
        while not await asyncio.to_thread(self._lease.attempt):
            duty.well()
            await asyncio.sleep(_STAND_BY_SECONDS)
        log.info("this process leads from here on")
        try:
            await self._lead()
        except BaseException:
            if not self._leads:  # what stands in the way here may not do so elsewhere
                await self._control_socket.stop()
                self._leave_leases()
            raise

    async def _follow_certificates(self, duty: Duty) -> None:
        """Takes new certificates over on word of them, and by looking: they may be new here only in a moment, where
        the folder is a network's, and a command may have died before its word.
        """
        while True:
            await self._clock.wait(self._new_certificates, self._clock.now() + _CERTIFICATES_SECONDS)
            self._new_certificates.clear()
            self._take_certificates(await asyncio.to_thread(self._read_certificates))
            duty.well()

    async def _follow_changes(self) -> None:
        """Hears of what others change, from before everything is read."""
        read: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def follow(duty: Duty) -> None:
            async def begun() -> None:
                await self._reload()
                duty.well()
                if not read.done():
                    read.set_result(None)

            await listen(self._database.url, begun, self._take_over)

        self._supervisor.begin("changes", follow, limit=AWAY_SECONDS)
        await read

    async def _take_over(self, change: Change) -> None:
        """What another process has said."""
        match change.kind, change.subject:
            case Kind.TASK, (task_id,):
                await self._catch_up(task_id)
            case Kind.ARRIVED, (task_id, *_) if self._leads and (live := self.market.held(task_id)):
                live.arrived()
            case Kind.PERSON, (name,):
                await self._look_up(name)
            case Kind.WATCHES, (task_id, name) if live := self.market.held(task_id):
                live.presence.take_over(name, change.at)
            case Kind.PROGRESS, (task_id, name, number, done) if live := self.market.held(task_id):
                live.progress_of(int(number)).done_micro[name] = int(done)
            case Kind.CERTIFICATES, ():
                self._new_certificates.set()
            case Kind.SENDS, (task_id, name, submission_id, turn):
                self._work.uploads.places.hand_over(UploadKey(task_id, name, submission_id), int(turn))

    async def _look_up(self, name: str) -> None:
        """A participant whom another process has enrolled, renewed, revoked or forgotten."""
        self.market.person_changed(name)
        row, certificates = await self._transact.read(
            lambda t: (t.market.participant(name), t.market.certificates(name))
        )
        if row is not None:
            self._roster.add(row, certificates)
            self._end_streams(name)

    async def _catch_up(self, task_id: str) -> None:
        """Takes over what another process has done to a task, where there is such a task."""
        async with self._reading:
            await self._refresh(task_id)

    async def _refresh(self, task_id: str) -> None:
        """A task's events that another process has written; a settlement's once its receipts can be had.

        Who hears of a settlement asks for its receipt, which would be signed for.
        """
        live = self.market.held(task_id)
        cursor = 0 if live is None else live.feed.cursor
        row, events, signed = await self._transact.read(
            lambda t: (t.market.task(task_id), t.market.events(task_id, cursor), t.signed_size())
        )
        if row is None:
            return
        if live is None:
            await self._take_up(row)
            return
        live.feed.publish(takewhile(lambda event: event.detail.get("ledger_size", 0) <= signed, events))
        if self._leads:
            live.changed.set()
        elif live.row.version < row.version:
            self.metrics.tasks.labels(live.row.state).dec()
            self.metrics.tasks.labels(row.state).inc()
            live.row = row

    async def _share_presence(self, duty: Duty) -> None:
        """Whom this process has heard, for the one that leads, which waits for nobody that has gone."""
        pause = self.config.server.absence_seconds / _HEARD_OFTEN
        since = 0.0
        while True:
            now = self._clock.now()
            tasks = [live for live in self.market.tasks() if not live.row.state.final]
            signs = {live.row.id: live.presence.signs(since, now) for live in tasks}
            if any(signs.values()):
                await self._transact(_hearing(signs), durable=False)
            if self._leads:
                heard = await self._transact.read(_heard([live.row.id for live in tasks]))
                for live in tasks:
                    for name, at in heard[live.row.id].items():
                        live.presence.hear(name, at)
            since = now
            duty.well()
            await self._clock.wait(asyncio.Event(), now + pause)

    async def stop(self, grace: float | None = None) -> None:
        """Drains: no new calls, watchers are sent away, uploads get `grace` seconds, steps in progress end."""
        grace = self.config.server.drain_seconds if grace is None else grace
        self._draining = True
        self._health.set(health_pb2.HealthCheckResponse.NOT_SERVING)
        draining = Refusal(Code.DRAINING, "The coordinator is shutting down.")
        for live in self.market.tasks():
            live.presence.dismiss(draining)
        if self._front is None:
            self.folder.addresses.unlink(missing_ok=True)
        await self._control_socket.stop()
        await asyncio.gather(*(server.stop(grace) for server in self._servers))
        await self._supervisor.stop()
        for waiting in self._following:
            waiting.cancel()
        await self._notices.close()
        await self._work.uploads.stop()
        self._work.workers.close()
        await asyncio.to_thread(self._transact.stop)
        await asyncio.to_thread(self._tracing.close)
        self._database.close()
        self._leave_leases()
        self._exit.close()
        log.info("stopped")

    @property
    def computing(self) -> bool:
        """Whether evidence is being computed; a stop does not wait for it."""
        return self._transact.computing

    def addresses(self) -> dict[str, str]:
        """What the service is bound to, by port."""
        return {
            "market": self.market_address,
            "public": self.public_address,
            "metrics": self.metrics_address,
        }

    async def _reload(self) -> None:
        """Reads again what commands on the command line can change: certificates, participants and tasks."""
        self.reload_certificates()

        def read(t: Transaction) -> tuple[Any, Any, list[TaskRow]]:
            return t.market.participants(), t.market.certificates(), t.market.tasks()

        async with self._reading:
            participants, certificates, rows = await self._transact.read(read)
            self._roster.load(participants, certificates)
            self.market.person_changed()
            known = {live.row.id: live for live in self.market.tasks()}
            for row in rows:
                if (live := known.get(row.id)) is None:
                    await self._take_up(row)
                elif live.row.version < row.version:
                    await self._refresh(row.id)  # for watchers, at once: its runner may be busy for minutes
            self._end_streams()
            for live in known.values():
                live.changed.set()

    def troubles(self) -> dict[str, str]:
        """What does not go as it should, by the name of the duty or task, and why; for `status`."""
        broken = {f"task {live.row.id}": live.broken for live in self.market.tasks() if live.broken}
        certificates = {"certificates": self._refused_certificates} if self._refused_certificates else {}
        workers = {"workers": self._work.workers.trouble} if self._work.workers.trouble else {}
        return {
            **broken,
            **workers,
            **certificates,
            **self._supervisor.troubles(),
            **self._notices.troubles(),
        }

    def _sending(self, name: str) -> Callable[[Duty], Awaitable[None]]:
        return lambda duty: self._notices.keep_sending(name, duty.well)

    async def _alarms(self) -> list[Alarm]:
        """What the operator must see to; of several processes one looks."""
        if not self._leads:
            return []
        tasks, blobs = self.market.tasks(), self._work.blobs
        return [
            *stalled(tasks, self._clock.now()),
            *failing(self._supervisor.lasting_troubles()),
            *expiring(self._certificates, self._refused_certificates, datetime.now(UTC)),
            *await asyncio.to_thread(full, self.folder.path, tasks, blobs),
        ]

    def _end_streams(self, participant_id: str | None = None) -> None:
        """As of `Boundary`."""
        for boundary in self._boundaries:
            boundary.end_streams(participant_id)

    def _raise_alarm(self, lasting: bool) -> None:
        """Health follows duties that fail for long."""
        if self._draining:
            return
        status = health_pb2.HealthCheckResponse
        self._health.set(status.NOT_SERVING if lasting else status.SERVING)

    async def _follow(self) -> None:
        """Returns when everything has been read again, however often that takes."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._following.append(done)
        self._outdated.set()
        await done

    async def _follow_commands(self, duty: Duty) -> None:
        """Reads again what others have changed, after each notification and when a transaction finds it changed."""
        while True:
            await self._outdated.wait()
            self._outdated.clear()
            waiting, self._following = self._following, []
            try:
                await self._reload()
            except BaseException:
                self._following = waiting + self._following
                self._outdated.set()
                raise
            duty.well()
            for done in waiting:
                if not done.done():
                    done.set_result(None)

    def _guard_lease(self, lease: Lease) -> None:
        """Has the event loop tell when the connection that holds a lease breaks."""
        if (descriptor := lease.descriptor) is None:
            return
        loop = asyncio.get_running_loop()

        def readable() -> None:
            loop.remove_reader(descriptor)
            self._supervisor.begin("lease", look)

        async def look(_duty: Duty) -> None:
            if await asyncio.to_thread(lease.held):
                loop.add_reader(descriptor, readable)  # a notice of the server
                return
            log.error("the lease on the database is lost: its connection broke; the service ends")
            self._health.set(health_pb2.HealthCheckResponse.NOT_SERVING)
            self.halted.set()

        loop.add_reader(descriptor, readable)

    def _leave_leases(self) -> None:
        for lease in (self._lease, self._folder_lease):
            if (descriptor := lease.descriptor) is not None:
                asyncio.get_running_loop().remove_reader(descriptor)
            lease.release()

    async def _take_up(self, row: TaskRow) -> None:
        """Holds a task, and runs it where it has not ended."""
        events = await self._transact.read(lambda t: t.market.events(row.id))
        live = LiveTask(row, Feed(events), Presence(self._clock.now()))
        self.market.add(live)
        self.metrics.tasks.labels(row.state).inc()
        if self._leads:
            self._run(live)

    def _run(self, live: LiveTask) -> None:
        if not live.row.state.final:
            runner = f"task {live.row.id}"
            self._supervisor.begin(runner, lambda duty: TaskRunner(live, self._work).run(duty.well))

    async def _clear_spool(self) -> None:
        """Deletes what a killed process left, except interrupted uploads of running tasks."""
        rows = await self._transact.read(lambda t: t.market.tasks())
        running = {row.id for row in rows if not row.state.final}
        await asyncio.to_thread(self._work.spool.clear, running)

    async def _keep_house(self, duty: Duty) -> None:
        """Once a day, and when a task has promised it: deletes model files that no task needs any more."""
        while True:
            now = self._clock.now()
            following = await self._sweep_models()
            await self._transact(_sweep_rows)
            self._warn_of_expiry()
            duty.well()
            await self._clock.wait(asyncio.Event(), min(now + DAY, following))

    def _claim_blobs(self) -> None:
        self._work.blobs.claim(self._log.identity())

    async def _sweep_models(self) -> float:
        """Deletes them; returns when the next promise is due."""
        section, now = self.config.storage, self._clock.now()
        keep = await self._transact.read(
            lambda t: t.market.referenced_models(retention_at(t.market, section, now))
        )
        keep |= self._work.workers.needed
        await asyncio.to_thread(self._claim_blobs)
        freed = await asyncio.to_thread(self._work.blobs.retain, keep, time.time() - _UNCOMMITTED)
        log.info("model files swept", kept=len(keep), freed_bytes=freed)
        return await self._note_deletions()

    async def _note_deletions(self) -> float:
        """Logs of which tasks no submitted model is kept any more; returns when the next promise is due."""
        blobs, following = self._work.blobs, inf

        def promised(t: Transaction) -> list[tuple[TaskRow, float, set[bytes]]]:
            return [
                (task, until, t.market.sent_models(task.id))
                for task, until in promises(t.market)
                if not t.ledger_store.find([deletion_id(task.id)])
            ]

        for task, until, digests in await self._transact.read(promised):
            # Files younger than this are never deleted, those of late models among them.
            due = max(until, until - float(task.terms.schedule.retention_seconds or 0) + _UNCOMMITTED)
            if self._clock.now() < due:
                following = min(following, due)
            elif any(blobs.holds(digest) for digest in digests):
                following = min(following, self._clock.now() + _UNCOMMITTED)
            else:
                await self._transact(partial(Transaction.models_deleted, task=task))
                await self._transact.sign_head()
                log.info("submitted models were deleted", task=task.id)
        return following

    async def _enrol(self, participant_id: str, token: str, request: bytes) -> Enrolled:
        """An invitation for a certificate."""
        authority = await asyncio.to_thread(self.folder.authority)
        return await self._enrolled(
            lambda t: enrol(t.market, authority, participant_id, token, request, t.now)
        )

    async def _renew(self, participant_id: str, token: str, request: bytes) -> Enrolled:
        """A further certificate for a caller that has one."""
        who = caller()
        check_name(who, participant_id)
        authority = await asyncio.to_thread(self.folder.authority)
        return await self._enrolled(lambda t: renew(t.market, authority, who, request, t.now))

    async def _enrolled(self, issue: Any) -> Enrolled:
        def act(t: Transaction) -> Enrolled:
            enrolled: Enrolled = issue(t)
            if enrolled.new_key:
                t.enrol(enrolled)
            return enrolled

        enrolled = await self._transact(act)
        self._roster.add(enrolled.participant)
        # It may have been forgotten since it last had a key, by a command whose word is still on its way.
        self.market.person_changed(enrolled.participant.id)
        self._end_streams(enrolled.participant.id)  # of an earlier key
        log.info("participant enrolled", participant=enrolled.participant.id)
        return enrolled

    async def _bind(self) -> None:
        section = self.config.server
        if section.insecure:
            log.warning("INSECURE: no TLS; anyone who reaches the ports can act as any participant")
        market = self._server(self._authenticate, MARKET_PORT)
        market_pb2_grpc.add_MarketServicer_to_server(MarketServicer(self.market, self.metrics), market)
        self._add_enrolment(market, self._renew)
        self._add_ledger(market)
        given = self._front or section
        self.market_address = self._listen(market, "market", given.market, client_certificates=True)
        public = self._server(None, PUBLIC_PORT)
        self._add_enrolment(public, self._enrol)
        if section.public_ledger:
            self._add_ledger(public)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, public)
        if section.reflection:
            reflection.enable_server_reflection((*_SERVICES, _HEALTH, reflection.SERVICE_NAME), public)
        self.public_address = self._listen(public, "public", given.public, client_certificates=False)
        if section.metrics:
            await self._serve_metrics(section)

    def _server(self, authenticate: Authenticate | None, port: PortLimits) -> grpc.aio.Server:
        boundary = Boundary(
            authenticate,
            self._quotas,
            self.metrics,
            self._tracing,
            refusal_of=self._roster.refusal_of,
            outdated=self._outdated.set,
        )
        self._boundaries.append(boundary)
        server = grpc.aio.server(
            interceptors=[boundary],
            options=_options(port, shared=self._front is not None),
            maximum_concurrent_rpcs=port.calls,
        )
        self._servers.append(server)
        return server

    def _add_enrolment(self, server: grpc.aio.Server, act: Enrol) -> None:
        servicer = EnrolmentServicer(act, lambda: self._certificates.authorities_pem)
        enrolment_pb2_grpc.add_EnrolmentServicer_to_server(servicer, server)

    def _add_ledger(self, server: grpc.aio.Server) -> None:
        ledger_pb2_grpc.add_LedgerServicer_to_server(LedgerServicer(self._transact), server)

    def _listen(self, server: grpc.aio.Server, key: str, address: str, *, client_certificates: bool) -> str:
        host, _ = split_address(f"server.{key}", address)
        try:
            if self._credentials is None:
                bound = server.add_insecure_port(address)
            else:
                bound = server.add_secure_port(
                    address, self._credentials.for_port(client_certificates=client_certificates)
                )
        except RuntimeError:
            raise port_taken(f"server.{key}", address) from None
        if bound == 0:
            raise port_taken(f"server.{key}", address)
        return f"{host}:{bound}"

    async def _serve_metrics(self, section: ServerSection) -> None:
        host, port = split_address("server.metrics", section.metrics)
        if self._front is not None and port:
            port += self._front.number
        server = MetricsServer(self.metrics.registry)
        try:
            bound = await server.start(host, port)
        except OSError:
            raise port_taken("server.metrics", section.metrics) from None
        self.metrics_address = f"{host}:{bound}"
        self._exit.callback(server.close)

    async def _authenticate(self, context: Any) -> Caller:
        if self._credentials is None:
            named = dict(context.invocation_metadata() or ()).get(INSECURE_NAME, "")
            return self._roster.believed(named)
        pem = context.auth_context().get("x509_pem_cert")
        if not pem:
            raise Refusal(Code.CERTIFICATE_REQUIRED, "The connection has no client certificate.")
        now = self._clock.now()
        try:
            return self._roster.caller(pem[0], now)
        except Refusal:
            if self._front is None or not await self._looked_up(pem[0], now):
                raise
        return self._roster.caller(pem[0], now)

    async def _looked_up(self, pem: bytes, now: float) -> bool:
        """Looks up the holder of a certificate that is refused here: another process may have issued it just now.

        False where that was done a moment ago.
        """
        mark = hashlib.sha256(pem).digest()
        if now - self._refused_at.get(mark, -math.inf) < _REFUSED_SECONDS:
            return False
        if len(self._refused_at) >= _REFUSED:
            self._refused_at.clear()
        self._refused_at[mark] = now
        try:
            name = certificate_name(load_certificate(pem))
        except CertificateError:
            return False
        await self._look_up(name)
        return True

    def reload_certificates(self) -> None:
        """Takes the server certificate and the authorities from the folder again; for SIGHUP and commands.

        Where they cannot be used, those in force stay in force, and the log says what is wrong.
        """
        self._take_certificates(self._read_certificates())

    def _read_certificates(self) -> Certificates | FolderError:
        """Those in the folder, or why they cannot be used."""
        try:
            return read_certificates(self.folder, self.config.server, datetime.now(UTC))
        except FolderError as error:
            return error

    def _take_certificates(self, found: Certificates | FolderError) -> None:
        if isinstance(found, FolderError):
            log.error("the certificates were not taken over; those in force stay", why=str(found))
            self._refused_certificates = str(found)
            return
        self._refused_certificates = ""
        if found.pem == self._certificates.pem:
            return
        self._certificates = found
        self._use_certificates(found)
        log.info(
            "certificates read again", server_until=f"{found.server.certificate.not_valid_after_utc:%Y-%m-%d}"
        )

    def _use_certificates(self, certificates: Certificates) -> None:
        if self._credentials is not None:
            self._credentials.use(certificates)
        self._roster.trust(certificates.authorities)
        for name, end in certificates.ends().items():
            self.metrics.certificate_expiry.labels(name).set(end.timestamp())
        if len(certificates.authorities) == 1:
            with contextlib.suppress(KeyError):
                self.metrics.certificate_expiry.remove(OLD_AUTHORITY)
        self._warn_of_expiry()

    def _warn_of_expiry(self) -> None:
        for warning in self._certificates.warnings(datetime.now(UTC)).values():
            log.warning(warning)


class _ServerCredentials:
    """The server's certificate as gRPC takes it, exchangeable while connections are open."""

    def __init__(self, certificates: Certificates) -> None:
        self._configurations: dict[bool, Any] = {}
        self.use(certificates)

    def use(self, certificates: Certificates) -> None:
        """New connections use them; old ones stay."""
        pair = [(certificates.server.key_pem, certificates.server.certificate_pem)]
        self._configurations = {
            True: grpc.ssl_server_certificate_configuration(
                pair, root_certificates=certificates.authorities_pem
            ),
            False: grpc.ssl_server_certificate_configuration(pair),
        }

    def for_port(self, *, client_certificates: bool) -> grpc.ServerCredentials:
        served = self._configurations[client_certificates]

        def changed() -> Any:
            """Asked for every new connection. None is "as before", and spares gRPC a new TLS context each time."""
            nonlocal served
            current = self._configurations[client_certificates]
            if current is served:
                return None
            served = current
            return current

        return grpc.dynamic_ssl_server_credentials(
            served, changed, require_client_authentication=client_certificates
        )


def _sweep_rows(t: Transaction) -> None:
    t.market.sweep_notices(t.now - KEPT_SECONDS)
    t.market.sweep_presence()


def _hearing(signs: Mapping[str, Mapping[str, float]]) -> Callable[[Transaction], None]:
    def act(t: Transaction) -> None:
        for task_id, heard in signs.items():
            t.market.hear(task_id, heard)

    return act


def _heard(tasks: Sequence[str]) -> Callable[[Transaction], dict[str, dict[str, float]]]:
    return lambda t: {task_id: t.market.heard(task_id) for task_id in tasks}


def port_taken(key: str, address: str) -> ServeError:
    return ServeError(
        f"{key} = {address!r} cannot be bound: the port is taken or not ours; stop what uses it, or "
        "change it in coordinator.toml"
    )


def allow_open_files() -> None:
    """Raises this process's limit of open files as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def serve(
    folder: Path,
    announce: Callable[[dict[str, str]], None] | None = None,
    console: str = "",
    front: Front | None = None,
) -> None:
    """Runs a coordinator until SIGTERM or SIGINT; SIGHUP reads certificates again.

    Args:
        announce: called with the addresses once calls are taken.
        console: as `Coordinator`.
        front: as `Coordinator`; it ends with its standard input, too.

    Raises:
        AlreadyServed, LeaseTaken: another process serves the folder or the database.
        LeaseLost: while serving.
        ServeError: a port that is taken, a folder that cannot be written.
    """
    allow_open_files()
    coordinator = Coordinator(StateFolder(folder), console=console, front=front)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, coordinator.reload_certificates)
    if front is not None:
        end_with_parent(loop, stop.set)
    try:
        await coordinator.start()
    except OSError as error:  # a full disk, a lost right
        raise ServeError(
            f"{error.filename or folder} cannot be written: {error.strerror or error}; nothing was changed"
        ) from error
    if announce is not None:
        announce(coordinator.addresses())
    # What is here now stays, libraries for the most part: later collections need not go through it.
    gc.collect()
    gc.freeze()
    waits = [asyncio.create_task(event.wait()) for event in (coordinator.halted, stop)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    log.info("draining")
    await coordinator.stop(0 if coordinator.halted.is_set() else None)
    lost = (
        "the connection that holds the lease on the database broke, so another coordinator may serve it now; "
        "start this one again when the database can be reached"
    )
    if coordinator.computing:
        # All that counts is on the disk. The interpreter would wait for the thread, which may take minutes.
        log.info("evidence in progress is given up; it is computed again after the next start")
        # Of what an end by itself would do and this one does not: pools of processes have semaphores with names, which
        # Python's resource tracker would find left behind. The processes follow this one.
        multiprocessing.util._run_finalizers(0)  # type: ignore[attr-defined]
        if coordinator.halted.is_set():
            sys.stderr.write(f"fedpeer: {lost}\n")
        sys.stderr.flush()
        os._exit(REFUSED if coordinator.halted.is_set() else 0)  # as `LeaseLost` ends a command
    if coordinator.halted.is_set():
        raise LeaseLost(lost)
