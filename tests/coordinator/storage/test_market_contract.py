"""What every market store must do, over SQLite and PostgreSQL: each test in a transaction that is undone after it."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Table

from coordinator.storage.identities import (
    CertificateRow,
    InvitationRow,
    ParticipantRow,
    certificates,
    invitations,
    participants,
)
from coordinator.storage.notices import NoticeRow
from coordinator.storage.payouts import (
    BankAccountRow,
    FundingRow,
    PayoutLineRow,
    PayoutRow,
    bank_accounts,
    funding,
    payout_lines,
    payouts,
)
from coordinator.storage.rounds import Retention, RoundRow, SettlementRow, rounds, settlements
from coordinator.storage.schema import migrate
from coordinator.storage.store import MarketStore
from coordinator.storage.submissions import (
    ClaimRow,
    FailureRow,
    ModelRow,
    ModelStanding,
    ReceiptRow,
    claims,
    failures,
    models,
    receipts,
)
from coordinator.storage.tasks import EventRow, StaleTask, TaskRow, events, tasks
from fedpeer.audit.sql.database import Database, translated
from fedpeer.audit.sql.errors import ConstraintViolated
from mechanism.errors import LifecycleError
from mechanism.lifecycle import State
from tests import ledger_samples as samples
from tests.backends import DURABLE, scratch_url


class Undone(Exception):
    """Ends a test's transaction."""


@contextmanager
def undone(database: Database) -> Iterator[MarketStore]:
    """A store whose transaction leaves nothing."""
    with suppress(Undone), database.begin() as connection:
        yield MarketStore(connection)
        raise Undone


@pytest.fixture(scope="module", params=DURABLE)
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with scratch_url(request.param, tmp_path_factory.mktemp("market")) as url:
        opened = Database(url)
        migrate(opened)
        yield opened
        opened.close()


@pytest.fixture
def store(database: Database) -> Iterator[MarketStore]:
    with undone(database) as store:
        yield store


def advanced(store: MarketStore, task: TaskRow, state: State, **values: Any) -> TaskRow:
    """The task once it has moved on."""
    store.advance(task, state, **values)
    moved = store.task(task.id)
    assert moved is not None
    return moved


def digest(text: str) -> bytes:
    return text.encode().ljust(32, b".")


def opened(store: MarketStore, name: str = "task", at: float = 1.0, n_rounds: int = 2) -> TaskRow:
    terms = samples.terms(name, rounds=n_rounds)
    row = TaskRow(
        id=name,
        terms=terms,
        root=digest("root"),
        settings={"data": None, "evidence": {"shadows": 20}},
        state=State.OPEN,
        round=0,
        deadline=None,
        version=1,
        model=digest("first"),
        opened_at=at,
        ended_at=None,
        reason=None,
    )
    store.add_task(row)
    store.add_event(name, State.OPEN, 0, None, {}, at)
    return row


def training(store: MarketStore, name: str = "task") -> TaskRow:
    """A task in its first round."""
    row = opened(store, name)
    for state, round_ in ((State.EFFORT, 0), (State.SELECTED, 0), (State.TRAINING, 1)):
        row = advanced(store, row, state, now=2.0, round_=round_, deadline=9.0)
    return row


def claim(name: str, selected: bool = False) -> ClaimRow:
    return ClaimRow(name, "1/4", selected, digest("head"), digest("salt"))


def model(name: str, sequence: int = 1) -> ModelRow:
    return ModelRow(name, sequence, digest(f"model {name}"), 2**50, digest("share"))


def receipt(name: str, submission: str, index: int, late: bool = False) -> ReceiptRow:
    return ReceiptRow("task", name, submission, "model", 1, digest(submission), index, late, 5.5)


# Tasks


def test_a_task_comes_back_as_it_was_stored(store: MarketStore) -> None:
    row = opened(store)
    assert store.task("task") == row
    assert store.task("other") is None


def test_tasks_come_in_the_order_in_which_they_were_opened(store: MarketStore) -> None:
    for name, at in (("c", 2.0), ("b", 1.0), ("a", 2.0)):
        opened(store, name, at)
    assert [row.id for row in store.tasks()] == ["b", "a", "c"]


def test_an_id_of_a_task_is_used_once(store: MarketStore) -> None:
    row = opened(store)
    with pytest.raises(ConstraintViolated), translated():
        store.add_task(row)


def test_a_step_moves_the_task_and_writes_its_event(store: MarketStore) -> None:
    row = opened(store)
    moved = advanced(store, row, State.EFFORT, now=3.0, deadline=60.5, detail={"why": "ü"})
    assert moved == replace(row, state=State.EFFORT, deadline=60.5, version=2)
    assert store.task("task") == moved
    assert store.events("task", after=1) == [EventRow(2, State.EFFORT, 0, 60.5, {"why": "ü"}, 3.0)]
    assert store.latest_event_at("task") == 3.0


def test_of_two_steps_from_one_state_the_second_is_refused_and_changes_nothing(store: MarketStore) -> None:
    row = opened(store)
    moved = advanced(store, row, State.EFFORT, now=3.0)
    with pytest.raises(StaleTask, match="version 1"):
        store.advance(row, State.CANCELLED, now=4.0, reason="a reason")
    assert store.task("task") == moved
    assert len(store.events("task")) == 2


def test_a_step_that_the_life_cycle_does_not_know_is_refused(store: MarketStore) -> None:
    row = opened(store)
    with pytest.raises(LifecycleError):
        store.advance(row, State.SETTLED, now=3.0)
    assert store.task("task") == row


def test_a_final_state_ends_the_task_and_keeps_its_model(store: MarketStore) -> None:
    ended = advanced(store, opened(store), State.CANCELLED, now=7.0, reason="no claim came")
    assert (ended.ended_at, ended.reason, ended.model) == (7.0, "no claim came", digest("first"))


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(times=st.lists(st.floats(0, 1e10), min_size=1, max_size=8))
def test_cursors_have_no_gap_and_times_never_go_back(database: Database, times: list[float]) -> None:
    with undone(database) as store:
        opened(store, at=0.0)
        for at in times:
            store.add_event("task", State.OPEN, 0, None, {}, at)
        found = store.events("task")
        assert [event.cursor for event in found] == list(range(1, len(times) + 2))
        assert [event.at for event in found] == sorted(event.at for event in found)
        assert store.events("task", after=len(times)) == found[-1:]


# Submissions


def test_receipts_are_found_by_id_and_listed_in_the_ledgers_order(store: MarketStore) -> None:
    opened(store)
    second, first = receipt("ann", "s1", 9, late=True), receipt("ann", "s2", 3)
    for row in (second, first, receipt("bob", "s1", 5)):
        store.add_receipt(row)
    assert store.receipt("task", "ann", "s1") == second
    assert store.receipt("task", "bob", "s2") is None
    assert store.receipts("task", "ann") == [first, second]


def test_a_submission_id_has_one_receipt(store: MarketStore) -> None:
    opened(store)
    store.add_receipt(receipt("ann", "s1", 1))
    with pytest.raises(ConstraintViolated), translated():
        store.add_receipt(receipt("ann", "s1", 2))


def test_a_participant_claims_once(store: MarketStore) -> None:
    opened(store)
    store.add_claim("task", claim("ann"))
    with pytest.raises(ConstraintViolated), translated():
        store.add_claim("task", replace(claim("ann"), degree="1/3"))


def test_an_erased_claim_says_no_degree_and_no_organisation(store: MarketStore) -> None:
    opened(store)
    for name in ("ann", "bob"):
        store.add_claim("task", replace(claim(name), organisation=digest("trust")))
    store.erase_claim("task", "ann")
    assert store.claims("task") == [
        replace(claim("ann"), degree=""),
        replace(claim("bob"), organisation=digest("trust")),
    ]


def test_claims_come_in_the_order_of_ids_and_those_chosen_are_selected(store: MarketStore) -> None:
    opened(store)
    for name in ("cyd", "ann", "bob"):
        store.add_claim("task", claim(name))
    store.select_participants("task", ["cyd", "ann"])
    assert store.claims("task") == [claim("ann", True), claim("bob"), claim("cyd", True)]
    assert store.claim("task", "bob") == claim("bob")
    assert store.claim("task", "dan") is None
    assert store.count_claims("task") == 3


def test_a_model_is_delivered_once_a_round(store: MarketStore) -> None:
    opened(store)
    store.add_model("task", 1, model("ann"))
    store.add_model("task", 2, model("ann"))
    assert store.models("task", 1) == [model("ann")]
    with pytest.raises(ConstraintViolated), translated():
        store.add_model("task", 1, replace(model("ann"), sequence=2))


def test_commitments_are_numbered_within_their_task(store: MarketStore) -> None:
    for name in ("task", "other"):
        opened(store, name)
    numbers = [store.add_upload("task", name, f"m-{name}", 1, digest(name), 3.0) for name in ("ann", "bob")]
    assert [*numbers, store.add_upload("other", "ann", "m-ann", 1, digest("ann"), 3.0)] == [1, 2, 1]


def test_the_standing_of_a_model_is_what_its_rows_say(store: MarketStore) -> None:
    training(store)
    nothing = ModelStanding(False, b"", False, None, None, 0, None)
    assert store.model_standing("task", "ann", "s", 1) == nothing
    store.add_claim("task", claim("ann", selected=True))
    store.add_upload("task", "ann", "other", 1, digest("other"), 3.0)
    store.add_upload("task", "ann", "s", 1, digest("s"), 3.0)
    store.add_upload("task", "ann", "later", 2, digest("later"), 3.0)
    begun = replace(
        nothing, selected=True, draw_head=digest("head"), sequence=2, committed=digest("s"), begun=2
    )
    assert store.model_standing("task", "ann", "s", 1) == begun
    store.add_model("task", 1, model("ann", 2))
    store.add_receipt(receipt("ann", "s", 7))
    delivered = replace(begun, delivered=True, receipt=receipt("ann", "s", 7))
    assert store.model_standing("task", "ann", "s", 1) == delivered
    assert store.model_standing("task", "bob", "s", 1) == nothing


def test_failures_of_a_round_and_of_all(store: MarketStore) -> None:
    opened(store)
    rows = [
        FailureRow("ann", 2, "disk", 4.0),
        FailureRow("cyd", 1, "power", 3.0),
        FailureRow("bob", 1, "", 2.0),
    ]
    for row in rows:
        store.add_failure("task", row)
    assert store.failures("task", 1) == [rows[2], rows[1]]
    assert store.all_failures("task") == [rows[2], rows[1], rows[0]]
    with pytest.raises(ConstraintViolated), translated():
        store.add_failure("task", rows[0])


def test_progress_names_who_claimed_was_selected_delivered_and_failed(store: MarketStore) -> None:
    task = training(store)
    for name in ("ann", "bob", "cyd", "dan"):
        store.add_claim("task", claim(name, selected=name != "dan"))
    store.add_model("task", 1, model("ann"))
    store.add_model("task", 2, model("cyd"))
    store.add_failure("task", FailureRow("bob", 1, "", 3.0))
    found = store.progress(task)
    assert (found.state, found.round, found.deadline) == (State.TRAINING, 1, 9.0)
    assert (found.claimed, found.selected) == ({"ann", "bob", "cyd", "dan"}, {"ann", "bob", "cyd"})
    assert (found.delivered, found.failed) == ({"ann"}, {"bob"})


def test_the_claim_of_one_who_was_revoked_counts_only_where_it_was_selected(store: MarketStore) -> None:
    task = training(store)
    for name, selected in (("ann", True), ("bob", False), ("cyd", False)):
        store.put_participant(ParticipantRow(name, f"key of {name}", 1.0, None))
        store.add_claim("task", claim(name, selected))
    for name in ("ann", "bob"):
        store.revoke(name, 4.0)
    assert store.progress(task).claimed == {"ann", "cyd"}
    assert store.count_claims("task") == 3, "its place stays taken"


# Rounds


def test_a_round_is_opened_and_completed(store: MarketStore) -> None:
    opened(store)
    store.open_round("task", 2, digest("second"), 2**40, 8.0)
    store.open_round("task", 1, digest("first"), 64, 3.0)
    done = {"settled_at": 7.0, "result_model": digest("second"), "accuracy": "0.9", "ledger_size": 40}
    store.update_round("task", 1, closed_at=6.0)
    store.update_round("task", 1, **done)
    first = RoundRow(1, digest("first"), 64, 3.0, closed_at=6.0, **done)  # type: ignore[arg-type]  # of mixed types
    assert store.rounds("task") == [first, RoundRow(2, digest("second"), 2**40, 8.0)]


def test_settlements_are_found_by_participant_by_round_and_by_task(store: MarketStore) -> None:
    opened(store)
    rows = [
        SettlementRow(1, "bob", 11, {"paid_micro": 2**52, "peers": ["ann"]}),
        SettlementRow(1, "ann", 12, {"paid_micro": 0, "peers": []}),
        SettlementRow(2, "ann", 20, {"paid_micro": 5, "peers": ["bob"]}),
    ]
    store.add_settlements("task", rows)
    assert store.settlement("task", 1, "bob") == rows[0]
    assert store.settlement("task", 2, "bob") is None
    assert store.round_settlements("task", 1) == rows[:2]
    assert store.settlements("task") == [rows[1], rows[0], rows[2]]
    with pytest.raises(ConstraintViolated), translated():
        store.add_settlements("task", rows[:1])


def test_models_are_needed_while_their_task_runs_and_for_a_time_after(store: MarketStore) -> None:
    for name in ("runs", "old"):
        opened(store, name)
        store.open_round(name, 1, digest(f"start of {name}"), 1, 1.0)
        store.update_round(name, 1, result_model=digest(f"result of {name}"))
        store.add_model(name, 1, replace(model("ann"), model_sha256=digest(f"ann's in {name}")))
    row = store.task("old")
    assert row is not None
    store.advance(row, State.CANCELLED, now=100.0, reason="a reason", model=digest("last of old"))
    running = {digest(text) for text in ("first", "start of runs", "result of runs", "ann's in runs")}
    ended = {digest(text) for text in ("last of old", "start of old", "result of old", "ann's in old")}
    assert store.referenced_models(Retention(100.0, unfetched=False)) == running | ended
    assert store.referenced_models(Retention(100.5, unfetched=False)) == running
    sent = {digest("ann's in old")}
    assert store.sent_models("old") == sent
    held = Retention(100.5, unfetched=False, held=frozenset({"old"}))
    assert store.referenced_models(held) == running | sent, "longer than everything else of the task"
    due = Retention(100.0, unfetched=False, due=frozenset({"old"}))
    assert store.referenced_models(due) == (running | ended) - sent, "sooner than everything else of the task"


def test_the_model_that_a_task_ended_with_is_kept_until_it_is_fetched(store: MarketStore) -> None:
    row = opened(store)
    store.open_round("task", 1, digest("start"), 1, 1.0)
    store.update_round("task", 1, result_model=digest("last"))
    store.advance(row, State.CANCELLED, now=100.0, reason="a reason", model=digest("last"))
    assert store.referenced_models(Retention(200.0, unfetched=True)) == {digest("last")}
    assert store.referenced_models(Retention(200.0, unfetched=False)) == set()
    store.update_round("task", 1, fetched_at=150.0)
    assert store.referenced_models(Retention(200.0, unfetched=True)) == set()


# Identities


def test_a_participant_that_enrols_again_has_its_new_key_alone(store: MarketStore) -> None:
    first = ParticipantRow("bob", "key", 1.0, None)
    for row in (first, ParticipantRow("ann", "key of ann", 2.0, None)):
        store.put_participant(row)
    store.revoke("bob", 3.0)
    assert store.participant("bob") == replace(first, revoked_at=3.0)
    again = ParticipantRow("bob", "new key", 4.0, None)
    store.put_participant(again)
    assert store.participant("bob") == again
    assert [row.id for row in store.participants()] == ["ann", "bob"]
    assert store.participant("cyd") is None


def test_a_revocation_ends_every_certificate_once(store: MarketStore) -> None:
    for name in ("ann", "bob"):
        store.put_participant(ParticipantRow(name, "key", 1.0, None))
    issued = [CertificateRow(f"{i:x}" * 40, "ann", "PEM", 9.0 - i, 99.0, None) for i in (1, 2)]
    other = CertificateRow("f" * 40, "bob", "PEM", 1.0, 99.0, None)
    for row in (*issued, other):
        store.add_certificate(row)
    store.revoke("ann", 5.0)
    store.revoke("ann", 6.0)
    ended = [replace(row, revoked_at=5.0) for row in reversed(issued)]
    assert store.certificates("ann") == ended, "the oldest first"
    assert store.certificates() == [other, *ended]
    assert store.certificate(other.serial) == other
    assert store.certificate("0") is None


def test_an_invitation_is_redeemed_once_and_withdrawn_unless_it_was(store: MarketStore) -> None:
    store.put_participant(ParticipantRow("ann", "key", 1.0, None))
    store.add_certificate(CertificateRow("a1", "ann", "PEM", 1.0, 99.0, None))
    given = (("used", "ann", 50.0), ("new", "ann", 50.0), ("old", "ann", 5.0), ("b", "bob", 50.0))
    rows = [InvitationRow(digest(name), whose, 1.0, expires, None) for name, whose, expires in given]
    for row in rows:
        store.add_invitation(row)
    store.redeem_invitation(digest("used"), "a1")
    assert store.withdraw_invitations("ann", now=5.0) == 1, "one that has expired could not be used"
    assert store.withdraw_invitations("ann", now=5.0) == 0
    assert store.invitation(digest("used")) == replace(rows[0], serial="a1")
    assert store.invitation(digest("new")) == replace(rows[1], expires_at=0.0)
    assert store.invitation(digest("b")) == rows[3]
    assert store.invitation(digest("none")) is None


def test_who_is_erased_has_no_organisation_no_owner_and_no_invitation(store: MarketStore) -> None:
    given = (("a", "ann", None), ("p", "p-1", "ann"), ("q", "p-2", "ann"), ("b", "bob", None))
    for name, whose, owner in given:
        task_id = None if owner is None else "task"
        store.add_invitation(InvitationRow(digest(name), whose, 1.0, 50.0, None, "trust", task_id, owner))
    for name, whose, owner in given[1::2]:
        task_id = None if owner is None else "task"
        store.put_participant(ParticipantRow(whose, name, 1.0, 2.0, "trust", task_id, owner))
    assert store.invited_for("ann") == ["p-1", "p-2"]
    assert [store.erase_person(name) for name in ("p-1", "ann", "ann", "nobody")] == [1, 2, 0, 0]
    assert store.participants() == [
        ParticipantRow("bob", "b", 1.0, 2.0, "trust"),
        ParticipantRow("p-1", "p", 1.0, 2.0, None, "task"),
    ]
    assert [store.invitation(digest(name)) is None for name, *_ in given] == [True, True, True, False]


def test_a_certificate_is_of_somebody_who_is_enrolled(store: MarketStore) -> None:
    with pytest.raises(ConstraintViolated), translated():
        store.add_certificate(CertificateRow("a1", "nobody", "PEM", 1.0, 99.0, None))


# All


def test_what_is_undone_leaves_nothing(database: Database) -> None:
    with undone(database) as store:
        training(store)
    with database.read() as connection:
        assert MarketStore(connection).tasks() == []


ROWS = (
    (TaskRow, tasks),
    (EventRow, events),
    (ReceiptRow, receipts),
    (ClaimRow, claims),
    (ModelRow, models),
    (FailureRow, failures),
    (RoundRow, rounds),
    (SettlementRow, settlements),
    (ParticipantRow, participants),
    (CertificateRow, certificates),
    (InvitationRow, invitations),
    (BankAccountRow, bank_accounts),
    (PayoutRow, payouts),
    (PayoutLineRow, payout_lines),
    (FundingRow, funding),
)


@pytest.mark.parametrize(("kind", "table"), ROWS, ids=lambda given: getattr(given, "name", None))
def test_a_value_has_every_column_of_its_table_but_those_that_it_is_asked_by(
    kind: type, table: Table
) -> None:
    named = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # a dataclass
    assert named <= set(table.c.keys())
    assert set(table.c.keys()) - named <= {"task_id", "round"}


HOSTILE = ["'; DROP TABLE tasks; --", '"', "%s", "%(id)s", ":id", "?", "\\", "ü", "a\nb"]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_value_is_never_read_as_sql(store: MarketStore, text: str) -> None:
    opened(store)
    store.add_failure("task", FailureRow(text, 1, text, 1.0))
    assert store.failures("task", 1) == [FailureRow(text, 1, text, 1.0)]
    assert store.claim(text, text) is None
    assert store.task("task") is not None


def test_notices_are_counted_without_a_gap_and_kept_for_those_who_have_not_had_them(
    store: MarketStore,
) -> None:
    for number in range(1, 5):
        store.add_notice("task.opened", f"id-{number}", float(number), {"text": "é \x00 'q'"}, "task", "ann")
    assert store.last_notice() == 4
    assert [(n.number, n.id, n.at) for n in store.notices_after(1, 2)] == [(2, "id-2", 2.0), (3, "id-3", 3.0)]
    [first, *_] = store.notices_after(0, 9)
    assert first == NoticeRow(1, "id-1", "task.opened", "task", "ann", {"text": "é \x00 'q'"}, 1.0)
    store.put_notice_place("ops", 3)
    store.put_notice_place("ann", 1)
    store.put_notice_place("ann", 2)
    assert store.notice_places() == {"ops": 3, "ann": 2}
    store.sweep_notices(before=0.0)
    assert [n.number for n in store.notices_after(0, 9)] == [3, 4]
    store.sweep_notices(before=9.0)  # too old for everybody
    assert [n.number for n in store.notices_after(0, 9)] == [4]
    store.drop_notice_place("ann")
    store.put_notice_place("ops", 4)
    store.sweep_notices(before=9.0)
    store.add_notice("task.closed", "id-5", 5.0, {})
    assert [n.number for n in store.notices_after(3, 9)] == [4, 5]
    assert store.notice_places() == {"ops": 4}
