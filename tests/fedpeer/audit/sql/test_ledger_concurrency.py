"""Fifty writers at once, each with its own connections."""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from coordinator.storage.schema import migrate
from fedpeer.audit.database_source import DatabaseSource
from fedpeer.audit.sql.database import Database
from fedpeer.audit.sql.ledger_store import SignedLog, SqlLedgerStore
from mechanism.ledger import entries
from mechanism.ledger.accounts import Post, Reserve, Resolve
from mechanism.ledger.appending import Ledger
from mechanism.ledger.entry import Entry
from mechanism.ledger.errors import EntryConflictError, PostingError
from mechanism.ledger.verify import verify_ledger
from tests.backends import DURABLE, scratch_url
from tests.memory_source import KEY

WRITERS = 50


@pytest.fixture(params=DURABLE)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with scratch_url(request.param, tmp_path) as scratch:
        database = Database(scratch)
        migrate(database)
        database.close()
        yield scratch


def all_at_once(url: str, work: Callable[[int, Database], str]) -> Counter[str]:
    """What `WRITERS` threads answer that start together."""
    barrier = Barrier(WRITERS)

    def run(number: int) -> str:
        database = Database(url, lock_timeout_s=120)
        try:
            with database.read() as connection:  # connected before the start
                SqlLedgerStore(connection).size()
            barrier.wait()
            return work(number, database)
        finally:
            database.close()

    with ThreadPoolExecutor(WRITERS) as pool:
        return Counter(pool.map(run, range(WRITERS)))


def append(database: Database, *sent: Entry) -> str:
    try:
        with database.begin() as connection:
            recorded = Ledger(SqlLedgerStore(connection)).append(sent)
    except EntryConflictError:
        return "conflict"
    except PostingError:
        return "refused"
    return "new" if recorded[0].new else "known"


def test_one_of_the_same_entries_is_new_and_the_rest_learn_its_place(url: str) -> None:
    sent = entries.failure("task", 1, "p", "s", "same")
    assert all_at_once(url, lambda _, db: append(db, sent)) == {"new": 1, "known": WRITERS - 1}


def test_one_of_different_bodies_under_an_id_wins_and_the_rest_conflict(url: str) -> None:
    answers = all_at_once(url, lambda i, db: append(db, entries.failure("task", 1, "p", "s", f"{i}")))
    assert answers == {"new": 1, "conflict": WRITERS - 1}


def test_different_ids_all_get_a_place_of_their_own(url: str) -> None:
    def work(number: int, database: Database) -> str:
        answers = {append(database, entries.failure("task", 1, "p", f"{number}-{i}", "x")) for i in range(4)}
        SignedLog(database, KEY).sign_head()
        return "/".join(answers)

    assert all_at_once(url, work) == {"new": WRITERS}
    database = Database(url)
    with database.read() as connection:
        store = SqlLedgerStore(connection)
        ids = [Entry.parse(data).id for data in store.entries(0, store.size())]
        heads = [size for size, _ in store.checkpoints()]
        assert len(ids) == len(set(ids)) == 4 * WRITERS == heads[-1]
        assert store.find(ids) == {entry_id: i for i, entry_id in enumerate(ids)}
    database.close()


def test_a_reservation_is_resolved_once_whoever_tries(url: str) -> None:
    database = Database(url)
    held = Reserve("task/1", "treasury", "escrow:task", 1000)
    assert append(database, Entry("open", "failure", {}, (held,))) == "new"

    def work(number: int, own: Database) -> str:
        paid = Resolve("task/1", 10 + number % 2)
        posted = Post("escrow:task", "payable:p", 10 + number % 2)
        return append(own, Entry(f"settle/{number}", "failure", {}, (paid, posted)))

    assert all_at_once(url, work) == {"new": 1, "refused": WRITERS - 1}
    with database.read() as connection:
        balances = SqlLedgerStore(connection).all_balances()
    assert balances["payable:p"].holds in (10, 11)
    assert balances["escrow:task"].holds == balances["escrow:task"].credits_pending == 0
    database.close()


def test_the_ledger_that_fifty_wrote_verifies(url: str) -> None:
    def work(number: int, database: Database) -> str:
        key = f"participant{number}"
        from tests.ledger_samples import private_key

        return append(database, entries.enrolment(key, private_key(key).public_key()))

    assert all_at_once(url, work) == {"new": WRITERS}
    database = Database(url)
    SignedLog(database, KEY).sign_head()
    with database.read() as connection:
        report = verify_ledger(DatabaseSource(database, connection), KEY.verification_key)
    assert report.verified, report.problems
    database.close()
