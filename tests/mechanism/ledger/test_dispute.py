"""A dispute in the ledger: opened counts, awards from what a round kept back, and what a liar could try."""

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import orjson
import pytest

from mechanism.canonical import canonical_bytes
from mechanism.dispute import check_opening, disputes_possible, review
from mechanism.errors import FieldError
from mechanism.evidence import EvidenceModel, Measurement, assess
from mechanism.ledger import entries
from mechanism.ledger.entry import Entry
from mechanism.ledger.verify import Report
from mechanism.peers import Meetings, draw_head
from mechanism.settlement import MICRO, Assessment, peer_payment
from mechanism.statements import ClaimOpening, ClaimStatement, commit_counts, sign_statement
from tests import ledger_samples as samples
from tests.memory_source import MemorySource, audited

PEOPLE = samples.names(4)
PLAIN = samples.terms(rounds=2)
TERMS = replace(PLAIN, schedule=replace(PLAIN.schedule, dispute_seconds=60))
SALT = bytes(range(32))

#: Claims 0.28 where the evidence shows 0.3 within 0.04, and 0.1 where it shows 0.1.
PRIVATE = {"p003": (78, 22), "p001": (6, 4)}
CLAIMED = {name: samples.degree(name) for name in PEOPLE} | {"p003": Fraction(28, 100)}


def claim(name: str) -> Entry:
    counts = PRIVATE.get(name) or (5 + int(name[1:]), 5 - int(name[1:]))
    opening = ClaimOpening(Decimal("0.5"), CLAIMED[name], samples.salt(name))
    statement = ClaimStatement(
        f"claim-{name}",
        "task",
        TERMS.digest,
        name,
        opening.digest,
        commit_counts(counts, SALT),
        draw_head(samples.share_secret(TERMS, name), 2),
        samples.NONCE,
    )
    return entries.claim(statement, sign_statement(statement, samples.private_key(name)), opening)


def begun() -> list[Entry]:
    return [
        claim(str(e.id.split("/")[2])) if e.kind == "claim" else e for e in samples.opening(TERMS, PEOPLE)
    ]


def evidence(round_: int) -> dict[str, Any]:
    record: Any = samples.evidence(TERMS, round_, PEOPLE)
    for measured in record["measurements"]:
        measured["claimed_degree"] = str(CLAIMED[measured["participant_id"]])
    return dict(record)


def judged(round_: int) -> list[Assessment]:
    record = evidence(round_)
    measured = [Measurement.from_record(item) for item in record["measurements"]]
    return list(assess(EvidenceModel.from_record(record["model"]), measured))


def settling(
    round_: int, stakes: dict[str, int], disputable: bool = True, meetings: Meetings | None = None
) -> list[Entry]:
    found, record = judged(round_), evidence(round_)
    return samples.judging(TERMS, round_, found, [record], stakes, disputable, meetings=meetings)


def awards(
    round_: int, disputed: list[str], stakes: dict[str, int], meetings: Meetings | None = None
) -> dict[str, int]:
    found = {a.participant_id: a for a in judged(round_)}
    draw = samples.draw_of(TERMS, round_, PEOPLE)
    settlement, _ = entries.settlement_entries(
        TERMS, round_, draw, list(found.values()), stakes, meetings=meetings
    )
    return {
        line.participant_id: review(
            TERMS, found[line.participant_id], [found[p] for p in line.peers], line.paid_micro
        ).award_micro
        for line in settlement.payments
        if line.participant_id in disputed
    }


def opened(name: str, round_: int = 1) -> Entry:
    """A dispute, as soon as a round is settled."""
    return entries.dispute("task", name, samples.at(2 * round_ + 1), PRIVATE[name], SALT)


def whole(*disputed: str, late: bool = False) -> list[Entry]:
    """A task whose disputes come between its rounds, or after the last of them."""
    first = settling(1, {})
    stakes = samples.stakes_after(first, "task", {})
    met = Meetings(samples.draws_of(first))
    second = settling(2, stakes, meetings=met)
    after = samples.stakes_after(second, "task", stakes)
    paid = [
        *entries.award_entries(TERMS, 1, awards(1, list(disputed), {})),
        *entries.award_entries(TERMS, 2, awards(2, list(disputed), stakes, met)),
    ]
    disputes = [opened(name, 2 if late else 1) for name in disputed]
    return [
        *begun(),
        *samples.training(TERMS, 1, PEOPLE),
        *first,
        *([] if late else disputes),
        *samples.training(TERMS, 2, PEOPLE),
        *second,
        *(disputes if late else []),
        *entries.ending_entries("task", 2, "CLOSED", [], after, samples.at(6), awards=paid),
    ]


def verify(ledger: list[Entry | bytes]) -> Report:
    return audited(MemorySource(ledger))


def refused(ledger: list[Entry | bytes], words: str) -> None:
    report = verify(ledger)
    assert not report.verified
    assert words in report.problems[0].message, report.problems[0]


def edited(ledger: list[Entry], kind: str, change: Callable[[Any], None]) -> list[Entry | bytes]:
    index = next(i for i, entry in enumerate(ledger) if entry.kind == kind)
    record = orjson.loads(ledger[index].data)
    change(record)
    return [*ledger[:index], canonical_bytes(record), *ledger[index + 1 :]]


@pytest.mark.parametrize("late", [False, True])
def test_who_is_borne_out_is_paid_as_claimed_and_nobody_else_is_touched(late: bool) -> None:
    before, after = verify([*whole()]), verify([*whole("p003", late=late)])
    assert before.verified, before.problems
    assert after.verified, after.problems
    added = sum(sum(awards(round_, ["p003"], {}).values()) for round_ in (1, 2))
    assert added > 0
    for name in PEOPLE:
        account = f"payable:{name}"
        change = after.balances[account].holds - before.balances[account].holds
        assert change == (added if name == "p003" else 0), name
    assert after.counts.paid_micro == before.counts.paid_micro + added
    for report in (before, after):
        assert report.balances["escrow:task"].holds == 0
        assert report.balances["escrow:task"].credits_pending == 0
        assert report.balances["treasury"].debits_pending == 0


def test_the_award_brings_the_round_to_the_payment_of_the_claimed_degree() -> None:
    [line] = [a for a in judged(1) if a.participant_id == "p003"]
    peer = next(a for a in judged(1) if a.participant_id == "p002")
    assert line.verified_micro == 300_000
    found = review(TERMS, line, [peer], 1_000)
    assert found.agreed
    whole_payment = peer_payment(TERMS, Fraction(28, 100), samples.degree("p002")) * MICRO
    assert found.award_micro == int(whole_payment) - 1_000
    assert review(TERMS, line, [peer], int(whole_payment) + 5).award_micro == 0
    outside = replace(line, claimed_degree=Fraction(259, 1000))
    assert not review(TERMS, outside, [peer], 0).agreed
    assert review(TERMS, outside, [peer], 0).award_micro == 0
    assert not review(TERMS, replace(line, refuted=True), [peer], 0).agreed
    unscored = replace(line, verified_micro=None, lower_micro=None, upper_micro=None)
    assert review(TERMS, unscored, [peer], 0) == review(TERMS, unscored, [], 0)
    assert review(TERMS, unscored, [], 0).award_micro == 0


def test_one_that_was_paid_no_less_gets_nothing_on_top() -> None:
    ledger = whole("p001", "p003")
    assert verify([*ledger]).verified
    assert [e.body["participant_id"] for e in ledger if e.kind == "award"] == ["p003", "p003"]


def test_a_cancelled_task_pays_its_disputes() -> None:
    first = settling(1, {})
    stakes = samples.stakes_after(first, "task", {})
    paid = entries.award_entries(TERMS, 1, awards(1, ["p003"], {}))
    ended = entries.ending_entries("task", 1, "CANCELLED", [2], stakes, samples.at(4), "withdrawn", paid)
    ledger = [*begun(), *samples.training(TERMS, 1, PEOPLE), *first, opened("p003"), *ended]
    assert verify([*ledger]).verified
    kept = [e for e in ledger if e.kind not in ("awards", "award")]
    refused([*kept], "begins with the task/round/1/awards")


def test_a_task_without_time_for_disputes_or_of_another_rule_keeps_nothing_back() -> None:
    assert disputes_possible(TERMS)
    assert disputes_possible(replace(TERMS, schedule=replace(TERMS.schedule, dispute_seconds=1)))
    assert not disputes_possible(PLAIN)
    assert not disputes_possible(replace(TERMS, rule=replace(TERMS.rule, name="paper")))
    assert PLAIN.digest == samples.terms(rounds=2).digest


# What a coordinator could try


def test_an_award_of_another_amount_is_found() -> None:
    def more(record: Any) -> None:
        record["body"]["award_micro"] += 1
        record["transfers"][0]["micro"] += 1

    refused(edited(whole("p003"), "award", more), "are left of the round's awards")

    def another(record: Any) -> None:
        record["body"]["total_micro"] += 1
        record["transfers"][0]["micro"] += 1

    both = edited(whole("p003"), "awards", another)
    place = next(i for i, item in enumerate(both) if isinstance(item, bytes)) + 1
    changed: Any = orjson.loads(both[place].data)  # type: ignore[union-attr]
    more(changed)
    refused([*both[:place], canonical_bytes(changed), *both[place + 1 :]], "its dispute gives")


def test_an_award_that_is_left_out_or_made_up_is_found() -> None:
    ledger = whole("p003")
    refused([e for e in ledger if e.kind != "award"], "award/p003 here")
    refused([e for e in ledger if e.kind != "dispute"], "go to nobody")
    refused([e for e in ledger if e.kind not in ("award", "awards")], "begins with the task/round/1/awards")


def test_a_settlement_that_keeps_nothing_back_is_found() -> None:
    ledger = [*begun(), *samples.training(TERMS, 1, PEOPLE), *settling(1, {}, disputable=False)]
    refused([*ledger], "transfers")


def test_counts_are_opened_once_and_in_time() -> None:
    ledger = whole("p003")
    place = next(i for i, e in enumerate(ledger) if e.kind == "dispute")
    refused([*ledger[: place + 1], ledger[place], *ledger[place + 1 :]], "has opened its counts before")
    early = next(i for i, e in enumerate(ledger) if e.kind == "evidence")
    refused([*ledger[:early], ledger[place], *ledger[early:]], "before a settlement")
    end = max(i for i, e in enumerate(ledger) if e.kind == "award") + 1
    refused([*ledger[:end], opened("p001"), *ledger[end:]], "in the end of task")


def test_other_counts_than_those_claimed_are_refused() -> None:
    ledger = whole("p003")
    place, after = next(i for i, e in enumerate(ledger) if e.kind == "dispute"), samples.at(3)
    for entry, words in (
        (entries.dispute("task", "p003", after, (22, 78), SALT), "not the one that it commits to"),
        (entries.dispute("task", "p003", after, (78, 22), bytes(32)), "not the one that it commits to"),
        (entries.dispute("task", "nobody", after, (5, 5), SALT), "was not selected"),
    ):
        refused([*ledger[:place], entry, *ledger[place + 1 :]], words)


def test_nothing_follows_the_awards_but_the_end() -> None:
    ledger = whole("p003")
    end = next(i for i, e in enumerate(ledger) if e.kind == "stake_release")
    refused(
        [*ledger[:end], entries.transition("task", 3, "TRAINING", samples.at(6)), *ledger[end:]],
        "in the end of task",
    )


@pytest.mark.parametrize(
    ("counts", "salt", "claimed"),
    [
        ((78, 22), SALT, Fraction(27, 100)),  # the committed ones, but of another degree than claimed
        ((78, 23), SALT, Fraction(28, 100)),
        ((78, 22), bytes(31), Fraction(28, 100)),
        ((78, 22, 0), SALT, Fraction(28, 100)),
        ((0, 0), SALT, Fraction(0)),
    ],
)
def test_an_opening_that_does_not_hold_is_refused(
    counts: tuple[int, ...], salt: bytes, claimed: Fraction
) -> None:
    with pytest.raises(FieldError):
        check_opening(TERMS, commit_counts((78, 22), SALT), claimed, counts, salt)
    check_opening(TERMS, commit_counts((78, 22), SALT), Fraction(28, 100), (78, 22), SALT)


SUBJECT = Assessment("p", bytes(32), Fraction(3, 10), 350_000, 300_000, 400_000)
PEER = Assessment("q", bytes(32), Fraction(1, 2), 500_000, 450_000, 550_000)


@pytest.mark.parametrize(
    ("claimed", "agreed"),
    [
        (Fraction(3, 10), True),
        (Fraction(4, 10), True),
        (Fraction(299_999, MICRO), False),
        (Fraction(3, 10) - Fraction(1, 10**9), False),
        (Fraction(400_001, MICRO), False),
        (Fraction(4, 10) + Fraction(1, 10**9), False),
    ],
)
def test_the_interval_bears_a_claim_out_up_to_both_its_ends(claimed: Fraction, agreed: bool) -> None:
    found = review(TERMS, replace(SUBJECT, claimed_degree=claimed), [PEER], 0)
    assert found.agreed == agreed
    assert (found.award_micro > 0) == agreed
    assert f"{float(claimed):.4f}" in found.explanation
    assert "0.3000 to 0.4000" in found.explanation
    assert ("agrees with" in found.explanation) == agreed
    assert ("lies outside" in found.explanation) != agreed


def test_an_award_is_the_claimed_degrees_payment_rounded_down_less_what_was_paid() -> None:
    whole_payment = Fraction(peer_payment(TERMS, Fraction(3, 10), Fraction(1, 2))) * MICRO
    assert review(TERMS, SUBJECT, [PEER], 0).award_micro == int(whole_payment)
    one_more = review(TERMS, SUBJECT, [PEER], int(whole_payment) - 1)
    assert one_more.award_micro == 1
    assert "the round is paid as claimed" in one_more.explanation
    nothing_more = review(TERMS, SUBJECT, [PEER], int(whole_payment))
    assert (nothing_more.agreed, nothing_more.award_micro) == (True, 0)
    assert "paid no less than that already" in nothing_more.explanation
    half = review(TERMS, replace(SUBJECT, multiplier_ppm=500_000), [PEER], 0)
    assert half.award_micro == int(whole_payment / 2), "what the screens left stays"


def test_who_had_no_peer_is_reviewed_against_its_claim() -> None:
    alone = Fraction(peer_payment(TERMS, Fraction(3, 10), Fraction(3, 10))) * MICRO
    assert review(TERMS, SUBJECT, [], 0).award_micro == int(alone)


@pytest.mark.parametrize("missing", ["verified_micro", "lower_micro", "upper_micro"])
def test_what_was_not_measured_bears_nothing_out(missing: str) -> None:
    found = review(TERMS, replace(SUBJECT, **{missing: None}), [PEER], 0)
    assert (found.agreed, found.award_micro) == (False, 0)
    assert "No model of this round was scored" in found.explanation


def test_an_opening_that_does_not_hold_names_what_was_expected() -> None:
    commitment = commit_counts((78, 22), SALT)
    with pytest.raises(FieldError, match="with the salt, those that the claim committed to"):
        check_opening(TERMS, commitment, Fraction(28, 100), (22, 78), SALT)
    with pytest.raises(FieldError, match=r"those of the claimed degree 1/4; theirs is 7/25"):
        check_opening(TERMS, commitment, Fraction(1, 4), (78, 22), SALT)
