import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from coordinator.shared_frames import SharedFrames
from fedpeer.protocol.limits import FRAME_BYTES
from fedpeer.v1 import market_pb2


async def test_who_asks_at_the_same_time_gets_the_same_bytes(tmp_path: Path) -> None:
    content = bytes(range(251)) * (FRAME_BYTES // 100)
    path = tmp_path / "model"
    path.write_bytes(content)
    shared = SharedFrames()
    read = b""
    while len(read) < len(content):
        frames = await asyncio.gather(*(shared.frame(path, len(read)) for _ in range(5)))
        assert len({id(frame) for frame in frames}) == 1
        message = market_pb2.ModelFrame.FromString(frames[0].message)
        assert (message.offset, len(message.data)) == (len(read), frames[0].size)
        read += message.data
    assert read == content
    assert (await shared.frame(path, len(content))).size == 0


async def test_a_smaller_frame_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"0123456789")
    shared = SharedFrames()
    whole, part = await shared.frame(path, 2), await shared.frame(path, 2, 5)
    assert (whole.size, part.size) == (8, 5)
    assert market_pb2.ModelFrame.FromString(part.message).data == b"23456"


async def test_one_who_leaves_takes_nothing_from_the_others(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"model")
    shared = SharedFrames()
    leaving, staying = (asyncio.ensure_future(shared.frame(path, 0)) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    assert market_pb2.ModelFrame.FromString((await staying).message).data == b"model"


async def test_a_file_that_could_not_be_read_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "model"
    shared = SharedFrames()
    with pytest.raises(FileNotFoundError):
        await shared.frame(path, 0)
    path.write_bytes(b"model")
    assert (await shared.frame(path, 0)).size == 5


async def test_a_reading_that_failed_after_all_had_left_is_not_kept(tmp_path: Path) -> None:
    loop, thread = asyncio.get_running_loop(), ThreadPoolExecutor(1)
    loop.set_default_executor(thread)
    path = tmp_path / "model"
    shared = SharedFrames()
    leaving = asyncio.ensure_future(shared.frame(path, 0))
    await asyncio.sleep(0)
    leaving.cancel()
    await loop.run_in_executor(thread, path.write_bytes, b"model")  # after the reading, in the same thread
    assert (await shared.frame(path, 0)).size == 5
