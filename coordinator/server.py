"""The service: two gRPC ports, one for participants and one for the public, and a runner for each task.

market port   mutual TLS: Market, Ledger, renewal of certificates
public port   TLS with the server's certificate alone: Enrolment, health, reflection, Ledger where allowed
"""

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import start_http_server

from coordinator.blobs import BlobStore
from coordinator.boundary import Authenticate, Boundary, caller
from coordinator.clock import Clock, SystemClock
from coordinator.config import ServerSection, ServiceConfig
from coordinator.doorbell import Doorbell
from coordinator.errors import ServeError
from coordinator.folder import StateFolder, write_private
from coordinator.identity import Caller, Enrolled, Roster, enrol, renew
from coordinator.live import Feed, Presence, first_of
from coordinator.market import Market
from coordinator.metrics import Metrics
from coordinator.quotas import Quotas
from coordinator.runner import LiveTask, TaskRunner, Workplace
from coordinator.services.enrolment import Enrol, EnrolmentServicer
from coordinator.services.ledger import LedgerServicer
from coordinator.services.market import MarketServicer
from coordinator.spool import Spool
from coordinator.storage.database import Database
from coordinator.storage.errors import LeaseLost, StorageError
from coordinator.storage.lease import Lease
from coordinator.storage.ledger import SignedLog
from coordinator.storage.market import EventRow, TaskRow
from coordinator.tracing import Tracing, exporting
from coordinator.transactions import Transaction, Transactions
from coordinator.uploads import Uploads
from protos.fedpeer.v1 import (
    enrolment_pb2,
    enrolment_pb2_grpc,
    ledger_pb2,
    ledger_pb2_grpc,
    market_pb2,
    market_pb2_grpc,
)
from wire.errors import Code, Refusal
from wire.limits import (
    CONNECTION_AGE_SECONDS,
    CONNECTION_GRACE_SECONDS,
    HANDSHAKE_SECONDS,
    IDLE_CONNECTION_SECONDS,
    KEEPALIVE_SECONDS,
    KEEPALIVE_TIMEOUT_SECONDS,
    MAX_MESSAGE_BYTES,
    MAX_STREAMS_PER_IDENTITY,
    OPEN_FILES,
    UPLOAD_WINDOW_BYTES,
)

log = structlog.get_logger()

#: Metadata key by which a caller names itself where there is no TLS.
INSECURE_NAME = "fedpeer-participant"

#: Parameters of glibc's mallopt (malloc.h), and what is kept: blocks of a few frames, and this much at the top of
#: each arena. Of those there are two: with one for every thread, each ends up keeping the frames of all uploads.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_KEPT_BLOCK_BYTES = 8 << 20
_KEPT_BYTES = 16 << 20
_ARENAS = 2

#: Seconds for which a model file may be without a row that refers to it: `open` writes the file first.
_UNCOMMITTED = 3600.0

#: Seconds in a day; retention is configured in days.
_DAY = 86_400.0

_SERVICES = (
    market_pb2.DESCRIPTOR.services_by_name["Market"].full_name,
    enrolment_pb2.DESCRIPTOR.services_by_name["Enrolment"].full_name,
    ledger_pb2.DESCRIPTOR.services_by_name["Ledger"].full_name,
)

_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", 16 << 10),
    # A few unary calls beside the streams of one identity.
    ("grpc.max_concurrent_streams", 2 * MAX_STREAMS_PER_IDENTITY),
    ("grpc.keepalive_time_ms", KEEPALIVE_SECONDS * 1000),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_SECONDS * 1000),
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_SECONDS * 500),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_SECONDS * 1000),
    ("grpc.max_connection_idle_ms", IDLE_CONNECTION_SECONDS * 1000),
    ("grpc.max_connection_age_ms", CONNECTION_AGE_SECONDS * 1000),
    ("grpc.max_connection_age_grace_ms", CONNECTION_GRACE_SECONDS * 1000),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", UPLOAD_WINDOW_BYTES),
    # A port that is taken is an error, not a second listener.
    ("grpc.so_reuseport", 0),
]


class Coordinator:
    """One service over one state folder. `start`, then `stop`; addresses are known in between.

    Raises:
        CoordinatorError, StorageError: on construction and on start, for what an operator can mend.
    """

    def __init__(
        self, folder: StateFolder, *, clock: Clock | None = None, tracing: Tracing | None = None
    ) -> None:
        self.folder = folder
        self.config: ServiceConfig = folder.config()
        self._tracing = tracing or exporting(self.config.tracing, self.config.name)
        self.metrics = Metrics()
        self._clock = clock or SystemClock()
        self._database = Database(folder.database_url(self.config))
        self._lease = Lease(self._database.url)
        self._looking: asyncio.Task[None] | None = None
        #: Set when the service must end by itself: it may no longer serve its database.
        self.halted = asyncio.Event()
        self._log = SignedLog(self._database, folder.signing_key())
        self._transact = Transactions(self._database, self._log, self._clock, self.metrics)
        self._roster = Roster()
        section = self.config.server
        blobs, spool = BlobStore(folder.models), Spool(folder.spool)
        self._work = Workplace(
            transact=self._transact,
            blobs=blobs,
            spool=spool,
            uploads=Uploads(spool, blobs, self.metrics, section.concurrent_uploads),
            clock=self._clock,
            metrics=self.metrics,
            tracing=self._tracing,
            absence_seconds=section.absence_seconds,
        )
        self.market = Market(self._work)
        self._quotas = Quotas(
            time.monotonic,
            rate=section.requests_per_second,
            streams=section.streams_per_participant,
            bytes_per_hour=section.bytes_per_hour,
        )
        self._doorbell = Doorbell(folder.doorbell, self.reload)
        self._reloading = asyncio.Lock()
        self._health = health.aio.HealthServicer()
        self._credentials = None if self.config.server.insecure else _ServerCertificate(folder)
        self._servers: list[grpc.aio.Server] = []
        self._runners: dict[str, asyncio.Task[None]] = {}
        self._housekeeping: asyncio.Task[None] | None = None
        self._exit = contextlib.ExitStack()
        self.market_address = ""
        self.public_address = ""
        self.metrics_address = ""

    async def start(self) -> None:
        """Takes up every task where it stands, and serves."""
        self._exit.enter_context(self.folder.lock())
        try:
            await asyncio.to_thread(self._database.check_present)
            await asyncio.to_thread(self._lease.take)
            self._guard_lease()
            await asyncio.to_thread(self._database.migrate)
            await self._transact.sign_head()
            await asyncio.to_thread(self._work.blobs.prepare)
            await self._clear_spool()
            await self._bind()
            # First the bell: what a command changes after it has been read here is rung for.
            await self._doorbell.start()
            await self.reload()
            for server in self._servers:
                await server.start()
            await self._set_health(health_pb2.HealthCheckResponse.SERVING)
            write_private(self.folder.addresses, json.dumps(self.addresses()).encode())
        except BaseException:
            await self.stop(0)
            raise
        self._housekeeping = asyncio.create_task(self._keep_house(), name="housekeeping")
        log.info("serving", market=self.market_address, public=self.public_address)

    async def stop(self, grace: float | None = None) -> None:
        """Drains: no new calls, watchers are sent away, uploads get `grace` seconds, steps in progress end."""
        grace = self.config.server.drain_seconds if grace is None else grace
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        draining = Refusal(Code.DRAINING, "The coordinator is shutting down.")
        for live in self.market.tasks():
            for name in live.presence.watching():
                live.presence.dismiss(name, draining)
        self.folder.addresses.unlink(missing_ok=True)
        await self._doorbell.stop()
        await asyncio.gather(*(server.stop(grace) for server in self._servers))
        tasks = [*self._runners.values(), *([self._housekeeping] if self._housekeeping else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._work.uploads.stop()
        await asyncio.to_thread(self._transact.stop)
        await asyncio.to_thread(self._tracing.close)
        self._database.close()
        self._leave_lease()
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

    async def reload(self) -> None:
        """Reads again what commands on the command line can change: participants and tasks."""
        async with self._reloading:  # two commands at once must not take up one task twice
            await self._reload()

    async def _reload(self) -> None:
        def read(t: Transaction) -> tuple[Any, Any, list[TaskRow]]:
            return t.market.participants(), t.market.certificates(), t.market.tasks()

        participants, certificates, rows = await self._transact.read(read)
        self._roster.load(participants, certificates)
        self._count_participants()
        known = {live.row.id: live for live in self.market.tasks()}
        for row in rows:
            if row.id not in known:
                await self._take_up(row)
        for live in known.values():
            for name in live.presence.watching():
                if self._roster.revoked(name):
                    live.presence.dismiss(
                        name, Refusal(Code.CERTIFICATE_REVOKED, f"{name!r} has been revoked.")
                    )
            live.changed.set()
        await self._follow_others(known, rows)

    def _guard_lease(self) -> None:
        """Has the event loop tell when the connection that holds the lease breaks."""
        if (descriptor := self._lease.descriptor) is None:
            return
        loop = asyncio.get_running_loop()

        def stirred() -> None:
            loop.remove_reader(descriptor)
            self._looking = asyncio.create_task(look(), name="lease")

        async def look() -> None:
            if await asyncio.to_thread(self._lease.held):
                loop.add_reader(descriptor, stirred)  # a notice of the server
                return
            log.error("the lease on the database is lost: its connection broke; the service ends")
            await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
            self.halted.set()

        loop.add_reader(descriptor, stirred)

    def _leave_lease(self) -> None:
        if (descriptor := self._lease.descriptor) is not None:
            asyncio.get_running_loop().remove_reader(descriptor)
        self._lease.release()

    async def _follow_others(self, known: Mapping[str, LiveTask], rows: Sequence[TaskRow]) -> None:
        """Tells watchers at once what a command did to a task; its runner may be busy for minutes."""
        for row in rows:
            live = known.get(row.id)
            if live is not None and live.row.version < row.version:
                cursor = live.feed.cursor
                live.feed.publish(await self._transact.read(_events(row.id, cursor)))

    async def _take_up(self, row: TaskRow) -> None:
        """Holds a task, and runs it where it has not ended."""
        events = await self._transact.read(lambda t: t.market.events(row.id))
        live = LiveTask(row, Feed(events), Presence(self._clock.now()))
        self.market.add(live)
        self.metrics.tasks.labels(row.state).inc()
        if not row.state.final:
            runner = TaskRunner(live, self._work)
            self._runners[row.id] = asyncio.create_task(runner.run(), name=f"task {row.id}")

    async def _clear_spool(self) -> None:
        """Deletes what a killed process left behind, interrupted uploads of running tasks apart."""
        rows = await self._transact.read(lambda t: t.market.tasks())
        running = {row.id for row in rows if not row.state.final}
        await asyncio.to_thread(self._work.spool.clear, running)

    async def _keep_house(self) -> None:
        """Once a day: deletes model files that no task needs any more."""
        while True:
            now = self._clock.now()
            before = now - self.config.storage.retention_days * _DAY
            try:
                keep = await self._transact.read(_referenced(before))
                freed = await asyncio.to_thread(self._work.blobs.retain, keep, time.time() - _UNCOMMITTED)
                log.info("model files swept", kept=len(keep), freed_bytes=freed)
            except (StorageError, OSError) as error:
                log.warning("model files could not be swept; tomorrow again", exc_info=error)
            await self._clock.wait(asyncio.Event(), now + _DAY)

    async def _enrol(self, participant_id: str, token: str, request: bytes) -> Enrolled:
        """An invitation for a certificate."""
        authority = await asyncio.to_thread(self.folder.authority)
        return await self._enrolled(
            lambda t: enrol(t.market, authority, participant_id, token, request, t.now)
        )

    async def _renew(self, participant_id: str, token: str, request: bytes) -> Enrolled:
        """A further certificate for a caller that has one."""
        who = caller()
        if participant_id != who.participant_id:
            raise Refusal(
                Code.WRONG_PARTICIPANT,
                f"The certificate is {who.participant_id!r}'s, not {participant_id!r}'s.",
            )
        authority = await asyncio.to_thread(self.folder.authority)
        return await self._enrolled(lambda t: renew(t.market, authority, who.participant_id, request, t.now))

    async def _enrolled(self, issue: Any) -> Enrolled:
        def act(t: Transaction) -> Enrolled:
            enrolled: Enrolled = issue(t)
            if enrolled.new_key:
                t.enrol(enrolled)
            return enrolled

        enrolled = await self._transact(act)
        self._roster.add(enrolled.participant)
        self._count_participants()
        log.info("participant enrolled", participant=enrolled.participant.id)
        return enrolled

    def _count_participants(self) -> None:
        good, revoked = self._roster.counts()
        self.metrics.participants.labels("enrolled").set(good)
        self.metrics.participants.labels("revoked").set(revoked)

    async def _bind(self) -> None:
        section = self.config.server
        if section.insecure:
            log.warning("INSECURE: no TLS; anyone who reaches the ports can act as any participant")
        authority = self.folder.authority().certificate_pem
        market = self._server(self._authenticate)
        market_pb2_grpc.add_MarketServicer_to_server(MarketServicer(self.market, self.metrics), market)
        self._add_enrolment(market, self._renew, authority)
        self._add_ledger(market)
        self.market_address = self._listen(market, "market", section.market, client_certificates=True)
        public = self._server(None)
        self._add_enrolment(public, self._enrol, authority)
        if section.public_ledger:
            self._add_ledger(public)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, public)
        if section.reflection:
            reflection.enable_server_reflection(
                (*_SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), public
            )
        self.public_address = self._listen(public, "public", section.public, client_certificates=False)
        if section.metrics:
            self._serve_metrics(section)

    def _server(self, authenticate: Authenticate | None) -> grpc.aio.Server:
        boundary = Boundary(authenticate, self._quotas, self.metrics, self._tracing)
        server = grpc.aio.server(interceptors=[boundary], options=_OPTIONS)
        self._servers.append(server)
        return server

    def _add_enrolment(self, server: grpc.aio.Server, act: Enrol, authority: bytes) -> None:
        enrolment_pb2_grpc.add_EnrolmentServicer_to_server(EnrolmentServicer(act, authority), server)

    def _add_ledger(self, server: grpc.aio.Server) -> None:
        ledger_pb2_grpc.add_LedgerServicer_to_server(
            LedgerServicer(self._transact, str(self._log.verification_key)), server
        )

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
            raise _taken(f"server.{key}", address) from None
        if bound == 0:
            raise _taken(f"server.{key}", address)
        return f"{host}:{bound}"

    def _serve_metrics(self, section: ServerSection) -> None:
        host, port = split_address("server.metrics", section.metrics)
        try:
            server, thread = start_http_server(port, host, registry=self.metrics.registry)
        except OSError:
            raise _taken("server.metrics", section.metrics) from None
        self.metrics_address = f"{host}:{server.server_port}"

        def close() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        self._exit.callback(close)

    def _authenticate(self, context: Any) -> Caller:
        if self._credentials is None:
            named = dict(context.invocation_metadata() or ()).get(INSECURE_NAME, "")
            return self._roster.believed(named)
        pem = context.auth_context().get("x509_pem_cert")
        if not pem:
            raise Refusal(Code.CERTIFICATE_REQUIRED, "The connection has no client certificate.")
        return self._roster.caller(pem[0], self._clock.now())

    async def _set_health(self, status: Any) -> None:
        for service in ("", *_SERVICES):
            await self._health.set(service, status)

    def reload_certificates(self) -> None:
        """Takes the server certificate and the authority from the folder again; for SIGHUP."""
        if self._credentials is not None:
            self._credentials.load()
            log.info("certificates read again")


class _ServerCertificate:
    """The server's certificate as gRPC takes it, exchangeable while connections are open."""

    def __init__(self, folder: StateFolder) -> None:
        self._folder = folder
        self._configurations: dict[bool, Any] = {}
        self.load()

    def load(self) -> None:
        """Reads certificate, key and authority. New connections use them; old ones stay."""
        identity = self._folder.server()
        pair = [(identity.key_pem, identity.certificate_pem)]
        authority = self._folder.authority().certificate_pem
        self._configurations = {
            True: grpc.ssl_server_certificate_configuration(pair, root_certificates=authority),
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


def _events(task_id: str, after: int) -> Callable[[Transaction], list[EventRow]]:
    return lambda t: t.market.events(task_id, after)


def _referenced(ended_before: float) -> Callable[[Transaction], set[bytes]]:
    return lambda t: t.market.referenced_models(ended_before)


def split_address(key: str, address: str) -> tuple[str, int]:
    """Host and port of "host:port".

    Raises:
        ServeError: it is not of that form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ServeError(f"{key} is {address!r}; expected host:port such as 0.0.0.0:7443")
    return host.strip("[]"), int(port)


def _taken(key: str, address: str) -> ServeError:
    return ServeError(
        f"{key} = {address!r} cannot be bound: the port is taken or not ours; stop what uses it, or "
        "change it in coordinator.toml"
    )


def keep_pages() -> None:
    """Tells glibc to keep the pages of frames that were freed: a stream otherwise faults in 256 fresh ones a frame.

    Does nothing under another C library.
    """
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BLOCK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_ARENA_MAX, _ARENAS)


def allow_open_files() -> None:
    """Raises this process's limit of open files as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def serve(folder: Path, announce: Callable[[dict[str, str]], None] | None = None) -> None:
    """Runs a coordinator until SIGTERM or SIGINT; SIGHUP reads certificates again.

    Args:
        announce: is told the addresses once calls are taken.

    Raises:
        AlreadyServed, LeaseTaken: another process serves the folder or the database.
        LeaseLost: while serving.
        ServeError: a port that is taken, a folder that cannot be written.
    """
    keep_pages()
    allow_open_files()
    coordinator = Coordinator(StateFolder(folder))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, coordinator.reload_certificates)
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
    ended = await first_of(coordinator.halted, stop)
    log.info("draining")
    await coordinator.stop(0 if ended is coordinator.halted else None)
    if coordinator.halted.is_set():
        raise LeaseLost(
            "the connection that holds the lease on the database broke, so another coordinator may serve it now; "
            "start this one again when the database can be reached"
        )
    if coordinator.computing:
        # All that counts is on the disk. The interpreter would wait for the thread, which may take minutes.
        log.info("evidence in progress is given up; it is computed again after the next start")
        sys.stderr.flush()
        os._exit(0)
