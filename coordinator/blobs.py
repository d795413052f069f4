"""Model files at rest: one file for one digest, no matter who sent it.

    FOLDER/ab/abcdef...safetensors

A file enters by an atomic rename after it has reached the disk, so that a name always stands for its content.
Nothing here knows who refers to a digest; the database does, and `retain` deletes the rest.
"""

from collections.abc import Collection
from pathlib import Path

from coordinator.staging import sync
from fedpeer.protocol.model_file import file_digest

_SUFFIX = ".safetensors"


class BlobStore:
    """Model files below `folder`, by SHA-256."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def prepare(self) -> None:
        """Makes all folders, for the service: none has to reach the disk later, before the first file in it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        names = {f"{first:02x}" for first in range(256)} - {path.name for path in self._folder.iterdir()}
        for name in names:
            (self._folder / name).mkdir(exist_ok=True)
        sync(self._folder)

    def path(self, digest: bytes) -> Path:
        """Where the file of `digest` lies or would lie."""
        name = digest.hex()
        return self._folder / name[:2] / (name + _SUFFIX)

    def holds(self, digest: bytes) -> bool:
        return self.path(digest).is_file()

    def adopt(self, source: Path, digest: bytes, *, flushed: bool = False) -> Path:
        """Moves `source`, whose SHA-256 the caller has computed, into the store and makes it durable.

        On the same file system only. Where the digest is there already, `source` takes the place of the same bytes.

        Args:
            flushed: whether the caller has waited for the disk to have the content.
        """
        target = self.path(digest)
        if not flushed:
            sync(source)
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
        sync(target.parent)
        return target

    def put(self, content: bytes, digest: bytes) -> Path:
        """Stores bytes that are in memory."""
        target = self.path(digest)
        if not target.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            source = target.with_suffix(".new")
            source.write_bytes(content)
            self.adopt(source, digest)
        return target

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
            found = path.stat()
            if path.name.removesuffix(_SUFFIX) not in names and found.st_mtime < before:
                freed += found.st_size
                path.unlink()
        return freed
