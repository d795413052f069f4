"""Standard streams that work can rely on, whatever they lead to."""

import asyncio
import io
import os
import select
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

#: Milliseconds for which a full pipe or a stopped terminal is waited for, once: until it takes something again, what
#: comes is lost at once.
_PATIENCE_MS = 2000

#: Bytes that a pipe which says that it is ready takes without blocking (PIPE_BUF).
_PIECE = 4096


class _Lossy(io.RawIOBase):
    """Writes to a descriptor, and loses what it does not take. It never closes it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._stalled = False

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while rest and self._ready():
                rest = rest[os.write(self._descriptor, rest[:_PIECE]) :]
        except OSError:
            pass  # full, gone or closed: a line is lost
        return size

    def _ready(self) -> bool:
        """Whether a write would not block."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        self._stalled = not poll.poll(0 if self._stalled else _PATIENCE_MS)
        return not self._stalled

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        try:
            return os.isatty(self._descriptor)
        except OSError:
            return False


class _Nowhere(io.TextIOBase):
    """Takes everything and keeps nothing."""

    def write(self, text: str) -> int:
        return len(text)


class _Guarded(io.TextIOBase):
    """A stream without a descriptor, whose errors are swallowed."""

    def __init__(self, inner: TextIO) -> None:
        self._inner = inner

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a property here
        return getattr(self._inner, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):  # ValueError: it is closed
            self._inner.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._inner.flush()

    def isatty(self) -> bool:
        try:
            return self._inner.isatty()
        except ValueError:
            return False


class _Unfailing(io.TextIOWrapper):
    """What `unfailing` makes of a stream with a descriptor."""


def unfailing(stream: TextIO | None) -> TextIO:
    """`stream` for words that may be lost rather than fail the work that they are about.

    Args:
        stream: None where it was closed before the program began.
    """
    if stream is None:
        return _Nowhere()  # type: ignore[return-value]  # a text stream in all that is used of it
    if isinstance(stream, _Unfailing | _Guarded | _Nowhere):
        return stream
    try:
        descriptor = stream.fileno()
        stream.flush()
    except (OSError, ValueError, AttributeError):
        return _Guarded(stream)  # type: ignore[return-value]  # as above
    raw = io.BufferedWriter(_Lossy(descriptor))
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return _Unfailing(raw, encoding=encoding, errors="backslashreplace", line_buffering=True)


def nowhere(stream: TextIO | None) -> bool:
    """Whether what is written to `stream` is seen by nobody, since it was closed before the program began."""
    return stream is None or isinstance(stream, _Nowhere)


def discard_output() -> None:
    """What of standard output is still buffered goes nowhere: the interpreter would complain about it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def secure_standard_streams() -> None:
    """Makes standard error unfailing, and opens what of the three streams is closed on nothing.

    A closed one would give its number to the next file that is opened, a model or a database perhaps, and whatever a
    library then prints would go into that file.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
    sys.stderr = unfailing(sys.stderr)
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open()  # noqa: SIM115 - for as long as the process lives
    if sys.stdout is None:
        sys.stdout = unfailing(None)


def end_with_parent(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Calls `stop` in the loop when standard input ends, as it does when the process that holds its other end does."""

    def wait() -> None:
        with suppress(OSError):
            # Not by the buffer, whose lock the interpreter wants at its end.
            while os.read(sys.stdin.fileno(), 1024):
                pass
        with suppress(RuntimeError):  # the loop has ended by itself
            loop.call_soon_threadsafe(stop)

    threading.Thread(target=wait, daemon=True).start()
