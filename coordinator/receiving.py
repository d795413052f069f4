"""Receiving models: frames to the spool, the whole file checked before anything counts.

The event loop receives a frame while worker threads write, hash and check those before it, one after the other; what
was written is flushed meanwhile, so that little is left when the last one has come. Every step is waited for: a file
has one writer.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Barrier
from traceback import clear_frames
from typing import Any, TypeVar

from coordinator.blobs import BlobStore
from coordinator.metrics import Metrics
from coordinator.spool import Spool, SpoolBusy, SpooledUpload, UploadKey
from coordinator.upload_places import Places, UploadStream
from fedpeer.protocol.errors import Code, Refusal
from fedpeer.protocol.frames import Frame
from fedpeer.protocol.limits import FRAME_BYTES
from fedpeer.protocol.model_file import ModelCheck
from fedpeer.v1.market_pb2 import ModelHeader
from mechanism.statements import ModelStatement
from mechanism.terms import ModelContract

Result = TypeVar("Result")

#: Threads for each upload that has a place: one writes a frame, and the next frame waits for it in another. And those
#: besides, for whole files on their way to their own place.
_FOR_EACH, _THREADS = 2, 8

#: Seconds that a stream of the same upload in another process gets to end, once it was asked to.
_LET_GO_SECONDS = 5.0

_STOPPING = "The coordinator is shutting down; the upload can be resumed."


class Uploads:
    """Uploads of one service.

    Args:
        places: streams that are read at once.
    """

    def __init__(self, spool: Spool, blobs: BlobStore, metrics: Metrics, places: int) -> None:
        self.places = Places(places, metrics.uploads)
        self._spool = spool
        self._blobs = blobs
        self._metrics = metrics
        self._threads = _started(_FOR_EACH * places + _THREADS)
        self._receiving: set[asyncio.Task[Any]] = set()
        self._stopping = False

    async def stop(self) -> None:
        """Keeps what has come of models that are not whole, and waits until whole ones are recorded."""
        self._stopping = True
        for streams in self.places.streams.values():
            for stream in streams:
                stream.end(_STOPPING, Code.DRAINING)
        await asyncio.gather(*self._receiving, return_exceptions=True)
        self._threads.shutdown()
        self._spool.stop()

    async def held(self, key: UploadKey) -> int:
        """Bytes that are held of an upload."""
        return await self._in_thread(self._spool.size, key)

    async def receive(
        self,
        stream: UploadStream,
        statement: ModelStatement,
        offset: int,
        contract: ModelContract,
        record: Callable[[], Awaitable[Result]],
    ) -> Result:
        """Receives a model from byte `offset` on, checks it, stores it, and has it recorded.

        Once all frames have come, the rest happens even if the sender closes the call.

        Raises:
            Refusal: FRAMES_INVALID, TOO_LARGE, MODEL_INVALID; QUOTA_EXCEEDED or DRAINING where the stream ends early.
            ModelFileError: the model does not fit the contract; nothing of it is kept.
            SpoolFull, OSError: the disk is full; nothing of it is kept.
        """
        if self._stopping:
            raise Refusal(Code.DRAINING, _STOPPING)
        work = asyncio.create_task(self._receive(stream, statement, offset, contract, record))
        self._receiving.add(work)
        work.add_done_callback(self._receiving.discard)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            stream.end("The sender has closed the call.")
            raise
        except Exception as error:
            clear_frames(error.__traceback__)  # an error that is kept keeps no frame of the model
            raise

    async def _receive(
        self,
        stream: UploadStream,
        statement: ModelStatement,
        offset: int,
        contract: ModelContract,
        record: Callable[[], Awaitable[Result]],
    ) -> Result:
        key = UploadKey(statement.task_id, statement.participant_id, statement.submission_id)
        total = statement.model_bytes
        check = ModelCheck(contract, total)
        async with self.places.lane(key, stream):
            async with self.places.place(stream, total):
                upload = await self._opened(key, offset, total, check)
                steps = _Steps(self._threads, upload)
                try:
                    await stream.welcome()
                    last = await self._fill(steps, stream, total)
                except Exception:
                    await steps.then(upload.close if upload.offset else upload.discard)
                    raise
                whole = steps.then(self._put_in_place, upload, check, statement.model_sha256)
                await asyncio.wait([last or whole])  # the last frame is in memory until then
            await whole
            return await record()

    async def _opened(self, key: UploadKey, offset: int, total: int, check: ModelCheck) -> SpooledUpload:
        """As `_open`, once the process that had the upload before has let go of it; where it does not, without it."""
        give_up, late = asyncio.get_running_loop().time() + _LET_GO_SECONDS, False
        while True:
            try:
                return await self._in_thread(self._open, key, offset, total, check, late)
            except SpoolBusy:
                if late:
                    raise
                await asyncio.sleep(_LET_GO_SECONDS / 100)
                late = asyncio.get_running_loop().time() >= give_up

    def _open(
        self, key: UploadKey, offset: int, total: int, check: ModelCheck, take_over: bool
    ) -> SpooledUpload:
        if offset > min(held := self._spool.size(key), total):
            raise Refusal(
                Code.FRAMES_INVALID,
                f"The upload begins at byte {offset}, but {held} bytes are held.",
                metadata={"offset": str(held)},
            )
        return self._spool.resume(key, offset, total, check, take_over=take_over)

    async def _fill(self, steps: "_Steps", stream: UploadStream, total: int) -> "asyncio.Future[None] | None":
        """Appends frames until the file is whole; returns the last of the steps, which may go on."""

        def look(appended: "asyncio.Future[None]") -> None:
            if not appended.cancelled() and appended.exception() is not None:
                stream.end("What comes cannot be kept.")  # the sender may say nothing more

        position, last = steps.upload.offset, None
        try:
            while position < total:
                data = _data(await stream.next(), position, total)
                position += len(data)
                stream.received += len(data)
                self._metrics.received_bytes.inc(len(data))
                before, last = last, steps.then(steps.upload.append, data)
                last.add_done_callback(look)
                del data  # not to be held here until the next one comes
                if before is not None:
                    await before  # one frame at the most waits for its turn
        except Exception:
            if last is not None:
                await last  # why it failed says more than how the stream then ended
            raise
        return last

    def _put_in_place(self, upload: SpooledUpload, check: ModelCheck, signed: bytes) -> None:
        """The last of the checks, then the file durable in its place."""
        digest = upload.digest()
        if digest != signed:
            raise Refusal(
                Code.MODEL_INVALID,
                f"The file's SHA-256 is {digest.hex()}, the signed header says {signed.hex()}.",
            )
        check.finish()
        upload.flush()
        self._blobs.adopt(upload.path, digest, flushed=True)
        upload.close()

    def _in_thread(self, work: Callable[..., Result], *arguments: Any) -> "asyncio.Future[Result]":
        return asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)


class _Steps:
    """What is done to an upload, in threads, one step after the other; no file is left where one fails."""

    def __init__(self, threads: ThreadPoolExecutor, upload: SpooledUpload) -> None:
        self.upload = upload
        self._threads = threads
        self._last: Future[None] | None = None

    def then(self, work: Callable[..., None], *arguments: Any) -> "asyncio.Future[None]":
        """Does this once all before it is done. Where that has failed, this fails alike and is not done."""
        self._last = self._threads.submit(self._step, self._last, work, arguments)
        return asyncio.wrap_future(self._last)

    def _step(
        self, before: Future[None] | None, work: Callable[..., None], arguments: tuple[Any, ...]
    ) -> None:
        if before is not None:
            before.result()
        try:
            work(*arguments)
        except Exception:
            self.upload.discard()
            raise


def _started(threads: int) -> ThreadPoolExecutor:
    """A pool with all its threads: one that could not be started later would leave its work in the queue."""
    pool, ready = ThreadPoolExecutor(threads, "uploads"), Barrier(threads)
    for _ in range(threads):
        pool.submit(ready.wait)
    return pool


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
