"""A process that settles tasks is killed with SIGKILL at random moments; what it acknowledged must stand."""

import hashlib
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from coordinator.storage.schema import migrate
from fedpeer.audit.database_source import DatabaseSource
from fedpeer.audit.sql.database import Database
from fedpeer.audit.sql.ledger_store import SignedLog, SqlLedgerStore
from mechanism.ledger.appending import Ledger
from mechanism.ledger.entry import Entry
from mechanism.ledger.note import Checkpoint
from mechanism.ledger.verify import verify_ledger
from tests import ledger_samples as samples
from tests.backends import DURABLE, scratch_url
from tests.killing import heard
from tests.memory_source import KEY

PEOPLE = samples.names(3)

#: A process is killed after up to so many acknowledgements, and up to so many seconds after the last of them: about
#: what a transaction, or the signing of a head, takes.
MOST_ACKNOWLEDGED = 3
LIFE_S = 0.03


def steps(task: int) -> list[list[Entry]]:
    """One task's transactions. Participants enrol with the first."""
    made = list(samples.transactions(samples.terms(f"task{task}", rounds=2, capacity=3), PEOPLE))
    return made if task == 0 else [made[0][len(PEOPLE) :], *made[1:]]


def settle(url: str, tasks: int | None, acknowledge: int) -> None:
    """The process: goes on where the ledger ends, and acknowledges what is durable through a pipe.

    Without a number of tasks it settles for ever, so that a kill always finds it at work.
    """
    database = Database(url)
    log = SignedLog(database, KEY)
    for task in count() if tasks is None else range(tasks):
        with database.read() as connection:
            done = f"task{task}/round/2/state/CLOSED" in SqlLedgerStore(connection).find(
                [f"task{task}/round/2/state/CLOSED"]
            )
        for step in [] if done else steps(task):
            with database.begin() as connection:
                recorded = Ledger(SqlLedgerStore(connection)).append(step)
            lines = [
                f"entry {place.index} {hashlib.sha256(entry.data).hexdigest()}\n"
                for place, entry in zip(recorded, step, strict=True)
            ]
            os.write(acknowledge, "".join(lines).encode())
            head = Checkpoint.open(log.sign_head(), KEY.verification_key)
            os.write(acknowledge, f"head {head.size} {head.root.hex()}\n".encode())
    os.write(acknowledge, b"done\n")


@dataclass
class Witness:
    """Everything that was ever acknowledged."""

    entries: dict[int, str] = field(default_factory=dict)
    heads: dict[int, str] = field(default_factory=dict)
    finished: bool = False

    def hear(self, heard: bytes) -> None:
        """Takes what came through the pipe. A line that the kill cut short was not heard."""
        for line in heard[: heard.rfind(b"\n") + 1].decode().splitlines():
            kind, *words = line.split()
            if kind == "done":
                self.finished = True
                continue
            known = self.entries if kind == "entry" else self.heads
            assert known.setdefault(int(words[0]), words[1]) == words[1], "one place, two contents"

    def check(self, url: str) -> None:
        """All invariants, on the database as the killed process left it."""
        database = Database(url)
        with database.read() as connection:
            store = SqlLedgerStore(connection)
            ledger = Ledger(store)
            data = list(store.entries(0, store.size()))
            for index, digest in self.entries.items():
                assert hashlib.sha256(data[index]).hexdigest() == digest, f"entry {index} was lost or changed"
            for size, root in self.heads.items():
                assert ledger.root(size).hex() == root, f"the head of {size} was forked"
            signed = [Checkpoint.open(note, KEY.verification_key).size for _, note in store.checkpoints()]
            assert set(self.heads) <= set(signed)
            if signed:
                source = DatabaseSource(database, connection)
                report = verify_ledger(source, KEY.verification_key, check_statements=False)
                assert report.verified, report.problems
            check_paid_once(data, store)
        database.close()


def check_paid_once(data: list[bytes], store: SqlLedgerStore) -> None:
    """Balances against the payments' own words, each counted once."""
    parsed = [Entry.parse(item) for item in data]
    assert len({entry.id for entry in parsed}) == len(parsed)
    paid: Counter[str] = Counter()
    for entry in parsed:
        if entry.kind == "payment":
            paid[str(entry.body["participant_id"])] += int(str(entry.body["paid_micro"]))
            paid[str(entry.body["participant_id"])] -= int(str(entry.body["stake_lost_micro"]))
    balances = store.all_balances()
    held: Counter[str] = Counter()
    for name, balance in balances.items():
        if name.startswith(("payable:", "stake:")):
            held[name.rsplit(":", 1)[1]] += balance.holds
    assert +held == +paid
    assert sum(b.debits_posted - b.credits_posted for b in balances.values()) == 0
    assert sum(b.debits_pending - b.credits_pending for b in balances.values()) == 0


@pytest.fixture(params=DURABLE)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with scratch_url(request.param, tmp_path) as scratch:
        database = Database(scratch)
        migrate(database)
        database.close()
        yield scratch


def run(
    url: str, witness: Witness, *, tasks: int | None = None, kill: tuple[int, float] | None = None
) -> None:
    """One process: left to settle the first tasks, or killed so many acknowledgements and seconds after its start."""
    if kill is None:
        witness.hear(heard(settle, url, tasks, until=None))
        return
    least, seconds = kill
    witness.hear(heard(settle, url, tasks, until=lambda said: said.count(b"head ") >= least, seconds=seconds))


def begun(url: str) -> int:
    """The tasks that the ledger has entries of."""
    database = Database(url)
    with database.read() as connection:
        store = SqlLedgerStore(connection)
        tasks = {Entry.parse(data).id.split("/", 1)[0] for data in store.entries(0, store.size())}
    database.close()
    return sum(name.startswith("task") for name in tasks)


def kill_many_times(url: str, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    witness = Witness()
    for _ in range(kills):
        run(url, witness, kill=(chance.randint(0, MOST_ACKNOWLEDGED), chance.uniform(0, LIFE_S)))
        witness.check(url)
    tasks = begun(url) + 1
    run(url, witness, tasks=tasks)
    assert witness.finished
    witness.check(url)
    expected = [entry.data for task in range(tasks) for step in steps(task) for entry in step]
    database = Database(url)
    with database.read() as connection:
        store = SqlLedgerStore(connection)
        assert list(store.entries(0, store.size())) == expected
    database.close()


def test_nothing_acknowledged_is_lost_and_nothing_paid_twice(url: str) -> None:
    kill_many_times(url, kills=12, seed=os.getpid())


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_nothing_is_lost_or_paid_twice_in_300_kills(url: str) -> None:
    kill_many_times(url, kills=300, seed=20261127)
