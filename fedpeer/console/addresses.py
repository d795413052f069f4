"""Where consoles serve from a state folder: a file for each, which its process keeps locked (flock) while it serves.

Several machines may have one, each at what may be the same address of its own loopback: who ends takes away its own
file, and one that was killed has no lock.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from pathlib import Path
from uuid import uuid4

from coordinator.staging import writing

_PREFIX = "address."


@contextmanager
def announced(folder: Path, url: str) -> Iterator[None]:
    """Says in `folder` that a console serves at `url`, during the block.

    Raises:
        FolderError: that cannot be said.
    """
    name = uuid4().hex
    path, aside = folder / f"{_PREFIX}{name}", folder / f"{name}.part"
    with ExitStack() as ending:
        with writing(path):
            file = ending.enter_context(aside.open("w"))
            ending.callback(_removed, aside, path)
            flock(file, LOCK_EX)  # before it has its name: who finds it unlocked deletes it
            file.write(url)
            file.flush()
            aside.replace(path)
        yield


def _removed(*paths: Path) -> None:
    for path in paths:
        with suppress(OSError):  # the folder may be gone
            path.unlink(missing_ok=True)


def served_url(folder: Path) -> str:
    """Where the console that began last serves from `folder`; "" where none does. What a killed one left is deleted."""
    found = []
    for path in folder.glob(f"{_PREFIX}*"):
        with suppress(OSError), path.open() as file:
            try:
                flock(file, LOCK_SH | LOCK_NB)
            except BlockingIOError:
                found.append((os.fstat(file.fileno()).st_mtime_ns, file.read()))
            else:
                path.unlink(missing_ok=True)
    return max(found, default=(0, ""))[1]
