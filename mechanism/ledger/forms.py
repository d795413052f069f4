"""Models and verdicts by their form: the two entries that every participant of every round has.

Reading such an entry, making what it says, encoding that again and comparing is most of what verification would do.
Here its canonical bytes are matched, or written, whole. Each form is taken from an entry that `entries` makes, with
its values left open, so what an entry looks like is said there alone. An entry that has not the usual form goes the
general way, which also finds the words for what is wrong with it.
"""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

from mechanism.canonical import canonical_bytes
from mechanism.ledger import entries
from mechanism.ledger.entry import MAX_ENTRY_BYTES, Entry
from mechanism.settlement import Assessment
from mechanism.statements import NONCE_BYTES, ModelStatement
from mechanism.terms import IDENTIFIER

_DIGEST = "[0-9a-f]{64}"

#: An integer above 0 of at most 15 digits, so below 2^53.
_POSITIVE = "[1-9][0-9]{0,14}"

#: Values that stand for any in the samples below; none is a part of another, or of anything else there.
_TASK, _PARTICIPANT, _SUBMISSION, _DEGREE = "anytask", "whoever", "somesubmission", Fraction(123, 457)
_TERMS, _MODEL, _NONCE, _SIGNATURE, _KEYS = (
    bytes([17] * 32),
    bytes([34] * 32),
    bytes([51] * NONCE_BYTES),
    bytes([68] * 8),
    bytes([85] * 32),
)
_ROUND, _BYTES, _SAMPLES, _VERIFIED = 70_001, 80_002, 90_003, 60_004


class ModelForm(NamedTuple):
    """What a model's entry says; digests, nonce and signature in hexadecimal, integers as they are written."""

    keys: str
    signature: str
    statement: str
    model_bytes: str
    model_sha256: str
    nonce: str
    participant_id: str
    round: str
    samples: str
    submission_id: str
    task_id: str
    terms: str
    id: str


def model_form(data: bytes) -> ModelForm | None:
    """What `data` says where they are the canonical bytes of a model's entry that is in time; else None.

    Every field is then in its range, as `ModelStatement` has it.
    """
    if not data.endswith(_MODEL_END) or not data.isascii() or len(data) > MAX_ENTRY_BYTES:
        return None
    found = _MODEL_PATTERN.fullmatch(data.decode())
    if found is None or len(found["signature"]) % 2:
        return None
    return ModelForm._make(found.groups())


def plain_verdict(task_id: str, round_: int, assessment: Assessment, claimed: str) -> bytes:
    """The canonical bytes of a verdict without evidence: that a model counts at the degree claimed.

    Args:
        assessment: with a verified degree and every other field at its default.
        claimed: its claimed degree as text.
    """
    name, model, verified = (
        assessment.participant_id,
        assessment.model_sha256.hex(),
        str(assessment.verified_micro),
    )
    form = _PLAIN_VERDICT
    return (
        f"{form[0]}{claimed}{form[1]}{model}{form[2]}{name}{form[3]}{verified}"
        f"{form[4]}{round_}{form[5]}{task_id}{form[6]}{task_id}{form[7]}{round_}{form[8]}{name}{form[9]}"
    ).encode()


def _end(kind: str) -> bytes:
    """How the canonical bytes of every entry of a kind without transfers end."""
    return Entry("id", kind, {}).data.rpartition(b'"id":"id",')[2]


def _model_pattern() -> re.Pattern[str]:
    """Groups in the order of `ModelForm`; what occurs again in the id refers back to them."""
    statement = ModelStatement(
        _SUBMISSION, _TASK, _TERMS, _PARTICIPANT, _ROUND, _MODEL, _BYTES, _SAMPLES, _NONCE
    )
    entry = entries.model(statement, _SIGNATURE, keys=_KEYS)
    pattern = re.escape(entry.data.decode())
    for whole, name in ((canonical_bytes(statement.record()).decode(), "statement"), (entry.id, "id")):
        pattern = pattern.replace(re.escape(whole), f"(?P<{name}>{re.escape(whole)})")
    values: Mapping[str, tuple[object, str]] = {
        "keys": (_KEYS.hex(), _DIGEST),
        "signature": (_SIGNATURE.hex(), "[0-9a-f]*"),
        "model_bytes": (_BYTES, _POSITIVE),
        "model_sha256": (_MODEL.hex(), _DIGEST),
        "nonce": (_NONCE.hex(), f"[0-9a-f]{{{2 * NONCE_BYTES}}}"),
        "participant_id": (_PARTICIPANT, IDENTIFIER.pattern),
        "round": (_ROUND, _POSITIVE),
        "samples": (_SAMPLES, _POSITIVE),
        "submission_id": (_SUBMISSION, IDENTIFIER.pattern),
        "task_id": (_TASK, IDENTIFIER.pattern),
        "terms": (_TERMS.hex(), _DIGEST),
    }
    for name, (value, form) in values.items():
        pattern = pattern.replace(str(value), f"(?P<{name}>{form})", 1).replace(str(value), f"(?P={name})")
    compiled = re.compile(pattern)
    if tuple(compiled.groupindex) != ModelForm._fields:
        raise AssertionError(f"a model's entry has the fields {tuple(compiled.groupindex)}")
    return compiled


def _plain_verdict() -> list[str]:
    """What stands before, between and after the values of a plain verdict, in the order in which they are written."""
    assessment = Assessment(_PARTICIPANT, _MODEL, _DEGREE, _VERIFIED)
    data = entries.verdict(_TASK, _ROUND, assessment).data.decode()
    values = (_DEGREE, _MODEL.hex(), _PARTICIPANT, _VERIFIED, _ROUND, _TASK, _TASK, _ROUND, _PARTICIPANT)
    pieces = []
    for value in values:
        piece, found, data = data.partition(str(value))
        if not found:
            raise AssertionError(f"a verdict has no {value} where it is expected")
        pieces.append(piece)
    return [*pieces, data]


_MODEL_PATTERN = _model_pattern()
_MODEL_END = _end("model")
_PLAIN_VERDICT = _plain_verdict()

#: How every verdict ends.
VERDICT_END = _end("verdict")
