"""What may be recorded, decided on the rows of a real database; in a running service a timer often decides first."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from coordinator.admission import admit_claim, admit_model
from coordinator.clock import SystemClock
from coordinator.metrics import Metrics
from coordinator.opening import prepare_task
from coordinator.states import State
from coordinator.storage.market import ModelStanding, ReceiptRow, TaskRow
from coordinator.storage.schema import migrate
from coordinator.transactions import Transaction, Transactions
from fedpeer.audit.sql.database import Database
from fedpeer.audit.sql.ledger import SignedLog
from fedpeer.protocol.errors import Code, Refusal
from mechanism.ledger.note import SigningKey
from mechanism.statements import ClaimStatement, ModelStatement
from tests.backends import DURABLE, scratch_url
from tests.integration.serving import task_config


@pytest.fixture(params=DURABLE)
def transact(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Transactions]:
    with scratch_url(request.param, tmp_path) as url:
        database = Database(url)
        migrate(database)
        log = SignedLog(database, SigningKey("test", 1, bytes(32)))
        transactions = Transactions(database, log, SystemClock(), Metrics())
        yield transactions
        transactions.stop()
        database.close()


def claim(task: TaskRow, name: str) -> ClaimStatement:
    return ClaimStatement(
        f"claim-{name}",
        task.id,
        task.terms_digest,
        name,
        Decimal("0.5"),
        Fraction(0),
        (1, 1, 1, 1),
        b"",
        bytes(16),
    )


def model(task: TaskRow, name: str, round_: int, number: int) -> ModelStatement:
    return ModelStatement(
        f"model-{round_}-{number}", task.id, task.terms_digest, name, round_, bytes(32), 64, 10, bytes(16)
    )


async def opened(transact: Transactions, tmp_path: Path, capacity: int) -> TaskRow:
    prepared = prepare_task(task_config(tmp_path, schedule={"rounds": 3, "capacity": capacity}), 1_000.0)

    def begin(t: Transaction) -> TaskRow:
        t.open_task(prepared)
        t.begin_effort(prepared.row, 1e12)
        row = t.market.task(prepared.row.id)
        assert row is not None
        return row

    return await transact(begin)


def code(decide: Callable[[], object]) -> Code | None:
    try:
        decide()
    except Refusal as refusal:
        return refusal.code
    return None


async def test_a_task_that_is_full_takes_no_claim(transact: Transactions, tmp_path: Path) -> None:
    task = await opened(transact, tmp_path, capacity=3)

    def claims(t: Transaction) -> list[Code | None]:
        found = []
        for name in ("ann", "bob", "cyd", "dan", "eve"):
            statement = claim(task, name)
            found.append(code(lambda statement=statement: admit_claim(t.market, task, statement)))  # type: ignore[misc]
            if found[-1] is None:
                t.add_claim(task, statement, b"signature")
        return found

    assert await transact(claims) == [None, None, None, Code.TASK_FULL, Code.TASK_FULL]
    assert await transact.read(lambda t: t.market.count_claims(task.id)) == 3


async def test_one_late_model_a_round_is_recorded_and_no_second(
    transact: Transactions, tmp_path: Path
) -> None:
    task = replace(await opened(transact, tmp_path, capacity=3), state=State.TRAINING, round=2)
    standing = ModelStanding(None, True, False, None, None, 0)

    def receipt(name: str, round_: int, kind: str) -> ReceiptRow:
        return ReceiptRow(task.id, name, f"{kind}-{round_}", kind, round_, bytes(32), 0, True, 0.0)

    def admitted(t: Transaction, name: str, round_: int) -> Code | bool:
        try:
            return admit_model(t.market, task, model(task, name, round_, 2), standing)
        except Refusal as refusal:
            return refusal.code

    def work(t: Transaction) -> list[Code | bool]:
        first = admitted(t, "ann", 1)
        t.market.add_receipt(receipt("ann", 1, "failure"))
        after_failure = admitted(t, "ann", 1)
        t.market.add_receipt(receipt("ann", 1, "model"))
        return [
            first,
            after_failure,
            admitted(t, "ann", 1),
            admitted(t, "bob", 1),
            admitted(t, "ann", 2),
            admitted(t, "ann", 3),
        ]

    assert await transact(work) == [
        True,  # late, and recorded
        True,  # a failure is no model
        Code.SUBMISSION_CONFLICT,
        True,  # another's
        False,  # in time, for the round that is open
        Code.WRONG_ROUND,
    ]
