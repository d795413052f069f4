"""What a round pays, amount by amount: roundings, boundaries, multipliers, penalties, stakes and scores."""

from collections.abc import Mapping
from dataclasses import replace
from decimal import Context, Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechanism.errors import FieldError, SettlementError
from mechanism.payment import Linear, Log, Log1p, Power, Scaled
from mechanism.peers import Meetings
from mechanism.settlement import (
    ARITHMETIC,
    MICRO,
    PAYMENT_RULES,
    STAND_INS,
    Assessment,
    Payment,
    RoundSettlement,
    Verdict,
    drawn_peers,
    expected_payments,
    largest_remainder,
    max_payment_micro,
    outcome_of,
    payment_against,
    peer_candidates,
    peer_payment,
    settle_round,
    task_budget_micro,
)
from mechanism.terms import Rule, Terms
from mechanism.unmeasured import as_claimed
from tests.mechanism.test_settlement import TERMS, drawn

PLAIN = replace(TERMS, rule=Rule())
SCORES = ("leave_one_out", "shapley", "correlated_agreement", "dmi")


def person(name: str, verified: int | None, claimed: Fraction | None = None, **more: object) -> Assessment:
    claim = Fraction(verified or 0, MICRO) if claimed is None else claimed
    return Assessment(name, name[:1].encode() * 32, claim, verified, **more)  # type: ignore[arg-type]


def settle(
    terms: Terms, *people: Assessment, round_: int = 1, stakes: Mapping[str, int] | None = None
) -> RoundSettlement:
    return settle_round(terms, round_, drawn(people), people, stakes)


def first(settlement: RoundSettlement) -> Payment:
    return settlement.payments[0]


def exact(terms: Terms, mine: Fraction, theirs: Fraction) -> Fraction:
    """f(Q / (Phi d^2 + Phi d'^2 + Upsilon)) in micro-credits, unrounded, to 28 digits."""
    return Fraction(peer_payment(terms, mine, theirs)) * MICRO


@pytest.mark.parametrize("name", ["verified_micro", "lower_micro", "upper_micro", "multiplier_ppm"])
def test_an_assessment_holds_millionths_of_a_whole_and_nothing_else(name: str) -> None:
    good = person("p", 1)
    for value in (-1, MICRO + 1):
        with pytest.raises(FieldError) as refused:
            replace(good, **{name: value})
        assert refused.value.field == name
    for value in (0, MICRO):
        assert getattr(replace(good, **{name: value}), name) == value


def test_a_claimed_degree_lies_between_nothing_and_the_whole() -> None:
    for claimed in (Fraction(-1, 3), Fraction(4, 3), Fraction(1_000_001, MICRO)):
        with pytest.raises(FieldError) as refused:
            person("p", 0, claimed)
        assert refused.value.field == "claimed_degree"
    assert [person("p", 0, Fraction(c)).claimed_degree for c in (0, 1)] == [0, 1]


def test_who_is_scored_is_said_and_a_whole_multiplier_is_the_default() -> None:
    assert person("p", 0).scored
    assert not person("p", None).scored
    assert person("p", 0).multiplier_ppm == MICRO
    assert not person("p", 0).refuted


def test_a_verdicts_record_has_all_four_of_its_parts() -> None:
    verdict = Verdict("echo", False, "It is an echo.", {"distance": "0.1"})
    assert verdict.record() == {
        "screen": "echo", "passed": False, "explanation": "It is an echo.", "figures": {"distance": "0.1"},
    }  # fmt: skip


def test_a_round_is_one_of_the_schedule() -> None:
    last = PLAIN.schedule.rounds
    for outside in (0, -1, last + 1):
        with pytest.raises(FieldError) as refused:
            settle(PLAIN, person("p", 0), round_=outside)
        assert refused.value.field == "round"
    for inside in (1, last):
        found = settle(PLAIN, person("p", 0), round_=inside)
        assert (found.task_id, found.round, found.draw) == (PLAIN.task_id, inside, drawn([person("p", 0)]))


@pytest.mark.parametrize("length", [0, 31, 33])
def test_who_is_scored_has_a_digest_of_32_bytes_and_who_is_not_may_have_none(length: int) -> None:
    good = person("p", 300_000)
    with pytest.raises(SettlementError, match="p is scored without a model digest"):
        settle(PLAIN, person("o", 0), replace(good, model_sha256=bytes(length)))
    none = replace(person("q", None), model_sha256=b"")
    both, alone = settle(PLAIN, good, none), settle(PLAIN, good)
    assert first(both) == first(alone)


def test_every_model_in_time_has_a_share_and_nobody_else() -> None:
    sent, unscored, absent = (
        person("p", 300_000),
        person("q", None),
        replace(person("r", None), model_sha256=b""),
    )
    people = (sent, unscored, absent)
    assert settle_round(PLAIN, 1, drawn(people), people).draw.shares.keys() == {"p", "q"}
    for shares in ((sent,), (sent, unscored, person("r", 0)), (sent, unscored, person("s", 0))):
        with pytest.raises(SettlementError, match=r"expected one share a model: [qrs]$"):
            settle_round(PLAIN, 1, drawn(shares), people)
    several = [person(name, 0) for name in "zyxwvut"]
    with pytest.raises(SettlementError, match=r"a model: p, q, t, u, v, w, x, y, z$"):
        settle_round(PLAIN, 1, drawn(several), people)


def test_payments_are_rounded_by_the_rule_and_the_formula_is_that_of_the_paper() -> None:
    mine, theirs = 123_457, 654_321
    paid = settle(PLAIN, person("p", mine), person("q", theirs))
    amount = exact(PLAIN, Fraction(mine, MICRO), Fraction(theirs, MICRO))
    floor, fraction = divmod(amount, 1)
    # Both are paid the same amount; of their two equal fractions the sum decides.
    units = int(2 * fraction)
    assert [line.paid_micro for line in paid.payments] == [floor + units, floor]
    assert [line.gross_micro for line in paid.payments] == [floor, floor]
    assert paid.rounding_micro == 1
    assert paid.total_micro == sum(line.paid_micro for line in paid.payments) + 1
    assert paid.total_micro == 2 * floor + units + 1


def test_the_screens_multiplier_takes_its_part_of_the_payment() -> None:
    whole = exact(PLAIN, Fraction(1, 4), Fraction(1, 2))
    for ppm in (0, 1, 333_333, 999_999, MICRO):
        found = settle(PLAIN, person("p", 250_000, multiplier_ppm=ppm), person("q", 500_000))
        assert first(found).gross_micro == int(whole * ppm / MICRO)
        assert abs(first(found).paid_micro - whole * ppm / MICRO) < 1


@pytest.mark.parametrize("claimed", [Fraction(1, 10), Fraction(1, 3), Fraction(1, 2)])
def test_a_claim_costs_the_square_of_its_distance(claimed: Fraction) -> None:
    terms = replace(PLAIN, rule=Rule(claim_penalty=Decimal("1.5")))
    found = first(settle(terms, person("p", 300_000, claimed), person("q", 500_000)))
    penalty = Fraction(3, 2) * (claimed - Fraction(3, 10)) ** 2 * MICRO
    gross = exact(terms, Fraction(3, 10), Fraction(1, 2))
    assert found.penalty_micro == -int(-penalty // 1)
    assert found.gross_micro == int(gross)
    assert abs(found.paid_micro - (gross - penalty)) < 1


def test_a_penalty_beyond_the_payment_leaves_nothing_and_takes_nothing() -> None:
    terms = replace(PLAIN, rule=Rule(claim_penalty=Decimal(100)))
    found = settle(terms, person("p", 0, Fraction(1)), person("q", 500_000))
    assert first(found).paid_micro == 0
    assert first(found).penalty_micro == 100 * MICRO
    assert found.payments[1].paid_micro > 0


def test_only_the_verified_rule_has_a_penalty() -> None:
    for rule in ("paper", *SCORES):
        terms = replace(PLAIN, rule=Rule(rule, claim_penalty=Decimal(5)))
        people = (
            person("p", 0, Fraction(1, 2), scores={rule: "1"}),
            person("q", 500_000, scores={rule: "1"}),
        )
        assert [line.penalty_micro for line in settle(terms, *people).payments] == [0, 0]


def test_the_papers_rule_pays_on_both_claims_in_millionths() -> None:
    terms = replace(PLAIN, rule=Rule("paper"))
    claims = {"p": Fraction(1, 7), "q": Fraction(2, 7)}
    found = settle(terms, *(as_claimed(name, name.encode() * 32, claim) for name, claim in claims.items()))
    in_millionths = (Fraction(round(claim * MICRO), MICRO) for claim in claims.values())
    assert first(found).gross_micro == int(exact(terms, *in_millionths))


def test_what_is_paid_follows_from_the_outcomes_alone() -> None:
    terms = replace(PLAIN, rule=Rule(claim_penalty=Decimal("1.5"), fee=Decimal("0.7")))
    people = [
        person("p", 300_000, Fraction(1, 3), multiplier_ppm=900_001, holders_micro=1_400_000),
        person("q", 500_000, distinct_micro=700_000, refuted=True),
        person("r", None),
        person("s", 123_456, Fraction(1, 7), cluster="p"),
    ]
    settled = settle(terms, *people)
    shown = [outcome_of(terms, one) for one in people]
    assert settle_round(terms, 1, drawn(people), shown, None) == settled
    assert {line.participant_id: line.penalty_micro for line in settled.payments} == {
        one.participant_id: one.penalty_micro for one in shown
    }
    assert expected_payments(terms, shown) == expected_payments(terms, people)
    assert outcome_of(terms, shown[0]) is shown[0]


def test_a_penalty_is_rounded_up_before_it_is_taken() -> None:
    terms = replace(PLAIN, rule=Rule(claim_penalty=Decimal("0.1")))
    one = person("p", 300_000, Fraction(300_001, MICRO))  # 10^-13 credits
    found = settle(terms, one, person("q", 500_000))
    assert outcome_of(terms, one).penalty_micro == first(found).penalty_micro == 1
    without = settle(terms, person("p", 300_000), person("q", 500_000))
    assert (
        sum(line.paid_micro for line in without.payments) - sum(line.paid_micro for line in found.payments)
        == 1
    )


@pytest.mark.parametrize("rule", SCORES)
def test_a_score_is_paid_in_proportion_whoever_the_peer_is(rule: str) -> None:
    terms = replace(PLAIN, rule=Rule(rule))
    most = Fraction(peer_payment(PLAIN, Fraction(0), Fraction(0))) * MICRO
    for score in ("0", "0.25", "1"):
        for other in (0, MICRO):
            found = settle(
                terms, person("p", 400_000, scores={rule: score}), person("q", other, scores={rule: "0"})
            )
            assert first(found).gross_micro == int(most * Fraction(score))
            assert found.payments[1].paid_micro == 0
    with pytest.raises(SettlementError, match=f"q is scored and has no {rule} score"):
        settle(terms, person("p", 400_000, scores={rule: "1"}), person("q", 0))


@pytest.mark.parametrize("score", ["-0.000001", "1.000001", "2", "-1"])
def test_a_score_outside_of_nothing_to_the_whole_is_refused(score: str) -> None:
    terms = replace(PLAIN, rule=Rule("shapley"))
    with pytest.raises(SettlementError, match=r"p has the shapley score .*; expected a decimal in \[0, 1\]"):
        settle(terms, person("p", 0, scores={"shapley": score}))


def test_a_score_that_is_no_number_is_refused() -> None:
    with pytest.raises(SettlementError, match="p has the dmi score much; expected a decimal"):
        settle(replace(PLAIN, rule=Rule("dmi")), person("p", 0, scores={"dmi": "much"}))


def test_nobody_is_paid_on_a_degree_that_was_not_verified() -> None:
    with pytest.raises(SettlementError, match="p has no verified degree"):
        PAYMENT_RULES["verified"](PLAIN, person("p", None), [person("q", 0)])
    with pytest.raises(SettlementError, match="q has no verified degree"):
        PAYMENT_RULES["verified"](PLAIN, person("p", 0), [person("q", None)])


def test_the_mean_is_over_all_peers() -> None:
    terms = replace(PLAIN, rule=Rule(peers=3))
    people = [person(name, degree) for name, degree in zip("pqrs", (0, 250_000, 500_000, MICRO), strict=True)]
    line = first(settle(terms, *people))
    assert sorted(line.peers) == ["q", "r", "s"]
    parts = [exact(terms, Fraction(0), Fraction(d, MICRO)) for d in (250_000, 500_000, MICRO)]
    assert line.gross_micro == int(sum(parts) / 3)


def test_verified_draws_the_least_met_and_every_other_rule_anew() -> None:
    people = [person(name, 100_000 * i, scores=dict.fromkeys(SCORES, "1")) for i, name in enumerate("pqrstu")]
    alike = [p.participant_id for p in people]
    met = Meetings((name, [other for other in alike if other not in (name, "p", "u")]) for name in alike)
    for rule in ("verified", "paper", *SCORES):
        terms = replace(PLAIN, rule=Rule(rule, peers=1))
        before, after = (
            {
                line.participant_id: line.peers
                for line in settle_round(terms, 1, drawn(people), people, meetings=meetings).payments
            }
            for meetings in (None, met)
        )
        if rule == "verified":
            assert before != after
            assert {name: after[name] for name in "pu"} == {"p": ("u",), "u": ("p",)}
            assert {after[name][0] for name in "qrst"} <= {"p", "u"}
        else:
            assert before == after


def test_the_payment_is_that_of_the_peers_where_they_are_given() -> None:
    people = [person(name, 100_000 * i) for i, name in enumerate("pqr")]
    settled = settle_round(PLAIN, 1, drawn(people), people, peers={"p": ["r"], "q": ["p"], "r": []})
    assert [line.peers for line in settled.payments] == [("r",), ("p",), ()]
    assert first(settled).gross_micro == int(exact(PLAIN, Fraction(0), Fraction(2, 10)))


@pytest.mark.parametrize(
    "payment", [Log(Decimal("2.5")), Log1p(), Linear(Decimal(3)), Power(Decimal(2))], ids=str
)
@given(xs=st.lists(st.decimals("0.001", "1000", places=6), min_size=1, max_size=40))
def test_the_mean_of_a_payment_function_is_that_of_its_values(payment: Scaled, xs: list[Decimal]) -> None:
    """To the digits that the logarithm of a product may lose."""
    context = Context(prec=28)
    values = [Fraction(payment.exact(x, context)) for x in xs]
    mean = sum(values) / len(xs)
    assert abs(Fraction(payment.exact_mean(xs, context)) - mean) <= Fraction(1, 10**24) * max(1, *values)
    assert payment.exact_mean(xs[:1], context) == payment.exact(xs[0], context)


def test_members_of_a_cluster_draw_outside_of_it_and_others_from_everyone() -> None:
    people = [
        person("a", 0, cluster="a"), person("b", 0, cluster="a"), person("c", 0, cluster="c"),
        person("d", 0, cluster="c"), person("e", None), person("f", 0),
    ]  # fmt: skip
    drawn = {
        line.participant_id: set(line.peers)
        for line in settle(replace(PLAIN, rule=Rule(peers=6)), *people).payments
    }
    assert drawn == {
        "a": {"c", "d", "f"}, "b": {"c", "d", "f"}, "c": {"a", "b", "f"}, "d": {"a", "b", "f"}, "e": set(),
        "f": {"a", "b", "c", "d"},
    }  # fmt: skip


@given(
    clusters=st.lists(st.sampled_from(["", "a", "b", "not scored"]), min_size=3, max_size=14),
    peers=st.integers(1, 5),
    rounds=st.integers(0, 3),
)
def test_all_are_drawn_for_as_each_is_by_itself(clusters: list[str], peers: int, rounds: int) -> None:
    people = [
        person(
            f"{chr(97 + place)}",
            None if kind == "not scored" else 0,
            cluster=kind if kind in ("a", "b") else None,
        )
        for place, kind in enumerate(clusters)
    ]
    terms, by_id = (
        replace(PLAIN, rule=Rule(peers=peers)),
        {p.participant_id: outcome_of(PLAIN, p) for p in people},
    )
    draw, meetings = drawn(people), Meetings()
    for _ in range(rounds + 1):
        found = drawn_peers(terms, draw, by_id, meetings)
        assert found == {
            name: draw.peers(name, peer_candidates(by_id[name], by_id), peers, meetings.of(name))
            for name, outcome in by_id.items()
            if outcome.scored
        }
        meetings.add(found.items())


STAKE = replace(PLAIN, rule=Rule(stake_micro=3 * MICRO))


@pytest.mark.parametrize(
    ("held", "withheld"),
    [(0, None), (3 * MICRO - 10, 10), (3 * MICRO, 0), (3 * MICRO + 7, 0)],
    ids=["less than the stake is earned", "a little is missing", "full", "more than full"],
)
def test_a_stake_takes_what_is_earned_until_it_is_full(held: int, withheld: int | None) -> None:
    found = first(settle(STAKE, person("p", 0), person("q", 0), stakes={"p": held}))
    assert 0 < found.paid_micro < 3 * MICRO
    assert found.withheld_micro == (found.paid_micro if withheld is None else withheld)
    assert found.stake_lost_micro == 0


@pytest.mark.parametrize(("held", "lost"), [(0, 0), (5, 5), (3 * MICRO, 3 * MICRO), (4 * MICRO, 3 * MICRO)])
def test_a_refuted_claim_costs_what_is_held_up_to_the_stake(held: int, lost: int) -> None:
    refuted = person("p", 0, refuted=True)
    found = first(settle(STAKE, refuted, person("q", 0), stakes={"p": held, "q": 9}))
    assert (found.stake_lost_micro, found.withheld_micro) == (lost, 0)
    unscored = first(settle(STAKE, replace(refuted, verified_micro=None), person("q", 0), stakes={"p": held}))
    assert (unscored.stake_lost_micro, unscored.paid_micro, unscored.gross_micro) == (lost, 0, 0)


@pytest.mark.parametrize(
    ("credits_", "micros", "residue"),
    [
        ({"a": "0.0000004", "b": "0.0000004", "c": "0.0000004"}, [1, 0, 0], 1),
        ({"a": "0.0000005", "b": "0.0000005"}, [1, 0], 0),
        ({"a": "0.0000001", "b": "0.0000009"}, [0, 1], 0),
        ({"b": "0.0000009", "a": "0.0000008", "c": "0.0000003"}, [1, 1, 0], 0),
        ({"a": "1", "b": "2.000001"}, [1_000_000, 2_000_001], 0),
        ({"a": "0", "b": "0"}, [0, 0], 0),
        ({}, [], 0),
        ({"a": "0.00000000001"}, [0], 1),
    ],
)
def test_units_go_to_the_largest_fractions_and_of_equals_to_the_first_name(
    credits_: dict[str, str], micros: list[int], residue: int
) -> None:
    found, rest = largest_remainder({name: Decimal(value) for name, value in credits_.items()})
    assert [found[name] for name in sorted(found)] == micros
    assert rest == residue


def test_budgets_are_the_largest_payment_rounded_up_by_capacity_and_rounds() -> None:
    # ln 10 = 2.302585092..., which lies above 2302585 micro-credits.
    assert max_payment_micro(Decimal(2000), Decimal(200), Log().exact) == 2_302_586
    assert max_payment_micro(Decimal(2000), Decimal(200), Log(Decimal(100)).exact) == 230_258_510
    assert max_payment_micro(Decimal(3), Decimal(2), Linear(Decimal(2)).exact) == 3 * MICRO
    assert max_payment_micro(Decimal(1), Decimal(1), Log().exact) == 0
    assert task_budget_micro(PLAIN) == 3 * 12 * 2_302_586


def test_each_participant_is_assessed_once() -> None:
    with pytest.raises(SettlementError, match="twice"):
        settle(PLAIN, person("p", 0), person("q", 0), person("p", None))


def test_who_stands_alone_is_its_own_peer_in_the_formula_and_in_no_draw() -> None:
    found = first(settle(PLAIN, person("p", 400_000), person("q", None)))
    assert found.peers == ()
    assert found.gross_micro == int(exact(PLAIN, Fraction(2, 5), Fraction(2, 5)))


def test_candidates_are_the_scored_without_oneself_and_ones_own_cluster() -> None:
    people = {
        a.participant_id: a
        for a in (person("a", 0), person("b", 0, cluster="b"), person("c", 0, cluster="b"), person("d", None))
    }
    assert peer_candidates(people["a"], people) == {"b", "c"}
    assert peer_candidates(people["b"], people) == {"a"}
    assert peer_candidates(people["d"], people) == {"a", "b", "c"}


def test_the_arithmetic_has_the_name_that_ledgers_know_it_by() -> None:
    assert ARITHMETIC == "decimal28-half-even/largest-remainder-v4"


def test_the_expected_payment_is_what_every_candidate_as_a_peer_would_pay() -> None:
    people = [
        person("a", 0),
        person("b", 200_000, Fraction(1, 10)),
        person("c", 400_000, cluster="c"),
        person("d", 600_000, cluster="c"),
        person("e", None),
        person("f", 900_000, Fraction(0), multiplier_ppm=500_000),
    ]
    for rule in (Rule(), Rule("verified", claim_penalty=Decimal(2), stake_micro=1000)):
        terms = replace(PLAIN, rule=rule)
        expected = expected_payments(terms, people)
        everyone = settle(replace(terms, rule=replace(rule, peers=len(people))), *people)
        assert expected.keys() == {p.participant_id for p in people}
        for payment in everyone.payments:  # a unit may come by largest remainder
            assert 0 <= payment.paid_micro - expected[payment.participant_id] <= 1
        assert expected["e"] == 0


def test_many_candidates_are_stood_for_by_some_of_evenly_spaced_degrees() -> None:
    people = [person(f"p{i:04d}", i * 700) for i in range(1001)]
    expected = expected_payments(PLAIN, people)
    for one in (people[0], people[500], people[1000]):
        others = [other for other in people if other is not one]
        assert expected[one.participant_id] == pytest.approx(payment_against(PLAIN, one, others), rel=3e-4)
    few = people[:STAND_INS]
    assert expected_payments(PLAIN, few)["p0000"] == payment_against(PLAIN, few[0], few[1:])


def test_the_mean_over_draws_comes_to_the_expected_payment() -> None:
    degrees = {"a": 0, "b": 300_000, "c": 600_000, "d": 900_000}
    expected = expected_payments(PLAIN, [person(name, micro) for name, micro in degrees.items()])
    for name, mine in degrees.items():
        draws = [
            exact(PLAIN, Fraction(mine, MICRO), Fraction(theirs, MICRO))
            for other, theirs in degrees.items()
            if other != name
        ]
        assert 0 <= sum(draws) / len(draws) - expected[name] < 1


def test_a_participant_without_a_candidate_is_expected_to_be_paid_as_its_own_peer() -> None:
    alone = person("a", 300_000)
    degree = Fraction(3, 10)
    assert expected_payments(PLAIN, [alone])["a"] == int(exact(PLAIN, degree, degree))
