"""Model files at rest: one file for one digest, no matter who sent it.

    FOLDER/ab/abcdef...safetensors

A file enters by an atomic rename after it has reached the disk, so that a name always stands for its content.
Nothing here knows who refers to a digest; the database does, and `retain` deletes the rest.

`BlobStore` keeps them in a folder. `BucketBlobs` keeps them in a bucket of an object store, under the same names; its
folder has copies of those in use. Both keep one contract, which tests/coordinator/test_blobs.py has.
"""

import math
import os
import re
import threading
import time
import uuid
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from coordinator.bucket import Bucket
from coordinator.config import S3Section
from coordinator.errors import BucketError
from coordinator.staging import sync
from fedpeer.protocol.model_file import file_digest

_SUFFIX = ".safetensors"

#: Names of ours in a bucket: nothing else there is touched.
_NAME = re.compile(rf"[0-9a-f]{{2}}/([0-9a-f]{{64}}){re.escape(_SUFFIX)}")

#: Seconds for which a copy that was used stays in the folder: longer than a step works on a model.
_IN_USE = 3600.0

#: Seconds for which an object that is put again is young enough, well within the time for which `retain` leaves what
#: nobody refers to yet.
_YOUNG = 900.0


class BlobStore:
    """Model files below `folder`, by SHA-256.

    Attributes:
        most_bytes: what is kept in the folder, at most.
    """

    most_bytes = math.inf

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def prepare(self) -> None:
        """Makes all folders, for the service: none has to reach the disk later, before the first file in it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        names = {f"{first:02x}" for first in range(256)} - {path.name for path in self._folder.iterdir()}
        for name in names:
            (self._folder / name).mkdir(exist_ok=True)
        sync(self._folder)

    def claim(self, log: str) -> None:
        """Makes sure that all that is stored here is one market's, before any of it is deleted; a folder is.

        Args:
            log: as of `SignedLog.identity`.

        Raises:
            ConfigError, BucketError: as of `Bucket.claim`.
        """

    def path(self, digest: bytes) -> Path:
        """Where the file of `digest` lies or would lie in the folder; `fetch` sees that it does."""
        return self._folder / _name(digest)

    def digest(self, path: Path) -> bytes | None:
        """Of a file in the folder, by its name; None for any other path."""
        named = _NAME.fullmatch("/".join(path.parts[-2:]))
        if named is None or path.parent.parent != self._folder:
            return None
        return bytes.fromhex(named[1])

    def holds(self, digest: bytes) -> bool:
        return self.path(digest).is_file()

    def size(self, digest: bytes) -> int:
        """Bytes of a file. Raises FileNotFoundError where it is not held."""
        return self.path(digest).stat().st_size

    def fetch(self, digest: bytes) -> Path:
        """The file of `digest`, in the folder.

        Raises:
            FileNotFoundError: it is not held.
            OSError: it cannot be had just now.
        """
        path = self.path(digest)
        if not path.is_file():
            raise FileNotFoundError(2, "no such model file", str(path))
        return path

    def adopt(self, source: Path, digest: bytes, *, flushed: bool = False) -> Path:
        """Moves `source`, whose SHA-256 the caller has computed, into the store and makes it durable.

        On the same file system only. Where the digest is there already, `source` takes the place of the same bytes.

        Args:
            flushed: whether the caller has waited for the disk to have the content.
        """
        target = self.path(digest)
        if not flushed:
            sync(source)
        self._move(source, target)
        sync(target.parent)
        return target

    def put(self, content: bytes, digest: bytes) -> Path:
        """Stores bytes that are in memory."""
        source = self._fresh(digest)
        source.write_bytes(content)
        return self.adopt(source, digest)

    def intact(self, digest: bytes) -> bool:
        """Whether the file is there and still has its digest."""
        return self.holds(digest) and file_digest(self.path(digest)) == digest

    def retain(self, keep: Collection[bytes], before: float) -> int:
        """Deletes every file whose digest is not in `keep` and that was last written before `before`.

        A younger one may belong to a transaction that has not committed yet.

        Returns:
            the bytes freed.
        """
        names = {digest.hex() for digest in keep}
        freed = 0
        for path in self._folder.glob("??/*"):
            # Another sweep may have it, or a file on its way has found its place.
            with suppress(FileNotFoundError):
                found = path.stat()
                if path.name.removesuffix(_SUFFIX) not in names and found.st_mtime < before:
                    path.unlink()
                    freed += found.st_size
        return freed

    def _fresh(self, digest: bytes) -> Path:
        """A path of nobody else's, beside the file's own; what is left there is swept like a file of no digest."""
        target = self.path(digest)
        target.parent.mkdir(parents=True, exist_ok=True)
        return target.with_name(f"{uuid.uuid4().hex}.new")

    def _move(self, source: Path, target: Path) -> None:
        try:
            source.replace(target)
        except FileNotFoundError:
            if (
                not source.exists()
            ):  # and not whether the folder is there: another upload may have made it by now
                raise
            target.parent.mkdir(parents=True, exist_ok=True)
            sync(self._folder)
            source.replace(target)


class BucketBlobs(BlobStore):
    """Model files in a bucket, with copies of those in use below `folder`.

    What is in the folder is in the bucket: a file enters it after the bucket has said that it holds it. A copy that
    was not used for an hour may go where copies are more than `most_bytes`, and is fetched again when it is needed.
    """

    def __init__(self, folder: Path, bucket: Bucket, most_bytes: float = math.inf) -> None:
        super().__init__(folder)
        self._bucket = bucket
        self.most_bytes = most_bytes
        self._lock = threading.Lock()
        self._copied = 0

    def prepare(self) -> None:
        """As of a folder; finds out whether the bucket can be used, too. Raises BucketError."""
        super().prepare()
        self._bucket.check()
        self._copied = sum(path.stat().st_size for path in self._folder.glob("??/*"))

    def claim(self, log: str) -> None:
        self._bucket.claim(log)

    def holds(self, digest: bytes) -> bool:
        return super().holds(digest) or self._bucket.find(_name(digest)) is not None

    def size(self, digest: bytes) -> int:
        with suppress(FileNotFoundError):
            return super().size(digest)
        found = self._bucket.find(_name(digest))
        if found is None:
            raise FileNotFoundError(2, "no such model file", f"{self._bucket.display}/{_name(digest)}")
        return found.size

    def fetch(self, digest: bytes) -> Path:
        """Raises BucketError, besides: the bucket cannot be read, or what it holds is another file."""
        path = self.path(digest)
        with suppress(FileNotFoundError):
            os.utime(path)  # in use
            return path
        fresh = self._fresh(digest)
        try:
            found = self._bucket.get(_name(digest), fresh)
            if found != digest:
                raise BucketError(
                    f"{self._bucket.display}/{_name(digest)} is damaged: its SHA-256 is {found.hex()}; restore it from "
                    "a copy of the bucket"
                )
            size = fresh.stat().st_size
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
        self._make_room(size)
        return path

    def adopt(self, source: Path, digest: bytes, *, flushed: bool = False) -> Path:
        """Puts `source` into the bucket, and keeps it as a copy."""
        size, target = source.stat().st_size, self.path(digest)
        self._bucket.put(_name(digest), source, time.time() - _YOUNG)
        self._move(source, target)
        os.utime(target)
        self._make_room(size)
        return target

    def intact(self, digest: bytes) -> bool:
        """Of the object in the bucket, which is read."""
        fresh = self._fresh(digest)
        try:
            return self._bucket.get(_name(digest), fresh) == digest
        except FileNotFoundError:
            return False
        finally:
            fresh.unlink(missing_ok=True)

    def retain(self, keep: Collection[bytes], before: float) -> int:
        """Of objects in the bucket, by its clock; returns the bytes freed there."""
        names = {digest.hex() for digest in keep}
        freed = 0
        for stored in list(self._bucket.names()):
            matched = _NAME.fullmatch(stored.name)
            if matched and matched[1] not in names and stored.at < before:
                self._bucket.delete(stored.name)
                freed += stored.size
        super().retain(keep, before)
        return freed

    def _make_room(self, added: int) -> None:
        """Counts a copy, and deletes those that were used the longest ago where they are too many."""
        with self._lock:
            self._copied += added
            if self._copied <= self.most_bytes:
                return
            copies = sorted((found.st_mtime, found.st_size, path) for path, found in self._copies())
            self._copied = sum(size for _, size, _ in copies)
            for used, size, path in copies:
                if self._copied <= self.most_bytes or used > time.time() - _IN_USE:
                    break
                path.unlink(missing_ok=True)
                self._copied -= size

    def _copies(self) -> list[tuple[Path, os.stat_result]]:
        found = []
        for path in self._folder.glob("??/*"):
            with suppress(FileNotFoundError):
                found.append((path, path.stat()))
        return found


def open_blobs(models: Path, section: S3Section, folder: Path) -> BlobStore:
    """The store of a coordinator: a bucket where its section names one.

    Args:
        models: the folder of files, or of copies.
        folder: from which the section's paths are taken.

    Raises:
        ConfigError: the bucket's settings cannot be used.
    """
    if not section.bucket:
        return BlobStore(models)
    return BucketBlobs(models, Bucket(section, folder), section.cache_bytes)


def _name(digest: bytes) -> str:
    name = digest.hex()
    return f"{name[:2]}/{name}{_SUFFIX}"
