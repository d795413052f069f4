import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpeer.protocol.certificates import new_key
from fedpeer.protocol.codec import (
    decode_opening,
    decode_signed,
    decode_verdict,
    encode_signed,
    encode_verdict,
)
from fedpeer.protocol.limits import MAX_STATEMENT_BYTES
from fedpeer.v1 import market_pb2
from mechanism.canonical import MAX_DEPTH
from mechanism.errors import FieldError
from mechanism.settlement import Verdict
from mechanism.statements import (
    ClaimOpening,
    ClaimStatement,
    ModelOpening,
    ModelStatement,
    sign_statement,
    signature_holds,
)

digests = st.binary(min_size=32, max_size=32)
identifiers = st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,20}[a-z0-9])?", fullmatch=True)

#: No value twice, so that none can stand in another's place.
CLAIM_OPENING = ClaimOpening(Decimal("0.25"), Fraction(3, 7), b"u" * 32)
MODEL_OPENING = ModelOpening(120, b"v" * 32)
CLAIM = ClaimStatement(
    submission_id="claim-1",
    task_id="task-7",
    terms_digest=b"t" * 32,
    participant_id="ann",
    commitment=CLAIM_OPENING.digest,
    counts_commitment=b"c" * 32,
    draw_head=b"h" * 32,
    nonce=b"n" * 16,
)
MODEL = ModelStatement(
    "m-1", "t", b"d" * 32, "p", 2, b"s" * 32, 1234, MODEL_OPENING.digest, b"x" * 32, b"n" * 16
)


def over_the_wire(message: market_pb2.Signed) -> market_pb2.Signed:
    return market_pb2.Signed.FromString(message.SerializeToString())


@given(identifiers, identifiers, st.integers(0, 10**6), st.fractions(0, 1), digests)
def test_a_claim_survives_the_wire_and_its_signature_covers_it(
    task: str, participant: str, effort: int, degree: Fraction, digest: bytes
) -> None:
    opening = ClaimOpening(Decimal(effort) / 10**6, degree, digest)
    claim = replace(
        CLAIM, task_id=task, terms_digest=digest, participant_id=participant, commitment=opening.digest
    )
    key = new_key()
    signature = sign_statement(claim, key)
    sent = over_the_wire(encode_signed(claim, signature, opening))
    assert decode_opening(ClaimOpening, claim, sent) == opening
    with pytest.raises(FieldError, match="the digest of the opening"):
        decode_opening(ClaimOpening, replace(claim, commitment=bytes(32)), sent)
    received = decode_signed(ClaimStatement, sent)
    assert received == claim
    assert received.canonical == sent.statement
    assert signature_holds(received, sent.signature, key.public_key())
    assert sign_statement(claim, key) == signature
    assert not signature_holds(replace(received, terms_digest=bytes(32)), signature, key.public_key()) or (
        digest == bytes(32)
    )
    assert not signature_holds(received, signature, new_key().public_key())


def test_a_model_statement_survives_the_wire() -> None:
    sent = over_the_wire(encode_signed(MODEL, b"sig", MODEL_OPENING))
    assert decode_signed(ModelStatement, sent) == MODEL
    assert decode_opening(ModelOpening, MODEL, sent) == MODEL_OPENING
    with pytest.raises(FieldError):
        decode_opening(ClaimOpening, MODEL, sent)
    assert sent.signature == b"sig"
    assert MODEL.digest != replace(MODEL, round=3).digest


def test_a_statement_is_written_under_its_names() -> None:
    message = encode_signed(CLAIM, b"sig", CLAIM_OPENING)
    assert json.loads(message.opening) == {"effort": "0.25", "degree": "3/7", "salt": "75" * 32}
    assert json.loads(message.statement) == {
        "kind": "claim",
        "submission_id": "claim-1",
        "task_id": "task-7",
        "terms": "74" * 32,
        "participant_id": "ann",
        "commitment": CLAIM_OPENING.digest.hex(),
        "counts_commitment": "63" * 32,
        "draw_head": "68" * 32,
        "nonce": "6e" * 16,
    }
    assert json.loads(MODEL.canonical) == {
        "kind": "model",
        "submission_id": "m-1",
        "task_id": "t",
        "terms": "64" * 32,
        "participant_id": "p",
        "round": 2,
        "model_sha256": "73" * 32,
        "model_bytes": 1234,
        "commitment": MODEL_OPENING.digest.hex(),
        "draw_share": "78" * 32,
        "nonce": "6e" * 16,
    }


def test_a_statement_has_so_many_bytes_and_no_more() -> None:
    message = market_pb2.Signed(statement=b" " * MAX_STATEMENT_BYTES)
    with pytest.raises(FieldError, match="canonical JSON"):
        decode_signed(ClaimStatement, message)
    message.statement += b" "
    with pytest.raises(FieldError, match=f"{MAX_STATEMENT_BYTES + 1} bytes.*at most {MAX_STATEMENT_BYTES}"):
        decode_signed(ClaimStatement, message)
    long = market_pb2.Signed(opening=b" " * (MAX_STATEMENT_BYTES + 1))
    with pytest.raises(FieldError, match=f"{MAX_STATEMENT_BYTES + 1} bytes.*at most {MAX_STATEMENT_BYTES}"):
        decode_opening(ClaimOpening, CLAIM, long)


#: Bytes that are not a statement, made of a claim's, and the field that is named.
SPOILED: tuple[tuple[Callable[[bytes], bytes], str], ...] = (
    (lambda data: b"", "statement"),
    (lambda data: data[:-1], "statement"),
    (lambda data: data + b"\n", "statement"),
    (lambda data: b"null", "statement"),
    (lambda data: data.replace(b'"claim"', b"1.5"), "kind"),
    (lambda data: data.replace(b"{", b'{"kind":"claim",', 1), "statement"),
    (lambda data: data.replace(b'"claim"', str(2**53).encode()), "kind"),
    (lambda data: data.replace(b'"claim"', b"9" * 5_000), "statement"),
    (lambda data: data.replace(b'"claim"', b"[" * 20_000), "statement"),
    (lambda data: data.replace(b'"claim"', b"[" * MAX_DEPTH + b"1" + b"]" * MAX_DEPTH), "kind"),
)


@pytest.mark.parametrize(("spoil", "field"), SPOILED)
def test_other_bytes_than_the_canonical_ones_are_refused(spoil: Any, field: str) -> None:
    message = market_pb2.Signed(statement=spoil(CLAIM.canonical))
    with pytest.raises(FieldError) as refused:
        decode_signed(ClaimStatement, message)
    assert refused.value.field.startswith(field)


def test_a_statement_of_one_kind_is_none_of_the_other() -> None:
    with pytest.raises(FieldError):
        decode_signed(ModelStatement, encode_signed(CLAIM, b"", CLAIM_OPENING))
    with pytest.raises(FieldError):
        decode_signed(ClaimStatement, encode_signed(MODEL, b"", MODEL_OPENING))


@pytest.mark.parametrize("passed", [True, False])
def test_a_verdict_comes_back(passed: bool) -> None:
    verdict = Verdict("echo", passed, "It is what it is.", {"distance": "0.5", "cosine": "0.1"})
    message = encode_verdict(verdict)
    assert (message.screen, message.passed, message.explanation) == ("echo", passed, "It is what it is.")
    assert dict(message.figures) == verdict.figures
    assert decode_verdict(message) == verdict
