"""Receiving models: frames to the spool, the whole file checked before anything counts.

The event loop receives a frame while a worker thread writes, hashes and checks the one before it; what was written
is flushed meanwhile, so that little is left when the last one has come. A step of a thread is always waited for:
a file has one writer.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from traceback import clear_frames
from typing import Any, TypeVar

from coordinator.blobs import BlobStore
from coordinator.metrics import Metrics
from coordinator.spool import Spool, SpooledUpload, UploadKey
from coordinator.upload_places import Places, Stream
from fedpeer.protocol.errors import Code, Refusal
from fedpeer.protocol.frames import Frame
from fedpeer.protocol.limits import FRAME_BYTES
from fedpeer.protocol.model_file import ModelCheck
from fedpeer.v1.market_pb2 import ModelHeader
from mechanism.statements import ModelStatement
from mechanism.terms import ModelContract

Result = TypeVar("Result")

#: Threads besides those of the uploads that have a place: for whole files on their way to their own.
_THREADS = 8

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
        self._threads = _started(places + _THREADS)
        self._receiving: set[asyncio.Task[Any]] = set()
        self._stopping = False

    async def stop(self) -> None:
        """Keeps what has come of models that are not whole, and waits until whole ones are recorded."""
        self._stopping = True
        for stream in self.places.streams:
            stream.end(_STOPPING, Code.DRAINING)
        await asyncio.gather(*self._receiving, return_exceptions=True)
        self._threads.shutdown()
        self._spool.stop()

    async def held(self, key: UploadKey) -> int:
        """Bytes that are held of an upload."""
        return await self._in_thread(self._spool.size, key)

    async def receive(
        self,
        stream: Stream,
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
        stream: Stream,
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
                upload = await self._in_thread(self._open, key, offset, total, check)
                try:
                    await stream.welcome()
                    await self._fill(upload, stream, total)
                except Exception:
                    await self._step(upload, upload.close if upload.offset else upload.discard)
                    raise
            await self._step(upload, self._put_in_place, upload, check, statement.model_sha256)
            return await record()

    def _open(self, key: UploadKey, offset: int, total: int, check: ModelCheck) -> SpooledUpload:
        if offset and offset > min(held := self._spool.size(key), total):
            raise Refusal(
                Code.FRAMES_INVALID,
                f"The upload begins at byte {offset}, but {held} bytes are held.",
                metadata={"offset": str(held)},
            )
        return self._spool.resume(key, offset, total, check)

    async def _fill(self, upload: SpooledUpload, stream: Stream, total: int) -> None:
        """Appends frames until the file is whole."""

        def look(appended: "asyncio.Future[None]") -> None:
            if not appended.cancelled() and appended.exception() is not None:
                stream.end("What comes cannot be kept.")  # the sender may say nothing more

        position, appending = upload.offset, None
        try:
            while position < total:
                data = _data(await stream.next(), position, total)
                position += len(data)
                stream.received += len(data)
                self._metrics.received_bytes.inc(len(data))
                if appending is not None:
                    await appending
                appending = self._step(upload, upload.append, data)
                appending.add_done_callback(look)
                del data  # not to be held here until the next one comes
        finally:
            if appending is not None:
                await appending  # why it failed says more than how the stream then ended

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

    def _step(
        self, upload: SpooledUpload, work: Callable[..., None], *arguments: Any
    ) -> "asyncio.Future[None]":
        """`work` in a thread; no file is left of an upload where it fails."""

        def step() -> None:
            try:
                work(*arguments)
            except Exception:
                upload.discard()
                raise

        return self._in_thread(step)

    def _in_thread(self, work: Callable[..., Result], *arguments: Any) -> "asyncio.Future[Result]":
        return asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)


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
