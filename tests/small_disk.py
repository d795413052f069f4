"""A file system of its own, in memory, so that it is really full when it is filled."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedpeer.protocol.limits import RESERVE_BYTES

#: Of the file system: what the coordinator leaves free for its database, and as much as it needs in tests.
DISK_BYTES = RESERVE_BYTES + (32 << 20)


@contextmanager
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Where it is mounted. Skips the test where nobody may mount one."""
    path = tmp_path / "disk"
    path.mkdir()
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small file system")
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"needs the right to mount a small file system: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


class Ballast:
    """A file that takes the disk's space."""

    def __init__(self, disk: Path) -> None:
        self._path = disk / "ballast"

    def fill(self, *, leave: int = 0) -> None:
        """Takes all space but `leave` bytes."""
        self.empty()
        with self._path.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 20))
            except OSError:
                pass
            file.truncate(max(0, file.tell() - leave))

    def empty(self) -> None:
        self._path.unlink(missing_ok=True)
