"""The form of an entry: canonical JSON, one leaf of the tree, with the transfers that it posts.

    {"body": {...}, "id": "...", "kind": "...", "transfers": [...], "v": 1}

`transfers` is absent where the entry moves no money. The id stands for the body for ever.

An entry may commit to an *opening*: a record that is not in it, nor anywhere else in the log, of which it has the
salted SHA-256 (`mechanism.ledger.openings`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mechanism.canonical import Json, canonical_bytes, parse_canonical
from mechanism.errors import FieldError
from mechanism.ledger.accounts import Transfer, parse_transfer
from mechanism.ledger.errors import EntryError

#: Version of the form. A reader refuses what it does not know.
VERSION = 1

#: Under 64 KiB, so that a length fits the 16 bits of a tlog-tiles bundle.
MAX_ENTRY_BYTES = 65_535

#: Characters of an id: a few names and what stands between them.
MAX_ID_CHARACTERS = 255


@dataclass(frozen=True)
class Entry:
    """One event.

    Attributes:
        id: names it for ever, 1 to 255 visible ASCII characters.
        kind: what happened; see `entries`.
        body: the event's own fields.
        transfers: what it posts, applied in order.
        opening: what it commits to, where that is at hand; no part of its bytes, and not compared.
    """

    id: str
    kind: str
    body: Mapping[str, Json]
    transfers: tuple[Transfer, ...] = field(default=())
    opening: Mapping[str, Json] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of_bytes(cls, data: bytes, entry_id: str, kind: str) -> "Entry":
        """The entry without transfers that `data` encodes, which the caller has seen to be canonical, with this id and
        kind. Its body is read when it is asked for."""
        entry = cls.__new__(cls)
        entry.__dict__.update(id=entry_id, kind=kind, transfers=(), opening=None, _data=data)
        return entry

    def __getattr__(self, name: str) -> Any:
        if name != "body":
            raise AttributeError(name)
        body = self.__dict__["body"] = parse_canonical(self.data)["body"]
        return body

    @property
    def data(self) -> bytes:
        """The canonical bytes, which are the leaf.

        Raises:
            EntryError: not canonical JSON, 64 KiB or more, or an id that is none.
        """
        # Not functools.cached_property: its lock costs as much as the encoding.
        found: bytes | None = self.__dict__.get("_data")
        if found is None:
            found = self.__dict__["_data"] = self._encoded()
        return found

    def _encoded(self) -> bytes:
        record: dict[str, Any] = {"body": self.body, "id": self.id, "kind": self.kind, "v": VERSION}
        if self.transfers:
            record["transfers"] = [transfer.record() for transfer in self.transfers]
        if not _is_id(self.id):
            raise EntryError(
                f"{self.id!r:.300} is not an entry id; expected 1 to 255 visible ASCII characters"
            )
        try:
            data = canonical_bytes(record)
        except FieldError as error:
            raise EntryError(f"entry {self.id}: {error}") from None
        if len(data) > MAX_ENTRY_BYTES:
            raise EntryError(
                f"entry {self.id} takes {len(data)} bytes; expected at most {MAX_ENTRY_BYTES}, so split it"
            )
        return data

    @classmethod
    def parse(cls, data: bytes) -> "Entry":
        """The entry that `data` encodes.

        Raises:
            EntryError: not the canonical encoding of an entry of a known version.
        """
        if len(data) > MAX_ENTRY_BYTES:
            raise EntryError(f"an entry of {len(data)} bytes; expected at most {MAX_ENTRY_BYTES}")
        try:
            record = parse_canonical(data)
        except FieldError as error:
            raise EntryError(str(error)) from None
        if type(record) is not dict:
            raise EntryError("an entry is an object")
        if record.get("v") != VERSION or type(record["v"]) is not int:
            raise EntryError(
                f"the entry has version {record.get('v')!r:.40}; this program knows version {VERSION}"
            )
        transfers: tuple[Transfer, ...] = ()
        if "transfers" in record:
            if type(record["transfers"]) is not list or not record["transfers"]:
                raise EntryError("transfers must be a list that is not empty")
            transfers = tuple(parse_transfer(item) for item in record["transfers"])
        if len(record) != (5 if transfers else 4):
            raise EntryError("an entry has the keys body, id, kind, v and, where it moves money, transfers")
        body, entry_id, kind = record.get("body"), record.get("id"), record.get("kind")
        if type(body) is not dict or type(entry_id) is not str or type(kind) is not str:
            raise EntryError("an entry has a body (object), an id and a kind (strings)")
        if not _is_id(entry_id):
            raise EntryError(f"{entry_id!r:.300} is not an entry id")
        entry = cls(entry_id, kind, body, transfers)
        entry.__dict__["_data"] = data
        return entry


def _is_id(text: str) -> bool:
    """Three calls into C, since this is asked for every entry."""
    return 0 < len(text) <= MAX_ID_CHARACTERS and text.isascii() and text.isprintable() and " " not in text
