"""Random peers that nobody can foresee and everybody can recheck.

The coordinator commits to a secret s before the task opens, by the head of a hash chain,

    c = SHA-256^T(s),

and reveals after round r = 1..T has closed the seed s_r = SHA-256^(T-r)(s); a verifier checks that
SHA-256(s_r) = s_(r-1), with s_0 = c. So a seed is fixed before any model is seen, and a revealed one says
nothing about the next. Peers of participant k in round r are drawn from the stream

    HMAC-SHA-256(s_r, label | D | k | counter),   D = SHA-256 of all submissions of the round,

by rejection, so without modulo bias: since D is in it, the coordinator cannot steer the draw by its choice of
s, nor a participant by its choice of model without knowing s_r.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from mechanism.canonical import canonical_digest
from mechanism.errors import FieldError, SettlementError

_LABEL = b"fedpeer peer draw v1"
_WORD = 2**64

#: SHA-256's block, to which HMAC pads a key.
_BLOCK_BYTES = 64


def seed_commitment(secret: bytes, rounds: int) -> bytes:
    """c, the head of the chain, published in the terms."""
    return _iterate(_secret(secret), rounds)


def round_seed(secret: bytes, rounds: int, round_: int) -> bytes:
    """s_r, revealed when round `round_` (1..rounds) has closed."""
    if not 1 <= round_ <= rounds:
        raise FieldError("round", round_, f"1 to {rounds}")
    return _iterate(_secret(secret), rounds - round_)


def check_round_seed(seed: bytes, previous: bytes) -> None:
    """Raises SettlementError unless `seed` is the chain's next value after `previous` (c for round 1)."""
    if hashlib.sha256(seed).digest() != previous:
        raise SettlementError(
            f"the revealed seed {seed.hex()} does not fit the commitment {previous.hex()}: "
            "SHA-256 of a round's seed must be the seed of the round before, or the terms' commitment"
        )


def submissions_digest(models: Mapping[str, bytes]) -> bytes:
    """D: digest of a round's submissions, participant id to SHA-256 of its model; order does not matter."""
    return canonical_digest([[name, models[name].hex()] for name in sorted(models)])


def draw_peers(
    seed: bytes, digest: bytes, participant_id: str, candidates: Sequence[str], count: int
) -> tuple[str, ...]:
    """Distinct peers for one participant, uniform over subsets of the candidates.

    Args:
        seed: s_r, 32 bytes.
        digest: D, 32 bytes.
        participant_id: for whom; never among the peers.
        candidates: who may be drawn; order does not matter.
        count: how many, >= 1. All candidates when there are no more.

    Returns:
        the peers in the order drawn; empty when there is no candidate.
    """
    pool = sorted(set(candidates) - {participant_id})
    return draw_from(seed, digest, participant_id, pool, None, count)


def draw_from(
    seed: bytes, digest: bytes, participant_id: str, pool: Sequence[str], place: int | None, count: int
) -> tuple[str, ...]:
    """`draw_peers` from a pool in id order without repetition, which many draws of a round may share.

    Args:
        place: where the participant itself stands in the pool; None where it does not.
    """
    words = _words(seed, digest, participant_id)
    others = len(pool) - (place is not None)
    if count == 1 and others:
        index = _below(words, others)
        return (pool[index + (place is not None and index >= place)],)
    left = [name for name in pool if name != participant_id]
    return tuple(left.pop(_below(words, len(left))) for _ in range(min(count, others)))


def _words(seed: bytes, digest: bytes, participant_id: str) -> Iterator[int]:
    name = participant_id.encode()
    prefix = _LABEL + digest + len(name).to_bytes(2, "big") + name
    counter = 0
    while True:
        block = _mac(seed, prefix + counter.to_bytes(8, "big"))
        for start in range(0, 32, 8):
            yield int.from_bytes(block[start : start + 8], "big")
        counter += 1


def _mac(seed: bytes, message: bytes) -> bytes:
    """HMAC-SHA-256 (RFC 2104), with what depends on the key alone hashed once a round: a third of hmac's time."""
    inner, outer = _keyed(seed)
    inner, outer = inner.copy(), outer.copy()
    inner.update(message)
    outer.update(inner.digest())
    return outer.digest()


@lru_cache(maxsize=16)
def _keyed(seed: bytes) -> tuple["hashlib._Hash", "hashlib._Hash"]:
    key = _secret(seed).ljust(_BLOCK_BYTES, b"\0")
    inner, outer = (hashlib.sha256(bytes(byte ^ pad for byte in key)) for pad in (0x36, 0x5C))
    return inner, outer


def _below(words: Iterator[int], bound: int) -> int:
    """A uniform integer in [0, bound): words past the last whole multiple of the bound are thrown away."""
    limit = _WORD - _WORD % bound
    word = next(words)
    while word >= limit:
        word = next(words)
    return word % bound


def _iterate(value: bytes, times: int) -> bytes:
    for _ in range(times):
        value = hashlib.sha256(value).digest()
    return value


def _secret(secret: bytes) -> bytes:
    if len(secret) != 32:
        raise FieldError("secret", f"{len(secret)} bytes", "32 random bytes")
    return secret
