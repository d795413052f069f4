"""A call on its way to another machine: small, since its models and data travel as digests of files in the blob store.

    content, digests = Packer(blobs).pack(function, arguments)
    Unpacker(blobs).unpack(content)      # elsewhere, over the same store

Models (tensors by name) and large arrays are written to the store once, as safetensors, under their SHA-256, and read
from it by who unpacks; the path of a file of the store becomes that of the same file there. What is left is pickled,
and must come over a line on which both ends are known.
"""

import hashlib
import io
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from coordinator.blobs import BlobStore
from coordinator.errors import BucketError
from fedpeer.protocol.model_file import encode_model, file_digest, open_model

#: Bytes from which an array is worth a file of its own.
_LEAST = 16 << 10

#: Objects that are known to be in the store: D_c's arrays, a start, the one before it, what is seen of them.
_KNOWN = 16

#: Files that are kept in memory where calls are unpacked.
_KEPT = 8

#: Kinds of NumPy's types that safetensors has.
_KINDS = "fiub"

#: Files whose content is known to be right where calls are unpacked.
_LOOKED_AT = 100_000

#: The name of an array that stands alone in its file.
_ALONE = "array"

#: In the place of names: the path is what is wanted.
_FILE = "file"

_Reference = tuple[bytes, list[str] | str | None]


class Packer:
    """Packs calls over one store; remembers which objects are in it already."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        #: The object itself is kept, so that its number is nobody else's.
        self._known: OrderedDict[int, tuple[Any, bytes]] = OrderedDict()

    def pack(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[bytes, set[bytes]]:
        """The call in bytes, and the digests that it needs. Raises OSError where the store takes nothing just now."""
        buffer = io.BytesIO()
        pickler = _Pickler(buffer, self._digest, self._blobs)
        pickler.dump((function, arguments))
        return buffer.getvalue(), pickler.digests

    def _digest(self, value: Any, tensors: dict[str, Any]) -> bytes:
        if (found := self._known.get(id(value))) is not None:
            self._known.move_to_end(id(value))
            return found[1]
        content = encode_model(tensors)
        digest = hashlib.sha256(content).digest()
        self._blobs.put(content, digest)
        self._known[id(value)] = value, digest
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        return digest


class Unpacker:
    """Unpacks calls over one store; keeps the latest models and data in memory."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._read: OrderedDict[bytes, dict[str, Any]] = OrderedDict()
        self._looked_at: OrderedDict[bytes, tuple[int, int]] = OrderedDict()

    def unpack(self, content: bytes) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Function and arguments.

        Raises:
            FileNotFoundError: the store lacks a file that the call needs.
            OSError: it cannot be read just now, or holds something else.
        """
        found: tuple[Callable[..., Any], tuple[Any, ...]] = _Unpickler(
            io.BytesIO(content), self._tensors, self._file
        ).load()
        return found

    def _tensors(self, digest: bytes) -> dict[str, Any]:
        if digest not in self._read:
            self._read[digest] = open_model(self._file(digest)).weights()
            while len(self._read) > _KEPT:
                self._read.popitem(last=False)
        self._read.move_to_end(digest)
        return self._read[digest]

    def _file(self, digest: bytes) -> Path:
        """The file of a digest. Its content is looked at once: many calls may want parts of one large model."""
        path = self._blobs.fetch(digest)
        found = path.stat()
        seen = found.st_ino, found.st_size
        if self._looked_at.get(digest) != seen:
            if file_digest(path) != digest:
                raise BucketError(f"{path} is damaged: its SHA-256 is not {digest.hex()}")
            self._looked_at[digest] = seen
            while len(self._looked_at) > _LOOKED_AT:
                self._looked_at.popitem(last=False)
        return path


class _Pickler(pickle.Pickler):
    def __init__(
        self, file: BinaryIO, digest: Callable[[Any, dict[str, Any]], bytes], blobs: BlobStore
    ) -> None:
        super().__init__(file, protocol=5)
        self._digest, self._blobs = digest, blobs
        self.digests: set[bytes] = set()

    def persistent_id(self, value: Any) -> "_Reference | None":
        """Digest and names of tensors in their order, None for an array, "file" for a path; None for all else."""
        if isinstance(value, Path):
            stored = self._blobs.digest(value)
            if stored is None:
                return None
            self.digests.add(stored)
            return stored, _FILE
        if type(value) is dict and value and all(_stored(each) for each in value.values()):
            if not all(isinstance(name, str) and name for name in value):
                return None
            tensors, names = value, list(value)
        elif _stored(value) and value.nbytes >= _LEAST:
            tensors, names = {_ALONE: value}, None
        else:
            return None
        digest = self._digest(value, tensors)
        self.digests.add(digest)
        return digest, names


class _Unpickler(pickle.Unpickler):
    def __init__(
        self,
        content: BinaryIO,
        tensors: Callable[[bytes], dict[str, Any]],
        file: Callable[[bytes], Path],
    ) -> None:
        super().__init__(content)
        self._tensors, self._file = tensors, file

    def persistent_load(self, reference: "_Reference") -> Any:
        digest, names = reference
        if names == _FILE:
            return self._file(digest)
        tensors = self._tensors(digest)
        return tensors[_ALONE] if names is None else {name: tensors[name] for name in names}


def _stored(value: Any) -> bool:
    """Whether an array comes out of a file as it went in, its order in memory too: products round by it."""
    return (
        type(value) is np.ndarray
        and value.dtype.kind in _KINDS
        and value.dtype.isnative
        and value.flags.c_contiguous
        and value.dtype.itemsize <= 8
        and not (value.dtype.kind == "u" and value.dtype.itemsize > 1)
    )
