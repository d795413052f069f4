"""Who signs in by the certificate that its browser shows: a participant by its own, others by one made here.

A certificate of an operator, auditor or learner counts for as long as its mark stands in the state folder:

    console/certificates/<SHA-256 of the certificate>    whose it is, and when it ends; take it away, and it is over

The server asks each browser for a certificate of the market's authorities, and takes those who have none.
"""

import asyncio
import hashlib
import json
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from uvicorn.protocols.http.h11_impl import H11Protocol

from coordinator.folder import StateFolder, write_private
from coordinator.identity import Roster
from fedpeer.console.errors import ConsoleError
from fedpeer.console.reading import Reader
from fedpeer.console.sessions import Holder, Role, Visitor, key_mark
from fedpeer.protocol.certificates import (
    certificate_key,
    issue_client_certificate,
    issued_by_one_of,
)
from fedpeer.protocol.console_link import LinkError
from fedpeer.protocol.errors import Refusal

#: Where a request's scope has the certificate, DER, that its connection was opened with.
SCOPE_KEY = "client_certificate"


class CertificateProtocol(H11Protocol):
    """HTTP over a connection whose client may have shown a certificate: `state` of each request's scope has it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        shown = None if tls is None else tls.getpeercert(binary_form=True)
        self.app_state = {**self.app_state, SCOPE_KEY: shown}


class ClientCertificates:
    """Reads certificates that TLS has checked: that an authority of the market has issued them, and whose key it is."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def name(self, der: bytes | None) -> str:
        """Whom a certificate would sign in; "" where nobody."""
        try:
            found = self.visitor(der)
        except LinkError:
            return ""
        return found.called

    def visitor(self, der: bytes | None) -> Visitor:
        """Whom it signs in.

        Raises:
            LinkError: nobody; the sentence says why.
        """
        if der is None:
            raise LinkError("the browser has shown no certificate of this market")
        certificate, folder = x509.load_der_x509_certificate(der), self._reader.folder
        authorities, now = folder.authorities(), self._reader.now()
        if not issued_by_one_of(certificate, authorities):
            raise LinkError("this certificate is of an authority that has ended here")
        mark = hashlib.sha256(der).hexdigest()
        if (holder := holder_of(folder.console, mark, now)) is not None:
            return Visitor(*holder, key=mark, session=secrets.token_hex(16))
        roster = Roster()
        roster.trust(authorities)
        with self._reader.transaction() as t:
            roster.load(t.market.participants(), t.market.certificates())
        try:
            caller = roster.caller(certificate.public_bytes(serialization.Encoding.PEM), now)
        except Refusal as refusal:
            raise LinkError(refusal.message) from None
        key = key_mark(certificate_key(certificate))
        return Visitor(Role.PARTICIPANT, caller.participant_id, key, secrets.token_hex(16))


def holder_of(console: Path, mark: str, now: float) -> Holder | None:
    """Role and name of the certificate with this mark; None where it has none, or no longer."""
    try:
        record: dict[str, Any] = json.loads((console / "certificates" / mark).read_text())
    except (OSError, ValueError):
        return None
    return (Role(record["role"]), record["name"]) if record["expires"] > now else None


def issue(folder: StateFolder, target: Path, role: Role, days: int, name: str = "") -> tuple[str, str]:
    """Makes a certificate for an operator, auditor or the learner `name` as a PKCS#12 file, which browsers and systems
    import.

    Returns:
        the file's password, and the certificate's mark.

    Raises:
        ConsoleError: the file is there already, or cannot be written.
    """
    now, lifetime = datetime.now(UTC), timedelta(days=days)
    made = issue_client_certificate(folder.authority(), f"console {role} {name}".rstrip(), now, lifetime)
    mark = hashlib.sha256(made.certificate.public_bytes(serialization.Encoding.DER)).hexdigest()
    password = secrets.token_urlsafe(12)
    content = pkcs12.serialize_key_and_certificates(
        f"{folder.config().name} {role} {name}".rstrip().encode(),
        made.key,
        made.certificate,
        folder.authorities(),
        serialization.BestAvailableEncryption(password.encode()),
    )
    marks = folder.console / "certificates"
    try:
        if target.exists():
            raise ConsoleError(f"{target} is there already; name another file")
        for place in (folder.console, marks):
            place.mkdir(mode=0o700, exist_ok=True)
        record = {"role": role, "name": name, "expires": (now + lifetime).timestamp()}
        write_private(marks / mark, json.dumps(record).encode())
        write_private(target, content)
    except OSError as error:
        raise ConsoleError(f"{error.filename or target} cannot be written: {error.strerror}") from None
    return password, mark
