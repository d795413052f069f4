"""The running digest of a log's key history, by which nobody's key can be left out unseen.

    k_0 = 32 zero bytes
    k_n = SHA-256(k_(n-1) || 8-byte big-endian index || leaf hash)     of the n-th enrolment or revocation

Claims, models and payments carry k_n in hexadecimal. So a participant that has the receipt of one of its own needs
only the enrolments and revocations, in order and with their places, to see every key that the log held for its name
when that entry was written: the chain over them must end in the digest that the receipt proves. Verification
recomputes the digests. The cost grows with the number of enrolments, not with the log.
"""

import base64
import binascii
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from mechanism.ledger.entry import Entry
from mechanism.ledger.errors import EntryError
from mechanism.ledger.merkle import HASH_BYTES, leaf_hash

#: Kinds of the entries that the history consists of.
KINDS = ("enrolment", "revocation")

#: The digest before the first key.
NO_KEYS = bytes(HASH_BYTES)


def extended(digest: bytes, index: int, entry: bytes) -> bytes:
    """The digest after the canonical bytes of one more enrolment or revocation, at `index` of the log."""
    return hashlib.sha256(digest + index.to_bytes(8, "big") + leaf_hash(entry)).digest()


def fingerprint(spki: bytes) -> str:
    """The first 16 hexadecimal digits of SHA-256 of a SubjectPublicKeyInfo: enough to name one of a few keys."""
    return hashlib.sha256(spki).hexdigest()[:16]


def keys_after(entries: Iterable[Entry], digest: bytes = NO_KEYS, first: int = 0) -> bytes:
    """The digest after entries that stand from index `first` of the log on, of whichever kinds."""
    for index, entry in enumerate(entries, first):
        if entry.kind in KINDS:
            digest = extended(digest, index, entry.data)
    return digest


@dataclass(frozen=True)
class KeyEvent:
    """What an enrolment or a revocation says.

    Attributes:
        index: its place in the log.
        participant_id: whose key.
        fingerprint: names the key; `fingerprint`.
        sha256: of the whole SubjectPublicKeyInfo, in hexadecimal; empty in a revocation.
        enrolled: False where the key ends here.
        reason: of a revocation.
    """

    index: int
    participant_id: str
    fingerprint: str
    enrolled: bool
    reason: str = ""
    sha256: str = ""


@dataclass(frozen=True)
class HeldKey:
    """A key that the log holds for a name.

    Attributes:
        fingerprint, sha256: name the key, in short and whole.
        enrolled_at: index of its enrolment.
        revoked_at: index of its revocation; None while it counts.
        reason: of the revocation.
    """

    fingerprint: str
    sha256: str
    enrolled_at: int
    revoked_at: int | None = None
    reason: str = ""

    def record(self) -> dict[str, int | str | None]:
        """As JSON."""
        return dict(vars(self))


def key_event(index: int, data: bytes) -> KeyEvent:
    """What the canonical bytes of an enrolment or a revocation say.

    Raises:
        EntryError: another kind of entry, or one without the fields of its kind.
    """
    entry = Entry.parse(data)
    body = entry.body
    name = body.get("participant_id")
    if entry.kind not in KINDS or not isinstance(name, str):
        raise EntryError(f"entry {index} ({entry.id}) is neither an enrolment nor a revocation")
    if entry.kind == "revocation":
        return KeyEvent(index, name, str(body.get("fingerprint")), False, str(body.get("reason", "")))
    try:
        spki = base64.b64decode(str(body.get("public_key")), validate=True)
    except binascii.Error:
        raise EntryError(f"entry {index} ({entry.id}) has no readable public key") from None
    return KeyEvent(index, name, fingerprint(spki), True, sha256=hashlib.sha256(spki).hexdigest())


def held_keys(events: Sequence[KeyEvent]) -> dict[str, list[HeldKey]]:
    """Every key that was ever enrolled, by name, in order; revoked ones included."""
    found: dict[str, dict[str, HeldKey]] = {}
    for event in events:
        keys = found.setdefault(event.participant_id, {})
        known = keys.get(event.fingerprint)
        if event.enrolled:
            keys.setdefault(event.fingerprint, HeldKey(event.fingerprint, event.sha256, event.index))
        elif known is not None:
            keys[event.fingerprint] = replace(known, revoked_at=event.index, reason=event.reason)
    return {name: list(keys.values()) for name, keys in found.items()}
