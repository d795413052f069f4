"""Backups of everything that a coordinator is: keys, configuration, database, the models that tasks need.

One tar file, readable by its owner alone, since it holds the keys:

    manifest.json              version of the form, when, the ledger's size, the database's kind
    coordinator.toml *.key *.pem
    database                   a SQLite file, or a dump of PostgreSQL in its custom format
    models/<sha256>            model files

The database is copied as it stands at one moment while the service goes on; model files never change. So a backup is
consistent whenever it is taken.

What the ledger signed after a backup was taken is not in it. A restored coordinator therefore signs heads that do not
extend those later ones: whoever saw them will notice the fork, as they should. Restore the latest backup there is.
"""

import io
import json
import os
import shutil
import sqlite3
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, inspect
from sqlalchemy.engine import URL, make_url

from coordinator.blobs import BlobStore
from coordinator.config import SERVICE_FILE
from coordinator.errors import FolderError
from coordinator.folder import OLD_AUTHORITY_KEY, StateFolder
from fedpeer.audit.sql.database import translated

#: Version of the form. A reader refuses what it does not know.
VERSION = 1

_KEYS = ("authority.key", "authority.pem", "server.key", "server.pem", "ledger.key", SERVICE_FILE)

#: Members that are there only while an authority takes another's place.
_SOMETIMES = (OLD_AUTHORITY_KEY,)


def write_backup(
    folder: StateFolder, target: Path, models: Iterable[bytes], ledger_size: int, now: float
) -> int:
    """Writes a backup to `target`, which must not exist yet; returns its size in bytes.

    Args:
        models: digests of the model files to keep.

    Raises:
        FolderError: the file is there already or cannot be written, or PostgreSQL's pg_dump fails.
    """
    if target.exists():
        raise FolderError(f"{target} exists already; choose another name for the backup")
    url = make_url(folder.database_url(folder.config()))
    blobs = BlobStore(folder.models)
    part = target.with_name(target.name + ".part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with (
            os.fdopen(descriptor, "wb") as file,
            tarfile.open(fileobj=file, mode="w") as archive,
            tempfile.TemporaryDirectory(dir=target.parent) as scratch,
        ):
            copy = Path(scratch) / "database"
            _copy_database(url, copy)
            manifest = {
                "version": VERSION,
                "created": now,
                "ledger_size": ledger_size,
                "database": url.get_backend_name(),
            }
            _add_bytes(archive, "manifest.json", json.dumps(manifest).encode())
            for name in (*_KEYS, *(n for n in _SOMETIMES if (folder.path / n).exists())):
                archive.add(folder.path / name, name)
            archive.add(copy, "database")
            for digest in sorted(models):
                if blobs.holds(digest):
                    archive.add(blobs.path(digest), f"models/{digest.hex()}")
            archive.close()
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except OSError as error:
        raise FolderError(f"{target} cannot be written: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)
    return target.stat().st_size


def read_backup(source: Path, path: Path) -> dict[str, Any]:
    """Makes the state folder `path` from a backup; returns its manifest.

    The database goes where the configuration says: a PostgreSQL database must exist and be empty.

    Raises:
        FolderError: no backup, one of another version, or the folder is a coordinator's already; nothing has been
            written then.
    """
    if (path / SERVICE_FILE).exists():
        raise FolderError(f"{path} is a coordinator's folder already; restore into an empty one")
    try:
        with tarfile.open(source) as archive:
            manifest = _manifest(archive, source)
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
                archive.extractall(scratch, filter="data")
                _move_in(Path(scratch), StateFolder(path), manifest)
    except (tarfile.TarError, EOFError) as error:
        raise FolderError(f"{source} is no backup: {error}") from None
    except OSError as error:
        raise FolderError(f"{error.filename or source}: {error.strerror or error}") from None
    return manifest


def _manifest(archive: tarfile.TarFile, source: Path) -> dict[str, Any]:
    try:
        file = archive.extractfile("manifest.json")
        manifest: dict[str, Any] = json.loads(file.read() if file is not None else b"")
    except (KeyError, ValueError):
        raise FolderError(f"{source} is no backup: it has no manifest") from None
    if manifest.get("version") != VERSION:
        raise FolderError(
            f"{source} has the form {manifest.get('version')!r}; this program knows {VERSION}; use a newer fedpeer"
        )
    return manifest


def _move_in(scratch: Path, folder: StateFolder, manifest: dict[str, Any]) -> None:
    """The database first, which can fail; the configuration last, which makes the folder a coordinator's."""
    url = make_url(folder.database_url(StateFolder(scratch).config()))
    if url.get_backend_name() != manifest["database"]:
        raise FolderError(f"the backup is of {manifest['database']}, the configuration names {url}")
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.path.chmod(0o700)
    _restore_database(scratch / "database", url)
    blobs = BlobStore(folder.models)
    for file in sorted((scratch / "models").glob("*")) if (scratch / "models").is_dir() else ():
        blobs.adopt(file, bytes.fromhex(file.name))
    for name in (*(n for n in _SOMETIMES if (scratch / n).exists()), *_KEYS):
        (scratch / name).chmod(0o600 if name.endswith(".key") else 0o644)
        shutil.move(scratch / name, folder.path / name)


def _copy_database(url: URL, target: Path) -> None:
    if url.get_backend_name() == "sqlite":
        source = sqlite3.connect(f"{Path(url.database or '').resolve().as_uri()}?mode=ro", uri=True)
        copy = sqlite3.connect(target)
        try:
            source.backup(copy)
        finally:
            copy.close()
            source.close()
        return
    _run("pg_dump", "--format=custom", f"--file={target}", f"--dbname={_libpq(url)}")


def _restore_database(source: Path, url: URL) -> None:
    if url.get_backend_name() == "sqlite":
        target = Path(url.database or "")
        if target.exists():
            raise FolderError(f"{target} exists already; move it away before restoring")
        shutil.move(source, target)
        return
    with translated(), _connected(url) as connection:
        if tables := inspect(connection).get_table_names():
            raise FolderError(
                f"the database {url.render_as_string()} holds {len(tables)} tables; restore into an empty one"
            )
    options = ["--no-owner", "--exit-on-error", "--single-transaction"]
    _run("pg_restore", *options, f"--dbname={_libpq(url)}", str(source))


@contextmanager
def _connected(url: URL) -> Iterator[Connection]:
    engine = create_engine(url.set(drivername="postgresql+psycopg"))
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def _libpq(url: URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise FolderError(
            f"{command[0]} is not installed; it comes with PostgreSQL's client programs"
        ) from None
    except subprocess.CalledProcessError as error:
        raise FolderError(f"{command[0]} failed: {error.stderr.strip()}") from None


def _add_bytes(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
