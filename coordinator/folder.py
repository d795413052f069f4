"""The coordinator's state folder: what `fedpeer coordinator init` makes and every other command needs.

    coordinator.toml     ServiceConfig
    authority.pem/.key   the certificate authority
    server.pem/.key      the server's certificate
    ledger.key           the log's signing key (Ed25519)
    coordinator.db       SQLite, unless the configuration names another database
    models/ spool/       model files, uploads on their way in
    doorbell.sock        while a service runs
    serving.json         while a service runs: the addresses that it is bound to

`init` makes all that a coordinator is, aside, and puts it in its place when it is whole; nothing is ever made anew
in the place of what has been lost. The folder and all that is secret is for its owner alone: keys, and the
configuration, which may name a database's password.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

from coordinator.config import SERVICE_FILE, ServiceConfig, parse_config, read_config
from coordinator.errors import AlreadyServed, FolderError
from coordinator.staging import staged, sync
from coordinator.storage.database import Database, parse_url, shown, sqlite_file
from coordinator.storage.errors import DatabaseUnreachable
from coordinator.storage.lease import Lease
from coordinator.storage.ledger import SignedLog
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
from wire.terminal import counted

#: The files that make a folder this coordinator's, as patterns, with their modes: what a backup keeps and a restore
#: puts back, and what `init` never touches where it is there.
KEPT_FILES = {SERVICE_FILE: 0o600, "*.key": 0o600, "*.pem": 0o644}

#: What else a coordinator makes in its folder.
_MADE = ("coordinator.db*", "models", "spool", "serve.lock", "serving.json", "doorbell.sock")


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
        """Its database; a relative path is taken from this folder.

        Raises:
            DatabaseUnreachable: the configuration names none that can be used.
        """
        url = parse_url(config.storage.database or "sqlite:///coordinator.db")
        if url.get_backend_name() == "sqlite":
            path = sqlite_file(url)
            if path is None:
                raise DatabaseUnreachable(
                    "storage.database is in memory; a market's database is kept: name a file"
                )
            if ".." in path.parts:
                raise DatabaseUnreachable(
                    f"storage.database is {shown(url)}; a relative path stays in the state folder: name an absolute one"
                )
            url = url.set(database=str(self.path.absolute() / path))
        return url.render_as_string(hide_password=False)

    def kept_files(self) -> dict[str, int]:
        """Names and modes of the files that are there of those that a backup keeps."""
        return {
            path.name: mode
            for pattern, mode in KEPT_FILES.items()
            for path in sorted(self.path.glob(pattern))
            if path.is_file()
        }

    def found(self) -> list[str]:
        """Names of whatever is there that a coordinator makes."""
        patterns = (*KEPT_FILES, *_MADE)
        return sorted({path.name for pattern in patterns for path in self.path.glob(pattern)})

    def authority(self) -> Identity:
        """The certificate authority with its key."""
        return self._identity("authority")

    def server(self) -> Identity:
        """The server's certificate with its key."""
        return self._identity("server")

    def signing_key(self) -> SigningKey:
        """The log's signing key. Raises FolderError where it is missing or damaged."""
        self._check_initialised()
        try:
            return SigningKey.parse(self.ledger_key.read_text())
        except FileNotFoundError:
            raise FolderError(
                f"{self.ledger_key} is missing: the log cannot go on under its name without it; restore it from a "
                "backup"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise FolderError(f"{self.ledger_key} cannot be read: {why}") from None
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
    """Makes a state folder with an authority, a server certificate for `hosts`, a log's key and an empty database.

    Raises:
        FolderError: a part of a coordinator is there already, or the folder cannot be written.
        ConfigError: the configuration cannot be used.
        FieldError: a host that is neither a DNS name nor an IP address.
        StorageError: the database cannot be reached, or holds something. In every case nothing is left behind.
    """
    folder = StateFolder(path)
    check_free(folder)
    config = parse_config(config_text, ServiceConfig, path / SERVICE_FILE)
    now = datetime.now(UTC)
    authority = make_authority(f"{name} authority", now)
    server = issue_server_certificate(authority, hosts, now)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as undo, assembling(folder) as made:
            made._write_identity("authority", authority)
            made._write_identity("server", server)
            write_private(made.ledger_key, SigningKey.generate(config.name).secret_text().encode())
            write_private(made.path / SERVICE_FILE, config_text.encode())
            database = undo.enter_context(new_database(made.database_url(config)))
            database.migrate()
            SignedLog(database, made.signing_key()).sign_head()
            database.close()
    except OSError as error:
        raise FolderError(f"{error.filename or path} cannot be written: {error.strerror or error}") from None
    return folder


def check_free(folder: StateFolder) -> None:
    """Raises FolderError where the folder holds any part of a coordinator, or is no folder."""
    if folder.path.exists() and not folder.path.is_dir():
        raise FolderError(f"{folder.path} is a file; name a folder")
    found = folder.found()
    if SERVICE_FILE in found and set(found) >= {"authority.key", "ledger.key"}:
        raise FolderError(
            f"{folder.path} is a coordinator's folder already, with {', '.join(found)}; nothing was overwritten"
        )
    if found:
        raise FolderError(
            f"{folder.path} holds parts of a coordinator, {', '.join(found)}; nothing was overwritten. Name another "
            "folder, or restore what is missing from a backup"
        )


@contextmanager
def assembling(folder: StateFolder) -> Iterator[StateFolder]:
    """A folder aside, which takes the place of `folder` at the end of the block, or is gone where that raises.

    Into a folder that is there (a volume that is mounted, say) its parts move one by one, the configuration last,
    without which it is nobody's.

    Raises:
        FolderError: somebody else is making it.
        OSError: it cannot be written.
    """
    target = folder.path.resolve()
    inside = target.is_dir()
    with staged(target / "coordinator" if inside else target) as scratch:
        made = StateFolder(scratch / "made")
        made.path.mkdir(mode=0o700)
        yield made
        for found in (made.path, *made.path.rglob("*")):
            sync(found)
        check_free(folder)
        if inside:
            target.chmod(0o700)
            _move_in(made.path, target)
        else:
            made.path.rename(target)
    sync(target if inside else target.parent)


def _move_in(made: Path, target: Path) -> None:
    moved = []
    try:
        for part in sorted(made.iterdir(), key=lambda part: part.name == SERVICE_FILE):
            if os.path.lexists(target / part.name):
                raise FolderError(f"{target / part.name} exists already; nothing was overwritten")
            part.rename(target / part.name)
            moved.append(part)
    except BaseException:
        for part in moved:
            (target / part.name).rename(part)
        raise


@contextmanager
def new_database(url: str) -> Iterator[Database]:
    """A database that holds nothing yet, for nobody else during the block; emptied again where the block raises.

    Raises:
        FolderError: it holds something; nothing was changed.
        LeaseTaken: somebody else serves it, or is filling it.
        StorageError: it cannot be reached.
    """
    database = Database(url)
    lease = Lease(database.url)
    try:
        path = sqlite_file(database.url)
        if path is not None:
            _reserve(path)
        else:
            lease.take(wait_s=0)
            if tables := database.tables():
                raise FolderError(
                    f"the database {database.display} holds {counted(len(tables), 'table')}; nothing was changed. Name "
                    "an empty one, with --database"
                )
        try:
            yield database
        except BaseException:
            database.erase()
            raise
    finally:
        database.close()
        lease.release()


def _reserve(path: Path) -> None:
    """An empty file in the place of a SQLite database, of which nothing was there."""
    for beside in (Path(f"{path}{end}") for end in ("-wal", "-shm", "-journal")):
        if os.path.lexists(beside):
            raise FolderError(
                f"{beside} exists already; nothing was changed. Move it away, or name another database"
            )
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        raise FolderError(
            f"{path} exists already; nothing was changed. Move it away, or name another database"
        ) from None
    except OSError as error:
        raise DatabaseUnreachable(f"the database file {path} cannot be made: {error.strerror}") from None


def write_private(path: Path, content: bytes) -> None:
    """Writes a file that only its owner can read; it is never readable by others in between."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
