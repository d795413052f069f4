"""Uploads on the disk: resumed at the byte, hashed whole, gone when they should be; blobs kept as long as needed."""

import errno
import hashlib
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from coordinator.blobs import BlobStore
from coordinator.spool import Spool, SpoolBusy, SpooledUpload, SpoolFull, UploadKey
from mechanism.errors import FieldError

KEY = UploadKey("task", "ann", "model-1")


def test_an_upload_in_pieces_across_two_processes_has_the_digest_of_the_whole(tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    first = Spool(tmp_path).resume(KEY, 0, len(content))
    first.append(content[:2_000_001])
    first.close()
    again = Spool(tmp_path)
    assert again.size(KEY) == 2_000_001
    second = again.resume(KEY, 2_000_000, len(content))
    second.append(content[2_000_000:])
    second.close()
    assert second.digest() == hashlib.sha256(content).digest()
    assert second.path.read_bytes() == content


def test_an_upload_is_taken_over_from_a_process_that_does_not_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, store = os.urandom(3_000_000), BlobStore(tmp_path / "models")
    spool = Spool(tmp_path / "spool")
    stopped = spool.resume(KEY, 0, len(content))
    stopped.append(content[:2_000_001])

    monkeypatch.setattr("coordinator.spool.PROCESS", "another")
    with pytest.raises(SpoolBusy):
        spool.resume(KEY, 2_000_000, len(content))
    taken = spool.resume(KEY, 2_000_000, len(content), take_over=True)
    taken.append(content[2_000_000:2_500_000])
    # The other one goes on, and can neither store a model nor take anything away.
    stopped.append(content[2_000_001:])
    with pytest.raises(FileNotFoundError):
        store.adopt(stopped.path, stopped.digest(), flushed=True)
    stopped.discard()
    assert spool.size(KEY) == 2_500_000
    taken.close()

    # Of one that has ended nothing is copied.
    held = taken.path.stat().st_ino
    monkeypatch.setattr("coordinator.spool.PROCESS", "a third")
    last = spool.resume(KEY, 2_500_000, len(content))
    assert last.path.stat().st_ino == held
    assert not taken.path.exists()
    last.append(content[2_500_000:])
    digest = hashlib.sha256(content).digest()
    assert last.digest() == digest
    store.adopt(last.path, digest)
    last.close()
    assert store.intact(digest)
    assert spool.size(KEY) == 0


class FailingDisk(ThreadPoolExecutor):
    """Flushes as a disk that cannot write: no file system here fails at a flush when it is asked to."""

    def submit(self, work: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        return super().submit(self._fail)

    def _fail(self) -> None:
        raise OSError(errno.EIO, "Input/output error")


def test_a_flush_that_fails_is_an_error_though_a_later_one_would_pass(tmp_path: Path) -> None:
    with FailingDisk(1) as disk:
        spooled = SpooledUpload(tmp_path / "model.part", None, disk)
        spooled.append(bytes(8 << 20))
        with pytest.raises(OSError, match="Input/output error"):
            spooled.settle()
        spooled.discard()


def test_flushes_beside_the_writing_leave_no_descriptor_open(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for k in range(3):
        spooled = spool.resume(UploadKey("task", "ann", f"model-{k}"), 0, 64 << 20)
        for _ in range(16):
            spooled.append(bytes(4 << 20))
        spooled.close()
        if k:
            spooled.settle()
    spool.stop()
    descriptors = Path("/proc/self/fd")
    still_open = [str(link.readlink()) for link in descriptors.iterdir() if link.is_symlink()]
    assert not [name for name in still_open if name.startswith(str(tmp_path))]


def test_what_is_announced_beyond_the_disk_is_refused_before_a_byte_is_written(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    with pytest.raises(SpoolFull, match="are free"):
        spool.resume(KEY, 0, 2**60)
    assert spool.size(KEY) == 0


@pytest.mark.parametrize("name", ["..", "../x", "a/b", "", "A", "a\x00b", ".hidden", "x" * 65])
def test_a_key_that_would_leave_the_folder_is_no_key(name: str) -> None:
    with pytest.raises(FieldError):
        UploadKey("task", "ann", name)
    with pytest.raises(FieldError):
        UploadKey(name, "ann", "s")


def test_sweeping_leaves_uploads_in_progress_and_clearing_leaves_running_tasks(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    keys = [KEY, UploadKey("task", "bob", "model-1"), UploadKey("ended", "bob", "model-1")]
    for key in keys:
        upload = spool.resume(key, 0, 10)
        upload.append(b"0123456789")
        upload.close()
    spool.scratch("task.mean").write_bytes(b"left over")
    spool.sweep("task", {KEY})
    assert [spool.size(key) for key in keys] == [10, 0, 10]
    spool.clear({"task"})
    assert [spool.size(key) for key in keys] == [10, 0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["task"]


def test_no_other_process_writes_to_what_this_one_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has led may still write a mean when the next one leads."""
    spool = Spool(tmp_path)
    ours = spool.scratch("task.mean")
    assert spool.scratch("task.mean") == ours
    monkeypatch.setattr("coordinator.spool.PROCESS", "another")
    assert spool.scratch("task.mean") != ours


def test_a_blob_makes_its_own_folder_and_takes_the_place_of_a_damaged_one(tmp_path: Path) -> None:
    store, source = BlobStore(tmp_path / "models"), tmp_path / "source"
    content, digest = b"weights", hashlib.sha256(b"weights").digest()
    with pytest.raises(FileNotFoundError):
        store.adopt(source, digest)
    for _ in range(2):
        source.write_bytes(content)
        assert store.adopt(source, digest) == store.path(digest)
        assert store.intact(digest)
        assert not source.exists()
        store.path(digest).write_bytes(b"")


def test_a_blob_is_stored_once_and_kept_while_it_is_referred_to(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "models")
    content = {name: name.encode() * 100 for name in ("kept", "dropped", "young")}
    digests = {name: hashlib.sha256(data).digest() for name, data in content.items()}
    for name, data in content.items():
        store.put(data, digests[name])
        source = tmp_path / "again"
        source.write_bytes(data)
        store.adopt(source, digests[name])
        assert not source.exists()
        assert store.intact(digests[name])
    old = time.time() - 7200
    for name in ("kept", "dropped"):
        os.utime(store.path(digests[name]), (old, old))
    assert store.retain({digests["kept"]}, time.time() - 3600) == 700
    assert [store.holds(digests[name]) for name in content] == [True, False, True]
