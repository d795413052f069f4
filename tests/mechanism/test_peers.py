import hashlib
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mechanism.errors import FieldError, SettlementError
from mechanism.peers import (
    check_round_seed,
    draw_from,
    draw_peers,
    round_seed,
    seed_commitment,
    submissions_digest,
)

SECRET = bytes(range(32))
names = st.sets(st.from_regex(r"[a-z]{1,6}", fullmatch=True), min_size=1, max_size=12)
digests = st.binary(min_size=32, max_size=32)


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
def test_there_is_no_seed_outside_the_schedule(round_: int) -> None:
    with pytest.raises(FieldError):
        round_seed(SECRET, 3, round_)


@given(digests, digests, names, st.integers(1, 6))
def test_peers_are_distinct_candidates_and_never_oneself(
    seed: bytes, digest: bytes, candidates: set[str], count: int
) -> None:
    me = min(candidates)
    peers = draw_peers(seed, digest, me, sorted(candidates), count)
    assert len(set(peers)) == len(peers) == min(count, len(candidates) - 1)
    assert set(peers) <= candidates - {me}
    assert draw_peers(seed, digest, me, sorted(candidates, reverse=True), count) == peers


def test_the_draw_depends_on_seed_submissions_and_participant() -> None:
    everyone = [f"p{i}" for i in range(1000)]
    base = draw_peers(SECRET, bytes(32), "me", everyone, 5)
    assert base != draw_peers(bytes(32), bytes(32), "me", everyone, 5)
    assert base != draw_peers(SECRET, SECRET, "me", everyone, 5)
    assert base != draw_peers(SECRET, bytes(32), "you", everyone, 5)


def test_every_peer_is_equally_likely() -> None:
    everyone = [f"p{i}" for i in range(7)]
    drawn = Counter(
        draw_peers(hashlib.sha256(str(i).encode()).digest(), bytes(32), "p0", everyone, 2)
        for i in range(6000)
    )
    assert len(drawn) == 6 * 5
    assert stats.chisquare(list(drawn.values())).pvalue > 1e-4


def test_the_submissions_digest_ignores_order_and_sees_every_change() -> None:
    models = {"a": b"1" * 32, "b": b"2" * 32}
    assert submissions_digest(models) == submissions_digest(dict(reversed(models.items())))
    assert submissions_digest(models) != submissions_digest({"a": b"2" * 32, "b": b"1" * 32})
    assert submissions_digest(models) != submissions_digest({"a": b"1" * 32})


@given(
    st.sets(st.sampled_from("abcdefghij"), min_size=1), st.integers(1, 4), st.binary(min_size=32, max_size=32)
)
def test_a_shared_pool_gives_the_same_draws(names: set[str], count: int, seed: bytes) -> None:
    pool = sorted(names)
    for place, name in enumerate(pool):
        drawn = draw_from(seed, bytes(32), name, pool, place, count)
        assert drawn == draw_peers(seed, bytes(32), name, pool, count)
