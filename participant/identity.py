"""Who a participant is: its key, its certificate, and the authority that it trusts.

A state folder holds them next to the journal:

    key.pem           ECDSA P-256, for TLS and for signing statements; never leaves this folder (mode 0600)
    certificate.pem   from the coordinator; its common name is the participant id
    authority.pem     the coordinator's certificate authority; two while one takes the other's place
    own_keys.txt      SHA-256 of every key that is this participant's own, to find those that are not
    journal.db        see `participant.journal`
    models/           models of rounds that are not finished
"""

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from participant.errors import CertificateExpiredError, ConfigurationError, DiskFullError, StateError

# X.509 takes a fifth of the time that importing this package may take; it comes with the first use.
if TYPE_CHECKING:
    from cryptography import x509

    from fedpeer.protocol.certificates import PrivateKey

KEY, CERTIFICATE, AUTHORITY, JOURNAL, MODELS, OWN_KEYS = (
    "key.pem", "certificate.pem", "authority.pem", "journal.db", "models", "own_keys.txt",
)  # fmt: skip

#: A certificate is renewed when less than this part of its life is left.
RENEW_WITHIN = 1 / 3


@dataclass(frozen=True)
class Credentials:
    """A participant's key with what it was issued.

    Attributes:
        participant_id: the certificate's common name.
        key: private.
        certificate: the participant's own.
        authority_pem: what signs the coordinator's certificate and this one; PEM, two while one replaces the other.
    """

    participant_id: str
    key: "PrivateKey"
    certificate: "x509.Certificate"
    certificate_pem: bytes
    authority_pem: bytes

    @property
    def key_pem(self) -> bytes:
        from fedpeer.protocol.certificates import private_key_pem

        return private_key_pem(self.key)

    @property
    def expires(self) -> datetime:
        return self.certificate.not_valid_after_utc

    @property
    def renewal_due(self) -> datetime:
        """When it is time to ask for the next certificate, UTC."""
        return self.expires - (self.expires - self.certificate.not_valid_before_utc) * RENEW_WITHIN

    def check_valid(self, now: datetime) -> None:
        """Raises CertificateExpiredError outside the certificate's time."""
        if now > self.expires:
            raise CertificateExpiredError(
                f"the certificate of {self.participant_id} expired on {self.expires:%Y-%m-%d}; "
                "ask the coordinator's operator for a new invitation and enrol again"
            )
        if now < self.certificate.not_valid_before_utc - timedelta(seconds=1):
            raise CertificateExpiredError(
                f"the certificate of {self.participant_id} is valid only from "
                f"{self.certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC; this machine's clock is late; set it"
            )


class IdentityFolder:
    """The folder that a participant keeps its key, certificate and journal in."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def journal(self) -> Path:
        return self.path / JOURNAL

    @property
    def models(self) -> Path:
        return self.path / MODELS

    def create(self) -> None:
        """Makes the folder, readable for its owner only; leaves one that exists as it is."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.models.mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise StateError(
                f"the state folder {self.path} cannot be made ({error.strerror}); choose another one"
            ) from error

    def key(self, *, create: bool = False) -> "PrivateKey":
        """The key, made on the first call with `create`."""
        from fedpeer.protocol.certificates import CertificateError, load_private_key, new_key, private_key_pem

        path = self.path / KEY
        if create and not path.exists():
            self.create()
            self.write(KEY, private_key_pem(new_key()), mode=0o600)
            self.own_keys()
        try:
            return load_private_key(self._read(KEY))
        except CertificateError as error:
            raise ConfigurationError(f"{path}: {error}; restore it from a backup or enrol again") from None

    def _enrolled_below(self) -> list[Path]:
        """State folders in this one, and in its folders, for a user who named the folder around them."""
        places = [*self.path.glob(f"*/{CERTIFICATE}"), *self.path.glob(f"*/*/{CERTIFICATE}")]
        return sorted(place.parent for place in places if (place.parent / KEY).is_file())[:3]

    def current_key(self) -> str:
        """SHA-256, in hexadecimal, of the public half of the key in use."""
        from mechanism.ledger.entries import public_key_bytes

        return hashlib.sha256(public_key_bytes(self.key().public_key())).hexdigest()

    def own_keys(self) -> set[str]:
        """SHA-256, in hexadecimal, of the public half of every key of this participant's; the one in use is one."""
        known = self._noted_keys()
        if (current := self.current_key()) not in known:
            self.add_own_key(current)
        return known | {current}

    def add_own_key(self, sha256: str) -> None:
        """Notes that a key is this participant's own."""
        lines = sorted(self._noted_keys() | {sha256})
        self.write(OWN_KEYS, "".join(f"{line}\n" for line in lines).encode())

    def _noted_keys(self) -> set[str]:
        try:
            return set((self.path / OWN_KEYS).read_text().split())
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise ConfigurationError(f"{self.path / OWN_KEYS} cannot be read ({error.strerror})") from None

    def enrolled_id(self) -> str | None:
        """Whose the folder is, by its certificate; None where there is none that can be read."""
        from fedpeer.protocol.certificates import CertificateError, certificate_name, load_certificate

        try:
            return certificate_name(load_certificate((self.path / CERTIFICATE).read_bytes()))
        except (CertificateError, OSError):
            return None

    def credentials(self) -> Credentials:
        """The key with its certificate.

        Raises:
            ConfigurationError: not enrolled yet, or files that do not fit together.
        """
        from fedpeer.protocol.certificates import (
            CertificateError,
            certificate_key,
            certificate_name,
            load_certificate,
        )

        if not (self.path / CERTIFICATE).exists():
            if below := self._enrolled_below():
                raise ConfigurationError(
                    f"there is no certificate in {self.path}; {' and '.join(map(str, below))} "
                    f"{'have' if len(below) > 1 else 'has'} one: name the state folder itself"
                )
            raise ConfigurationError(
                f"there is no certificate in {self.path}; enrol first: fedpeer participant enroll, "
                "with the invitation that the coordinator's operator gave you"
            )
        key, pem = self.key(), self._read(CERTIFICATE)
        try:
            certificate = load_certificate(pem)
            name, public = certificate_name(certificate), certificate_key(certificate)
        except CertificateError as error:
            raise ConfigurationError(f"{self.path / CERTIFICATE}: {error}; enrol again") from None
        if public.public_numbers() != key.public_key().public_numbers():
            raise ConfigurationError(
                f"key and certificate in {self.path} do not belong together; enrol again, or restore both"
            )
        authority = self._read(AUTHORITY)
        check_authority(authority, f"{self.path / AUTHORITY}", "enrol again or restore it")
        return Credentials(name, key, certificate, pem, authority)

    def save_enrolment(self, certificate_pem: bytes, authority_pem: bytes) -> Credentials:
        """Stores what the coordinator issued, the certificate last: with it the enrolment is complete."""
        self.write(AUTHORITY, authority_pem)
        self.write(CERTIFICATE, certificate_pem)
        return self.credentials()

    def write(self, name: str, content: bytes, mode: int = 0o644) -> None:
        """Replaces a file of the folder as a whole: after a crash there is the old or the new one."""
        target, fresh = self.path / name, self.path / (name + ".new")
        with stored(target):
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(target)

    def _read(self, name: str) -> bytes:
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            raise ConfigurationError(
                f"{self.path / name} cannot be read ({error.strerror}); enrol again or restore it"
            ) from None


def check_authority(pem: bytes, what: str, advice: str) -> None:
    """Raises ConfigurationError where `pem` is not a certificate to check the coordinator's by.

    Args:
        what: names the file in the message.
        advice: what to do.
    """
    from fedpeer.protocol.certificates import CertificateError, load_certificate

    try:
        load_certificate(pem)
    except CertificateError as error:
        raise ConfigurationError(
            f"{what} holds no certificate in PEM ({error}); expected the coordinator's authority.pem, which begins "
            f"with -----BEGIN CERTIFICATE-----: {advice}"
        ) from None


def storage_error(what: str, error: OSError) -> StateError:
    """The StateError for a failed write."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DiskFullError(f"{what}: the disk is full; make space and start again, nothing is lost")
    return StateError(f"{what} ({error.strerror or error}); check the folder's permissions and disk")


@contextmanager
def stored(path: Path) -> Iterator[None]:
    """Raises StateError where `path` cannot be written inside."""
    try:
        yield
    except OSError as error:
        raise storage_error(f"{path} cannot be written", error) from error


def utc_now() -> datetime:
    return datetime.now(UTC)
