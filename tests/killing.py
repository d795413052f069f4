"""Processes of a test's own that are killed. Each is forked from a server without threads: those of gRPC, which other
tests of this process have begun, do not survive a fork."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
# What children need is imported once.
_CONTEXT.set_forkserver_preload(
    ["tests.chaos.test_ledger_kills", "tests.chaos.test_payout_kills", "tests.integration.test_forgetting"]
)


def heard(
    target: Callable[..., None], *arguments: Any, until: Callable[[bytes], bool] | None, seconds: float = 0.0
) -> bytes:
    """What a process says by the descriptor that it is called with, its last argument.

    Args:
        until: it is killed with SIGKILL once what it has said is enough, or no more comes; None: it ends by itself.
        seconds: that it has after that.
    """
    receive, send = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_run, args=(target, arguments, send))
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
