from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest

from mechanism.errors import FieldError
from mechanism.statements import (
    ClaimOpening,
    ClaimStatement,
    ModelOpening,
    ModelStatement,
    check_opened,
    commit_counts,
)

CLAIM = ClaimStatement(
    submission_id="c-1",
    task_id="t",
    terms_digest=bytes(32),
    participant_id="p",
    commitment=bytes(32),
    counts_commitment=bytes(32),
    draw_head=bytes(32),
    nonce=bytes(16),
)
MODEL = ModelStatement("m-1", "t", bytes(32), "p", 1, bytes(32), 100, bytes(32), bytes(32), bytes(16))
CLAIM_OPENING = ClaimOpening(Decimal("0.5"), Fraction(1, 2), bytes(32))
MODEL_OPENING = ModelOpening(10, bytes(32))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("task_id", "A task"),
        ("commitment", b""),
        ("commitment", bytes(31)),
        ("counts_commitment", b""),
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
    assert refused.value.field == (
        "terms" if field == "terms_digest" else field
    )  # as it stands in the record


@pytest.mark.parametrize(
    ("opening", "field", "value"),
    [
        *(
            (CLAIM_OPENING, field, value)
            for field, value in (
                ("effort", Decimal("1.01")),
                ("effort", Decimal("-0.1")),
                ("effort", Decimal("NaN")),
                ("effort", Decimal("0.1234567")),
                ("degree", Fraction(3, 2)),
                ("degree", Fraction(-1, 2)),
                ("salt", bytes(31)),
            )
        ),
        (MODEL_OPENING, "samples", 0),
        (MODEL_OPENING, "salt", b""),
    ],
)
def test_an_opening_out_of_range_is_refused(
    opening: ClaimOpening | ModelOpening, field: str, value: object
) -> None:
    with pytest.raises(FieldError) as refused:
        replace(opening, **{field: value})  # type: ignore[arg-type]
    assert refused.value.field == field


def test_an_opening_is_the_one_that_a_statement_commits_to() -> None:
    for statement, opening, other in (
        (CLAIM, CLAIM_OPENING, {"degree": Fraction(1, 3)}),
        (CLAIM, CLAIM_OPENING, {"salt": bytes(range(32))}),
        (MODEL, MODEL_OPENING, {"samples": 11}),
    ):
        said = replace(statement, commitment=opening.digest)
        check_opened(said, opening)
        with pytest.raises(FieldError, match="the digest of the opening") as refused:
            check_opened(said, replace(opening, **other))  # type: ignore[arg-type]
        assert refused.value.field == "commitment"


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
    assert getattr(replace(CLAIM_OPENING, **{field: value}), field) == value  # type: ignore[arg-type]


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
        ("commitment", bytes(31)),
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
    assert commitment == commit_counts([1, 3], bytes(32))
    assert commitment != commit_counts([3, 1], bytes(32))
    assert commitment != commit_counts([1, 3], b"\x01" * 32)
    with pytest.raises(FieldError, match="salt"):
        commit_counts([1, 3], b"short")
