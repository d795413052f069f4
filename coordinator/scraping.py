"""The page that Prometheus scrapes, over plain HTTP, within `fedpeer.protocol.limits.METRICS_PORT`.

The library's own server keeps a thread for every connection for as long as the other side likes.
"""

import contextlib
import socket
import threading
from socketserver import ThreadingMixIn
from typing import Any, Protocol
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from fedpeer.protocol.limits import METRICS_PORT


class MetricsServer:
    """Serves a registry from construction to `close`.

    Attributes:
        port: that it is bound to.

    Raises:
        OSError: on construction, where the address cannot be bound.
    """

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        server = type("Server", (_Server,), {"address_family": family})
        self._server: _Server = server((host, port), _Handler)
        self._server.set_app(make_wsgi_app(registry))
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingMixIn, WSGIServer):
    """Closes what is beyond its connections, and every connection after its time."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        self._places = threading.BoundedSemaphore(METRICS_PORT.connections)
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # Not WSGIServer's: it asks the system for the host's name, which may take seconds.
        super(WSGIServer, self).server_bind()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        clock = threading.Timer(METRICS_PORT.seconds, _hang_up, (request,))
        clock.daemon = True
        clock.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            clock.cancel()
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that either side closes is no error to log."""


class _Handler(WSGIRequestHandler):
    def setup(self) -> None:
        super().setup()
        self.rfile: Any = _Bounded(self.rfile, METRICS_PORT.request_bytes)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Scrapes are not logged."""


class _Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...

    def readline(self, size: int = -1, /) -> bytes: ...

    def close(self) -> None: ...


class _Bounded:
    """A stream of so many bytes, the newline of its last line included; more are an error."""

    def __init__(self, stream: _Readable, size: int) -> None:
        self._stream = stream
        self._left = size

    def read(self, size: int = -1) -> bytes:
        return self._taken(self._stream.read(self._within(size)))

    def readline(self, size: int = -1) -> bytes:
        return self._taken(self._stream.readline(self._within(size)))

    def close(self) -> None:
        self._stream.close()

    @property
    def closed(self) -> bool:
        return bool(getattr(self._stream, "closed", False))

    def _within(self, size: int) -> int:
        return self._left if size < 0 else min(size, self._left)

    def _taken(self, data: bytes) -> bytes:
        self._left -= len(data)
        if self._left <= 0:
            raise ConnectionAbortedError("a request larger than a scraper's")
        return data


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
