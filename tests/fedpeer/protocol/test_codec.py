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
from fedpeer.protocol.codec import decode_signed, decode_verdict, encode_signed, encode_verdict
from fedpeer.protocol.limits import MAX_STATEMENT_BYTES
from fedpeer.v1 import market_pb2
from mechanism.canonical import MAX_DEPTH
from mechanism.errors import FieldError
from mechanism.settlement import Verdict
from mechanism.statements import ClaimStatement, ModelStatement, sign_statement, signature_holds

digests = st.binary(min_size=32, max_size=32)
identifiers = st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,20}[a-z0-9])?", fullmatch=True)

#: No value twice, so that none can stand in another's place.
CLAIM = ClaimStatement(
    submission_id="claim-1",
    task_id="task-7",
    terms_digest=b"t" * 32,
    participant_id="ann",
    effort=Decimal("0.25"),
    degree=Fraction(3, 7),
    counts=(1, 2, 4),
    counts_commitment=b"",
    draw_head=b"h" * 32,
    nonce=b"n" * 16,
)
MODEL = ModelStatement("m-1", "t", b"d" * 32, "p", 2, b"s" * 32, 1234, 120, b"x" * 32, b"n" * 16)


def over_the_wire(message: market_pb2.Signed) -> market_pb2.Signed:
    return market_pb2.Signed.FromString(message.SerializeToString())


@given(
    identifiers,
    identifiers,
    st.integers(0, 10**6),
    st.lists(st.integers(0, 900), min_size=2).filter(any),
    digests,
)
def test_a_claim_survives_the_wire_and_its_signature_covers_it(
    task: str, participant: str, effort: int, counts: list[int], digest: bytes
) -> None:
    claim = replace(
        CLAIM,
        task_id=task,
        terms_digest=digest,
        participant_id=participant,
        effort=Decimal(effort) / 10**6,
        counts=tuple(counts),
    )
    key = new_key()
    signature = sign_statement(claim, key)
    sent = over_the_wire(encode_signed(claim, signature))
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
    sent = over_the_wire(encode_signed(MODEL, b"sig"))
    assert decode_signed(ModelStatement, sent) == MODEL
    assert sent.signature == b"sig"
    assert MODEL.digest != replace(MODEL, round=3).digest


def test_a_statement_is_written_under_its_names() -> None:
    assert json.loads(encode_signed(CLAIM, b"sig").statement) == {
        "kind": "claim",
        "submission_id": "claim-1",
        "task_id": "task-7",
        "terms": "74" * 32,
        "participant_id": "ann",
        "effort": "0.25",
        "degree": "3/7",
        "counts": [1, 2, 4],
        "counts_commitment": "",
        "draw_head": "68" * 32,
        "nonce": "6e" * 16,
    }
    private = replace(CLAIM, counts=None, counts_commitment=b"c" * 32)
    written = json.loads(private.canonical)
    assert (written["counts"], written["counts_commitment"]) == (None, "63" * 32)
    assert decode_signed(ClaimStatement, encode_signed(private, b"")) == private
    assert json.loads(MODEL.canonical) == {
        "kind": "model",
        "submission_id": "m-1",
        "task_id": "t",
        "terms": "64" * 32,
        "participant_id": "p",
        "round": 2,
        "model_sha256": "73" * 32,
        "model_bytes": 1234,
        "samples": 120,
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


#: Bytes that are not a statement, made of a claim's, and the field that is named.
SPOILED: tuple[tuple[Callable[[bytes], bytes], str], ...] = (
    (lambda data: b"", "statement"),
    (lambda data: data[:-1], "statement"),
    (lambda data: data + b"\n", "statement"),
    (lambda data: b"null", "statement"),
    (lambda data: data.replace(b"[1,", b"[1.5,"), "counts[0]"),
    (lambda data: data.replace(b"{", b'{"kind":"claim",', 1), "statement"),
    (lambda data: data.replace(b"[1,", b"[" + str(2**53).encode() + b","), "counts[0]"),
    (lambda data: data.replace(b"[1,", b"[" + b"9" * 5_000 + b","), "statement"),
    (lambda data: data.replace(b"[1,", b"[" * 20_000), "statement"),
    (lambda data: data.replace(b"[1,", b"[" + b"[" * MAX_DEPTH + b"1" + b"]" * MAX_DEPTH + b","), "counts"),
)


@pytest.mark.parametrize(("spoil", "field"), SPOILED)
def test_other_bytes_than_the_canonical_ones_are_refused(spoil: Any, field: str) -> None:
    message = market_pb2.Signed(statement=spoil(CLAIM.canonical))
    with pytest.raises(FieldError) as refused:
        decode_signed(ClaimStatement, message)
    assert refused.value.field.startswith(field)


def test_a_statement_of_one_kind_is_none_of_the_other() -> None:
    with pytest.raises(FieldError):
        decode_signed(ModelStatement, encode_signed(CLAIM, b""))
    with pytest.raises(FieldError):
        decode_signed(ClaimStatement, encode_signed(MODEL, b""))


@pytest.mark.parametrize("passed", [True, False])
def test_a_verdict_comes_back(passed: bool) -> None:
    verdict = Verdict("echo", passed, "It is what it is.", {"distance": "0.5", "cosine": "0.1"})
    message = encode_verdict(verdict)
    assert (message.screen, message.passed, message.explanation) == ("echo", passed, "It is what it is.")
    assert dict(message.figures) == verdict.figures
    assert decode_verdict(message) == verdict
