"""The keys under which a log signs its heads, each announced in the log under the one before it.

A change is an entry, at index i, that names the old and the new key. The head of exactly i + 1 entries is signed by
both: by the old one, which so hands over, and by the new one, whose holder so shows itself. Heads up to that size are
the old key's, heads beyond it the new one's. So a reader that trusts one key of a log can follow it to the present one.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from mechanism.ledger import entries
from mechanism.ledger.entry import VERSION, Entry
from mechanism.ledger.errors import EntryError, NoteError, SignatureError
from mechanism.ledger.note import Checkpoint, Note, VerificationKey
from mechanism.ledger.tlog_proof import TlogProof

#: How the canonical bytes of every announcement end.
_END = f'"kind":"{entries.LOG_KEY}","v":{VERSION}}}'.encode()


@dataclass(frozen=True)
class KeyChange:
    """One announcement.

    Attributes:
        index: where it stands.
        previous, key: the key before it and the one from it on.
    """

    index: int
    previous: VerificationKey
    key: VerificationKey

    @property
    def size(self) -> int:
        """The size of the one head that both keys sign."""
        return self.index + 1


def key_change(index: int, data: bytes) -> KeyChange | None:
    """The announcement that the canonical bytes of entry `index` are; None where they are another entry.

    Raises:
        LedgerError: they are one, and malformed.
    """
    if not data.endswith(_END):
        return None
    entry = Entry.parse(data)
    body = entry.body
    previous = VerificationKey.parse(str(body.get("previous")))
    following = VerificationKey.parse(str(body.get("verification_key")))
    number = body.get("number")
    if type(number) is not int or entries.log_key(number, previous, following).data != data:
        raise EntryError(f"entry {index} is not a well-formed announcement of a key")
    return KeyChange(index, previous, following)


@dataclass(frozen=True)
class LogKeys:
    """The keys of a log from a trusted one on.

    Attributes:
        first: the trusted one.
        changes: what followed it, in order.
    """

    first: VerificationKey
    changes: tuple[KeyChange, ...] = ()

    @property
    def current(self) -> VerificationKey:
        """The last one that is known."""
        return self.changes[-1].key if self.changes else self.first

    @property
    def all(self) -> list[VerificationKey]:
        """From the trusted one to the current one."""
        return [self.first, *(change.key for change in self.changes)]

    def at(self, size: int) -> VerificationKey:
        """The key that must have signed a head of `size` entries."""
        key = self.first
        for change in self.changes:
            if size > change.size:
                key = change.key
        return key

    def changed(self, change: KeyChange) -> "LogKeys":
        """With one more change, which the caller has seen under a head of both keys.

        Raises:
            SignatureError: it does not follow on the current key, or comes back to an earlier one.
        """
        if change.previous != self.current:
            raise SignatureError(
                f"entry {change.index} announces a key after {change.previous}; the log's key there is {self.current}"
            )
        if change.key in self.all:
            raise SignatureError(f"entry {change.index} comes back to the earlier key {change.key}")
        return LogKeys(self.first, (*self.changes, change))

    def followed(self, proofs: Iterable[TlogProof]) -> "LogKeys":
        """With the changes that receipts of announcements prove; those of a time before `current` are passed over.

        Raises:
            LedgerError: a receipt that does not hold, or is not under a head of both keys.
        """
        keys, begun = self, False
        for proof in proofs:
            change = key_change(proof.index, proof.entry)
            if change is None:
                raise EntryError(f"entry {proof.index} announces no key")
            if not begun and change.previous != keys.current:
                continue
            begun = True
            keys = keys.changed(change)
            for signer in (change.previous, change.key):
                if proof.verify(signer).size != change.size:
                    raise NoteError(
                        f"the receipt of entry {change.index}, which announces a key, is not under the head of "
                        f"{change.size} entries that both keys sign"
                    )
        return keys

    def open(self, note: str | bytes | Note) -> Checkpoint:
        """The head in `note`, once the key of its size is seen to have signed it.

        Raises:
            NoteError: not a checkpoint, or the head of another log.
            SignatureError: not signed by the key that it should be signed by.
        """
        parsed = note if isinstance(note, Note) else Note.parse(note)
        return Checkpoint.open(parsed, self.at(Checkpoint.parse_text(parsed.text).size))

    def verify(self, proof: TlogProof, entry: bytes | None = None) -> Checkpoint:
        """As `TlogProof.verify`, by the key of the receipt's head."""
        size = Checkpoint.parse_text(proof.checkpoint.text).size
        return proof.verify(self.at(size), entry)


def log_keys(trusted: VerificationKey, current: VerificationKey, proofs: Iterable[TlogProof]) -> LogKeys:
    """The keys of a log from a trusted one to the one that it has now.

    Raises:
        LedgerError: the changes do not lead there.
    """
    keys = LogKeys(trusted).followed(proofs)
    if keys.current != current:
        raise SignatureError(
            f"the log's key is {current}; the trusted key is {trusted}, and no announcement under it leads there"
        )
    return keys
