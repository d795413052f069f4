"""Steps that come at once share a commit, and nothing else: each happens whole or not at all, as if it were alone."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from sqlalchemy import event

from coordinator.clock import SystemClock
from coordinator.commits import Transactions
from coordinator.metrics import Metrics
from coordinator.storage.identities import InvitationRow, ParticipantRow
from coordinator.storage.schema import migrate
from coordinator.transaction import Transaction
from fedpeer.audit.sql.database import Database
from fedpeer.audit.sql.errors import ConstraintViolated
from fedpeer.audit.sql.ledger_store import SignedLog
from fedpeer.protocol.errors import Code, Refusal
from mechanism.ledger.entries import enrolment
from mechanism.ledger.note import Checkpoint, SigningKey
from mechanism.ledger.tlog_proof import TlogProof
from tests.backends import DURABLE, scratch_url
from tests.ledger_samples import private_key

KEY = SigningKey("test", 1, bytes(32))


@pytest.fixture(params=DURABLE)
async def transact(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Transactions]:
    with scratch_url(request.param, tmp_path) as url:
        database = Database(url)
        migrate(database)
        transactions = Transactions(database, SignedLog(database, KEY), SystemClock(), Metrics())
        yield transactions
        transactions.stop()
        database.close()


def put(name: str, invitation: bytes = b"") -> Callable[[Transaction], str]:
    def work(t: Transaction) -> str:
        t.market.put_participant(ParticipantRow(name, "key", t.now, None))
        if name.startswith("refused"):
            raise Refusal(Code.FIELD_INVALID, name)
        if name.startswith("broken"):
            raise RuntimeError(name)
        t.market.add_invitation(InvitationRow(invitation or name.encode(), name, t.now, t.now, None))
        return name

    return work


async def at_once(transact: Transactions, *steps: Callable[[Transaction], str]) -> list[object]:
    """Hands in all steps while the database's thread is held, so that they wait together."""
    held = threading.Event()
    first = asyncio.ensure_future(transact.read(lambda t: held.wait(30)))
    await asyncio.sleep(0)
    waiting = [asyncio.ensure_future(transact(step)) for step in steps]
    await asyncio.sleep(0)
    held.set()
    await first
    return await asyncio.gather(*waiting, return_exceptions=True)


async def names(transact: Transactions) -> list[str]:
    return await transact.read(lambda t: [row.id for row in t.market.participants()])


async def test_steps_that_wait_are_committed_together(transact: Transactions) -> None:
    commits = []
    event.listen(transact._database._engine, "commit", commits.append)
    expected = [f"p{i:02d}" for i in range(50)]
    assert await at_once(transact, *map(put, expected)) == expected
    assert len(commits) == 1
    assert await names(transact) == expected


async def test_a_step_that_is_refused_leaves_nothing_and_the_others_stand(transact: Transactions) -> None:
    outcomes = await at_once(transact, put("a"), put("refused"), put("b"))
    assert outcomes[0] == "a"
    assert isinstance(outcomes[1], Refusal)
    assert outcomes[2] == "b"
    assert await names(transact) == ["a", "b"]


async def test_a_step_that_breaks_the_transaction_does_not_break_the_others(transact: Transactions) -> None:
    outcomes = await at_once(transact, put("a", b"same"), put("b", b"same"), put("broken"), put("c"))
    assert outcomes[0] == "a"
    assert isinstance(outcomes[1], ConstraintViolated)
    assert isinstance(outcomes[2], RuntimeError)
    assert outcomes[3] == "c"
    assert await names(transact) == ["a", "c"]


async def test_a_step_that_nobody_waits_for_any_more_does_not_begin(transact: Transactions) -> None:
    held = threading.Event()
    first = asyncio.ensure_future(transact.read(lambda t: held.wait(30)))
    await asyncio.sleep(0)
    dropped, kept = (asyncio.ensure_future(transact(put(name))) for name in ("dropped", "kept"))
    await asyncio.sleep(0)
    dropped.cancel()
    await asyncio.sleep(0)
    held.set()
    await first
    assert await kept == "kept"
    assert await names(transact) == ["kept"]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_step_that_need_not_be_durable_leaves_the_next_ones_durable(
    transact: Transactions, fails: bool
) -> None:
    def flushes(t: Transaction) -> str:
        setting = "synchronous" if transact._database.dialect == "sqlite" else "synchronous_commit"
        verb = "PRAGMA" if transact._database.dialect == "sqlite" else "SHOW"
        found = t.market._connection.exec_driver_sql(f"{verb} {setting}").scalar_one()
        if fails and t.market.participant("a") is None:
            raise Refusal(Code.FIELD_INVALID, str(found))
        return str(found)

    relaxed, full = ("1", "2") if transact._database.dialect == "sqlite" else ("off", "on")
    if fails:
        with pytest.raises(Refusal, match=relaxed):
            await transact(flushes, durable=False)
    else:
        assert await transact(flushes, durable=False) == relaxed
    await transact(put("a"))
    assert await transact(flushes) == full
    # Together with one that must be durable, all are.
    assert await at_once(transact, flushes, flushes) == [full, full]


async def test_a_step_that_came_after_the_stop_is_refused_and_not_taken(transact: Transactions) -> None:
    running, go_on = threading.Event(), threading.Event()

    def hold(t: Transaction) -> None:
        running.set()
        go_on.wait(30)

    held = threading.Event()
    before = asyncio.ensure_future(transact.read(lambda t: held.wait(30)))
    await asyncio.sleep(0)
    # Taken in one call of the thread: while it is at the first, the second waits, and what comes now would join it.
    first, second = asyncio.ensure_future(transact.read(hold)), asyncio.ensure_future(transact(put("second")))
    await asyncio.sleep(0)
    held.set()
    await asyncio.to_thread(running.wait, 30)
    stop = asyncio.ensure_future(asyncio.to_thread(transact.stop))
    while not transact._thread._shutdown:
        await asyncio.sleep(0)
    with pytest.raises(Refusal) as refused:
        await transact(put("late"))
    assert refused.value.code is Code.DRAINING
    go_on.set()
    await asyncio.gather(before, first, second, stop)
    with transact._database.read() as connection:
        found = [row.id for row in Transaction(connection, 0.0).market.participants()]
    assert found == ["second"]


async def test_what_is_signed_covers_what_was_committed_before(transact: Transactions) -> None:
    def record(name: str) -> Callable[[Transaction], int]:
        return lambda t: t.record(enrolment(name, private_key(name).public_key()))

    assert [await transact(record(name)) for name in ("p000", "p001")] == [0, 1]
    assert await transact.read(lambda t: transact.covered(t, [0, 1])) == [None, None]
    head = Checkpoint.open(await transact.sign_head(), KEY.verification_key)
    assert head.size == 2
    await transact(record("p002"))
    found = await transact.read(lambda t: transact.covered(t, [1, 0, 2]))
    assert found[2] is None
    assert [TlogProof.parse(proof or "").index for proof in found[:2]] == [1, 0]
    assert await transact.read(lambda t: transact.covered(t, [1])) == found[:1]
    assert TlogProof.parse(await transact.proof(2)).index == 2  # signs a head that covers it
    note, key, changes = await transact.published()
    assert Checkpoint.open(note, KEY.verification_key).size == 3
    assert (key, changes) == (str(KEY.verification_key), [])


async def test_after_the_stop_nothing_is_signed(transact: Transactions) -> None:
    transact.stop()
    for sign in (transact.sign_head, transact.published, lambda: transact.proof(0)):
        with pytest.raises(Refusal) as refused:
            await sign()
        assert refused.value.code is Code.DRAINING


async def test_a_computation_runs_beside_the_steps_and_is_seen(transact: Transactions) -> None:
    running, go_on = threading.Event(), threading.Event()

    def compute(one: int, two: int) -> int:
        running.set()
        go_on.wait(30)
        return one - two

    def fail() -> None:
        raise LookupError

    assert not transact.computing
    computed = asyncio.ensure_future(transact.compute(compute, 5, 3))
    await asyncio.to_thread(running.wait, 30)
    assert transact.computing
    assert await transact(put("a")) == "a"
    go_on.set()
    assert await computed == 2
    assert not transact.computing
    with pytest.raises(LookupError):
        await transact.compute(fail)
    assert not transact.computing


async def test_a_step_that_ends_an_iteration_is_answered(transact: Transactions) -> None:
    def end(t: Transaction) -> str:
        raise StopIteration("there is no more")

    for outcome in (transact(end), transact.read(end)):
        with pytest.raises(RuntimeError, match="there is no more"):
            await outcome
