"""Of all pairs of a round, which are looked at as linked: none that the exact arithmetic links is lost. And the groups
that are found of models that share less than a pair is linked for."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from fedpeer.evidence import comparing
from fedpeer.evidence.comparing import (
    STEPS,
    Comparison,
    Left,
    Probe,
    likeness,
    perhaps_linked,
    suspected,
)
from fedpeer.evidence.likeness import fit_pull, mix_of
from fedpeer.evidence.regression import micro
from fedpeer.evidence.screening import RATE
from fedpeer.evidence.sketch import Array, directions
from mechanism.evidence import MOST_GROUP, ONE_MODEL, LikenessMap
from mechanism.settlement import MICRO

#: Numbers of an update and of outputs.
UPDATE, OUTPUT = 40, 9


def models(dice: np.random.Generator, count: int, closeness: float) -> tuple[list[Left], list[int]]:
    """What is left of so many models, some near one of the others and some a copy; and whose copy each is."""
    left: list[Left] = []
    of: list[int] = []
    for place in range(count):
        kind = dice.random()
        source = int(dice.integers(place)) if place and kind < 0.6 else place
        if source != place and kind < 0.2:
            left.append(left[source])
            of.append(of[source])
            continue
        vector = dice.normal(size=UPDATE + OUTPUT)
        if source != place:
            vector = closeness * np.concatenate(left[source]) * np.linalg.norm(vector) + vector
        update, output = vector[:UPDATE], vector[UPDATE:]
        scaled = [np.sqrt(0.5) * part / np.linalg.norm(part) for part in (update, output)]
        left.append((scaled[0].astype(np.float32), scaled[1].astype(np.float32)))
        of.append(place)
    return left, of


def products(mixes: Array, others: Array) -> Array:
    """An r of each with each."""
    found: Array = np.clip(mixes @ others.T, 0, 1)
    return found


@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(2, 40),
    closeness=st.floats(0, 40),
    apart=st.lists(st.integers(-50_000, MICRO), min_size=2, max_size=12).map(sorted),
    link=st.integers(1, 300_000),
    tile=st.integers(1, 45),
)
def test_no_pair_that_is_linked_and_no_copy_is_lost(
    seed: int, count: int, closeness: float, apart: list[int], link: int, tile: int
) -> None:
    dice = np.random.default_rng(seed)
    left, of = models(dice, count, closeness)
    says = LikenessMap(tuple(apart), tuple(apart), link)
    mixes = mix_of(dice.normal(0.3, 0.5, size=(count, 3)))
    r = products(mixes, mixes)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(comparing, "TILE", tile)
        found = list(perhaps_linked(left, mixes, products, says))
    assert len(set(found)) == len(found)
    assert all(j < k for k, j in found)
    for k in range(count):
        for j in range(k):
            alike = micro(float(likeness(left[k], left[j][0][None], left[j][1][None])[0]))
            usual = says.usual(micro(float(r[k, j])))[0]
            if alike >= ONE_MODEL or alike - usual >= link:
                assert (k, j) in found
            if of[k] == of[j]:
                assert (k, j) in found
            if (k, j) in found:  # and few beside
                assert alike >= min(ONE_MODEL, usual + link) - 1_000


# Groups, of vectors that are made: what is left of honest models is of chance, and of identities a part is the same.

STRATA, SHADOWS = 4, 40
EVEN = np.full(STRATA, 1 / STRATA)

#: Weights of updates and outputs, and how likenesses of vectors of chance deviate.
WEIGHTS, WIDTHS = (0.7, 0.3), (300, 100)
SIGMA = float(np.hypot(*(weight / np.sqrt(width) for weight, width in zip(WEIGHTS, WIDTHS, strict=True))))

#: What identities have beyond what their mixes explain: two deviations. Pairs are linked from four.
SHARED = 2 * SIGMA


Found = list[tuple[list[int], float]]


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    dice = np.random.default_rng(4)
    mixes, halves = dice.dirichlet(EVEN * 8, SHADOWS), np.arange(SHADOWS) % 2
    update, output = (fit_pull(dice.normal(size=(SHADOWS, width)), mixes, halves)[0] for width in WIDTHS)
    return Comparison(
        probe=Probe(np.arange(STRATA), np.arange(STRATA), classifier=False),
        update=update,
        output=output,
        shares=WEIGHTS,
        moved=(np.zeros((0, WIDTHS[0])), np.zeros((0, WIDTHS[1]))),
        differences=(np.zeros(WIDTHS[0]), np.zeros(WIDTHS[1])),
        apart=STEPS / 10,
        same=np.full(len(STEPS), 0.9),
        varies=np.ones(len(STEPS)),
        spread=SIGMA * norm.ppf((np.arange(400) + 0.5) / 400),
        of_each=SIGMA / 5,
        of_pairs=SIGMA,
    )


def left_of(
    dice: np.random.Generator,
    mixes: Array,
    comparison: Comparison,
    parts: Sequence[tuple[int, float]],
    all_: float = 0,
) -> list[Left]:
    """What is left of models that are as alike as their mixes say, and, of some, more.

    Args:
        parts: so many of them, in order, and how much more alike these are with one another.
        all_: how much more alike all of them are.
    """
    alike, begin = np.interp(comparison.common(mixes, mixes), STEPS, comparison.apart) + all_, 0
    for size, more in parts:
        alike[begin : begin + size, begin : begin + size] += more
        begin += size
    np.fill_diagonal(alike, 1)
    values, axes = np.linalg.eigh(alike)
    root = axes * np.sqrt(np.maximum(values, 0))
    update, output = (
        np.sqrt(weight) * directions(root @ dice.normal(size=(len(mixes), width)))
        for weight, width in zip(WEIGHTS, WIDTHS, strict=True)
    )
    return list(zip(update.astype(np.float32), output.astype(np.float32), strict=True))


def groups_in(
    seed: int,
    count: int,
    comparison: Comparison,
    *parts: tuple[int, float],
    one_mix: bool = False,
    all_: float = 0,
) -> tuple[Found, int]:
    """The groups that are found of so many models in an order of chance, by their places before it; and how many pairs
    are linked."""
    dice = np.random.default_rng(seed)
    mixes = dice.dirichlet(EVEN * 8, 1 if one_mix else count).repeat(count if one_mix else 1, axis=0)
    left, order = left_of(dice, mixes, comparison, parts, all_), dice.permutation(count)
    shuffled, says = [left[place] for place in order], comparison.map(count)
    found = suspected(shuffled, mixes[order], [], comparison, says)
    for members, _ in found:
        assert members == sorted(set(members))
        assert 3 <= len(members) <= min(count, MOST_GROUP)
    pairs = perhaps_linked(shuffled, mixes[order], comparison.common, says)
    return [(sorted(order[members].tolist()), outside) for members, outside in found], len(list(pairs))


def test_identities_that_pairs_hardly_show_are_found_as_one_group_and_nobody_else(
    comparison: Comparison,
) -> None:
    caught, strangers, linked = 0, 0, 0
    for seed in range(25):
        [(members, outside)], pairs = groups_in(seed, 40, comparison, (16, SHARED))
        caught += sum(place < 16 for place in members)
        strangers += sum(place >= 16 for place in members)
        linked += pairs
        assert abs(outside) < SIGMA / 2, "what members have with others is what anybody has"
    assert caught > 0.85 * 25 * 16
    assert strangers <= 0.01 * 25 * 24
    assert linked < 0.02 * 25 * 16 * 15 / 2


def test_honest_models_are_in_a_group_at_most_at_the_stated_rate(comparison: Comparison) -> None:
    """Of mixes of their own, and all of one; some rounds of so few that all may be a group, others of more."""
    honest = grouped = 0
    for seed in range(200):
        count = 3 + seed % 40 if seed % 20 else 80
        found, _ = groups_in(seed, count, comparison, one_mix=bool(seed % 2))
        grouped += sum(len(members) for members, _ in found)
        honest += count
    assert grouped <= float(RATE) * honest


def test_two_groups_are_told_apart(comparison: Comparison) -> None:
    caught = 0
    for seed in range(15):
        found, _ = groups_in(seed, 40, comparison, (10, 4 * SIGMA), (8, 4 * SIGMA))
        for members, _ in found:
            first = sum(place < 10 for place in members)
            second = sum(10 <= place < 18 for place in members)
            assert min(first, second) == 0, "no group has members of both"
            caught += first + second
    assert caught > 0.9 * 15 * 18


def test_a_pair_that_is_linked_by_itself_draws_nobody_else_into_a_group(comparison: Comparison) -> None:
    """Two on the same samples are alike by so much that with anybody their mean would pass."""
    strangers = honest = 0
    for seed in range(20):
        found, pairs = groups_in(seed, 20, comparison, (2, 0.7))
        strangers += sum(place >= 2 for members, _ in found for place in members)
        honest += 18
        assert pairs >= 1
    assert strangers <= float(RATE) * honest


def test_what_all_models_of_a_round_have_in_common_makes_no_group_of_some_and_is_what_is_outside(
    comparison: Comparison,
) -> None:
    caught = 0
    for seed in range(8):
        for more in (SIGMA / 2, SHARED):
            assert groups_in(seed, 80, comparison, all_=more)[0] == []
        found, _ = groups_in(seed, 80, comparison, (16, 3 * SIGMA), all_=SHARED)
        for members, outside in found:
            assert abs(outside - SHARED) < SIGMA / 2
            caught += sum(place < 16 for place in members)
            assert sum(place >= 16 for place in members) <= 1
    assert caught > 0.85 * 8 * 16


def test_where_all_models_are_alike_none_is_linked_as_nobody_is_outside(comparison: Comparison) -> None:
    for count in (3, 6, 20):
        for seed in range(5):
            assert groups_in(seed, count, comparison, (count, 6 * SIGMA))[0] == []


def test_among_two_models_or_too_many_or_without_a_limit_no_group_is_looked_for(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = np.random.default_rng(0)
    mixes = dice.dirichlet(EVEN * 8, 12)
    left, says = left_of(dice, mixes, comparison, [(8, 6 * SIGMA)]), comparison.map(12)
    assert suspected(left, mixes, [], comparison, says)
    assert suspected(left[:2], mixes[:2], [], comparison, says) == []
    assert suspected(left, mixes, [], comparison, replace(says, group=())) == []
    monkeypatch.setattr(comparing, "TILE", 11)
    assert suspected(left, mixes, [], comparison, says) == []


def test_limits_of_groups_are_of_so_many_as_there_are_and_above_what_any_pairs_mean_is_by_chance(
    comparison: Comparison,
) -> None:
    assert [len(comparison.map(count).group) for count in (1, 2, 3, 10, 64, 65, 1000)] == [
        0, 0, 0, 7, 61, 62, 62,
    ]  # fmt: skip
    for count in (70, 1000):
        limits = [comparison.group_limit(size, count) for size in range(3, MOST_GROUP + 1)]
        assert min(limits) > 2.5 * comparison.of_each, "a member that is more alike with all others"
        assert limits[:10] == sorted(limits[:10], reverse=True)
    of_six = [comparison.group_limit(6, count) for count in (20, 100, 1000)]
    assert of_six == sorted(of_six), "of more there are more groups"


def test_pairs_that_are_linked_and_in_no_group_are_sets_with_what_they_have_with_others(
    comparison: Comparison,
) -> None:
    dice = np.random.default_rng(1)
    mixes = dice.dirichlet(EVEN * 8, 30)
    left, says = left_of(dice, mixes, comparison, [(10, 4 * SIGMA)]), comparison.map(30)
    (group, outside), *more = suspected(left, mixes, [], comparison, says)
    assert more == []
    assert group == [*range(10)]
    near = [(12, 11), (13, 12), (21, 20), (20, 3), (4, 3)]
    found = suspected(left, mixes, near, comparison, says)
    assert [members for members, _ in found] == [group, [11, 12, 13], [20, 21]]
    assert found[0][1] == outside
    assert all(abs(beyond) < SIGMA for _, beyond in found)
