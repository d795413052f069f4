"""What an audit comes to: the auditor's statement, and its re-trained weights as the coordinator has measured them."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from mechanism.audit import FAILED, PASSED, Audit, conformal_limit
from mechanism.canonical import decimal_text
from mechanism.errors import FieldError
from mechanism.statements import AuditStatement


@dataclass(frozen=True)
class AuditVerdict:
    """What an audit comes to.

    Attributes:
        outcome: "passed" or "failed".
        submitted_micro, retrained_micro: v and v_r, millionths; v_r is None where nothing was re-trained.
        limit_micro: L; None where nothing was re-trained, or too few shadows bound nothing.
        explanation: a sentence for the participant.
    """

    outcome: str
    submitted_micro: int
    retrained_micro: int | None
    limit_micro: int | None
    explanation: str


def judge(
    audit: Audit,
    statement: AuditStatement,
    root: bytes,
    claimed: Fraction,
    submitted_micro: int,
    retrained_micro: int | None,
    differences: Sequence[int],
) -> AuditVerdict:
    """The verdict. Pure: the ledger's verifier calls it again.

    Args:
        root, claimed: of the claim.
        submitted_micro: the degree that the round's evidence has estimated of the submission.
        retrained_micro: the same estimate of the re-trained weights; None where there are none.
        differences: of shadows, v_r - v, millionths.

    Raises:
        FieldError: no weights where samples as claimed were opened and accepted.
    """

    def failed(why: str) -> AuditVerdict:
        return AuditVerdict(FAILED, submitted_micro, retrained_micro, limit, why)

    limit = None if retrained_micro is None else conformal_limit(differences, audit.rate)
    if not statement.samples:
        return failed(_with_remark("The auditor was not let see the samples.", statement))
    if statement.samples_root != root:
        return failed("The opened samples are not those that the claim commits to.")
    if statement.degree != claimed:
        return failed(f"The opened samples have the degree {statement.degree}; the claim says {claimed}.")
    if not statement.accepted:
        return failed(_with_remark("The auditor does not accept the samples.", statement))
    if retrained_micro is None:
        raise FieldError("model_sha256", "", "re-trained weights, since the samples are those of the claim")
    difference = retrained_micro - submitted_micro
    said = (
        f"Trained again on the opened samples, the model shows {_decimal(retrained_micro)}; the submission showed "
        f"{_decimal(submitted_micro)}"
    )
    if limit is None:
        return AuditVerdict(
            PASSED, submitted_micro, retrained_micro, None,
            f"{said}. {len(differences)} shadow models bound no difference at a rate of {audit.rate}.",
        )  # fmt: skip
    rate = f"of honest participants at most {audit.rate} differ by more than {_decimal(limit)}"
    if difference > limit:
        return failed(f"{said}, {_decimal(difference)} less; {rate}.")
    return AuditVerdict(PASSED, submitted_micro, retrained_micro, limit, f"{said}; {rate}.")


def _with_remark(text: str, statement: AuditStatement) -> str:
    return f"{text} It says: {statement.remark}" if statement.remark.strip() else text


def _decimal(micro: int) -> str:
    return decimal_text(Decimal(micro).scaleb(-6))
