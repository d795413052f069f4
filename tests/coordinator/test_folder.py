"""A state folder is made whole or not at all, nothing in it is made twice, and what is lost is said to be lost."""

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from sqlalchemy import create_engine, text

from coordinator.errors import CoordinatorError, FolderError
from coordinator.folder import StateFolder, initialise
from coordinator.operator import Operator
from coordinator.server import Coordinator
from coordinator.staging import staged
from coordinator.storage.lease import Lease
from coordinator.storage.schema import erase
from fedpeer.audit.sql.database import Database
from fedpeer.audit.sql.errors import DatabaseUnreachable, StorageError
from fedpeer.audit.sql.ledger_store import SignedLog
from mechanism.errors import FieldError
from tests.backends import DURABLE, scratch_url

CONFIG = 'name = "test"\n[server]\nmarket = "127.0.0.1:0"\npublic = "127.0.0.1:0"\nmetrics = ""\n'
#: A user and group of no name.
_OTHER = 10001

FILES = (
    "authority.key",
    "authority.pem",
    "coordinator.db",
    "coordinator.toml",
    "ledger.key",
    "server.key",
    "server.pem",
)


def made(path: Path, config: str = CONFIG) -> StateFolder:
    return initialise(path, config, "test", ["localhost"])


def contents(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("missing", [None, *FILES])
def test_init_overwrites_nothing_whichever_file_is_missing(tmp_path: Path, missing: str | None) -> None:
    folder = made(tmp_path / "state")
    if missing is not None:
        (folder.path / missing).unlink()
    before = contents(folder.path)
    assert set(before) == set(FILES) - {missing}
    with pytest.raises(FolderError, match="nothing was overwritten") as refused:
        made(folder.path)
    found = str(refused.value)
    assert all((name in found) is (name != missing) for name in FILES)
    assert contents(folder.path) == before
    assert list(tmp_path.iterdir()) == [folder.path]


@pytest.mark.parametrize("name", [*FILES, "old.key", "models", "coordinator.db-wal"])
def test_init_refuses_a_folder_with_one_part_of_a_coordinator(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    with pytest.raises(FolderError, match=f"holds parts of a coordinator, {name}; nothing was overwritten"):
        made(tmp_path)
    assert contents(tmp_path) == {name: b"precious"}


def test_init_into_a_folder_that_is_there_leaves_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "task.toml").write_text("mine")
    tmp_path.chmod(0o755)
    folder = made(tmp_path)
    assert set(contents(tmp_path)) == {*FILES, "task.toml"}
    assert tmp_path.stat().st_mode & 0o777 == 0o700
    for name in ("authority.key", "server.key", "ledger.key", "coordinator.toml", "coordinator.db"):
        assert (folder.path / name).stat().st_mode & 0o077 == 0


def as_other(*words: str) -> "subprocess.CompletedProcess[str]":
    """Runs a module as another user."""
    user = [
        "setpriv",
        "--reuid",
        str(_OTHER),
        "--regid",
        str(_OTHER),
        "--clear-groups",
        sys.executable,
        "-P",
        "-m",
    ]
    return subprocess.run([*user, *words], cwd="/", capture_output=True, text=True)


@pytest.mark.skipif(os.getuid() != 0, reason="needs a folder of another user's")
@pytest.mark.parametrize(
    ("owner", "mode", "said"),
    [(0, 0o2775, ""), (0, 0o2777, "is not this user's own"), (1, 0o2770, "is not this")],
)
def test_init_into_a_volume_that_is_roots_and_its_groups(owner: int, mode: int, said: str) -> None:
    """As Kubernetes mounts one; not below pytest's folder, which only its owner can enter."""
    if shutil.which("setpriv") is None or as_other("fedpeer", "--version").returncode:
        pytest.skip("needs setpriv, and a Python that other users can run")
    with TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        volume = Path(place) / "volume"
        volume.mkdir()
        os.chown(volume, owner, _OTHER)
        volume.chmod(mode)
        done = as_other("fedpeer", "coordinator", "init", str(volume), "--metrics", "")
        assert (done.returncode, said in done.stderr) == (2 if said else 0, True), done.stderr
        found = [] if said else [*FILES]
        assert sorted(path.name for path in volume.iterdir()) == found
        assert all(not path.stat().st_mode & 0o077 for path in volume.glob("*.key"))


@pytest.mark.parametrize("backend", DURABLE)
def test_init_refuses_a_database_that_holds_a_ledger(tmp_path: Path, backend: str) -> None:
    with scratch_url(backend, tmp_path) as url:
        config = f"{CONFIG}[storage]\ndatabase = {url!r}\n"
        first = made(tmp_path / "first", config)
        key = first.signing_key().verification_key
        with pytest.raises(FolderError, match="nothing was changed"):
            made(tmp_path / "second", config)
        assert not (tmp_path / "second").exists()
        database = Database(url)
        assert SignedLog(database, first.signing_key()).sign_head().startswith(key.name)
        database.close()


def test_init_that_fails_leaves_nothing(tmp_path: Path) -> None:
    unreachable = "postgresql+psycopg://nobody@127.0.0.1:1/x?connect_timeout=2"
    for config, hosts, kind in (
        (f"{CONFIG}[storage]\ndatabase = {unreachable!r}\n", ["localhost"], StorageError),
        (f"{CONFIG}[storage]\ndatabase = 'sqlite:////nowhere/x.db'\n", ["localhost"], StorageError),
        (f"{CONFIG}[storage]\ndatabase = 'sqlite://'\n", ["localhost"], StorageError),
        (f"{CONFIG}[storage]\ndatabase = 'sqlite:///../x.db'\n", ["localhost"], StorageError),
        ('name = "not a name!"\n', ["localhost"], CoordinatorError),
        (CONFIG, ["no host!"], FieldError),
    ):
        with pytest.raises(kind):
            initialise(tmp_path / "new" / "state", config, "test", hosts)
        assert not [path for path in tmp_path.rglob("*") if path.is_file()], config
    (tmp_path / "file").touch()
    with pytest.raises(FolderError, match="is a file"):
        made(tmp_path / "file")


def test_init_that_fails_leaves_the_postgresql_database_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: SignedLog) -> str:
        raise StorageError("the server went away")

    with scratch_url("postgresql", tmp_path) as url:
        config = f"{CONFIG}[storage]\ndatabase = {url!r}\n"
        with monkeypatch.context() as patched:
            patched.setattr(SignedLog, "sign_head", fail)
            with pytest.raises(StorageError, match="went away"):
                made(tmp_path / "state", config)
        assert not list(tmp_path.iterdir())
        made(tmp_path / "state", config)


def test_of_two_inits_at_once_one_makes_the_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedpeer", "coordinator", "init", str(tmp_path / "state")]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=120)[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 2], said
    assert not [text for text in said if "Traceback" in text]
    folder = StateFolder(tmp_path / "state")
    folder.authority()
    Operator(folder).close()
    assert list(tmp_path.iterdir()) == [folder.path]


@pytest.mark.parametrize("backend", DURABLE)
def test_of_two_folders_made_at_once_on_one_database_one_has_it(tmp_path: Path, backend: str) -> None:
    with scratch_url(backend, tmp_path) as url:
        config = f"{CONFIG}[storage]\ndatabase = {url!r}\n"
        start = threading.Barrier(2)

        def attempt(name: str) -> Exception | None:
            start.wait()
            try:
                made(tmp_path / name, config)
            except (CoordinatorError, StorageError) as error:
                return error
            return None

        with ThreadPoolExecutor(2) as both:
            ended = dict(zip(("a", "b"), both.map(attempt, ("a", "b")), strict=True))
        (first,) = [name for name, error in ended.items() if error is None]
        (second,) = {"a", "b"} - {first}
        assert not (tmp_path / second).exists()
        operator = Operator(StateFolder(tmp_path / first))
        operator.invite("ann")
        operator.close()


async def test_a_lost_database_or_key_is_never_made_anew(tmp_path: Path) -> None:
    folder = made(tmp_path / "state")
    for name, kind, words in (
        ("coordinator.db", StorageError, "there is no database file .*restore a backup"),
        ("ledger.key", FolderError, "ledger.key is missing: .*restore it from a backup"),
        ("authority.key", FolderError, "authority.key is missing"),
    ):
        kept = tmp_path / name
        shutil.move(folder.path / name, kept)
        if name != "authority.key":  # which commands do without
            with pytest.raises(kind, match=words):
                Operator(folder)
        with pytest.raises(kind, match=words):
            await Coordinator(folder).start()
        assert not (folder.path / name).exists()
        shutil.move(kept, folder.path / name)
    (folder.path / "coordinator.db").unlink()
    (folder.path / "coordinator.db").touch()
    with pytest.raises(StorageError, match="without fedpeer's tables"):
        await Coordinator(folder).start()


async def test_an_emptied_postgresql_database_is_not_filled_again(tmp_path: Path) -> None:
    with scratch_url("postgresql", tmp_path) as url:
        folder = made(tmp_path / "state", f"{CONFIG}[storage]\ndatabase = {url!r}\n")
        database = Database(url)
        erase(database)
        assert database.tables() == []
        engine = create_engine(url)
        with engine.connect() as connection:
            left = "SELECT count(*) FROM pg_proc WHERE pronamespace = current_schema()::regnamespace"
            assert connection.execute(text(left)).scalar_one() == 0
        engine.dispose()
        for attempt in (lambda: Operator(folder), Coordinator(folder).start):
            with pytest.raises(StorageError, match="restore a backup"):
                await attempt()  # type: ignore[misc]  # the operator refuses before there is anything to wait for
        assert database.tables() == []
        database.close()


def test_a_relative_database_is_the_folders_wherever_a_command_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(tmp_path / "state", f"{CONFIG}[storage]\ndatabase = 'sqlite:///market.db'\n")
    assert (folder.path / "market.db").is_file()
    monkeypatch.chdir(tmp_path)
    operator = Operator(StateFolder(Path("state")))
    operator.invite("ann")
    operator.close()
    assert not (tmp_path / "market.db").exists()


def test_a_folder_around_a_coordinators_names_the_one_that_is_meant(tmp_path: Path) -> None:
    folder = made(tmp_path / "state")
    with pytest.raises(FolderError, match=f"{folder.path} is one: name that"):
        StateFolder(tmp_path).config()
    with pytest.raises(FolderError, match="Make one with: fedpeer coordinator init"):
        StateFolder(tmp_path / "other").config()


def test_a_file_system_without_locks_is_named_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(file: object, kind: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    folder = made(tmp_path / "state")
    monkeypatch.setattr("coordinator.folder.flock", refused)
    for holding in (folder.lock, folder.shared_lock, folder.changing_keys):
        with (
            pytest.raises(FolderError, match=r"cannot be locked: No locks available; expected a file system"),
            holding(),
        ):
            pass
    monkeypatch.setattr("coordinator.staging.flock", refused)
    with pytest.raises(FolderError, match="cannot be locked"), staged(tmp_path / "backup.tar"):
        pass
    monkeypatch.setattr("coordinator.storage.lease.flock", refused)
    with pytest.raises(DatabaseUnreachable, match="cannot be locked"):
        Lease(Database(folder.database_url(folder.config())).url).take(wait_s=0)


def test_who_joins_a_folder_whose_mark_is_lost_is_told_so(tmp_path: Path) -> None:
    folder = made(tmp_path / "state")
    with folder.shared_lock() as mark:
        with folder.shared_lock() as other:
            assert other == mark
        (folder.path / "serve.mark").unlink()
        with (
            pytest.raises(FolderError, match=r"serve\.mark cannot be read.*stop them all"),
            folder.shared_lock(),
        ):
            pass


def test_machines_that_start_at_one_instant_all_write_their_addresses(tmp_path: Path) -> None:
    folder, count = made(tmp_path / "state"), 8
    begin = threading.Barrier(count)

    def start(number: int) -> None:
        begin.wait()
        for _ in range(20):
            folder.write_addresses({"market": f"10.0.0.{number}:7443"})

    with ThreadPoolExecutor(count) as threads:
        list(threads.map(start, range(count)))
    assert json.loads(folder.addresses.read_text())["market"].endswith(":7443")
    assert not list(folder.path.glob("*.new"))


def test_what_a_full_disk_does_not_take_leaves_nothing_beside_it(tmp_path: Path) -> None:
    folder = made(tmp_path / "state")
    folder.write_addresses({"market": "10.0.0.1:7443"})
    before = contents(folder.path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        with pytest.raises(FolderError, match="cannot be written"):
            folder.write_addresses({"market": "10.0.0.2:7443"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert contents(folder.path) == before
