from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechanism.canonical import canonical_bytes, canonical_digest
from mechanism.errors import FieldError
from mechanism.ledger import entries
from mechanism.ledger.accounts import (
    Balance,
    Book,
    Post,
    Reservation,
    Reserve,
    Resolve,
    Transfer,
    accounts_of,
    parse_transfer,
    reservations_of,
)
from mechanism.ledger.entry import MAX_ENTRY_BYTES, Entry
from mechanism.ledger.errors import EntryError, PostingError
from mechanism.unmeasured import missing
from tests import ledger_samples as samples

scalars = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=8)
bodies = st.dictionaries(
    st.text(max_size=6),
    scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.text(max_size=4), scalars, max_size=3),
    max_size=6,
)


@given(bodies)
def test_an_entry_is_the_canonical_form_and_comes_back(body: dict[str, Any]) -> None:
    made = Entry("a/b", "x", body, (Post("treasury", "payable:p", 5),))
    record = {
        "v": 1,
        "kind": "x",
        "id": "a/b",
        "body": body,
        "transfers": [{"micro": 5, "credit": "payable:p", "debit": "treasury"}],
    }
    assert made.data == canonical_bytes(record)
    again = Entry.parse(made.data)
    assert (again.id, again.kind, again.body, again.transfers) == ("a/b", "x", body, made.transfers)


@pytest.mark.parametrize(
    "body", [{"x": 1.5}, {"x": 2**53}, {"x": {"y": 0.1}}, {"x": "\ud800"}, {"x": b"b"}, {1: 2}]
)
def test_what_is_not_canonical_makes_no_entry(body: dict[str, Any]) -> None:
    with pytest.raises(EntryError, match="entry a"):
        _ = Entry("a", "x", body).data


def test_an_entry_stays_under_64_kib() -> None:
    frame = len(Entry("a", "x", {"t": ""}).data)
    assert len(Entry("a", "x", {"t": "y" * (MAX_ENTRY_BYTES - frame)}).data) == 65_535
    with pytest.raises(EntryError, match="split it"):
        _ = Entry("a", "x", {"t": "y" * (MAX_ENTRY_BYTES - frame + 1)}).data


LONG = b'{"body":{"t":"' + b"y" * 65_536 + b'"},"id":"x","kind":"k","v":1}'


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"[]", "an entry is an object"),
        (b"null", "an entry is an object"),
        (b'{"body":{},"id":"x","kind":"k","v":2}', "version 2"),
        (b'{"body":{},"id":"x","kind":"k","v":true}', "version True"),
        (b'{"body":{},"id":"x","kind":"k"}', "version None"),
        (b'{"body":{},"id":"x","kind":"k","transfers":[],"v":1}', "a list that is not empty"),
        (b'{"body":{},"id":"x","kind":"k","transfers":{},"v":1}', "a list that is not empty"),
        (b'{"body":{},"extra":1,"id":"x","kind":"k","v":1}', "has the keys"),
        (b'{"body":{},"kind":"k","v":1}', "has the keys"),
        (b'{"body":[],"id":"x","kind":"k","v":1}', "a body"),
        (b'{"body":{},"id":5,"kind":"k","v":1}', "a body"),
        (b'{"body":{},"id":"x","kind":5,"v":1}', "a body"),
        (b'{"body":{},"id":"a b","kind":"k","v":1}', "not an entry id"),
        (b'{"body":{},"id":"","kind":"k","v":1}', "not an entry id"),
        (b'{"body": {},"id":"x","kind":"k","v":1}', "canonical"),
        (b'{"v":1,"body":{},"id":"x","kind":"k"}', "canonical"),
        (LONG, "65535"),
    ],
)
def test_what_is_no_entry_is_not_read_as_one(data: bytes, words: str) -> None:
    with pytest.raises(EntryError, match=words):
        Entry.parse(data)


@pytest.mark.parametrize("entry_id", ["", "a b", "a\n", "é", "x" * 256])
def test_an_id_without_form_is_refused(entry_id: str) -> None:
    with pytest.raises(EntryError, match="not an entry id"):
        _ = Entry(entry_id, "x", {}).data


def test_long_lists_are_cut_into_parts_that_fit_and_evidence_is_not_in_the_log() -> None:
    names = [f"{i:04d}{'x' * 59}" for i in range(2000)]
    selection = entries.selection_entries("task", names)
    assert len(selection) > 1
    assert [name for entry in selection for name in entry.body["participants"]] == names  # type: ignore[union-attr]
    for entry in selection:
        assert len(entry.data) < 65_536
    model: Any = {"x": "y" * 200_000, "shadows_sha256": "ab" * 32, "shadows": 1, "carried": 0}
    evidence = entries.evidence("task", 1, model, bytes(range(32)))
    assert evidence.opening == {"model": model, "salt": bytes(range(32)).hex()}
    assert evidence.body["commitment"] == canonical_digest(evidence.opening).hex()
    assert len(evidence.data) < 400


def test_a_list_is_cut_where_it_no_longer_fits_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '"p000","p001","p002"'
    for size, parts in ((len(text), [3]), (len(text) - 1, [2, 1]), (6, [1, 1, 1]), (1, [1, 1, 1])):
        monkeypatch.setattr(entries, "PART_BYTES", size)
        made = entries.selection_entries("task", ["p002", "p000", "p001"])
        assert [len(entry.body["participants"]) for entry in made] == parts  # type: ignore[arg-type]
        assert [entry.body["parts"] for entry in made] == [len(parts)] * len(parts)
    assert [entry.body["participants"] for entry in entries.selection_entries("task", [])] == [[]]


def test_a_logged_assessment_is_the_one_that_was_made() -> None:
    agreed = samples.terms()
    for made in (
        *samples.assessments(agreed, 1, samples.names(4)),
        missing("p000", Fraction(1, 3), "no disk"),
    ):
        assert entries.assessment_from_record(entries.assessment_record(made)) == made


def test_a_time_is_logged_in_whole_seconds_rounded_down() -> None:
    for seconds, text in ((0, "00:00:00"), (1.9999999, "00:00:01"), (86399.9999999, "23:59:59")):
        assert entries.timestamp(seconds) == f"1970-01-01T{text}Z"


def test_a_thousand_participants_settle_in_entries_that_fit() -> None:
    agreed = samples.terms(capacity=1000)
    judged = samples.assessments(agreed, 1, samples.names(1000))
    _, made = entries.settlement_entries(agreed, 1, samples.draw_of(agreed, 1, samples.names(1000)), judged)
    assert max(len(entry.data) for entry in made) < 65_536


def test_a_budget_below_the_bill_is_refused_and_the_whole_budget_reserved() -> None:
    agreed = samples.terms(rounds=3)
    with pytest.raises(FieldError, match="maximal bill"):
        entries.terms_entries(replace(agreed, budget_micro=agreed.budget_micro - 1))
    richer = replace(agreed, budget_micro=agreed.budget_micro + 2)
    held = [t for entry in entries.terms_entries(richer) for t in entry.transfers]
    assert [type(t) for t in held] == [Reserve] * 3
    assert sum(t.micro for t in held) == richer.budget_micro


@pytest.mark.parametrize(
    "record",
    [
        {"debit": "treasury", "credit": "payable:p", "micro": 0},
        {"debit": "treasury", "credit": "payable:p", "micro": -1},
        {"debit": "treasury", "credit": "payable:p", "micro": 2**53},
        {"debit": "treasury", "credit": "payable:p", "micro": True},
        {"debit": "treasury", "credit": "payable:p", "micro": 1.0},
        {"debit": "treasury", "credit": "treasury", "micro": 1},
        {"debit": "treasury", "credit": "savings", "micro": 1},
        {"debit": "treasury", "credit": "payable:P", "micro": 1},
        {"debit": "treasury", "credit": "stake:p", "micro": 1},
        {"debit": "treasury", "micro": 1},
        {"reserve": "x/0", "debit": "treasury", "credit": "escrow:x", "micro": 1},
        {"resolve": "x", "micro": 1},
        {"resolve": "x/1", "micro": 1, "debit": "treasury"},
        [],
        None,
    ],
)
def test_a_malformed_transfer_is_refused(record: Any) -> None:
    with pytest.raises(EntryError):
        parse_transfer(record)


@pytest.mark.parametrize("side", ["debit", "credit"])
def test_a_transfer_that_names_no_account_says_which(side: str) -> None:
    record = {"debit": "treasury", "credit": "rounding", "micro": 1, side: "nobody's"}
    with pytest.raises(EntryError, match=r"nobody's. is no account of this ledger$"):
        parse_transfer(record)


def refusal(book: Book, *moves: Transfer) -> str:
    """Why the last of the moves is refused; it changes nothing."""
    *before, last = moves
    for move in before:
        book.apply(move)
    held = {name: book.balance(name) for name in book.accounts()}
    with pytest.raises(PostingError) as caught:
        book.apply(last)
    assert {name: book.balance(name) for name in held} == held
    return str(caught.value)


def test_each_transfer_that_the_accounts_do_not_allow_is_refused_in_words() -> None:
    paid_in, held = Post("treasury", "escrow:a", 10), Reserve("a/1", "treasury", "escrow:a", 10)
    most = 2**53 - 1
    whole = [Post("treasury", "escrow:a", most)] * 1024
    reserved = [Reserve(f"a/{i}", "treasury", "escrow:a", most) for i in range(1, 1025)]
    for words, moves in {
        "overdrawn: it holds 10": (paid_in, Post("escrow:a", "payable:p", 11)),
        "overdrawn: it holds 0": (Post("payable:p", "treasury", 1),),
        "overdrawn: it holds 4": (
            paid_in,
            Reserve("b/1", "escrow:a", "payable:p", 6),
            Post("escrow:a", "payable:p", 5),
        ),
        "a posting of": (*whole, Post("treasury", "rounding", most)),
        "a posting of 9007199254740991": (
            Post("treasury", "rounding", 1),
            *[Post("treasury", "escrow:a", most)] * 1023,
            Post("rounding", "treasury", 1),
            Post("treasury", "escrow:a", most),
            Post("treasury", "escrow:a", most),
        ),
        "was made before": (held, held),
        "holds 0 micro-credits, 5 are to leave": (Reserve("b/1", "escrow:a", "payable:p", 5),),
        "holds 4 micro-credits, 5 are to leave": (
            paid_in,
            Reserve("b/1", "escrow:a", "payable:p", 6),
            Reserve("b/2", "escrow:a", "payable:p", 5),
        ),
        "a reservation of": (*reserved, Reserve("b/1", "treasury", "rounding", most)),
        "there is no reservation": (Resolve("a/1", 0),),
        "is resolved already": (held, Resolve("a/1", 0), Resolve("a/1", 0)),
        "11 cannot be paid": (held, Resolve("a/1", 11)),
    }.items():
        assert words in refusal(Book(), *moves)


def test_an_account_holds_up_to_what_a_database_does_and_no_more() -> None:
    most = 2**53 - 1
    rest = 2**63 - 1 - 1024 * most
    for moves in (
        [Post("treasury", "escrow:a", micro) for micro in [most] * 1024 + [rest, 1]],
        [Reserve(f"a/{i}", "treasury", "escrow:a", m) for i, m in enumerate([most] * 1024 + [rest, 1], 1)],
    ):
        assert "of 1 micro-credits would pass 2^63" in refusal(Book(), *moves)


def test_a_reservation_is_known_as_it_was_made_and_whether_it_is_resolved() -> None:
    book = Book()
    assert book.reservation("a/1") is None
    book.apply(Reserve("a/1", "treasury", "escrow:a", 10))
    assert book.reservation("a/1") == Reservation("treasury", "escrow:a", 10)
    book.apply(Resolve("a/1", 4))
    assert book.reservation("a/1") == Reservation("treasury", "escrow:a", 10, True)
    again = Book(
        {name: book.balance(name) for name in book.accounts()},
        {"b/1": Reservation("treasury", "escrow:b", 5)},
    )
    assert again.totals() == book.totals()
    assert "cannot be paid" in refusal(again, Resolve("b/1", 6))


def test_what_transfers_name_is_what_a_store_must_look_up() -> None:
    moves = (Post("treasury", "payable:p", 1), Reserve("a/1", "treasury", "escrow:a", 2), Resolve("b/2", 0))
    assert accounts_of(moves) == {"treasury", "payable:p", "escrow:a"}
    assert reservations_of(moves) == {"a/1", "b/2"}


def test_an_account_that_was_never_used_is_empty() -> None:
    assert Book().balance("payable:p") == Balance(0, 0, 0, 0)


accounts = st.sampled_from(["treasury", "escrow:a", "payable:p", "payable:q", "stake:a:p", "rounding"])
names = st.sampled_from(["a/1", "a/2", "b/1"])
transfers = (
    st.builds(Post, accounts, accounts, st.integers(1, 50))
    | st.builds(Reserve, names, accounts, accounts, st.integers(1, 50))
    | st.builds(Resolve, names, st.integers(0, 60))
)


@given(st.lists(transfers, max_size=40))
def test_a_book_stays_balanced_and_a_refusal_changes_nothing(moves: list[Transfer]) -> None:
    book = Book()
    resolved: set[str] = set()
    for move in moves:
        if not isinstance(move, Resolve) and move.debit == move.credit:
            continue
        before = {name: book.balance(name) for name in book.accounts()}
        try:
            book.apply(move)
        except PostingError:
            assert {name: book.balance(name) for name in before} == before
        else:
            if isinstance(move, Resolve):
                assert move.reservation not in resolved
                resolved.add(move.reservation)
        total = book.totals()
        assert total.debits_posted == total.credits_posted
        assert total.debits_pending == total.credits_pending
        for name in book.accounts():
            held = book.balance(name)
            assert (
                min(held.debits_posted, held.credits_posted, held.debits_pending, held.credits_pending) >= 0
            )
            assert name == "treasury" or held.debits_posted + held.debits_pending <= held.credits_posted


def test_a_balance_holds_credits_less_debits() -> None:
    assert Balance(3, 10).holds == 7
    assert Balance() == Balance(0, 0, 0, 0)


@pytest.mark.parametrize(
    "bad",
    [Entry("a b", "x", {}), Entry("", "x", {}), Entry("a", "x", {"y": 1.5}), Entry("a", "x", {"y": 2**60})],
)
def test_an_entry_without_an_id_or_with_an_inexact_number_has_no_bytes(bad: Entry) -> None:
    with pytest.raises(EntryError):
        bad.data  # noqa: B018 - it is built here
