"""Files that somebody else may have written: regular ones alone, and no more of them than they can need.

A path may name a device, a pipe, a folder or a link to one; a file may hold a thousand times what its kind ever does,
or grow while it is read. Each of these is one sentence, before memory or time is spent on it.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from mechanism.ledger.entry import MAX_ENTRY_BYTES
from mechanism.ledger.errors import LedgerError
from mechanism.ledger.note import MAX_NOTE_BYTES

#: Not to wait for the writer of a pipe; systems without such pipes have no such flag.
_AT_ONCE = getattr(os, "O_NONBLOCK", 0)

#: Bytes of a verification key, a signing key or a header: a name of 255 characters and some base64.
MAX_KEY_BYTES = 4_096

#: Bytes of a receipt: an entry in base64, 63 hashes, a checkpoint.
MAX_RECEIPT_BYTES = 2 * MAX_ENTRY_BYTES + 63 * 64 + 4 * MAX_NOTE_BYTES

#: Bytes of one opening: maps and trees of the largest evidence, or the features of a model.
MAX_OPENING_BYTES = 1 << 25

#: Bytes of a PEM file: some certificates.
MAX_PEM_BYTES = 1 << 20

#: Bytes of a whole ledger in one file, which is read piece by piece: ten years of a large market.
MAX_LEDGER_BYTES = 1 << 40


class SourceError(LedgerError):
    """A source that is not a ledger, or cannot be read."""


class NothingThereError(SourceError):
    """Nothing is where a command's arguments say, or something else than they promise beside the ledger: that is a
    mistake in the command, and says nothing of a ledger."""


def opened(path: Path, limit: int) -> IO[bytes]:
    """`path`, open for reading.

    Raises:
        SourceError: it is missing, no regular file, larger than `limit` bytes, or cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | _AT_ONCE)
    except FileNotFoundError:
        raise NothingThereError(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise SourceError(f"{path} is {_kind(status.st_mode)}; expected a regular file")
        if status.st_size > limit:
            raise SourceError(f"{path} has {status.st_size} bytes; expected at most {limit}")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path, limit: int) -> bytes:
    """All of `path`.

    Raises:
        SourceError: as `opened`, or it grew beyond `limit` bytes meanwhile.
    """
    with opened(path, limit) as file:
        try:
            data = file.read(limit + 1)
        except OSError as error:
            raise _unreadable(path, error) from None
    if len(data) > limit:
        raise SourceError(f"{path} has more than {limit} bytes; expected at most {limit}")
    return data


def read_text(path: Path, limit: int) -> str:
    """All of `path` as UTF-8.

    Raises:
        SourceError: as `read_bytes`, or it is not UTF-8.
    """
    try:
        return read_bytes(path, limit).decode()
    except UnicodeDecodeError:
        raise SourceError(f"{path} is not text") from None


def read_lines(path: Path, longest: int) -> Iterator[bytes]:
    """Lines without their newline, each of at most `longest` bytes; the last must have one too.

    Raises:
        SourceError: as `opened`, or a line is too long or has no end.
    """
    with opened(path, MAX_LEDGER_BYTES) as file:
        number = 0
        while True:
            try:
                line = file.readline(longest + 1)
            except OSError as error:
                raise _unreadable(path, error) from None
            if not line:
                return
            number += 1
            if not line.endswith(b"\n"):
                why = f"is longer than {longest} bytes" if len(line) > longest else "has no end"
                raise SourceError(f"line {number} of {path} {why}; the file is truncated or damaged")
            yield line[:-1]


def is_file(path: Path) -> bool:
    """Whether `path` is a regular file; False for what cannot be a path."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _unreadable(path: Path, error: OSError | ValueError) -> SourceError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    shown = str(path) if len(str(path)) <= 300 else f"{str(path)[:100]}..."
    return SourceError(f"{shown} cannot be read: {reason}")


def _kind(mode: int) -> str:
    kinds = (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    )
    return next((name for matches, name in kinds if matches(mode)), "no file")
