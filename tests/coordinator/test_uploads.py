"""Streams of one upload that take over from one another: one writer at a time, and nobody waits for ever."""

import asyncio
import errno
import gc
import hashlib
import shutil
import threading
import weakref
from collections.abc import AsyncIterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from coordinator.blobs import BlobStore
from coordinator.metrics import Metrics
from coordinator.receiving import Uploads
from coordinator.spool import Spool, SpooledUpload, SpoolFull, UploadKey
from coordinator.upload_places import Messages, UploadStream
from fedpeer.protocol.errors import Code, Refusal
from fedpeer.protocol.frames import Frame
from fedpeer.protocol.model_file import ModelFileError, contract_of, encode_model
from mechanism.statements import ModelStatement

WEIGHTS = {"weight": np.arange(12, dtype=np.float32)}
CONTENT = encode_model(WEIGHTS)
CONTRACT = contract_of(WEIGHTS, Decimal(1000), 1 << 20)
STATEMENT = ModelStatement(
    submission_id="model-1",
    task_id="task",
    terms_digest=bytes(32),
    participant_id="ann",
    round=1,
    model_sha256=hashlib.sha256(CONTENT).digest(),
    model_bytes=len(CONTENT),
    commitment=bytes(32),
    draw_share=bytes(32),
    nonce=bytes(16),
)
BEN = replace(STATEMENT, participant_id="ben", submission_id="model-2")
KEY = UploadKey(STATEMENT.task_id, STATEMENT.participant_id, STATEMENT.submission_id)


async def whole() -> AsyncIterator[Frame]:
    yield Frame(0, memoryview(CONTENT))


async def cut_short() -> AsyncIterator[Frame]:
    yield Frame(0, memoryview(CONTENT)[:40])


async def falls_silent() -> AsyncIterator[Frame]:
    yield Frame(0, memoryview(CONTENT)[:40])
    await asyncio.Event().wait()


class Receiver:
    """Uploads whose receipts wait until they may be written."""

    def __init__(self, folder: Path, places: int = 2) -> None:
        self.spool = Spool(folder / "spool")
        self.metrics = Metrics()
        self.uploads = Uploads(self.spool, BlobStore(folder / "models"), self.metrics, places)
        self.places = self.uploads.places
        self.may_record = asyncio.Event()
        self.recording = asyncio.Event()
        self.welcomed: list[str] = []

    def receive(
        self, name: str, messages: Messages, offset: int = 0, statement: ModelStatement = STATEMENT
    ) -> "asyncio.Task[str]":
        async def welcome() -> None:
            self.welcomed.append(name)

        async def record() -> str:
            self.recording.set()
            await self.may_record.wait()
            return name

        stream = UploadStream(messages, welcome)
        return asyncio.create_task(self.uploads.receive(stream, statement, offset, CONTRACT, record))


@pytest.mark.parametrize("first_ends_before", [False, True])
async def test_who_takes_over_and_hangs_up_is_waited_for_by_nobody(
    tmp_path: Path, first_ends_before: bool
) -> None:
    receiver = Receiver(tmp_path)
    first = receiver.receive("first", whole())
    await receiver.recording.wait()
    second = receiver.receive("second", whole())
    third: asyncio.Task[str] | None = None
    if not first_ends_before:  # the third waits for the second, which leaves it the first to wait for
        await asyncio.sleep(0)
        third = receiver.receive("third", whole())
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])
    assert receiver.welcomed == ["first"]
    receiver.may_record.set()
    assert await first == "first"
    async with asyncio.timeout(60):
        assert await (third or receiver.receive("third", whole())) == "third"
    assert receiver.welcomed == ["first", "third"]
    assert receiver.places.busy("task") == set()
    await receiver.uploads.stop()


async def test_an_offset_beyond_what_is_held_is_refused_before_a_frame_is_asked_for(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path)
    with pytest.raises(Refusal) as refused:
        await receiver.receive("first", whole(), offset=41)
    assert refused.value.code is Code.FRAMES_INVALID
    assert refused.value.metadata == {"offset": "0"}
    assert receiver.welcomed == []
    await receiver.uploads.stop()


async def test_a_stream_that_ends_early_leaves_what_came_and_the_next_goes_on_from_there(
    tmp_path: Path,
) -> None:
    receiver = Receiver(tmp_path)
    receiver.may_record.set()
    with pytest.raises(Refusal, match="ended at byte 40"):
        await receiver.receive("first", cut_short())
    assert await receiver.uploads.held(KEY) == 40

    async def rest() -> AsyncIterator[Frame]:
        yield Frame(40, memoryview(CONTENT)[40:])

    assert await receiver.receive("second", rest(), offset=40) == "second"
    assert await receiver.uploads.held(KEY) == 0
    await receiver.uploads.stop()


async def test_who_hangs_up_once_the_last_frame_has_come_has_sent_it_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = Receiver(tmp_path)
    receiver.may_record.set()
    may_append, appending = threading.Event(), asyncio.Event()
    loop, append = asyncio.get_running_loop(), SpooledUpload.append

    def slow(self: SpooledUpload, data: memoryview) -> None:
        loop.call_soon_threadsafe(appending.set)
        may_append.wait()
        append(self, data)

    monkeypatch.setattr(SpooledUpload, "append", slow)
    upload = receiver.receive("first", whole())
    await appending.wait()
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert receiver.places.busy("task") == {KEY}, "the file has a writer still"
    may_append.set()
    async with asyncio.timeout(60):
        await receiver.recording.wait()
    assert BlobStore(tmp_path / "models").intact(STATEMENT.model_sha256)
    await receiver.uploads.stop()


async def test_a_file_that_was_whole_before_a_restart_needs_no_more_frames(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path)
    receiver.may_record.set()
    held = receiver.spool.resume(KEY, 0, len(CONTENT))
    held.append(CONTENT)
    held.close()
    assert await receiver.receive("second", nothing(), offset=len(CONTENT)) == "second"
    await receiver.uploads.stop()


async def nothing() -> AsyncIterator[Frame]:
    for frame in ():
        yield frame


async def test_a_model_that_fails_is_refused_and_gone(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path)

    async def spoiled() -> AsyncIterator[Frame]:
        yield Frame(0, memoryview(b"\xff" * 100))

    with pytest.raises(ModelFileError):  # and not that the stream ended early
        await receiver.receive("first", spoiled())
    assert await receiver.uploads.held(KEY) == 0
    assert receiver.places.busy("task") == set()
    await receiver.uploads.stop()


async def test_who_sends_nothing_leaves_nothing(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path)
    with pytest.raises(Refusal, match="ended at byte 0"):
        await receiver.receive("first", nothing())
    assert [path for path in (tmp_path / "spool").rglob("*") if path.is_file()] == []
    await receiver.uploads.stop()


async def test_no_frames_are_asked_for_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = Receiver(tmp_path)
    receiver.may_record.set()
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
        for name in ("first", "second"):
            with pytest.raises(SpoolFull, match="0 are free"):
                await receiver.receive(name, falls_silent())
    assert receiver.places.busy("task") == set()
    assert await receiver.receive("third", whole()) == "third"
    assert receiver.welcomed == ["third"]
    assert await receiver.uploads.held(KEY) == 0
    await receiver.uploads.stop()


async def test_a_model_that_came_whole_is_recorded_though_its_sender_has_hung_up(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path)
    upload = receiver.receive("first", whole())
    await receiver.recording.wait()
    upload.cancel()
    await asyncio.wait([upload])
    assert receiver.places.busy("task") == {KEY}
    assert BlobStore(tmp_path / "models").intact(STATEMENT.model_sha256)
    receiver.may_record.set()
    async with asyncio.timeout(60):
        assert await receiver.receive("second", whole()) == "second"
    assert receiver.places.busy("task") == set()
    await receiver.uploads.stop()


async def test_what_cannot_be_put_in_its_place_is_an_error_and_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = Receiver(tmp_path)

    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as disk:
        disk.setattr(BlobStore, "adopt", broken)
        with pytest.raises(OSError, match="Input/output"):
            await receiver.receive("first", whole())
    assert not receiver.recording.is_set()
    assert await receiver.uploads.held(KEY) == 0
    receiver.may_record.set()
    assert await receiver.receive("second", whole()) == "second"
    await receiver.uploads.stop()


async def test_a_service_that_stops_keeps_what_came_and_takes_no_more(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path, places=1)
    uploads = [receiver.receive("first", falls_silent()), receiver.receive("waits", whole(), statement=BEN)]
    async with asyncio.timeout(60):
        while receiver.spool.size(KEY) < 40:
            await asyncio.sleep(0)
        await receiver.uploads.stop()
    assert receiver.spool.size(KEY) == 40
    for upload in [*uploads, receiver.receive("late", whole())]:
        with pytest.raises(Refusal, match="shutting down") as refused:
            await upload
        assert refused.value.code is Code.DRAINING
    assert receiver.welcomed == ["first"]


async def test_a_service_that_stops_has_whole_models_recorded_and_leaves_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.spool._FLUSH_BYTES", 1)
    before = set(threading.enumerate())
    receiver = Receiver(tmp_path)
    upload = receiver.receive("first", whole())
    await receiver.recording.wait()
    stop = asyncio.create_task(receiver.uploads.stop())
    await asyncio.sleep(0)
    receiver.may_record.set()
    async with asyncio.timeout(60):
        await stop
        assert await upload == "first"
    begun = set(threading.enumerate()) - before
    assert not [thread for thread in begun if thread.name.startswith(("uploads", "flush"))]


async def test_a_failing_disk_is_named_to_who_says_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = Receiver(tmp_path)

    def broken(self: SpooledUpload, data: memoryview) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(SpooledUpload, "append", broken)
    async with asyncio.timeout(60):
        with pytest.raises(OSError, match="Input/output"):
            await receiver.receive("first", falls_silent())
    assert await receiver.uploads.held(KEY) == 0
    await receiver.uploads.stop()


class Weights(bytearray):
    """Bytes that can be referred to weakly."""


@pytest.mark.parametrize("spoiled", [True, False])
async def test_an_error_keeps_no_frame_of_the_model(tmp_path: Path, spoiled: bool) -> None:
    receiver = Receiver(tmp_path)
    sent: list[weakref.ref[Weights]] = []

    def part(start: int, end: int) -> Frame:
        weights = Weights(b"\xff" * (end - start) if spoiled else CONTENT[start:end])
        sent.append(weakref.ref(weights))
        return Frame(start, memoryview(weights))

    async def messages() -> AsyncIterator[Frame]:
        yield part(0, 20)
        yield part(20, 40)

    with pytest.raises(ModelFileError if spoiled else Refusal):
        await receiver.receive("first", messages())
    gc.collect()  # an error and its frames refer to one another
    assert [ref() for ref in sent] == [None] * len(sent)
    await receiver.uploads.stop()


async def test_a_stream_that_is_waited_for_keeps_no_frame_in_memory(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path)
    sent: list[weakref.ref[Weights]] = []

    async def messages() -> AsyncIterator[Frame]:
        for start in (0, 20):
            weights = Weights(CONTENT[start : start + 20])
            sent.append(weakref.ref(weights))
            frame = Frame(start, memoryview(weights))
            del weights
            yield frame
            del frame
        await asyncio.Event().wait()

    upload = receiver.receive("first", messages())
    async with asyncio.timeout(60):
        while len(sent) < 2 or any(ref() is not None for ref in sent):
            await asyncio.sleep(0)
    assert receiver.spool.size(KEY) == 40
    await receiver.uploads.stop()
    with pytest.raises(Refusal, match="shutting down"):
        await upload
