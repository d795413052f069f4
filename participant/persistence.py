"""Faults of the participant's own machine: what may be gone at the next attempt is tried again.

A disk that fails once, too many open files, a folder that is full until somebody makes space: a trained round is worth
waiting for those. What lasts longer than `DOUBT_SECONDS` is raised as it is.
"""

import logging
import sqlite3
from collections.abc import Callable
from time import monotonic, sleep
from typing import TypeVar

from fedpeer.protocol.faults import passes
from participant.backoff import Backoff
from participant.effects import Effect, Pause, Steps, drive
from participant.errors import DiskFullError, StateError
from participant.steps import DOUBT_SECONDS

T = TypeVar("T")

_log = logging.getLogger("participant")

#: What SQLite says of a machine that fails, rather than of a database that is wrong.
_PASSING = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_NOMEM")


def may_pass(error: BaseException | None) -> bool:
    """Whether an error of this machine, or what it stands for, may be gone at the next attempt."""
    while error is not None:
        if isinstance(error, sqlite3.Error):
            return (getattr(error, "sqlite_errorname", "") or "").startswith(_PASSING)
        if isinstance(error, DiskFullError) or passes(error):
            return True
        error = error.__cause__
    return False


def persistently(make: Callable[[], Steps[T]], clock: Callable[[], float] = monotonic) -> Steps[T]:
    """The steps that `make` gives, begun again while this machine fails in a way that may pass.

    Raises:
        StateError, OSError: what lasts, or does not pass in time.
    """
    began, waits = clock(), Backoff().waits()
    while True:
        try:
            return (yield from make())
        except (StateError, OSError, MemoryError) as error:
            if not may_pass(error) or clock() - began >= DOUBT_SECONDS:
                raise
            _log.warning("%s; trying again", error)
        yield Pause(next(waits))


def patiently(work: Callable[[], T]) -> T:
    """As `persistently`, of work that blocks."""

    def steps() -> Steps[T]:
        return work()
        yield

    def perform(effect: Effect) -> None:
        assert isinstance(effect, Pause)
        sleep(effect.seconds)

    return drive(persistently(steps), perform)
