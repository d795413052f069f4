"""A dispute: counts are opened to the coordinator and the auditor, and a claim that they bear out is paid.

A participant commits to its counts and claims their degree. Once a round is settled it may open them,
once for the whole task. They must be those that it committed to and give the degree that it claimed. Then each
settled round is reviewed: where the claimed degree d lies within the evidence's prediction interval, the round pays

    a = w * m * mean_{j in P} f(Q / (Phi*d^2 + Phi*v_j^2 + Upsilon)) - fee*(1 - w)

in place of what it paid, if that is more: the measured degree replaced by d, no penalty; the peers P, their degrees,
the weight w and the multiplier m stay, and nobody else's payment changes. Every a is at most f(Q / Upsilon), so a
round's awards and payments together stay within what was reserved for it.

Opened counts are the participant's word; only their degree can be held against a model. What a false word within the
interval could gain is in docs/evidence.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from mechanism.degree import noniid_degree
from mechanism.errors import FieldError
from mechanism.settlement import MICRO, Assessment, Outcome, outcome_of, payment_against
from mechanism.statements import commit_counts
from mechanism.terms import Terms

#: The rule whose payments may be disputed: the others do not pay on a measured degree.
DISPUTED_RULE = "verified"


@dataclass(frozen=True)
class Review:
    """What opened counts change about one settled round.

    Attributes:
        agreed: the claimed degree lies within the evidence's interval.
        explanation: a sentence for the participant.
        award_micro: what is paid on top, micro-credits.
    """

    agreed: bool
    explanation: str
    award_micro: int


def disputes_possible(terms: Terms) -> bool:
    """Whether a settled round keeps back the rest of its reservation."""
    return terms.schedule.dispute_seconds > 0 and terms.rule.name == DISPUTED_RULE


def check_opening(
    terms: Terms, commitment: bytes, claimed: Fraction | None, counts: Sequence[int], salt: bytes
) -> None:
    """That opened counts are those behind a claim.

    Args:
        claimed: the degree; None where it is not known.

    Raises:
        FieldError: a salt of another length, counts that are not a histogram, others than those that were committed
            to, or of another degree than the claimed one.
    """
    degree = noniid_degree(counts, terms.reference)
    if commit_counts(counts, salt) != commitment:
        raise FieldError("counts", list(counts), "with the salt, those that the claim committed to")
    if claimed is not None and degree != claimed:
        raise FieldError("counts", list(counts), f"those of the claimed degree {claimed}; theirs is {degree}")


def review(
    terms: Terms, subject: Assessment, peers: Sequence[Assessment | Outcome], paid_micro: int
) -> Review:
    """What the round of an opened claim pays on top. Pure: the ledger's verifier calls it again.

    Args:
        subject: the assessment that the round was settled on.
        peers: those of its peers, or their outcomes, in id order; empty where it had none.
        paid_micro: what the round paid it.
    """
    if subject.verified_micro is None or subject.lower_micro is None or subject.upper_micro is None:
        return Review(False, "No model of this round was scored, so nothing bears the claim out.", 0)
    claimed = subject.claimed_degree * MICRO
    interval = f"{_text(subject.lower_micro)} to {_text(subject.upper_micro)}"
    if subject.refuted or not subject.lower_micro <= claimed <= subject.upper_micro:
        return Review(
            False,
            f"The claimed degree of {_text(round(claimed))} lies outside what the model shows, {interval}.",
            0,
        )
    as_claimed = replace(outcome_of(terms, subject), verified_micro=round(claimed), penalty_micro=0)
    award = max(0, payment_against(terms, as_claimed, list(peers) or [as_claimed]) - paid_micro)
    return Review(
        True,
        f"The claimed degree of {_text(round(claimed))} agrees with what the model shows, {interval}"
        + ("; the round is paid as claimed." if award else "; the round paid no less than that already."),
        award,
    )


def _text(micro: int) -> str:
    return f"{micro / MICRO:.4f}"
