"""Streams of one upload that take over from one another: one writer at a time, and nobody waits for ever."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from coordinator.blobs import BlobStore
from coordinator.metrics import Metrics
from coordinator.spool import Spool
from coordinator.uploads import Messages, Stream, Uploads
from mechanism.statements import ModelStatement
from wire.frames import Frame
from wire.model_file import contract_of, encode_model

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
    nonce=bytes(16),
)


async def whole() -> AsyncIterator[Frame]:
    yield Frame(0, memoryview(CONTENT))


class Desk:
    """Uploads whose receipts wait until they may be written."""

    def __init__(self, folder: Path) -> None:
        self.spool = Spool(folder / "spool")
        self.uploads = Uploads(self.spool, BlobStore(folder / "models"), Metrics(), slots=2)
        self.may_record = asyncio.Event()
        self.recording = asyncio.Event()
        self.welcomed: list[str] = []

    def receive(self, name: str, messages: Messages) -> "asyncio.Task[str]":
        async def welcome() -> None:
            self.welcomed.append(name)

        async def record() -> str:
            self.recording.set()
            await self.may_record.wait()
            return name

        stream = Stream(messages, welcome)
        return asyncio.create_task(self.uploads.receive(stream, STATEMENT, 0, CONTRACT, record))


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
