"""Audits by re-training: what terms say of them, who is drawn, what an audit finds, and what makes tricks unprofitable.

A claim commits to the participant's samples (`mechanism.sample_tree`). Once a round is settled, each participant that
it paid is audited with probability q, drawn from the round's own draw key K_r (`mechanism.peers`): k is where the first
64 bits of

    HMAC-SHA-256(K_r, "fedpeer audit draw v1" | length of k in 2 bytes | k)

over 2^64 are below q. The auditor whom the terms name goes where the data are, has the samples opened, and trains on
them from the round's start by the recipe, with a seed of its own. What it finds is its signed statement, and the
weights, which the coordinator measures as it has measured the submission: v_r beside v. An audit *fails* where

    the participant lets the auditor see nothing, or other samples than it has committed to
    the samples have another degree than the claim
    the auditor does not accept where they come from, or how many are nearly the same, and says why
    v_r - v > L, the ceil((n + 1) (1 - rate))-th smallest of the same difference of n shadows

each of which is one training on samples of D_c and another by a second seed on the same. If participant and shadows are
exchangeable, an honest one exceeds L with probability at most `rate`; without so many shadows nobody does.

Who is drawn is paid what is not in question: all earlier rounds. The round's pay is held until the audit has passed.
Of every other round's pay a share h is held to the task's end. Who has failed, and has not appealed or has failed
again, loses at the end all that is held, and the stake.

*What it takes.* Let a trick gain g a round over the honest best response, which is paid P; let an audit find it with
probability pi, and accuse an honest participant with alpha, after appeal; T rounds, a stake S. With B = h P T + S a
trick in m rounds is found with probability 1 - (1 - q pi)^m (1 - q alpha)^(T - m), and loses besides the rest of each
audited round's pay. So it costs, beyond what honesty costs,

    D(m) = ((1 - q alpha)^T - (1 - q pi)^m (1 - q alpha)^(T - m)) B + m q (pi - alpha) (1 - h) P

D(0) = 0 and D is concave, so D(m) / m falls: where D(T) >= T g, no number of rounds pays. `deterrence` is D(T).

Source: Becker 1968, Crime and punishment: an economic approach.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import ceil

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec

from mechanism.errors import FieldError
from mechanism.ranges import whole
from mechanism.records import check_share

_LABEL = b"fedpeer audit draw v1"
_WORDS = 2**64

#: What becomes of a round's pay that nobody has audited in time.
UNAUDITED = ("paid", "refunded")

#: What an audit comes to, in its entry.
PASSED, FAILED = "passed", "failed"

#: Why an audit ends without a further statement: nobody came in time, appealed in time, or answered an appeal.
UNVISITED, UNAPPEALED, UNANSWERED = ENDS = "unvisited", "unappealed", "unanswered"

#: Characters of an auditor's remark and of an appeal's reason.
MAX_REMARK = 500

#: Steps of a probability that `least_probability` looks at.
_STEPS = 1000


@dataclass(frozen=True)
class Audit:
    """The section of the terms.

    Attributes:
        auditor: its public key, ECDSA on P-256, SubjectPublicKeyInfo in DER.
        probability: q in (0, 1].
        rate: of honest participants that a finished comparison of degrees accuses, at most, in (0, 1).
        held_back: h in [0, 1), of every round's pay, to the end of the task.
        seconds: for an audit, after its round is settled, and for the second one, after an appeal.
        appeal_seconds: for an appeal, after an audit that failed; 0: none is possible.
        unaudited: of `UNAUDITED`.
    """

    auditor: bytes
    probability: Fraction
    rate: Fraction
    held_back: Decimal
    seconds: int
    appeal_seconds: int
    unaudited: str = "paid"

    def __post_init__(self) -> None:
        auditor_key(self.auditor)
        if not 0 < self.probability <= 1:
            raise FieldError("audit.probability", self.probability, "a number above 0, at most 1")
        if not 0 < self.rate < 1:
            raise FieldError("audit.rate", self.rate, "a number between 0 and 1")
        check_share("audit.held_back", self.held_back)
        whole("audit.seconds", self.seconds, 1)
        whole("audit.appeal_seconds", self.appeal_seconds, 0)
        if self.unaudited not in UNAUDITED:
            raise FieldError("audit.unaudited", self.unaudited, "one of " + ", ".join(UNAUDITED))

    def draws(self, draw_key: bytes, participant_id: str) -> bool:
        """Whether a participant that a round has paid is audited for it."""
        name = participant_id.encode()
        found = hmac.digest(draw_key, _LABEL + len(name).to_bytes(2, "big") + name, "sha256")
        word = int.from_bytes(found[:8], "big")
        return word * self.probability.denominator < self.probability.numerator * _WORDS

    def held(self, paid_micro: int) -> int:
        """What of a payment is held to the end of the task, micro-credits, rounded down."""
        return int(Fraction(self.held_back) * paid_micro)

    @property
    def least_shadows(self) -> int:
        """With fewer no degree is ever held against anybody."""
        return ceil(1 / self.rate) - 1


def auditor_key(data: bytes, field: str = "audit.auditor") -> ec.EllipticCurvePublicKey:
    """The key that terms name in `field`. Raises FieldError where it is none on P-256."""
    # It brings a dozen modules, and most terms have no audits.
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

    try:
        key = load_der_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if (
        not isinstance(key, ec.EllipticCurvePublicKey)
        or not isinstance(key.curve, ec.SECP256R1)
        or key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) != data
    ):
        raise FieldError(field, data.hex()[:80], "a public key, ECDSA on P-256, in its one form of DER")
    return key


def conformal_limit(differences: Sequence[int], rate: Fraction) -> int | None:
    """L: what a further difference exceeds with probability at most `rate`; None: so few differences bound nothing."""
    place = ceil((len(differences) + 1) * (1 - rate))
    return sorted(differences)[place - 1] if place <= len(differences) else None


def deterrence(
    probability: float,
    power: float,
    rate: float,
    pay: float,
    held_back: float,
    stake: float,
    rounds: int,
) -> float:
    """D(T), credits: what a trick in all rounds is expected to lose beyond what honesty loses.

    Arguments are q, pi, alpha, P, h, S and T of the module's text.
    """
    found, accused = (1 - probability * power) ** rounds, (1 - probability * rate) ** rounds
    bond = held_back * pay * rounds + stake
    return (accused - found) * bond + rounds * probability * (power - rate) * (1 - held_back) * pay


def least_probability(
    gain: float, power: float, rate: float, pay: float, held_back: float, stake: float, rounds: int
) -> float | None:
    """The least q, in thousandths, at which a trick that gains so many credits a round does not pay; None: none is."""
    for step in range(1, _STEPS + 1):
        if deterrence(step / _STEPS, power, rate, pay, held_back, stake, rounds) >= rounds * gain:
            return step / _STEPS
    return None


def least_stake(
    gain: float, probability: float, power: float, rate: float, pay: float, held_back: float, rounds: int
) -> float:
    """The least S, credits, at which a trick that gains so many credits a round does not pay."""
    without = deterrence(probability, power, rate, pay, held_back, 0.0, rounds)
    of_one = deterrence(probability, power, rate, pay, held_back, 1.0, rounds) - without
    lacking = rounds * gain - without
    if lacking <= 0:
        return 0.0
    return lacking / of_one if of_one > 0 else float("inf")
