"""A participant is forgotten: what is kept of it beside the ledger is gone, all or none, and the ledger verifies."""

import asyncio
import json
import os
import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import coordinator.cli as operator_cli
from coordinator import audits
from coordinator.clock import ManualClock
from coordinator.errors import MarketTaskError
from coordinator.folder import StateFolder
from coordinator.operator import Operator
from coordinator.remeasuring import read_task
from coordinator.storage.store import MarketStore
from fedpeer.audit.export import export_json_lines
from fedpeer.audit.sources import open_source
from fedpeer.audit.sql.database import Database
from fedpeer.console import records
from fedpeer.console.reading import Reader
from fedpeer.protocol.audit_folder import TaskOrder
from fedpeer.v1 import market_pb2
from mechanism.ledger.openings import read_openings, subject_of
from mechanism.ledger.verify import verify_ledger
from mechanism.lifecycle import State
from tests import ledger_samples as samples
from tests.backends import DURABLE, scratch_url
from tests.conformance import second_verifier
from tests.coordinator.test_payouts import IBANS, SHAPE
from tests.coordinator.test_transaction import Mirrored, Service
from tests.integration.market import (
    CONFIG,
    close,
    delivered,
    enrol,
    make_folder,
    open_task,
    running,
    task_config,
)
from tests.killing import heard
from tests.ledger_histories import Shape

PEOPLE = ("p000", "p001", "p002", "p003")

#: One has opened its counts.
DISPUTED = replace(SHAPE, private=frozenset({"p003"}))


@pytest.fixture(params=DURABLE)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateFolder]:
    """A coordinator's folder with a task that has ended, everyone's bank account, and everyone revoked."""
    with scratch_url(request.param, tmp_path) as url:
        made = make_folder(tmp_path / "state", f'{CONFIG}[storage]\ndatabase = "{url}"\n')
        service = Service(url)
        Mirrored(service, DISPUTED).play()
        service.close()
        with closing(Operator(made)) as operator:
            for name, iban in zip(PEOPLE, IBANS, strict=False):
                operator.set_bank_account(name, f"Clinic {name}", iban)
                revoke(operator, name)
        yield made


def revoke(operator: Operator, name: str) -> None:
    """Those on paper have no certificates, whose keys the ledger would revoke."""
    operator._transact.run(lambda t: t.market.revoke(name, t.now))


def secrets_of(folder: StateFolder, name: str) -> set[bytes]:
    """Salts of what entries about a participant commit to, and its bank account."""
    with closing(Operator(folder)) as operator:
        opened = operator.openings().by_id
        accounts = [row for row in operator.bank_accounts() if row.participant_id == name]
    salts = {str(opening["salt"]) for id_, opening in opened.items() if subject_of(id_)[2] == name}
    salts.discard(samples.SECRET.hex())  # of opened counts on paper, and the seed of the last round
    return {
        text.encode() for text in (*salts, *(part for row in accounts for part in (row.holder, row.iban)))
    }


def stored(folder: StateFolder) -> bytes:
    """Every byte of the database: of SQLite its files, else all that its tables say."""
    database = Database(folder.database_url(folder.config()))
    try:
        if database.dialect == "sqlite":
            file = Path(str(database.url.database))
            return b"".join(path.read_bytes() for path in file.parent.glob(f"{file.name}*"))
        with database.read() as connection:
            read = MarketStore(connection)
            rows: list[object] = [*read.openings("task"), *read.settlements("task"), *read.claims("task")]
            rows += [*read.bank_accounts(), *read.models("task", 1), *read.models("task", 2)]
            rows += [line for run in read.payouts() for line in read.payout_lines(run.number)]
        return repr(rows).encode()
    finally:
        database.close()


def verify(folder: StateFolder, unchecked: int) -> None:
    """Both verifiers accept the ledger, as the public and as an auditor who lacks so many openings."""
    with ExitStack() as resources:
        source = open_source(folder.database_url(folder.config()), resources)
        openings = resources.enter_context(closing(Operator(folder))).openings()
        report = verify_ledger(source, openings=openings)
        assert report.verified, report.problems
        assert sum(report.counts.unchecked.values()) == unchecked
        exported, opened = folder.path / "exported.jsonl", folder.path / "opened.jsonl"
        export_json_lines(source, exported)
        opened.write_bytes(b"".join(line + b"\n" for line in openings.lines()))
        for given in (None, opened):
            second = second_verifier.verify(exported, None, given)
            assert not second.problems, second.problems[:3]
        exported.unlink()
        opened.unlink()


def test_what_is_kept_of_a_participant_is_gone_and_the_ledger_verifies(folder: StateFolder) -> None:
    gone = {name: secrets_of(folder, name) for name in PEOPLE}
    kept = stored(folder)
    assert all(secret in kept for secrets in gone.values() for secret in secrets)
    with closing(Operator(folder)) as operator:
        operator.pay_out()
        with pytest.raises(MarketTaskError, match="payout 1 is on its way and pays 'p003'"):
            operator.forget("p003")
        operator.confirm_payout(1)
    unchecked = 0
    for name in ("p003", "p001"):
        words = ["forget", name, "--json", "--state", str(folder.path)]
        done, again = (CliRunner().invoke(operator_cli.app, words, catch_exceptions=False) for _ in range(2))
        found, repeated = json.loads(done.stdout), json.loads(again.stdout)
        assert found["tasks"] == ["task"]
        assert found["log_emptied"]
        # Claim, two models and two verdicts; one has a dispute, too. Account and payout line.
        assert found["openings"] == (6 if name == "p003" else 5)
        assert (found["models"], found["assessments"], found["bank_details"]) == (2, 2, 2)
        assert {
            key: repeated[key] for key in ("openings", "models", "assessments", "bank_details")
        } == dict.fromkeys(("openings", "models", "assessments", "bank_details"), 0)
        unchecked += found["openings"]
        kept = stored(folder)
        assert not [secret for secret in gone.pop(name) if secret in kept]
        verify(folder, unchecked)
    assert all(
        secret in kept for secrets in gone.values() for secret in secrets if not secret.startswith(b"Clinic")
    )
    with closing(Operator(folder)) as operator:
        report = operator.task("task")
        assert {person.id: person.degree == "" for person in report.people} == {
            name: name in ("p001", "p003") for name in PEOPLE
        }
        paid = {person.id: person.paid_micro for person in report.people}
        told = operator._transact.look(lambda t: records.operator_task(t, "task"))
        own = operator._transact.look(lambda t: records.participant(t, "p001"))
        assert operator.reputation("p001").lines()
    assert {person["id"]: person["paid_micro"] for person in told["people"]} == paid
    assert own["paid_micro"] == paid["p001"] > 0
    assert {payment["claimed_degree"] for payment in own["payments"]} == {""}
    assert {text for payment in own["payments"] for text in payment["failed"]} <= {"Erased."}


def test_the_console_says_nothing_erased_a_minute_later(folder: StateFolder) -> None:
    clock = ManualClock(2_000.0)
    with closing(Reader(folder, clock)) as reader, closing(Operator(folder)) as operator:

        def degrees() -> set[str]:
            record = reader.record("p000", lambda t: records.participant(t, "p000"))
            return {task["claimed_degree"] for task in record["tasks"]}

        assert degrees() != {""}
        operator.forget("p000")
        clock.advance(60)
        assert degrees() == {""}


def test_what_is_still_needed_is_not_forgotten(tmp_path: Path) -> None:
    folder = make_folder(
        tmp_path / "state", f'{CONFIG}[storage]\ndatabase = "sqlite:///{tmp_path}/made.db"\n'
    )
    service = Service(f"sqlite:///{tmp_path}/made.db")
    task = Mirrored(service, replace(SHAPE, retention=100))
    with closing(Operator(folder)) as operator:
        assert operator.forget("nobody")[0].unknown
        with pytest.raises(MarketTaskError, match=r"'p000' is in good standing.*`revoke p000` first"):
            operator.forget("p000")
        task.begin()
        task.rounds(1, 2)
        for name in PEOPLE:
            revoke(operator, name)
        with pytest.raises(MarketTaskError, match="task 'task', in which 'p000' takes part, is SETTLED"):
            operator.forget("p000")
        task.end()
        with pytest.raises(MarketTaskError, match="promise to keep what was sent for 100 seconds"):
            operator.forget("p000")
        assert len(operator.openings().by_id) == 4 * 5 + 2
        task.delete()
        assert operator.forget("p000")[0].openings == 5
    service.close()


async def test_what_is_erased_is_served_no_more(tmp_path: Path) -> None:
    """Who comes back with a new key is told of its last payment without what was erased."""
    folder = make_folder(tmp_path / "coordinator")
    open_task(folder, task_config(tmp_path, schedule={"rounds": 2}))

    def act() -> None:
        with closing(Operator(folder)) as operator:
            operator.cancel("task", "the learner withdrew")
            operator.revoke("ann", "as it asked")
            operator.forget("ann")

    async with running(folder) as coordinator:
        members = await delivered(coordinator, ("ann", "bob", "cyd"))
        ann, *_ = members
        told = (await ann.until("SETTLED")).round_settled.settlement
        assert json.loads(told.opening)["salt"]
        await asyncio.to_thread(act)
        members.append(again := await enrol(coordinator, "ann"))
        assert not (await again.until("SETTLED")).round_settled.settlement.opening
        asked = await again.market.GetSettlement(market_pb2.GetSettlementRequest(task_id="task", round=1))
        assert (asked.opening, asked.paid_micro) == (b"", told.paid_micro)
        await close(members)


def test_an_auditor_needs_nothing_of_who_was_not_selected_and_all_of_who_sent(tmp_path: Path) -> None:
    folder = make_folder(
        tmp_path / "state", f'{CONFIG}[storage]\ndatabase = "sqlite:///{tmp_path}/made.db"\n'
    )
    service = Service(f"sqlite:///{tmp_path}/made.db")
    task = Mirrored(service, Shape(people=5, auditor=True))
    task.open()
    task.enter(State.EFFORT)
    for name in task.people:
        task.claim(name)
    task.select(task.people[:4])
    task.rounds(1, 2)
    task.end()
    with closing(Operator(folder)) as operator:
        for name in ("p004", "p000"):
            revoke(operator, name)
        operator.forget("p004")
        digests = operator._transact.look(
            lambda t: audits.order_task(t, service.row(), tmp_path / "given")[1]
        )
        for digest in digests:  # on paper there are no files
            path = operator._blobs().path(digest)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(digest)
        given = operator.order_task_audit("task", tmp_path / "given")
        opened = read_openings(given.openings.read_bytes().splitlines()).by_id
        assert "task/claim/p004/claim-p004" not in opened
        with ExitStack() as resources:
            source = open_source(str(given.ledger), resources)
            assert len(read_task(TaskOrder.read(given.folder), source.entries(), opened).claimed) == 4
        operator.forget("p000")
        with pytest.raises(
            MarketTaskError, match="what task/claim/p000/claim-p000 commits to is not among the"
        ):
            operator.order_task_audit("task", tmp_path / "refused")
        assert not (tmp_path / "refused").exists()
    service.close()


def forget_all(path: Path, acknowledge: int) -> None:
    """The process: forgets everyone, one after another, says whom it has forgotten, and waits for its end."""
    operator = Operator(StateFolder(path))
    for name in PEOPLE:
        operator.forget(name)
        os.write(acknowledge, f"{name}\n".encode())
    signal.pause()


def half_forgotten(folder: StateFolder) -> set[str]:
    """Those of whom nothing is left. Of everybody else all is there."""
    database = Database(folder.database_url(folder.config()))
    with database.read() as connection:
        market = MarketStore(connection)
        claims = {claim.participant_id: claim.degree for claim in market.claims("task")}
        opened = {name: len(market.openings_about("task", name)) for name in PEOPLE}
        models = dict.fromkeys(PEOPLE, 0)
        for round_ in (1, 2):
            for row in market.models("task", round_):
                models[row.participant_id] += 1
        erased = {name: {line.erased for line in market.paid_to("task", name)} for name in PEOPLE}
        accounts = {row.participant_id for row in market.bank_accounts()}
    database.close()
    gone = {name for name in PEOPLE if not opened[name]}
    for name in PEOPLE:
        left = (
            claims[name] != "",
            opened[name] >= 5,
            models[name] == 2,
            erased[name] == {False},
            name in accounts,
        )
        assert left == (name not in gone,) * 5, f"{name} is half forgotten: {left}"
    return gone


@pytest.mark.parametrize(
    "folder", ["sqlite", pytest.param("postgresql", marks=pytest.mark.extended)], indirect=True
)
def test_a_kill_leaves_everyone_whole_or_forgotten(folder: StateFolder) -> None:
    chance, acknowledged = random.Random(os.getpid()), set[str]()
    for kill in range(9):
        # Each time a little further, so that all have their turn.
        said = heard(
            forget_all,
            folder.path,
            until=lambda said, least=kill // 2: said.count(b"\n") >= least,
            seconds=chance.uniform(0, 0.03),
        )
        acknowledged |= {line.decode() for line in said.splitlines() if line.decode() in PEOPLE}
        assert acknowledged <= half_forgotten(folder), "what was acknowledged is not done"
    with closing(Operator(folder)) as operator:
        for name in PEOPLE:
            operator.forget(name)
    assert half_forgotten(folder) == set(PEOPLE)
    verify(folder, 21)
