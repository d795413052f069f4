import asyncio
from pathlib import Path

import pytest

from coordinator.broadcast import Broadcast
from fedpeer.protocol.limits import FRAME_BYTES
from fedpeer.v1 import market_pb2


async def test_who_asks_at_the_same_time_gets_the_same_bytes(tmp_path: Path) -> None:
    content = bytes(range(251)) * (FRAME_BYTES // 100)
    path = tmp_path / "model"
    path.write_bytes(content)
    broadcast = Broadcast()
    read = b""
    while len(read) < len(content):
        frames = await asyncio.gather(*(broadcast.frame(path, len(read)) for _ in range(5)))
        assert len({id(frame) for frame in frames}) == 1
        message = market_pb2.ModelFrame.FromString(frames[0].message)
        assert (message.offset, len(message.data)) == (len(read), frames[0].size)
        read += message.data
    assert read == content
    assert (await broadcast.frame(path, len(content))).size == 0


async def test_a_smaller_frame_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"0123456789")
    broadcast = Broadcast()
    whole, part = await broadcast.frame(path, 2), await broadcast.frame(path, 2, 5)
    assert (whole.size, part.size) == (8, 5)
    assert market_pb2.ModelFrame.FromString(part.message).data == b"23456"


async def test_one_who_leaves_takes_nothing_from_the_others(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"model")
    broadcast = Broadcast()
    leaving, staying = (asyncio.ensure_future(broadcast.frame(path, 0)) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    assert market_pb2.ModelFrame.FromString((await staying).message).data == b"model"


async def test_a_file_that_could_not_be_read_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "model"
    broadcast = Broadcast()
    with pytest.raises(FileNotFoundError):
        await broadcast.frame(path, 0)
    path.write_bytes(b"model")
    assert (await broadcast.frame(path, 0)).size == 5
