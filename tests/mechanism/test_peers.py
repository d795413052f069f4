import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mechanism.errors import FieldError, SettlementError
from mechanism.peers import (
    Draw,
    Meetings,
    check_round_seed,
    draw_head,
    draw_share,
    round_seed,
    seed_commitment,
    share_fits,
)

SECRET = bytes(range(32))
names = st.sets(st.from_regex(r"[a-z]{1,6}", fullmatch=True), min_size=1, max_size=12)
digests = st.binary(min_size=32, max_size=32)


def sha256(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def shares_of(who: Iterable[str], salt: str = "") -> dict[str, bytes]:
    return {name: sha256(f"{name} {salt}") for name in who}


# The two chains


@given(digests, st.integers(1, 20))
def test_revealed_seeds_chain_back_to_the_commitment(secret: bytes, rounds: int) -> None:
    chain = [seed_commitment(secret, rounds)] + [round_seed(secret, rounds, r) for r in range(1, rounds + 1)]
    for previous, seed in pairwise(chain):
        check_round_seed(seed, previous)
    assert chain[-1] == secret


def test_a_seed_that_does_not_fit_is_refused() -> None:
    with pytest.raises(SettlementError, match="does not fit"):
        check_round_seed(bytes(32), seed_commitment(SECRET, 3))
    with pytest.raises(SettlementError):
        check_round_seed(round_seed(SECRET, 3, 2), seed_commitment(SECRET, 3))


@pytest.mark.parametrize("round_", [0, 4, -1])
@pytest.mark.parametrize("value", [round_seed, draw_share])
def test_there_is_no_seed_and_no_share_outside_the_schedule(value: object, round_: int) -> None:
    with pytest.raises(FieldError):
        value(SECRET, 3, round_)  # type: ignore[operator]


@given(digests, st.integers(1, 20))
def test_each_share_is_the_hash_of_the_next_and_the_first_one_of_the_head(secret: bytes, rounds: int) -> None:
    shares = [draw_share(secret, rounds, r) for r in range(1, rounds + 1)]
    for earlier, later in pairwise([draw_head(secret, rounds), *shares]):
        assert hashlib.sha256(later).digest() == earlier
    assert shares[-1] == secret


@given(digests, st.integers(1, 12), st.integers(1, 12), st.integers(1, 12))
def test_a_share_fits_in_its_own_round_alone_whatever_rounds_were_missed(
    secret: bytes, rounds: int, round_: int, claimed: int
) -> None:
    round_, claimed = min(round_, rounds), min(claimed, rounds)
    head, share = draw_head(secret, rounds), draw_share(secret, rounds, round_)
    assert share_fits(share, claimed, head) == (round_ == claimed)
    # From an earlier share as from the head.
    for earlier in range(1, round_):
        assert share_fits(share, round_ - earlier, draw_share(secret, rounds, earlier))


@given(digests, digests, st.integers(1, 9))
def test_a_share_that_is_not_of_the_chain_does_not_fit(secret: bytes, other: bytes, round_: int) -> None:
    head = draw_head(secret, 9)
    assert share_fits(other, round_, head) == (other == draw_share(secret, 9, round_))
    assert not share_fits(draw_share(secret, 9, round_) + b"\0", round_, head)
    assert not share_fits(b"", round_, head)


def test_a_secret_a_seed_and_a_share_have_32_bytes() -> None:
    for wrong in (b"", bytes(31), bytes(33)):
        with pytest.raises(FieldError, match="32 random bytes"):
            draw_head(wrong, 1)
        with pytest.raises(FieldError, match="32 random bytes"):
            Draw(wrong, {})
        with pytest.raises(FieldError, match=r"shares\[p\]"):
            Draw(SECRET, {"p": wrong})


# The draw


def test_the_key_is_hmac_of_the_canonical_list_under_the_seed() -> None:
    """Written out once more, as another verifier would."""
    shares = shares_of(["b", "a", "c10", "c9"])
    listed = json.dumps(
        [[name, shares[name].hex()] for name in sorted(shares)], separators=(",", ":")
    ).encode()
    inner = hashlib.sha256(bytes(b ^ 0x36 for b in SECRET.ljust(64, b"\0")) + listed).digest()
    outer = hashlib.sha256(bytes(b ^ 0x5C for b in SECRET.ljust(64, b"\0")) + inner).digest()
    draw = Draw(SECRET, shares)
    assert (draw.record, draw.digest, draw.key) == (listed, hashlib.sha256(listed).digest(), outer)


def test_a_draw_is_pinned() -> None:
    """Any change of these needs another label: logged draws would no longer replay."""
    draw = Draw(SECRET, shares_of(f"p{i}" for i in range(9)))
    assert draw.key.hex() == "65910413a3ef2f018f9fdcc5b98265f6fc115f68d5fc225b2e13a82efde7c293"
    assert "".join(name[1] for name in draw.order("p0")) == "716538024"
    assert "".join(name[1] for name in draw.order("p1")) == "257864031"


@given(digests, names, st.integers(1, 6))
def test_peers_are_distinct_candidates_and_never_oneself(
    seed: bytes, candidates: set[str], count: int
) -> None:
    me = min(candidates)
    shares = shares_of(candidates)
    peers = Draw(seed, shares).peers(me, candidates, count)
    assert len(set(peers)) == len(peers) == min(count, len(candidates) - 1)
    assert set(peers) <= candidates - {me}
    assert Draw(seed, dict(reversed(shares.items()))).peers(me, candidates, count) == peers


@given(digests, names)
def test_everyone_with_a_share_is_in_every_order_once(seed: bytes, who: set[str]) -> None:
    draw = Draw(seed, shares_of(who))
    for name in who:
        assert sorted(draw.order(name)) == sorted(who)


@given(digests, names, st.integers(1, 4), st.data())
def test_who_is_not_scored_hands_on_its_draws_and_moves_no_others(
    seed: bytes, who: set[str], count: int, data: st.DataObject
) -> None:
    draw = Draw(seed, shares_of(who))
    spoilt = data.draw(st.sets(st.sampled_from(sorted(who))))
    for name in who - spoilt:
        left = [other for other in draw.order(name) if other not in spoilt | {name}]
        assert draw.peers(name, who - spoilt, count) == tuple(sorted(left[:count]))


# The least met


@given(digests, names, st.integers(1, 5), st.data())
def test_the_least_met_come_first_and_of_them_the_first_in_the_order(
    seed: bytes, who: set[str], count: int, data: st.DataObject
) -> None:
    """Written out once more: sort everybody who may be drawn, take the first, and list them by name."""
    me = min(who)
    candidates = data.draw(st.sets(st.sampled_from(sorted(who))))
    met = data.draw(st.dictionaries(st.sampled_from(sorted(who)), st.integers(0, 4)))
    draw = Draw(seed, shares_of(who))
    order = [name for name in draw.order(me) if name in candidates and name != me]
    ranked = sorted(order, key=lambda name: (met.get(name, 0), order.index(name)))
    assert draw.peers(me, candidates, count, met) == tuple(sorted(ranked[:count]))


class Uncounted(Collection[str]):
    """Says who is in it and how many they are, and cannot be gone through."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("a round of many would take quadratic time")


def test_where_many_were_never_met_nobody_goes_through_all_candidates() -> None:
    who = [f"p{i:03d}" for i in range(200)]
    draw, met = Draw(SECRET, shares_of(who)), {"p001": 1, "p007": 2}
    assert draw.peers("p000", Uncounted(who), 3, met) == draw.peers("p000", frozenset(who), 3, met)


def task_of(
    label: str, who: list[str], rounds: int, count: int, scored: Mapping[int, Collection[str]] | None = None
) -> Iterator[dict[str, tuple[str, ...]]]:
    """A task's peers, round by round; `scored` are those of a round in which not everybody was."""
    meetings = Meetings()
    for number in range(1, rounds + 1):
        may = (scored or {}).get(number, who)
        draw = Draw(sha256(f"{label} {number}"), shares_of(who, f"{label} {number}"))
        found = {name: draw.peers(name, may, count, meetings.of(name)) for name in may}
        meetings.add(found.items())
        yield found


@pytest.mark.parametrize(("people", "count"), [(4, 1), (8, 3), (9, 3), (12, 5), (12, 11), (40, 3)])
def test_everybody_has_met_everybody_after_as_many_rounds_as_it_takes(people: int, count: int) -> None:
    who = [f"p{i}" for i in range(people)]
    cycle = math.ceil((people - 1) / count)
    met: dict[str, Counter[str]] = {name: Counter() for name in who}
    for number, found in enumerate(task_of("whole", who, 3 * cycle, count), 1):
        for name, peers in found.items():
            assert len(peers) == count
            met[name].update(peers)
            times = [met[name][other] for other in who if other != name]
            assert max(times) - min(times) <= 1
            assert (min(times) == 0) == (number < cycle)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_in_every_round_any_peers_are_as_likely_as_any_others(count: int) -> None:
    """Though what came before decides: each round alone is the draw of a first round."""
    who = [f"p{i}" for i in range(6)]
    rounds = [Counter[tuple[str, ...]]() for _ in range(7)]
    for task in range(1500):
        meetings = Meetings()
        for number, drawn in enumerate(rounds):
            draw = Draw(sha256(f"task {task}, round {number}"), shares_of(who))
            peers = draw.peers("p0", who, count, meetings.of("p0"))
            meetings.add([("p0", peers)])
            drawn[peers] += 1
    for drawn in rounds:
        assert len(drawn) == math.comb(5, count)
        assert stats.chisquare(list(drawn.values())).pvalue > 1e-5


def test_whom_one_meets_says_nothing_of_whom_it_is_met_by() -> None:
    who = [f"p{i}" for i in range(9)]
    [first, second] = task_of("one way", who, 2, 2)
    assert any(name not in first[peer] for name, peers in first.items() for peer in peers)
    assert all(not set(second[name]) & set(peers) for name, peers in first.items())


@given(st.lists(st.sets(st.integers(0, 6), min_size=1), min_size=1, max_size=12), st.integers(1, 4))
def test_who_was_away_is_met_until_it_has_caught_up_and_never_more_than_who_was_there(
    present: list[set[int]], count: int
) -> None:
    who = [f"p{i}" for i in range(7)]
    scored = {number: sorted(f"p{i}" for i in some) for number, some in enumerate(present, 1)}
    met: dict[str, Counter[str]] = {name: Counter() for name in who}
    for number, found in enumerate(task_of("away", who, len(present), count, scored), 1):
        for name, peers in found.items():
            left = [met[name][other] for other in scored[number] if other not in (name, *peers)]
            assert len(peers) == min(count, len(scored[number]) - 1)
            assert all(met[name][peer] <= least for peer in peers for least in left)
            met[name].update(peers)


def test_one_who_comes_late_is_everybodys_peer_until_it_has_caught_up() -> None:
    who = [f"p{i}" for i in range(6)]
    early = who[:5]
    rounds = list(task_of("late", who, 12, 1, dict.fromkeys(range(1, 9), early)))
    assert all("p5" not in peers for found in rounds[:8] for peers in found.values())
    # Eight rounds with four others: each was met twice.
    assert [[found[name] for name in early] for found in rounds[8:10]] == [[("p5",)] * 5] * 2
    assert sum(found[name] == ("p5",) for found in rounds[10:] for name in early) < 10


def test_the_draw_depends_on_the_seed_every_share_who_sent_one_and_the_participant() -> None:
    everyone = [f"p{i}" for i in range(1000)]
    shares = shares_of(everyone)
    base = Draw(SECRET, shares).peers("p0", everyone, 5)
    assert base != Draw(bytes(32), shares).peers("p0", everyone, 5)
    assert base != Draw(SECRET, {**shares, "p999": bytes(32)}).peers("p0", everyone, 5)
    swapped = {**shares, "p998": shares["p999"], "p999": shares["p998"]}
    assert base != Draw(SECRET, swapped).peers("p0", everyone, 5)
    without = {name: shares[name] for name in everyone[:-1]}
    assert base != Draw(SECRET, without).peers("p0", everyone[:-1], 5)
    assert base != Draw(SECRET, shares).peers("p1", everyone, 5)


def seeds_vary(i: int, who: list[str]) -> Draw:
    return Draw(sha256(f"seed {i}"), shares_of(who))


def one_share_varies(i: int, who: list[str]) -> Draw:
    return Draw(SECRET, {**shares_of(who), who[-1]: sha256(f"share {i}")})


@pytest.mark.parametrize("vary", [seeds_vary, one_share_varies])
@pytest.mark.parametrize("scored", [7, 5])
def test_every_pair_of_peers_is_equally_likely_over_seeds_and_over_one_unknown_share(
    vary: object, scored: int
) -> None:
    """One share that nobody could foresee is as good as a seed that nobody knew."""
    who = [f"p{i}" for i in range(7)]
    candidates = who[:scored]
    drawn = Counter(vary(i, who).peers("p0", candidates, 2) for i in range(6000))  # type: ignore[operator]
    assert len(drawn) == math.comb(scored - 1, 2)
    assert stats.chisquare(list(drawn.values())).pvalue > 1e-4


def test_orders_of_two_participants_of_one_round_are_independent() -> None:
    who = [f"p{i}" for i in range(5)]
    both: Counter[tuple[str, str]] = Counter()
    for i in range(6000):
        draw = seeds_vary(i, who)
        both[draw.peers("p0", who, 1)[0], draw.peers("p1", who, 1)[0]] += 1
    assert len(both) == 16
    assert stats.chisquare(list(both.values())).pvalue > 1e-4


# One who knows the seed and holds puppets

HONEST = [f"honest-{i}" for i in range(5)]
ROUNDS, ROUND = 5, 3


def heads(who: Iterable[str]) -> dict[str, bytes]:
    return {name: draw_head(sha256(f"secret {name}"), ROUNDS) for name in who}


def received(who: Iterable[str]) -> dict[str, bytes]:
    return {name: draw_share(sha256(f"secret {name}"), ROUNDS, ROUND) for name in who}


def test_no_other_share_than_the_one_of_the_chain_is_taken_though_twenty_thousand_are_tried() -> None:
    head = heads(["puppet"])["puppet"]
    tried = (sha256(f"try {i}") for i in range(20_000))
    assert not any(share_fits(share, ROUND, head) for share in tried)
    assert share_fits(received(["puppet"])["puppet"], ROUND, head)


@pytest.mark.parametrize("puppets", [1, 2, 3])
def test_puppets_choose_among_two_to_the_power_of_their_number(puppets: int) -> None:
    mine = [f"puppet-{i}" for i in range(puppets)]
    honest = received(HONEST)
    keys = set()
    for size in range(puppets + 1):
        for sent in itertools.combinations(mine, size):
            keys.add(Draw(SECRET, {**honest, **received(sent)}).key)
    assert len(keys) == 2**puppets


def test_the_choice_of_a_puppet_is_worth_one_more_throw_of_the_dice() -> None:
    """It wants honest-0 to meet honest-1. One throw gives 1/4; the better of two, by independence, 7/16."""
    tasks, met = 4000, {"sent": 0, "withheld": 0, "either": 0}
    for task in range(tasks):
        honest = shares_of(HONEST, f"task {task}")
        with_it = {**honest, "puppet": sha256(f"puppet {task}")}
        sent, withheld = (
            Draw(SECRET, shares).peers("honest-0", HONEST, 1) == ("honest-1",) for shares in (with_it, honest)
        )
        met["sent"] += sent
        met["withheld"] += withheld
        met["either"] += sent or withheld
    for way, chance in (("sent", 1 / 4), ("withheld", 1 / 4), ("either", 7 / 16)):
        deviation = math.sqrt(chance * (1 - chance) / tasks)
        assert abs(met[way] / tasks - chance) < 5 * deviation, way
