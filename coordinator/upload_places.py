"""Who may send when: places for streams of frames, which go round.

Memory is bounded by the number of places: gRPC buffers some MiB of each stream that is read. An identity uploads one
model at a time, and a stream that is slower than `CONTENDED_BYTES_PER_SECOND` loses its place as soon as somebody
waits for one. What it sent is kept, and it resumes after those who waited; so slow or idle streams cannot keep an
honest participant out for longer than seconds.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from prometheus_client import Gauge

from coordinator.spool import UploadKey
from fedpeer.protocol.errors import Code, Refusal
from fedpeer.protocol.frames import Frame
from fedpeer.protocol.limits import (
    CONTENDED_BYTES_PER_SECOND,
    CONTENDED_SECONDS,
    MIN_UPLOAD_BYTES_PER_SECOND,
    UPLOAD_IDLE_SECONDS,
)
from fedpeer.v1.market_pb2 import ModelHeader

Result = TypeVar("Result")
Messages = AsyncIterator[ModelHeader | Frame]


class UploadStream:
    """The messages of one call, each waited for no longer than is fair.

    Args:
        welcome: lets the sender know that frames are taken now; what it sends before waits in this process's memory.
    """

    def __init__(self, messages: Messages, welcome: Callable[[], Awaitable[None]]) -> None:
        self.welcome = welcome
        #: Bytes of frames.
        self.received = 0
        #: When it began, among all streams of several processes (`coordinator.storage.changes.turn`).
        self.turn = 0
        self._messages = messages
        self._ended: Refusal | None = None
        self._contended = False
        #: When the stream got its place, and the seconds that it may hold it at all.
        self._place: tuple[float, float] | None = None
        #: Since when a message is waited for.
        self._silent_since: float | None = None
        self._timeout: asyncio.Timeout | None = None

    async def next(self) -> ModelHeader | Frame | None:
        """The next message; None at the stream's end.

        Raises:
            Refusal: QUOTA_EXCEEDED where nothing came in time; or what `end` was given.
        """
        self._silent_since = asyncio.get_running_loop().time()
        try:
            return await self.wait(lambda: anext(self._messages, None))
        finally:
            self._silent_since = None

    async def wait(self, what: Callable[[], Awaitable[Result]]) -> Result:
        """What `what` returns; raises as `next`."""
        if self._ended is not None:
            raise self._ended
        try:
            async with asyncio.timeout_at(self._limit()[0]) as self._timeout:
                return await what()
        except TimeoutError:
            raise self._ended or Refusal(Code.QUOTA_EXCEEDED, self._limit()[1]) from None
        finally:
            self._timeout = None

    def begin(self, total: int, *, contended: bool) -> None:
        """The stream has got its place, for a model of `total` bytes."""
        seconds = UPLOAD_IDLE_SECONDS + total / MIN_UPLOAD_BYTES_PER_SECOND
        self._place = asyncio.get_running_loop().time(), seconds
        self._contended = contended

    def hurry(self) -> None:
        """Somebody waits for a place."""
        self._contended = True
        self._reschedule(self._limit()[0])

    def end(self, why: str, code: Code = Code.QUOTA_EXCEEDED) -> None:
        """What this stream waits for is not waited for any more."""
        self._ended = Refusal(code, why)
        self._reschedule(0)

    def _reschedule(self, when: float | None) -> None:
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(when)

    def _limit(self) -> tuple[float | None, str]:
        """Until when the stream may wait, and why no longer."""
        limits = []
        if self._silent_since is not None:
            silent = f"No frame came for {UPLOAD_IDLE_SECONDS} seconds; the upload can be resumed."
            limits.append((self._silent_since + UPLOAD_IDLE_SECONDS, silent))
        if self._place is not None:
            began, seconds = self._place
            limits.append(
                (began + seconds, f"The upload took more than {seconds:.0f} seconds; it can be resumed.")
            )
            if self._contended:
                fair = began + CONTENDED_SECONDS + self.received / CONTENDED_BYTES_PER_SECOND
                limits.append((fair, "Others wait, and this upload is slow; it can be resumed where it is."))
        return min(limits, default=(None, ""))


class Places:
    """The places of one service.

    Args:
        places: streams that are read at once.
        taken: shows how many are.
    """

    def __init__(self, places: int, taken: Gauge) -> None:
        self._free = asyncio.Semaphore(places)
        self._taken = taken
        self._lanes: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        #: Those that have a lane, or wait for it, by upload; and those that have a place.
        self.streams: defaultdict[UploadKey, set[UploadStream]] = defaultdict(set)
        self._placed: set[UploadStream] = set()
        #: Streams that wait for a place.
        self.waiting = 0

    def busy(self, task_id: str) -> set[UploadKey]:
        """A task's uploads in progress."""
        return {key for key in self.streams if key.task_id == task_id}

    def hand_over(self, key: UploadKey, turn: int) -> None:
        """Another stream of this upload has begun, here or elsewhere: those that are older end.

        Word from elsewhere may be late: of a stream that one here has taken over from since.
        """
        for stream in self.streams.get(key, ()):
            if stream.turn <= turn:
                stream.end("Another stream of the same upload has taken over.")

    @asynccontextmanager
    async def lane(self, key: UploadKey, stream: UploadStream) -> AsyncIterator[None]:
        """Has the identity's uploads for this stream alone; older streams of the same upload end."""
        self.hand_over(key, stream.turn)
        self.streams[key].add(stream)
        try:
            lane = self._lanes[key.participant_id]
            await stream.wait(lane.acquire)
            try:
                yield
            finally:
                lane.release()
        finally:
            self.streams[key].remove(stream)
            if not self.streams[key]:
                del self.streams[key]

    @asynccontextmanager
    async def place(self, stream: UploadStream, total: int) -> AsyncIterator[None]:
        """Has the stream's `total` bytes read."""
        if self._free.locked():
            for other in self._placed:
                other.hurry()
        self.waiting += 1
        try:
            await stream.wait(self._free.acquire)
        finally:
            self.waiting -= 1
        self._taken.inc()
        self._placed.add(stream)
        try:
            stream.begin(total, contended=self.waiting > 0)
            yield
        finally:
            self._placed.remove(stream)
            self._taken.dec()
            self._free.release()
