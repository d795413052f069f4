"""What the coordinator serves and trusts: the server's certificate and the authorities, as they stand in its folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509

from coordinator.config import ServerSection
from coordinator.folder import StateFolder
from fedpeer.protocol.certificates import Identity, certificates_pem
from fedpeer.protocol.limits import AUTHORITY_WARNING, SERVER_CERTIFICATE_WARNING

#: What the certificates are called in metrics and in `status`.
SERVER, AUTHORITY, OLD_AUTHORITY = "server", "authority", "old_authority"


@dataclass(frozen=True)
class Certificates:
    """One reading of the folder.

    Attributes:
        server: key and certificate.
        authorities: the one that issues, then the one whose place it takes, where there is one.
    """

    server: Identity
    authorities: Sequence[x509.Certificate]

    @property
    def pem(self) -> bytes:
        """All of them, by which one reading is compared with another."""
        return self.server.certificate_pem + self.authorities_pem

    @property
    def authorities_pem(self) -> bytes:
        return certificates_pem(self.authorities)

    def ends(self) -> dict[str, datetime]:
        """When each expires, UTC."""
        named = dict(zip((AUTHORITY, OLD_AUTHORITY), self.authorities, strict=False))
        return {name: c.not_valid_after_utc for name, c in {SERVER: self.server.certificate, **named}.items()}

    def warnings(self, now: datetime) -> dict[str, str]:
        """A sentence for each that expires soon, by its name, with the command that renews it."""
        remedies = {
            SERVER: (SERVER_CERTIFICATE_WARNING, "renew it: fedpeer coordinator certificate renew"),
            AUTHORITY: (AUTHORITY_WARNING, "replace it: fedpeer coordinator authority rotate"),
            OLD_AUTHORITY: (timedelta(), "end it: fedpeer coordinator authority end"),
        }
        found = {}
        for name, end in self.ends().items():
            notice, remedy = remedies[name]
            if end - now < notice:
                verb = "expires" if end > now else "expired"
                found[name] = f"the {name.replace('_', ' ')} certificate {verb} on {end:%Y-%m-%d}; {remedy}"
        return found


def read_certificates(folder: StateFolder, section: ServerSection, now: datetime) -> Certificates:
    """The certificates in the folder, checked for what participants would refuse.

    Raises:
        FolderError: one cannot be read or used. Without TLS only what must be there to issue certificates is checked.
    """
    authorities = folder.authorities()
    folder.authority()
    server = folder.server() if section.insecure else folder.checked_server(section.hosts, now)
    return Certificates(server, authorities)
