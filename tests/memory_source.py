"""A ledger in memory: entries, signed by the holder of the key."""

from collections.abc import Iterator, Sequence

from mechanism.ledger.entry import Entry
from mechanism.ledger.errors import EntryError
from mechanism.ledger.key_history import NO_KEYS, keys_after
from mechanism.ledger.merkle import leaf_hash, tree_root
from mechanism.ledger.note import Checkpoint, SigningKey, sign_checkpoint
from mechanism.ledger.openings import Openings
from mechanism.ledger.verify import Report, verify_ledger
from tests.ledger_samples import openings_of, stamped

KEY = SigningKey("example.com/fedpeer", 1, bytes(range(32)))


class MemorySource:
    """`mechanism.ledger.verify.LedgerSource` without stored tiles and tables.

    Args:
        entries: bytes as they are to stand; an `Entry` gets the digest of the key history that belongs in it.

    Attributes:
        openings: those that the entries carry.
    """

    name = "memory"

    def __init__(self, entries: Sequence[Entry | bytes], key: SigningKey = KEY) -> None:
        self.data = _stamped(entries)
        self.openings = Openings(None, openings_of(e for e in entries if isinstance(e, Entry)))
        self.key = key
        self.note = head(self.data, len(self.data), key)

    def verification_key(self) -> str:
        return str(self.key.verification_key)

    def checkpoint(self) -> str:
        return self.note

    def heads(self) -> Iterator[str]:
        yield self.note

    def entries(self, first: int = 0) -> Iterator[bytes]:
        return iter(self.data[first:])

    def tile(self, level: int, index: int, width: int) -> bytes | None:
        return None

    def tables(self) -> None:
        return None


def audited(source: MemorySource, known: str | None = None) -> Report:
    """The source verified with all of its openings."""
    return verify_ledger(source, KEY.verification_key, known, openings=source.openings)


def own(openings: Openings, name: str, ended: bool = True) -> Openings:
    """What of all openings one participant has; of a task that has ended, the evidence too."""

    def concerns(entry_id: str) -> bool:
        words = entry_id.split("/")
        return name in words or (ended and words[-1] == "evidence")

    return Openings(name, {id_: opening for id_, opening in openings.by_id.items() if concerns(id_)})


def _stamped(entries: Sequence[Entry | bytes]) -> list[bytes]:
    made: list[bytes] = []
    keys = NO_KEYS
    for index, item in enumerate(entries):
        if isinstance(item, bytes):
            try:
                entry = Entry.parse(item)
            except EntryError:
                made.append(item)
                continue
        else:
            [entry] = stamped([item], keys, index)
        keys = keys_after([entry], keys, index)
        made.append(entry.data)
    return made


def head(data: Sequence[bytes], size: int, key: SigningKey = KEY) -> str:
    """The signed head of the first `size` entries."""
    root = tree_root([leaf_hash(item) for item in data[:size]])
    return str(sign_checkpoint(Checkpoint(key.name, size, root), key))
