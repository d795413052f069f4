"""How a command on the command line reaches a running service: it changes the database, then rings.

The service listens on a Unix socket in its state folder, which only the folder's owner can reach. A ring makes
it read again what others can change (tasks, participants, revocations); the answer comes when that has been
done, so that `fedpeer coordinator revoke` returns when the revocation is in force. The database stays the only
truth: without a running service nobody answers, and nothing is lost. That nobody answers does not mean that nobody
serves: the database's lease says that.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

import structlog

log = structlog.get_logger()

#: Longest path of a Unix socket on Linux, with its terminating zero; others have a little less.
_PATH_BYTES = 100

#: Seconds that a command waits for the service to have read everything again.
ANSWER_SECONDS = 10.0

_RING = b"ring\n"
_DONE = b"done\n"


class Doorbell:
    """The service's end."""

    def __init__(self, path: Path, answer: Callable[[], Awaitable[None]]) -> None:
        self._path = path
        self._answer = answer
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _short(self._path) as name:
            listener.bind(name)
        self._path.chmod(0o600)
        self._server = await asyncio.start_unix_server(self._serve, sock=listener)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if await reader.readline() == _RING:
                await self._answer()
                writer.write(_DONE)
                await writer.drain()
        except ConnectionError:
            pass  # whoever rang has left; what was asked for has been done
        except Exception as error:  # whoever rang is not told "done", and says so
            log.warning(
                "what a command has changed could not be read; at the next ring again", exc_info=error
            )
        finally:
            writer.close()


class Answer(Enum):
    """What came of a ring: the service has looked, somebody is there and has not, or nobody is there."""

    LOOKED = "looked"
    SILENT = "silent"
    NOBODY = "nobody"


def ring(path: Path) -> Answer:
    """Rings at a service's doorbell and waits until it has looked, for at most `ANSWER_SECONDS`."""
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    caller.settimeout(ANSWER_SECONDS)
    with caller:
        try:
            with _short(path) as name:
                caller.connect(name)
        except (FileNotFoundError, ConnectionRefusedError):
            return Answer.NOBODY
        except OSError:  # no right to it, or a queue that is full since nobody takes from it
            return Answer.SILENT
        try:
            caller.sendall(_RING)
            return Answer.LOOKED if caller.recv(len(_DONE)) == _DONE else Answer.SILENT
        except OSError:
            return Answer.SILENT


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """A name of the socket that is short enough, by way of its folder's descriptor where the path is long."""
    if len(os.fsencode(path)) < _PATH_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
