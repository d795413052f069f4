"""The coordinator's state folder: what `fedpeer coordinator init` makes and every other command needs.

    coordinator.toml     ServiceConfig
    authority.key        the certificate authority's key
    authority.pem        its certificate, and behind it, while it takes an older one's place, that one's
    authority.old.key    the older one's key, so long: it still issues the server's certificate
    server.pem/.key      the server's certificate
    ledger.key           the log's signing key (Ed25519)
    ledger.key.next      the one that is about to follow it, while it is changed
    keys.pending         files that are being replaced together, until all of them are
    keys.lock            held by whoever changes keys
    coordinator.db       SQLite, unless the configuration names another database
    models/ spool/       model files, uploads on their way in
    doorbell.sock        while a service runs
    serving.json         while a service runs: the addresses that it is bound to

Keys are readable by their owner alone. Files that belong together change together: `StateFolder.replace` writes all
of them into `keys.pending` first, and whoever opens the folder after a crash finishes what that says.
"""

import base64
import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

from cryptography import x509

from coordinator.config import SERVICE_FILE, ServiceConfig, read_config
from coordinator.errors import AlreadyServed, ConfigError, FolderError
from fedpeer.protocol.certificates import (
    CertificateError,
    Identity,
    certificate_hosts,
    certificates_pem,
    check_pair,
    check_server,
    issue_server_certificate,
    load_certificates,
    load_private_key,
    make_authority,
)
from mechanism.ledger.errors import NoteError
from mechanism.ledger.note import SigningKey

#: The key of the authority that is being replaced.
OLD_AUTHORITY_KEY = "authority.old.key"


class _Held(threading.local):
    """The folders whose keys the thread is changing."""

    paths: frozenset[Path] = frozenset()


_held = _Held()


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

    def authorities(self) -> list[x509.Certificate]:
        """What participants' certificates and the server's are checked by: the authority that issues, and the older one
        whose place it takes, where there is one."""
        self._check_initialised()
        path = self.path / "authority.pem"
        try:
            return load_certificates(path.read_bytes())
        except OSError as error:
            raise FolderError(f"{path} cannot be read: {error.strerror}") from None
        except CertificateError as error:
            raise FolderError(f"{path}: {error}") from None

    def older_authority(self) -> Identity | None:
        """The authority that is being replaced, with its key; None at other times."""
        path, older = self.path / OLD_AUTHORITY_KEY, self.authorities()[1:]
        if not older:
            return None
        try:
            identity = Identity(load_private_key(path.read_bytes()), older[0])
            check_pair(identity)
        except OSError as error:
            raise FolderError(f"{path} cannot be read: {error.strerror}") from None
        except CertificateError as error:
            raise FolderError(f"{path}: {error}") from None
        return identity

    def server(self) -> Identity:
        """The server's certificate with its key."""
        return self._identity("server")

    def checked_server(self, hosts: Sequence[str], now: datetime) -> Identity:
        """The server's certificate, which participants will accept.

        Args:
            hosts: as `fedpeer.protocol.certificates.check_server`.

        Raises:
            FolderError: it cannot be read or used; the sentence says what is wrong and what to do.
        """
        identity, authorities = self.server(), self.authorities()
        try:
            check_server(identity, authorities, hosts, now)
        except CertificateError as error:
            raise FolderError(
                f"{self.path / 'server.pem'} cannot be served: {error}; put the right server.pem and server.key there, "
                "or make new ones with: fedpeer coordinator certificate renew"
            ) from None
        return identity

    def signing_key(self, name: str) -> SigningKey:
        """The log's signing key; made where there is none yet, under the coordinator's name."""
        self._check_initialised()
        if not self.ledger_key.exists():
            write_private(self.ledger_key, SigningKey.generate(name).secret_text().encode())
        key = self._signing_key(self.ledger_key)
        assert key is not None  # made above
        return key

    def changed_signing_key(self, verification_key: str) -> SigningKey | None:
        """The signing key that belongs to the key that the log turns out to have; None where it is not here.

        Where that is the one that was about to follow, a change has been recorded in the log and not finished here: it
        takes its place now.
        """
        following = self._signing_key(self.next_ledger_key)
        if following is not None and str(following.verification_key) == verification_key:
            with contextlib.suppress(FileNotFoundError):  # another process has just done it
                self.next_ledger_key.replace(self.ledger_key)
            _sync(self.path)
        return self._signing_key(self.ledger_key)

    def prepare_signing_key(self, name: str) -> SigningKey:
        """A new key for the log, durable beside the present one. Hold `changing_keys`."""
        key = SigningKey.generate(name)
        write_private(self.next_ledger_key, key.secret_text().encode())
        return key

    def _signing_key(self, path: Path) -> SigningKey | None:
        try:
            return SigningKey.parse(path.read_text())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise FolderError(f"{path} cannot be read: {error.strerror}") from None
        except NoteError as error:
            raise FolderError(f"{path}: {error}") from None

    def issue_server(self, hosts: Sequence[str] = ()) -> Identity:
        """A new server certificate for `hosts`, or those of the present one; a running service takes it over when it
        reads its certificates again.

        While authorities change places the older one issues it, which everybody knows.
        """
        with self.changing_keys():
            hosts = hosts or self._present_hosts()
            identity = issue_server_certificate(
                self.older_authority() or self.authority(), hosts, datetime.now(UTC)
            )
            self._write_identity("server", identity)
        return identity

    def begin_authority(self, name: str) -> Identity:
        """A new authority, which issues participants' certificates from here on. The old one's count as before, and it
        still signs the server's, until `end_authority`.

        Raises:
            FolderError: one is being replaced already.
        """
        with self.changing_keys():
            if self.older_authority() is not None:
                raise FolderError(
                    "an authority is being replaced already; end the old one first: fedpeer coordinator authority end"
                )
            old = self.authority()
            made = make_authority(f"{name} authority", datetime.now(UTC))
            self.replace(
                {
                    OLD_AUTHORITY_KEY: old.key_pem,
                    "authority.key": made.key_pem,
                    "authority.pem": certificates_pem([made.certificate, old.certificate]),
                }
            )
        return made

    def _present_hosts(self) -> list[str]:
        try:
            return certificate_hosts(load_certificates((self.path / "server.pem").read_bytes())[0])
        except (OSError, CertificateError):
            raise FolderError(
                f"{self.path / 'server.pem'} does not say which names it is for; name them by --host"
            ) from None

    def end_authority(self, hosts: Sequence[str] = ()) -> Identity:
        """Ends the older authority: its certificates no longer count, and the server gets one of the new.

        Returns:
            the server's new certificate.

        Raises:
            FolderError: none is being replaced.
        """
        with self.changing_keys():
            if self.older_authority() is None:
                raise FolderError(
                    "no authority is being replaced; begin with: fedpeer coordinator authority rotate"
                )
            authority, hosts = self.authority(), hosts or self._present_hosts()
            server = issue_server_certificate(authority, hosts, datetime.now(UTC))
            self.replace(
                {
                    **_identity_files("server", server),
                    "authority.pem": authority.certificate_pem,
                    OLD_AUTHORITY_KEY: None,
                }
            )
        return server

    @contextmanager
    def changing_keys(self) -> Iterator[None]:
        """Held by the one process that changes keys; what an earlier one left unfinished is finished first."""
        if self.path in _held.paths:  # by this thread
            yield
            return
        try:
            file = (self.path / "keys.lock").open("w")
        except OSError as error:
            raise FolderError(f"{self.path} cannot be written: {error.strerror}") from None
        with file:
            flock(file, LOCK_EX)
            _held.paths = _held.paths | {self.path}
            try:
                self._finish_replacing()
                yield
            finally:
                _held.paths = _held.paths - {self.path}

    def replace(self, files: Mapping[str, bytes | None]) -> None:
        """Replaces files of the folder, all of them or none, whenever the process dies. Hold `changing_keys`.

        Args:
            files: content by name; None: the file goes.
        """
        content = {n: None if c is None else base64.b64encode(c).decode() for n, c in files.items()}
        try:
            write_private(self._pending, json.dumps(content).encode())
        except OSError as error:
            raise FolderError(
                f"{self.path} cannot be written: {error.strerror}; nothing was changed"
            ) from None
        self._finish_replacing()

    def _finish_replacing(self) -> None:
        if not self._pending.exists():
            return
        try:
            content: dict[str, str | None] = json.loads(self._pending.read_text())
            for name, text in content.items():
                if text is None:
                    (self.path / name).unlink(missing_ok=True)
                else:
                    mode = 0o644 if name.endswith(".pem") else 0o600
                    _write_file(self.path / name, base64.b64decode(text), mode)
            _sync(self.path)
            self._pending.unlink()
            _sync(self.path)
        except OSError as error:
            raise FolderError(
                f"{self.path} cannot be written: {error.strerror}; what {self._pending.name} says is done when it can"
            ) from None
        except ValueError:
            raise FolderError(f"{self._pending} is damaged; restore the folder from a backup") from None

    @property
    def _pending(self) -> Path:
        return self.path / "keys.pending"

    @property
    def next_ledger_key(self) -> Path:
        return self.path / "ledger.key.next"

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
        if self._pending.exists():  # of a process that died, or that is at it
            with self.changing_keys():
                pass

    def _identity(self, name: str) -> Identity:
        self._check_initialised()
        try:
            return self._read_identity(name)
        except FolderError:
            # Between the reading of the one and of the other both may have been replaced: once more, behind that.
            with self.changing_keys():
                return self._read_identity(name)

    def _write_identity(self, name: str, identity: Identity) -> None:
        self.replace(_identity_files(name, identity))

    def _read_identity(self, name: str) -> Identity:
        key, certificate = self.path / f"{name}.key", self.path / f"{name}.pem"
        try:
            private = load_private_key(key.read_bytes())
        except OSError as error:
            raise FolderError(f"{key} cannot be read: {error.strerror}") from None
        except CertificateError as error:
            raise FolderError(f"{key}: {error}") from None
        try:
            identity = Identity(private, load_certificates(certificate.read_bytes())[0])
            check_pair(identity)
        except OSError as error:
            raise FolderError(f"{certificate} cannot be read: {error.strerror}") from None
        except CertificateError as error:
            raise FolderError(f"{certificate}: {error} ({key})") from None
        return identity


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
    """Writes a file that only its owner can read, durably; it is never readable by others in between."""
    _write_file(path, content, 0o600)
    _sync(path.parent)


def _identity_files(name: str, identity: Identity) -> dict[str, bytes]:
    return {f"{name}.key": identity.key_pem, f"{name}.pem": identity.certificate_pem}


def _write_file(path: Path, content: bytes, mode: int) -> None:
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _sync(folder: Path) -> None:
    """Makes the folder's names durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
