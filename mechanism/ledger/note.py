"""C2SP signed notes, checkpoints, keys and cosignatures.

    note         text, an empty line, one signature line a key:  "— <name> <base64(key id || signature)>"
    key id       the first four bytes of SHA-256(name || 0x0A || type || public key)
    checkpoint   a note whose text is  origin LF size LF base64(root) LF
    cosignature  a witness's signature (type 0x04) over "cosignature/v1 LF time <t> LF" || checkpoint text

Every form is strict: one value has one encoding, so that no byte of a published note can change unnoticed.

Sources: https://c2sp.org/signed-note, https://c2sp.org/tlog-checkpoint, https://c2sp.org/tlog-cosignature
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from mechanism.ledger.errors import NoteError, SignatureError
from mechanism.ledger.merkle import HASH_BYTES, MAX_SIZE

#: Signature types of C2SP signed-note: a log's own Ed25519 signature, and a witness's timestamped one.
ED25519 = 1
COSIGNATURE_V1 = 4

#: Notes are short; a longer one is refused before it is parsed. C2SP allows a verifier such a bound.
MAX_NOTE_BYTES = 65_536
#: A key's name, id and 33 bytes of base64.
MAX_KEY_CHARACTERS = 1_024
#: As signed-note asks of an implementation: at least 16.
MAX_SIGNATURES = 64

_SIGNATURE = re.compile(r"— ([^\s+]+) ([A-Za-z0-9+/]+={0,2})")
_SIZE = re.compile(r"0|[1-9][0-9]{0,18}")
_PRIVATE = "PRIVATE+KEY+"


@dataclass(frozen=True)
class VerificationKey:
    """A public key under a name: `name+id+base64(type || key)`.

    Attributes:
        name: no spaces, no plus; a log's name is its origin.
        kind: `ED25519` or `COSIGNATURE_V1`.
        public: 32 bytes of Ed25519.
    """

    name: str
    kind: int
    public: bytes

    def __post_init__(self) -> None:
        _check_name(self.name)
        if self.kind not in (ED25519, COSIGNATURE_V1):
            raise NoteError(
                f"the key {self.name} has the unknown type {self.kind}; expected 1 or 4 (Ed25519)"
            )
        if len(self.public) != 32:
            raise NoteError(f"the key {self.name} has {len(self.public)} bytes; expected 32 of Ed25519")

    @property
    def key_id(self) -> bytes:
        return hashlib.sha256(self.name.encode() + b"\n" + bytes([self.kind]) + self.public).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.key_id.hex()}+{_base64(bytes([self.kind]) + self.public)}"

    @classmethod
    def parse(cls, text: str) -> "VerificationKey":
        """The key that `text` writes down.

        Raises:
            NoteError: not a key of a known type, or the id is not that of the key.
        """
        parts = text.split("+", 2)
        if len(text) > MAX_KEY_CHARACTERS or len(parts) != 3:
            raise NoteError(
                "this is not a verification key; expected name+id+key as the log's operator publishes it"
            )
        name, key_id, encoded = parts
        blob = decode_base64(encoded, "the verification key")
        if not blob:
            raise NoteError("the verification key is empty; expected a type and 32 bytes")
        key = cls(name, blob[0], blob[1:])
        if key.key_id.hex() != key_id:
            raise NoteError(f"the key id {key_id!r} does not belong to this key; it was mistyped or altered")
        return key

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Whether `signature` (64 bytes) of `message` is by this key."""
        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


@dataclass(frozen=True)
class SigningKey:
    """An Ed25519 key that signs notes under a name. Its text form is a secret: `PRIVATE+KEY+name+id+...`."""

    name: str
    kind: int
    seed: bytes

    @classmethod
    def generate(cls, name: str, kind: int = ED25519) -> "SigningKey":
        """A new key from the system's randomness."""
        return cls(name, kind, Ed25519PrivateKey.generate().private_bytes_raw())

    @classmethod
    def parse(cls, text: str) -> "SigningKey":
        """The key that `text` writes down; NoteError where it is none. The message never shows the secret."""
        parts = text.strip().split("+", 4)
        if len(parts) != 5 or not text.startswith(_PRIVATE):
            raise NoteError("this is not a signing key; expected PRIVATE+KEY+name+id+key")
        _, _, name, key_id, encoded = parts
        blob = decode_base64(encoded, "the signing key")
        if len(blob) != 33:
            raise NoteError("the signing key has a wrong length; expected a type and 32 bytes")
        key = cls(name, blob[0], blob[1:])
        if key.verification_key.key_id.hex() != key_id:
            raise NoteError("the signing key's id does not belong to it; the file was altered")
        return key

    def __repr__(self) -> str:
        return f"SigningKey({self.name!r})"

    @property
    def verification_key(self) -> VerificationKey:
        private = Ed25519PrivateKey.from_private_bytes(self.seed)
        return VerificationKey(self.name, self.kind, private.public_key().public_bytes_raw())

    def secret_text(self) -> str:
        """The form that `parse` reads. Keep it in a file that only the operator can read."""
        blob = bytes([self.kind]) + self.seed
        return f"{_PRIVATE}{self.name}+{self.verification_key.key_id.hex()}+{_base64(blob)}"

    def sign(self, message: bytes) -> bytes:
        return Ed25519PrivateKey.from_private_bytes(self.seed).sign(message)


@dataclass(frozen=True)
class Signature:
    """One signature line of a note: name, key id, and what follows it."""

    name: str
    key_id: bytes
    payload: bytes

    def line(self) -> str:
        return f"— {self.name} {_base64(self.key_id + self.payload)}\n"


@dataclass(frozen=True)
class Note:
    """A signed note: its text, which ends in a newline, and its signatures in order."""

    text: str
    signatures: tuple[Signature, ...]

    def __str__(self) -> str:
        return self.text + "\n" + "".join(signature.line() for signature in self.signatures)

    @classmethod
    def parse(cls, data: str | bytes) -> "Note":
        """The note that `data` writes down, signatures unchecked.

        Raises:
            NoteError: not a note, or not in its one strict form.
        """
        if isinstance(data, bytes):
            try:
                data = data.decode()
            except UnicodeDecodeError:
                raise NoteError("the note is not UTF-8") from None
        if len(data) > MAX_NOTE_BYTES:
            raise NoteError(f"the note has {len(data)} characters; expected at most {MAX_NOTE_BYTES}")
        # C2SP forbids ASCII's control characters; those beyond, and marks that turn the direction of text, steer a
        # terminal as well.
        if not data.replace("\n", "").isprintable():
            raise NoteError("the note holds control characters")
        text, separator, rest = data.rpartition("\n\n")
        if not separator or not rest.endswith("\n") or not text:
            raise NoteError(
                "the note is truncated or no note: expected text, an empty line and signature lines"
            )
        lines = rest[:-1].split("\n")
        if len(lines) > MAX_SIGNATURES:
            raise NoteError(f"the note has {len(lines)} signatures; expected at most {MAX_SIGNATURES}")
        return cls(text + "\n", tuple(_parse_signature(line) for line in lines))

    def verify(self, key: VerificationKey) -> None:
        """Raises SignatureError unless `key` (an `ED25519` key) signed the text."""
        mine = [s for s in self.signatures if s.name == key.name and s.key_id == key.key_id]
        if not mine:
            names = ", ".join(sorted({s.name for s in self.signatures}))
            raise SignatureError(
                f"the note is not signed by {key.name}'s key; it carries signatures of {names}"
            )
        for signature in mine:
            if not key.verify(self.text.encode(), signature.payload):
                raise SignatureError(
                    f"the signature of {key.name} does not fit the note; one of both was altered"
                )

    def cosigned_by(self, key: VerificationKey) -> int | None:
        """The time (Unix seconds) at which witness `key` cosigned this checkpoint, or None."""
        for signature in self.signatures:
            if signature.name == key.name and signature.key_id == key.key_id and len(signature.payload) == 72:
                time = int.from_bytes(signature.payload[:8], "big")
                if key.verify(cosigned_message(self.text, time), signature.payload[8:]):
                    return time
        return None

    def with_signature(self, signature: Signature) -> "Note":
        return Note(self.text, (*self.signatures, signature))


@dataclass(frozen=True)
class Checkpoint:
    """A tree head: origin of the log, number of entries, root."""

    origin: str
    size: int
    root: bytes

    def text(self) -> str:
        return f"{self.origin}\n{self.size}\n{_base64(self.root)}\n"

    @classmethod
    def parse_text(cls, text: str) -> "Checkpoint":
        """The head that a note's text writes down. Extension lines are not used here, so they are refused.

        Raises:
            NoteError: not exactly three lines of origin, size and root.
        """
        lines = text.split("\n")
        if len(lines) != 4 or lines[3] or not lines[0]:
            raise NoteError("this is not a checkpoint: expected the three lines origin, size, root")
        if not _SIZE.fullmatch(lines[1]) or int(lines[1]) > MAX_SIZE:
            raise NoteError(f"the checkpoint's size is {lines[1]!r}; expected a decimal number")
        root = decode_base64(lines[2], "the checkpoint's root")
        if len(root) != HASH_BYTES:
            raise NoteError(f"the checkpoint's root has {len(root)} bytes; expected {HASH_BYTES}")
        return cls(lines[0], int(lines[1]), root)

    @classmethod
    def open(cls, note: str | bytes | Note, key: VerificationKey) -> "Checkpoint":
        """The head in `note`, once `key` is seen to have signed it.

        Raises:
            NoteError: not a checkpoint, or the head of another log.
            SignatureError: not signed by `key`.
        """
        parsed = note if isinstance(note, Note) else Note.parse(note)
        parsed.verify(key)
        checkpoint = cls.parse_text(parsed.text)
        if checkpoint.origin != key.name:
            raise NoteError(f"the checkpoint is of the log {checkpoint.origin!r}; the key is of {key.name!r}")
        return checkpoint


def sign_checkpoint(checkpoint: Checkpoint, key: SigningKey) -> Note:
    """The checkpoint as a note by the log's key."""
    text = checkpoint.text()
    return Note(text, (Signature(key.name, key.verification_key.key_id, key.sign(text.encode())),))


def cosign(text: str, key: SigningKey, time: int) -> Signature:
    """A witness's signature of a checkpoint's text at `time` (Unix seconds)."""
    payload = time.to_bytes(8, "big") + key.sign(cosigned_message(text, time))
    return Signature(key.name, key.verification_key.key_id, payload)


def cosigned_message(text: str, time: int) -> bytes:
    return f"cosignature/v1\ntime {time}\n{text}".encode()


def encode_hashes(hashes: Sequence[bytes]) -> str:
    """One base64 line a hash."""
    return "".join(_base64(value) + "\n" for value in hashes)


def decode_hash(line: str) -> bytes:
    """The hash of one base64 line; NoteError where it is none."""
    value = decode_base64(line, "a hash of the proof")
    if len(value) != HASH_BYTES:
        raise NoteError(f"a hash of the proof has {len(value)} bytes; expected {HASH_BYTES}")
    return value


def _parse_signature(line: str) -> Signature:
    match = _SIGNATURE.fullmatch(line)
    if match is None:
        raise NoteError(f"{line[:60]!r} is not a signature line; expected '— name base64'")
    blob = decode_base64(match[2], "the signature")
    if len(blob) < 5:
        raise NoteError(f"the signature of {match[1]} is too short")
    return Signature(match[1], blob[:4], blob[4:])


def _check_name(name: str) -> None:
    if not name or "+" in name or any(c.isspace() for c in name) or not name.isprintable():
        raise NoteError(f"{name!r:.300} is not a key name; expected text without spaces and plus signs")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def decode_base64(text: str, what: str) -> bytes:
    """Strict base64: the one encoding of its bytes, padding bits zero."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise NoteError(f"{what} is not base64") from None
    if _base64(data) != text:
        raise NoteError(f"{what} is not in the one strict base64 form")
    return data
