"""What a participant signs: its effort claim and its model, bound to a task by digest and nonce.

The signature is ECDSA over P-256 with SHA-256 (deterministic nonces, RFC 6979), by the key of the participant's
certificate, over the canonical JSON of the statement's record (`mechanism.records`). These bytes travel with the
signature, and the same record stands in the ledger beside it, so that an outsider checks it with the public key of
the enrolment entry.

What a statement says of a participant's data is not in it: it commits to that by the salted SHA-256 of an *opening*
(`ClaimOpening`, `ModelOpening`), which goes to the coordinator beside the statement and is not published.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import ClassVar, TypeAlias

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from mechanism.audit import MAX_REMARK
from mechanism.canonical import Json, canonical_digest
from mechanism.errors import FieldError
from mechanism.peers import DRAW_BYTES
from mechanism.ranges import sha256, whole
from mechanism.records import Recorded
from mechanism.terms import identifier

#: Places after the point of an effort coefficient.
EFFORT_PLACES = 6

#: What no remark has.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_MILLION = 10**6

#: The most that an auditor's statement may call a difference of another processor, millionths: well above what two
#: processors have shown, and about a degree's own error. Beyond it "confirmed" would say nothing.
MAX_TOLERANCE_MICRO = 50_000

#: Bytes of a nonce; enough that it never repeats.
NONCE_BYTES = 16

#: Random bytes of a salt: enough that what it hides cannot be guessed.
SALT_BYTES = 32


@dataclass(frozen=True)
class ClaimStatement(Recorded):
    """An effort claim.

    Attributes:
        submission_id: chosen by the participant, once for ever.
        task_id, terms_digest: what is agreed to.
        participant_id: the one that claims.
        commitment: digest of its `ClaimOpening`, 32 bytes.
        counts_commitment: of the counts after the effort (`commit_counts`), 32 bytes; a dispute opens it.
        draw_head: head of the chain of the participant's draw shares (`mechanism.peers`), 32 bytes.
        nonce: from the coordinator.
        samples_root: commitment to the samples (`mechanism.sample_tree`), 32 bytes; empty where the terms have no
            audits.
    """

    what: ClassVar[str] = "statement"
    kind: ClassVar[str] = "claim"
    submission_id: str
    task_id: str
    terms_digest: bytes = field(metadata={"key": "terms"})
    participant_id: str
    commitment: bytes
    counts_commitment: bytes
    draw_head: bytes
    nonce: bytes
    samples_root: bytes = field(default=b"", metadata={"optional": True})

    def __post_init__(self) -> None:
        _header(self)
        sha256("commitment", self.commitment)
        sha256("counts_commitment", self.counts_commitment)
        _drawn("draw_head", self.draw_head)
        _perhaps("samples_root", self.samples_root)


@dataclass(frozen=True)
class ClaimOpening(Recorded):
    """What a claim commits to.

    Attributes:
        effort: coefficient in [0, 1], at most six places.
        degree: claimed non-iid degree after the effort, in [0, 1].
        salt: 32 random bytes.
    """

    what: ClassVar[str] = "opening"
    effort: Decimal
    degree: Fraction
    salt: bytes

    def __post_init__(self) -> None:
        if not self.effort.is_finite() or not 0 <= self.effort <= 1:
            raise FieldError("effort", self.effort, "a decimal in [0, 1]")
        if int(self.effort.as_tuple().exponent) < -EFFORT_PLACES:
            raise FieldError("effort", self.effort, f"at most {EFFORT_PLACES} decimal places")
        _degree(self.degree)
        check_salt(self.salt)


@dataclass(frozen=True)
class AuditStatement(Recorded):
    """What an auditor has found where a participant's samples are.

    Attributes:
        task_id, terms_digest, participant_id, round: whose submission is audited.
        number: 1, or 2 after an appeal.
        start_sha256: of the model that the round began from.
        samples_root: that the opened samples give with their salt, 32 bytes; empty where none were opened.
        samples: how many were opened; distinct: what is the same or nearly the same counted once; near: of different
            content, and nearly the same as another.
        degree: of the opened samples' counts, in [0, 1].
        accepted: whether the auditor accepts where they come from and how many are nearly the same.
        remark: why not, or anything else; not longer than `mechanism.audit.MAX_REMARK`.
        model_sha256: of the file with the re-trained weights, 32 bytes; empty where nothing was trained.
    """

    what: ClassVar[str] = "statement"
    kind: ClassVar[str] = "audit"
    task_id: str
    terms_digest: bytes = field(metadata={"key": "terms"})
    participant_id: str
    round: int
    number: int
    start_sha256: bytes
    samples_root: bytes
    samples: int
    distinct: int
    near: int
    degree: Fraction
    accepted: bool
    remark: str
    model_sha256: bytes

    def __post_init__(self) -> None:
        identifier("task_id", self.task_id)
        identifier("participant_id", self.participant_id)
        sha256("terms", self.terms_digest)
        sha256("start_sha256", self.start_sha256)
        _perhaps("samples_root", self.samples_root)
        _perhaps("model_sha256", self.model_sha256)
        whole("round", self.round, 1)
        whole("number", self.number, 1, 2)
        whole("samples", self.samples, 0)
        whole("distinct", self.distinct, 0, self.samples)
        whole("near", self.near, 0, self.samples)
        _degree(self.degree)
        if bool(self.samples) != bool(self.samples_root):
            raise FieldError("samples", self.samples, "some with a root, and none without")
        if self.model_sha256 and not self.samples:
            raise FieldError("model_sha256", self.model_sha256.hex(), "none where no samples were opened")
        _remark("remark", self.remark)
        if not self.accepted and not self.remark.strip():
            raise FieldError("remark", self.remark, "why the samples are not accepted")


#: What measuring a task again comes to.
CONFIRMED, DEVIATES = "confirmed", "deviates"


@dataclass(frozen=True)
class RemeasurementStatement(Recorded):
    """What an auditor has found who has D_c, the models and the secret root of an ended task, and has measured all of
    its settled rounds again: shadows trained, features, degrees and tests computed, next models merged.

    Attributes:
        task_id, terms_digest: of the task.
        number: of its statements, from 1 on.
        measured: what was measured again, 32 bytes: the digest of the entries of its evidence (`measured_after`).
        rounds, submissions: how many settled rounds and models in time that are.
        identical: rounds whose evidence came out the same, bit for bit.
        merged: rounds whose next model came out the same, bit for bit.
        degree_micro, weight_micro, multiplier_micro: the largest differences of verified degree, weight and multiplier
            over all submissions, millionths.
        turned: submissions of which a test came out otherwise, or whether the claim is refuted, or the cluster.
        tolerance_micro: up to which differences are those of another processor, millionths; `MAX_TOLERANCE_MICRO` at
            most.
        computed_on: the processor and the libraries (`fedpeer.learning.arithmetic`).
        remark: anything else.
    """

    what: ClassVar[str] = "statement"
    kind: ClassVar[str] = "remeasurement"
    task_id: str
    terms_digest: bytes = field(metadata={"key": "terms"})
    number: int
    measured: bytes
    rounds: int
    submissions: int
    identical: int
    merged: int
    degree_micro: int
    weight_micro: int
    multiplier_micro: int
    turned: int
    tolerance_micro: int
    computed_on: str
    remark: str = ""

    def __post_init__(self) -> None:
        identifier("task_id", self.task_id)
        sha256("terms", self.terms_digest)
        sha256("measured", self.measured)
        whole("number", self.number, 1)
        whole("rounds", self.rounds, 1)
        whole("submissions", self.submissions, 0)
        whole("identical", self.identical, 0, self.rounds)
        whole("merged", self.merged, 0, self.rounds)
        for name in ("degree_micro", "weight_micro", "multiplier_micro"):
            whole(name, getattr(self, name), 0, _MILLION)
        whole("tolerance_micro", self.tolerance_micro, 0, MAX_TOLERANCE_MICRO)
        whole("turned", self.turned, 0, self.submissions)
        if self.identical == self.rounds and (self.largest_micro or self.turned):
            raise FieldError("identical", self.identical, "fewer rounds, since something came out otherwise")
        _remark("computed_on", self.computed_on)
        _remark("remark", self.remark)

    @property
    def largest_micro(self) -> int:
        """The largest difference of all."""
        return max(self.degree_micro, self.weight_micro, self.multiplier_micro)

    @property
    def outcome(self) -> str:
        """ "confirmed": within the tolerance, no test turned, every next model the same; else "deviates"."""
        holds = self.largest_micro <= self.tolerance_micro and not self.turned and self.merged == self.rounds
        return CONFIRMED if holds else DEVIATES

    @property
    def words(self) -> str:
        """The outcome with what it rests on."""
        return (
            f"{self.outcome}; of {self.rounds} rounds {self.identical} the same bit for bit, {self.merged} next models "
            f"the same, at most {self.largest_micro / _MILLION:.6f} apart with a tolerance of "
            f"{self.tolerance_micro / _MILLION:.6f}, {self.turned} of {self.submissions} submissions with a test turned"
        )


def measured_after(measured: bytes, leaf: bytes) -> bytes:
    """The digest of what was measured of a task, after one more entry: SHA-256 of the one before, at first 32 zero
    bytes, and the entry's leaf hash. It is over the evidence, verdict and aggregation entries, in order."""
    return hashlib.sha256(measured + leaf).digest()


@dataclass(frozen=True)
class ModelStatement(Recorded):
    """A model for one round, committed to by its digest before it is sent.

    Attributes:
        model_sha256, model_bytes: of the whole safetensors file.
        commitment: digest of its `ModelOpening`, 32 bytes.
        draw_share: the round's value of the chain that the claim commits to, 32 bytes.
    """

    what: ClassVar[str] = "statement"
    kind: ClassVar[str] = "model"
    submission_id: str
    task_id: str
    terms_digest: bytes = field(metadata={"key": "terms"})
    participant_id: str
    round: int
    model_sha256: bytes
    model_bytes: int
    commitment: bytes
    draw_share: bytes
    nonce: bytes

    def __post_init__(self) -> None:
        _header(self)
        if self.round < 1:
            raise FieldError("round", self.round, "a round of at least 1")
        sha256("model_sha256", self.model_sha256)
        if self.model_bytes < 1:
            raise FieldError("model_bytes", self.model_bytes, "at least 1")
        sha256("commitment", self.commitment)
        _drawn("draw_share", self.draw_share)


@dataclass(frozen=True)
class ModelOpening(Recorded):
    """What a model's statement commits to.

    Attributes:
        samples: how many the model was trained on, >= 1.
        salt: 32 random bytes.
    """

    what: ClassVar[str] = "opening"
    samples: int
    salt: bytes

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise FieldError("samples", self.samples, "at least 1")
        check_salt(self.salt)


#: What a participant signs, and what goes with it.
Statement: TypeAlias = ClaimStatement | ModelStatement
StatementOpening: TypeAlias = ClaimOpening | ModelOpening


def check_opened(statement: Statement, opening: StatementOpening) -> None:
    """Raises FieldError for an opening that is not the one that the statement commits to."""
    if opening.digest != statement.commitment:
        raise FieldError(
            "commitment",
            statement.commitment.hex(),
            f"{opening.digest.hex()}, the digest of the opening that came with the {statement.kind}",
        )


#: What anybody signs.
Signed: TypeAlias = Statement | AuditStatement | RemeasurementStatement


def sign_statement(statement: Signed, key: ec.EllipticCurvePrivateKey) -> bytes:
    """The DER signature of the statement's canonical bytes."""
    algorithm = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
    return key.sign(statement.canonical, algorithm)


def signature_holds(statement: Signed, signature: bytes, key: ec.EllipticCurvePublicKey) -> bool:
    """Whether `signature` is of this statement by the holder of `key`."""
    try:
        key.verify(signature, statement.canonical, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def commit_counts(counts: Sequence[int], salt: bytes) -> bytes:
    """Commitment to counts: SHA-256 of their canonical record with a salt of 32 random bytes."""
    return canonical_digest(counts_opening(counts, salt))


def counts_opening(counts: Sequence[int], salt: bytes) -> dict[str, Json]:
    """What `commit_counts` commits to."""
    return {"counts": [int(c) for c in counts], "salt": check_salt(salt).hex()}


def check_salt(salt: bytes) -> bytes:
    """The salt; FieldError where it has another length."""
    if len(salt) != SALT_BYTES:
        raise FieldError("salt", f"{len(salt)} bytes", f"{SALT_BYTES} random bytes")
    return salt


def _perhaps(name: str, value: bytes) -> None:
    if len(value) not in (0, 32):
        raise FieldError(name, value.hex(), "32 bytes, or none")


def _degree(value: Fraction) -> None:
    if not 0 <= value <= 1:
        raise FieldError("degree", value, "a rational in [0, 1]")


def _remark(name: str, text: str) -> None:
    if len(text) > MAX_REMARK or _CONTROL.search(text):
        raise FieldError(name, text[:60], f"at most {MAX_REMARK} characters, none of control")


def _drawn(name: str, value: bytes) -> None:
    if len(value) != DRAW_BYTES:
        raise FieldError(name, value.hex(), f"{DRAW_BYTES} bytes of a chain of draw shares")


def _header(statement: ClaimStatement | ModelStatement) -> None:
    identifier("submission_id", statement.submission_id)
    identifier("task_id", statement.task_id)
    identifier("participant_id", statement.participant_id)
    sha256("terms", statement.terms_digest)
    if len(statement.nonce) != NONCE_BYTES:
        raise FieldError("nonce", statement.nonce.hex(), f"{NONCE_BYTES} bytes from the coordinator")
