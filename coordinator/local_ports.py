"""What the service has besides gRPC: ports of this machine, each for so many connections at once and for so long."""

import asyncio
from collections.abc import Awaitable, Callable

from fedpeer.protocol.limits import LocalLimits

#: Reads what one connection says, and writes what it is answered.
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def bounded(serve: Serve, limits: LocalLimits) -> Serve:
    """`serve` within its limits: a connection too many is closed at once, the others when their time is over."""
    places = asyncio.Semaphore(limits.connections)

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if places.locked():
            writer.close()
            return
        async with places:
            try:
                async with asyncio.timeout(limits.seconds):
                    await serve(reader, writer)
                    writer.close()
                    await writer.wait_closed()
            except (OSError, TimeoutError):
                pass  # the other end has left, or takes its time
            finally:
                writer.transport.abort()

    return served
