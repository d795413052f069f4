"""A process that pays out is killed with SIGKILL at random moments; nobody is paid twice, and nothing is lost.

The process does what an operator does, without end: it begins a payout, writes its files, confirms or withdraws it, and
records what came back. A bank on paper pays each message id that it is given once.
"""

import hashlib
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coordinator.banking import ready_folder, write_files
from coordinator.folder import StateFolder
from coordinator.operator import Operator
from coordinator.payouts import PayoutRun
from fedpeer.audit.sql.database import Database
from fedpeer.audit.sql.ledger_store import SqlLedgerStore
from mechanism.ledger.accounts import paid, payable
from mechanism.ledger.entries import CONFIRMED, WITHDRAWN
from tests.backends import DURABLE, scratch_url
from tests.coordinator.test_payouts import IBANS, SHAPE
from tests.coordinator.test_transaction import Mirrored, Service
from tests.integration.market import CONFIG, make_folder, verified
from tests.killing import heard

#: A process is killed after up to so many acknowledgements, and up to so many seconds after the last of them: about
#: what an act takes.
MOST_ACKNOWLEDGED = 12
LIFE_S = 0.05


def outcome_of(number: int) -> str:
    """Every third payout is refused by the bank."""
    return WITHDRAWN if number % 3 == 0 else CONFIRMED


def pay(path: Path, acknowledge: int) -> None:
    """The process."""
    operator = Operator(StateFolder(path))
    while True:
        for run in operator.payout_runs()[-1:]:
            for line in run.lines if run.row.outcome == CONFIRMED else ():
                operator.return_payment(run.row.number, line.participant_id, "the account is closed")
                os.write(acknowledge, f"returned {run.row.number} {line.participant_id}\n".encode())
        run, files = operator.pay_out()
        number = run.row.number
        ready_folder(path / "payouts")
        write_files(path / "payouts", number, files)
        os.write(acknowledge, f"sent {number} {hashlib.sha256(files.csv).hexdigest()}\n".encode())
        if outcome_of(number) == CONFIRMED:
            operator.confirm_payout(number)
        else:
            operator.withdraw_payout(number, "the bank has refused the file")
        os.write(acknowledge, f"ended {number} {outcome_of(number)}\n".encode())


@dataclass
class Bank:
    """What it was given, by message; and everything else that was ever acknowledged."""

    sent: dict[str, str] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    returned: set[tuple[str, str]] = field(default_factory=set)

    def hear(self, heard: bytes) -> None:
        """Takes what came through the pipe. A line that the kill cut short was not heard."""
        for line in heard[: heard.rfind(b"\n") + 1].decode().splitlines():
            kind, number, what = line.split()
            if kind == "returned":
                self.returned.add((number, what))
                continue
            known = self.sent if kind == "sent" else self.ended
            assert known.setdefault(number, what) == what, "one message, two contents"

    def check(self, folder: StateFolder, earned: dict[str, int]) -> list[PayoutRun]:
        """All invariants, on the database as the killed process left it."""
        operator = Operator(folder)
        runs = operator.payout_runs()
        operator.close()
        by_number = {str(run.row.number): run for run in runs}
        assert list(by_number) == [str(number) for number in range(1, len(runs) + 1)]
        assert all(run.row.outcome is not None for run in runs[:-1]), "two on their way at once"
        assert self.sent.keys() <= by_number.keys()
        for number, outcome in self.ended.items():
            assert by_number[number].row.outcome == outcome
        lines = {(number, line.participant_id): line for number, r in by_number.items() for line in r.lines}
        assert all(lines[key].returned_at is not None for key in self.returned)
        database = Database(folder.database_url(folder.config()))
        with database.read() as connection:
            balances = SqlLedgerStore(connection).all_balances()
        database.close()
        for name, micro in earned.items():
            own = [(run, line) for run in runs for line in run.lines if line.participant_id == name]
            at_bank = sum(
                line.micro for run, line in own if run.row.outcome == CONFIRMED and line.returned_at is None
            )
            on_its_way = sum(line.micro for run, line in own if run.row.outcome is None)
            owed, gone = balances[payable(name)], balances.get(paid(name))
            assert (0 if gone is None else gone.holds) == at_bank
            assert owed.debits_pending == on_its_way
            assert owed.holds + at_bank == micro, "money was made or lost"
        return runs


@pytest.fixture(params=DURABLE)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateFolder]:
    """A coordinator's folder with a task that has ended, and everyone's bank account."""
    with scratch_url(request.param, tmp_path) as url:
        made = make_folder(tmp_path / "state", f'{CONFIG}[storage]\ndatabase = "{url}"\n')
        service = Service(url)
        Mirrored(service, SHAPE).play()
        service.close()
        operator = Operator(made)
        for number, iban in enumerate(IBANS):
            operator.set_bank_account(f"p{number:03d}", "Clinic", iban)
        operator.close()
        yield made


def killed(folder: StateFolder, bank: Bank, after: int, seconds: float) -> None:
    """One process, killed so many acknowledgements and seconds after its start."""
    bank.hear(heard(pay, folder.path, until=lambda said: said.count(b"\n") >= after, seconds=seconds))


def kill_many_times(folder: StateFolder, kills: int, seed: int) -> None:
    chance, bank = random.Random(seed), Bank()
    database = Database(folder.database_url(folder.config()))
    with database.read() as connection:
        found = SqlLedgerStore(connection).all_balances()
    database.close()
    earned = {
        name.partition(":")[2]: held.holds for name, held in found.items() if name.startswith("payable:")
    }
    runs: list[PayoutRun] = []
    for _ in range(kills):
        killed(folder, bank, chance.randint(0, MOST_ACKNOWLEDGED), chance.uniform(0, LIFE_S))
        runs = bank.check(folder, earned)
    assert len(runs) > 3, "no process came far"
    verified(folder)


def test_a_killed_payout_pays_nobody_twice(folder: StateFolder) -> None:
    kill_many_times(folder, kills=12, seed=os.getpid())


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_150_killed_payouts_pay_nobody_twice(folder: StateFolder) -> None:
    kill_many_times(folder, kills=150, seed=20261129)
