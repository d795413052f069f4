"""Text that people write with their editors: TOML settings, and PEM.

Editors put marks before a text or write it in another encoding, and a file may hold what no setting needs: each is
read, or is one sentence.
"""

import codecs
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mechanism.errors import FieldError

#: Bytes of a settings file: a population of thousands, written out, has a tenth of it.
MAX_BYTES = 4 << 20

#: Levels of tables and lists in each other; no setting has more than five.
MAX_LEVELS = 32

#: Encodings that a text's first bytes tell, the longer mark first.
_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)

_PART = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+"""

#: A key of more parts than levels may be: the time that tomllib takes grows with their square.
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_-])(?:{_PART}){{{MAX_LEVELS}}}")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Names the file that they come from in errors of fields."""
    try:
        yield
    except FieldError as error:
        raise FieldError(f"{path}: {error.field}", error.value, error.expected) from None


class TextFileError(ValueError):
    """A text that cannot be used; the message says why, without naming the file."""


def unmarked(data: bytes) -> bytes:
    """`data` without the byte-order marks of UTF-8: of texts that were put together, each may have one.

    Raises:
        TextFileError: UTF-16 or UTF-32, by their marks or their zero bytes.
    """
    for mark, name in _MARKS:
        if data.startswith(mark):
            raise TextFileError(f"it is {name} text; save it as UTF-8")
    if b"\0" in data:
        raise TextFileError("it has zero bytes, as UTF-16 text and binary files have; save it as UTF-8 text")
    return data.replace(codecs.BOM_UTF8, b"")


def decoded(data: bytes) -> str:
    """`data` as text: UTF-8, with or without a byte-order mark.

    Raises:
        TextFileError: another encoding.
    """
    try:
        return unmarked(data).decode()
    except UnicodeDecodeError as error:
        raise TextFileError(f"it is not UTF-8 text (byte {error.start}); save it as UTF-8") from None


def read_toml(path: Path) -> dict[str, Any]:
    """The document in `path`.

    Raises:
        OSError: it cannot be read.
        TextFileError: it is not TOML, too long, too deep, or has an integer beyond TOML's 64 bits.
    """
    return parse_toml(read_text(path))


def read_text(path: Path) -> str:
    """The settings in `path` as text.

    Raises:
        OSError: it cannot be read.
        TextFileError: it is not a regular file, too long, or no UTF-8.
    """
    if path.exists() and not path.is_file():
        raise TextFileError("it is not a regular file; expected a file of settings")
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise TextFileError(f"it has more than {MAX_BYTES} bytes; expected a file of settings")
    return decoded(data)


def parse_toml(text: str) -> dict[str, Any]:
    """The document that `text` is.

    Raises:
        TextFileError: as `read_toml`.
    """
    if (long := _LONG_KEY.search(text)) is not None:
        line = text.count("\n", 0, long.start()) + 1
        raise TextFileError(f"line {line} has a key of more than {MAX_LEVELS} parts")
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TextFileError(f"it is not valid TOML: {error}") from None
    except RecursionError:
        raise TextFileError(f"it has more than {MAX_LEVELS} tables or lists in each other") from None
    except ValueError:  # a number or a date that Python does not make
        raise TextFileError("it is not valid TOML: it has a number or a date that is out of range") from None
    _check(document)
    return document


def _check(document: dict[str, Any]) -> None:
    waiting: list[tuple[str, Any, int]] = [("", document, 0)]
    while waiting:
        path, value, level = waiting.pop()
        if level > MAX_LEVELS:
            raise TextFileError(f"it has more than {MAX_LEVELS} tables or lists in each other")
        if isinstance(value, dict):
            waiting += [(f"{path}.{key}" if path else key, inner, level + 1) for key, inner in value.items()]
        elif isinstance(value, list):
            waiting += [(f"{path}.{i}", inner, level + 1) for i, inner in enumerate(value)]
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise TextFileError(f"{path:.120} is an integer of more than the 64 bits that TOML gives it")
