"""How a participant signs in to a market's web console: a link that it makes with its key.

    token = base64url(record) "." base64url(signature)

The record is canonical JSON with four keys: `console`, the host and port that the link leads to; `expires`, seconds
since the epoch; `nonce`, so that it works once; `participant_id`. The signature is ECDSA with SHA-256 over the words
"fedpeer console sign-in", a line feed, and the record: no statement of the protocol begins so.
"""

import binascii
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fedpeer.protocol.certificates import PrivateKey, PublicKey
from mechanism.canonical import canonical_bytes, parse_canonical
from mechanism.errors import MechanismError

#: Where a console listens where nobody says otherwise: for its machine alone.
CONSOLE_ADDRESS = "127.0.0.1:7445"

#: Seconds for which a link works.
LINK_SECONDS = 600

#: Seconds by which the two clocks may differ.
_SKEW_SECONDS = 60

#: Characters of a token: a name has 64, a host 253.
MAX_TOKEN = 2_000

_CONTEXT = b"fedpeer console sign-in\n"


class LinkError(ValueError):
    """A link that does not sign anybody in; the sentence says why and what to do."""


@dataclass(frozen=True)
class SignIn:
    """Who signs in where, until when.

    Attributes:
        console: host:port of the console, in lower case.
        expires: seconds since the epoch.
        nonce: 32 hexadecimal digits.
    """

    console: str
    expires: int
    nonce: str
    participant_id: str


def sign_in_token(participant_id: str, key: PrivateKey, console: str, now: float) -> str:
    """A token for one sign-in at the console at `console`, host:port."""
    record = SignIn(console.lower(), int(now) + LINK_SECONDS, secrets.token_hex(16), participant_id)
    data = canonical_bytes(asdict(record))
    return f"{_text(data)}.{_text(key.sign(_CONTEXT + data, ec.ECDSA(hashes.SHA256())))}"


def read_token(token: str, console: str, now: float, key_of: Callable[[str], PublicKey | None]) -> SignIn:
    """What a token says, once its signature holds.

    Args:
        console: host:port under which the console was called.
        key_of: the key that counts for a participant now; None where there is none.

    Raises:
        LinkError: it is no token, of another console, expired, or not signed by that participant's key.
    """
    try:
        if len(token) > MAX_TOKEN:
            raise ValueError
        data, signature = (urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in token.split("."))
        fields = parse_canonical(data)
        record = SignIn(**fields)
        if [type(value) for value in asdict(record).values()] != [str, int, str, str]:
            raise ValueError
    except (MechanismError, ValueError, TypeError, binascii.Error):
        raise LinkError(
            "this is not a link of `fedpeer participant console`; make a new one and copy all of it"
        ) from None
    key = key_of(record.participant_id)
    if key is None:
        raise LinkError("no key of that name counts here; enrol in this market first")
    try:
        key.verify(signature, _CONTEXT + data, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise LinkError(
            "the link is not signed by the key that is enrolled under that name; make it from the state folder that "
            "has enrolled last"
        ) from None
    if record.console != console.lower():
        raise LinkError(f"the link is for the console at {record.console:.300}; make one for {console:.300}")
    if not now - _SKEW_SECONDS < record.expires < now + LINK_SECONDS + _SKEW_SECONDS:
        raise LinkError(
            f"the link has expired, or one of the two clocks is wrong: it works for {LINK_SECONDS // 60} minutes; make "
            "a new one"
        )
    return record


def console_place(url: str) -> tuple[str, str] | None:
    """Scheme with host and port of a console's URL, and host and port alone, as a browser sends them; None where it is
    none."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        return None
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    usual = {"http": 80, "https": 443}[parts.scheme]
    host = name if port in (None, usual) else f"{name}:{port}"
    return f"{parts.scheme}://{host}", host


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")
