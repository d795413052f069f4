"""Audits: the draw, the conformal limit, the verdict, and what deters."""

import hashlib
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechanism.audit import (
    FAILED,
    PASSED,
    conformal_limit,
    deterrence,
    least_probability,
    least_stake,
)
from mechanism.audit_verdict import judge
from mechanism.errors import FieldError
from mechanism.sample_tree import sample_digests, samples_root
from mechanism.settlement import settle_round
from mechanism.statements import AuditStatement
from tests import ledger_samples as samples
from tests.ledger_histories import AUDIT, DIFFERENCES, played, started
from tests.ledger_histories import Shape as History

ROOT, SALT = bytes(range(32)), bytes(range(32, 64))


def statement(**changes: Any) -> AuditStatement:
    values: dict[str, Any] = {
        "task_id": "task", "terms_digest": bytes(32), "participant_id": "ann", "round": 1, "number": 1,
        "start_sha256": bytes(32), "samples_root": ROOT, "samples": 10, "distinct": 10, "near": 0,
        "degree": Fraction(1, 5), "accepted": True, "remark": "", "model_sha256": bytes(32),
    }  # fmt: skip
    return AuditStatement(**{**values, **changes})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"probability": Fraction(0)}, "audit.probability"),
        ({"probability": Fraction(3, 2)}, "audit.probability"),
        ({"rate": Fraction(1)}, "audit.rate"),
        ({"held_back": Decimal(1)}, "audit.held_back"),
        ({"seconds": 0}, "audit.seconds"),
        ({"unaudited": "lost"}, "audit.unaudited"),
        ({"auditor": b"no key"}, "ECDSA on P-256"),
    ],
)
def test_a_section_out_of_its_range_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(FieldError, match=words):
        replace(AUDIT, **change)


def test_only_a_rule_that_measures_degrees_has_audits() -> None:
    with pytest.raises(FieldError, match="measures degrees to compare"):
        replace(samples.terms(rule="paper"), audit=AUDIT)


def test_as_many_are_drawn_as_the_terms_say_and_the_same_again() -> None:
    tenth = replace(AUDIT, probability=Fraction(1, 10))
    keys = [hashlib.sha256(bytes([i % 256, i // 256])).digest() for i in range(4_000)]
    drawn = [key for key in keys if tenth.draws(key, "ann")]
    assert 330 < len(drawn) < 470  # mean 400, standard deviation 19
    assert all(AUDIT.draws(key, "ann") for key in keys)
    both = sum(tenth.draws(key, "bob") for key in drawn)
    assert 20 < both < 65  # independent of each other: mean 40


def test_a_round_that_is_audited_is_held_and_of_every_other_a_share() -> None:
    history = started(History(audit=replace(AUDIT, probability=Fraction(1, 2)), people=8, rounds=1))
    terms = history.terms
    names = samples.names(8)
    judged = samples.assessments(terms, 1, names)
    draw = samples.draw_of(terms, 1, names)
    settlement = settle_round(terms, 1, draw, judged)
    plain = settle_round(replace(terms, audit=None), 1, draw, judged)
    assert {line.audited for line in settlement.payments} == {True, False}
    for line, other in zip(settlement.payments, plain.payments, strict=True):
        rest = line.paid_micro - line.withheld_micro
        assert line.held_micro == (rest if line.audited else rest // 4)
        assert replace(line, held_micro=0, audited=None) == other
    assert all(line.audited is None for line in plain.payments)


def test_nobody_is_audited_for_nothing() -> None:
    history = started(History(audit=AUDIT, rounds=1))
    names = samples.names(4)
    judged = samples.assessments(history.terms, 1, names)
    unscored = [replace(judged[0], verified_micro=None, lower_micro=None, upper_micro=None), *judged[1:]]
    lines = settle_round(history.terms, 1, samples.draw_of(history.terms, 1, names), unscored).payments
    assert [line.audited for line in lines] == [False, True, True, True]


def test_the_limit_is_the_one_that_honest_differences_exceed_at_the_rate() -> None:
    assert conformal_limit(range(1, 100), Fraction(1, 100)) == 99
    assert conformal_limit(range(1, 99), Fraction(1, 100)) is None
    assert conformal_limit(range(1, 20), Fraction(1, 10)) == 18
    assert AUDIT.least_shadows == 9
    assert conformal_limit(range(AUDIT.least_shadows), AUDIT.rate) is not None
    generator = np.random.default_rng(0)
    over = [
        d[-1] > (conformal_limit(d[:-1].tolist(), Fraction(1, 10)) or 0)
        for d in generator.integers(-50_000, 50_000, size=(4_000, 31))
    ]
    assert 0.07 < np.mean(over) < 0.11


@pytest.mark.parametrize(
    ("change", "again", "outcome", "words"),
    [
        ({}, 200_000, PASSED, "shows 0.2; the submission showed 0.19; of honest participants at most 1/10"),
        ({}, 249_999, PASSED, "differ by more than 0.06"),
        ({}, 250_001, FAILED, "0.060001 less"),
        (
            {"samples": 0, "distinct": 0, "samples_root": b"", "model_sha256": b""},
            None,
            FAILED,
            "not let see",
        ),
        ({"samples_root": SALT}, 200_000, FAILED, "are not those that the claim commits to"),
        ({"degree": Fraction(1, 4)}, 200_000, FAILED, "have the degree 1/4; the claim says 1/5"),
        (
            {"accepted": False, "remark": "copies"},
            200_000,
            FAILED,
            "does not accept the samples. It says: copies",
        ),
    ],
)
def test_a_verdict(change: dict[str, Any], again: int | None, outcome: str, words: str) -> None:
    limit = (*DIFFERENCES, 60_000)
    found = judge(AUDIT, statement(**change), ROOT, Fraction(1, 5), 190_000, again, limit)
    assert found.outcome == outcome
    assert words in found.explanation


def test_too_few_shadows_accuse_nobody() -> None:
    found = judge(AUDIT, statement(), ROOT, Fraction(1, 5), 0, 900_000, DIFFERENCES[:8])
    assert (found.outcome, found.limit_micro) == (PASSED, None)
    assert "8 shadow models bound no difference" in found.explanation


def test_what_is_accepted_must_be_trained() -> None:
    with pytest.raises(FieldError, match="re-trained weights"):
        judge(AUDIT, statement(model_sha256=b""), ROOT, Fraction(1, 5), 0, None, DIFFERENCES)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"samples": 0, "distinct": 0}, "samples"),
        ({"samples_root": b"", "samples": 0, "distinct": 0}, "model_sha256"),
        ({"distinct": 11}, "distinct"),
        ({"number": 3}, "number"),
        ({"accepted": False}, "remark"),
        ({"remark": "a\nb"}, "remark"),
        ({"remark": "x" * 501}, "remark"),
    ],
)
def test_a_statement_that_contradicts_itself_is_refused(change: dict[str, Any], field: str) -> None:
    with pytest.raises(FieldError) as refused:
        statement(**change)
    assert refused.value.field == field


# Samples


def test_a_root_is_of_the_samples_whatever_their_order_and_tells_nothing_without_the_salt() -> None:
    x, y = np.arange(12.0).reshape(4, 3), np.array([0, 1, 1, 0])
    digests = sample_digests(x, y)
    root = samples_root(digests, SALT)
    turned = sample_digests(x[::-1], y[::-1])
    assert samples_root(turned, SALT) == root
    assert samples_root(digests, ROOT) != root
    assert samples_root([*digests, digests[0]], SALT) != root
    assert samples_root(sample_digests(x, 1 - y), SALT) != root
    assert samples_root(sample_digests(x.astype(np.float32), y), SALT) != root
    assert samples_root(sample_digests(x.astype(">f8"), y), SALT) == root


def test_texts_have_one_digest_whatever_their_arrays_type() -> None:
    y = np.array([0, 1])
    one = sample_digests({"t": np.array(["a", "bcd"]), "n": np.array([1, 2])}, y)
    other = sample_digests({"n": np.array([1, 2]), "t": np.array(["a", "bcd"], dtype=object)}, y)
    assert one == other
    assert one != sample_digests({"t": np.array(["ab", "cd"]), "n": np.array([1, 2])}, y)


def test_samples_that_are_none_are_refused() -> None:
    for x, y in ((np.empty((0, 2)), np.empty(0)), (np.ones((2, 2)), np.ones(3))):
        with pytest.raises(FieldError, match="all of one length"):
            sample_digests(x, y)
    with pytest.raises(FieldError, match="32 random bytes"):
        samples_root([ROOT], b"short")


# What deters


unit = st.floats(0.01, 1)


@settings(max_examples=200, deadline=None)
@given(
    q=unit, power=unit, share=st.floats(0, 0.95), pay=st.floats(0.1, 10), stake=st.floats(0, 10),
    rounds=st.integers(1, 30), m=st.integers(1, 30), rate=st.floats(0, 1),
)  # fmt: skip
def test_a_trick_in_some_rounds_loses_no_less_a_round_than_one_in_all(
    q: float, power: float, share: float, pay: float, stake: float, rounds: int, m: int, rate: float
) -> None:
    """So that one number, of all rounds, says whether any number of them pays."""
    alpha, m = rate * power, min(m, rounds)
    found = (1 - q * power) ** m * (1 - q * alpha) ** (rounds - m)
    of_some = ((1 - q * alpha) ** rounds - found) * (share * pay * rounds + stake)
    of_some += m * q * (power - alpha) * (1 - share) * pay
    assert of_some / m >= deterrence(q, power, alpha, pay, share, stake, rounds) / rounds - 1e-9


def test_the_loss_is_what_a_simulation_gives() -> None:
    """The model of the formula against audits that are drawn."""
    generator = np.random.default_rng(1)
    q, power, rate, pay, share, stake, rounds = 0.15, 0.9, 0.02, 3.0, 0.25, 1.0, 6
    audited = generator.random((200_000, rounds)) < q

    def lost(accused: float) -> float:
        failed = audited & (generator.random(audited.shape) < accused)
        bond = failed.any(axis=1) * (share * pay * rounds + stake)
        return float((bond + failed.sum(axis=1) * (1 - share) * pay).mean())

    assert lost(power) - lost(rate) == pytest.approx(
        deterrence(q, power, rate, pay, share, stake, rounds), abs=0.03
    )


def test_the_least_probability_and_stake_are_the_least() -> None:
    terms = {"power": 0.95, "rate": 0.02, "pay": 3.0, "held_back": 0.25, "rounds": 5}
    q = least_probability(0.4, stake=0.0, **terms)  # type: ignore[arg-type]
    assert q is not None
    assert deterrence(q, stake=0.0, **terms) >= 5 * 0.4 > deterrence(q - 0.001, stake=0.0, **terms)  # type: ignore[arg-type]
    s = least_stake(1.5, 0.2, **terms)  # type: ignore[arg-type]
    assert s > 0
    assert deterrence(0.2, stake=s, **terms) == pytest.approx(5 * 1.5)  # type: ignore[arg-type]
    assert least_stake(0.01, 0.2, **terms) == 0  # type: ignore[arg-type]
    assert least_probability(50.0, stake=0.0, **terms) is None  # type: ignore[arg-type]
    assert least_stake(1.0, 0.2, power=0.02, rate=0.02, pay=1.0, held_back=0.0, rounds=1) == float("inf")


def test_money_is_conserved_whatever_comes_of_audits() -> None:
    history = played(
        History(
            audit=AUDIT, rounds=2, audits={(1, "p000"): ("failed", "unappealed"), (1, "p001"): ("unvisited",)}
        )
    )
    book = history.log.book
    held = [name for name in book.accounts() if name.startswith(("held:", "stake:")) and book.holds(name)]
    assert not held
    assert book.totals().credits_posted == book.totals().debits_posted
    assert book.holds("payable:p000") < book.holds("payable:p001")
