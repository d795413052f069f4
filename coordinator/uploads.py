"""Taking in models: who may send when, frames to the spool, the whole file checked before anything counts.

Frames are written, hashed and checked in a thread while the next ones are received, and what was written is flushed
meanwhile: when the last one has come, little is left to be done.

Memory is bounded by the number of slots: gRPC buffers some MiB of each stream that is read. Slots go round: an
identity uploads one model at a time, and a stream that is slower than `CONTENDED_BYTES_PER_SECOND` gives its slot
up as soon as somebody waits for it. What it sent is kept, and it resumes behind those who waited; so slow or idle
streams cannot keep an honest participant out for longer than seconds.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from coordinator.blobs import BlobStore
from coordinator.metrics import Metrics
from coordinator.spool import Spool, SpooledUpload, UploadKey
from mechanism.statements import ModelStatement
from mechanism.terms import ModelContract
from protos.fedpeer.v1.market_pb2 import ModelHeader
from wire.errors import Code, Refusal
from wire.frames import Frame
from wire.limits import (
    CONTENDED_BYTES_PER_SECOND,
    CONTENDED_SECONDS,
    FRAME_BYTES,
    MIN_UPLOAD_BYTES_PER_SECOND,
    UPLOAD_IDLE_SECONDS,
)
from wire.model_file import ModelCheck, ModelFileError

Result = TypeVar("Result")
Messages = AsyncIterator[ModelHeader | Frame]

#: Threads beside those that append frames: they open files, and put whole ones in their place.
_THREADS = 8

#: Bytes of an upload that may wait for its thread: the frame that is being appended, and the next, which keeps one
#: thread busy. More uploads than this keep each other's threads busy, and hold one frame each.
_AHEAD_BYTES = 2 * FRAME_BYTES
_FEW = 4


class Uploads:
    """Uploads of one service.

    Args:
        slots: streams that are read at once.
    """

    def __init__(self, spool: Spool, blobs: BlobStore, metrics: Metrics, slots: int) -> None:
        self._spool = spool
        self._blobs = blobs
        self._metrics = metrics
        self._slots = asyncio.Semaphore(slots)
        self._threads = ThreadPoolExecutor(slots + _THREADS, "uploads")
        self._lines: set[_Line] = set()
        self._lanes: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._streams: dict[UploadKey, Stream] = {}
        self._waiting = 0

    def stop(self) -> None:
        for line in self._lines:
            line.stop()
        self._threads.shutdown(cancel_futures=True)
        self._spool.stop()

    async def held(self, key: UploadKey) -> int:
        """Bytes that are held of an upload."""
        size: int = await self._blocking(self._spool.size, key)
        return size

    def busy(self, task_id: str) -> set[UploadKey]:
        """A task's uploads in progress."""
        return {key for key in self._streams if key.task_id == task_id}

    async def receive(
        self,
        stream: "Stream",
        statement: ModelStatement,
        offset: int,
        contract: ModelContract,
        record: Callable[[], Awaitable[Result]],
    ) -> Result:
        """Receives a model from byte `offset` on, checks it, stores it, and calls `record`.

        Once the file is whole, the rest happens even if the sender hangs up.

        Raises:
            Refusal: FRAMES_INVALID, TOO_LARGE, MODEL_INVALID, or QUOTA_EXCEEDED where the stream ends early.
            ModelFileError: the model does not fit the contract; nothing of it is kept.
            SpoolFull, OSError: the disk is full; nothing of it is kept.
        """
        key = UploadKey(statement.task_id, statement.participant_id, statement.submission_id)
        finishing: asyncio.Task[Result] | None = None
        try:
            await self._take_over(key, stream)
            async with self._lanes[key.participant_id], self._slot(), _in_time(statement.model_bytes):
                await stream.begin(contended=self._waiting > 0)
                check = ModelCheck(contract, statement.model_bytes)
                spooled: SpooledUpload = await self._blocking(
                    self._spooled, key, offset, statement.model_bytes, check
                )
                await self._fill(spooled, statement.model_bytes, stream)
            finishing = asyncio.create_task(self._finish(spooled, statement, check, record))
            return await asyncio.shield(finishing)
        finally:
            if finishing is None or finishing.done():
                self._release(key, stream)
            else:
                finishing.add_done_callback(lambda _: self._release(key, stream))

    async def _take_over(self, key: UploadKey, stream: "Stream") -> None:
        """Waits until older streams of the same upload have let go; they are told to."""
        stream.before, self._streams[key] = self._streams.get(key), stream
        older = stream.before
        while older is not None:
            older.end("Another stream of the same upload has taken over.")
            await older.over.wait()
            older = older.before  # for which that one still waited when it ended
        stream.before = None

    def _release(self, key: UploadKey, stream: "Stream") -> None:
        if self._streams.get(key) is stream:
            if stream.before is not None and not stream.before.over.is_set():
                self._streams[key] = stream.before
            else:
                del self._streams[key]
        stream.over.set()

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        self._waiting += 1
        try:
            if self._slots.locked():
                for stream in self._streams.values():
                    stream.hurry()
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        self._metrics.uploads.inc()
        try:
            yield
        finally:
            self._metrics.uploads.dec()
            self._slots.release()

    def _spooled(self, key: UploadKey, offset: int, total: int, check: ModelCheck) -> SpooledUpload:
        """In a worker thread: the upload, ready for the byte at `offset`."""
        held = self._spool.size(key)
        if offset > min(held, total):
            raise Refusal(
                Code.FRAMES_INVALID,
                f"The upload begins at byte {offset}, but {held} bytes are held.",
                metadata={"offset": str(held)},
            )
        return self._spool.resume(key, offset, total, check)

    async def _fill(self, spooled: SpooledUpload, total: int, stream: "Stream") -> None:
        """Appends frames until the file is whole, beside receiving them."""
        line = _Line(spooled, self._threads, self._ahead)
        self._lines.add(line)
        position = spooled.offset
        try:
            while position < total:
                data = _data(await stream.next(), position, total)
                position += len(data)
                stream.received += len(data)
                self._metrics.received_bytes.inc(len(data))
                await line.put(data)
                del data  # appended or not, it is not to be held here until the next one comes
            await line.end()
        except BaseException as error:
            # To its end even where the call is cancelled once more: the file has one writer at a time.
            abandoned = asyncio.create_task(self._abandon(spooled, line, error))
            while not abandoned.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([abandoned])
            abandoned.result()
            raise
        finally:
            self._lines.discard(line)

    async def _abandon(self, spooled: SpooledUpload, line: "_Line", error: BaseException) -> None:
        """Keeps what has come whole for the resumption, but where it is no model, has no room or is not kept."""
        failed = await line.settle()
        spooled.close()
        try:
            await self._blocking(spooled.settle)
        except OSError as lost:
            failed = lost
        if isinstance(failed or error, OSError | ModelFileError):
            await self._blocking(spooled.discard)

    def _ahead(self) -> int:
        return _AHEAD_BYTES if len(self._lines) <= _FEW else FRAME_BYTES

    async def _finish(
        self,
        spooled: SpooledUpload,
        statement: ModelStatement,
        check: ModelCheck,
        record: Callable[[], Awaitable[Result]],
    ) -> Result:
        try:
            await self._blocking(self._store, spooled, statement, check)
        except (Refusal, ModelFileError, OSError):
            await self._blocking(spooled.discard)
            raise
        return await record()

    def _store(self, spooled: SpooledUpload, statement: ModelStatement, check: ModelCheck) -> None:
        """In a worker thread: digest, the last of the checks, and the file durable in its place."""
        digest = spooled.digest()
        if digest != statement.model_sha256:
            raise Refusal(
                Code.MODEL_INVALID,
                f"The file's SHA-256 is {digest.hex()}, the signed header says {statement.model_sha256.hex()}.",
            )
        check.finish()
        spooled.close()
        spooled.settle()
        self._blobs.adopt(spooled.path, digest)

    def _blocking(self, work: Any, *arguments: Any) -> "asyncio.Future[Any]":
        return asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)


class _Line:
    """An upload's frames on their way from the event loop to one thread that appends them, as long as frames come:
    handing in one more costs the loop no task.

    Args:
        threads: has a thread for every line.
        ahead: bytes that may wait for it, the frame that is being appended included.
    """

    def __init__(self, spooled: SpooledUpload, threads: ThreadPoolExecutor, ahead: Callable[[], int]) -> None:
        self._spooled = spooled
        self._ahead = ahead
        self._handed_in = spooled.offset
        self._frames: SimpleQueue[memoryview | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._room: asyncio.Future[None] | None = None
        self._work = self._loop.run_in_executor(threads, self._append)

    async def put(self, data: memoryview) -> None:
        """Hands in the next frame; returns when there is room for one more.

        Raises:
            OSError, ModelFileError: appending has failed.
            Refusal: DRAINING, the line was stopped.
        """
        self._handed_in += len(data)
        self._frames.put(data)
        del data
        while not self._work.done():
            if not self._full():
                return
            self._room = self._loop.create_future()
            if self._full():  # still, now that the thread sees that somebody waits
                await asyncio.wait((self._room, self._work), return_when=asyncio.FIRST_COMPLETED)
            self._room = None
        self._work.result()
        raise _stopped()

    async def end(self) -> None:
        """Returns when everything is appended; raises as `put` does."""
        await self.settle()
        self._work.result()
        if self._handed_in != self._spooled.offset:
            raise _stopped()

    async def settle(self) -> BaseException | None:
        """Returns when nothing is being appended any more: what failed, if anything did."""
        self.stop()
        while not self._work.done():
            await asyncio.wait([self._work])
        return None if self._work.cancelled() else self._work.exception()

    def stop(self) -> None:
        """No more frames come."""
        self._frames.put(None)

    def _full(self) -> bool:
        return self._handed_in - self._spooled.offset >= self._ahead()

    def _append(self) -> None:
        while (data := self._frames.get()) is not None:
            self._spooled.append(data)
            del data  # not to be held until the next one comes
            if (room := self._room) is not None:
                self._loop.call_soon_threadsafe(_resolve, room)


def _stopped() -> Refusal:
    return Refusal(Code.DRAINING, "The coordinator is shutting down; the upload can be resumed.")


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class Stream:
    """The messages of one call, each waited for no longer than is fair.

    Args:
        welcome: lets the sender know that frames are taken now; what it sends before waits in this process's memory.
    """

    def __init__(self, messages: Messages, welcome: Callable[[], Awaitable[None]]) -> None:
        self.over = asyncio.Event()
        #: The stream of the same upload that this one waits for.
        self.before: Stream | None = None
        self.received = 0
        self._messages = messages
        self._welcome = welcome
        self._began: float | None = None
        self._contended = False
        self._ended = ""
        self._limit: asyncio.Timeout | None = None

    async def next(self) -> ModelHeader | Frame | None:
        """The next message; None at the stream's end.

        Raises:
            Refusal: QUOTA_EXCEEDED where nothing came in time or another has taken the place.
        """
        if self._ended:
            raise self._refusal()
        until = asyncio.get_running_loop().time() + UPLOAD_IDLE_SECONDS
        try:
            async with asyncio.timeout_at(min(until, self._fair_end(until))) as self._limit:
                return await anext(self._messages, None)
        except TimeoutError:
            raise self._refusal() from None
        finally:
            self._limit = None

    async def begin(self, *, contended: bool) -> None:
        """The stream has got its slot, and its sender is told to go on."""
        self._began = asyncio.get_running_loop().time()
        self._contended = contended
        await self._welcome()

    def hurry(self) -> None:
        """Somebody waits for a slot."""
        self._contended = True
        if self._limit is not None and not self._limit.expired():
            now_until = self._limit.when() or 0.0
            self._limit.reschedule(min(now_until, self._fair_end(now_until)))

    def end(self, why: str) -> None:
        """What this stream waits for is not waited for any more."""
        self._ended = why
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(0)

    def _fair_end(self, otherwise: float) -> float:
        """Until when the slot may be held while others wait."""
        if self._began is None or not self._contended:
            return otherwise
        return self._began + CONTENDED_SECONDS + self.received / CONTENDED_BYTES_PER_SECOND

    def _refusal(self) -> Refusal:
        why = self._ended
        if not why and self._contended:
            why = "Others wait, and this upload is slow; it can be resumed where it is."
        return Refusal(
            Code.QUOTA_EXCEEDED,
            why or f"No frame came for {UPLOAD_IDLE_SECONDS} seconds; the upload can be resumed.",
        )


def _data(message: ModelHeader | Frame | None, position: int, total: int) -> memoryview:
    """The data of the frame that belongs at `position`."""
    if message is None:
        raise Refusal(Code.FRAMES_INVALID, f"The stream ended at byte {position} of {total}.")
    if not isinstance(message, Frame) or message.offset != position or not message.data:
        raise Refusal(
            Code.FRAMES_INVALID,
            f"Expected a frame of at least one byte at offset {position}.",
            metadata={"offset": str(position)},
        )
    size = len(message.data)
    if size > FRAME_BYTES or position + size > total:
        raise Refusal(
            Code.TOO_LARGE,
            f"A frame of {size} bytes at offset {position} exceeds the frame's limit of {FRAME_BYTES} or "
            f"the announced {total} bytes.",
        )
    return message.data


@asynccontextmanager
async def _in_time(total: int) -> AsyncIterator[None]:
    """Bounds how long one stream may hold a slot at all; a slower one resumes."""
    seconds = UPLOAD_IDLE_SECONDS + total / MIN_UPLOAD_BYTES_PER_SECOND
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise Refusal(
            Code.QUOTA_EXCEEDED, f"The upload took more than {seconds:.0f} seconds; it can be resumed."
        ) from None
