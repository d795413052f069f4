"""The web console beside a service: a process of its own, which ends with the service, however that ends.

Its standard input is a pipe that nobody writes to: it ends when the service's process does, and the console with it.
"""

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable
from pathlib import Path

import structlog

from coordinator.errors import ServeError

log = structlog.get_logger()

#: Seconds that the console gets to end.
_END_SECONDS = 5.0


async def keep_console(folder: Path, address: str, well: Callable[[], None]) -> None:
    """Runs the console on `address`, host:port, until it is cancelled.

    Args:
        well: called once the console listens.

    Raises:
        ServeError: it has ended by itself; its own words stand on standard error.
    """
    command = ("console", "--state", str(folder), "--listen", address, "--with-parent", "--json")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "fedpeer", *command, stdin=PIPE, stdout=PIPE
    )
    assert process.stdout is not None  # a pipe
    try:
        if said := await process.stdout.readline():
            log.info("the console listens", said=said.decode().strip())
            well()
        code = await process.wait()
        raise ServeError(
            f"the console on {address} ended with exit code {code}; its own words are in this log"
        )
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), _END_SECONDS)
            except TimeoutError:
                process.kill()
                await process.wait()
