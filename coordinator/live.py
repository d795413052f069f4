"""What is known only while the service runs: who watches, and who has shown a sign of life.

A `Feed` holds one task's events, as the database has them, and hands them to watchers from any cursor on. A
watcher that loses its connection asks again from its last cursor; nothing is lost, because the events are
rows. One identity has one session in a task: a second Watch takes over, and the first ends with an error.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

from coordinator.storage.tasks import EventRow
from fedpeer.protocol.errors import Code, Refusal
from mechanism.lifecycle import State


@dataclass(eq=False)
class Session:
    """One open Watch stream. It ends early with a reason: taken over, revoked, or the service shuts down.

    Attributes:
        began: when, seconds since the epoch.
    """

    participant_id: str
    began: float = 0.0
    reason: Refusal | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, reason: Refusal) -> None:
        self.reason = reason
        self.notify()

    def notify(self) -> None:
        """There is something to look at."""
        self._changed.set()

    async def wait(self) -> None:
        """Until `notify` has been called since the last wait."""
        await self._changed.wait()
        self._changed.clear()


class Feed:
    """The events of one task, cursors 1, 2, 3, ... without a gap."""

    def __init__(self, events: Iterable[EventRow] = ()) -> None:
        self._events: list[EventRow] = []
        #: Who trains, once they are selected: in id order, and as a set.
        self.chosen: list[str] = []
        self.selected: frozenset[str] = frozenset()
        self._followers: set[Session] = set()
        self.publish(events)

    @property
    def cursor(self) -> int:
        """The last event's cursor; 0 before the first."""
        return len(self._events)

    def publish(self, events: Iterable[EventRow]) -> None:
        """Adds events that follow the last one, and wakes every watcher."""
        before = self.cursor
        for event in events:
            if event.cursor == self.cursor + 1:
                self._events.append(event)
                if event.state is State.SELECTED:
                    self.chosen = event.detail["selected"]
                    self.selected = frozenset(self.chosen)
        if self.cursor > before:
            for session in self._followers:
                session.notify()

    def last(self, state: State, round_: int | None = None) -> EventRow | None:
        """The last event that entered `state`, in that round where one is given."""
        for event in reversed(self._events):
            if event.state is state and round_ in (None, event.round):
                return event
        return None

    async def follow(self, cursor: int, session: Session) -> AsyncIterator[EventRow]:
        """Events above `cursor`, as they come; ends after a final one, and when the session has ended."""
        self._followers.add(session)
        try:
            while True:
                while cursor < self.cursor:  # which may go on while events are handed out
                    yield self._events[cursor]
                    cursor += 1
                ended = bool(self._events) and self._events[-1].state.final
                if ended or session.reason is not None:
                    return
                await session.wait()
        finally:
            self._followers.remove(session)


class Presence:
    """Who watches a task, and when the others were last heard of."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._sessions: dict[str, Session] = {}
        self._heard: dict[str, float] = {}

    def enter(self, participant_id: str, now: float) -> Session:
        """Opens a session; one that is open already ends."""
        self.take_over(participant_id)
        session = self._sessions[participant_id] = Session(participant_id, now)
        return session

    def take_over(self, participant_id: str, before: float = math.inf) -> None:
        """Ends the participant's session, if there is one that has begun before that time."""
        old = self._sessions.get(participant_id)
        if old is not None and old.began < before:
            old.end(
                Refusal(
                    Code.SESSION_TAKEN_OVER,
                    f"Another process has connected as {participant_id!r} and takes part in its place.",
                )
            )

    def leave(self, session: Session, now: float) -> None:
        """Closes a session."""
        if self._sessions.get(session.participant_id) is session:
            del self._sessions[session.participant_id]
            self.hear(session.participant_id, now)

    def hear(self, participant_id: str, now: float) -> None:
        """Any call is a sign of life."""
        self._heard[participant_id] = max(now, self._heard.get(participant_id, now))

    def signs(self, since: float, now: float) -> dict[str, float]:
        """When those were last heard that have been heard after `since`; who watches is heard now."""
        heard = {name: at for name, at in self._heard.items() if at > since}
        return heard | dict.fromkeys(self._sessions, now)

    def begin_again(self, now: float) -> None:
        """Everyone has the grace period to reconnect, as after a start."""
        self._since = now

    def dismiss(self, reason: Refusal) -> None:
        """Ends all sessions."""
        for session in self._sessions.values():
            session.end(reason)

    def absent(self, names: Iterable[str], now: float, grace: float) -> tuple[frozenset[str], float | None]:
        """Those of `names` that have been silent for longer than `grace` seconds, and when the next one will have been.

        After a start everyone has the grace period to reconnect.
        """
        gone, soonest = set(), None
        for name in names:
            if name in self._sessions:
                continue
            until = max(self._heard.get(name, self._since), self._since) + grace
            if until <= now:
                gone.add(name)
            elif soonest is None or until < soonest:
                soonest = until
        return frozenset(gone), soonest
