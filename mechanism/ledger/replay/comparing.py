"""Whether an entry is the one that what stands before it gives; else the first difference, in words."""

from collections.abc import Sequence
from typing import Any

import orjson

from mechanism.canonical import FAST, canonical_bytes, parse_canonical
from mechanism.ledger.entry import Entry
from mechanism.ledger.errors import LedgerError


class Wrong(LedgerError):
    """What is wrong with the entry at hand; becomes a ReplayError with its place."""


def same(entry: Entry, expected: Entry, where: str = "") -> None:
    """Raises Wrong unless both are equal, and so have the same bytes; `where` begins the sentence.

    An entry that was read has canonical bytes, of which there is one for each value. Python calls 1 and true equal,
    which `forms` distinguishes before.
    """
    if entry != expected:
        raise Wrong(where + difference(entry, expected))


def same_parts(found: Sequence[Entry], expected: Sequence[Entry]) -> None:
    """The same of what was cut into parts."""
    if len(found) != len(expected):
        raise Wrong(f"{len(found)} parts; what they say together makes {len(expected)}")
    for one, other in zip(found, expected, strict=True):
        same(one, other)


def alike(found: Any, expected: Any) -> bool:
    """Whether two values that have canonical forms have one.

    The fast encoder alone decides that: it writes equal values in one way, if not always in the canonical one.
    """
    try:
        return orjson.dumps(found, option=FAST) == orjson.dumps(expected, option=FAST)
    except TypeError:  # an integer above 53 bits, say
        return canonical_bytes(found) == canonical_bytes(expected)


def difference(entry: Entry, expected: Entry) -> str:
    """The first difference of two entries whose bytes differ."""
    if entry.id != expected.id or entry.kind != expected.kind:
        return f"expected the {expected.kind} {expected.id} here"
    return difference_of(parse_canonical(entry.data), parse_canonical(expected.data))


def difference_of(found: Any, wanted: Any) -> str:
    """The first difference of two values, in words; empty where there is none."""
    return "" if alike(found, wanted) else _difference_at("", found, wanted)


def _difference_at(path: str, found: Any, wanted: Any) -> str:
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in sorted(found.keys() | wanted.keys()):
            where = f"{path}.{key}" if path else key
            if key not in wanted:
                return f"{where} does not belong here"
            if key not in found:
                return f"{where} is missing"
            if text := _difference_at(where, found[key], wanted[key]):
                return text
        return ""
    if isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        for number, (left, right) in enumerate(zip(found, wanted, strict=True)):
            if text := _difference_at(f"{path}[{number}]", left, right):
                return text
        return ""
    if found != wanted or type(found) is not type(wanted):
        return f"{path} is {found!r:.120}; what stands before it gives {wanted!r:.120}"
    return ""
