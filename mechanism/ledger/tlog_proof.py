"""A receipt that verifies offline: entry, inclusion proof and checkpoint in one file (`.tlog-proof`).

    c2sp.org/tlog-proof@v1
    extra <base64 of the entry>
    index <decimal>
    <base64 hash> ...

    <checkpoint>

The entry itself rides along as the format's extra data, so that a receipt says what was recorded; it is trusted
only through the proof.

Source: https://c2sp.org/tlog-proof
"""

import base64
import re
from dataclasses import dataclass

from mechanism.ledger.errors import NoteError
from mechanism.ledger.merkle import leaf_hash, verify_inclusion
from mechanism.ledger.note import Checkpoint, Note, VerificationKey, decode_base64, decode_hash, encode_hashes

_FIRST_LINE = "c2sp.org/tlog-proof@v1"
_INDEX = re.compile(r"index (0|[1-9][0-9]{0,18})")

#: A tree of 2^63 entries has proofs of that length.
_MAX_HASHES = 63


@dataclass(frozen=True)
class TlogProof:
    """A receipt. `entry` is empty where the file carries none; then the checker brings the entry."""

    index: int
    hashes: tuple[bytes, ...]
    checkpoint: Note
    entry: bytes = b""

    def __str__(self) -> str:
        extra = f"extra {base64.b64encode(self.entry).decode()}\n" if self.entry else ""
        return f"{_FIRST_LINE}\n{extra}index {self.index}\n{encode_hashes(self.hashes)}\n{self.checkpoint}"

    @staticmethod
    def begins(text: str) -> bool:
        """Whether `text` says of itself that it is a receipt."""
        return text.startswith(_FIRST_LINE + "\n")

    @classmethod
    def parse(cls, text: str) -> "TlogProof":
        """The receipt that `text` writes down, nothing verified.

        Raises:
            NoteError: not a receipt.
        """
        head, separator, checkpoint = text.partition("\n\n")
        lines = head.split("\n")
        if not separator or lines.pop(0) != _FIRST_LINE:
            raise NoteError(f"this is not a receipt: expected a file that begins with {_FIRST_LINE}")
        entry = b""
        if lines and lines[0].startswith("extra "):
            entry = decode_base64(lines.pop(0)[len("extra ") :], "the receipt's entry")
        match = _INDEX.fullmatch(lines.pop(0)) if lines else None
        if match is None or len(lines) > _MAX_HASHES:
            raise NoteError("the receipt is malformed: expected an index line and at most 63 hashes")
        return cls(int(match[1]), tuple(decode_hash(line) for line in lines), Note.parse(checkpoint), entry)

    def verify(self, key: VerificationKey, entry: bytes | None = None) -> Checkpoint:
        """The checkpoint that covers the entry, once all of it is seen to hold.

        Args:
            key: the log's.
            entry: what must have been recorded; the receipt's own entry where None.

        Raises:
            NoteError: no entry given and none in the receipt, or another one than given.
            SignatureError: the checkpoint is not signed by `key`.
            ProofError: the entry is not at this index of the checkpoint's tree.
        """
        Checkpoint.open(self.checkpoint, key)
        return self.included(entry)

    def included(self, entry: bytes | None = None) -> Checkpoint:
        """The checkpoint that covers the entry; whether the log's key has signed it is left to the caller.

        Raises:
            NoteError: no entry given and none in the receipt, or another one than given; or no checkpoint.
            ProofError: the entry is not at this index of the checkpoint's tree.
        """
        data = self.entry if entry is None else entry
        if not data:
            raise NoteError("the receipt carries no entry; give the entry that it is to prove")
        if self.entry and data != self.entry:
            raise NoteError("the receipt is for another entry than the one given")
        checkpoint = Checkpoint.parse_text(self.checkpoint.text)
        verify_inclusion(self.index, checkpoint.size, leaf_hash(data), self.hashes, checkpoint.root)
        return checkpoint
