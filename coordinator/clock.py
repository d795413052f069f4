"""Time as an argument: the service asks a clock, and a test holds the hands.

Only `SystemClock` knows the machine's time. Deadlines are seconds since the epoch, so that they survive a
restart.
"""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What time it is, and how to wait for a time or for something to happen, whichever is first."""

    def now(self) -> float:
        """Seconds since the epoch."""

    async def wait(self, event: asyncio.Event, until: float | None) -> None:
        """Returns when `event` is set or the time is `until`; None: only the event."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.time()

    async def wait(self, event: asyncio.Event, until: float | None) -> None:
        if until is None:
            await event.wait()
            return
        try:
            async with asyncio.timeout(max(0.0, until - time.time())):
                await event.wait()
        except TimeoutError:
            pass


class ManualClock:
    """A clock that moves only by `advance`; for tests and for the simulator."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now
        self._moved = asyncio.Event()

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Moves the clock and wakes those who wait for the time."""
        self._now += seconds
        self._moved.set()
        self._moved = asyncio.Event()

    async def wait(self, event: asyncio.Event, until: float | None) -> None:
        while not event.is_set() and (until is None or self._now < until):
            waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self._moved.wait())]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
