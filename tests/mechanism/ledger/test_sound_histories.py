"""What a sound coordinator writes is verified, at every moment of it."""

from decimal import Decimal

import pytest

from mechanism.ledger import entries
from mechanism.ledger.entry import Entry
from mechanism.ledger.openings import Openings
from mechanism.ledger.verify import Report, verify_ledger
from mechanism.lifecycle import State
from mechanism.price import Price
from tests import ledger_samples as samples
from tests.ledger_histories import SHAPES, History, Log, Shape, played, started
from tests.memory_source import KEY, MemorySource, own


def verify(ledger: list[Entry]) -> Report:
    """As the auditor; with fewer openings less is checked, and nothing more is wrong."""
    source = MemorySource(ledger)
    given = [None, *(own(source.openings, "p001", ended) for ended in (False, True)), source.openings]
    reports = [verify_ledger(source, KEY.verification_key, openings=openings) for openings in given]
    for report in reports:
        assert report.verified, report.problems
    opened = [sum(report.counts.opened.values()) for report in reports]
    assert opened == sorted(opened)
    assert opened[0] == 0
    assert not reports[-1].counts.unchecked
    return reports[-1]


@pytest.mark.parametrize("name", SHAPES)
def test_a_sound_task_is_verified_and_its_money_is_where_it_belongs(name: str) -> None:
    history = played(SHAPES[name])
    report = verify(history.log.entries)
    assert report.open_tasks == {}
    held = {account: balance.holds for account, balance in report.balances.items()}
    assert held["escrow:task"] == 0
    assert report.balances["treasury"].debits_pending == 0
    assert not any(held[account] for account in held if account.startswith(("stake:", "held:")))
    earned = sum(held[account] for account in held if account.startswith("payable:"))
    lost = sum(int(str(e.body["stake_lost_micro"])) for e in history.log.entries if e.kind == "payment")
    audits = [e for e in history.log.entries if e.kind in ("audit_loss", "audit_end")]
    taken = [t.micro for e in audits for t in e.transfers if not t.credit.startswith("payable:")]  # type: ignore[union-attr]
    assert earned == report.counts.paid_micro - lost - sum(taken)


@pytest.mark.parametrize("name", SHAPES)
def test_only_what_was_recomputed_from_evidence_counts_as_a_checked_degree(name: str) -> None:
    history = played(SHAPES[name])
    verdicts = [e.body["outcome"] for e in history.log.entries if e.kind == "verdict"]
    scored = sum(v["verified_micro"] is not None for v in verdicts)  # type: ignore[index,call-overload]
    paper = SHAPES[name].rule == "paper"
    assert verify(history.log.entries).counts.degrees == (0 if paper else scored)


def test_several_tasks_may_run_at_the_same_time() -> None:
    log = Log()
    for name in samples.names(4):
        log.enrol(name)
    shapes = (Shape("one"), Shape("two", rule="paper"), Shape("three", rounds=3, private=frozenset({"p002"})))
    tasks = [History(log, shape) for shape in shapes]
    for task in tasks:
        task.open()
    for task in tasks:
        task.enter(State.EFFORT)
    for name in samples.names(4):  # one's claim stands between two of the others
        for task in tasks:
            task.claim(name)
    for task in tasks:
        task.select()
    for number in (1, 2, 3):
        running = [task for task in tasks if number <= task.shape.rounds]
        for task in running:
            task.train()
        for name in samples.names(4):
            for task in running:
                task.model(name)
        for task in running:
            task.settle(task.measured())
    for task in tasks:
        task.finish()
    assert verify(log.entries).counts.tasks == 3


def test_who_was_revoked_after_its_claim_may_be_selected_or_left_out() -> None:
    for left_out in (False, True):
        history = started()
        history.open()
        history.enter(State.EFFORT)
        for name in history.people:
            history.claim(name)
        history.log.revoke("p002")
        history.select([n for n in history.people if n != "p002"] if left_out else None)
        history.train()
        for name in history.selected:
            if name != "p002":
                history.model(name)
        history.settle(history.measured())
        verify(history.log.entries)


def test_a_model_between_the_closing_and_the_evidence_is_late() -> None:
    history = started(SHAPES["somebody gone"])
    history.begin()
    history.train()
    history.deliver()
    history.close()
    history.model("p003", late=True)
    history.settle(history.measured())
    verify(history.log.entries)


def test_phases_end_when_their_time_is_over_to_the_second() -> None:
    history = started(Shape(people=5, private=frozenset({"p001"})))
    history.open()
    history.enter(State.EFFORT)
    history.people.remove("p004")
    for name in history.people:
        history.claim(name)
    history.log.wait(-1)  # what waits here does so for all of the time, and writes a second later
    history.select(history.people)
    for _ in (1, 2):
        history.train()
        for name in history.people[:3]:
            history.model(name)
        history.log.wait(-1)
        history.settle(history.measured())
    history.log.wait(59)
    history.dispute("p001")
    history.log.wait(-1)
    history.end()
    verify(history.log.entries)


def test_a_commitment_that_was_broken_off_leaves_its_number_unused() -> None:
    history = started()
    history.begin()
    history.train()
    for place, name in enumerate(reversed(history.people)):
        history.model(name, sequence=7 * (4 - place))
    history.settle(history.measured())
    verify(history.log.entries)


def test_what_is_long_stands_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "PART_BYTES", 30)
    shape = Shape(people=8, absent={1: dict.fromkeys(samples.names(5))}, gone=frozenset({1}))
    ledger = played(shape).log.entries
    for kind in ("selection", "closing", "peers"):
        assert any(e.kind == kind and e.body["part"] == 2 for e in ledger), kind
    verify(ledger)


PRICE = Price(Decimal("0.75"), "EUR", 2)


def test_payouts_stand_between_the_entries_of_tasks_that_run() -> None:
    history = started(Shape(rounds=3, price=PRICE, funder="trust"))
    log, people = history.log, history.people
    history.begin()
    history.rounds(1, 1)
    log.pay_out(1, PRICE, people)
    history.train()
    log.end_run(1)
    history.deliver()
    log.return_payment(1, "p001")
    history.settle(history.measured())
    log.pay_out(2, PRICE, ["p001", "p003"])
    history.rounds(3, 3)
    log.end_run(2, entries.WITHDRAWN, "the bank has refused the file")
    history.finish()
    log.pay_out(3, PRICE, people)
    log.deposit("other", 5)
    held = verify(log.entries).balances
    assert all(PRICE.units(held[f"payable:{name}"].free) == 0 for name in people)
    assert sum(held[f"payable:{name}"].debits_pending for name in people) == sum(log.runs[3].values())
    log.end_run(3)
    held = verify(log.entries).balances
    first = {name: micro for name, micro in log.runs[1].items() if name != "p001"}
    for name in people:
        assert held[f"paid:{name}"].holds == first.get(name, 0) + log.runs[3][name]
    assert held["learner:other"].holds == 5


def test_a_price_may_be_said_after_tasks_without_one() -> None:
    history = played(Shape("one"))
    task = History(history.log, Shape("two", price=PRICE))
    task.play()
    history.log.pay_out(1, PRICE, task.people)
    verify(history.log.entries)


def test_an_older_copy_is_verified_with_newer_openings_until_its_task_has_ended() -> None:
    ledger = played(Shape(rounds=1)).log.entries
    openings = MemorySource(ledger).openings
    settled = next(i for i, e in enumerate(ledger) if e.id.endswith("/TRAINING")) + 1
    older = verify_ledger(MemorySource(ledger[:settled]), KEY.verification_key, openings=openings)
    assert older.verified, older.problems
    assert older.newer == {"task": len(openings.by_id) - 4}  # all but the claims
    unknown = verify_ledger(MemorySource(ledger[:1]), KEY.verification_key, openings=openings)
    assert unknown.newer == {"task": len(openings.by_id)}
    assert not verify_ledger(MemorySource(ledger), KEY.verification_key, openings=openings).newer
    more = Openings(None, {**openings.by_id, "task/round/2/evidence": {"salt": ""}})
    late = verify_ledger(MemorySource(ledger), KEY.verification_key, openings=more)
    assert [problem.place for problem in late.problems] == ["opening of task/round/2/evidence"]
