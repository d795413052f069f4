"""What of a payment one's data earn (docs/mechanism.md, section 9)."""

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechanism.coverage import POWER, least_fee, one_share, weight
from mechanism.errors import FieldError
from mechanism.settlement import (
    MICRO,
    Assessment,
    expected_payments,
    least_fee_of,
    max_payment_micro,
    payment_against,
    task_budget_micro,
    weight_micro,
)
from mechanism.terms import Rule, Terms
from tests.mechanism.test_settlement import TERMS

C = Fraction("0.85")

rationals = st.fractions(min_value=1, max_value=60, max_denominator=1000)
#: Families of sets of sample numbers, none of them empty: some alike, some disjoint.
families = st.lists(st.frozensets(st.integers(0, 24), min_size=1), min_size=1, max_size=9)


def holders(sets: Sequence[frozenset[int]]) -> list[Fraction]:
    """M of each: the mean over its samples of how many have the sample."""
    return [Fraction(sum(len(one & other) for other in sets), len(one)) for one in sets]


# What is had twice is paid once


@given(families)
def test_what_sets_are_worth_is_at_most_their_union(sets: list[frozenset[int]]) -> None:
    worth = sum(len(one) * one_share(m) for one, m in zip(sets, holders(sets), strict=True))
    assert worth <= len(frozenset().union(*sets))


@given(families)
def test_for_two_sets_and_for_equally_shared_ones_it_is_the_union(sets: list[frozenset[int]]) -> None:
    for group in (sets[:2], [sets[0]] * len(sets), [frozenset([(i, x) for x in sets[0]]) for i in range(3)]):
        worth = sum(len(one) * one_share(m) for one, m in zip(group, holders(group), strict=True))
        assert worth == len(frozenset[object]().union(*group))


def test_dropping_what_is_had_in_common_can_pay_more_than_the_union() -> None:
    """Why all of a cluster count, those too that are hardly linked."""
    sets = [frozenset(range(i, i + 6)) for i in range(0, 12, 2)]
    near = [Fraction(sum(len(a & b) for b in sets if len(a & b) > 2), len(a)) for a in sets]
    worth = sum(len(one) * one_share(m) for one, m in zip(sets, near, strict=True))
    assert worth > len(frozenset().union(*sets))


@given(st.integers(1, 1000))
def test_equal_copies_share_one(n: int) -> None:
    assert one_share(Fraction(n)) == Fraction(1, n)


@given(rationals, rationals, st.fractions(0, 1, max_denominator=100))
def test_the_share_falls_and_is_convex(one: Fraction, other: Fraction, part: Fraction) -> None:
    low, high = sorted((one, other))
    assert one_share(low) >= one_share(high) >= 1 / high
    between = part * low + (1 - part) * high
    assert one_share(between) <= part * one_share(low) + (1 - part) * one_share(high)


# No split pays


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[frozenset[int]], int]:
    """Sets of the identities of one group, and the recipe's number of samples, as many as all of them have at least."""
    sets = draw(families)
    union = len(frozenset().union(*sets))
    return sets, draw(st.integers(union, 2 * union))


def weights(sets: Sequence[frozenset[int]], recipe: int) -> list[Fraction]:
    return [weight(Fraction(len(one), recipe), m, C) for one, m in zip(sets, holders(sets), strict=True)]


@given(groups(), st.fractions(0, 20, max_denominator=100))
def test_no_split_of_at_most_the_recipes_samples_gains_at_the_least_fee(
    group: tuple[list[frozenset[int]], int], most: Fraction
) -> None:
    sets, recipe = group
    fee = Fraction(least_fee(Decimal(most.numerator) / most.denominator, Decimal("0.85"))) + Fraction(
        1, 10**20
    )
    union = frozenset().union(*sets)
    [alone] = weights([union], recipe)
    honest = max(Fraction(0), alone * most - fee * (1 - alone))
    split = sum(max(Fraction(0), w * most - fee * (1 - w)) for w in weights(sets, recipe))
    assert split <= honest


@given(groups())
def test_weights_of_a_group_are_at_most_the_union_over_what_is_enough(
    group: tuple[list[frozenset[int]], int],
) -> None:
    sets, recipe = group
    u = Fraction(len(frozenset().union(*sets)), recipe)
    assert sum(weights(sets, recipe)) <= max(u / C, Fraction(0))
    if u <= C:
        assert sum(weights(sets, recipe)) <= (u / C) ** POWER


def test_with_a_lower_fee_two_that_share_most_of_one_set_gain() -> None:
    recipe = 20
    sets = [frozenset(range(17)), frozenset(range(3, 20))]
    found = weights(sets, recipe)
    assert sum(found) == 1 / C

    def gain(fee: Fraction) -> Fraction:
        return sum(w - fee * (1 - w) for w in found) - 1

    least = Fraction(least_fee(Decimal(1), Decimal("0.85")))
    assert least == Fraction("0.214286")
    assert gain(least) <= 0 < gain(least - Fraction(1, 10**6))


def test_with_more_data_than_the_recipe_asks_two_may_each_bring_what_is_new() -> None:
    found = weights([frozenset(range(20)), frozenset(range(20, 40))], 20)
    assert found == [1, 1]


@pytest.mark.parametrize("whole_from", ["0.51", "0.6", "0.85", "1"])
def test_the_least_fee_is_a_part_of_the_most(whole_from: str) -> None:
    c = Fraction(whole_from)
    fee = Fraction(least_fee(Decimal("3.78"), Decimal(whole_from)))
    assert 0 <= fee - Fraction("3.78") * (1 - c) / (2 * c - 1) < Fraction(1, 10**6)


def test_what_lies_out_of_range_is_refused_by_name() -> None:
    for whole_from in ("0.5", "0", "1.01", "-1"):
        with pytest.raises(FieldError, match="whole_from"):
            weight(Fraction(1), Fraction(1), Fraction(whole_from))
        with pytest.raises(FieldError, match="whole_from"):
            least_fee(Decimal(1), Decimal(whole_from))
    with pytest.raises(FieldError, match="holders"):
        weight(Fraction(1), Fraction(99, 100), C)
    with pytest.raises(FieldError, match="distinct"):
        weight(Fraction(-1, 100), Fraction(1), C)


# In settlement


def person(name: str, degree: int, **changes: object) -> Assessment:
    return replace(
        Assessment(name, bytes(32), Fraction(degree, MICRO), degree),
        **changes,  # type: ignore[arg-type]
    )


def under(**changes: object) -> Terms:
    return replace(TERMS, rule=replace(TERMS.rule, **changes))  # type: ignore[arg-type]


parts = st.integers(0, MICRO)


@given(parts, st.integers(MICRO, 40 * MICRO), parts, parts)
def test_a_payment_with_whole_weight_is_the_papers_and_a_lower_weight_is_never_paid_more(
    distinct: int, shared: int, own: int, peer: int
) -> None:
    terms = under(fee=Decimal("0.5"), claim_penalty=Decimal(0))
    subject, peers = person("a", own), [person("b", peer)]
    whole = payment_against(terms, subject, peers)
    assert whole == payment_against(under(fee=Decimal(0), claim_penalty=Decimal(0)), subject, peers)
    less = replace(subject, distinct_micro=distinct, holders_micro=shared)
    w = weight_micro(terms, less)
    exact = weight(Fraction(distinct, MICRO), Fraction(shared, MICRO), C) * MICRO
    assert 0 <= exact - w < 1
    paid = payment_against(terms, less, peers)
    assert 0 <= paid <= whole
    wanted = Fraction(w, MICRO) * whole - Fraction(1, 2) * (MICRO - w)
    assert abs(paid - max(Fraction(0), wanted)) <= 2


@given(st.integers(2, 12), st.integers(MICRO // 10, MICRO))
def test_whatever_its_data_are_nobody_is_paid_more_than_the_budget_has(people: int, distinct: int) -> None:
    terms = under(fee=Decimal("0.5"))
    found = [person(f"p{i:02d}", 0, distinct_micro=distinct) for i in range(people)]
    most = max_payment_micro(terms.Q, terms.upsilon, terms.payment.exact)
    assert max(expected_payments(terms, found).values()) <= most
    assert most * terms.schedule.rounds * terms.schedule.capacity == task_budget_micro(terms)


def test_the_least_fee_of_terms_follows_from_the_most_that_they_pay() -> None:
    most = Decimal(max_payment_micro(TERMS.Q, TERMS.upsilon, TERMS.payment.exact)) / MICRO
    assert least_fee_of(TERMS) == least_fee(most, TERMS.rule.whole_from)
    assert Rule().whole_from == Decimal("0.85")


@given(st.lists(parts, min_size=2, max_size=5, unique=True), parts, parts, st.integers(MICRO, 4 * MICRO))
def test_a_weight_of_ones_own_keeps_the_differences_increasing(
    own: list[int], one: int, other: int, shared: int
) -> None:
    """If the peer's degree is higher, a higher own degree loses less: w scales both sides. Exact but for roundings."""
    terms = under(claim_penalty=Decimal(0), fee=Decimal(0))
    low, high = sorted((one, other))
    for less, more in pairwise(sorted(own)):
        loses = [
            payment_against(terms, person("a", less, holders_micro=shared), [person("b", peer)])
            - payment_against(terms, person("a", more, holders_micro=shared), [person("b", peer)])
            for peer in (low, high)
        ]
        assert loses[0] >= loses[1] - 2


def test_a_weight_that_hangs_on_others_may_turn_the_differences_round() -> None:
    """M does: where another's move raises it, one's own gain from effort shrinks although the peer got worse."""
    terms = under(claim_penalty=Decimal(0), fee=Decimal(0))

    def gain(peer: int, shared: int) -> int:
        paid = [
            payment_against(terms, person("a", own, holders_micro=shared), [person("b", peer)])
            for own in (100_000, 600_000)
        ]
        return paid[0] - paid[1]

    assert gain(100_000, 2 * MICRO) < gain(200_000, MICRO) < gain(100_000, MICRO)


def test_an_assessment_has_itself_among_its_holders_and_no_more_samples_than_the_recipe() -> None:
    with pytest.raises(FieldError, match="holders_micro is 999999; expected an integer of at least 1000000"):
        person("a", 0, holders_micro=MICRO - 1)
    for distinct in (-1, MICRO + 1):
        with pytest.raises(
            FieldError, match=r"distinct_micro is -?\d+; expected an integer in \[0, 1000000\]"
        ):
            person("a", 0, distinct_micro=distinct)
