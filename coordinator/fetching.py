"""A model file on its way out of the store: to another file, whole or not at all, or down a pipe."""

import os
import shutil
from pathlib import Path
from typing import BinaryIO

from coordinator.errors import FolderError
from coordinator.staging import staged, sync, writing
from fedpeer.protocol.model_file import file_digest

#: Bytes copied at once.
_BLOCK = 4 << 20


def copy_model(source: Path, digest: bytes, target: Path, *, force: bool) -> None:
    """Makes `target` a copy of the model file `source` of this SHA-256.

    Args:
        force: in the place of a file that is there already.

    Raises:
        FolderError: there is something already, the copy cannot be written, or the source is damaged; the target is
            then what it was.
    """
    if target.is_dir() or (target.exists() and not target.is_file()):
        raise FolderError(f"{target} is not a regular file; name one, or - for standard output")
    if os.path.lexists(target) and not force:
        raise FolderError(f"{target} is there already; give --force to replace it, or name another file")
    with staged(target) as scratch, writing(target, "; nothing was changed"):
        fresh = scratch / "model"
        with source.open("rb") as file, fresh.open("wb") as copy:
            shutil.copyfileobj(file, copy, _BLOCK)
        sync(fresh)
        _check(fresh, digest, source)
        fresh.replace(target)
        sync(target.parent)


def write_model(source: Path, digest: bytes, out: BinaryIO) -> None:
    """Writes the model file `source` of this SHA-256 to `out`, once it has been read from end to end.

    Raises:
        FolderError: the source is damaged; nothing was written.
        OSError: the reader has gone, or its disk is full.
    """
    _check(source, digest, source)
    with source.open("rb") as file:
        shutil.copyfileobj(file, out, _BLOCK)
    out.flush()


def _check(path: Path, digest: bytes, source: Path) -> None:
    if file_digest(path) != digest:
        raise FolderError(
            f"{source} is damaged: its SHA-256 is not {digest.hex()}; restore the file from a backup"
        )
