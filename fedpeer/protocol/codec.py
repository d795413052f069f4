"""Between messages and values: terms, claims and models as protobuf and as the mechanism's dataclasses.

Decoding checks everything that the value's constructor checks, and the wire's own limits; what is wrong comes
back as a FieldError that names the field.
"""

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

from fedpeer.protocol.limits import MAX_LABELS, MAX_NUMBER_CHARACTERS, MAX_TENSORS
from fedpeer.v1 import market_pb2, terms_pb2
from mechanism.canonical import decimal_text
from mechanism.degree import rational, reference_distribution
from mechanism.errors import FieldError
from mechanism.payment import ExactPaymentFunction, payment_function
from mechanism.settlement import Verdict
from mechanism.statements import ClaimStatement, ModelStatement
from mechanism.terms import ModelContract, Recipe, Rule, Schedule, TensorSpec, Terms, decimal


def encode_terms(terms: Terms) -> terms_pb2.Terms:
    """The message that carries `terms`."""
    return terms_pb2.Terms(
        task_id=terms.task_id,
        reference=[str(p) for p in terms.reference],
        q=decimal_text(terms.Q),
        phi=decimal_text(terms.phi),
        upsilon=decimal_text(terms.upsilon),
        payment=terms_pb2.PaymentFunction(
            name=terms.payment.name,
            **{key: decimal_text(value) for key, value in terms.payment.parameters().items()},
        ),
        rule=terms_pb2.Rule(
            name=terms.rule.name,
            peers=terms.rule.peers,
            claim_penalty=decimal_text(terms.rule.claim_penalty),
            stake_micro=terms.rule.stake_micro,
        ),
        schedule=terms_pb2.Schedule(
            rounds=terms.schedule.rounds,
            quorum=terms.schedule.quorum,
            capacity=terms.schedule.capacity,
            effort_seconds=terms.schedule.effort_seconds,
            round_seconds=terms.schedule.round_seconds,
            dispute_seconds=terms.schedule.dispute_seconds,
        ),
        contract=terms_pb2.ModelContract(
            tensors=[
                terms_pb2.TensorSpec(name=t.name, dtype=t.dtype, shape=t.shape)
                for t in terms.contract.tensors
            ],
            max_norm=decimal_text(terms.contract.max_norm),
            max_bytes=terms.contract.max_bytes,
        ),
        recipe=terms_pb2.Recipe(
            model=terms.recipe.model,
            epochs=terms.recipe.epochs,
            batch_size=terms.recipe.batch_size,
            optimizer=terms.recipe.optimizer,
            learning_rate=decimal_text(terms.recipe.learning_rate),
            samples=terms.recipe.samples,
        ),
        budget_micro=terms.budget_micro,
        seed_commitment=terms.seed_commitment,
        validation_commitment=terms.validation_commitment,
        initial_model=terms.initial_model,
    )


def decode_terms(message: terms_pb2.Terms) -> Terms:
    """The terms in `message`.

    Raises:
        FieldError: a value out of its range or beyond the wire's limits.
    """
    _at_most("reference", message.reference, MAX_LABELS)
    _at_most("contract.tensors", message.contract.tensors, MAX_TENSORS)
    return Terms(
        task_id=message.task_id,
        reference=reference_distribution(
            [_short(f"reference[{i}]", p) for i, p in enumerate(message.reference)]
        ),
        Q=_decimal("q", message.q),
        phi=_decimal("phi", message.phi),
        upsilon=_decimal("upsilon", message.upsilon),
        payment=_payment(message.payment),
        rule=Rule(
            name=message.rule.name,
            peers=message.rule.peers,
            claim_penalty=_decimal("rule.claim_penalty", message.rule.claim_penalty),
            stake_micro=message.rule.stake_micro,
        ),
        schedule=Schedule(
            rounds=message.schedule.rounds,
            quorum=message.schedule.quorum,
            capacity=message.schedule.capacity,
            effort_seconds=message.schedule.effort_seconds,
            round_seconds=message.schedule.round_seconds,
            dispute_seconds=message.schedule.dispute_seconds,
        ),
        contract=ModelContract(
            tensors=tuple(TensorSpec(t.name, t.dtype, tuple(t.shape)) for t in message.contract.tensors),
            max_norm=_decimal("contract.max_norm", message.contract.max_norm),
            max_bytes=message.contract.max_bytes,
        ),
        recipe=Recipe(
            model=message.recipe.model,
            epochs=message.recipe.epochs,
            batch_size=message.recipe.batch_size,
            optimizer=message.recipe.optimizer,
            learning_rate=_decimal("recipe.learning_rate", message.recipe.learning_rate),
            samples=message.recipe.samples,
        ),
        budget_micro=message.budget_micro,
        seed_commitment=message.seed_commitment,
        validation_commitment=message.validation_commitment,
        initial_model=message.initial_model,
    )


def encode_claim(statement: ClaimStatement, signature: bytes) -> market_pb2.SubmitEffortRequest:
    """The message that carries a signed claim."""
    message = market_pb2.SubmitEffortRequest(
        submission_id=statement.submission_id,
        task_id=statement.task_id,
        participant_id=statement.participant_id,
        effort=decimal_text(statement.effort),
        degree=str(statement.degree),
        draw_head=statement.draw_head,
        nonce=statement.nonce,
        signature=signature,
    )
    if statement.counts is None:
        message.counts_commitment = statement.counts_commitment
    else:
        message.counts.CopyFrom(market_pb2.LabelCounts(counts=statement.counts))
    return message


def decode_claim(message: market_pb2.SubmitEffortRequest, terms_digest: bytes) -> ClaimStatement:
    """The claim in `message`, as it was signed for the terms with `terms_digest`.

    Raises:
        FieldError: a value out of its range, or neither counts nor a commitment to them.
    """
    private = message.WhichOneof("evidence") == "counts_commitment"
    _at_most("counts", message.counts.counts, MAX_LABELS)
    return ClaimStatement(
        submission_id=message.submission_id,
        task_id=message.task_id,
        terms_digest=terms_digest,
        participant_id=message.participant_id,
        effort=_decimal("effort", message.effort),
        degree=_rational("degree", message.degree),
        counts=None if private else tuple(message.counts.counts),
        counts_commitment=message.counts_commitment if private else b"",
        draw_head=message.draw_head,
        nonce=message.nonce,
    )


def decode_counts(message: market_pb2.LabelCounts) -> tuple[int, ...]:
    """Label counts; FieldError beyond the wire's limits."""
    _at_most("counts", message.counts, MAX_LABELS)
    return tuple(message.counts)


def encode_model_header(
    statement: ModelStatement, signature: bytes, offset: int = 0
) -> market_pb2.ModelHeader:
    """The message that announces a signed model whose frames begin at `offset`."""
    return market_pb2.ModelHeader(
        submission_id=statement.submission_id,
        task_id=statement.task_id,
        participant_id=statement.participant_id,
        round=statement.round,
        model_sha256=statement.model_sha256,
        model_bytes=statement.model_bytes,
        samples=statement.samples,
        draw_share=statement.draw_share,
        nonce=statement.nonce,
        signature=signature,
        offset=offset,
    )


def decode_model_header(message: market_pb2.ModelHeader, terms_digest: bytes) -> ModelStatement:
    """The model statement in `message`.

    Raises:
        FieldError: a value out of its range.
    """
    return ModelStatement(
        submission_id=message.submission_id,
        task_id=message.task_id,
        terms_digest=terms_digest,
        participant_id=message.participant_id,
        round=message.round,
        model_sha256=message.model_sha256,
        model_bytes=message.model_bytes,
        samples=message.samples,
        draw_share=message.draw_share,
        nonce=message.nonce,
    )


def encode_verdict(verdict: Verdict) -> market_pb2.Verdict:
    return market_pb2.Verdict(
        screen=verdict.screen,
        passed=verdict.passed,
        explanation=verdict.explanation,
        figures=dict(verdict.figures),
    )


def decode_verdict(message: market_pb2.Verdict) -> Verdict:
    return Verdict(message.screen, message.passed, message.explanation, dict(message.figures))


def _payment(message: terms_pb2.PaymentFunction) -> ExactPaymentFunction:
    given = {"kappa": message.kappa, "exponent": message.exponent}
    return payment_function(
        message.name, {key: _decimal(f"payment.{key}", text) for key, text in given.items() if text}
    )


def _decimal(field: str, text: str) -> Decimal:
    return decimal(field, _short(field, text))


def _rational(field: str, text: str) -> Fraction:
    return rational(field, _short(field, text))


def _short(field: str, text: str) -> str:
    if len(text) > MAX_NUMBER_CHARACTERS:
        raise FieldError(field, text, f"at most {MAX_NUMBER_CHARACTERS} characters")
    return text


def _at_most(field: str, values: Sequence[object], most: int) -> None:
    if len(values) > most:
        raise FieldError(field, f"{len(values)} values", f"at most {most}")
