"""Field by field: each value in the place of its name, each limit of the wire to the unit."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from google.protobuf.message import Message

from fedpeer.protocol.codec import (
    decode_claim,
    decode_counts,
    decode_model_header,
    decode_terms,
    decode_verdict,
    encode_claim,
    encode_model_header,
    encode_terms,
    encode_verdict,
)
from fedpeer.protocol.limits import MAX_LABELS, MAX_NUMBER_CHARACTERS, MAX_TENSORS
from fedpeer.v1 import market_pb2, terms_pb2
from mechanism.errors import FieldError
from mechanism.payment import Linear, Log, Power
from mechanism.settlement import Verdict
from mechanism.statements import ClaimStatement, ModelStatement, commit_counts
from mechanism.terms import ModelContract, Recipe, Rule, Schedule, TensorSpec, Terms

#: No value twice, so that none can stand in another's place.
TERMS = Terms(
    task_id="task-7",
    reference=(Fraction(1, 7), Fraction(2, 7), Fraction(4, 7)),
    Q=Decimal("2000.5"),
    phi=Decimal("300.25"),
    upsilon=Decimal("200.125"),
    payment=Power(Decimal("1.5"), Decimal("0.75")),
    rule=Rule("paper", 2, Decimal("0.5"), 150_000),
    schedule=Schedule(9, 4, 12, 61, 62, 63),
    contract=ModelContract((TensorSpec("b", "I64", (5,)), TensorSpec("w", "F32", (3, 4))), Decimal("17.5"), 90_000),
    recipe=Recipe("digits-cnn", 6, 32, "adam", Decimal("0.003"), 120),
    budget_micro=123_456_789,
    seed_commitment=b"s" * 32,
    validation_commitment=b"v" * 32,
    initial_model=b"i" * 32,
)  # fmt: skip

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


def test_terms_are_written_under_their_names() -> None:
    message = encode_terms(TERMS)
    assert list(message.reference) == ["1/7", "2/7", "4/7"]
    assert (message.task_id, message.q, message.phi, message.upsilon) == (
        "task-7",
        "2000.5",
        "300.25",
        "200.125",
    )
    assert message.payment == terms_pb2.PaymentFunction(name="power", kappa="1.5", exponent="0.75")
    assert message.rule == terms_pb2.Rule(name="paper", peers=2, claim_penalty="0.5", stake_micro=150_000)
    assert message.schedule == terms_pb2.Schedule(
        rounds=9, quorum=4, capacity=12, effort_seconds=61, round_seconds=62, dispute_seconds=63
    )
    assert message.contract.max_norm == "17.5"
    assert message.contract.max_bytes == 90_000
    assert list(message.contract.tensors) == [
        terms_pb2.TensorSpec(name="b", dtype="I64", shape=[5]),
        terms_pb2.TensorSpec(name="w", dtype="F32", shape=[3, 4]),
    ]
    assert message.recipe == terms_pb2.Recipe(
        model="digits-cnn", epochs=6, batch_size=32, optimizer="adam", learning_rate="0.003", samples=120
    )
    assert message.budget_micro == 123_456_789
    assert message.seed_commitment == b"s" * 32
    assert message.validation_commitment == b"v" * 32
    assert message.initial_model == b"i" * 32
    assert decode_terms(message) == TERMS


@pytest.mark.parametrize("payment", [Log(), Linear(Decimal(2)), Power(Decimal(2), Decimal("0.5"))])
def test_every_payment_function_has_its_own_parameters(payment: Any) -> None:
    assert decode_terms(encode_terms(replace(TERMS, payment=payment))).payment == payment


def placed(message: Message, path: str, value: Any) -> None:
    *outer, last = path.split(".")
    for name in outer:
        message = getattr(message, name)
    setattr(message, last, value)


NUMBERS = [
    "q", "phi", "upsilon", "payment.kappa", "payment.exponent", "rule.claim_penalty", "contract.max_norm",
    "recipe.learning_rate",
]  # fmt: skip


@pytest.mark.parametrize("path", NUMBERS)
@pytest.mark.parametrize("value", ["much", "1" * (MAX_NUMBER_CHARACTERS + 1)])
def test_a_number_that_is_none_is_refused_under_its_own_name(path: str, value: str) -> None:
    message = encode_terms(TERMS)
    placed(message, path, value)
    with pytest.raises(FieldError) as refused:
        decode_terms(message)
    assert refused.value.field.lower() == path


def test_a_number_may_have_so_many_characters_and_no_more() -> None:
    message = encode_terms(TERMS)
    message.reference[:] = ["1/2", "1/" + "0" * (MAX_NUMBER_CHARACTERS - 3) + "2"]
    assert len(message.reference[1]) == MAX_NUMBER_CHARACTERS
    assert decode_terms(message).reference == (Fraction(1, 2), Fraction(1, 2))
    message.reference[1] = "1/" + "0" * (MAX_NUMBER_CHARACTERS - 2) + "2"
    with pytest.raises(FieldError, match=f"at most {MAX_NUMBER_CHARACTERS} characters") as refused:
        decode_terms(message)
    assert refused.value.field == "reference[1]"


def test_terms_of_more_labels_or_tensors_than_the_wire_carries_are_refused() -> None:
    message = encode_terms(TERMS)
    message.reference[:] = [f"1/{MAX_LABELS}"] * MAX_LABELS
    assert len(decode_terms(message).reference) == MAX_LABELS
    message.reference.append("0")
    with pytest.raises(FieldError, match=f"{MAX_LABELS + 1} values.*at most {MAX_LABELS}") as refused:
        decode_terms(message)
    assert refused.value.field == "reference"
    message = encode_terms(TERMS)
    del message.contract.tensors[:]
    message.contract.tensors.extend([terms_pb2.TensorSpec(name="w", dtype="F32")] * (MAX_TENSORS + 1))
    with pytest.raises(FieldError, match=f"at most {MAX_TENSORS}") as refused:
        decode_terms(message)
    assert refused.value.field == "contract.tensors"


def test_counts_of_more_labels_than_the_wire_carries_are_refused() -> None:
    most = replace(CLAIM, counts=(1,) * MAX_LABELS)
    assert decode_claim(encode_claim(most, b"sig"), CLAIM.terms_digest).counts == most.counts
    assert decode_counts(market_pb2.LabelCounts(counts=most.counts)) == most.counts
    message = encode_claim(replace(CLAIM, counts=(1,) * (MAX_LABELS + 1)), b"sig")
    for decode in (lambda: decode_claim(message, CLAIM.terms_digest), lambda: decode_counts(message.counts)):
        with pytest.raises(FieldError, match=f"{MAX_LABELS + 1} values.*at most {MAX_LABELS}") as refused:
            decode()
        assert refused.value.field == "counts"


def test_a_claim_is_written_under_its_names_with_open_or_with_private_counts() -> None:
    message = encode_claim(CLAIM, b"sig")
    assert message == market_pb2.SubmitEffortRequest(
        submission_id="claim-1", task_id="task-7", participant_id="ann", effort="0.25", degree="3/7",
        nonce=b"n" * 16, signature=b"sig", counts=market_pb2.LabelCounts(counts=[1, 2, 4]),
        draw_head=b"h" * 32,
    )  # fmt: skip
    assert message.WhichOneof("evidence") == "counts"
    assert decode_claim(message, b"t" * 32) == CLAIM
    private = replace(CLAIM, counts=None, counts_commitment=commit_counts((1, 2, 4), b"x" * 32))
    message = encode_claim(private, b"sig")
    assert message.WhichOneof("evidence") == "counts_commitment"
    assert message.counts_commitment == private.counts_commitment
    assert decode_claim(message, b"t" * 32) == private


@pytest.mark.parametrize("field", ["effort", "degree"])
@pytest.mark.parametrize("value", ["much", "1" * (MAX_NUMBER_CHARACTERS + 1)])
def test_a_claims_number_that_is_none_is_refused_under_its_own_name(field: str, value: str) -> None:
    message = encode_claim(CLAIM, b"sig")
    setattr(message, field, value)
    with pytest.raises(FieldError) as refused:
        decode_claim(message, b"t" * 32)
    assert refused.value.field == field


def test_a_model_header_is_written_under_its_names() -> None:
    statement = ModelStatement(
        "model-1", "task-7", b"t" * 32, "ann", 3, b"m" * 32, 4321, 120, b"x" * 32, b"n" * 16
    )
    message = encode_model_header(statement, b"sig", 77)
    assert message == market_pb2.ModelHeader(
        submission_id="model-1", task_id="task-7", participant_id="ann", round=3, model_sha256=b"m" * 32,
        model_bytes=4321, samples=120, nonce=b"n" * 16, signature=b"sig", offset=77,
        draw_share=b"x" * 32,
    )  # fmt: skip
    assert encode_model_header(statement, b"sig").offset == 0
    assert decode_model_header(message, b"t" * 32) == statement


@pytest.mark.parametrize("passed", [True, False])
def test_a_verdict_comes_back(passed: bool) -> None:
    verdict = Verdict("echo", passed, "It is what it is.", {"distance": "0.5", "cosine": "0.1"})
    message = encode_verdict(verdict)
    assert (message.screen, message.passed, message.explanation) == ("echo", passed, "It is what it is.")
    assert dict(message.figures) == verdict.figures
    assert decode_verdict(message) == verdict
