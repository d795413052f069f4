"""A round's model on its way out: read and serialised once for all who fetch it at about the same time.

When a round opens, everybody fetches the same file at once and at the same pace. The last few frames that anybody
asked for are kept as the bytes that travel, so that each costs one reading and one serialisation, not one for each
participant.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedpeer.protocol.limits import FRAME_BYTES
from fedpeer.v1 import market_pb2

#: A frame: its file, the byte at which it begins, the bytes that it holds at most.
_Key = tuple[Path, int, int]

#: Frames that are kept: those between the fastest and the slowest of participants who fetch side by side.
_KEPT = 6


@dataclass(frozen=True)
class SharedFrame:
    """A serialised ModelFrame, and how many bytes of the model it carries; 0 after the file's end."""

    message: bytes
    size: int


class SharedFrames:
    """Frames of model files. Files never change under their names, so that what is kept stays true."""

    def __init__(self) -> None:
        self._frames: OrderedDict[_Key, asyncio.Future[SharedFrame]] = OrderedDict()

    async def frame(self, path: Path, offset: int, size: int = FRAME_BYTES) -> SharedFrame:
        """The frame of the file at `path` that begins at byte `offset` and holds up to `size` bytes of it.

        Raises:
            OSError: the file cannot be read.
        """
        key = path, offset, size
        found = self._frames.get(key)
        if found is None:
            found = asyncio.get_running_loop().run_in_executor(None, _read, path, offset, size)
            found.add_done_callback(partial(self._forget_failed, key))
            self._frames[key] = found
            if len(self._frames) > _KEPT:
                self._frames.popitem(last=False)
        return await asyncio.shield(found)  # others wait for it too

    def _forget_failed(self, key: _Key, read: asyncio.Future[SharedFrame]) -> None:
        """A later reading may succeed, also where nobody waits for this one any more."""
        if (read.cancelled() or read.exception() is not None) and self._frames.get(key) is read:
            del self._frames[key]


def _read(path: Path, offset: int, size: int) -> SharedFrame:
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        data = file.read(size)
    return SharedFrame(market_pb2.ModelFrame(offset=offset, data=data).SerializeToString(), len(data))
