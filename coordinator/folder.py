"""The coordinator's state folder: what `fedpeer coordinator init` makes and every other command needs.

    coordinator.toml     ServiceConfig
    authority.pem/.key   the certificate authority
    server.pem/.key      the server's certificate
    ledger.key           the log's signing key (Ed25519)
    coordinator.db       SQLite, unless the configuration names another database
    models/ spool/       model files, uploads on their way in
    doorbell.sock        while a service runs
    serving.json         while a service runs: the addresses that it is bound to

Keys are readable by their owner alone.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

from coordinator.config import SERVICE_FILE, ServiceConfig, read_config
from coordinator.errors import AlreadyServed, ConfigError, FolderError
from mechanism.ledger.errors import NoteError
from mechanism.ledger.note import SigningKey
from wire.certificates import (
    CertificateError,
    Identity,
    issue_server_certificate,
    load_certificate,
    load_private_key,
    make_authority,
)


@dataclass(frozen=True)
class StateFolder:
    """Paths and keys below one folder."""

    path: Path

    @property
    def models(self) -> Path:
        return self.path / "models"

    @property
    def spool(self) -> Path:
        return self.path / "spool"

    @property
    def doorbell(self) -> Path:
        return self.path / "doorbell.sock"

    @property
    def addresses(self) -> Path:
        """While a service runs: JSON with the addresses that it is bound to."""
        return self.path / "serving.json"

    @property
    def ledger_key(self) -> Path:
        return self.path / "ledger.key"

    def config(self) -> ServiceConfig:
        """Raises ConfigError; FolderError where `init` has not been run."""
        self._check_initialised()
        return read_config(self.path / SERVICE_FILE, ServiceConfig)

    def database_url(self, config: ServiceConfig) -> str:
        return config.storage.database or f"sqlite:///{self.path.absolute() / 'coordinator.db'}"

    def authority(self) -> Identity:
        """The certificate authority with its key."""
        return self._identity("authority")

    def server(self) -> Identity:
        """The server's certificate with its key."""
        return self._identity("server")

    def signing_key(self, name: str) -> SigningKey:
        """The log's signing key; made where there is none yet, under the coordinator's name."""
        self._check_initialised()
        if not self.ledger_key.exists():
            write_private(self.ledger_key, SigningKey.generate(name).secret_text().encode())
        try:
            return SigningKey.parse(self.ledger_key.read_text())
        except OSError as error:
            raise FolderError(f"{self.ledger_key} cannot be read: {error.strerror}") from None
        except NoteError as error:
            raise FolderError(f"{self.ledger_key}: {error}") from None

    def issue_server(self, hosts: Sequence[str]) -> Identity:
        """A new server certificate for `hosts`; a running service takes it over on SIGHUP."""
        identity = issue_server_certificate(self.authority(), hosts, datetime.now(UTC))
        self._write_identity("server", identity)
        return identity

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Held by the one process that serves from this folder.

        Raises:
            AlreadyServed: another process holds it.
        """
        with (self.path / "serve.lock").open("w") as file:
            try:
                flock(file, LOCK_EX | LOCK_NB)
            except OSError:
                raise AlreadyServed(
                    f"another coordinator already serves from {self.path}; stop it first"
                ) from None
            yield

    def _check_initialised(self) -> None:
        if not (self.path / SERVICE_FILE).is_file():
            raise FolderError(
                f"{self.path} is no coordinator's folder: it has no {SERVICE_FILE}. "
                f"Make one with: fedpeer coordinator init {self.path}"
            )

    def _identity(self, name: str) -> Identity:
        self._check_initialised()
        key, certificate = self.path / f"{name}.key", self.path / f"{name}.pem"
        try:
            return Identity(load_private_key(key.read_bytes()), load_certificate(certificate.read_bytes()))
        except OSError as error:
            raise FolderError(f"{error.filename} cannot be read: {error.strerror}") from None
        except CertificateError as error:
            raise FolderError(f"{key} or {certificate}: {error}") from None

    def _write_identity(self, name: str, identity: Identity) -> None:
        write_private(self.path / f"{name}.key", identity.key_pem)
        (self.path / f"{name}.pem").write_bytes(identity.certificate_pem)


def initialise(path: Path, config_text: str, name: str, hosts: Sequence[str]) -> StateFolder:
    """Makes a state folder with an authority and a server certificate for `hosts`.

    Raises:
        FolderError: there is one already, or the folder cannot be written.
        FieldError: a host that is neither a DNS name nor an IP address; nothing has been written.
    """
    folder = StateFolder(path)
    if (path / SERVICE_FILE).exists():
        raise FolderError(f"{path} is a coordinator's folder already; its keys are not overwritten")
    now = datetime.now(UTC)
    authority = make_authority(f"{name} authority", now)
    server = issue_server_certificate(authority, hosts, now)
    try:
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o700)
        folder._write_identity("authority", authority)
        folder._write_identity("server", server)
        (path / SERVICE_FILE).write_text(config_text)
    except OSError as error:
        raise FolderError(f"{path} cannot be written: {error.strerror}") from None
    try:
        folder.config()
    except ConfigError:
        (path / SERVICE_FILE).unlink()
        raise
    return folder


def write_private(path: Path, content: bytes) -> None:
    """Writes a file that only its owner can read; it is never readable by others in between."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
