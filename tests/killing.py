"""Processes of a test's own that are killed."""

import os
import signal
from collections.abc import Callable
from typing import Any

from tests.forked import CONTEXT


def heard(
    target: Callable[..., None], *arguments: Any, until: Callable[[bytes], bool] | None, seconds: float = 0.0
) -> bytes:
    """What a process says by the descriptor that it is called with, its last argument.

    Args:
        until: it is killed with SIGKILL once what it has said is enough, or no more comes; None: it ends by itself.
        seconds: that it has after that.
    """
    receive, send = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_run, args=(target, arguments, send))
    process.start()
    send.close()
    said = b""
    if until is not None:
        while not until(said) and (more := os.read(receive.fileno(), 65536)):
            said += more
        process.join(seconds)
        os.kill(process.pid or 0, signal.SIGKILL)
    while more := os.read(receive.fileno(), 65536):
        said += more
    receive.close()
    process.join()
    assert process.exitcode == (0 if until is None else -signal.SIGKILL)
    return said


def _run(target: Callable[..., None], arguments: tuple[Any, ...], send: Any) -> None:
    target(*arguments, send.fileno())
