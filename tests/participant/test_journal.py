"""The journal and the state folder: what they keep, and what they say when they cannot."""

import errno
import os
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import participant.model_store
from fedpeer.protocol.certificates import (
    Identity,
    issue_participant_certificate,
    issue_server_certificate,
    make_authority,
    new_key,
    private_key_pem,
    signing_request,
)
from participant.errors import (
    CertificateExpiredError,
    ConfigurationError,
    DiskFullError,
    JournalError,
    StateError,
    WeightsError,
)
from participant.identity import IdentityFolder
from participant.journal import VERSION, Journal
from participant.model_store import ModelStore, read_weights, write_weights
from tests.participant.simulated_market import start_weights, terms

NOW = datetime.now(UTC)


def test_a_submission_stands_as_it_was_first_written_down(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    journal.add_task("t", b"terms")
    first = journal.prepare("model-1", "t", "model", 1, b"first", "file")
    again = journal.prepare("model-1", "t", "model", 1, b"second", "file")
    assert again == first
    assert again.message == b"first"
    journal.record_receipt("model-1", b"receipt")
    journal.discard("model-1")
    held = journal.submission("t", "model", 1)
    assert held is not None, "what the coordinator holds is not forgotten"
    assert held.receipt == b"receipt"
    journal.close()


def test_what_was_written_is_there_for_the_next_process_and_for_readers(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    journal.own("ada")
    journal.add_task("t", b"terms")
    journal.set_progress("t", 4, 9)
    journal.set_progress("t", 4, 3)
    journal.miss_round("t", 2, "first reason")
    journal.miss_round("t", 2, "second reason")
    reader = Journal(tmp_path / "journal.db", writer=False)
    record = reader.task("t")
    assert record is not None
    assert record.cursor == 9, "a cursor never goes back"
    assert [line.reason for line in reader.rounds("t")] == ["first reason"]
    with pytest.raises(JournalError):
        reader.set_note("t", "readers do not write")
    reader.close()
    journal.close()
    again = Journal(tmp_path / "journal.db")
    with pytest.raises(ConfigurationError, match="journal of ada, not of ben"):
        again.own("ben")
    again.close()


def test_one_process_writes_at_a_time(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    with pytest.raises(JournalError, match="in use by another process"):
        Journal(tmp_path / "journal.db")
    journal.close()
    Journal(tmp_path / "journal.db").close()


def test_every_name_of_a_journal_leads_to_one_lock(tmp_path: Path) -> None:
    folder, other = tmp_path / "folder", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    (tmp_path / "linked").symlink_to(folder)
    (other / "journal.db").symlink_to(folder / "journal.db")
    journal = Journal(folder / "journal.db")
    for name in (tmp_path / "linked" / "journal.db", other / "journal.db"):
        with pytest.raises(JournalError, match="in use by another process"):
            Journal(name)
    (tmp_path / "journal.db").hardlink_to(folder / "journal.db")
    with pytest.raises(JournalError, match="has several names"):
        Journal(tmp_path / "journal.db")
    (tmp_path / "journal.db").unlink()
    journal.close()
    Journal(other / "journal.db").close()


def test_a_newer_or_damaged_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    Journal(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()
    with pytest.raises(JournalError, match="a newer one"):
        Journal(path)
    path.write_bytes(b"this is no database, whatever its name says" * 100)
    with pytest.raises(JournalError, match="restore it from a backup"):
        Journal(path)
    path.unlink()
    Journal(path).close()  # the lock was given back each time


def test_a_full_disk_is_said_to_be_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "journal.db")
    journal._connection.execute("PRAGMA max_page_count = 1")  # SQLite's own way to run out of space
    with pytest.raises(DiskFullError, match="nothing is lost"):
        journal.add_task("t", bytes(1_000_000))
    assert journal.tasks() == [], "nothing half-written"
    journal.close()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(participant.model_store.os, "fsync", full)
    with pytest.raises(DiskFullError, match="make space"):
        write_weights(tmp_path / "model", start_weights(), terms().contract)
    assert sorted(path.name for path in tmp_path.glob("model*")) == []


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"w": np.full(300, np.nan, np.float32), "n": np.array(3)}, "300 values that are NaN"),
        ({"w": np.zeros(300, np.float64), "n": np.array(3)}, "F64 of shape"),
        ({"w": np.zeros(300, np.float32)}, "'n' is missing"),
        ({"w": np.zeros(300, np.float32), "n": np.array(3), "x": np.zeros(1)}, "'x' is not in the contract"),
        ({"w": np.full(300, 1e9, np.float32), "n": np.array(3)}, "norm"),
        ({"w": np.array(["text"] * 300), "n": np.array(3)}, "dtype"),
        ({}, "at least one tensor"),
        ([1, 2], "a mapping of tensor names"),
        ({1: np.zeros(3)}, "names that are strings"),
    ],
)
def test_weights_that_do_not_fit_leave_no_file(tmp_path: Path, weights: Any, words: str) -> None:
    with pytest.raises(WeightsError, match=words):
        write_weights(tmp_path / "model", weights, terms().contract)
    assert not (tmp_path / "model").exists()


def test_a_model_file_that_is_damaged_says_so(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    store.start("t", 1).write_bytes(b"short")
    with pytest.raises(StateError, match="fetched again"):
        read_weights(store.start("t", 1))
    store.forget("t", 1)
    assert not store.start("t", 1).exists()


class TestIdentityFolder:
    """Keys and certificates that do not fit are found before anything is sent."""

    AUTHORITY = make_authority("test", NOW)

    def enrolled(
        self, path: Path, issued: datetime = NOW, lifetime: timedelta = timedelta(days=90)
    ) -> IdentityFolder:
        folder = IdentityFolder(path)
        certificate = issue_participant_certificate(
            self.AUTHORITY, "ada", signing_request("ada", folder.key(create=True)), issued, lifetime
        )
        pem = Identity(new_key(), certificate).certificate_pem
        folder.save_enrolment(pem, self.AUTHORITY.certificate_pem)
        return folder

    def test_the_key_is_its_owners_alone(self, tmp_path: Path) -> None:
        folder = self.enrolled(tmp_path / "state")
        assert (folder.path / "key.pem").stat().st_mode & 0o077 == 0
        assert folder.credentials().participant_id == "ada"

    def test_a_second_enrolment_keeps_the_key(self, tmp_path: Path) -> None:
        folder = self.enrolled(tmp_path / "state")
        before = (folder.path / "key.pem").read_bytes()
        self.enrolled(tmp_path / "state")
        assert (folder.path / "key.pem").read_bytes() == before

    def test_a_foreign_key(self, tmp_path: Path) -> None:
        folder = self.enrolled(tmp_path / "state")
        (folder.path / "key.pem").write_bytes(private_key_pem(new_key()))
        with pytest.raises(ConfigurationError, match="do not belong together"):
            folder.credentials()

    def test_a_damaged_key(self, tmp_path: Path) -> None:
        folder = self.enrolled(tmp_path / "state")
        (folder.path / "key.pem").write_text("not a key")
        with pytest.raises(ConfigurationError, match="enrol again"):
            folder.credentials()

    def test_a_certificate_that_has_expired_or_is_not_valid_yet(self, tmp_path: Path) -> None:
        credentials = self.enrolled(tmp_path / "state", lifetime=timedelta(days=1)).credentials()
        credentials.check_valid(NOW)
        with pytest.raises(CertificateExpiredError, match="enrol again"):
            credentials.check_valid(NOW + timedelta(days=2))
        with pytest.raises(CertificateExpiredError, match="clock is late"):
            credentials.check_valid(NOW - timedelta(days=2))
        assert credentials.renewal_due > NOW
        assert credentials.renewal_due <= NOW + timedelta(hours=20)

    def test_a_server_certificate_of_the_same_authority_is_no_enrolment(self, tmp_path: Path) -> None:
        folder = IdentityFolder(tmp_path / "state")
        folder.key(create=True)
        server = issue_server_certificate(self.AUTHORITY, ["localhost"], NOW)
        with pytest.raises(ConfigurationError, match="do not belong together"):
            folder.save_enrolment(server.certificate_pem, self.AUTHORITY.certificate_pem)
