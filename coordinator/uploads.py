"""Taking in models: who may send when, frames to the spool, the whole file checked before anything counts.

One thread takes an upload from its first frame to the finished file: it writes, hashes and checks frames while the
next ones are received, and what was written is flushed meanwhile, so that little is left when the last one has come.

Memory is bounded by the number of slots: gRPC buffers some MiB of each stream that is read. Slots go round: an
identity uploads one model at a time, and a stream that is slower than `CONTENDED_BYTES_PER_SECOND` gives its slot
up as soon as somebody waits for it. What it sent is kept, and it resumes behind those who waited; so slow or idle
streams cannot keep an honest participant out for longer than seconds.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from queue import SimpleQueue
from threading import Barrier
from traceback import clear_frames
from typing import Any, TypeVar

from coordinator.blobs import BlobStore
from coordinator.commits import Pending
from coordinator.metrics import Metrics
from coordinator.spool import Spool, SpooledUpload, UploadKey
from fedpeer.protocol.errors import Code, Refusal
from fedpeer.protocol.frames import Frame
from fedpeer.protocol.limits import (
    CONTENDED_BYTES_PER_SECOND,
    CONTENDED_SECONDS,
    FRAME_BYTES,
    MIN_UPLOAD_BYTES_PER_SECOND,
    UPLOAD_IDLE_SECONDS,
)
from fedpeer.protocol.model_file import ModelCheck
from fedpeer.v1.market_pb2 import ModelHeader
from mechanism.statements import ModelStatement
from mechanism.terms import ModelContract

Result = TypeVar("Result")
Messages = AsyncIterator[ModelHeader | Frame]

#: Threads beside those of the uploads that have a slot: for those that end after their sender has hung up.
_THREADS = 8

#: Bytes of an upload that may wait for its thread: the frame that it is at, and the next.
_AHEAD_BYTES = 2 * FRAME_BYTES

#: Bytes that a frame takes in memory beside its data.
_OVERHEAD_BYTES = 1 << 10


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
        self._threads = _started(slots + _THREADS)
        self._lines: set[_Line] = set()
        self._lanes: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._streams: dict[UploadKey, Stream] = {}
        self._waiting = 0
        # Whether the last file could not be opened or written.
        self._in_trouble = False

    def stop(self) -> None:
        for line in self._lines:
            line.stop()
        self._threads.shutdown(cancel_futures=True)
        self._spool.stop()

    async def held(self, key: UploadKey) -> int:
        """Bytes that are held of an upload."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._spool.size, key)

    def busy(self, task_id: str) -> set[UploadKey]:
        """A task's uploads in progress."""
        return {key for key in self._streams if key.task_id == task_id}

    async def receive(
        self,
        stream: "Stream",
        statement: ModelStatement,
        offset: int,
        contract: ModelContract,
        record: Pending[Result],
    ) -> Result:
        """Receives a model from byte `offset` on, checks it, stores it, and has it recorded.

        Once the file is whole, the rest happens even if the sender hangs up.

        Raises:
            Refusal: FRAMES_INVALID, TOO_LARGE, MODEL_INVALID, or QUOTA_EXCEEDED where the stream ends early.
            ModelFileError: the model does not fit the contract; nothing of it is kept.
            SpoolFull, OSError: the disk is full; nothing of it is kept.
        """
        key = UploadKey(statement.task_id, statement.participant_id, statement.submission_id)
        line: _Line | None = None
        whole = False
        try:
            await self._take_over(key, stream)
            async with self._lanes[key.participant_id], self._slot():
                async with _in_time(statement.model_bytes):
                    check = ModelCheck(contract, statement.model_bytes)
                    line = self._line(key, offset, statement, check, stream, record)
                    await self._fill(line, offset, statement.model_bytes, stream)
                line.finish()
                whole = True
                await line.received()
            result = await asyncio.shield(record.done)
            self._in_trouble = False
            return result
        finally:
            if whole and not record.done.done():
                record.done.add_done_callback(lambda _: self._release(key, stream, line))
            else:
                self._release(key, stream, line)

    async def _take_over(self, key: UploadKey, stream: "Stream") -> None:
        """Waits until older streams of the same upload have let go; they are told to."""
        stream.before, self._streams[key] = self._streams.get(key), stream
        older = stream.before
        while older is not None:
            older.end("Another stream of the same upload has taken over.")
            await older.over.wait()
            older = older.before  # for which that one still waited when it ended
        stream.before = None

    def _release(self, key: UploadKey, stream: "Stream", line: "_Line | None") -> None:
        if line is not None:
            self._lines.discard(line)
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

    def _line(
        self,
        key: UploadKey,
        offset: int,
        statement: ModelStatement,
        check: ModelCheck,
        stream: "Stream",
        record: Pending[Any],
    ) -> "_Line":
        total = statement.model_bytes

        def begin() -> SpooledUpload:
            if offset and offset > min(held := self._spool.size(key), total):
                raise Refusal(
                    Code.FRAMES_INVALID,
                    f"The upload begins at byte {offset}, but {held} bytes are held.",
                    metadata={"offset": str(held)},
                )
            return self._spool.resume(key, offset, total, check)

        def end(spooled: SpooledUpload) -> None:
            """Digest, the last of the checks, the file durable in its place, and what is to be recorded of it."""
            digest = spooled.digest()
            if digest != statement.model_sha256:
                raise Refusal(
                    Code.MODEL_INVALID,
                    f"The file's SHA-256 is {digest.hex()}, the signed header says {statement.model_sha256.hex()}.",
                )
            check.finish()
            spooled.flush()
            self._blobs.adopt(spooled.path, digest, flushed=True)
            spooled.close()
            record.post()

        def fail(error: BaseException) -> None:
            self._in_trouble = self._in_trouble or isinstance(error, OSError)
            if not record.done.done():
                record.done.set_exception(error)
            stream.end("What comes cannot be kept.")  # nothing more need be waited for

        line = _Line(self._threads, begin, end, fail, total)
        self._lines.add(line)
        return line

    async def _fill(self, line: "_Line", position: int, total: int, stream: "Stream") -> None:
        """Hands in frames until the file is whole, beside receiving them."""
        data: memoryview | None = None
        try:
            # A model of one frame is asked for at once; else that frame might be sent in vain, or wait for the file.
            if position or total > FRAME_BYTES or self._in_trouble:
                await line.opened()
            await stream.begin(contended=self._waiting > 0)
            while position < total:
                data = _data(await stream.next(), position, total)
                line.check_going_on()  # what nobody takes is not to be held
                position += len(data)
                stream.received += len(data)
                self._metrics.received_bytes.inc(len(data))
                await line.put(data)
                data = None  # not to be held here until the next one comes
        except BaseException as error:
            data = None  # nor by the error
            line.stop()
            with suppress(asyncio.CancelledError):
                await line.over()
            if isinstance(error, Exception):
                line.check()  # what has become of the file says more than how the stream then ended
            raise


class _Line:
    """An upload on its way from the event loop to the one thread that makes a file of it: handing in one more frame
    costs the loop no task, and the thread wakes the loop only where somebody waits there.

    Args:
        begin: opens the file; in the thread, as `end`.
        end: puts the whole file in its place. What it raises discards the file.
        fail: is told, in the loop, why the file does not come to its place.
        total: bytes of the whole file.
    """

    def __init__(
        self,
        threads: ThreadPoolExecutor,
        begin: Callable[[], SpooledUpload],
        end: Callable[[SpooledUpload], None],
        fail: Callable[[BaseException], None],
        total: int,
    ) -> None:
        self._threads = threads
        self._begin = begin
        self._end = end
        self._fail = fail
        self._total = total
        self._open = False
        self._whole = False
        self._received = False
        self._handed_in = 0
        self._appended = 0
        self._frames: SimpleQueue[memoryview | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._stirred: asyncio.Future[None] | None = None
        self._work: Future[bool] | None = None

    async def opened(self) -> None:
        """Returns when the file is open; raises what `begin` raised."""
        self._start()
        await self._until(lambda: self._open)
        self.check_going_on()

    async def put(self, data: memoryview) -> None:
        """Hands in the next frame; returns when there is room for one more. The first one opens the file.

        Raises:
            OSError, ModelFileError: the file cannot be opened or appended to.
            Refusal: DRAINING, the line was stopped.
        """
        self._handed_in += len(data) + _OVERHEAD_BYTES
        self._frames.put(data)
        del data
        self._start()
        await self._until(self._has_room)
        self.check_going_on()

    def finish(self) -> None:
        """All frames are handed in: the file is whole when they are appended."""
        self._whole = True
        self._frames.put(None)
        self._start()

    def stop(self) -> None:
        """No more frames come; what has come is kept for the resumption."""
        self._frames.put(None)

    async def received(self) -> None:
        """Returns when nothing that was handed in is in memory any more, even if cancelled meanwhile."""
        await self._until(lambda: self._received, patient=True)

    async def over(self) -> None:
        """Returns when nothing is done to the file any more, even if cancelled meanwhile: a file has one writer."""
        await self._until(lambda: self._work is None, patient=True)

    def check(self) -> None:
        """Raises what the thread has raised, if it has."""
        if self._work is not None and self._work.done() and not self._work.cancelled():
            self._work.result()

    def check_going_on(self) -> None:
        """Raises as `check`, and Refusal DRAINING where the line was stopped."""
        self.check()
        if self._over():
            raise _stopped()

    def _over(self) -> bool:
        return self._work is not None and self._work.done()

    def _start(self) -> None:
        if self._work is None:
            try:
                self._work = self._threads.submit(self._run)
            except RuntimeError:
                raise _stopped() from None
            self._work.add_done_callback(self._ended)

    async def _until(self, condition: Callable[[], bool], *, patient: bool = False) -> None:
        """Returns when the thread has seen to the condition, or has ended.

        Args:
            patient: a cancellation is raised then, and not before.
        """
        cancelled: asyncio.CancelledError | None = None
        while not self._seen_to(condition):
            self._stirred = self._loop.create_future()
            if self._seen_to(condition):  # now that the thread sees that somebody waits
                break
            try:
                await self._stirred
            except asyncio.CancelledError as error:
                if not patient:
                    raise
                cancelled = error
        self._stirred = None
        if cancelled is not None:
            raise cancelled

    def _seen_to(self, condition: Callable[[], bool]) -> bool:
        return condition() or self._over()

    def _has_room(self) -> bool:
        return self._handed_in - self._appended < _AHEAD_BYTES

    def _run(self) -> bool:
        """Whether the file is whole and in its place."""
        spooled = self._begin()
        self._open = True
        self._stir()
        data: memoryview | None = None
        try:
            while (data := self._frames.get()) is not None:
                spooled.append(data)
                self._appended += len(data) + _OVERHEAD_BYTES
                data = None  # not to be held until the next one comes
                if self._has_room():
                    self._stir()
            self._received = True
            self._stir()
            whole = self._whole and spooled.offset == self._total
            if whole:
                self._end(spooled)
            else:
                spooled.close()
                spooled.settle()
        except Exception as error:
            data = None  # nor by the error, and those who have it
            clear_frames(error.__traceback__)
            spooled.discard()
            raise
        return whole

    def _stir(self) -> None:
        """From the thread, when something has changed that the loop may wait for."""
        if (stirred := self._stirred) is not None:
            self._tell(_resolve, stirred)

    def _ended(self, work: "Future[bool]") -> None:
        """In the thread, or where work that had not begun is given up."""
        self._stir()
        error = None if work.cancelled() else work.exception()
        if error is not None or work.cancelled() or not work.result():
            self._frames = SimpleQueue()  # nor what it has not come to
            self._tell(self._fail, error or _stopped())

    def _tell(self, act: Callable[..., None], *arguments: Any) -> None:
        """In the loop; nobody listens any more where it is closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(act, *arguments)


def _started(threads: int) -> ThreadPoolExecutor:
    """A pool with all its threads: one that could not be started later would leave its work behind in the queue."""
    pool, ready = ThreadPoolExecutor(threads, "uploads"), Barrier(threads)
    for _ in range(threads):
        pool.submit(ready.wait)
    return pool


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
