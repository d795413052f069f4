"""Uploads on their way in: appended to a file, hashed and checked while written, resumable, gone when refused.

    FOLDER/task/participant/submission~process.part

The file's length is the offset that an upload resumes at; nothing else has to be remembered across a restart.
Methods block on the disk: call them from a worker thread. A key belongs to one writer at a time, which the
service sees to. Where several processes serve, a lock (flock) on the file says whether another still writes to it, and
a file has the name of the process whose upload it is: once another has taken the upload over, under its own name,
nothing that the first one does can come to anything.
"""

import errno
import hashlib
import os
import shutil
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, flock
from io import FileIO
from pathlib import Path
from uuid import uuid4

from fedpeer.protocol.limits import RESERVE_BYTES
from fedpeer.protocol.model_file import ModelCheck, ModelFileError
from mechanism.terms import identifier

#: This process, among those that write to one folder.
PROCESS = uuid4().hex[:12]

#: Bytes read at once when a resumed file is hashed again.
_BLOCK = 1 << 20

#: Bytes after which what was written is flushed, while more is received and written: little is left to be waited
#: for at the end. Writing out alone (sync_file_range) would leave a drive's or a virtual machine's cache to be emptied.
_FLUSH_BYTES = 4 << 20

#: Threads that wait for the disk; it serves one flush after the other anyway.
_FLUSHING = 2


@dataclass(frozen=True)
class UploadKey:
    """Whose upload for which submission."""

    task_id: str
    participant_id: str
    submission_id: str

    def __post_init__(self) -> None:
        # These become path components: an id is checked where a file name is made of it.
        for name in ("task_id", "participant_id", "submission_id"):
            identifier(name, getattr(self, name))


class SpoolFull(OSError):
    """The disk has no room for what was announced."""


class SpoolBusy(OSError):
    """Another process still writes to the upload."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EBUSY, "another process still receives this upload", str(path))


class Spool:
    """Partial uploads below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._flusher = ThreadPoolExecutor(_FLUSHING, "flush")
        folder.mkdir(parents=True, exist_ok=True)

    def stop(self) -> None:
        """Begins nothing more that waits for the disk."""
        self._flusher.shutdown(cancel_futures=True)

    def size(self, key: UploadKey) -> int:
        """Bytes that are held of an upload; 0 where there is none."""
        return self._longest(key)[1]

    def resume(
        self,
        key: UploadKey,
        offset: int,
        total: int,
        check: ModelCheck | None = None,
        *,
        take_over: bool = False,
    ) -> "SpooledUpload":
        """The upload, ready for the byte at `offset`, which is at most `size`; what lies after it is dropped.

        Args:
            check: is fed every byte, those included that are held already.
            take_over: goes on in a copy where another process does not let go of the upload. That may be stopped, or
                its machine be gone with a lock that the file system still keeps.

        Raises:
            SpoolFull: the rest of `total` bytes would not fit the disk.
            SpoolBusy: another process writes to it.
            ModelFileError: what is held does not pass the check; it is deleted.
        """
        free = shutil.disk_usage(self._folder).free
        if free < total - offset + RESERVE_BYTES:
            raise SpoolFull(f"{total - offset} bytes are announced, {free} are free")
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        found, _ = self._longest(key)
        if found not in (None, path):
            _bring(found, path, offset, copying=take_over)
        upload = SpooledUpload(path, check, self._flusher, keep=offset > 0)
        try:
            upload.rewind(offset)
        except ModelFileError:
            upload.discard()
            raise
        except BaseException:
            upload.close()
            raise
        return upload

    def scratch(self, name: str) -> Path:
        """A path for a file that this process itself writes before it enters the blob store.

        No other process writes to it, who may lead before one that has led hears of that.
        """
        return self._folder / f"{name}.{PROCESS}.scratch"

    def sweep(self, task_id: str, busy: set[UploadKey]) -> None:
        """Deletes a task's interrupted uploads, those of `busy` apart."""
        keep = {self._path(key) for key in busy}
        for path in (self._folder / task_id).glob("*/*.part"):
            if path not in keep:
                with suppress(FileNotFoundError, SpoolBusy), _locked(path, new=False):
                    path.unlink()

    def clear(self, running: Collection[str]) -> None:
        """Deletes what a killed process left: everything but the uploads of the tasks in `running`.

        Only while nothing is uploaded.
        """
        for path in list(self._folder.iterdir()):
            if path.is_file():
                path.unlink(missing_ok=True)  # who wrote it may just have moved it
            elif path.name not in running:
                shutil.rmtree(path)

    def _path(self, key: UploadKey) -> Path:
        return self._folder / key.task_id / key.participant_id / f"{key.submission_id}~{PROCESS}.part"

    def _longest(self, key: UploadKey) -> tuple[Path | None, int]:
        """What is held of an upload, by whichever process, and its length; this one's before another of that length."""
        own, found, length = self._path(key), None, 0
        with suppress(FileNotFoundError):
            for entry in os.scandir(own.parent):
                if not entry.name.startswith(f"{key.submission_id}~"):
                    continue
                with suppress(FileNotFoundError):
                    path, size = Path(entry.path), Path(entry.path).stat().st_size
                    if found is None or (size, path == own) > (length, found == own):
                        found, length = path, size
        return found, length


class SpooledUpload:
    """An open upload.

    Few system calls are made here: uploads have threads of their own, and each call gives the interpreter's lock away
    and waits for it again, while the service does everything else.

    Args:
        keep: whether the file is there, and its first bytes are kept by the `rewind` that comes next.
    """

    def __init__(
        self, path: Path, check: ModelCheck | None, flusher: ThreadPoolExecutor, *, keep: bool = False
    ) -> None:
        self.path = path
        self.offset = 0
        self._check = check
        self._hash = hashlib.sha256()
        self._flusher = flusher
        self._flush: Future[None] | None = None
        self._flushed = 0
        # Unbuffered: what is held is what the file's length says, also while the upload goes on.
        self._file = _locked(path, new=not keep)

    def rewind(self, offset: int) -> None:
        """Drops what lies after `offset`, and takes in what lies before it; once, before the first `append`."""
        self._file.truncate(offset)
        while self.offset < offset:
            self._take(self._file.read(min(offset - self.offset, _BLOCK)))
        self._flushed = offset

    def close(self) -> None:
        """Closes the file and keeps it for a later resumption.

        Raises:
            OSError: what was written cannot be kept.
        """
        self.settle()
        self._file.close()

    def append(self, data: bytes | memoryview) -> None:
        """Writes, hashes and checks the next bytes.

        Raises:
            ModelFileError: they do not pass the check.
            OSError: they, or bytes before them, cannot be written.
        """
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]
        self._take(data)
        if self.offset - self._flushed >= _FLUSH_BYTES and (self._flush is None or self._flush.done()):
            self.settle()
            self._flushed = self.offset
            self._flush = self._flusher.submit(os.fdatasync, self._file.fileno())

    def settle(self) -> None:
        """Waits for the flush that is under way.

        The kernel reports a failed write once: without this, a later flush of the same file might pass for success.

        Raises:
            OSError: what was written before cannot be kept.
        """
        if self._flush is not None and not self._flush.cancel():
            self._flush.result()
        self._flush = None

    def flush(self) -> None:
        """Waits until all that was written is on the disk.

        Raises:
            OSError: it cannot be kept.
        """
        self.settle()
        os.fsync(self._file.fileno())

    def _take(self, data: bytes | memoryview) -> None:
        self._hash.update(data)
        if self._check is not None:
            self._check.feed(data)
        self.offset += len(data)

    def digest(self) -> bytes:
        """SHA-256 of all bytes up to the offset."""
        return self._hash.digest()

    def discard(self) -> None:
        """Closes and deletes the file."""
        with suppress(Exception):
            self.settle()
        self._file.close()
        self.path.unlink(missing_ok=True)


def _bring(found: Path, own: Path, offset: int, *, copying: bool) -> None:
    """Takes over what another process holds of an upload, up to `offset` at least, as `own`."""
    try:
        try:
            with _locked(found, new=False):
                found.replace(own)
        except SpoolBusy:
            if not copying:
                raise
            with found.open("rb") as source, own.open("wb") as target:
                while (left := offset - target.tell()) > 0:
                    if not (block := source.read(min(left, _BLOCK))):
                        raise SpoolBusy(found) from None  # it begins anew
                    target.write(block)
            found.unlink()
    except FileNotFoundError:
        raise SpoolBusy(found) from None  # it has just come to its end


def _locked(path: Path, *, new: bool) -> FileIO:
    """The file at `path`, for this writer alone until it is closed.

    Args:
        new: makes it where it is not there.

    Raises:
        SpoolBusy, FileNotFoundError.
    """
    while True:
        file = FileIO(os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if new else 0), 0o666), "r+")
        try:
            flock(file, LOCK_EX | LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        except BlockingIOError:
            file.close()
            raise SpoolBusy(path) from None
        except FileNotFoundError:
            pass  # deleted between the opening and the lock
        except BaseException:
            file.close()
            raise
        file.close()
