"""Random peers that nobody can foresee or steer, and everybody can recheck.

The coordinator commits to a secret s before the task opens, by the head of a hash chain,

    c = SHA-256^T(s),

and reveals after round r = 1..T has closed the seed s_r = SHA-256^(T-r)(s); a verifier checks that
SHA-256(s_r) = s_(r-1), with s_0 = c. Every participant k does the same for the same T: a secret x_k, the head
x_(k,0) = SHA-256^T(x_k) in its effort claim, and the *draw share* x_(k,r) = SHA-256^(T-r)(x_k) in its model of
round r. A share may be checked alone: SHA-256^r(x_(k,r)) = x_(k,0), whatever rounds the participant has missed.

    shares of the round:   [[k, hex x_(k,r)], ...], canonical JSON, in participant-id order, of every model that was
                           received in time, scored or not
    draw key:              K_r = HMAC-SHA-256(s_r, shares of the round)
    order of participant k: those participants, shuffled by Fisher and Yates with the 64-bit words of
                           HMAC-SHA-256(K_r, label | k | counter), by rejection, so without modulo bias
    peers of k:            those that may be drawn and that it has met least often; of those it has met equally often,
                           the first in its order; as many as the terms say

k *has met* j once for every settled round of the task in which j was among the peers of k (`Meetings`). That says
nothing of how often j has met k: each is drawn for in its own order. Where nobody has met anybody, and under a rule
that draws anew each round, the peers are the first in the order.

*Uniform.* Let the same people be scored in every round, without copies. Then the peers of k are in every round as
likely to be these as any others: its orders are uniform and independent, and exchanging two names in all of them
exchanges the two in all its peers. Who was drawn before does tell who comes: of N - 1 others, K a round, all have been
met after ceil((N - 1) / K) rounds, and those left for the last of these are known before it. One who comes late,
or was not scored in some rounds, has been met less often, and is drawn until it has caught up: never beyond those who
were there, as nobody is drawn while a candidate has been met less often.

Seeds and heads stand before any share is seen, and a share is fixed by its head. So nothing that is chosen later
enters the key: not a model, not its digest, not an order of arrival. What is left is to send or not to send. One
who knows s and holds p participants chooses among at most 2^p keys, as long as one share is in the round that it
neither knew nor could leave out; every other is as good as random. A participant whose model is received and not
scored keeps its place in every order, so a spoilt model hands on the draws that would have met it and moves no other.
"""

import hashlib
import hmac
import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from struct import Struct

from mechanism.canonical import canonical_bytes
from mechanism.errors import FieldError, SettlementError

_LABEL = b"fedpeer peer draw v2"
_WORD = 2**64
_BLOCK = Struct(">4Q")

#: Whom one has met who has met nobody.
NOBODY: Mapping[str, int] = {}

#: Bytes of a secret, a seed, a share and the head of a chain.
DRAW_BYTES = 32


def seed_commitment(secret: bytes, rounds: int) -> bytes:
    """c, the head of the coordinator's chain, published in the terms."""
    return _iterate(_secret(secret), rounds)


def round_seed(secret: bytes, rounds: int, round_: int) -> bytes:
    """s_r, revealed when round `round_` (1..rounds) has closed."""
    return _link(secret, rounds, round_)


def check_round_seed(seed: bytes, previous: bytes) -> None:
    """Raises SettlementError unless `seed` is the chain's next value after `previous` (c for round 1)."""
    if hashlib.sha256(seed).digest() != previous:
        raise SettlementError(
            f"the revealed seed {seed.hex()} does not fit the commitment {previous.hex()}: "
            "SHA-256 of a round's seed must be the seed of the round before, or the terms' commitment"
        )


def draw_head(secret: bytes, rounds: int) -> bytes:
    """x_(k,0), the head of a participant's chain, in its claim.

    Args:
        secret: x_k, 32 random bytes of this participant for this task alone: shares that another task has revealed
            are known.
        rounds: T of the task's schedule.
    """
    return _iterate(_secret(secret), rounds)


def draw_share(secret: bytes, rounds: int, round_: int) -> bytes:
    """x_(k,r), in the model of round `round_` (1..rounds)."""
    return _link(secret, rounds, round_)


def share_fits(share: bytes, round_: int, head: bytes) -> bool:
    """Whether `share` is the one of round `round_` >= 1 of the chain with this head."""
    return len(share) == DRAW_BYTES and _iterate(share, round_) == head


class Meetings:
    """How often each participant of a task has met each other one as a peer, in the rounds that are settled.

    Not symmetric: that k was scored against j is a meeting of k with j, and none of j with k.
    """

    def __init__(self, draws: Iterable[tuple[str, Iterable[str]]] = ()) -> None:
        self._times: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.add(draws)

    def add(self, draws: Iterable[tuple[str, Iterable[str]]]) -> None:
        """Counts a settled round: (participant, its peers) of everyone."""
        for name, peers in draws:
            self._times[name].update(peers)

    def of(self, participant_id: str) -> Mapping[str, int]:
        """How often a participant has met whom; those it has not met are left out."""
        return self._times.get(participant_id, NOBODY)


@dataclass(frozen=True)
class Draw:
    """What decides a round's peers.

    Attributes:
        seed: s_r, 32 bytes; the caller has checked it against the commitment.
        shares: x_(k,r) by participant id, of every model received in time; checked against the heads of the claims.

    Raises:
        FieldError: a seed or share of another length.
    """

    seed: bytes
    shares: Mapping[str, bytes]

    def __post_init__(self) -> None:
        _secret(self.seed)
        for name, share in self.shares.items():
            if len(share) != DRAW_BYTES:
                raise FieldError(f"shares[{name}]", f"{len(share)} bytes", f"{DRAW_BYTES} bytes")

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(sorted(self.shares))

    @cached_property
    def record(self) -> bytes:
        """The shares of the round as they enter the key: canonical JSON."""
        return canonical_bytes([[name, self.shares[name].hex()] for name in self._names])

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of `record`."""
        return hashlib.sha256(self.record).digest()

    @cached_property
    def key(self) -> bytes:
        """K_r."""
        return hmac.digest(self.seed, self.record, "sha256")

    def peers(
        self,
        participant_id: str,
        candidates: Collection[str],
        count: int,
        met: Mapping[str, int] = NOBODY,
    ) -> tuple[str, ...]:
        """Distinct peers for one participant: the least met, uniform among those met equally often.

        Args:
            participant_id: for whom; never among the peers.
            candidates: who may be drawn, distinct names of those with a share.
            count: how many, >= 1. All candidates when there are no more.
            met: how often the participant has met others so far; those it has not are left out.

        Returns:
            the peers in id order; empty when there is no candidate.
        """
        others = len(candidates) - (participant_id in candidates)
        if others <= count:
            return tuple(sorted(name for name in candidates if name != participant_id))
        # How often those that are drawn were met, from those met alone: of many candidates few are.
        times = []
        if others - len(met) < count:
            times = sorted([n for name, n in met.items() if name in candidates and name != participant_id])
        unmet = others - len(times)
        least, most = (0 if place < unmet else times[place - unmet] for place in (0, count - 1))
        found = []
        if least < most:
            found = [n for n in candidates if n != participant_id and met.get(n, 0) < most]
        for name in self.order(participant_id):
            if name != participant_id and name in candidates and met.get(name, 0) == most:
                found.append(name)
                if len(found) == count:
                    break
        return tuple(sorted(found))

    def order(self, participant_id: str) -> Iterator[str]:
        """Everyone with a share, in the order in which one participant meets them; itself among them."""
        name = participant_id.encode()
        prefix = _LABEL + len(name).to_bytes(2, "big") + name
        names, step, left = self._names, 0, len(self._names)
        moved: dict[int, int] = {}  # places whose name is no longer the one that stood there
        for counter in itertools.count():
            block = hmac.digest(self.key, prefix + counter.to_bytes(8, "big"), "sha256")
            for word in _BLOCK.unpack(block):
                if not left:
                    return
                if word > _WORD - left and word - word % left > _WORD - left:  # past the last whole multiple
                    continue
                place = step + word % left
                chosen = moved.get(place, place)
                moved[place] = moved.get(step, step)
                step, left = step + 1, left - 1
                yield names[chosen]


def _link(secret: bytes, rounds: int, round_: int) -> bytes:
    if not 1 <= round_ <= rounds:
        raise FieldError("round", round_, f"1 to {rounds}")
    return _iterate(_secret(secret), rounds - round_)


def _iterate(value: bytes, times: int) -> bytes:
    for _ in range(times):
        value = hashlib.sha256(value).digest()
    return value


def _secret(secret: bytes) -> bytes:
    if len(secret) != DRAW_BYTES:
        raise FieldError("secret", f"{len(secret)} bytes", f"{DRAW_BYTES} random bytes")
    return secret
