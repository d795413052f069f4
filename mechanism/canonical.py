"""Canonical JSON: one byte string for one value, so that digests and signatures mean something.

The rules of RFC 8785 (UTF-8, members sorted by UTF-16 code units, no white space, shortest escapes), narrowed:
numbers are integers of at most 53 bits. What has a fraction is written as a decimal or rational string.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import orjson

from mechanism.errors import FieldError

Json: TypeAlias = bool | int | str | Sequence["Json"] | Mapping[str, "Json"] | None

#: Largest integer that every JSON reader keeps exact (IEEE 754 doubles), RFC 8785 section 3.2.2.3.
MAX_INTEGER = 2**53 - 1

#: For plain values with ASCII text alone this writes the canonical form: keys sorted by bytes, which is the order
#: of UTF-16 units there, the shortest escapes, and nothing above 53 bits.
FAST = orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER

#: Types that the fast encoder writes canonically as they are.
SCALARS, CONTAINERS = frozenset((str, int, bool, type(None))), frozenset((dict, list, tuple))

#: Nesting that no record of ours comes near; deeper input is refused before it exhausts the stack.
MAX_DEPTH = 32


def canonical_bytes(value: Json) -> bytes:
    """The canonical encoding of `value`.

    Raises:
        FieldError: a float, an integer above 53 bits, a lone surrogate, a key that is not a string, or nesting
            deeper than 32; the field is the path to it.
    """
    if _plain(value, 0):
        try:
            data = orjson.dumps(value, option=FAST)
        except (TypeError, RecursionError):  # an integer above 53 bits or a lone surrogate: named below
            data = b"\xff"
        if data.isascii():
            return data
    return json.dumps(_ordered(value, "$", 0), ensure_ascii=False, separators=(",", ":")).encode()


def canonical_digest(value: Json) -> bytes:
    """SHA-256 of the canonical encoding."""
    return hashlib.sha256(canonical_bytes(value)).digest()


def parse_canonical(data: bytes) -> Any:
    """The value that `data` encodes.

    Raises:
        FieldError: `data` is not the canonical encoding of anything.
    """
    expected = "canonical JSON (RFC 8785, integers only)"
    try:
        value = orjson.loads(data)
        if canonical_bytes(value) == data:
            return value
        expected += "; it parses, but its bytes are not the canonical ones"
    except FieldError:
        raise
    except (ValueError, RecursionError):
        pass
    raise FieldError("record", data[:80], expected)


def decimal_text(value: Decimal) -> str:
    """The one plain notation of a finite decimal: no exponent, no trailing zeros, "0" for zero."""
    if not value.is_finite():
        raise FieldError("decimal", str(value), "a finite decimal")
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def _plain(value: Any, depth: int) -> bool:
    """Whether `value`, within `depth` others, is built from exact built-in types alone: no float, no subclass. orjson
    checks the keys."""
    kind = type(value)
    if kind not in CONTAINERS or (value and depth == MAX_DEPTH):
        return kind in SCALARS
    items = value.values() if kind is dict else value
    return SCALARS.issuperset(map(type, items)) or all(_plain(item, depth + 1) for item in items)


def _ordered(value: Any, path: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise FieldError(path, "...", f"nesting of at most {MAX_DEPTH}")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if abs(value) > MAX_INTEGER:
            raise FieldError(path, value, "an integer of at most 53 bits; write a larger one as a string")
        return int(value)
    if isinstance(value, str):
        return _text(value, path)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise FieldError(path, key, "keys that are strings")
            _text(key, path)
        keys = sorted(value, key=lambda key: key.encode("utf-16-be"))
        return {key: _ordered(value[key], f"{path}.{key}", depth + 1) for key in keys}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_ordered(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
    raise FieldError(path, value, "null, a boolean, an integer, a string, a list or an object")


def _text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise FieldError(path, value, "text without lone surrogates") from None
    return value
