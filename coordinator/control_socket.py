"""How a command reaches a running service: it changes the database, then notifies the service.

The service listens on a Unix socket in its state folder, which only the folder's owner can reach. A notification makes
the service read again what others can change (tasks, participants, revocations). The service answers when that is
done, so that `fedpeer coordinator revoke` returns when the revocation is in force; its answer says what does not go
well. The database stays the only truth: without a running service nobody answers, and nothing is lost. That nobody
answers does not mean that nobody serves: the database's lease says that.

A second question asks what only the service knows: how far participants say that their training is, and evidence.
"""

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import structlog

from coordinator.errors import FolderError
from coordinator.local_ports import bounded
from fedpeer.protocol.limits import CONTROL_SOCKET

log = structlog.get_logger()

#: Longest path of a Unix socket on Linux, with its terminating zero; others have a little less.
_PATH_BYTES = 100

#: Seconds that a command waits for the service to have read everything again.
ANSWER_SECONDS = 10.0

_NOTIFY, _PROGRESS = b"notify\n", b"progress\n"

#: Bytes of an answer: a service has as many duties as tasks, and a line of 120 bytes for each who trains.
_ANSWER_BYTES = 1 << 23


@dataclass
class RoundProgress:
    """How far a round is.

    Attributes:
        round: which; 0: nothing is known of any.
        done_micro: what participants say of their training, in millionths, by name.
        trained, of: shadow models of the evidence; 0 of 0 where there are none yet.
        seconds_left: that the other shadows take.
    """

    round: int = 0
    done_micro: dict[str, int] = field(default_factory=dict)
    trained: int = 0
    of: int = 0
    seconds_left: float = 0.0


class ControlSocket:
    """The service's end.

    Args:
        answer: reads everything again.
        troubles: what does not go well, by name, and why.
        progress: how far the current rounds are.
    """

    def __init__(
        self,
        path: Path,
        answer: Callable[[], Awaitable[None]],
        troubles: Callable[[], dict[str, str]],
        progress: Callable[[], Mapping[str, RoundProgress]],
    ) -> None:
        self._path = path
        self._answer = answer
        self._troubles = troubles
        self._progress = progress
        self._server: asyncio.Server | None = None
        self._made: os.stat_result

    async def start(self) -> None:
        """Raises FolderError where no socket can be made there."""
        listener = _bound(self._path)
        self._made = self._path.stat()
        self._server = await asyncio.start_unix_server(
            bounded(self._serve, CONTROL_SOCKET), sock=listener, limit=CONTROL_SOCKET.request_bytes
        )

    async def stop(self) -> None:
        """Takes the socket away, where it is not by now that of another process."""
        if self._server is not None:
            with suppress(OSError):  # the folder may be gone
                if os.path.samestat(self._path.stat(), self._made):
                    self._path.unlink()
            self._server.close()  # last: until then nobody else's file can have the number of ours
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked = await reader.readline()
        except ValueError:
            return  # more than anybody has to say
        if asked == _PROGRESS:
            writer.write(json.dumps(self._progress(), default=vars).encode() + b"\n")
            return
        if asked != _NOTIFY:
            return
        try:
            await self._answer()  # done all the same where the command has left
        except Exception as error:  # the command gets no answer, and says so
            log.warning(
                "what a command has changed could not be read; the next notification tries again",
                exc_info=error,
            )
            return
        writer.write(json.dumps(self._troubles()).encode() + b"\n")


def check_place(path: Path) -> None:
    """Whether a socket can be made at `path`, tried next to it; raises FolderError where none can."""
    beside = path.with_name(f"{path.name}.{uuid4().hex}")
    _bound(beside, shown=path).close()
    beside.unlink(missing_ok=True)


def notify(path: Path) -> dict[str, str] | None:
    """Notifies a service and waits until it has looked, for at most `ANSWER_SECONDS`.

    Returns:
        what does not go well in it, by the name of a task or duty, and why; None where no service answers.
    """
    found: dict[str, str] | None = _asked(path, _NOTIFY)
    return found


def progress(path: Path) -> dict[str, RoundProgress]:
    """How far the current rounds are, by task; nothing where no service answers."""
    return {task_id: RoundProgress(**said) for task_id, said in (_asked(path, _PROGRESS) or {}).items()}


def round_progress(progress: Mapping[str, RoundProgress], task_id: str, round_: int) -> RoundProgress:
    """Of one round of a task."""
    found = progress.get(task_id)
    return found if found is not None and found.round == round_ else RoundProgress()


def _asked(path: Path, word: bytes) -> Any:
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    caller.settimeout(ANSWER_SECONDS)
    try:
        with caller:
            with _short(path) as name:
                caller.connect(name)
            caller.sendall(word)
            with caller.makefile("rb") as answer:
                return json.loads(answer.readline(_ANSWER_BYTES))
    except (OSError, ValueError):  # nobody is there, or does not answer, or ends in the middle of its answer
        return None


def _bound(path: Path, shown: Path | None = None) -> socket.socket:
    """A socket at `path`, in the place of whatever is there, for its owner alone."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        with _short(path) as name:
            found.bind(name)
        path.chmod(0o600)
    except OSError as error:
        found.close()
        raise FolderError(
            f"{shown or path} cannot be made: {error.strerror}; the state folder is expected to be writable, on a file "
            "system with Unix sockets and locks (flock): a disk of this machine, or one of a network such as NFS 4"
        ) from None
    return found


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
