import decimal
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechanism.errors import FieldError, SettlementError
from mechanism.payment import Linear, Log, Log1p, Power
from mechanism.peers import Draw, round_seed, seed_commitment
from mechanism.settlement import (
    MICRO,
    Assessment,
    RoundSettlement,
    largest_remainder,
    max_payment_micro,
    peer_payment,
    settle_round,
)
from mechanism.terms import ModelContract, Recipe, Rule, Schedule, TensorSpec, Terms
from mechanism.unmeasured import as_claimed

SECRET = bytes(range(32))
TWENTY_EIGHT = Context(prec=28, rounding=ROUND_HALF_EVEN)
SEED = round_seed(SECRET, 3, 1)
TERMS = Terms(
    task_id="t",
    reference=(Fraction(1, 2), Fraction(1, 2)),
    Q=Decimal(2000),
    phi=Decimal(300),
    upsilon=Decimal(200),
    payment=Log(),
    rule=Rule(claim_penalty=Decimal(5), stake_micro=150_000),
    schedule=Schedule(3, 3, 12, 60, 60),
    contract=ModelContract((TensorSpec("w", "F32", (1,)),), Decimal(1), 100),
    recipe=Recipe("digits-cnn", 1, 1, "adam", Decimal("0.01"), 1),
    budget_micro=0,
    seed_commitment=seed_commitment(SECRET, 3),
    validation_commitment=bytes(32),
    initial_model=bytes(32),
)


def assessment(name: str, degree: float | None, claimed: float | None = None, **more: object) -> Assessment:
    micro = None if degree is None else round(degree * MICRO)
    claim = Fraction(round((claimed if claimed is not None else degree or 0) * MICRO), MICRO)
    return Assessment(name, bytes(31) + bytes([len(name)]), claim, micro, **more)  # type: ignore[arg-type]


def drawn(everyone: Sequence[Assessment]) -> Draw:
    """A draw in which everybody who sent a model has a share."""
    names = [a.participant_id for a in everyone if a.model_sha256]
    return Draw(SEED, {name: hashlib.sha256(name.encode()).digest() for name in names})


def settle(
    terms: Terms, everyone: Sequence[Assessment], stakes: Mapping[str, int] | None = None
) -> RoundSettlement:
    return settle_round(terms, 1, drawn(everyone), everyone, stakes)


def line(settlement: RoundSettlement, name: str) -> object:
    return next(p for p in settlement.payments if p.participant_id == name)


degrees = st.lists(st.integers(0, MICRO), min_size=2, max_size=12)
payments = st.sampled_from([Log(), Log1p(), Linear(Decimal(2)), Power(Decimal(3), Decimal("0.5"))])


@given(degrees, payments)
def test_a_round_pays_what_the_formula_says_and_keeps_within_its_budget(
    micros: list[int], payment: Log
) -> None:
    terms = replace(TERMS, payment=payment, rule=Rule())
    everyone = [Assessment(f"p{i:02}", bytes([i]) * 32, Fraction(m, MICRO), m) for i, m in enumerate(micros)]
    settled = settle(terms, everyone)
    by_id = {a.participant_id: a for a in everyone}
    for paid in settled.payments:
        (peer,) = paid.peers
        mine, theirs = (by_id[n].verified_micro for n in (paid.participant_id, peer))
        assert mine is not None
        assert theirs is not None
        x = 2000 / (300 * (mine / MICRO) ** 2 + 300 * (theirs / MICRO) ** 2 + 200)
        assert paid.paid_micro == pytest.approx(float(payment.value(x)) * MICRO, abs=1.5)
        assert 0 <= paid.paid_micro <= max_payment_micro(terms.Q, terms.upsilon, payment.exact)
    assert [p.participant_id for p in settled.payments] == sorted(by_id)


@given(degrees, st.randoms())
def test_the_order_of_arrival_changes_nothing(micros: list[int], random: object) -> None:
    everyone = [Assessment(f"p{i:02}", bytes([i]) * 32, Fraction(m, MICRO), m) for i, m in enumerate(micros)]
    shuffled = list(everyone)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert settle(TERMS, shuffled) == settle(TERMS, everyone)


@given(st.integers(0, MICRO), st.integers(0, MICRO))
def test_the_truth_is_the_best_claim(verified: int, claimed: int) -> None:
    others = [assessment("q", 0.3), assessment("r", 0.5)]
    honest = Assessment("p", bytes(32), Fraction(verified, MICRO), verified)
    settled = [
        settle(TERMS, [replace(honest, claimed_degree=Fraction(c, MICRO)), *others])
        for c in (verified, claimed)
    ]
    truth, claim = (line(s, "p").paid_micro for s in settled)  # type: ignore[attr-defined]
    assert claim <= truth
    if abs(claimed - verified) > 1000 and truth > 1:
        assert claim < truth


def test_the_paper_rule_pays_on_the_claim_and_so_pays_a_lie() -> None:
    terms = replace(TERMS, rule=Rule("paper"))
    others = [assessment("q", 0.3), assessment("r", 0.3)]
    digest = bytes(32)
    lie = settle(terms, [as_claimed("p", digest, Fraction(0)), *others])
    truth = settle(terms, [as_claimed("p", digest, Fraction(9, 10)), *others])
    assert line(lie, "p").paid_micro > line(truth, "p").paid_micro  # type: ignore[attr-defined]


def test_who_is_not_scored_is_paid_nothing_and_is_nobodys_peer() -> None:
    unscored = [assessment("r", None), assessment("s", None)]
    settled = settle(TERMS, [assessment("p", 0.1), assessment("q", 0.2), *unscored])
    assert line(settled, "r").paid_micro == 0  # type: ignore[attr-defined]
    assert {p.participant_id: p.peers for p in settled.payments} == {
        "p": ("q",),
        "q": ("p",),
        "r": (),
        "s": (),
    }


def test_members_of_a_cluster_are_never_paired_and_one_without_a_peer_stands_for_its_own() -> None:
    twins = [assessment("p", 0.1, cluster="c"), assessment("q", 0.1, cluster="c")]
    assert all(p.peers == () for p in settle(TERMS, twins).payments)
    alone = settle(replace(TERMS, rule=Rule()), [assessment("p", 0.5)])
    assert line(alone, "p").paid_micro == pytest.approx(math.log(2000 / 350) * MICRO, abs=1)  # type: ignore[attr-defined]
    with_third = settle(TERMS, [*twins, assessment("r", 0.3)])
    assert line(with_third, "p").peers == line(with_third, "q").peers == ("r",)  # type: ignore[attr-defined]


def test_the_mean_over_several_peers_is_paid_when_the_terms_say_so() -> None:
    terms = replace(TERMS, rule=Rule(peers=2))
    settled = settle(terms, [assessment("p", 0.0), assessment("q", 0.0), assessment("r", 1.0)])
    expected = (math.log(2000 / 200) + math.log(2000 / 500)) / 2
    assert line(settled, "p").paid_micro == pytest.approx(expected * MICRO, abs=1)  # type: ignore[attr-defined]


def test_a_stake_is_held_back_until_full_and_lost_with_a_refuted_claim() -> None:
    everyone = [assessment("p", 0.1), assessment("q", 0.1), assessment("r", 0.1)]
    first = settle(TERMS, everyone)
    assert all(p.withheld_micro == 150_000 for p in first.payments)
    full = settle(TERMS, everyone, {"p": 150_000, "q": 100_000})
    assert [p.withheld_micro for p in full.payments] == [0, 50_000, 150_000]
    refuted = [replace(everyone[0], refuted=True), *everyone[1:]]
    lost = settle(TERMS, refuted, {"p": 150_000})
    assert line(lost, "p").stake_lost_micro == 150_000  # type: ignore[attr-defined]
    assert line(lost, "p").withheld_micro == 0  # type: ignore[attr-defined]
    assert line(settle(TERMS, refuted), "p").stake_lost_micro == 0  # type: ignore[attr-defined]


@given(st.lists(st.decimals(min_value=0, max_value=1000, places=12), min_size=1, max_size=30))
def test_largest_remainder_loses_nothing(amounts: list[Decimal]) -> None:
    credits_ = {f"p{i:02}": a for i, a in enumerate(amounts)}
    micros, residue = largest_remainder(credits_)
    exact = sum(amounts, Decimal(0)) * MICRO
    assert sum(micros.values()) == math.floor(exact)
    assert sum(micros.values()) + residue == math.ceil(exact)
    for name, amount in credits_.items():
        assert abs(micros[name] - amount * MICRO) < 1


def test_records_that_cannot_be_settled_are_refused() -> None:
    with pytest.raises(SettlementError, match="twice"):
        settle(TERMS, [assessment("p", 0.1), assessment("p", 0.2)])
    with pytest.raises(SettlementError, match="digest"):
        settle(TERMS, [replace(assessment("p", 0.1), model_sha256=b"")])
    with pytest.raises(FieldError, match="round"):
        settle_round(TERMS, 4, drawn([assessment("p", 0.1)]), [assessment("p", 0.1)])
    one = [assessment("p", 0.1)]
    for shares, name in (([], "p"), ([*one, assessment("q", 0.1)], "q")):
        with pytest.raises(SettlementError, match=f"one share a model: {name}$"):
            settle_round(TERMS, 1, drawn(shares), one)
    with pytest.raises(FieldError, match="verified_micro"):
        Assessment("p", bytes(32), Fraction(0), MICRO + 1)
    with pytest.raises(FieldError, match="claimed_degree"):
        Assessment("p", bytes(32), Fraction(3, 2), 0)


def test_a_settlement_is_the_same_on_every_machine() -> None:
    everyone = [assessment(f"p{i}", i / 10) for i in range(8)]
    settled = settle(TERMS, everyone)
    # Pinned: a change of any digit needs a new name in `ARITHMETIC`, or old ledgers no longer replay.
    paid = [p.paid_micro for p in settled.payments]
    assert paid == [
        1984131,
        1861110,
        1717580,
        1984131,
        2075449,
        1941420,
        1786772,
        1751578,
    ]
    assert settled.rounding_micro == 1


@pytest.mark.parametrize("rule", ["leave_one_out", "shapley", "correlated_agreement", "dmi"])
def test_a_score_pays_its_part_of_the_most_and_none_lies_outside_of_0_and_1(rule: str) -> None:
    terms = replace(TERMS, rule=Rule(rule))
    most = max_payment_micro(terms.Q, terms.upsilon, terms.payment.exact)

    def paid(score: str) -> int:
        everyone = [assessment(name, 0.3, scores={rule: score}) for name in ("p", "q", "r")]
        micro: int = line(settle(terms, everyone), "p").paid_micro  # type: ignore[attr-defined]
        return micro

    assert paid("0") == 0
    assert paid("1") == pytest.approx(most, abs=1)
    assert paid("0.5") == pytest.approx(most / 2, abs=1)
    for score in ("1.000001", "-0.000001", "2", "-1"):
        with pytest.raises(
            SettlementError, match=rf"p has the {rule} score .*; expected a decimal in \[0, 1\]"
        ):
            paid(score)


@pytest.mark.parametrize("precision", [3, 28, 60])
def test_the_programs_decimal_context_changes_no_payment(precision: int) -> None:
    everyone = [
        assessment(f"p{i:03}", i * 7919 % MICRO / MICRO, i * 104_729 % MICRO / MICRO) for i in range(30)
    ]
    before = settle(TERMS, everyone)
    with decimal.localcontext(prec=precision, rounding=decimal.ROUND_UP):
        assert settle(TERMS, everyone) == before


@given(st.fractions(0, 1), st.fractions(0, 1))
def test_a_payment_against_a_peer_is_that_of_the_sum_of_squares_rounded_once(
    a: Fraction, b: Fraction
) -> None:
    squares = a * a + b * b
    exact = TWENTY_EIGHT.divide(squares.numerator, squares.denominator)
    gap = TWENTY_EIGHT.fma(TERMS.phi, exact, TERMS.upsilon)
    assert peer_payment(TERMS, a, b) == TERMS.payment.exact(TWENTY_EIGHT.divide(TERMS.Q, gap), TWENTY_EIGHT)
