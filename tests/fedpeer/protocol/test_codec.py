from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpeer.protocol.certificates import new_key
from fedpeer.protocol.codec import (
    decode_claim,
    decode_counts,
    decode_model_header,
    decode_terms,
    encode_claim,
    encode_model_header,
    encode_terms,
)
from fedpeer.protocol.limits import MAX_LABELS, MAX_NUMBER_CHARACTERS, MAX_TENSORS
from fedpeer.v1 import market_pb2
from mechanism.canonical import canonical_bytes, parse_canonical
from mechanism.errors import FieldError
from mechanism.payment import Linear, Log, Log1p, Power
from mechanism.statements import (
    ClaimStatement,
    ModelStatement,
    sign_statement,
    signature_holds,
    statement_digest,
)
from mechanism.terms import ModelContract, Recipe, Rule, Schedule, TensorSpec, Terms
from tests import ledger_samples as samples

decimals = st.decimals(min_value="0.000001", max_value=1_000_000, places=6)
digests = st.binary(min_size=32, max_size=32)
identifiers = st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,20}[a-z0-9])?", fullmatch=True)
payments = st.one_of(
    st.just(Log()),
    st.just(Log1p()),
    st.builds(Linear, decimals),
    st.builds(Power, decimals, st.decimals(min_value="0.01", max_value=1, places=2)),
)


@st.composite
def terms(draw: st.DrawFn) -> Terms:
    weights = draw(st.lists(st.integers(1, 50), min_size=2, max_size=12))
    names = draw(st.sets(st.text(min_size=1, max_size=8, alphabet="abcxyz.0123"), min_size=1, max_size=4))
    specs = tuple(TensorSpec(n, draw(st.sampled_from(["F32", "I64"])), (2, 3)) for n in sorted(names))
    quorum = draw(st.integers(3, 10))
    return Terms(
        task_id=draw(identifiers),
        reference=tuple(Fraction(w, sum(weights)) for w in weights),
        Q=draw(decimals),
        phi=draw(decimals),
        upsilon=draw(decimals),
        payment=draw(payments),
        rule=Rule(draw(st.sampled_from(["verified", "paper"])), draw(st.integers(1, 5)), draw(decimals), 10),
        schedule=Schedule(draw(st.integers(1, 9)), quorum, quorum + draw(st.integers(0, 9)), 60, 60),
        contract=ModelContract(specs, draw(decimals), 10_000),
        recipe=Recipe("digits-cnn", 5, 32, "adam", draw(decimals), 120),
        budget_micro=draw(st.integers(0, 2**50)),
        seed_commitment=draw(digests),
        validation_commitment=draw(digests),
        initial_model=draw(digests),
    )


@given(terms())
def test_terms_survive_the_wire_and_the_record_with_the_same_digest(original: Terms) -> None:
    over_the_wire = decode_terms(
        type(encode_terms(original)).FromString(encode_terms(original).SerializeToString())
    )
    from_the_record = Terms.from_record(parse_canonical(canonical_bytes(original.record())))
    assert over_the_wire == original
    assert from_the_record == original
    assert over_the_wire.digest == from_the_record.digest == original.digest


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
    claim = ClaimStatement(
        submission_id="claim-1",
        task_id=task,
        terms_digest=digest,
        participant_id=participant,
        effort=Decimal(effort) / 10**6,
        degree=Fraction(1, 3),
        counts=tuple(counts),
        counts_commitment=b"",
        draw_head=b"x" * 32,
        nonce=b"n" * 16,
    )
    key = new_key()
    signature = sign_statement(claim, key)
    received = decode_claim(encode_claim(claim, signature), digest)
    assert received == claim
    assert signature_holds(received, signature, key.public_key())
    assert sign_statement(claim, key) == signature
    other_task = decode_claim(encode_claim(claim, signature), bytes(32))
    assert signature_holds(other_task, signature, key.public_key()) == (digest == bytes(32))
    assert not signature_holds(received, signature, new_key().public_key())


def test_a_model_header_survives_the_wire() -> None:
    model = ModelStatement("m-1", "t", b"d" * 32, "p", 2, b"s" * 32, 1234, 120, b"x" * 32, b"n" * 16)
    assert decode_model_header(encode_model_header(model, b"sig", 77), b"d" * 32) == model
    assert statement_digest(model) != statement_digest(
        ModelStatement("m-1", "t", b"d" * 32, "p", 3, b"s" * 32, 1234, 120, b"x" * 32, b"n" * 16)
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("q", "0"),
        ("q", "-1"),
        ("q", "NaN"),
        ("q", "1e999999999"),
        ("q", "x"),
        ("q", ""),
        ("q", "1" * 200),
        ("phi", "0"),
        ("upsilon", "0"),
        ("reference", ["0.5", "0.6"]),
        ("reference", ["1e999999999", "0"]),
        ("reference", ["1/0", "1"]),
        ("reference", ["-1", "2"]),
        ("reference", ["1"]),
        ("task_id", "../../etc"),
        ("seed_commitment", b"short"),
    ],
)
def test_terms_with_a_bad_field_are_refused_by_its_name(field: str, value: object) -> None:
    good = Terms(
        task_id="t",
        reference=(Fraction(1, 2), Fraction(1, 2)),
        Q=Decimal(2),
        phi=Decimal(300),
        upsilon=Decimal(200),
        payment=Log(),
        rule=Rule(),
        schedule=Schedule(1, 3, 3, 1, 1),
        contract=ModelContract((TensorSpec("w", "F32", (1,)),), Decimal(1), 100),
        recipe=Recipe("digits-cnn", 1, 1, "adam", Decimal("0.01"), 1),
        budget_micro=0,
        seed_commitment=bytes(32),
        validation_commitment=bytes(32),
        initial_model=bytes(32),
    )
    message = encode_terms(good)
    if isinstance(value, list):
        del message.reference[:]
        message.reference.extend(value)
    else:
        setattr(message, field, value)
    with pytest.raises(FieldError) as refused:
        decode_terms(message)
    assert refused.value.field.split("[")[0].lower() == field


def test_lists_are_taken_up_to_their_limits_and_not_one_beyond() -> None:
    counts = market_pb2.LabelCounts(counts=[1] * MAX_LABELS)
    assert len(decode_counts(counts)) == MAX_LABELS
    claim = market_pb2.SubmitEffortRequest(
        submission_id="c",
        task_id="t",
        participant_id="p",
        effort="0",
        degree="0",
        draw_head=bytes(32),
        nonce=bytes(16),
        counts=counts,
    )
    assert len(decode_claim(claim, bytes(32)).counts or ()) == MAX_LABELS
    terms = encode_terms(samples.terms())
    del terms.reference[:]
    terms.reference.extend([f"1/{MAX_LABELS}"] * MAX_LABELS)
    assert len(decode_terms(terms).reference) == MAX_LABELS
    for message in (counts, claim.counts):
        message.counts.append(1)
    terms.reference.append("0")  # sums to 1 as before
    with pytest.raises(
        FieldError, match=f"counts is '{MAX_LABELS + 1} values'; expected at most {MAX_LABELS}"
    ):
        decode_counts(counts)
    with pytest.raises(
        FieldError, match=f"counts is '{MAX_LABELS + 1} values'; expected at most {MAX_LABELS}"
    ):
        decode_claim(claim, bytes(32))
    with pytest.raises(
        FieldError, match=f"reference is '{MAX_LABELS + 1} values'; expected at most {MAX_LABELS}"
    ):
        decode_terms(terms)


def test_tensors_are_taken_up_to_their_limit_and_not_one_beyond() -> None:
    terms = encode_terms(samples.terms())
    del terms.contract.tensors[:]
    for i in range(MAX_TENSORS):
        terms.contract.tensors.add(name=f"{i:05d}", dtype="BOOL", shape=[0])
    assert len(decode_terms(terms).contract.tensors) == MAX_TENSORS
    terms.contract.tensors.add(name="x", dtype="BOOL", shape=[0])
    with pytest.raises(FieldError, match=f"at most {MAX_TENSORS}"):
        decode_terms(terms)


def test_numbers_are_taken_up_to_their_characters_and_not_one_beyond() -> None:
    claim = market_pb2.SubmitEffortRequest(
        submission_id="c", task_id="t", participant_id="p", effort="0", nonce=bytes(16),
        draw_head=bytes(32), counts=market_pb2.LabelCounts(counts=[1]), degree="0." + "1" * (MAX_NUMBER_CHARACTERS - 2),
    )  # fmt: skip
    assert decode_claim(claim, bytes(32)).degree > 0
    claim.degree += "1"
    with pytest.raises(FieldError, match=f"at most {MAX_NUMBER_CHARACTERS} characters"):
        decode_claim(claim, bytes(32))
