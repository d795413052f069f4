"""`fedpeer` called in this process, where the process is not what a test is about: its start takes a second, and two
with torch."""

import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

import structlog

from fedpeer.__main__ import main


def fedpeer(*arguments: str, folder: Path | None = None, given: str = "") -> "CompletedProcess[str]":
    """What a command says and ends with, called in `folder` with `given` on its standard input.

    It leaves this process as it was, the modules of `folder` and the configuration of logs included.
    """
    said, complained = io.StringIO(), io.StringIO()
    with chdir(folder or Path.cwd()), _kept(Path.cwd()), redirect_stdout(said), redirect_stderr(complained):
        sys.argv, sys.stdin = ["fedpeer", *arguments], io.StringIO(given)
        try:
            code = main()
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else int(left.code is not None)
    return CompletedProcess(arguments, code, said.getvalue(), complained.getvalue())


@contextmanager
def _kept(folder: Path) -> Iterator[None]:
    configure, logs, root = structlog.configure, structlog.get_config(), logging.getLogger()
    handlers, level, stdin = root.handlers[:], root.level, sys.stdin
    numbers = [signal.SIGINT, signal.SIGTERM] if threading.current_thread() is threading.main_thread() else []
    actions = {number: signal.getsignal(number) for number in numbers}
    known = set(sys.modules)
    try:
        with (
            patch.dict(os.environ),
            patch.object(sys, "argv"),
            patch.object(sys, "path", [str(folder), *sys.path]),
            # A logger that is cached would speak as this command configured it for as long as the process lives.
            patch.object(
                structlog, "configure", lambda **o: configure(**o | {"cache_logger_on_first_use": False})
            ),
        ):
            yield
    finally:
        configure(**logs)
        root.handlers[:], sys.stdin = handlers, stdin
        root.setLevel(level)
        for number, action in actions.items():
            signal.signal(number, action)
        for name in set(sys.modules) - known:
            file = getattr(sys.modules[name], "__file__", None) or ""
            # An environment may lie in the folder; a library that is loaded twice is no more the one it was.
            if file.startswith(f"{folder}{os.sep}") and not file.startswith(f"{sys.prefix}{os.sep}"):
                del sys.modules[name]
