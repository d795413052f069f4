"""Why a round paid what it paid: the worked example of docs/ledger-format.md, explained and computed again."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from decimal import ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from fedpeer.audit.sources import open_source
from fedpeer.v1 import ledger_pb2, market_pb2
from mechanism.canonical import canonical_bytes
from mechanism.ledger.entry import Entry
from mechanism.ledger.openings import read_openings
from mechanism.settlement import MICRO
from participant.effects import Effect, Next, Open, drive
from participant.errors import StateError
from participant.journal import Journal
from participant.steps import GET_ENTRIES, MarketSteps
from participant.why import LedgerCopy, Why, stored, why
from tests.memory_source import MemorySource

EXAMPLE = Path(__file__).parents[2] / "docs" / "ledger-example.jsonl"
NAMES = [f"p00{number}" for number in range(5)]
LOST = {("p002", 1)}
ROUNDS = [(name, round_) for name in NAMES for round_ in (1, 2)]

NO_RECEIPT = "the log's key is not known: join a task of this coordinator first"


class Ledger:
    """Serves entries as a coordinator does, in batches, and counts them."""

    def __init__(self) -> None:
        lines = EXAMPLE.read_bytes().splitlines()
        self.entries = [line for line in lines if line.startswith(b'{"body":')]
        opened = read_openings(EXAMPLE.with_name("ledger-example-openings.jsonl").read_bytes().splitlines())
        self.openings = dict(opened.by_id)
        self.served = 0

    def __call__(self, effect: Effect) -> Any:
        match effect:
            case Open(method, request):
                assert method is GET_ENTRIES
                batch = self.entries[request.first :][: request.count]
                self.served += len(batch)
                return Batches(batch)
            case Next(stream):
                return next(stream, None)  # type: ignore[call-overload]  # a Batches
        raise AssertionError(effect)

    def paid(self, name: str, round_: int) -> tuple[int, Any]:
        """Where the payment stands, and its body."""
        for index, data in enumerate(self.entries):
            entry = Entry.parse(data)
            if entry.id == f"demo/round/{round_}/payment/{name}":
                return index, entry.body
        raise AssertionError("not paid")

    def peers(self, name: str, round_: int) -> list[str]:
        """Whom a participant was scored against."""
        parsed = map(Entry.parse, self.entries)
        [draws] = [dict(e.body["draws"]) for e in parsed if e.id == f"demo/round/{round_}/peers/1"]  # type: ignore[call-overload]
        return list(draws[name])

    def alter(self, entry_id: str, old: bytes, new: bytes) -> None:
        [index] = [i for i, data in enumerate(self.entries) if Entry.parse(data).id == entry_id]
        assert old in self.entries[index]
        self.entries[index] = self.entries[index].replace(old, new)


class Batches:
    def __init__(self, entries: list[bytes]) -> None:
        self._left: Iterator[bytes] = iter(entries)

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> ledger_pb2.Entries:
        return ledger_pb2.Entries(entries=[next(self._left)])

    def cancel(self) -> bool:
        return True


def explained(ledger: Ledger, folder: Path, name: str, round_: int | None, task_id: str = "demo") -> Why:
    """From the journal of a participant that knows both rounds."""
    journal = (
        Journal(folder / name / "journal.db") if folder.joinpath(name).mkdir(parents=True) is None else None
    )
    assert journal is not None
    terms = next(Entry.parse(data).body["terms"] for data in ledger.entries if b'"id":"demo/terms"' in data)
    journal.add_task("demo", canonical_bytes(terms))
    for number in (1, 2):
        index, body = ledger.paid(name, number)
        settlement = market_pb2.Settlement(
            task_id="demo", round=number, participant_id=name, paid_micro=body["paid_micro"],
            penalty_micro=body["penalty_micro"], stake_lost_micro=body["stake_lost_micro"], ledger_index=index,
            peers=ledger.peers(name, number),
            opening=canonical_bytes(ledger.openings[f"demo/round/{number}/verdict/{name}"]),
        )  # fmt: skip
        journal.add_settlement("demo", number, settlement.SerializeToString())
    try:
        return drive(why(task_id, round_, name, MarketSteps(), journal), ledger)
    finally:
        journal.close()


def recomputed(found: Why) -> int:
    """The payment from nothing but what the object says, by the formula of its docstring."""
    if found.degree is None:
        return 0
    terms, own = found.terms, found.own
    with localcontext(prec=60):
        own_degree = Decimal(found.degree.numerator) / found.degree.denominator
        brought = []
        for met in found.peers:
            degree = Decimal(met.degree.numerator) / met.degree.denominator
            brought.append(
                (terms.Q / (terms.phi * (own_degree**2 + degree**2) + terms.upsilon)).ln()
                * terms.payment.scale
            )
        weight = Decimal(found.weight_micro) / MICRO
        gross = weight * sum(brought, Decimal(0)) / len(brought) * own.multiplier_ppm / MICRO
        claimed = Decimal(own.claimed_degree.numerator) / own.claimed_degree.denominator
        penalty = terms.rule.claim_penalty * (claimed - own_degree) ** 2
        net = max(Decimal(0), gross - penalty - terms.rule.fee * (1 - weight))
        return int((net * MICRO).to_integral_value(ROUND_FLOOR)) + found.remainder_micro


def test_a_copy_of_the_ledger_says_the_same_and_one_that_is_too_old_is_named(tmp_path: Path) -> None:
    ledger = Ledger()
    asked = explained(ledger, tmp_path, "p001", 2)
    journal = Journal(tmp_path / "p001" / "journal.db")
    with ExitStack() as resources:
        copy = LedgerCopy(open_source(str(EXAMPLE), resources), "p001")
        assert drive(why("demo", 2, "p001", copy, journal), ledger) == asked
        older = LedgerCopy(MemorySource([Entry.parse(data) for data in ledger.entries[:30]]), "p001")
        with pytest.raises(StateError, match=r"ends before entry \d+; expected a copy made after the round"):
            drive(why("demo", 2, "p001", older, journal), ledger)
        # What the journal does not keep, the copy has.
        found = drive(copy.settlement("demo", 1), ledger)
        assert found.paid_micro == ledger.paid("p001", 1)[1]["paid_micro"]
        with pytest.raises(StateError, match="no payment of round 3"):
            drive(copy.settlement("demo", 3), ledger)
    journal.close()


def test_the_journal_alone_says_what_it_has_and_since_when(tmp_path: Path) -> None:
    explained(Ledger(), tmp_path, "p001", 2)
    journal = Journal(tmp_path / "p001" / "journal.db")
    journal._execute("UPDATE settlement SET stored_at = 1764412200 WHERE round = 2")
    found = stored("demo", 2, "p001", journal)
    assert found is not None
    assert str(found).startswith("demo, round 2: ")
    assert "as stored at 2025-11-29T10:30:00Z" in str(found)
    assert "0.300000 lost" in str(found)
    assert found.record()["stored_at"] == "2025-11-29T10:30:00Z"
    assert stored("demo", 3, "p001", journal) is None
    before = time.time()
    journal.add_settlement("demo", 3, b"")
    assert before - 1 <= journal.stored_at("demo", 3) <= time.time()
    journal.close()


@pytest.mark.parametrize(("name", "round_"), ROUNDS)
def test_the_payment_follows_from_the_object(tmp_path: Path, name: str, round_: int) -> None:
    ledger = Ledger()
    found = explained(ledger, tmp_path, name, round_)
    _, body = ledger.paid(name, round_)
    assert found.problems == (NO_RECEIPT,)
    assert recomputed(found) == found.payment.paid_micro == body["paid_micro"]
    assert found.payment.withheld_micro == body["withheld_micro"]
    assert (found.degree is None) == ((name, round_) in LOST)
    assert found.remainder_micro in (0, 1)


def test_the_numbers_stand_in_the_formula(tmp_path: Path) -> None:
    found = explained(Ledger(), tmp_path, "p000", 1)
    assert [met.participant_id for met in found.peers] == ["p003", "p004"]
    assert [met.degree for met in found.peers] == [Fraction(3, 10), Fraction(2, 5)]
    assert found.formula == (
        "0.5 * (1.25 * ln(2000 / (300 * 0^2 + 300 * 0.3^2 + 200)) + 1.25 * ln(2000 / (300 * 0^2 + 300 * 0.4^2 + 200)))"
        " / 2"
    )
    # Half of what the peers bring, since the multiplier is a half (worked values of the page).
    assert [f"{met.credits * 2:.9f}" for met in found.peers] == ["2.719940553", "2.609342142"]
    assert found.candidates == 3
    text = str(found)
    assert text.startswith("demo, round 1: p000 was paid 1.332321 credits.")
    for part in ("measured", "interval", "drawn among 3", found.formula + " = 1.332321", "held back"):
        assert part in text
    assert found.record()["paid_micro"] == 1_332_321
    json.dumps(found.record())


def test_a_weight_is_named_with_what_it_follows_from_and_its_fee(tmp_path: Path) -> None:
    found = explained(Ledger(), tmp_path, "p003", 1)
    assert found.weight_micro == 633_009
    assert found.formula.startswith("0.633009 * (1.25 * ln(")
    assert found.formula.endswith(" - 0.75 * (1 - 0.633009)")
    text = str(found)
    assert (
        "weight    0.633009: 1.733981 participants of the round have each of its samples, on average" in text
    )
    assert (
        "its distinct samples are 1 of the recipe's number, and 0.85 is enough; 0.275244 is the fee" in text
    )
    assert {found.record()[k] for k in ("weight_micro", "holders_micro", "fee_micro")} == {
        633_009,
        1_733_981,
        275_244,
    }
    assert "weight    1: all of what its data bring" in str(explained(Ledger(), tmp_path, "p001", 1))


def test_a_degree_at_the_upper_end_of_a_wide_interval_is_not_called_measured(tmp_path: Path) -> None:
    found = explained(Ledger(), tmp_path, "p003", 1)
    assert "0.3 measured, interval 0.26 to 0.34" in str(found)
    wide = replace(found, own=replace(found.own, verified_micro=found.own.upper_micro))
    assert "0.34 paid on, the upper end of what was measured, interval 0.26 to 0.34" in str(wide)


def test_a_penalty_and_a_lost_stake_are_explained(tmp_path: Path) -> None:
    refuted = explained(Ledger(), tmp_path, "p001", 2)
    assert refuted.stake_before_micro == 300_000
    assert refuted.payment.stake_lost_micro == 300_000
    assert " - 0.5 * (" in refuted.formula
    assert "0.300000 lost" in str(refuted)


def test_expected_pay_is_the_mean_over_all_who_could_be_drawn(tmp_path: Path) -> None:
    """The peers of p000 are two of three, and the mean over all pairs is the mean over the three."""
    found = explained(Ledger(), tmp_path, "p000", 1)
    ledger = Ledger()
    degrees = {
        name: explained(ledger, tmp_path / "others", name, 1).degree
        for name in ("p001", "p003", "p004")
        if (tmp_path / "others").mkdir(exist_ok=True) is None
    }
    assert found.candidates == len(degrees)
    pays = []
    for degree in degrees.values():
        assert degree is not None
        alone = replace(found.peers[0], degree=degree)
        pays.append(recomputed(replace(found, peers=(alone,), remainder_micro=0)))
    assert found.expected_micro == pytest.approx(sum(pays) / len(pays), abs=2)
    assert "in the mean over all who could be drawn" in str(found)


@pytest.mark.parametrize(("name", "round_"), ROUNDS)
def test_the_steps_to_a_payment_end_at_it_and_none_of_them_adds_anything(
    tmp_path: Path, name: str, round_: int
) -> None:
    found = explained(Ledger(), tmp_path, name, round_)
    left = dict(found.waterfall)
    assert left["paid"] == found.payment.paid_micro
    assert list(left.values())[:-1] == sorted(list(left.values())[:-1], reverse=True)
    if found.degree is not None:
        assert found.weight_micro < MICRO or left["screens"] == found.payment.gross_micro
        assert left["screens"] * found.weight_micro == pytest.approx(
            found.payment.gross_micro * MICRO, abs=2 * MICRO
        )
        lost = found.terms.rule.fee * (MICRO - found.weight_micro)
        assert left["weight"] == pytest.approx(int(found.payment.gross_micro - lost), abs=2)
        alone = replace(found, peers=(replace(found.peers[0], degree=Fraction(0)),), remainder_micro=0)
        own = replace(found.own, multiplier_ppm=MICRO, claimed_degree=found.degree)
        unscreened = replace(alone, own=replace(own, holders_micro=MICRO, distinct_micro=MICRO))
        assert left["own degree"] == pytest.approx(recomputed(unscreened), abs=1)


def test_a_nearer_degree_brings_what_the_formula_says(tmp_path: Path) -> None:
    found = explained(Ledger(), tmp_path, "p003", 1)
    own, step = found.own, Fraction(1, 100)
    assert own.verified_micro is not None
    nearer = replace(
        found,
        own=replace(
            own, verified_micro=own.verified_micro - 10_000, claimed_degree=own.claimed_degree - step
        ),
    )
    assert found.nearer_micro == recomputed(nearer) - recomputed(found) > 0
    assert "a degree nearer by 0.01 would have brought" in str(found)
    assert explained(Ledger(), tmp_path, "p002", 1).nearer_micro == 0


def test_what_was_not_delivered_says_so(tmp_path: Path) -> None:
    found = explained(Ledger(), tmp_path, "p002", 1)
    assert (found.degree, found.peers, found.formula) == (None, (), "")
    assert "delivered FAILED: No model came before the round closed." in str(found)


def test_the_last_round_is_explained_unless_one_is_named(tmp_path: Path) -> None:
    assert explained(Ledger(), tmp_path, "p003", None).round == 2


@pytest.mark.parametrize(
    ("task_id", "round_", "said"),
    [
        ("nope", None, "p000 has taken no part in task 'nope' from this state folder; it knows demo"),
        ("demo", 3, "task demo has no round 3; expected 1 to 2"),
    ],
)
def test_a_task_or_round_that_there_is_not_is_said_without_the_ledger(
    tmp_path: Path, task_id: str, round_: int | None, said: str
) -> None:
    ledger = Ledger()
    with pytest.raises(StateError, match=said):
        explained(ledger, tmp_path, "p000", round_, task_id)
    assert ledger.served == 0


def test_the_sentences_follow_the_rule(tmp_path: Path) -> None:
    """Under `paper` nothing is measured, and no claim is held against a measurement."""
    found = explained(Ledger(), tmp_path, "p000", 1)
    assert "for a claim that is not what was measured" in str(found)
    terms = replace(found.terms, rule=replace(found.terms.rule, name="paper"))
    own = replace(found.own, lower_micro=None, upper_micro=None, verdicts=())
    text = str(replace(found, terms=terms, own=own))
    assert "taken as claimed" in text
    assert "measured" not in text
    assert "penalty" not in text


def test_an_amount_that_does_not_follow_is_a_problem(tmp_path: Path) -> None:
    ledger = Ledger()
    ledger.alter("demo/round/1/payment/p000", b'"paid_micro":1332321', b'"paid_micro":1332320')
    [_, problem] = explained(ledger, tmp_path, "p000", 1).problems
    assert "says p000: paid 1332320 micro-credits" in problem
    assert "give p000: paid 1332321 micro-credits" in problem


def test_peers_that_were_not_drawn_are_a_problem(tmp_path: Path) -> None:
    ledger = Ledger()
    ledger.alter("demo/round/1/peers/1", b'["p000",["p003","p004"]]', b'["p000",["p001","p004"]]')
    [_, problem] = explained(ledger, tmp_path, "p000", 1).problems
    assert "against p001, p004;" in problem


def test_peers_that_do_not_follow_from_those_of_the_rounds_before_are_a_problem(tmp_path: Path) -> None:
    assert explained(Ledger(), tmp_path, "p001", 2).problems == (NO_RECEIPT,)
    ledger = Ledger()
    ledger.alter("demo/round/1/peers/1", b'["p001",["p003","p004"]]', b'["p001",["p000","p003"]]')
    [_, problem] = explained(ledger, tmp_path / "other", "p001", 2).problems
    assert "against p000, p002;" in problem
    assert "against p002, p004;" in problem


def test_entries_that_are_none_of_a_round_are_one_sentence(tmp_path: Path) -> None:
    ledger = Ledger()
    ledger.alter("demo/round/1/verdict/p000", b'"multiplier_ppm":500000', b'"multiplier_ppm":"many"')
    with pytest.raises(StateError, match="not those of a settled round"):
        explained(ledger, tmp_path, "p000", 1)


def test_terms_and_payment_read_well(tmp_path: Path) -> None:
    found = explained(Ledger(), tmp_path, "p000", 1)
    assert repr(found.terms) == "<Terms task demo: 2 x 60 s, rule verified>"
    assert "payment    log, scale 1.25, Q 2000, phi 300, upsilon 200" in str(found.terms)
    assert found.terms._repr_html_().startswith("<pre>task demo")
    assert "300000 held back" in found.payment._repr_html_()


def test_a_notebook_shows_a_table_and_nothing_of_it_is_markup(tmp_path: Path) -> None:
    found = explained(Ledger(), tmp_path, "p002", 1)
    [verdict] = found.own.verdicts
    hostile = replace(found, own=replace(found.own, verdicts=(replace(verdict, explanation="<b>&"),)))
    html = hostile._repr_html_()
    assert html.startswith("<p>demo, round 1")
    assert "&lt;b&gt;&amp;" in html
    assert "<b>" not in html
    assert repr(found) == "<Why demo, round 1: p002 was paid 0.000000 credits.>"
