"""How a command reaches a running service: it changes the database, then notifies the service.

The service listens on a Unix socket in its state folder, which only the folder's owner can reach. A notification makes
the service read again what others can change (tasks, participants, revocations). The service answers when that is
done, so that `fedpeer coordinator revoke` returns when the revocation is in force. The database stays the only
truth: without a running service nobody answers, and nothing is lost. That nobody answers does not mean that nobody
serves: the database's lease says that. `ask` makes the service say what does not go well.
"""

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

import structlog

from coordinator.local_ports import bounded
from fedpeer.protocol.limits import CONTROL_SOCKET

log = structlog.get_logger()

#: Longest path of a Unix socket on Linux, with its terminating zero; others have a little less.
_PATH_BYTES = 100

#: Seconds that a command waits for the service to have read everything again.
ANSWER_SECONDS = 10.0

_NOTIFY = b"notify\n"
_DONE = b"done\n"
_ASK = b"troubles\n"

#: Bytes of an answer: a service has as many duties as tasks.
_ANSWER_BYTES = 1 << 20


class ControlSocket:
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

    async def start(self) -> None:
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _short(self._path) as name:
            listener.bind(name)
        self._path.chmod(0o600)
        self._server = await asyncio.start_unix_server(
            bounded(self._serve, CONTROL_SOCKET), sock=listener, limit=CONTROL_SOCKET.request_bytes
        )

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked = await reader.readline()
        except ValueError:
            return  # more than anybody has to say
        if asked == _ASK:
            writer.write(json.dumps(self._troubles()).encode() + b"\n")
        elif asked == _NOTIFY:
            try:
                await self._answer()  # done all the same where the command has left
                writer.write(_DONE)
            except Exception as error:  # the command gets no "done", and says so
                log.warning(
                    "what a command has changed could not be read; the next notification tries again",
                    exc_info=error,
                )


class Answer(Enum):
    """What came of a notification: the service has looked, somebody is there and has not, or nobody is there."""

    LOOKED = "looked"
    SILENT = "silent"
    NOBODY = "nobody"


def notify(path: Path) -> Answer:
    """Notifies a service and waits until it has looked, for at most `ANSWER_SECONDS`."""
    said = _said(path, _NOTIFY)
    if isinstance(said, Answer):
        return said
    return Answer.LOOKED if said == _DONE else Answer.SILENT


def ask(path: Path) -> dict[str, str] | None:
    """What does not go well in a service, by the name of a task or duty, and why; None where no service answers."""
    said = _said(path, _ASK)
    if isinstance(said, Answer):
        return None
    try:
        found: dict[str, str] = json.loads(said)
    except ValueError:  # it ended in the middle of its answer
        return None
    return found


def _said(path: Path, question: bytes) -> bytes | Answer:
    """The service's line; NOBODY or SILENT where there is none."""
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
            caller.sendall(question)
            with caller.makefile("rb") as answer:
                return answer.readline(_ANSWER_BYTES)
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
