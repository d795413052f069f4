"""Backups of everything that a coordinator is: keys, configuration, database, the models that tasks need.

One tar file, readable by its owner alone from its first byte, since it holds the keys:

    manifest.json              what the backup is, and every member after it with its size and SHA-256
    coordinator.toml, keys, certificates   see `folder.KEPT_FILES`
    database                   a SQLite file, whichever kind of database it is a copy of
    models/<sha256>            model files

The database is copied as it stands at one moment while the service goes on, and it says which models are kept; model
files never change. So a backup is consistent whenever it is taken.

Any tar program can list and unpack one. Nothing here does: a backup is read as the very bytes that its manifest says it
must be, headers and padding included, so that one bit that differs, a member too few or too many, and a name that
leads elsewhere are all found, before anything is written. What a backup cannot show is that it is the right one: who
can write the file can write another.

What the ledger signed after a backup was taken is not in it. A restored coordinator therefore signs heads that do not
extend those later ones: those who saw them will notice the fork, as they should. Restore the latest backup there is.
"""

import errno
import hashlib
import os
import re
import shutil
import sqlite3
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Any, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError
from sqlalchemy.engine import URL

from coordinator.blobs import BlobStore
from coordinator.config import SERVICE_FILE, ServiceConfig, config_text, parse_config
from coordinator.errors import FolderError
from coordinator.folder import KEPT_FILES, StateFolder, assembling, check_free, new_database, write_private
from coordinator.staging import staged, sync
from coordinator.storage.rounds import Retention
from coordinator.storage.schema import migrate
from coordinator.storage.store import MarketStore
from fedpeer.audit.sql.database import Database, parse_url, refuse_unknown, shown, sqlite_file, translated
from fedpeer.audit.sql.errors import DatabaseDamaged, DatabaseFull, DatabaseUnreachable
from fedpeer.audit.sql.ledger_store import SqlLedgerStore

Result = TypeVar("Result")

#: Version of the form. A reader refuses what it does not know.
VERSION = 3

#: Bytes of a tar's block, and of a piece that is read at once.
_BLOCK = 512
_PIECE = 1 << 20

#: Largest manifest that is read: a million models' lines take two thirds of it.
_MAX_MANIFEST = 1 << 28

#: The first time that a tar's header has no room for, seconds since the epoch.
_LATEST = 8**11

_MANIFEST, _DATABASE, _MODELS = "manifest.json", "database", "models/"

#: Without these nothing can be served.
_NEEDED = {
    SERVICE_FILE, "authority.key", "authority.pem", "server.key", "server.pem", "ledger.key", _DATABASE,
}  # fmt: skip


@dataclass(frozen=True)
class BackupFile:
    """One file of a backup: its name there, its size, and its SHA-256 in hexadecimal."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a backup is.

    Attributes:
        created: when, whole seconds since the epoch.
        ledger_size, ledger_head: entries, and the latest signed head as a note ("" before the first).
        database: "sqlite" or "postgresql": what it is a copy of.
        revision: version of the tables.
        left_out: digests of models that a task needs and that were missing or damaged.
        members: all files, in their order.
    """

    version: int
    created: int
    ledger_size: int
    ledger_head: str
    database: str
    revision: str
    left_out: tuple[str, ...]
    members: tuple[BackupFile, ...]

    @property
    def models(self) -> int:
        """How many model files there are."""
        return sum(member.name.startswith(_MODELS) for member in self.members)


_MANIFESTS = TypeAdapter(Manifest)


def write_backup(
    folder: StateFolder,
    database: Database,
    target: Path,
    retention: Callable[[MarketStore], Retention],
    now: float,
) -> Manifest:
    """Writes a backup to `target`, which must not exist yet, and reads it again before it gets that name.

    Args:
        database: the folder's.
        retention: which models are kept.

    Raises:
        FolderError: the file is there already, is being written by another process, or cannot be written.
        StorageError: the database cannot be copied.
    """
    _refuse_existing(target)
    try:
        with staged(target) as scratch:
            copy, archive = scratch / "database", scratch / "archive"
            facts = _copy_database(database, copy, retention)
            blobs = BlobStore(folder.models)
            # A bucket is kept by its own means; what the folder has of it are copies.
            needed = set() if folder.config().s3.bucket else facts.models
            models = {digest: blobs.intact(digest) for digest in sorted(needed)}
            sources: dict[str, bytes | Path] = {
                name: (folder.path / name).read_bytes() for name in folder.kept_files()
            }
            sources[_DATABASE] = copy
            sources |= {f"{_MODELS}{d.hex()}": blobs.path(d) for d, intact in models.items() if intact}
            manifest = Manifest(
                version=VERSION,
                created=int(now),
                ledger_size=facts.ledger_size,
                ledger_head=facts.ledger_head,
                database=database.dialect,
                revision=database.revision() or "",
                left_out=tuple(digest.hex() for digest, intact in models.items() if not intact),
                members=tuple(_member(name, source) for name, source in sources.items()),
            )
            with os.fdopen(os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                _write(file, manifest, sources)
                file.flush()
                os.fsync(file.fileno())
            check_backup(archive, shown_as=target)
            _give_name(archive, target)
            sync(target.parent)
    except DatabaseFull:  # the copy's: the database itself is only read
        raise FolderError(
            f"{target.parent} has no space left for the backup; make some, or name another place: nothing of it is left"
        ) from None
    except OSError as error:
        raise FolderError(
            f"{error.filename or target} cannot be written or read: {error.strerror or error}"
        ) from None
    return manifest


def check_backup(source: Path, *, shown_as: Path | None = None) -> Manifest:
    """The manifest of a backup, every byte of which has been checked.

    Raises:
        FolderError: no backup, one of another version, or one that is not what was written.
    """
    with _opened(source) as file:
        reader = _Reader(file, shown_as or source)
        for member in reader.manifest.members:
            for _ in reader.content(member):
                pass
        reader.end()
        return reader.manifest


def read_backup(
    source: Path,
    path: Path,
    *,
    database: str | None = None,
    act: Callable[[StateFolder], Result] = lambda made: None,  # type: ignore[assignment,return-value]  # no result
) -> tuple[Manifest, Result]:
    """Makes the state folder `path` from a backup; returns its manifest, and what `act` returned.

    The whole backup is checked first. Then the folder is made elsewhere, and takes its place at the very end; where
    anything fails before, nothing is left.

    Args:
        database: URL of the database to restore into, in place of the configuration's.
        act: done with the folder before it takes its place.

    Raises:
        FolderError: see `check_backup`; or a part of a coordinator is in the folder, or something in the database.
        CoordinatorError, StorageError: the configuration or the database cannot be used.
    """
    folder = StateFolder(path)
    check_free(folder)
    manifest = check_backup(source)
    refuse_unknown(manifest.revision)
    with ExitStack() as undo, assembling(folder) as made:
        _unpack(source, manifest, made)
        config = _configured(made, path / SERVICE_FILE, database)
        try:
            restored = undo.enter_context(new_database(made.database_url(config)))
        except DatabaseUnreachable as error:
            named = shown(parse_url(made.database_url(config)))
            raise DatabaseUnreachable(
                f"{error}. The backup is to go into {named}; name another database with --database, or "
                "--database sqlite:///coordinator.db for a file in the state folder"
            ) from None
        _restore_database(made.path / _DATABASE, restored)
        (made.path / _DATABASE).unlink(missing_ok=True)
        _check_restored(restored, manifest)
        restored.close()
        result = act(made)
    return manifest, result


# The form


def _write(file: IO[bytes], manifest: Manifest, sources: Mapping[str, bytes | Path]) -> None:
    content = _encoded(manifest)
    _write_member(file, _header(_MANIFEST, len(content), manifest.created), [content])
    for member in manifest.members:
        header = _header(member.name, member.bytes, manifest.created)
        _write_member(file, header, _pieces(sources[member.name]))
    file.write(bytes(2 * _BLOCK))


def _write_member(file: IO[bytes], header: bytes, pieces: Iterable[bytes]) -> None:
    file.write(header)
    size = 0
    for piece in pieces:
        size += file.write(piece)
    file.write(bytes(-size % _BLOCK))


def _header(name: str, size: int, created: int) -> bytes:
    """GNU's form: one block, whatever the size."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = size, created, 0o600
    return entry.tobuf(tarfile.GNU_FORMAT)


def _encoded(manifest: Manifest) -> bytes:
    """Canonical JSON, with its own digest."""
    record = asdict(manifest)
    digest = hashlib.sha256(_canonical(record)).hexdigest()
    return _canonical({**record, "sha256": digest})


def _canonical(record: Mapping[str, Any]) -> bytes:
    return orjson.dumps(record, option=orjson.OPT_SORT_KEYS)


def _member(name: str, source: bytes | Path) -> BackupFile:
    digest, size = hashlib.sha256(), 0
    for piece in _pieces(source):
        digest.update(piece)
        size += len(piece)
    return BackupFile(name, size, digest.hexdigest())


def _pieces(source: bytes | Path) -> Iterator[bytes]:
    if isinstance(source, bytes):
        yield source
        return
    with source.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


class _Reader:
    """Reads a backup as the bytes that it must be.

    Raises:
        FolderError: on construction and from every method.
    """

    def __init__(self, file: IO[bytes], place: Path) -> None:
        self._file = file
        self._place = place
        self.manifest = self._read_manifest()

    def content(self, member: BackupFile) -> Iterator[bytes]:
        """The pieces of the next member; it is right when they have ended."""
        name = member.name
        header = _header(name, member.bytes, self.manifest.created)
        if self._exactly(_BLOCK, name) != header:
            raise self._damaged(f"another member stands where {name} should")
        digest, left = hashlib.sha256(), member.bytes
        while left:
            piece = self._exactly(min(left, _PIECE), name)
            digest.update(piece)
            left -= len(piece)
            yield piece
        if digest.hexdigest() != member.sha256:
            raise self._damaged(f"{name} is not what was backed up")
        self._zeros(-member.bytes % _BLOCK, name)

    def end(self) -> None:
        """That nothing follows."""
        self._zeros(2 * _BLOCK, "its end")
        if self._file.read(1):
            raise self._damaged("something follows after its end")

    def _read_manifest(self) -> Manifest:
        header = self._file.read(_BLOCK)
        try:
            entry = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
        except (tarfile.TarError, UnicodeDecodeError, ValueError):
            raise FolderError(
                f"{self._place} is not a backup: it is not a tar file, or its beginning is damaged"
            ) from None
        if entry.name != _MANIFEST or not 0 < entry.size <= _MAX_MANIFEST:
            raise FolderError(f"{self._place} is not a backup: it does not begin with {_MANIFEST}")
        content = self._exactly(entry.size, _MANIFEST)
        try:
            version = orjson.loads(content)["version"]
        except (ValueError, LookupError, TypeError):
            raise self._damaged(f"{_MANIFEST} cannot be read") from None
        if version != VERSION:
            raise FolderError(
                f"{self._place} has the form {version!r:.20}; this program knows {VERSION}; use the "
                "fedpeer that wrote it"
            )
        try:
            manifest = _MANIFESTS.validate_json(content, strict=True)
        except ValidationError:
            raise self._damaged(f"{_MANIFEST} is not what was written") from None
        if _encoded(manifest) != content or not 0 <= manifest.created < _LATEST:
            raise self._damaged(f"{_MANIFEST} is not what was written")
        if header != _header(_MANIFEST, len(content), manifest.created):
            raise self._damaged(f"the header of {_MANIFEST} is not what was written")
        self._zeros(-len(content) % _BLOCK, _MANIFEST)
        self._check_names(manifest)
        return manifest

    def _check_names(self, manifest: Manifest) -> None:
        """A manifest that somebody else wrote could name anything."""
        names = [member.name for member in manifest.members]
        foreign = [member.name for member in manifest.members if not _ours(member)]
        if foreign:
            raise self._damaged(f"{foreign[0]!r:.80} is not a file of a coordinator")
        if len(set(names)) != len(names):
            raise self._damaged("it lists a member twice")
        if missing := _NEEDED - set(names):
            raise self._damaged(f"it lists no {', '.join(sorted(missing))}")

    def _exactly(self, size: int, where: str) -> bytes:
        content = self._file.read(size)
        if len(content) != size:
            raise self._damaged(f"it ends inside {where}: it was cut off")
        return content

    def _zeros(self, size: int, where: str) -> None:
        if any(self._exactly(size, where)):
            raise self._damaged(f"there are bytes after {where}")

    def _damaged(self, what: str) -> FolderError:
        return FolderError(
            f"{self._place} is damaged, or not a backup: {what}. Take another copy or an earlier backup"
        )


def _ours(member: BackupFile) -> bool:
    if member.bytes < 0 or not re.fullmatch("[0-9a-f]{64}", member.sha256):
        return False
    if member.name.startswith(_MODELS):
        return member.name == f"{_MODELS}{member.sha256}"
    plain = "/" not in member.name and not member.name.startswith(".") and member.name.isprintable()
    return member.name == _DATABASE or (plain and any(fnmatchcase(member.name, p) for p in KEPT_FILES))


def _opened(source: Path) -> IO[bytes]:
    try:
        if not stat.S_ISREG(source.stat().st_mode):
            raise FolderError(f"{source} is not a file; name a backup file")
        return source.open("rb")
    except OSError as error:
        raise FolderError(f"{source} cannot be read: {error.strerror}") from None


def _refuse_existing(target: Path) -> None:
    if os.path.lexists(target):
        raise FolderError(f"{target} exists already; choose another name for the backup")


def _give_name(archive: Path, target: Path) -> None:
    try:
        os.link(archive, target)  # which never replaces anything
    except FileExistsError:
        _refuse_existing(target)
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        _refuse_existing(target)  # a file system without links
        archive.rename(target)


# Restoring


def _unpack(source: Path, manifest: Manifest, made: StateFolder) -> None:
    blobs = BlobStore(made.models)
    with _opened(source) as file:
        reader = _Reader(file, source)
        if reader.manifest != manifest:
            raise FolderError(f"{source} has changed while it was read; nothing was restored")
        for member in manifest.members:
            if member.name.startswith(_MODELS):
                target = blobs.path(bytes.fromhex(member.sha256))
                target.parent.mkdir(parents=True, exist_ok=True)
            else:
                target = made.path / member.name
            mode = next((m for pattern, m in KEPT_FILES.items() if fnmatchcase(member.name, pattern)), 0o600)
            with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as written:
                for piece in reader.content(member):
                    written.write(piece)
        reader.end()


def _configured(made: StateFolder, place: Path, database: str | None) -> ServiceConfig:
    file = made.path / SERVICE_FILE
    try:
        config = parse_config(file.read_text(), ServiceConfig, place)
    except UnicodeDecodeError:
        raise FolderError(f"the backup's {SERVICE_FILE} is not text") from None
    if database is None:
        return config
    config = config.model_copy(update={"storage": config.storage.model_copy(update={"database": database})})
    head = "# Written by `restore --database`; the file with its comments is in the backup.\n"
    write_private(file, (head + config_text(config)).encode())
    return made.config()


def _check_restored(database: Database, manifest: Manifest) -> None:
    with database.read() as connection:
        store = SqlLedgerStore(connection)
        found = store.size(), store.checkpoint() or ""
    if found != (manifest.ledger_size, manifest.ledger_head):
        raise FolderError(
            f"the restored ledger has {found[0]} entries and not the {manifest.ledger_size} of the "
            "backup's manifest, or another head; nothing was restored. Take an earlier backup"
        )


# Databases


@dataclass(frozen=True)
class _Facts:
    """What stands in the very copy that was taken."""

    ledger_size: int
    ledger_head: str
    models: frozenset[bytes]


def _copy_database(database: Database, target: Path, retention: Callable[[MarketStore], Retention]) -> _Facts:
    """The database as it stands at one moment, in a SQLite file of its own."""
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    url = URL.create("sqlite", database=str(target))
    if database.dialect == "sqlite":
        with (
            translated(),
            closing(database.read_only_connection()) as source,
            closing(sqlite3.connect(target)) as copy,
        ):
            source.backup(copy)
    else:
        with closing(Database(url)) as made, database.read() as rows:
            migrate(made, rows)
    with translated(), closing(sqlite3.connect(target)) as copy:
        copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
        (found,) = copy.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise DatabaseDamaged(
            f"{database.display} is damaged ({found}); no backup was written: restore an earlier one"
        )
    with closing(Database(url, read_only=True)) as copied, copied.read() as connection:
        store = SqlLedgerStore(connection)
        market = MarketStore(connection)
        models = market.referenced_models(retention(market))
        return _Facts(store.size(), store.checkpoint() or "", frozenset(models))


def _restore_database(copy: Path, database: Database) -> None:
    """Fills an empty database from a copy, which is used up."""
    if (path := sqlite_file(database.url)) is not None:
        with staged(path) as scratch:
            whole = scratch / "database"
            if copy.stat().st_dev == scratch.stat().st_dev:
                copy.rename(whole)
            else:
                shutil.copyfile(copy, whole)
                whole.chmod(0o600)
            sync(whole)
            whole.rename(path)
        sync(path.parent)
        return
    with closing(Database(URL.create("sqlite", database=str(copy)))) as source:
        migrate(source)  # of an older version
        with source.read() as rows:
            migrate(database, rows)
