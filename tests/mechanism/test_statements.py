from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest

from mechanism.errors import FieldError
from mechanism.statements import ClaimStatement, ModelStatement, commit_counts

CLAIM = ClaimStatement(
    submission_id="c-1",
    task_id="t",
    terms_digest=bytes(32),
    participant_id="p",
    effort=Decimal("0.5"),
    degree=Fraction(1, 2),
    counts=(1, 3),
    counts_commitment=b"",
    draw_head=bytes(32),
    nonce=bytes(16),
)
MODEL = ModelStatement("m-1", "t", bytes(32), "p", 1, bytes(32), 100, 10, bytes(32), bytes(16))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("task_id", "A task"),
        ("effort", Decimal("1.01")),
        ("effort", Decimal("-0.1")),
        ("effort", Decimal("NaN")),
        ("effort", Decimal("0.1234567")),
        ("degree", Fraction(3, 2)),
        ("degree", Fraction(-1, 2)),
        ("counts", None),
        ("counts_commitment", bytes(32)),
        ("counts_commitment", bytes(5)),
        ("draw_head", b""),
        ("draw_head", bytes(31)),
        ("nonce", b""),
        ("terms_digest", b"x"),
        ("participant_id", "../p"),
        ("submission_id", ""),
    ],
)
def test_a_claim_out_of_range_is_refused(field: str, value: object) -> None:
    with pytest.raises(FieldError) as refused:
        replace(CLAIM, **{field: value})  # type: ignore[arg-type]
    named = {"counts_commitment": "counts", "terms_digest": "terms"}  # as they stand in the record
    assert refused.value.field == named.get(field, field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("effort", Decimal(0)),
        ("effort", Decimal(1)),
        ("effort", Decimal("0.123456")),
        ("degree", Fraction(0)),
        ("degree", Fraction(1)),
    ],
)
def test_a_claim_at_the_end_of_its_range_is_taken(field: str, value: object) -> None:
    assert getattr(replace(CLAIM, **{field: value}), field) == value  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("task_id", "A task"),
        ("participant_id", "../p"),
        ("submission_id", ""),
        ("terms_digest", bytes(31)),
        ("round", 0),
        ("model_sha256", b"x"),
        ("model_bytes", 0),
        ("samples", 0),
        ("draw_share", b""),
        ("draw_share", bytes(33)),
        ("nonce", bytes(15)),
    ],
)
def test_a_model_statement_out_of_range_is_refused(field: str, value: object) -> None:
    with pytest.raises(FieldError) as refused:
        replace(MODEL, **{field: value})  # type: ignore[arg-type]
    assert refused.value.field == ("terms" if field == "terms_digest" else field)


@pytest.mark.parametrize("statement", [CLAIM, MODEL])
@pytest.mark.parametrize("kind", ["terms", "claims", "", None, 5])
def test_a_record_of_another_kind_is_no_such_statement(
    statement: ClaimStatement | ModelStatement, kind: object
) -> None:
    record = dict(statement.record())
    read = type(statement).from_record
    assert read(record) == statement
    with pytest.raises(FieldError, match=repr(statement.kind)) as refused:
        read({**record, "kind": kind})
    assert refused.value.field == "kind"
    del record["kind"]
    with pytest.raises(FieldError, match=repr(statement.kind)) as missing:
        read(record)
    assert missing.value.field == "kind"


def test_private_counts_are_bound_by_their_commitment() -> None:
    commitment = commit_counts([1, 3], bytes(32))
    assert replace(CLAIM, counts=None, counts_commitment=commitment).counts is None
    assert commitment == commit_counts([1, 3], bytes(32))
    assert commitment != commit_counts([3, 1], bytes(32))
    assert commitment != commit_counts([1, 3], b"\x01" * 32)
    with pytest.raises(FieldError, match="salt"):
        commit_counts([1, 3], b"short")
