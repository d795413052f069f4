"""A backup that is taken while the service runs becomes a coordinator that goes on with the task, or is refused."""

import asyncio
import io
import os
import random
import resource
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, inspect, select, text

import coordinator.backup as form
from coordinator.backup import BackupFile, Manifest, check_backup, read_backup
from coordinator.errors import FolderError
from coordinator.folder import OLD_AUTHORITY_KEY, StateFolder
from coordinator.operator import Notice, Operator
from coordinator.storage.schema import METADATA
from fedpeer.__main__ import main
from fedpeer.audit.sql.database import Database
from fedpeer.audit.sql.errors import DatabaseUnreachable, StorageError
from tests.backends import emptied, postgresql_database
from tests.integration.market import (
    CONFIG,
    Client,
    close,
    in_training,
    make_folder,
    model_like,
    open_task,
    running,
    task_config,
    verified,
)

pytestmark = pytest.mark.long


def back_up(folder: StateFolder, target: Path) -> Manifest:
    operator = Operator(folder)
    try:
        return operator.back_up(target)
    finally:
        operator.close()


async def test_a_task_goes_on_from_a_backup_of_its_middle(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    target = tmp_path / "backup.tar"
    members = await backed_up_in_training(folder, tmp_path, target)
    assert target.stat().st_mode & 0o077 == 0
    with pytest.raises(FolderError, match="exists already"):
        back_up(folder, target)
    read_backup(target, tmp_path / "restored")
    await go_on(StateFolder(tmp_path / "restored"), members)


async def test_a_task_goes_on_from_a_backup_of_postgresql(tmp_path: Path) -> None:
    with postgresql_database() as url:
        folder = make_folder(tmp_path / "state", f"{CONFIG}[storage]\ndatabase = {url!r}\n")
        target = tmp_path / "backup.tar"
        members = await backed_up_in_training(folder, tmp_path, target)
        with pytest.raises(
            FolderError, match=r"holds \d+ tables; nothing was changed. Name an empty one"
        ) as held:
            read_backup(target, tmp_path / "restored")
        assert "the database postgresql+psycopg://" in str(held.value)
        with pytest.raises(
            DatabaseUnreachable, match=r"--database sqlite:///coordinator\.db for a file in the state"
        ):
            read_backup(
                target, tmp_path / "restored", database="postgresql+psycopg://nobody@127.0.0.1:1/gone"
            )
        # What it advises works.
        assert "--database sqlite:///coordinator.db is a file in the state folder" in str(held.value)
        read_backup(target, tmp_path / "elsewhere", database="sqlite:///coordinator.db")
        assert (tmp_path / "elsewhere" / "coordinator.db").is_file()
        assert not (tmp_path / "restored").exists()
        emptied(url)
        read_backup(target, tmp_path / "restored")
        await go_on(StateFolder(tmp_path / "restored"), members)


async def backed_up_in_training(folder: StateFolder, tmp_path: Path, target: Path) -> list[Client]:
    """A task of two rounds whose first model is in when the backup is taken; its participants."""
    open_task(folder, task_config(tmp_path))
    async with running(folder) as coordinator:
        members = await in_training(coordinator, ("ann", "bob", "cyd"))
        await members[0].submit(model_like(0), 1)
        manifest = await asyncio.to_thread(back_up, folder, target)
        assert (manifest.models, manifest.left_out) == (2, ())
        await close(members)
    return members


async def go_on(restored: StateFolder, members: list[Client]) -> None:
    """Brings the task to its end from a restored folder, and checks the ledger."""
    async with running(restored) as coordinator:
        for number, client in enumerate(members):
            client.address = coordinator.market_address
            await client.submit(model_like(number), 1)
        await members[0].until("TRAINING", round_=2)
        for number, client in enumerate(members):
            await client.submit(model_like(number), 2)
        await members[0].until("CLOSED")
        for client in members:
            await client.close()
    assert verified(restored).counts.payments == 6


def test_a_backup_of_the_middle_of_replacements_is_of_one_moment(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    first, second = Operator(folder), Operator(folder)
    try:
        first.begin_authority()
        assert first.notice is Notice.NOT_SERVED
        # Another process announces a key of the log, and dies before it puts the key in its place.
        with folder.changing_keys():
            key = folder.prepare_signing_key("test")
            second._log.change_key(key)
        first.back_up(tmp_path / "backup.tar")
    finally:
        first.close()
        second.close()
    read_backup(tmp_path / "backup.tar", tmp_path / "restored")
    restored = StateFolder(tmp_path / "restored")
    assert restored.authorities() == folder.authorities()
    older = restored.older_authority()
    assert older is not None
    assert (restored.path / OLD_AUTHORITY_KEY).stat().st_mode & 0o777 == 0o600
    operator = Operator(restored)
    try:
        assert operator.verification_key == key.verification_key
        operator.invite("ann")
        assert operator.unsigned is None
        operator.end_authority()
        operator.change_log_key()
        back_up(restored, tmp_path / "again.tar")
    finally:
        operator.close()
    verified(restored)
    read_backup(tmp_path / "again.tar", tmp_path / "ended")
    assert StateFolder(tmp_path / "ended").older_authority() is None
    verified(StateFolder(tmp_path / "ended"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of a folder with a task, so with a model."""
    path = tmp_path_factory.mktemp("whole")
    folder = make_folder(path / "state")
    open_task(folder, task_config(path))
    assert back_up(folder, path / "backup.tar").models == 1
    return path / "backup.tar"


def refused(content: bytes, folder: Path) -> str:
    """The sentence that a file is refused with, by the check and by the restore; nothing is written."""
    folder.mkdir(exist_ok=True)
    file = folder / "other.tar"
    file.write_bytes(content)
    with pytest.raises(FolderError) as checked:
        check_backup(file)
    with pytest.raises(FolderError) as restored:
        read_backup(file, folder / "restored")
    assert str(restored.value) == str(checked.value)
    assert [path.name for path in folder.iterdir()] == ["other.tar"]
    return str(checked.value)


def test_one_bit_that_differs_anywhere_is_found_before_anything_is_written(
    whole: Path, tmp_path: Path
) -> None:
    content = whole.read_bytes()
    chosen = random.Random(1)
    with tarfile.open(whole) as archive:
        members = archive.getmembers()
    # Of every header the name, mode, size, time and checksum; the first and last byte of every content and padding.
    places = {m.offset + at for m in members for at in (0, 101, 130, 140, 150, 260, 511)}
    places |= {m.offset_data + at for m in members for at in (0, m.size - 1, -(-m.size // 512) * 512 - 1)}
    places |= {len(content) - 1, len(content) - 1024} | set(chosen.sample(range(len(content)), 60))
    for place in sorted(places):
        altered = bytearray(content)
        altered[place] ^= 1 << chosen.randrange(8)
        assert "backup" in refused(bytes(altered), tmp_path / "altered"), place


def test_a_backup_that_was_cut_anywhere_or_goes_on_is_found(whole: Path, tmp_path: Path) -> None:
    content = whole.read_bytes()
    with tarfile.open(whole) as archive:
        members = archive.getmembers()
    between = {m.offset for m in members} | {m.offset_data for m in members}
    inside = {m.offset_data + m.size // 2 for m in members}
    for size in sorted(between | inside | {len(content) - 1, len(content) - 512, len(content) - 1024}):
        assert "backup" in refused(content[:size], tmp_path / "cut"), size
    for more in (b"\0", bytes(9 * 1024), content):
        assert "something follows after its end" in refused(content + more, tmp_path / "longer")


def archived(*entries: tuple[str, bytes, bytes], link: str = "") -> bytes:
    """A tar file of (name, type, content)."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, kind, content in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.size, entry.linkname = kind, len(content), link
            archive.addfile(entry, io.BytesIO(content))
    return file.getvalue()


def test_what_is_no_backup_is_refused(whole: Path, tmp_path: Path) -> None:
    for content in (b"", b"not a tar file" * 100, bytes(4096), os.urandom(4096)):
        assert "is not a backup" in refused(content, tmp_path / "foreign")
    plain = archived(("manifest.json", tarfile.REGTYPE, b"{}"))
    for content in (
        plain,
        archived(("manifest.json", tarfile.REGTYPE, b"[" * 2000)),
        archived(("../manifest.json", tarfile.REGTYPE, b"{}")),
        archived(("/etc/passwd", tarfile.REGTYPE, b"x")),
        archived(("manifest.json", tarfile.SYMTYPE, b""), link="/etc/passwd"),
        archived(("manifest.json", tarfile.LNKTYPE, b""), link="/etc/passwd"),
        archived(("manifest.json", tarfile.CHRTYPE, b"")),
    ):
        assert "backup" in refused(content, tmp_path / "foreign")
    older = archived(("manifest.json", tarfile.REGTYPE, b'{"version":1}'))
    assert "has the form 1; this program knows 3" in refused(older, tmp_path / "foreign")
    for path, words in (
        (tmp_path / "missing.tar", "No such file"),
        (tmp_path, "is not a file"),
        (Path("/dev/zero"), "is not a file"),
    ):
        with pytest.raises(FolderError, match=words):
            read_backup(path, tmp_path / "restored")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FolderError, match="is not a file"):
        read_backup(tmp_path / "pipe", tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


def rewritten(whole: Path, change: Callable[[Manifest], Manifest]) -> bytes:
    """The backup under another manifest, of which every digest and size holds: as somebody else would write it."""
    manifest = check_backup(whole)
    changed = change(manifest)
    contents = {}
    with tarfile.open(whole) as archive:
        for member in manifest.members:
            found = archive.extractfile(member.name)
            assert found is not None
            contents[member.sha256] = found.read()
    file = io.BytesIO()
    form._write(file, changed, {m.name: contents.get(m.sha256, b"") for m in changed.members})
    return file.getvalue()


@pytest.mark.parametrize(
    "name",
    ["../up.key", "/abs.key", "a/b.key", "..", ".hidden.key", "evil.sh", "models/../../x", "serve.lock"],
)
def test_a_member_that_leads_elsewhere_is_refused_though_everything_fits(
    whole: Path, tmp_path: Path, name: str
) -> None:
    def renamed(manifest: Manifest) -> Manifest:
        first = replace(manifest.members[1], name=name)
        return replace(manifest, members=(*manifest.members, first))

    assert "is not a file of a coordinator" in refused(rewritten(whole, renamed), tmp_path / "elsewhere")


@pytest.mark.parametrize("digest", ["../../up", "/abs", "", "0" * 63, "A" * 64, "0" * 64 + "/x"])
def test_a_model_of_a_name_that_is_no_digest_is_refused(whole: Path, tmp_path: Path, digest: str) -> None:
    model = BackupFile(f"models/{digest}", 0, digest)
    content = rewritten(whole, lambda m: replace(m, members=(*m.members, model)))
    assert "is not a file of a coordinator" in refused(content, tmp_path / "digest")


def test_a_member_too_few_or_twice_or_of_another_name_is_refused(whole: Path, tmp_path: Path) -> None:
    def without(name: str) -> Callable[[Manifest], Manifest]:
        return lambda m: replace(m, members=tuple(found for found in m.members if found.name != name))

    for name in (
        "ledger.key",
        "authority.key",
        "authority.pem",
        "server.pem",
        "coordinator.toml",
        "database",
    ):
        assert f"it lists no {name}" in refused(rewritten(whole, without(name)), tmp_path / "few")
    twice = rewritten(whole, lambda m: replace(m, members=(*m.members, m.members[0])))
    assert "lists a member twice" in refused(twice, tmp_path / "twice")

    def misnamed(manifest: Manifest) -> Manifest:
        model = replace(manifest.members[-1], name="models/" + "0" * 64)
        return replace(manifest, members=(*manifest.members[:-1], model))

    assert "is not a file of a coordinator" in refused(rewritten(whole, misnamed), tmp_path / "model")


def test_a_ledger_that_is_not_the_manifests_is_not_restored(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "b.tar").write_bytes(rewritten(whole, lambda m: replace(m, ledger_size=1)))
    with pytest.raises(FolderError, match="the restored ledger has 4 entries and not the 1"):
        read_backup(tmp_path / "b.tar", tmp_path / "restored")
    assert [path.name for path in tmp_path.iterdir()] == ["b.tar"]


def test_every_kept_file_comes_back_for_its_owner_alone(whole: Path, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    # As somebody adds who lets certificates overlap.
    (folder.path / "authority-next.pem").write_text("next")
    (folder.path / "authority-next.key").touch(mode=0o600)
    back_up(folder, tmp_path / "backup.tar")
    read_backup(tmp_path / "backup.tar", tmp_path / "a" / "b" / "restored")
    restored = StateFolder(tmp_path / "a" / "b" / "restored")
    assert restored.kept_files() == folder.kept_files()
    for name, mode in restored.kept_files().items():
        assert (restored.path / name).read_bytes() == (folder.path / name).read_bytes()
        assert (restored.path / name).stat().st_mode & 0o777 == mode
    assert restored.path.stat().st_mode & 0o777 == 0o700
    assert (restored.path / "coordinator.db").stat().st_mode & 0o077 == 0


def test_a_folder_with_a_part_of_a_coordinator_is_not_restored_into(whole: Path, tmp_path: Path) -> None:
    for name in ("ledger.key", "coordinator.toml", "coordinator.db", "old.pem", "models"):
        target = tmp_path / name / "state"
        target.mkdir(parents=True)
        (target / name).write_text("precious")
        with pytest.raises(FolderError, match=rf"parts of a coordinator, {name}; nothing was overwritten"):
            read_backup(whole, target)
        assert [(path.name, path.read_text()) for path in target.iterdir()] == [(name, "precious")]
        assert list(target.parent.iterdir()) == [target]
    volume = tmp_path / "volume"
    (volume / "lost+found").mkdir(parents=True)
    read_backup(whole, volume)
    assert StateFolder(volume).config().name == "test"
    assert not list(volume.glob(".*"))


def test_a_model_that_is_damaged_or_missing_is_named_and_the_rest_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path))
    (model,) = folder.models.glob("??/*")
    model.write_bytes(b"rotten")
    target = str(tmp_path / "backup.tar")
    monkeypatch.setattr(
        sys, "argv", ["fedpeer", "coordinator", "backup", target, "--state", str(folder.path)]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert f"INCOMPLETE: 1 model file that tasks need is missing or damaged in {folder.models}" in (
        capsys.readouterr().err
    )
    assert check_backup(Path(target)).left_out == (model.stem,)


def test_a_damaged_database_is_not_backed_up(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path))
    operator = Operator(folder)
    try:
        with (folder.path / "coordinator.db").open("r+b") as file:
            for page in range(8, 40):
                file.seek(4096 * page)
                file.write(os.urandom(4096))
        with pytest.raises(StorageError, match="damaged"):
            operator.back_up(tmp_path / "backup.tar")
    finally:
        operator.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["initial.safetensors", "state"]


def fedpeer(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fedpeer", "coordinator", *arguments]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def test_two_backups_to_one_file_leave_one_whole_backup(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    target = tmp_path / "backup.tar"
    both = [fedpeer("backup", str(target), "--state", str(folder.path)) for _ in range(2)]
    said = [process.communicate(timeout=120)[1] for process in both]
    codes = sorted(process.returncode for process in both)
    assert codes == [0, 2], said
    (why,) = [text for process, text in zip(both, said, strict=True) if process.returncode]
    assert "exists already" in why or "another process is making" in why
    check_backup(target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup.tar", "state"]


def small_files() -> None:
    """As on a full disk: no file grows beyond 100 kB, and the database has more."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


def test_a_full_disk_leaves_nothing(whole: Path, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    ended = [
        fedpeer(*arguments, preexec_fn=small_files)
        for arguments in (
            ("init", str(tmp_path / "new")),
            ("backup", str(tmp_path / "backup.tar"), "--state", str(folder.path)),
            ("restore", str(whole), str(tmp_path / "restored")),
        )
    ]
    for process in ended:
        said = process.communicate(timeout=120)[1]
        assert process.returncode == 2, said
        assert said.startswith("fedpeer: ")
        assert "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


#: Stops a restore in the middle of its work, for the test to end it there.
STOPPED = """
import os, signal, sys
import coordinator.backup, coordinator.folder
from fedpeer.__main__ import main
where, module = sys.argv.pop(1), coordinator.backup
work = getattr(module, where)
def stop(*arguments, **options):
    result = work(*arguments, **options)
    print("here", flush=True)
    signal.pause()
    return result
setattr(module, where, stop)
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("where", "number"),
    [
        ("_unpack", signal.SIGKILL),
        pytest.param("_restore_database", signal.SIGKILL, marks=pytest.mark.extended),
        ("_restore_database", signal.SIGTERM),
        ("_check_restored", signal.SIGINT),
    ],
)
def test_a_restore_that_is_ended_leaves_no_folder_and_the_next_one_cleans_up(
    whole: Path, tmp_path: Path, where: str, number: signal.Signals
) -> None:
    target = tmp_path / "restored"
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED, where, "coordinator", "restore", str(whole), str(target)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    process.send_signal(number)
    assert process.wait(60) != 0
    assert not target.exists()
    left = [path.name for path in tmp_path.iterdir()]
    assert left == ([".restored.part"] if number == signal.SIGKILL else [])
    read_backup(whole, target)
    assert [path.name for path in tmp_path.iterdir()] == ["restored"]


def rows(url: str) -> dict[str, int]:
    """How many rows each table of a database has."""
    engine = create_engine(url)
    with engine.connect() as connection:
        names = inspect(connection).get_table_names()
        counts = {n: connection.execute(text(f"SELECT count(*) FROM {n}")).scalar_one() for n in names}
    engine.dispose()
    return counts


@pytest.fixture
def two_databases() -> Iterator[tuple[str, str]]:
    with postgresql_database() as first, postgresql_database() as second:
        yield first, second


def test_a_rehearsal_into_another_database_leaves_the_original_alone(
    two_databases: tuple[str, str], tmp_path: Path
) -> None:
    original, other = two_databases
    folder = make_folder(tmp_path / "state", f"{CONFIG}[storage]\ndatabase = {original!r}\n")
    open_task(folder, task_config(tmp_path))
    back_up(folder, tmp_path / "backup.tar")
    before = rows(original)
    with pytest.raises(FolderError, match="Name an empty one with --database"):
        read_backup(tmp_path / "backup.tar", tmp_path / "rehearsal")
    assert not (tmp_path / "rehearsal").exists()
    read_backup(tmp_path / "backup.tar", tmp_path / "rehearsal", database=other)
    rehearsal = StateFolder(tmp_path / "rehearsal")
    assert rehearsal.config().storage.database == other
    assert rehearsal.config().server == folder.config().server
    assert rows(other) == before
    verified(rehearsal)
    cancel(rehearsal)
    assert rows(original) == before
    verified(folder)


def cancel(folder: StateFolder) -> None:
    operator = Operator(folder)
    try:
        operator.cancel("task", "rehearsed")
    finally:
        operator.close()


def test_a_market_moves_from_one_kind_of_database_to_the_other(
    two_databases: tuple[str, str], tmp_path: Path
) -> None:
    original, other = two_databases
    folder = make_folder(tmp_path / "state", f"{CONFIG}[storage]\ndatabase = {original!r}\n")
    open_task(folder, task_config(tmp_path))
    for name, kind in (("there.tar", "postgresql"), ("back.tar", "sqlite")):
        assert back_up(folder, tmp_path / name).database == kind
        url = "sqlite:///moved.db" if kind == "postgresql" else other
        read_backup(tmp_path / name, tmp_path / kind, database=url)
        folder = StateFolder(tmp_path / kind)
        moved = Database(folder.database_url(folder.config()))
        assert contents(moved) == contents(Database(original))
        with pytest.raises(StorageError, match="never changed or removed"), moved.begin() as connection:
            connection.execute(text("DELETE FROM ledger_ids"))
        moved.close()
        verified(folder)
    cancel(folder)
    verified(folder)


def contents(database: Database) -> dict[str, list[str]]:
    """The rows of each table."""
    with database.read() as connection:
        return {
            table.name: sorted(map(str, connection.execute(select(table))))
            for table in METADATA.sorted_tables
        }


def test_a_restore_that_fails_leaves_the_postgresql_database_empty(
    two_databases: tuple[str, str], tmp_path: Path
) -> None:
    original, other = two_databases
    folder = make_folder(tmp_path / "state", f"{CONFIG}[storage]\ndatabase = {original!r}\n")
    back_up(folder, tmp_path / "backup.tar")

    def fail(made: StateFolder) -> None:
        raise FolderError("no")

    with pytest.raises(FolderError, match="no"):
        read_backup(tmp_path / "backup.tar", tmp_path / "r", database=other, act=fail)
    assert rows(other) == {}
    assert not (tmp_path / "r").exists()
    read_backup(tmp_path / "backup.tar", tmp_path / "r", database=other)
    assert rows(other) == rows(original)
