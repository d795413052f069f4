"""The page that Prometheus scrapes, over plain HTTP, within `fedpeer.protocol.limits.METRICS_PORT`.

The library's own server keeps a thread for every connection for as long as the other side likes.
"""

import asyncio

from prometheus_client import CollectorRegistry, generate_latest

from coordinator.local_ports import bounded
from fedpeer.protocol.limits import METRICS_PORT

#: Prometheus' text format, which every version of it reads.
_CONTENT = b"Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"


class MetricsServer:
    """Serves a registry from `start` to `close`, whatever the path."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Returns the port that it is bound to. Raises OSError where the address cannot be bound."""
        serve = bounded(self._serve, METRICS_PORT)
        self._server = await asyncio.start_server(serve, host, port, limit=METRICS_PORT.request_bytes)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return  # less than a request, or more than a scraper's
        if not head.startswith(b"GET "):
            writer.write(b"HTTP/1.1 405 Method Not Allowed\r\nAllow: GET\r\nConnection: close\r\n\r\n")
            return
        page = await asyncio.to_thread(generate_latest, self._registry)
        length = b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(page)
        writer.write(b"HTTP/1.1 200 OK\r\n" + _CONTENT + length + page)
