"""Every record of the journal comes back as it was written, in order, and what must not change does not."""

import sqlite3
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from participant.errors import ConfigurationError, JournalError
from participant.journal import LOG_KEY, VERSION, Journal, KeyRow, RoundRecord, SubmissionRecord, TaskRecord
from participant.persistence import may_pass

SECRET = bytes(range(32))


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path / "journal.db")
    yield opened
    opened.close()


def test_a_task_is_kept_with_what_was_decided_and_claimed(journal: Journal) -> None:
    assert journal.task("t") is None
    assert journal.tasks() == []
    journal.add_task("t", b"terms")
    assert journal.task("t") == TaskRecord("t", b"terms", 0, 0, None, None, None, None, "")
    journal.add_task("t", b"other terms")
    journal.add_task("s", b"more")
    journal.set_progress("t", 4, 9)
    journal.set_progress("t", 5, 3)
    journal.set_effort("t", "0.25")
    journal.set_claim("t", "[1, 2]", b"salt", SECRET)
    journal.set_note("t", "cancelled: too few")
    whole = TaskRecord("t", b"terms", 5, 9, "0.25", "[1, 2]", b"salt", SECRET, "cancelled: too few")
    assert journal.task("t") == whole
    assert journal.tasks() == [TaskRecord("s", b"more", 0, 0, None, None, None, None, ""), whole]
    journal.set_claim("t", "[1, 2]", None, SECRET)
    assert journal.tasks()[1].salt is None
    assert journal.folder == journal._path.parent


def test_submissions_come_in_the_order_of_their_rounds(journal: Journal) -> None:
    second = journal.prepare("m-2", "t", "model", 2, b"second", "file-2")
    first = journal.prepare("m-1", "t", "model", 1, b"first", "file-1")
    claim = journal.prepare("c-1", "t", "claim", 0, b"claim")
    failure = journal.prepare("f-1", "t", "failure", 1, b"failure")
    journal.prepare("x-1", "other", "model", 1, b"other")
    assert journal.submissions("t") == [claim, failure, first, second]
    assert first == SubmissionRecord("m-1", "t", "model", 1, b"first", "file-1", "prepared", None, "")
    assert claim.file == ""
    assert journal.submission("t", "claim") == claim
    assert journal.submission("t", "model", 3) is None
    assert journal.submission("t", "failure", 1) == failure


def test_one_submission_of_a_kind_stands_for_a_round(journal: Journal) -> None:
    first = journal.prepare("m-1", "t", "model", 1, b"first")
    assert journal.prepare("m-9", "t", "model", 1, b"second") == first
    with pytest.raises(JournalError, match=r"has m-1 for another task; restore it from a backup"):
        journal.prepare("m-1", "other", "model", 1, b"third")


def test_a_receipt_makes_it_recorded_and_a_refusal_gives_its_reason(journal: Journal) -> None:
    journal.prepare("m-1", "t", "model", 1, b"first")
    journal.prepare("m-2", "t", "model", 2, b"second")
    journal.record_refusal("m-1", "too late")
    refused = journal.submission("t", "model", 1)
    assert refused is not None
    assert (refused.status, refused.reason, refused.receipt) == ("refused", "too late", None)
    journal.record_receipt("m-1", b"receipt")
    recorded = journal.submission("t", "model", 1)
    assert recorded is not None
    assert (recorded.status, recorded.reason, recorded.receipt) == ("recorded", "", b"receipt")
    other = journal.submission("t", "model", 2)
    assert other is not None
    assert other.status == "prepared"


def test_only_what_was_never_accepted_is_taken_back(journal: Journal) -> None:
    journal.prepare("m-1", "t", "model", 1, b"first")
    journal.prepare("m-2", "t", "model", 2, b"second")
    journal.record_receipt("m-2", b"receipt")
    journal.discard("m-1")
    journal.discard("m-2")
    assert [s.submission_id for s in journal.submissions("t")] == ["m-2"]


def test_rounds_keep_their_start_their_first_reason_and_their_metrics(journal: Journal) -> None:
    journal.open_round("t", 2, b"start-2")
    journal.open_round("t", 1, b"start-1")
    journal.open_round("t", 1, b"start-1b")
    journal.set_metrics("t", 1, '{"loss": 1}')
    journal.miss_round("t", 2, "no scanner")
    journal.miss_round("t", 2, "another reason")
    journal.miss_round("t", 3, "never opened")
    journal.open_round("s", 1, b"of another task")
    assert journal.rounds("t") == [
        RoundRecord("t", 1, b"start-1b", "", "", '{"loss": 1}'),
        RoundRecord("t", 2, b"start-2", "missed", "no scanner", "{}"),
        RoundRecord("t", 3, None, "missed", "never opened", "{}"),
    ]


def test_settlements_come_in_the_order_of_their_rounds_and_the_last_word_counts(journal: Journal) -> None:
    journal.add_settlement("t", 2, b"second")
    journal.add_settlement("t", 1, b"first")
    journal.add_settlement("t", 1, b"first, with an award")
    journal.add_settlement("s", 3, b"of another task")
    assert journal.settlements("t") == [(1, b"first, with an award"), (2, b"second")]
    journal._connection.execute("UPDATE settlement SET message = 17 WHERE round = 2 AND task_id = 't'")
    assert journal.settlements("t")[1] == (2, b"17"), "what a damaged file has in its place is bytes, too"


def test_facts_are_kept_and_the_owner_is_the_first(journal: Journal) -> None:
    assert LOG_KEY == "log_key", "journals that are written already have it under this name"
    assert journal.meta("log_key") is None
    journal.set_meta("log_key", "one")
    journal.set_meta("log_key", "two")
    assert journal.meta("log_key") == "two"
    journal.own("ada")
    journal.own("ada")
    with pytest.raises(ConfigurationError, match="journal of ada, not of ben"):
        journal.own("ben")
    assert journal.meta("participant_id") == "ada"


def test_a_receipt_that_is_noted_survives_a_power_cut(journal: Journal, tmp_path: Path) -> None:
    pragmas = [
        journal._connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous")
    ]
    assert pragmas == ["wal", 2], "FULL"
    assert journal._connection.execute("PRAGMA user_version").fetchone()[0] == VERSION
    assert stat.S_IMODE((tmp_path / "journal.lock").stat().st_mode) == 0o600
    outside = sqlite3.connect(tmp_path / "journal.db")
    journal.add_task("t", b"terms")
    assert outside.execute("SELECT count(*) FROM task").fetchone()[0] == 1, (
        "written at once, and not at the end"
    )
    outside.close()


@pytest.mark.parametrize("version", [VERSION + 1, VERSION - 1])
def test_a_reader_needs_a_journal_of_its_own_version(tmp_path: Path, version: int) -> None:
    path = tmp_path / "journal.db"
    sqlite3.connect(path).execute(f"PRAGMA user_version = {version}").connection.close()
    words = f"has version {version}, this release knows version {VERSION}"
    with pytest.raises(JournalError, match=words):
        Journal(path, writer=False)
    with pytest.raises(JournalError, match="cannot be used"):
        Journal(tmp_path / "nothing.db", writer=False)
    assert not (tmp_path / "nothing.db").exists(), "a reader makes none"


def test_readers_go_on_beside_the_writer_and_take_no_lock(journal: Journal, tmp_path: Path) -> None:
    journal.add_task("t", b"terms")
    readers = [Journal(tmp_path / "journal.db", writer=False) for _ in range(2)]
    assert [len(reader.tasks()) for reader in readers] == [1, 1]
    for reader in readers:
        reader.close()
    with pytest.raises(JournalError, match="in use by another process; one participant runs once"):
        Journal(tmp_path / "journal.db")
    journal.close()
    Journal(tmp_path / "journal.db").close()


def test_a_lock_that_cannot_be_made_says_which(tmp_path: Path) -> None:
    (tmp_path / "journal.lock").mkdir()
    with pytest.raises(JournalError, match=r"journal\.lock cannot be opened .*check the folder"):
        Journal(tmp_path / "journal.db")


def test_a_lock_that_another_holds_costs_no_descriptor(journal: Journal, tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(JournalError, match="in use"):
            Journal(tmp_path / "journal.db")
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


@pytest.mark.parametrize(
    ("name", "words"),
    [("SQLITE_IOERR_READ", "the disk fails, or a quota"), ("SQLITE_CORRUPT", "restore it from a backup")],
)
def test_a_disk_that_fails_differs_from_a_damaged_journal_and_from_a_full_disk(
    journal: Journal, name: str, words: str
) -> None:
    class Failing:
        def execute(self, *_: object) -> None:
            error = sqlite3.DatabaseError("what SQLite says")
            error.sqlite_errorname = name
            raise error

    connection, journal._connection = journal._connection, Failing()  # type: ignore[assignment]
    with pytest.raises(JournalError, match=words) as caught:
        journal.set_note("t", "x")
    assert may_pass(caught.value) is name.startswith("SQLITE_IOERR")
    journal._connection = connection


def test_several_threads_write_one_journal(journal: Journal) -> None:
    threads = [
        threading.Thread(target=lambda i=i: [journal.set_meta(f"{i}-{j}", "x") for j in range(20)])
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(journal.meta(f"{i}-{j}") == "x" for i in range(4) for j in range(20))


def test_the_key_history_is_kept_in_order_each_row_once_and_without_a_gap(journal: Journal) -> None:
    rows = [
        KeyRow(0, 3, bytes([1] * 32), b"mine"),
        KeyRow(1, 5, bytes([2] * 32), None),
        KeyRow(2, 9, bytes([3] * 32), b"mine, too"),
    ]
    assert journal.key_history() == (0, bytes(32))
    journal.add_keys([])
    journal.add_keys(rows[1:])  # those before them are not known
    assert journal.key_history() == (0, bytes(32))
    journal.add_keys(rows[:2])
    journal.add_keys(rows)
    assert journal.key_history() == (3, bytes([3] * 32))
    assert journal.own_key_rows() == [rows[0], rows[2]]
    assert [journal.keys_before(index) for index in (3, 4, 9, 10)] == [
        (0, bytes(32)), (1, bytes([1] * 32)), (2, bytes([2] * 32)), (3, bytes([3] * 32)),
    ]  # fmt: skip
    journal.prove_keys(2)
    journal.prove_keys(1)
    assert journal.proven_keys() == 2
    journal.forget_keys()
    assert (journal.key_history(), journal.own_key_rows(), journal.proven_keys()) == ((0, bytes(32)), [], 0)
