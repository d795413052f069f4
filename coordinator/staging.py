"""Something of several files that is made elsewhere, and is then in its place at once, or not at all.

    .NAME.part/     next to NAME, for its owner alone; emptied by the next one where a killed process left it

A lock on that folder keeps two from making the same thing at the same time.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

from coordinator.errors import FolderError


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """An empty folder next to `target`, on its file system, gone after the block.

    Raises:
        FolderError: another process is making `target`, or there is no place for it.
    """
    folder = target.with_name(f".{target.name}.part")
    descriptor = _locked(folder, target)
    try:
        for left in folder.iterdir():
            _remove(left)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


@contextmanager
def writing(path: Path, otherwise: str = "") -> Iterator[None]:
    """Where the disk refuses something inside, says that of `path`, and what is so `otherwise`.

    Raises:
        FolderError: in the place of an OSError.
    """
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise FolderError(f"{path} cannot be written: {why}{otherwise}") from None


def lock_refused(path: Path, error: OSError) -> str:
    """A sentence for a lock that its file system does not give to anybody."""
    return (
        f"{path} cannot be locked: {error.strerror}; expected a file system that keeps locks (flock): a disk of this "
        "machine, or one of a network such as NFS 4"
    )


def sync(path: Path) -> None:
    """Has the disk have a file's content, or a folder's names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _locked(folder: Path, target: Path) -> int:
    """A descriptor of the folder, made where there is none, with its lock."""
    while True:
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            if folder.parent.is_dir():
                continue  # the one who made it has just removed it
            raise FolderError(f"there is no folder {folder.parent}; make it first") from None
        except OSError as error:
            raise FolderError(f"{folder} cannot be made: {error.strerror}") from None
        if os.fstat(descriptor).st_uid != os.geteuid():
            os.close(descriptor)
            raise FolderError(f"{folder} is somebody else's; remove it, or name another place")
        try:
            flock(descriptor, LOCK_EX | LOCK_NB)
            os.fchmod(descriptor, 0o700)
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                return descriptor
        except FileNotFoundError:
            pass  # as above
        except BlockingIOError:
            os.close(descriptor)
            raise FolderError(
                f"another process is making {target} just now; wait for it, then look"
            ) from None
        except OSError as error:
            os.close(descriptor)
            raise FolderError(lock_refused(folder, error)) from None
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
