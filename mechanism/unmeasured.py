"""Assessments that rest on no measurement: of who sent no model in time, and of everyone under the paper's rule."""

from fractions import Fraction
from functools import lru_cache

from mechanism.settlement import MICRO, Assessment, Verdict

_FITS = (Verdict("contract", True, "The model fits the task's contract."),)


def missing(participant_id: str, claimed_degree: Fraction, reason: str | None) -> Assessment:
    """Of who sent no model in time: not scored, not paid, nothing refuted.

    Args:
        reason: what it said why it cannot deliver; None where it said nothing.
    """
    said = f" It said: {reason}" if reason else ""
    return Assessment(
        participant_id=participant_id,
        model_sha256=b"",
        claimed_degree=claimed_degree,
        verified_micro=None,
        verdicts=(Verdict("delivered", False, f"No model came before the round closed.{said}"),),
    )


def as_claimed(participant_id: str, model_sha256: bytes, claimed_degree: Fraction) -> Assessment:
    """Of a model under a rule that pays without evidence: it counts, at the degree that was claimed."""
    return Assessment(
        participant_id=participant_id,
        model_sha256=model_sha256,
        claimed_degree=claimed_degree,
        verified_micro=_micro(claimed_degree),
        verdicts=_FITS,
    )


@lru_cache(maxsize=8192)
def _micro(degree: Fraction) -> int:
    """Millionths, half-even. A claim counts in every round."""
    return round(degree * MICRO)
