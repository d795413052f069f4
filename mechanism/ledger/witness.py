"""A witness: remembers the last head of a log, and signs a new one only where it extends that.

    old <size of the last head>
    <base64 hash> ...                  consistency proof, at most 63
                                       (empty line)
    <checkpoint>

Because it never signs two heads that are not consistent, two readers who both see its cosignature see one log.

Source: https://c2sp.org/tlog-witness
"""

import re
from dataclasses import dataclass

from mechanism.ledger.errors import LedgerError, NoteError
from mechanism.ledger.merkle import verify_consistency
from mechanism.ledger.note import Checkpoint, Note, Signature, SigningKey, VerificationKey, cosign
from mechanism.ledger.note import decode_hash as _decode_hash
from mechanism.ledger.note import encode_hashes as _encode_hashes

_OLD = re.compile(r"old (0|[1-9][0-9]{0,18})")
_MAX_HASHES = 63


class StaleRequest(LedgerError):
    """The request starts from another size than the witness's last one (HTTP 409 of the protocol).

    Attributes:
        size: the size from which the proof must start.
    """

    def __init__(self, size: int) -> None:
        super().__init__(f"the witness last saw a head of {size}; send a proof from that size")
        self.size = size


@dataclass(frozen=True)
class AddCheckpoint:
    """A request to cosign `checkpoint`, with the proof that it extends the head of `old`."""

    old: int
    proof: tuple[bytes, ...]
    checkpoint: Note

    def __str__(self) -> str:
        return f"old {self.old}\n{_encode_hashes(self.proof)}\n{self.checkpoint}"

    @classmethod
    def parse(cls, text: str) -> "AddCheckpoint":
        """The request that `text` writes down; NoteError where it is none."""
        head, separator, checkpoint = text.partition("\n\n")
        first, *lines = head.split("\n")
        match = _OLD.fullmatch(first)
        if not separator or match is None or len(lines) > _MAX_HASHES:
            raise NoteError(
                "this is not a request to a witness: expected an old size, at most 63 hashes, a checkpoint"
            )
        return cls(int(match[1]), tuple(_decode_hash(line) for line in lines), Note.parse(checkpoint))


def check_request(known: Checkpoint | None, request: AddCheckpoint, log: VerificationKey) -> Checkpoint:
    """The head that may be remembered, and then signed.

    Args:
        known: the last head that the witness signed; None where it has seen none.
        request: what is asked.
        log: the log's key.

    Raises:
        NoteError, SignatureError: not a checkpoint of the log, or an old size above the new one.
        StaleRequest: the old size is not that of `known`.
        ProofError: the new head does not extend the known one: a fork, or a wrong proof.
    """
    checkpoint = Checkpoint.open(request.checkpoint, log)
    if request.old > checkpoint.size:
        raise NoteError(f"the old size {request.old} is above the new size {checkpoint.size}")
    size = 0 if known is None else known.size
    if request.old != size:
        raise StaleRequest(size)
    if known is None or known.size == 0:
        if request.proof:
            raise NoteError("a proof from the empty tree must be empty")
        return checkpoint
    verify_consistency(known.size, checkpoint.size, known.root, checkpoint.root, request.proof)
    return checkpoint


def cosignature(request: AddCheckpoint, key: SigningKey, time: int) -> Signature:
    """The witness's signature at `time` (Unix seconds). Remember the head durably before handing it out."""
    return cosign(request.checkpoint.text, key, time)
