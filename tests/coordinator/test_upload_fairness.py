"""Places go round: who is slow is cut short as soon as somebody waits, who is quick is not, and nothing is lost."""

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import coordinator.upload_places
from coordinator.blobs import BlobStore
from coordinator.receiving import _data
from coordinator.spool import SpooledUpload, UploadKey
from coordinator.upload_places import UploadStream
from fedpeer.protocol.errors import Code, Refusal
from fedpeer.protocol.frames import Frame
from fedpeer.protocol.limits import FRAME_BYTES
from fedpeer.v1.market_pb2 import ModelHeader
from tests.coordinator.test_uploads import (
    BEN,
    CONTENT,
    KEY,
    STATEMENT,
    Receiver,
    falls_silent,
    nothing,
    whole,
)

CYD = replace(STATEMENT, participant_id="cyd", submission_id="model-3")


def contended(monkeypatch: pytest.MonkeyPatch, seconds: float, bytes_per_second: float) -> None:
    monkeypatch.setattr(coordinator.upload_places, "CONTENDED_SECONDS", seconds)
    monkeypatch.setattr(coordinator.upload_places, "CONTENDED_BYTES_PER_SECOND", bytes_per_second)


async def received(receiver: Receiver, bytes_: int) -> None:
    async with asyncio.timeout(60):
        while receiver.spool.size(KEY) < bytes_:
            await asyncio.sleep(0)


async def test_a_slow_upload_is_cut_short_when_somebody_comes_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contended(monkeypatch, 0, 1e9)
    receiver = Receiver(tmp_path, places=1)
    receiver.may_record.set()
    slow = receiver.receive("slow", falls_silent())
    await received(receiver, 40)
    assert not slow.done(), "nobody waits, so it may take its time"
    async with asyncio.timeout(60):
        assert await receiver.receive("ben", whole(), statement=BEN) == "ben"
        with pytest.raises(Refusal, match="Others wait, and this upload is slow") as refused:
            await slow
    assert refused.value.code is Code.QUOTA_EXCEEDED
    assert await receiver.uploads.held(KEY) == 40, "what it sent is kept"
    await receiver.uploads.stop()


async def test_a_slow_upload_that_gets_its_place_while_others_wait_is_cut_short_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contended(monkeypatch, 0, 1e9)
    receiver = Receiver(tmp_path, places=1)
    receiver.may_record.set()
    slow = [
        receiver.receive("ann", falls_silent()),
        receiver.receive("ben", falls_silent(), statement=BEN),
    ]
    async with asyncio.timeout(60):
        assert await receiver.receive("cyd", whole(), statement=CYD) == "cyd"
        for upload in slow:
            with pytest.raises(Refusal, match="Others wait"):
                await upload
    assert receiver.welcomed == ["ann", "ben", "cyd"], "in the order in which they came"
    assert receiver.metrics.uploads._value.get() == 0
    await receiver.uploads.stop()


async def test_who_gets_its_place_when_nobody_waits_any_more_may_take_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contended(monkeypatch, 0, 1e9)
    receiver = Receiver(tmp_path, places=1)
    receiver.may_record.set()
    first = receiver.receive("ann", falls_silent())
    await received(receiver, 40)
    slow = receiver.receive("ben", falls_silent(), statement=BEN)
    key = UploadKey(BEN.task_id, BEN.participant_id, BEN.submission_id)
    async with asyncio.timeout(60):
        with pytest.raises(Refusal, match="Others wait"):
            await first
        while receiver.spool.size(key) < 40 and not slow.done():
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert not slow.done()
        assert await receiver.receive("cyd", whole(), statement=CYD) == "cyd"
        with pytest.raises(Refusal, match="Others wait"):
            await slow
    await receiver.uploads.stop()


async def test_an_upload_that_is_quick_enough_keeps_its_place_while_others_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contended(monkeypatch, 0, 1e-3)  # each byte buys a quarter of an hour
    receiver = Receiver(tmp_path, places=1)
    receiver.may_record.set()
    go_on = asyncio.Event()

    async def in_two() -> AsyncIterator[Frame]:
        yield Frame(0, memoryview(CONTENT)[:40])
        await go_on.wait()
        yield Frame(40, memoryview(CONTENT)[40:])

    first = receiver.receive("first", in_two())
    await received(receiver, 40)
    second = receiver.receive("second", whole(), statement=BEN)
    while receiver.places.waiting == 0:
        await asyncio.sleep(0)
    assert not first.done()
    assert receiver.metrics.uploads._value.get() == 1
    go_on.set()
    async with asyncio.timeout(60):
        assert [await first, await second] == ["first", "second"]
    assert receiver.metrics.received_bytes._value.get() == 2 * len(CONTENT)
    await receiver.uploads.stop()


async def test_seconds_are_granted_before_the_first_byte_has_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contended(monkeypatch, 1000, 1e9)
    receiver = Receiver(tmp_path, places=1)
    receiver.may_record.set()
    go_on = asyncio.Event()

    async def late() -> AsyncIterator[Frame]:
        await go_on.wait()
        yield Frame(0, memoryview(CONTENT))

    first = receiver.receive("first", late())
    while receiver.welcomed != ["first"]:
        await asyncio.sleep(0)
    second = receiver.receive("second", whole(), statement=BEN)
    while receiver.places.waiting == 0:
        await asyncio.sleep(0)
    go_on.set()
    async with asyncio.timeout(60):
        assert [await first, await second] == ["first", "second"]
    await receiver.uploads.stop()


async def welcome() -> None:
    pass


async def test_a_place_is_limited_by_those_who_wait_when_it_is_got(monkeypatch: pytest.MonkeyPatch) -> None:
    contended(monkeypatch, 0, 1e9)
    stream = UploadStream(falls_silent(), welcome)
    stream.hurry()
    for waiting in (False, True):
        stream.begin(len(CONTENT), contended=waiting)
        assert ("Others wait" in stream._limit()[1]) is waiting


async def test_who_has_sent_nothing_has_bought_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    contended(monkeypatch, 0, 1e-3)
    stream = UploadStream(falls_silent(), welcome)
    stream.begin(len(CONTENT), contended=False)
    assert await stream.next() == Frame(0, memoryview(CONTENT)[:40])
    stream.hurry()
    async with asyncio.timeout(60):
        with pytest.raises(Refusal, match="Others wait"):
            await stream.next()


async def test_a_stream_that_falls_silent_ends_though_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator.upload_places, "UPLOAD_IDLE_SECONDS", 0.01)
    monkeypatch.setattr(
        coordinator.upload_places, "MIN_UPLOAD_BYTES_PER_SECOND", 0.1
    )  # else the whole would be too slow
    receiver = Receiver(tmp_path)
    async with asyncio.timeout(60):
        with pytest.raises(
            Refusal, match=r"No frame came for 0\.01 seconds; the upload can be resumed"
        ) as refused:
            await receiver.receive("first", falls_silent())
    assert refused.value.code is Code.QUOTA_EXCEEDED
    assert await receiver.uploads.held(KEY) == 40
    await receiver.uploads.stop()


async def test_no_upload_holds_a_place_longer_than_its_bytes_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator.upload_places, "UPLOAD_IDLE_SECONDS", 0.01)
    monkeypatch.setattr(coordinator.upload_places, "MIN_UPLOAD_BYTES_PER_SECOND", 1 << 30)
    receiver = Receiver(tmp_path)

    async with asyncio.timeout(60):
        with pytest.raises(Refusal, match="took more than 0 seconds; it can be resumed") as refused:
            await receiver.receive("first", falls_silent())
    assert refused.value.code is Code.QUOTA_EXCEEDED
    assert await receiver.uploads.held(KEY) == 40
    await receiver.uploads.stop()


async def test_who_hangs_up_or_is_taken_over_from_while_it_waits_leaves_the_line(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path, places=1)
    receiver.may_record.set()
    first = receiver.receive("first", falls_silent())
    await received(receiver, 40)
    waits = [receiver.receive(name, whole(), statement=BEN) for name in ("older", "newer")]
    async with asyncio.timeout(60):
        with pytest.raises(Refusal, match="taken over"):
            await waits[0]
        waits[1].cancel()
        while receiver.places.busy("task") != {KEY}:
            await asyncio.sleep(0)
        assert receiver.places.waiting == 0
        first.cancel()
        assert await receiver.receive("cyd", whole(), statement=CYD) == "cyd"
    assert receiver.welcomed == ["first", "cyd"]
    await receiver.uploads.stop()


async def test_one_participant_uploads_one_model_at_a_time(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path)
    receiver.may_record.set()
    go_on = asyncio.Event()

    async def held_up() -> AsyncIterator[Frame]:
        await go_on.wait()
        yield Frame(0, memoryview(CONTENT))

    first = receiver.receive("first", held_up())
    while receiver.welcomed != ["first"]:
        await asyncio.sleep(0)
    second = receiver.receive("second", whole(), statement=replace(STATEMENT, submission_id="model-9"))
    other = receiver.receive("other", whole(), statement=BEN)
    async with asyncio.timeout(60):
        assert await other == "other", "a second place is free for others"
        assert receiver.welcomed == ["first", "other"]
        assert receiver.places.busy("task") == {KEY, UploadKey("task", "ann", "model-9")}
        assert receiver.places.busy("another") == set()
        go_on.set()
        assert [await first, await second] == ["first", "second"]
    await receiver.uploads.stop()


async def test_who_takes_over_ends_the_older_stream_with_a_reason(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path)
    receiver.may_record.set()
    first = receiver.receive("first", falls_silent())
    await received(receiver, 40)
    async with asyncio.timeout(60):
        assert await receiver.receive("second", whole()) == "second"
        with pytest.raises(Refusal, match="Another stream of the same upload has taken over") as refused:
            await first
    assert refused.value.code is Code.QUOTA_EXCEEDED
    await receiver.uploads.stop()


async def test_a_file_of_another_digest_is_refused_and_nothing_of_it_kept(tmp_path: Path) -> None:
    receiver = Receiver(tmp_path)
    signed = replace(STATEMENT, model_sha256=bytes(32))
    with pytest.raises(Refusal) as refused:
        await receiver.receive("first", whole(), statement=signed)
    assert refused.value.code is Code.MODEL_INVALID
    assert hashlib.sha256(CONTENT).hexdigest() in str(refused.value)
    assert bytes(32).hex() in str(refused.value)
    assert not receiver.recording.is_set()
    assert await receiver.uploads.held(KEY) == 0
    blobs = BlobStore(tmp_path / "models")
    assert not blobs.intact(bytes(32))
    assert not blobs.intact(hashlib.sha256(CONTENT).digest())
    await receiver.uploads.stop()


@pytest.mark.parametrize("offset", [0, 17, 40])
async def test_an_upload_may_go_on_from_any_byte_that_is_held(tmp_path: Path, offset: int) -> None:
    receiver = Receiver(tmp_path)
    receiver.may_record.set()

    async def part() -> AsyncIterator[Frame]:
        yield Frame(0, memoryview(CONTENT)[:40])

    with pytest.raises(Refusal, match="ended at byte 40"):
        await receiver.receive("first", part())
    with pytest.raises(Refusal, match="begins at byte 41, but 40 bytes are held") as refused:
        await receiver.receive("beyond", nothing(), offset=41)
    assert refused.value.metadata == {"offset": "40"}

    async def rest() -> AsyncIterator[Frame]:
        yield Frame(offset, memoryview(CONTENT)[offset:])

    assert await receiver.receive("second", rest(), offset=offset) == "second"
    assert BlobStore(tmp_path / "models").intact(STATEMENT.model_sha256)
    await receiver.uploads.stop()


def test_a_frame_belongs_where_it_begins_and_has_a_byte_at_least() -> None:
    frame = Frame(5, memoryview(b"abc"))
    assert bytes(_data(frame, 5, 8)) == b"abc"
    for message in (
        Frame(4, memoryview(b"abc")),
        Frame(6, memoryview(b"abc")),
        Frame(5, memoryview(b"")),
        ModelHeader(),
    ):
        with pytest.raises(Refusal, match="at least one byte at offset 5") as refused:
            _data(message, 5, 8)
        assert refused.value.code is Code.FRAMES_INVALID
        assert refused.value.metadata == {"offset": "5"}
    with pytest.raises(Refusal, match="The stream ended at byte 5 of 8") as ended:
        _data(None, 5, 8)
    assert ended.value.code is Code.FRAMES_INVALID


def test_a_frame_has_at_most_the_frames_limit_and_what_was_announced() -> None:
    most = Frame(0, memoryview(bytes(FRAME_BYTES)))
    assert len(_data(most, 0, FRAME_BYTES)) == FRAME_BYTES
    for frame, total in ((most, FRAME_BYTES - 1), (Frame(0, memoryview(bytes(FRAME_BYTES + 1))), 1 << 30)):
        with pytest.raises(Refusal, match="exceeds the frame's limit") as refused:
            _data(frame, 0, total)
        assert refused.value.code is Code.TOO_LARGE
    with pytest.raises(Refusal, match="exceeds"):
        _data(Frame(7, memoryview(b"ab")), 7, 8)


async def test_a_place_is_held_until_nothing_that_was_received_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_append, appending = threading.Event(), asyncio.Event()
    loop, append = asyncio.get_running_loop(), SpooledUpload.append

    def slow(self: SpooledUpload, data: memoryview) -> None:
        loop.call_soon_threadsafe(appending.set)
        may_append.wait()
        append(self, data)

    monkeypatch.setattr(SpooledUpload, "append", slow)
    receiver = Receiver(tmp_path, places=1)
    receiver.may_record.set()
    first = receiver.receive("first", whole())
    second = receiver.receive("second", whole(), statement=BEN)
    try:
        async with asyncio.timeout(60):
            await appending.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        assert receiver.welcomed == ["first"]
    finally:
        may_append.set()
    async with asyncio.timeout(60):
        assert [await first, await second] == ["first", "second"]
    await receiver.uploads.stop()


async def test_a_place_is_free_while_a_whole_file_is_put_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_adopt, adopt = threading.Event(), BlobStore.adopt

    def slow(self: BlobStore, *given: Any, **more: Any) -> None:
        may_adopt.wait()
        adopt(self, *given, **more)

    monkeypatch.setattr(BlobStore, "adopt", slow)
    receiver = Receiver(tmp_path, places=1)
    receiver.may_record.set()
    first = receiver.receive("first", whole())
    second = receiver.receive("second", whole(), statement=BEN)
    try:
        async with asyncio.timeout(60):
            while receiver.welcomed != ["first", "second"]:
                await asyncio.sleep(0)
        assert not first.done()
    finally:
        may_adopt.set()
    async with asyncio.timeout(60):
        assert [await first, await second] == ["first", "second"]
    await receiver.uploads.stop()


async def test_who_announces_nothing_is_refused_before_it_has_a_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator.upload_places, "UPLOAD_IDLE_SECONDS", 0.01)

    async def silent() -> AsyncIterator[Frame]:
        await asyncio.Event().wait()
        yield Frame(0, memoryview(b""))

    async def welcome() -> None:
        raise AssertionError("it has no place")

    stream = UploadStream(silent(), welcome)
    async with asyncio.timeout(60):
        with pytest.raises(Refusal, match="No frame came"):
            await stream.next()
    stream.end("The service stops.")
    with pytest.raises(Refusal, match=r"The service stops\."):
        await stream.next()


def test_two_files_that_come_to_a_new_folder_at_once_both_get_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs, digest = BlobStore(tmp_path / "models"), hashlib.sha256(CONTENT).digest()
    source, move = tmp_path / "source", Path.replace
    source.write_bytes(CONTENT)

    def beaten(self: Path, target: Path) -> Path:
        try:
            return move(self, target)
        finally:
            Path(target).parent.mkdir(exist_ok=True)  # as another upload does just now

    monkeypatch.setattr(Path, "replace", beaten)
    assert blobs.adopt(source, digest).read_bytes() == CONTENT
    with pytest.raises(FileNotFoundError):
        blobs.adopt(tmp_path / "nothing", digest)
