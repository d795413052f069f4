"""Several processes that serve one market: `fedpeer coordinator serve --fronts N`, on one machine or on several.

    this process    holds the right to serve from the folder, to serve the database from it, and the ports' numbers;
                    starts the fronts, and again which ends
    N fronts        share the ports (SO_REUSEPORT), the database (PostgreSQL), the spool and the model files; one of
                    them leads, see `coordinator.server`

The kernel gives a new connection to one of the fronts, and so does a balancer of TCP before machines that have the
state folder mounted. A front keeps nothing that is not in the database or the folder: whose front has ended connects
again, to another, and goes on there, in the middle of an upload too.
"""

import asyncio
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import structlog

from coordinator.config import split_address
from coordinator.control_socket import check_place
from coordinator.errors import AlreadyServed, FolderError, ServeError
from coordinator.folder import StateFolder
from coordinator.server import allow_open_files, port_taken
from coordinator.storage.lease import AWAY_SECONDS, FolderLease, Lease, machines
from coordinator.storage.schema import migrate
from fedpeer.audit.sql.database import Database
from fedpeer.audit.sql.errors import LeaseTaken, StorageError

log = structlog.get_logger()

#: Seconds until a front that has ended is started again, doubled up to the second figure.
_RETRY_SECONDS, _RETRY_LIMIT_SECONDS = 0.5, 30.0

#: Seconds for which a lease that was ours is waited for: a server notices after 7 that a connection is dead.
_LOST_SECONDS = 20.0

#: Seconds between two looks at the folder, and for which it may be gone while other machines serve.
_LOOK_SECONDS, _GONE_SECONDS = 2.0, 10.0

#: Seconds beyond the time for draining that a front gets to end.
_END_SECONDS = 10.0


async def serve_fronts(
    path: Path,
    count: int,
    announce: Callable[[dict[str, str]], None] | None = None,
    console: str = "",
    *,
    verbose: bool = False,
) -> None:
    """Serves by `count` processes until SIGTERM or SIGINT; SIGHUP has them read certificates again.

    Args:
        announce: called with the addresses once all take calls.
        console: host:port of the web console beside the first of them; empty: none.

    Raises:
        AlreadyServed: a process that has no fronts serves the folder.
        FolderError: the folder cannot be written, or not be shared.
        LeaseTaken: the database is served from another folder; also later, where that took it over while the database
            could not be reached.
        ServeError: the market is on SQLite, which has one process; a port is taken; a front ends before it serves;
            also later, where the folder is gone from this machine and others serve.
    """
    folder = StateFolder(path)
    config = folder.config()
    begun = path.stat()
    check_place(folder.control_socket)
    allow_open_files()
    with ExitStack() as held:
        held.callback(_forget_addresses, folder)
        mark = held.enter_context(folder.shared_lock())
        database = Database(folder.database_url(config))
        lease = FolderLease(database.url, mark)
        held.callback(lease.release)
        await asyncio.to_thread(_prepare, database, lease)
        addresses = {
            name: held.enter_context(_reserved(f"server.{name}", address))
            for name, address in (("market", config.server.market), ("public", config.server.public))
        }
        words = ["--market", addresses["market"], "--public", addresses["public"], "--state", str(path)]
        words += ["--verbose"] if verbose else []
        fronts = [
            _Front(n, [*words, *(["--console", console] if console and not n else [])]) for n in range(count)
        ]
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)

        def reread() -> None:
            for front in fronts:
                front.send(signal.SIGHUP)

        loop.add_signal_handler(signal.SIGHUP, reread)
        stopped = asyncio.create_task(stop.wait())
        keeping = [asyncio.create_task(front.keep()) for front in fronts]

        def hurry() -> None:
            for front in fronts:
                front.hurry()

        keeping.append(asyncio.create_task(_keep_lease(lease, hurry)))
        keeping.append(asyncio.create_task(_watch_folder(path, begun, database)))
        try:
            ready = asyncio.gather(*(front.serving for front in fronts))
            waits: list[asyncio.Future[Any]] = [ready, stopped, *keeping]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                try:
                    folder.write_addresses(addresses)
                except FolderError as error:  # a disk that is full: participants are served all the same
                    log.error("commands do not hear of the addresses", why=str(error))
                if announce is not None:
                    announce(addresses)
                log.info("all fronts serve", fronts=count, **addresses)
                await asyncio.wait([stopped, *keeping], return_when=asyncio.FIRST_COMPLETED)
            for each in keeping:
                if each.done():
                    each.result()  # it has ended before it served, or the lease has gone, and says why
        finally:
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)
            await asyncio.gather(*(front.end(config.server.drain_seconds) for front in fronts))


def _forget_addresses(folder: StateFolder) -> None:
    if folder.addresses.exists():  # and with it the folder
        with suppress(AlreadyServed, FolderError, OSError), folder.lock():  # no other machine serves
            folder.addresses.unlink(missing_ok=True)


class _Front:
    """One front: a process, and the next one where that ends."""

    def __init__(self, number: int, words: list[str]) -> None:
        self._number = number
        self._words = words
        self._process: Process | None = None
        #: Done once it has taken calls for the first time.
        self.serving: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._hurried = asyncio.Event()

    async def keep(self) -> None:
        """Starts it, and starts it again, until it is cancelled.

        Raises:
            ServeError: it has never served.
        """
        retry = _RETRY_SECONDS
        while True:
            command = ["-m", "fedpeer", "coordinator", "front", "--number", str(self._number), *self._words]
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", *command, stdin=PIPE, stdout=PIPE
            )
            assert self._process.stdout is not None  # a pipe
            if await self._process.stdout.readline():
                retry = _RETRY_SECONDS
                if not self.serving.done():
                    self.serving.set_result(None)
            code = await self._process.wait()
            if not self.serving.done() and code > 0:  # and was not killed
                raise ServeError(
                    f"front {self._number} ended with exit code {code} before it served; its own words are in this log"
                )
            log.error("a front ended; it is started again", front=self._number, code=code, seconds=retry)
            self._hurried.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurried.wait(), retry)
            retry = _RETRY_SECONDS if self._hurried.is_set() else min(2 * retry, _RETRY_LIMIT_SECONDS)

    def hurry(self) -> None:
        """What it has ended for may be over: it is started again at once."""
        self._hurried.set()

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            if self._process is not None and self._process.returncode is None:
                self._process.send_signal(number)

    async def end(self, drain_seconds: float) -> None:
        """Has it drain, and kills it where it does not end."""
        self.send(signal.SIGTERM)
        if self._process is not None:
            try:
                await asyncio.wait_for(self._process.wait(), drain_seconds + _END_SECONDS)
            except TimeoutError:
                self.send(signal.SIGKILL)
                await self._process.wait()


async def _keep_lease(lease: Lease, again: Callable[[], None] = lambda: None) -> None:
    """Takes the lease again where its connection breaks, and calls `again` then, until it is cancelled.

    Raises:
        LeaseTaken: somebody else has it.
    """
    loop = asyncio.get_running_loop()
    while True:
        descriptor, said = lease.descriptor, asyncio.Event()
        assert descriptor is not None  # PostgreSQL's
        loop.add_reader(descriptor, said.set)
        try:
            await said.wait()
        finally:
            loop.remove_reader(descriptor)
        if not await asyncio.to_thread(lease.held):  # and not a notice of the server
            log.warning("the connection of the lease on the folder's database broke; it is taken again")
            await _taken_again(lease)
            again()


async def _taken_again(lease: Lease) -> None:
    retry = _RETRY_SECONDS
    while True:
        lease.release()
        try:
            await asyncio.to_thread(lease.take, _LOST_SECONDS)
        except LeaseTaken:
            raise
        except StorageError as error:
            log.warning("the database cannot be reached", why=str(error), seconds=retry)
        else:
            log.info("the lease is held again")
            return
        await asyncio.sleep(retry)
        retry = min(2 * retry, AWAY_SECONDS)


async def _watch_folder(path: Path, begun: os.stat_result, database: Database) -> None:
    """Looks whether the folder is still there, until it is cancelled.

    Participants stay with the machine that they are connected to: where theirs has lost the folder it must end for them
    to come to another. Where there is none, or the database is away, it waits for the folder.

    Args:
        begun: the folder as it was when this machine began to serve.

    Raises:
        ServeError: it is not, and other machines serve.
    """
    well, said = time.monotonic(), ""
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        gone = await asyncio.to_thread(_gone, path, begun)
        if gone != said:
            said = gone
            if gone:
                log.error("the state folder is not what it was", path=str(path), why=gone)
            else:
                log.info("the state folder is there again", path=str(path))
        if not gone:
            well = time.monotonic()
        elif time.monotonic() - well >= _GONE_SECONDS:
            with suppress(StorageError):
                if await asyncio.to_thread(machines, database) > 1:
                    raise ServeError(
                        f"{path} {gone}, so this machine ends and leaves the market to the others; mount the folder "
                        "again, and start it"
                    )


def _gone(path: Path, begun: os.stat_result) -> str:
    """What has become of the folder; "" where nothing has."""
    try:
        if not os.path.samestat(path.stat(), begun):
            return "is another folder by now: it was unmounted, or moved"
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            return "has become read-only"
    except OSError as error:
        return f"cannot be reached: {error.strerror}"
    return ""


def _prepare(database: Database, lease: Lease) -> None:
    """Sees to it that no other folder serves the database, and brings its schema to this version, for all fronts."""
    try:
        if database.dialect != "postgresql":
            raise ServeError(
                f"{database.display} is a SQLite file, which one process serves; several fronts need PostgreSQL: "
                "set storage.database in coordinator.toml, or leave --fronts away"
            )
        database.check_present()
        lease.take()
        migrate(database)
    finally:
        database.close()


@contextmanager
def _reserved(key: str, address: str) -> Iterator[str]:
    """host:port, which stays the fronts' own: this process's socket has the port and never listens.

    Raises:
        ServeError: the port is taken.
    """
    host, port = split_address(key, address)
    taken = port_taken(key, address)
    try:
        family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        alone = socket.socket(family, socket.SOCK_STREAM)
        with alone:  # who shares a port cannot tell whether others use it
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(where)
            number = alone.getsockname()[1]
        shared = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        raise taken from None
    with shared:
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            shared.bind((where[0], number, *where[2:]))
        except OSError:
            raise taken from None
        yield f"{address.rpartition(':')[0]}:{number}"
