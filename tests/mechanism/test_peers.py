import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mechanism.errors import FieldError, SettlementError
from mechanism.peers import (
    Draw,
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


@given(digests, names, st.data())
def test_who_is_not_scored_hands_on_its_draws_and_moves_no_others(
    seed: bytes, who: set[str], data: st.DataObject
) -> None:
    draw = Draw(seed, shares_of(who))
    spoilt = data.draw(st.sets(st.sampled_from(sorted(who))))
    for name in who - spoilt:
        whole = draw.peers(name, who, len(who))
        left = draw.peers(name, who - spoilt, len(who))
        assert left == tuple(peer for peer in whole if peer not in spoilt)


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
    assert len(drawn) == (scored - 1) * (scored - 2)
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
