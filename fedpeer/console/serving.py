"""The console's process: an address, a server for it, and its end."""

import asyncio
import contextlib
import ipaddress
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import structlog
import uvicorn

from coordinator.config import split_address
from coordinator.errors import ServeError
from coordinator.folder import StateFolder
from coordinator.operator import reachable
from fedpeer.console.addresses import announced
from fedpeer.console.client_certificates import CertificateProtocol
from fedpeer.console.errors import ConsoleError
from fedpeer.console.reading import Reader
from fedpeer.console.site import Console
from fedpeer.protocol.certificates import certificate_hosts
from fedpeer.streams import end_with_parent

log = structlog.get_logger()

#: Seconds that answers in progress get at the end.
_GRACE_SECONDS = 2

#: Seconds between two looks at the certificate's file.
_CERTIFICATE_SECONDS = 30.0

#: Connections that wait to be taken.
_BACKLOG = 512


def loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine alone."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def where(address: str) -> tuple[str, int]:
    """Host and port of --listen.

    Raises:
        ConsoleError: it is not host:port.
    """
    try:
        return split_address("--listen", address)
    except ServeError as error:
        raise ConsoleError(str(error)) from None


class ConsoleServer:
    """A console on a bound socket.

    Args:
        state: the coordinator's state folder.
        address: host:port; port 0 takes a free one. Not on loopback it serves TLS with the coordinator's certificate.
        results: a folder of the arena's and the figures' results.

    Attributes:
        url: where it is, without a slash at the end.

    Raises:
        CoordinatorError, StorageError, ConsoleError: the folder, its database or the address cannot be used.
    """

    def __init__(
        self, state: StateFolder, address: str, reader: Reader | None = None, results: Path | None = None
    ) -> None:
        host, port = where(address)
        self._reader, self._folder = reader or Reader(state), state.console
        secure = not loopback(host)
        hosts = certificate_hosts(state.server().certificate) if secure else []
        names = {host, "localhost", "127.0.0.1", "::1", *hosts, *self._reader.config.server.hosts}
        #: Files of the certificate and its key; empty where there is no TLS.
        self._certificate = (state.path / "server.pem", state.path / "server.key") if secure else ()
        self._authorities = state.path / "authority.pem"
        options: dict[str, Any] = dict(zip(("ssl_certfile", "ssl_keyfile"), self._certificate, strict=False))
        if secure:
            options |= {"ssl_cert_reqs": ssl.CERT_OPTIONAL, "ssl_ca_certs": self._authorities}
        self.console = Console(self._reader, sorted(names), secure=secure, results=results)
        self._socket = _bound(host, port)
        place = reachable(f"{host}:{self._socket.getsockname()[1]}", hosts)
        self.url = f"{'https' if secure else 'http'}://{place}"
        self._server = _ConsoleServer(
            uvicorn.Config(
                self.console.application(),
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                http=CertificateProtocol,
                timeout_graceful_shutdown=_GRACE_SECONDS,
                **options,
            ),
            self.console.end,
        )

    async def serve(self) -> None:
        """Serves until `stop`."""
        renewing = asyncio.create_task(self._follow_certificate())
        try:
            with announced(self._folder, self.url):
                await self._server.serve(sockets=[self._socket])
        finally:
            renewing.cancel()
            self._socket.close()
            self._reader.close()

    async def _follow_certificate(self) -> None:
        """Takes a renewed certificate for new connections, within a minute."""
        if not self._certificate:
            return
        files = (self._certificate[0], self._authorities)
        taken = [await asyncio.to_thread(file.read_bytes) for file in files]
        while True:
            await asyncio.sleep(_CERTIFICATE_SECONDS)
            try:
                found = [await asyncio.to_thread(file.read_bytes) for file in files]
                context = self._server.config.ssl
                if found == taken or context is None:
                    continue
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                    *self._certificate
                )  # a pair, or neither
                context.load_cert_chain(*self._certificate)
                context.load_verify_locations(self._authorities)
                taken = found
                log.info("the console has taken the renewed certificate")
            except OSError as error:  # ssl.SSLError is one
                log.warning("the renewed certificate cannot be taken yet; it is tried again", why=str(error))

    def stop(self) -> None:
        """Ends it; from the thread of its event loop, or from a signal."""
        self._server.leave()


class _ConsoleServer(uvicorn.Server):
    """Ends streams first, which would hold up its end; leaves signals to the process."""

    def __init__(self, config: uvicorn.Config, before: Callable[[], None]) -> None:
        super().__init__(config)
        self._before = before

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def leave(self) -> None:
        self._before()
        self.should_exit = True


async def run(
    state: Path,
    address: str,
    announce: Callable[[str], None],
    *,
    results: Path | None = None,
    with_parent: bool = False,
) -> None:
    """Serves the console until SIGTERM or SIGINT.

    Args:
        announce: called with the URL once it listens.
        results: as `ConsoleServer`.
        with_parent: end also when standard input ends, as it does when the process that holds its other end does.
    """
    server = ConsoleServer(StateFolder(state), address, results=results)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    if with_parent:
        end_with_parent(loop, server.stop)
    announce(server.url)
    await server.serve()


def _bound(host: str, port: int) -> socket.socket:
    """A socket on the address.

    Raises:
        ConsoleError: it is taken, or not this machine's.
    """
    try:
        kind, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        made = socket.socket(kind, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(place)
        made.listen(_BACKLOG)
    except OSError as error:
        raise ConsoleError(
            f"the console cannot listen on {host}:{port} ({error.strerror or error}); name another with --listen"
        ) from None
    return made
