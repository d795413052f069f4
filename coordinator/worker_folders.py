"""What workers on other machines are: a folder each, with a certificate of the workers' own authority.

    FOLDER/worker.toml    WorkerConfig: the scheduler, and the store of model files
    FOLDER/workers.pem    the workers' authority
    FOLDER/worker.pem, worker.key
    FOLDER/s3.key         a copy of the credentials that [s3] names, where it does
    FOLDER/models         copies of files in a bucket

The authority is not the coordinator's, whose certificates participants have: who has one of the workers' can have any
of them run anything. Its key and certificate, workers.key and workers.pem, are made in the state folder when they are
first needed, and are kept with the others.
"""

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.blobs import BlobStore
from coordinator.bucket import read_credentials
from coordinator.config import WORKER_FILE, ServiceConfig, WorkerConfig, WorkersSection, config_text
from coordinator.errors import ConfigError, FolderError
from coordinator.folder import StateFolder, write_private
from coordinator.remote_workers import RemoteWorkers
from coordinator.shadow_workers import LocalWorkers, check_device
from fedpeer.audit.input_files import MAX_PEM_BYTES, SourceError, read_bytes
from fedpeer.protocol.certificates import Identity, issue_worker_certificate, make_authority
from fedpeer.terminal import printable

if TYPE_CHECKING:
    from distributed.security import Security

#: What a worker's certificate lasts, and what the coordinator's own does, which is made anew with every connection.
_WORKER_LIFETIME = timedelta(days=365)
_OWN_LIFETIME = timedelta(days=30)

#: Files of the authority in the state folder.
_AUTHORITY = "workers"

#: Credentials of a bucket in a worker's folder.
_KEY = "s3.key"


def open_workers(section: WorkersSection, folder: StateFolder, blobs: BlobStore) -> LocalWorkers:
    """The workers that a coordinator's configuration names. Raises ConfigError where they cannot be used."""
    check_device(section.device)
    if section.executor == "local":
        return LocalWorkers(section.device)

    def security() -> "Security":
        authority = workers_authority(folder)
        own = issue_worker_certificate(authority, "coordinator", datetime.now(UTC), _OWN_LIFETIME)
        return security_of(authority.certificate_pem, own.certificate_pem, own.key_pem)

    return RemoteWorkers(section, security, blobs)


def security_of(authority_pem: bytes, certificate_pem: bytes, key_pem: bytes) -> "Security":
    """One certificate for all that a process of Dask's does."""
    from distributed.security import Security

    certificate, key = certificate_pem.decode(), key_pem.decode()
    roles = ("client", "worker", "scheduler")
    return Security(
        require_encryption=True,
        tls_ca_file=authority_pem.decode(),
        **{f"tls_{role}_cert": certificate for role in roles},
        **{f"tls_{role}_key": key for role in roles},
    )


def workers_authority(folder: StateFolder) -> Identity:
    """The workers' authority; made where there is none."""
    with folder.changing_keys():
        if not (folder.path / f"{_AUTHORITY}.key").exists():
            made = make_authority("fedpeer workers", datetime.now(UTC))
            folder.replace({f"{_AUTHORITY}.key": made.key_pem, f"{_AUTHORITY}.pem": made.certificate_pem})
        return folder.workers_authority()


def make_worker_folder(folder: StateFolder, target: Path, name: str) -> WorkerConfig:
    """Writes what a worker needs to `target`.

    Args:
        name: of the worker, in its certificate.

    Raises:
        FolderError: there is something at `target`, or it cannot be written.
        ConfigError: the coordinator's configuration names no scheduler.
    """
    config: ServiceConfig = folder.config()
    if config.workers.executor == "local":
        raise ConfigError(
            'workers.executor is "local"; expected "dask://HOST:PORT" in coordinator.toml, the scheduler that workers '
            "and coordinator reach"
        )
    authority = workers_authority(folder)
    identity = issue_worker_certificate(authority, name, datetime.now(UTC), _WORKER_LIFETIME)
    files = {
        "workers.pem": authority.certificate_pem,
        "worker.pem": identity.certificate_pem,
        "worker.key": identity.key_pem,
    }
    s3 = config.s3
    if s3.bucket and s3.credentials:
        read_credentials(source := folder.path / s3.credentials)
        files[_KEY] = source.read_bytes()
        s3 = s3.model_copy(update={"credentials": _KEY})
    made = WorkerConfig(
        scheduler=config.workers.executor,
        models="" if s3.bucket else str(folder.models.absolute()),
        device=config.workers.device,
        **({"s3": s3} if s3.bucket else {}),
    )
    try:
        target.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        raise FolderError(f"{target} exists already; name a folder that is to be made") from None
    except OSError as error:
        raise FolderError(f"{target} cannot be made: {error.strerror}") from None
    for file, content in files.items():
        write_private(target / file, content)
    write_private(target / WORKER_FILE, config_text(made).encode())
    return made


def worker_security(folder: Path) -> "Security":
    """The certificates of a worker's folder. Raises FolderError where one cannot be read or used."""
    files = [_read(folder / name) for name in ("workers.pem", "worker.pem", "worker.key")]
    try:
        made = security_of(*files)
        made.get_connection_args("worker")  # which loads them
    except (OSError, ValueError) as error:
        raise FolderError(
            f"the certificates in {folder} cannot be used ({printable(str(error))}); have the folder made again by "
            "`fedpeer coordinator worker`"
        ) from None
    return made


def _read(path: Path) -> bytes:
    try:
        if path.suffix == ".key" and path.stat().st_mode & stat.S_IRWXO:
            raise FolderError(f"{path} can be read by everybody on this machine; run: chmod o= {path}")
        return read_bytes(path, MAX_PEM_BYTES)
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {error.strerror}") from None
    except SourceError as error:
        raise FolderError(str(error)) from None
