"""How a command on the command line reaches a running service: it changes the database, then rings.

The service listens on a Unix socket in its state folder, which only the folder's owner can reach. A ring makes
it read again what others can change (tasks, participants, revocations); the answer comes when that has been
done, so that `fedpeer coordinator revoke` returns when the revocation is in force. The database stays the only
truth: without a running service nobody answers, and nothing is lost. `ask` makes it say what does not go well.
"""

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpeer.protocol.limits import CONTROL_SOCKET

#: Longest path of a Unix socket on Linux, with its terminating zero; others have a little less.
_PATH_BYTES = 100

#: Seconds that a command waits for the service to have read everything again.
ANSWER_SECONDS = 10.0

_RING = b"ring\n"
_DONE = b"done\n"
_ASK = b"troubles\n"

#: Bytes of an answer: a service has as many duties as tasks.
_ANSWER_BYTES = 1 << 20


class Doorbell:
    """The service's end.

    Args:
        answer: reads everything again.
        troubles: what does not go well, by name, and why.
    """

    def __init__(
        self, path: Path, answer: Callable[[], Awaitable[None]], troubles: Callable[[], dict[str, str]]
    ) -> None:
        self._path = path
        self._answer = answer
        self._troubles = troubles
        self._server: asyncio.Server | None = None
        self._open = 0

    async def start(self) -> None:
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _short(self._path) as name:
            listener.bind(name)
        self._path.chmod(0o600)
        self._server = await asyncio.start_unix_server(
            self._serve, sock=listener, limit=CONTROL_SOCKET.request_bytes
        )

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._open >= CONTROL_SOCKET.connections:
            writer.close()
            return
        self._open += 1
        try:
            async with asyncio.timeout(CONTROL_SOCKET.seconds):
                asked = await reader.readline()
                if asked == _RING:
                    await self._answer()
                    writer.write(_DONE)
                elif asked == _ASK:
                    writer.write(json.dumps(self._troubles()).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, TimeoutError, ValueError):
            pass  # whoever rang has left, says nothing or too much; what was asked for has been done
        finally:
            self._open -= 1
            writer.close()


def ring(path: Path) -> bool:
    """Rings at a service's doorbell and waits until it has looked; False where no service runs.

    Raises:
        TimeoutError: a service is there but does not answer.
    """
    return _said(path, _RING) == _DONE


def ask(path: Path) -> dict[str, str]:
    """What does not go well in a service, by the name of a task or duty, and why; nothing where no service runs.

    Raises:
        TimeoutError: a service is there but does not answer.
    """
    try:
        found: dict[str, str] = json.loads(_said(path, _ASK) or b"{}")
    except ValueError:  # it ended in the middle of its answer
        return {}
    return found


def _said(path: Path, question: bytes) -> bytes:
    """The service's answer; nothing where none runs."""
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    caller.settimeout(ANSWER_SECONDS)
    with caller:
        try:
            with _short(path) as name:
                caller.connect(name)
            caller.sendall(question)
            with caller.makefile("rb") as answer:
                return answer.readline(_ANSWER_BYTES)
        except (FileNotFoundError, ConnectionError):
            return b""


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
