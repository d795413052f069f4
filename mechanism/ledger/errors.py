"""What the ledger refuses.

LedgerError(MechanismError)
 +- EntryError          an entry that is not of the known form
 +- EntryConflictError  an id that is already taken by another body
 +- PostingError        a transfer that would overdraw, resolve twice, or resolve more than is held
 +- NoteError           a signed note, checkpoint or key that is malformed
 |   +- SignatureError  well-formed, but not signed by the key that is trusted
 +- ProofError          an inclusion or consistency proof that does not prove it
"""

from mechanism.errors import MechanismError


class LedgerError(MechanismError):
    """Base of every refusal of the ledger."""


class EntryError(LedgerError):
    """An entry that is not of the known form."""


class EntryConflictError(LedgerError):
    """An id that is already taken by another body. Nothing was appended."""

    def __init__(self, entry_id: str, index: int) -> None:
        super().__init__(
            f"the id {entry_id!r} already names entry {index}, which has another body; "
            "an id stands for one body for ever, so send the same body or take a new id"
        )
        self.entry_id = entry_id
        self.index = index


class PostingError(LedgerError):
    """A transfer that the accounts do not allow. Nothing was posted."""


class NoteError(LedgerError):
    """A signed note, a checkpoint or a key that is malformed."""


class SignatureError(NoteError):
    """A well-formed note that the trusted key did not sign."""


class ProofError(LedgerError):
    """A proof that does not lead to the root."""
