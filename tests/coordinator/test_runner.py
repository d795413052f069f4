"""When a task's runner looks at what has come: as seldom as a crowd needs, and never too late."""

import asyncio
from typing import Any

from coordinator.live import Feed, Presence
from coordinator.runner import LiveTask


def live_task() -> LiveTask:
    row: Any = None  # nothing here reads it
    return LiveTask(row, Feed(), Presence(0.0))


async def test_arrivals_ask_for_a_look_once_all_may_be_there() -> None:
    live = live_task()
    live.look()
    live.looked(3)
    for _ in range(2):
        live.arrived()
    assert not live.changed.is_set()
    live.arrived()
    assert live.changed.is_set()


async def test_what_arrives_during_a_look_asks_for_the_next_only_where_it_may_be_all() -> None:
    live = live_task()
    live.look()
    for _ in range(100):
        live.arrived()
    assert not live.changed.is_set()
    live.looked(1000)
    assert not live.changed.is_set()
    for _ in range(900):
        live.arrived()
    assert live.changed.is_set()
    live.look()
    live.arrived()
    live.looked(1)  # the one that has arrived, perhaps
    assert live.changed.is_set()


async def test_where_nothing_is_awaited_whatever_arrives_is_looked_at() -> None:
    live = live_task()
    live.look()
    live.looked(0)
    assert not live.changed.is_set()
    live.arrived()
    assert live.changed.is_set()
    live.look()
    live.arrived()
    live.looked(0)
    assert live.changed.is_set()


async def test_a_glance_waits_for_fifty_times_as_long_as_looking_takes() -> None:
    live = live_task()
    live.glance()  # the last look is long ago
    async with asyncio.timeout(60):
        await live.changed.wait()
    live.look()
    live.look_took(100.0)
    live.looked(10)
    live.arrived()
    assert live._glance is not None
    assert live._glance.when() == live._looked + 5000.0
    assert not live.changed.is_set()
