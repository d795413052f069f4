import asyncio

from coordinator.live import Feed, Session
from coordinator.storage.tasks import EventRow
from fedpeer.protocol.errors import Code, Refusal
from mechanism.lifecycle import State


def event(cursor: int, state: State) -> EventRow:
    return EventRow(cursor, state, 1, None, {}, 0.0)


async def test_an_end_that_comes_while_events_are_handed_out_is_handed_out_too() -> None:
    feed = Feed([event(1, State.OPEN)])
    seen = []
    async for found in feed.follow(0, Session("p")):
        seen.append(found.state)
        if found.state is State.OPEN:
            feed.publish([event(2, State.SETTLED), event(3, State.CLOSED)])
    assert seen == [State.OPEN, State.SETTLED, State.CLOSED]


async def test_a_watcher_that_has_seen_the_end_gets_an_empty_stream() -> None:
    feed = Feed([event(1, State.OPEN), event(2, State.CLOSED)])
    assert [found async for found in feed.follow(2, Session("p"))] == []


async def test_a_watcher_is_woken_by_what_comes_later_and_let_go_when_stopped() -> None:
    feed, session = Feed([event(1, State.OPEN)]), Session("p")
    seen: list[State] = []

    async def watch() -> None:
        async for found in feed.follow(0, session):
            seen.append(found.state)
            if found.state is State.EFFORT:
                session.end(Refusal(Code.DRAINING, "The coordinator is shutting down."))

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    feed.publish([event(2, State.EFFORT)])
    await asyncio.wait_for(watching, 10)
    assert seen == [State.OPEN, State.EFFORT]
