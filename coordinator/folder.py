"""The coordinator's state folder: what `fedpeer coordinator init` makes and every other command needs.

    coordinator.toml     ServiceConfig
    authority.key        the certificate authority's key
    authority.pem        its certificate, followed by an older one's while it takes that one's place
    authority.old.key    the older one's key until then: it still issues the server's certificate
    server.pem/.key      the server's certificate
    workers.pem/.key     the authority of workers on other machines, where there are any
    ledger.key           the log's signing key (Ed25519)
    ledger.key.next      the one that is about to follow it, while it is changed
    keys.pending         files that are being replaced together, until all of them are
    keys.lock            held while keys are changed
    coordinator.db       SQLite, unless the configuration names another database
    models/ spool/       model files, uploads on their way in
    control.sock        while a service runs
    serving.json         while a service runs: the addresses that it is bound to
    console/             the web console's key and its one-time links

`init` makes all that a coordinator is in another place, and moves it when it is whole; nothing that was lost is
ever made again by itself. The folder and all that is secret is for its owner alone: keys, and the
configuration, which may name a database's password. Files that belong together change together: `StateFolder.replace`
writes all of them into `keys.pending` first, and the next to open the folder after a crash finishes what that says.
"""

import base64
import contextlib
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from pathlib import Path
from typing import IO, TypeVar
from uuid import uuid4

from cryptography import x509

from coordinator.config import SERVICE_FILE, ServiceConfig, parse_config, read_config
from coordinator.errors import AlreadyServed, FolderError
from coordinator.staging import lock_refused, staged, sync, writing
from coordinator.storage.lease import Lease
from coordinator.storage.schema import erase, migrate
from fedpeer.audit.input_files import MAX_PEM_BYTES, SourceError, read_bytes
from fedpeer.audit.sql.database import Database, parse_url, shown, sqlite_file
from fedpeer.audit.sql.errors import DatabaseUnreachable
from fedpeer.audit.sql.ledger_store import SignedLog
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
from fedpeer.terminal import counted
from mechanism.ledger.errors import NoteError
from mechanism.ledger.note import SigningKey

Loaded = TypeVar("Loaded")

#: The files that make a folder this coordinator's, as patterns, with their modes: what a backup keeps and a restore
#: puts back, and what `init` never touches where it is there.
KEPT_FILES = {SERVICE_FILE: 0o600, "*.key": 0o600, "*.pem": 0o644}

#: What else a coordinator makes in its folder.
_MADE = (
    "coordinator.db*", "models", "spool", "serve.lock", "serve.mark", "serving.json", "control.sock", "ledger.key.next",
    "keys.pending", "keys.lock", "console",
)  # fmt: skip

#: Seconds for which one that starts waits for another that starts or ends at the same instant, and between two looks.
_LOCK_SECONDS, _LOCK_PAUSE_SECONDS = 2.0, 0.02

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
    def control_socket(self) -> Path:
        return self.path / "control.sock"

    @property
    def _mark(self) -> Path:
        return self.path / "serve.mark"

    @property
    def addresses(self) -> Path:
        """While a service runs: JSON with the addresses that it is bound to; of several machines, the last one's."""
        return self.path / "serving.json"

    def write_addresses(self, addresses: Mapping[str, str]) -> None:
        """Says to commands what the service is bound to. Machines that start at one instant all write, one is the last.

        Raises:
            FolderError: it cannot be written.
        """
        with writing(self.addresses, "; nothing was changed"):
            _write_file(self.addresses, json.dumps(addresses).encode(), 0o600, f"{uuid4().hex}.new")

    @property
    def console(self) -> Path:
        """What the web console keeps: the key of its sessions, links that were not used yet, where it serves."""
        return self.path / "console"

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

    def workers_authority(self) -> Identity:
        """The authority of workers on other machines, with its key (`coordinator.worker_folders`)."""
        return self._identity("workers")

    def authorities(self) -> list[x509.Certificate]:
        """What participants' certificates and the server's are checked by: the authority that issues, and the older one
        whose place it takes, where there is one."""
        self._check_initialised()
        path = self.path / "authority.pem"
        return _loaded(path, load_certificates)

    def older_authority(self) -> Identity | None:
        """The authority that is being replaced, with its key; None at other times."""
        if not (older := self.authorities()[1:]):
            return None
        return _paired(self.path / OLD_AUTHORITY_KEY, older[0])

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

    def signing_key(self) -> SigningKey:
        """The log's signing key. Raises FolderError where it is missing or damaged."""
        self._check_initialised()
        key = self._signing_key(self.ledger_key)
        if key is None:
            raise FolderError(
                f"{self.ledger_key} is missing: the log cannot go on under its name without it; restore it from a "
                "backup"
            )
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
            sync(self.path)
        return self._signing_key(self.ledger_key)

    def prepare_signing_key(self, name: str) -> SigningKey:
        """A new key for the log, durable next to the present one. Hold `changing_keys`."""
        key = SigningKey.generate(name)
        write_private(self.next_ledger_key, key.secret_text().encode())
        return key

    def _signing_key(self, path: Path) -> SigningKey | None:
        if not path.exists():
            return None
        return _loaded(path, lambda content: SigningKey.parse(content.decode()))

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
            self.replace(_identity_files("server", identity))
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
            return certificate_hosts(_loaded(self.path / "server.pem", load_certificates)[0])
        except FolderError:
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
        with writing(self.path):
            file = (self.path / "keys.lock").open("w")
        with file:
            try:
                flock(file, LOCK_EX)
            except OSError as error:
                raise FolderError(lock_refused(Path(file.name), error)) from None
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
        with writing(self.path, "; nothing was changed"):
            write_private(self._pending, json.dumps(content).encode())
        self._finish_replacing()

    def _finish_replacing(self) -> None:
        if not self._pending.exists():
            return
        with writing(self.path, f"; what {self._pending.name} says is done when it can"):
            try:
                files: dict[str, str | None] = json.loads(self._pending.read_text())
                content = {n: None if c is None else base64.b64decode(c) for n, c in files.items()}
            except ValueError:
                raise FolderError(f"{self._pending} is damaged; restore the folder from a backup") from None
            for name, data in content.items():
                if data is None:
                    (self.path / name).unlink(missing_ok=True)
                else:
                    _write_file(self.path / name, data, 0o644 if name.endswith(".pem") else 0o600)
            sync(self.path)
            self._pending.unlink()
            sync(self.path)

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
        with self._lock_file() as file:
            if not _locked(file, LOCK_EX):
                raise self._already_served()
            yield

    @contextmanager
    def shared_lock(self) -> Iterator[str]:
        """Held by those that serve from this folder together, on one machine or several.

        Gives the folder's mark (`FolderLease`): who finds that nobody holds the lock writes a new one, so that a copy
        of the folder never has the mark of those that serve; it stays while anybody holds the lock.

        Raises:
            AlreadyServed: a process that serves alone holds it.
            FolderError: it cannot be written or locked; the mark of those that serve is lost.
        """
        give_up = time.monotonic() + _LOCK_SECONDS
        with self._lock_file() as file:
            while True:
                if _locked(file, LOCK_EX):
                    self._write_mark()
                if _locked(file, LOCK_SH):  # and not another that starts at this instant
                    break
                if time.monotonic() >= give_up:
                    raise self._already_served()
                time.sleep(_LOCK_PAUSE_SECONDS)
            try:
                mark = self._mark.read_text()
            except OSError as error:
                raise FolderError(
                    f"{self._mark} cannot be read: {error.strerror}; those that serve from the folder know it by that "
                    "file: stop them all, then start them"
                ) from None
            yield mark

    def _write_mark(self) -> None:
        """A new mark, or none where the disk refuses it: nobody who comes at this instant may serve by the old one, or
        by half of one.

        Raises:
            FolderError: it cannot be written.
        """
        try:
            with writing(self._mark, "; make room, or mend the disk, then start again"):
                self._mark.write_text(uuid4().hex[:16])  # a connection's name has no room for more
        except FolderError:
            with contextlib.suppress(OSError):
                self._mark.unlink(missing_ok=True)
            raise

    def _lock_file(self) -> IO[str]:
        path = self.path / "serve.lock"
        with writing(path):
            return path.open("a+")  # a network's file system asks for both rights

    def _already_served(self) -> AlreadyServed:
        return AlreadyServed(f"another coordinator already serves from {self.path}; stop it first")

    def _check_initialised(self) -> None:
        if not (self.path / SERVICE_FILE).is_file():
            below = sorted(self.path.glob(f"*/{SERVICE_FILE}"))
            if below:
                raise FolderError(
                    f"{self.path} is not a coordinator's folder, {below[0].parent} is one: name that"
                )
            raise FolderError(
                f"{self.path} is not a coordinator's folder: it has no {SERVICE_FILE}. "
                f"Mount it, where it lies elsewhere. Make one with: fedpeer coordinator init {self.path}"
            )
        if self._pending.exists():  # of a process that died, or that replaces them now
            with self.changing_keys():
                pass

    def _identity(self, name: str) -> Identity:
        self._check_initialised()
        try:
            return self._read_identity(name)
        except FolderError:
            # Between the two readings both may have been replaced: read them once more, after that.
            with self.changing_keys():
                return self._read_identity(name)

    def _read_identity(self, name: str) -> Identity:
        certificates = _loaded(self.path / f"{name}.pem", load_certificates)
        return _paired(self.path / f"{name}.key", certificates[0])


def _loaded(path: Path, load: Callable[[bytes], Loaded]) -> Loaded:
    """What a key's or a certificate's file holds. Raises FolderError where it cannot be read or used."""
    try:
        return load(read_bytes(path, MAX_PEM_BYTES))
    except SourceError as error:
        raise FolderError(str(error)) from None
    except UnicodeDecodeError:
        raise FolderError(f"{path} cannot be read: it is not text") from None
    except (CertificateError, NoteError) as error:
        raise FolderError(f"{path}: {error}") from None


def _paired(path: Path, certificate: x509.Certificate) -> Identity:
    """A certificate with its key, which is in a file of its own. Raises FolderError as `_loaded`."""

    def load(content: bytes) -> Identity:
        identity = Identity(load_private_key(content), certificate)
        check_pair(identity)
        return identity

    return _loaded(path, load)


def initialise(path: Path, config_text: str, name: str, hosts: Sequence[str]) -> StateFolder:
    """Makes a state folder with an authority, a server certificate for `hosts`, a log's key and an empty database.

    Raises:
        FolderError: a part of a coordinator is there already, or the folder cannot be written.
        ConfigError: the configuration cannot be used.
        FieldError: a host that is neither a DNS name nor an IP address.
        StorageError: the database cannot be reached, or holds something. In every case nothing is left.
    """
    folder = StateFolder(path)
    check_free(folder)
    config = parse_config(config_text, ServiceConfig, path / SERVICE_FILE)
    now = datetime.now(UTC)
    authority = make_authority(f"{name} authority", now)
    server = issue_server_certificate(authority, hosts, now)
    files = {
        **_identity_files("authority", authority),
        **_identity_files("server", server),
        "ledger.key": SigningKey.generate(config.name).secret_text().encode(),
        SERVICE_FILE: config_text.encode(),
    }
    with ExitStack() as undo, assembling(folder) as made:
        made.replace(files)
        database = undo.enter_context(new_database(made.database_url(config)))
        migrate(database)
        SignedLog(database, made.signing_key()).sign_head()
        database.close()
    return folder


def check_free(folder: StateFolder) -> None:
    """Raises FolderError where the folder holds any part of a coordinator, or is not a folder."""
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
    """A new folder, which takes the place of `folder` at the end of the block, or is removed where that raises.

    Into a folder that is there (a volume that is mounted, say) its parts move one by one, the configuration last,
    without which it is nobody's.

    Raises:
        FolderError: somebody else is making it, or it cannot be written.
    """
    target = folder.path.resolve()
    inside = target.is_dir()
    with writing(folder.path):
        target.parent.mkdir(parents=True, exist_ok=True)
        with staged(target / "coordinator" if inside else target) as scratch:
            made = StateFolder(scratch / "made")
            made.path.mkdir(mode=0o700)
            yield made
            for found in (made.path, *made.path.rglob("*")):
                sync(found)
            check_free(folder)
            if inside:
                _make_private(target)
                _move_in(made.path, target)
            else:
                made.path.rename(target)
        sync(target if inside else target.parent)


def _make_private(folder: Path) -> None:
    """Leaves a folder to its owner. A mounted volume's is root's, with a group of ours: what is in it is our own.

    Raises:
        FolderError: it is another user's, or everybody can write to it; OSError as of chmod.
    """
    found = folder.stat()
    if found.st_uid == os.geteuid():
        folder.chmod(0o700)
    elif found.st_uid != 0 or found.st_mode & stat.S_IWOTH:
        raise FolderError(
            f"{folder} is not this user's own, and others could change what is in it; expected one of this user's, "
            "or a volume of root's that this user's group can write to"
        )


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
                    "an empty one with --database; --database sqlite:///coordinator.db is a file in the state folder"
                )
        try:
            yield database
        except BaseException:
            erase(database)
            raise
    finally:
        database.close()
        lease.release()


def _reserve(path: Path) -> None:
    """An empty file in the place of a SQLite database, of which nothing was there."""
    for leftover in (Path(f"{path}{end}") for end in ("-wal", "-shm", "-journal")):
        if os.path.lexists(leftover):
            raise FolderError(
                f"{leftover} exists already; nothing was changed. Move it away, or name another database"
            )
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        raise FolderError(
            f"{path} exists already; nothing was changed. Move it away, or name another database"
        ) from None
    except OSError as error:
        raise DatabaseUnreachable(f"the database file {path} cannot be made: {error.strerror}") from None


def _locked(file: IO[str], kind: int) -> bool:
    """Takes a lock on a file, in the place of the one that this process has; whether it could.

    Raises:
        FolderError: nobody can.
    """
    try:
        flock(file, kind | LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise FolderError(lock_refused(Path(file.name), error)) from None
    return True


def write_private(path: Path, content: bytes) -> None:
    """Writes a file that only its owner can read, durably; it is never readable by others in between."""
    _write_file(path, content, 0o600)
    sync(path.parent)


def _identity_files(name: str, identity: Identity) -> dict[str, bytes]:
    return {f"{name}.key": identity.key_pem, f"{name}.pem": identity.certificate_pem}


def _write_file(path: Path, content: bytes, mode: int, aside: str = "new") -> None:
    """At once, by way of a file beside it whose name ends with `aside`; one writer has one name."""
    new = path.with_name(f"{path.name}.{aside}")
    new.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
