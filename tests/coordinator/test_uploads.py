"""Streams of one upload that take over from one another: one writer at a time, and nobody waits for ever."""

import asyncio
import errno
import hashlib
import shutil
import threading
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import coordinator.uploads
from coordinator.blobs import BlobStore
from coordinator.commits import Pending
from coordinator.metrics import Metrics
from coordinator.spool import Spool, SpooledUpload, SpoolFull, UploadKey
from coordinator.uploads import Messages, Stream, Uploads
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
    samples=10,
    draw_share=bytes(32),
    nonce=bytes(16),
)
KEY = UploadKey(STATEMENT.task_id, STATEMENT.participant_id, STATEMENT.submission_id)


async def whole() -> AsyncIterator[Frame]:
    yield Frame(0, memoryview(CONTENT))


async def cut_short() -> AsyncIterator[Frame]:
    yield Frame(0, memoryview(CONTENT)[:40])


async def falls_silent() -> AsyncIterator[Frame]:
    yield Frame(0, memoryview(CONTENT)[:40])
    await asyncio.Event().wait()


class Desk:
    """Uploads whose receipts wait until they may be written."""

    def __init__(self, folder: Path, slots: int = 2) -> None:
        self.spool = Spool(folder / "spool")
        self.metrics = Metrics()
        self.uploads = Uploads(self.spool, BlobStore(folder / "models"), self.metrics, slots=slots)
        self.may_record = asyncio.Event()
        self.recording = asyncio.Event()
        self.welcomed: list[str] = []

    def receive(
        self, name: str, messages: Messages, offset: int = 0, statement: ModelStatement = STATEMENT
    ) -> "asyncio.Task[str]":
        async def welcome() -> None:
            self.welcomed.append(name)

        loop = asyncio.get_running_loop()
        done: asyncio.Future[str] = loop.create_future()
        done.add_done_callback(lambda _: done.cancelled() or done.exception())

        async def record() -> None:
            self.recording.set()
            await self.may_record.wait()
            done.set_result(name)

        def post() -> None:
            asyncio.run_coroutine_threadsafe(record(), loop)

        stream, pending = Stream(messages, welcome), Pending(done, post)
        return asyncio.create_task(self.uploads.receive(stream, statement, offset, CONTRACT, pending))


@pytest.mark.parametrize("first_ends_before", [False, True])
async def test_who_takes_over_and_hangs_up_is_waited_for_by_nobody(
    tmp_path: Path, first_ends_before: bool
) -> None:
    desk = Desk(tmp_path)
    first = desk.receive("first", whole())
    await desk.recording.wait()
    second = desk.receive("second", whole())
    third: asyncio.Task[str] | None = None
    if not first_ends_before:  # the third waits for the second, which leaves it the first to wait for
        await asyncio.sleep(0)
        third = desk.receive("third", whole())
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])
    assert desk.welcomed == ["first"]
    desk.may_record.set()
    assert await first == "first"
    async with asyncio.timeout(10):
        assert await (third or desk.receive("third", whole())) == "third"
    assert desk.welcomed == ["first", "third"]
    assert desk.uploads.busy("task") == set()
    desk.uploads.stop()


async def test_an_offset_beyond_what_is_held_is_refused_before_a_frame_is_asked_for(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    with pytest.raises(Refusal) as refused:
        await desk.receive("first", whole(), offset=41)
    assert refused.value.code is Code.FRAMES_INVALID
    assert refused.value.metadata == {"offset": "0"}
    assert desk.welcomed == []
    desk.uploads.stop()


async def test_a_stream_that_ends_early_leaves_what_came_and_the_next_goes_on_from_there(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path)
    desk.may_record.set()
    with pytest.raises(Refusal, match="ended at byte 40"):
        await desk.receive("first", cut_short())
    assert await desk.uploads.held(KEY) == 40

    async def rest() -> AsyncIterator[Frame]:
        yield Frame(40, memoryview(CONTENT)[40:])

    assert await desk.receive("second", rest(), offset=40) == "second"
    assert await desk.uploads.held(KEY) == 0
    desk.uploads.stop()


async def test_who_hangs_up_before_the_last_frame_is_taken_resumes_with_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is whole, but it is not put in its place without a receipt."""
    desk = Desk(tmp_path)
    desk.may_record.set()
    may_append, appending = threading.Event(), asyncio.Event()
    loop, append = asyncio.get_running_loop(), SpooledUpload.append

    def slow(self: SpooledUpload, data: memoryview) -> None:
        loop.call_soon_threadsafe(appending.set)
        may_append.wait()
        append(self, data)

    monkeypatch.setattr(SpooledUpload, "append", slow)
    monkeypatch.setattr(coordinator.uploads, "_AHEAD_BYTES", 1)  # no frame is handed in without waiting
    upload = desk.receive("first", whole())
    await appending.wait()
    upload.cancel()
    await asyncio.sleep(0)
    may_append.set()
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert not desk.recording.is_set()
    assert await desk.uploads.held(KEY) == len(CONTENT)
    assert await desk.receive("second", nothing(), offset=len(CONTENT)) == "second"
    desk.uploads.stop()


async def nothing() -> AsyncIterator[Frame]:
    for frame in ():
        yield frame


async def test_a_model_that_fails_is_told_to_its_sender_and_gone(tmp_path: Path) -> None:
    desk = Desk(tmp_path)

    async def spoiled() -> AsyncIterator[Frame]:
        yield Frame(0, memoryview(b"\xff" * 100))

    with pytest.raises(ModelFileError):  # and not that the stream ended early
        await desk.receive("first", spoiled())
    assert await desk.uploads.held(KEY) == 0
    assert desk.uploads.busy("task") == set()
    desk.uploads.stop()


async def test_who_sends_nothing_leaves_nothing(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    with pytest.raises(Refusal, match="ended at byte 0"):
        await desk.receive("first", nothing())
    assert [path for path in (tmp_path / "spool").rglob("*") if path.is_file()] == []
    desk.uploads.stop()


async def test_frames_are_asked_for_on_a_full_disk_once_and_not_again_before_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tmp_path)
    desk.may_record.set()
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
        for name in ("first", "second", "third"):
            with pytest.raises(SpoolFull, match="0 are free"):
                await desk.receive(name, whole())
        assert desk.welcomed == ["first"]
    assert await desk.receive("fourth", whole()) == "fourth"
    assert desk.welcomed == ["first", "fourth"]
    assert await desk.uploads.held(KEY) == 0
    desk.uploads.stop()


async def test_a_model_that_came_whole_is_recorded_though_its_sender_has_hung_up(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    upload = desk.receive("first", whole())
    await desk.recording.wait()
    upload.cancel()
    await asyncio.wait([upload])
    assert desk.uploads.busy("task") == {KEY}
    assert BlobStore(tmp_path / "models").intact(STATEMENT.model_sha256)
    desk.may_record.set()
    async with asyncio.timeout(10):
        assert await desk.receive("second", whole()) == "second"
    assert desk.uploads.busy("task") == set()
    desk.uploads.stop()


async def test_what_cannot_be_put_in_its_place_is_told_and_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tmp_path)

    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as disk:
        disk.setattr(BlobStore, "adopt", broken)
        with pytest.raises(OSError, match="Input/output"):
            await desk.receive("first", whole())
    assert not desk.recording.is_set()
    assert await desk.uploads.held(KEY) == 0
    desk.may_record.set()
    assert await desk.receive("second", whole()) == "second"
    desk.uploads.stop()


async def test_a_service_that_stops_lets_a_receiving_upload_go(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    upload = desk.receive("first", falls_silent())
    async with asyncio.timeout(10):
        while desk.spool.size(KEY) < 40:
            await asyncio.sleep(0)
    desk.uploads.stop()
    upload.cancel()
    await asyncio.wait([upload], timeout=10)
    assert upload.cancelled()
    assert desk.spool.size(KEY) == 40
    with pytest.raises(Refusal) as refused:
        await desk.receive("second", whole())
    assert refused.value.code is Code.DRAINING


async def test_a_failing_disk_is_told_to_who_says_nothing_more_and_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    async with asyncio.timeout(30):
        for name in ("first", "second"):
            with pytest.raises(SpoolFull, match="0 are free"):
                await desk.receive(name, falls_silent())
    assert desk.welcomed == ["first"]
    assert desk.uploads.busy("task") == set()
    desk.uploads.stop()
