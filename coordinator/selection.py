"""Who trains: the learner's choice among those who claimed."""

from collections.abc import Sequence

from coordinator.storage.submissions import ClaimRow
from mechanism.terms import Terms


def select(terms: Terms, claims: Sequence[ClaimRow]) -> list[str]:
    """Everyone whose claim came in time, in participant-id order."""
    return sorted(claim.participant_id for claim in claims)
