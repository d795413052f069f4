"""The steps of a task write what a coordinator on paper writes, byte for byte, and the rows that go with it."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator import audits, payouts, scoring, transaction
from coordinator.admission import admit_dispute
from coordinator.aggregation import Merged
from coordinator.clock import SystemClock
from coordinator.commits import Transactions
from coordinator.derivation import organisation_mark
from coordinator.errors import MarketTaskError
from coordinator.identity import Enrolled, enrol, invite
from coordinator.metrics import Metrics
from coordinator.opening import PreparedTask
from coordinator.scoring import Quality
from coordinator.states import (
    BeginEffort,
    Cancel,
    Close,
    CloseRound,
    OpenRound,
    Select,
    Settle,
    Step,
    Wait,
    next_step,
)
from coordinator.storage.identities import ParticipantRow
from coordinator.storage.schema import migrate
from coordinator.storage.submissions import ClaimRow, ModelRow, ReceiptRow
from coordinator.storage.tasks import StaleTask, TaskRow
from coordinator.transaction import FailureReport, Transaction
from fedpeer.audit.sql.database import Database
from fedpeer.audit.sql.ledger_store import SignedLog
from fedpeer.protocol.audit_folder import Brought, BroughtRemeasurement
from fedpeer.protocol.certificates import make_authority, new_key, public_key_pem, signing_request
from fedpeer.protocol.errors import Code, Refusal
from mechanism.audit_verdict import AuditVerdict
from mechanism.canonical import Json, canonical_digest, parse_canonical
from mechanism.ledger import entries
from mechanism.ledger.audit_entries import AuditFindings
from mechanism.ledger.entry import Entry
from mechanism.ledger.note import SigningKey
from mechanism.ledger.verify import verify_ledger
from mechanism.lifecycle import State
from mechanism.peers import Draw, round_seed
from mechanism.settlement import Assessment, expected_payments
from mechanism.statements import (
    ClaimOpening,
    ClaimStatement,
    ModelOpening,
    ModelStatement,
    RemeasurementStatement,
)
from tests import ledger_samples as samples
from tests.backends import scratch_url
from tests.ledger_histories import SALT, SHAPES, History, Log, Shape
from tests.ledger_samples import private_key
from tests.memory_source import KEY, MemorySource

Result = TypeVar("Result")

_BEGUN = 1_800_000_000.0
_ROOT = bytes(32)
_START_BYTES = 77
PRIVATE = SHAPES["a dispute"]


@pytest.fixture(autouse=True)
def salts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the service are those on paper."""
    monkeypatch.setattr(scoring, "new_salt", samples.salt)
    monkeypatch.setattr(audits, "new_salt", samples.salt)
    monkeypatch.setattr(transaction, "new_salt", samples.salt)


class Watch(SystemClock):
    """A clock that moves where it is set."""

    def __init__(self) -> None:
        self.seconds = _BEGUN

    def now(self) -> float:
        return self.seconds


class Service:
    """The steps of a service, each in a transaction of its own."""

    def __init__(self, url: str) -> None:
        self.watch = Watch()
        self.database = Database(url)
        migrate(self.database)
        log = SignedLog(self.database, SigningKey("test", 1, bytes(32)))
        self.transactions = Transactions(self.database, log, self.watch, Metrics())

    def do(self, work: Callable[[Transaction], Result]) -> Result:
        return self.transactions.run(work)

    def row(self, task_id: str = "task") -> TaskRow:
        found = self.do(lambda t: t.market.task(task_id))
        assert found is not None
        return found

    def entries(self) -> list[bytes]:
        return self.do(lambda t: list(t.ledger_store.entries(0, t.ledger.size())))

    def close(self) -> None:
        self.transactions.stop()
        self.database.close()


class OnPaper(Log):
    """A log whose times are the service's."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def now(self) -> str:
        return entries.timestamp(self.watch.seconds)

    def wait(self, seconds: int) -> None:
        """The task passes the time by itself."""


class Mirrored(History):
    """One task, on paper and by the service's steps; each step a minute after the one before."""

    def __init__(self, service: Service, shape: Shape) -> None:
        log = OnPaper(service.watch)
        of = {name: mark.hex() for name, mark in shape.organisations.items()}
        self.of = of
        marks = {name: organisation_mark(_ROOT, called) for name, called in of.items()}
        shape = replace(shape, organisations=marks)
        self.service = service
        self.deadlines: list[float | None] = []
        for name in samples.names(shape.people):
            log.enrol(name)
            public = public_key_pem(private_key(name).public_key())
            row = ParticipantRow(name, public, _BEGUN, None, of.get(name))
            service.do(lambda t, row=row: t.market.put_participant(row))  # type: ignore[misc]
            service.do(lambda t, row=row: t.enrol(Enrolled(row, b"", 0.0, True)))  # type: ignore[misc]
        super().__init__(log, shape)

    def step(self, work: Callable[[Transaction, TaskRow], Result]) -> Result:
        row = self.service.row(self.id)
        return self.service.do(lambda t: work(t, row))

    def pass_time(self, seconds: float = 60) -> None:
        self.service.watch.seconds += seconds

    def open(self) -> None:
        super().open()
        row, (funder, budget) = task_row(self), (self.terms.funder, self.terms.budget_micro)
        if funder:
            self.service.do(lambda t: payouts.fund(t, funder, f"for-{self.id}", budget))
        self.service.do(lambda t: t.open_task(PreparedTask(row, b"", None)))

    def enter(self, state: State, reason: str = "", at: str | None = None, round_: int | None = None) -> None:
        if state is State.EFFORT or state is State.TRAINING:
            self.pass_time()
        super().enter(state, reason, at, round_)
        if state is State.EFFORT:
            self.step(lambda t, row: t.begin_effort(row))
        if state is State.TRAINING:
            self.step(lambda t, row: t.open_round(row, self.round, _START_BYTES))

    def name(self, name: str, owner: str = "") -> None:
        super().name(name, owner)
        public, of = public_key_pem(private_key(name).public_key()), owner or f"clinic-{name}"
        row = ParticipantRow(name, public, _BEGUN, None, self.of.get(name), self.id, of)
        self.service.do(lambda t: t.market.put_participant(row))
        self.step(lambda t, task: t.name_pseudonym(row))
        self.step(lambda t, task: t.name_pseudonym(row))  # which is known by now

    def claim(self, name: str, **changes: Any) -> None:
        super().claim(name, **changes)
        body, opening = self.log.entries[-1].body, ClaimOpening.from_record(self.log.entries[-1].opening)
        statement = ClaimStatement.from_record(body["statement"])
        receipt = self.step(
            lambda t, row: t.add_claim(row, statement, bytes.fromhex(said(body, "signature")), opening)
        )
        self.check_receipt(receipt, statement, "claim", 0, late=False)
        mark = self.shape.organisations.get(name)
        kept = ClaimRow(
            name, str(opening.degree), False, statement.draw_head, statement.counts_commitment, mark
        )
        assert self.step(lambda t, row: t.market.claim(self.id, name)) == kept

    def select(self, who: Sequence[str] | None = None) -> None:
        self.pass_time()
        super().select(who)

        def chosen(claimed: list[str]) -> list[str]:
            assert claimed == self.people
            return self.selected

        self.step(lambda t, row: t.select(row, chosen))

    def model(self, name: str, round_: int | None = None, late: bool = False, **changes: Any) -> None:  # type: ignore[override]
        super().model(name, round_, late, **changes)
        body, opening = self.log.entries[-1].body, ModelOpening.from_record(self.log.entries[-1].opening)
        statement = ModelStatement.from_record(body["statement"])
        signature = bytes.fromhex(said(body, "signature"))

        def add(t: Transaction, row: TaskRow) -> ReceiptRow:
            sequence = t.begin_upload(statement, t.model_standing(statement))
            begun = t.model_standing(statement)
            assert (begun.sequence, begun.committed) == (sequence, statement.digest)
            assert t.begin_upload(statement, begun) == sequence  # an upload that goes on keeps its place
            return t.add_model(statement, signature, opening, begun, late=late)

        receipt = self.step(add)
        self.check_receipt(receipt, statement, "model", statement.round, late=late)
        found = self.step(lambda t, row: t.model_standing(statement))
        assert found.delivered is (not late)
        rows = self.step(lambda t, row: t.market.models(self.id, statement.round))
        kept = ModelRow(
            name, found.sequence or 0, statement.model_sha256, opening.samples, statement.draw_share
        )
        assert (kept in rows) is (not late)

    def check_receipt(
        self,
        receipt: ReceiptRow,
        statement: ClaimStatement | ModelStatement,
        kind: str,
        round_: int,
        *,
        late: bool,
    ) -> None:
        who = statement.participant_id, statement.submission_id
        index, at = len(self.log.entries) - 1, self.service.watch.seconds
        assert receipt == ReceiptRow(self.id, *who, kind, round_, statement.digest, index, late, at)
        assert self.step(lambda t, row: t.market.receipt(self.id, *who)) == receipt

    def fail(self, name: str, reason: str, round_: int | None = None, submission: str | None = None) -> None:
        super().fail(name, reason, round_, submission)
        id_ = str(self.log.entries[-1].body["submission_id"])
        report = FailureReport(self.id, self.round, name, id_, reason)
        receipt = self.step(lambda t, row: t.add_failure(row, report))
        index, at = len(self.log.entries) - 1, self.service.watch.seconds
        assert receipt == ReceiptRow(
            self.id, name, id_, "failure", self.round, report.digest, index, False, at
        )
        assert self.step(lambda t, row: t.market.receipt(self.id, name, id_)) == receipt
        [found] = [
            f
            for f in self.step(lambda t, row: t.market.failures(self.id, self.round))
            if f.participant_id == name
        ]
        assert (found.reason, found.at) == (reason, at)

    def close(self, absent: Sequence[str] | None = None, at: str | None = None) -> None:
        gone = self.round in self.shape.gone
        self.pass_time(59.5 if gone else 60)
        super().close(absent, at)
        self.step(lambda t, row: t.close_round(row, self.people if gone else ()))
        self.pass_time()

    def settle(
        self, record: Mapping[str, Any] | None = None, judged: Sequence[Assessment] | None = None
    ) -> None:
        super().settle(record, judged)
        seed = round_seed(samples.chain_secret(self.id), self.terms.schedule.rounds, self.round)
        draw = Draw(seed, {name: said.draw_share for name, (said, _) in self.models[self.round].items()})
        found = list(reversed(self.judged))
        merged = Merged(self.result, self.server_state)
        self.step(lambda t, row: t.settle(row, draw, found, record or {}, merged, Quality("0.31", "0.9")))
        row = self.service.row(self.id)
        last = self.round == self.terms.schedule.rounds
        window = 60 if self.shape.private and last else None
        now = self.service.watch.seconds
        assert (row.state, row.model) == (State.SETTLED, self.result)
        assert row.deadline == (None if window is None else now + window)
        settled = self.step(lambda t, row: t.market.rounds(self.id))[-1]
        assert (settled.round, settled.start_model, settled.start_bytes) == (
            self.round,
            self.start,
            _START_BYTES,
        )
        assert (settled.closed_at, settled.settled_at) == (now - 60, now)
        assert (settled.result_model, settled.ledger_size) == (self.result, len(self.log.entries))
        assert (settled.accuracy, settled.loss) == ("0.9", "0.31")

    def dispute(self, name: str, counts: Sequence[int] | None = None, at: str | None = None) -> None:
        assert name not in self.step(lambda t, row: t.disputed(self.id, self.people))
        super().dispute(name, counts, at)
        index = self.step(lambda t, row: t.open_dispute(row, name, counts or self.counts(name), SALT))
        assert index == len(self.log.entries) - 1
        assert self.step(lambda t, row: t.disputed(self.id, [name])) == {name: index}

    def audit(self, found: AuditFindings, at: str | None = None, verdict: AuditVerdict | None = None) -> None:
        super().audit(found, at, verdict)
        brought = Brought(found.statement, found.signature, None)

        def act(t: Transaction, row: TaskRow) -> AuditVerdict:
            ordered = audits.order(t, row, found.statement.round, found.statement.participant_id)
            assert ordered.claim.samples_root == self.root(found.statement.participant_id)
            return audits.record(t, row, audits.ground(t, row, brought), found)

        assert self.step(act) == self.verdict_of(found)

    def appeal(self, round_: int, name: str, at: str | None = None) -> None:
        super().appeal(round_, name, at)
        why = str(self.log.entries[-1].body["reason"])
        row = self.step(lambda t, row: audits.appeal(t, row, name, round_, why))
        assert (row.stage, row.number) == ("appealed", 2)
        assert self.step(lambda t, row: audits.appeal(t, row, name, round_, why)) == row

    def end_audit(self, round_: int, name: str, why: str, at: str | None = None) -> None:
        audit = self.terms.audit
        assert audit is not None
        seconds = audit.appeal_seconds if why == "unappealed" else audit.seconds
        if seconds:
            due = self.step(lambda t, row: t.market.audits_due(self.id))
            self.step(lambda t, row: t.end_audits(row))  # nothing is due yet
            assert self.step(lambda t, row: t.market.audits_due(self.id)) == due
        self.pass_time(seconds)
        super().end_audit(round_, name, why, at)
        self.step(lambda t, row: t.end_audits(row))

    def measure(self, **changes: Any) -> None:  # type: ignore[override]
        self.pass_time()
        super().measure(**changes)
        body = self.log.entries[-1].body
        statement = RemeasurementStatement.from_record(body["statement"])
        brought = BroughtRemeasurement(statement, bytes.fromhex(said(body, "signature")))
        for _ in range(2):  # the second time it is known
            made = self.step(lambda t, row: audits.record_remeasurement(t, row, brought))
            assert made.data == self.log.entries[-1].data

    def delete(self, at: str | None = None) -> None:
        self.pass_time(self.shape.retention or 0)
        super().delete(at)
        self.step(lambda t, row: t.models_deleted(row))
        self.step(lambda t, row: t.models_deleted(row))  # which is known by now

    def end(self, state: State = State.CLOSED, reason: str = "", **changes: Any) -> None:
        self.pass_time()
        super().end(state, reason, **changes)
        if state is State.CLOSED:
            self.step(lambda t, row: t.close(row))
        else:
            self.step(lambda t, row: t.cancel(row, reason))
        row = self.service.row(self.id)
        assert (row.state, row.reason, row.ended_at) == (state, reason or None, self.service.watch.seconds)
        assert self.step(lambda t, row: t.escrow_left(row)) == 0


def said(body: Mapping[str, Any], key: str) -> str:
    return str(body[key])


def task_row(history: History) -> TaskRow:
    settings = {"evidence": {"shadows": 100, "later": 50}, "data": None}
    return TaskRow.opened(history.terms, _ROOT, settings, _BEGUN)


@pytest.fixture
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    with scratch_url(getattr(request, "param", "sqlite"), tmp_path) as url:
        made = Service(url)
        yield made
        made.close()


_EVERYWHERE = ("somebody absent", "two disputes")


@pytest.mark.parametrize(
    ("service", "shape"),
    [
        *(pytest.param("sqlite", shape, id=name) for name, shape in SHAPES.items()),
        *(pytest.param("postgresql", SHAPES[name], id=f"{name}, PostgreSQL") for name in _EVERYWHERE),
    ],
    indirect=["service"],
)
def test_a_task_leaves_the_log_that_it_leaves_on_paper(service: Service, shape: Shape) -> None:
    task = Mirrored(service, shape)
    task.play()
    written = service.entries()
    assert [Entry.parse(data).id for data in written] == [entry.id for entry in task.log.entries]
    assert written == [entry.data for entry in task.log.entries]
    check_events(task)
    check_settlements(task)


def check_events(task: Mirrored) -> None:
    """The task's stream has its transitions, at their times; a round's SCORED comes when its models are fixed."""
    events = task.step(lambda t, row: t.market.events(task.id))
    logged = [e.body for e in task.log.entries if e.kind == "transition"]
    assert [(e.state, e.round) for e in events] == [(b["state"], b["round"]) for b in logged]
    for event, body in zip(events, logged, strict=True):
        found = datetime.fromtimestamp(event.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if event.state is State.SCORED:
            assert found < str(body["at"])
        else:
            assert found == body["at"]
        if event.state is State.SELECTED:
            assert event.detail == {"selected": task.selected}
        if event.state is State.TRAINING:
            start = samples.INITIAL_MODEL if event.round == 1 else None
            assert event.detail["model_bytes"] == _START_BYTES
            assert start is None or event.detail["model_sha256"] == start.hex()
        if event.state is State.CANCELLED:
            assert event.detail == {"reason": "the learner withdrew"}
        waits = event.state in (State.EFFORT, State.TRAINING)
        assert (
            event.deadline == event.at + 60 if waits else event.state is State.SETTLED or not event.deadline
        )


def check_settlements(task: Mirrored) -> None:
    """What is kept of a payment for its participant is what its entry says, and stands where it says."""
    lines = task.step(lambda t, row: t.market.settlements(task.id))
    payments = {i: e.body for i, e in enumerate(task.log.entries) if e.kind == "payment"}
    assert {line.ledger_index for line in lines} == set(payments)
    logged = {e.id: e.body for e in task.log.entries}
    openings = samples.openings_of(task.log.entries)
    kept = task.step(lambda t, row: t.market.openings(task.id))
    assert {row.entry_id: parse_canonical(row.opening) for row in kept} == openings
    assert [row.entry_id for row in kept] == [e.id for e in task.log.entries if e.id in openings]
    assert all(row.participant_id in row.entry_id.split("/") or row.entry_kind == "evidence" for row in kept)
    for line in lines:
        body: Any = payments[line.ledger_index]
        assert (body["round"], body["participant_id"]) == (line.round, line.participant_id)
        for key in ("paid_micro", "penalty_micro", "withheld_micro", "stake_lost_micro"):
            assert line.record[key] == body[key], key
        verdict = openings[entries.verdict_id(task.id, line.round, line.participant_id)]
        assert line.record["assessment"] == verdict["assessment"]
        draws: Any = logged[f"{task.id}/round/{line.round}/peers/1"]["draws"]
        assert line.record["peers"] == dict(draws)[line.participant_id]
    for number in {line.round for line in lines}:
        told = {line.participant_id: line.expected_micro for line in lines if line.round == number}
        judged = [line.assessment for line in lines if line.round == number]
        assert told == expected_payments(task.terms, judged)


def test_a_review_says_what_the_awards_of_the_end_pay(service: Service) -> None:
    task = Mirrored(service, SHAPES["two disputes"])
    task.begin()
    assert task.step(lambda t, row: t.escrow_left(row)) == task.terms.budget_micro
    task.rounds(1, 2)
    assert set(task.step(lambda t, row: t.reviews(row, "p001"))) == {1, 2}
    assert task.step(lambda t, row: t.reviews(row, "zoe")) == {}
    task.rounds(3, 3)
    found = {name: task.step(lambda t, row, name=name: t.reviews(row, name)) for name in task.people}  # type: ignore[misc]
    task.finish()
    awarded: dict[str, int] = {}
    for entry in task.log.entries:
        if entry.kind == "award":
            body: Any = entry.body
            awarded[f"{body['participant_id']}/{body['round']}"] = body["award_micro"]
    disputed = task.shape.private
    assert awarded
    assert awarded == {
        f"{name}/{number}": review.award_micro
        for name in disputed
        for number, review in found[name].items()
        if review.award_micro
    }


def test_the_terms_of_a_row_are_those_of_the_ledger(service: Service) -> None:
    task = Mirrored(service, Shape())
    task.open()
    task.step(lambda t, row: t.check_terms(row))
    other = replace(task.terms, budget_micro=task.terms.budget_micro + 1)
    with pytest.raises(MarketTaskError, match="not those in the ledger"):
        task.step(lambda t, row: t.check_terms(replace(row, terms=other)))
    elsewhere = replace(task.terms, task_id="another")
    with pytest.raises(MarketTaskError, match=r"'another'.*not those in the ledger"):
        task.step(lambda t, row: t.check_terms(replace(row, id="another", terms=elsewhere)))


def test_nobody_is_selected_where_claims_have_fallen_below_the_quorum(service: Service) -> None:
    task = Mirrored(service, Shape())
    task.open()
    task.enter(State.EFFORT)
    for name in task.people:
        task.claim(name)
    task.pass_time()
    task.step(lambda t, row: t.market.revoke("p001", t.now))
    before = len(service.entries())
    chosen: list[list[str]] = []

    def choose(claimed: list[str]) -> list[str]:
        chosen.append(claimed)
        raise LookupError  # so that nothing comes of it

    with pytest.raises(LookupError):
        task.step(lambda t, row: t.select(row, choose))
    assert chosen == [["p000", "p002", "p003"]]
    task.step(lambda t, row: t.market.revoke("p002", t.now))
    with pytest.raises(StaleTask, match="fallen below the quorum"):
        task.step(lambda t, row: t.select(row, choose))
    assert len(chosen) == 1
    assert (len(service.entries()), service.row().state) == (before, State.EFFORT)


def test_a_clock_that_is_set_back_takes_no_step_before_the_last_one(service: Service) -> None:
    task = Mirrored(service, Shape())
    task.open()
    service.watch.seconds -= 3600
    task.step(lambda t, row: t.begin_effort(row))
    opened, began = (Entry.parse(data).body for data in service.entries()[-2:])
    assert began["at"] == opened["at"]
    assert service.row().deadline == _BEGUN + 60  # of the time that is logged


def too_early(task: Mirrored, step: Callable[[Transaction, TaskRow], object]) -> None:
    """The step is not taken a moment before its deadline, though it was decided on."""
    before = task.service.entries()
    with pytest.raises(StaleTask, match="are taken until its deadline"):
        task.step(step)
    assert task.service.entries() == before


def test_no_phase_is_cut_short_by_a_clock_that_is_set_back_once_its_end_was_decided(service: Service) -> None:
    task = Mirrored(service, PRIVATE)
    task.open()
    task.enter(State.EFFORT)
    for name in task.people[:3]:
        task.claim(name)
    task.pass_time(59.999)
    too_early(task, lambda t, row: t.select(row))
    task.claim("p003")
    task.select()
    for number in (1, 2):
        task.train()
        for name in task.people[:3]:
            task.model(name)
        task.pass_time(59.999)
        too_early(task, lambda t, row: t.close_round(row, ["p000", "p001"]))
        task.model("p003") if number == 1 else task.fail("p003", "no disk")
        task.settle(task.measured())
    task.pass_time(59.999)
    too_early(task, lambda t, row: t.close(row))
    task.finish()
    written = service.entries()
    assert written == [entry.data for entry in task.log.entries]
    assert verify_ledger(MemorySource(written), KEY.verification_key).verified


class Wild:
    """A task in a service whose clock jumps between any two steps, and between a decision and its step."""

    def __init__(self, service: Service, seed: int) -> None:
        self.service, self.chance = service, random.Random(seed)
        self.said = History(
            Log(), replace(PRIVATE, rule="verified")
        )  # what participants say; its log is not looked at
        self.said.open()
        self.waiting = list(self.said.people)
        for name in self.said.people:
            public = public_key_pem(private_key(name).public_key())
            enrolled = Enrolled(ParticipantRow(name, public, _BEGUN, None), b"", 0.0, True)
            service.do(lambda t, e=enrolled: (t.market.put_participant(e.participant), t.enrol(e)))  # type: ignore[misc]
        service.do(lambda t: t.open_task(PreparedTask(task_row(self.said), b"", None)))

    def tick(self) -> None:
        self.service.watch.seconds += self.chance.choice(
            (0.2, 0.3, 0.7, 30, 59.7, 61.4, -0.2, -0.9, -45, -4000, 5000)
        )

    def run(self) -> list[bytes]:
        while not (row := self.service.row()).state.final:
            self.tick()
            progress = self.service.do(lambda t, row=row: t.market.progress(row))  # type: ignore[misc]
            absent = frozenset(self.chance.sample(self.said.people, self.chance.randrange(3)))
            step = next_step(row.terms.schedule, replace(progress, absent=absent), self.service.watch.seconds)
            with suppress(StaleTask, Refusal):
                self.take(step, row, sorted(progress.outstanding))
        return self.service.entries()

    def take(self, step: Step, row: TaskRow, awaited: list[str]) -> None:
        def do(work: Callable[[Transaction], object]) -> None:
            self.tick()
            self.service.do(work)

        said = self.said
        match step:
            case BeginEffort():
                do(lambda t: t.begin_effort(row))
            case Select():
                do(lambda t: t.select(row))
                said.selected = [c.participant_id for c in self.service.do(lambda t: t.market.claims("task"))]
            case OpenRound(number):
                do(lambda t: t.open_round(row, number, _START_BYTES))
                said.train()
            case CloseRound(absent):
                do(lambda t: t.close_round(row, absent))
            case Settle():
                if awaited and self.chance.random() < 0.5:
                    self.deliver(awaited[0], late=True)
                record = said.evidence()
                judged = said.verdicts(record)
                seed = round_seed(samples.chain_secret("task"), said.terms.schedule.rounds, row.round)
                sent = {name: model.draw_share for name, (model, _) in said.models[row.round].items()}
                said.settle(record)
                merged = Merged(said.result, said.server_state)
                do(lambda t: t.settle(row, Draw(seed, sent), judged, record, merged, None))
            case Close():
                do(lambda t: t.close(row))
            case Cancel(reason):
                do(lambda t: t.cancel(row, reason))
            case Wait():
                self.hear(row, awaited)

    def hear(self, row: TaskRow, awaited: list[str]) -> None:
        """Perhaps somebody says something."""
        self.tick()
        if row.state is State.EFFORT and self.waiting and self.chance.random() < 0.7:
            self.said.claim(self.waiting.pop())
            entry = self.said.log.entries[-1]
            statement = ClaimStatement.from_record(entry.body["statement"])
            opening = ClaimOpening.from_record(entry.opening)
            signature = bytes.fromhex(said(entry.body, "signature"))
            self.service.do(lambda t: t.add_claim(row, statement, signature, opening))
        elif row.state is State.TRAINING and (chance := self.chance.random()) < 0.8:
            if chance < 0.1:
                self.said.said[awaited[0]] = "no disk"
                report = FailureReport("task", row.round, awaited[0], f"f-{row.round}", "no disk")
                self.service.do(lambda t: t.add_failure(row, report))
            else:
                self.deliver(awaited[-1], late=False)
        elif row.state is State.SETTLED:

            def dispute(t: Transaction) -> None:
                if not t.disputed("task", ["p003"]):
                    admit_dispute(t.market, row, "p003", t.now)
                    t.open_dispute(row, "p003", self.said.counts("p003"), SALT)

            self.service.do(dispute)

    def deliver(self, name: str, *, late: bool) -> None:
        self.said.model(name, late=late)
        entry = self.said.log.entries[-1]
        statement = ModelStatement.from_record(entry.body["statement"])
        opening = ModelOpening.from_record(entry.opening)
        signature = bytes.fromhex(said(entry.body, "signature"))
        self.service.do(
            lambda t: t.add_model(statement, signature, opening, t.model_standing(statement), late=late)
        )


@pytest.mark.parametrize("seed", range(16))
def test_whatever_the_clock_does_the_log_of_a_service_is_verified(service: Service, seed: int) -> None:
    written = Wild(service, seed).run()
    report = verify_ledger(MemorySource(written), KEY.verification_key)
    assert report.verified, report.problems
    assert report.open_tasks == {}


@given(
    fraction=st.floats(0, 1, exclude_max=True),
    seconds=st.integers(1, 31_622_400),
    second=st.integers(0, 2**31 + 9),
)
def test_a_deadline_is_never_logged_as_earlier_than_the_terms_say(
    fraction: float, seconds: int, second: int
) -> None:
    """Times are logged in whole seconds: a phase begins at `second + fraction` and ends at its deadline."""
    begun = second + fraction
    written = [datetime.fromisoformat(entries.timestamp(at)) for at in (begun, begun + seconds)]
    assert (written[1] - written[0]).total_seconds() >= seconds


def test_a_failures_digest_is_that_of_all_that_it_says() -> None:
    wanted: dict[str, Json] = {
        "kind": "failure",
        "task_id": "task",
        "round": 2,
        "participant_id": "ann",
        "submission_id": "f-1",
        "reason": "no disk",
    }
    assert FailureReport("task", 2, "ann", "f-1", "no disk").digest == canonical_digest(wanted)


def test_a_key_is_enrolled_once_and_revoked_with_all_that_a_name_had(service: Service) -> None:
    authority = make_authority("test", datetime.fromtimestamp(_BEGUN - 86400, UTC))
    keys = [new_key() for _ in range(3)]

    def join(name: str, key: Any) -> Callable[[Transaction], None]:
        def work(t: Transaction) -> None:
            token = invite(t.market, name, t.now).token
            t.enrol(enrol(t.market, authority, name, token, signing_request(name, key), t.now))

        return work

    def refused(name: str, key: Any, why: str) -> None:
        with pytest.raises(Refusal, match=why) as caught:
            service.do(join(name, key))
        assert caught.value.code is Code.FIELD_INVALID
        assert [v.field for v in caught.value.violations] == ["certificate_signing_request"]

    service.do(join("ann", keys[0]))
    service.do(join("ann", keys[1]))
    refused("ben", keys[0], "enrolled under another name")
    service.do(join("ben", keys[2]))
    token = service.do(lambda t: invite(t.market, "ann", t.now).token)
    service.watch.seconds += 60
    service.do(lambda t: t.revoke("ann", "laptop stolen"))
    service.do(lambda t: t.revoke("ann", "once more"))
    service.do(lambda t: t.revoke("zoe", "nobody"))
    expected = [
        entries.enrolment("ann", keys[0].public_key()),
        entries.enrolment("ann", keys[1].public_key()),
        entries.enrolment("ben", keys[2].public_key()),
        entries.revocation("ann", keys[0].public_key(), "laptop stolen"),
        entries.revocation("ann", keys[1].public_key(), "laptop stolen"),
    ]
    written = service.entries()
    assert sorted(written) == sorted(entry.data for entry in expected)
    assert written[:3] == [entry.data for entry in expected[:3]]
    row = service.do(lambda t: t.market.participant("ann"))
    assert row is not None
    assert row.revoked_at == service.watch.seconds
    with pytest.raises(Refusal, match="no longer holds"):
        service.do(
            lambda t: enrol(t.market, authority, "ann", token, signing_request("ann", new_key()), t.now)
        )
    for key in keys[:2]:
        for name in ("ann", "ben"):
            refused(name, key, "revoked")
    again = new_key()
    service.do(join("ann", again))  # a new invitation and a new key take it back
    service.do(lambda t: t.revoke("ann", "gone"))
    assert service.entries()[-1] == entries.revocation("ann", again.public_key(), "gone").data
    assert len(service.entries()) == len(expected) + 2


def test_a_learners_statement_has_what_audits_took(service: Service) -> None:
    task = Mirrored(service, SHAPES["audits that fail"])
    task.play()
    found = service.do(lambda t: payouts.learner_statement(t, "trust"))
    [of_task] = found["tasks"]
    paid_in = sum(each["micro"] for each in found["funding"])
    assert of_task["audits_took_micro"] > 0
    assert found["free_micro"] == (
        paid_in - of_task["spent_micro"] + of_task["stakes_lost_micro"] + of_task["audits_took_micro"]
    )
