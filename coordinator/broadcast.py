"""A round's model on its way out: read and serialised once for all who fetch it at about the same time.

When a round opens, everybody fetches the same file at once and at the same pace. The last few frames that anybody
asked for are kept as the bytes that travel, so that each costs one reading and one serialisation, not one for each
participant.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from fedpeer.protocol.limits import FRAME_BYTES
from fedpeer.v1 import market_pb2

#: Frames that are kept: those between the fastest and the slowest of participants who fetch side by side.
_KEPT = 6


@dataclass(frozen=True)
class SharedFrame:
    """A serialised ModelFrame, and how many bytes of the model it carries; 0 behind the file's end."""

    message: bytes
    size: int


class Broadcast:
    """Frames of model files. Files never change under their names, so that what is kept stays true."""

    def __init__(self) -> None:
        self._frames: OrderedDict[tuple[Path, int, int], asyncio.Future[SharedFrame]] = OrderedDict()

    async def frame(self, path: Path, offset: int, size: int = FRAME_BYTES) -> SharedFrame:
        """The frame of the file at `path` that begins at byte `offset` and holds up to `size` bytes of it.

        Raises:
            OSError: the file cannot be read.
        """
        key = path, offset, size
        found = self._frames.get(key)
        if found is None:
            found = asyncio.get_running_loop().run_in_executor(None, _read, path, offset, size)
            self._frames[key] = found
            if len(self._frames) > _KEPT:
                self._frames.popitem(last=False)
        try:
            return await asyncio.shield(found)  # others wait for it too
        except Exception:
            self._frames.pop(key, None)
            raise


def _read(path: Path, offset: int, size: int) -> SharedFrame:
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        data = file.read(size)
    return SharedFrame(market_pb2.ModelFrame(offset=offset, data=data).SerializeToString(), len(data))
