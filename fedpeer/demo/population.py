"""Who takes part in the demo: honest participants with ever more skewed data, and two that are not honest.

The over-claimer and the free rider each have an honest twin whose data are as many, as skewed and as costly to improve,
and for whom no effort pays: their true degrees are equal in the table, and what dishonesty earns can be read off it.
"""

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from fedpeer.cli.errors import CommandError
from mechanism.terms import MIN_QUORUM

#: Fewest participants: a quorum of honest ones, the over-claimer and the free rider.
MIN_PARTICIPANTS = MIN_QUORUM + 2

#: Most participants: each is a process with torch in it.
MAX_PARTICIPANTS = 64


class Strategy(StrEnum):
    """How a participant behaves."""

    HONEST = "honest"
    OVER_CLAIM = "over-claim"
    FREE_RIDE = "free-ride"


@dataclass(frozen=True)
class Member:
    """One participant of the demo.

    Attributes:
        id: its participant id.
        strategy: how it behaves.
        start_degree: non-iid degree of its data before any effort.
        cost: credits for one unit of degree improved.
        majority: the label that its data are skewed to.
        twin: the honest participant with equally good data, for the dishonest ones.
    """

    id: str
    strategy: Strategy
    start_degree: Fraction
    cost: Fraction
    majority: int
    twin: str | None = None


#: Start degree and cost of the honest participants. At the demo's terms the first two of skewed data make every effort
#: and the others none, so that degrees end at 0, 0.18, 0.33, 0.5, 0.65 and 0.8: further apart than they are measured.
_ANCHORS = (
    (Fraction(0), Fraction(1, 2)),
    (Fraction(5, 10), Fraction(2, 5)),
    (Fraction(9, 10), Fraction(1, 2)),
    (Fraction(5, 10), Fraction(2)),
    (Fraction(65, 100), Fraction(2)),
    (Fraction(8, 10), Fraction(3)),
)

#: Which anchors the dishonest ones share with an honest twin, of those where the best effort is none: for the
#: over-claimer the most skewed data, so that the lie is worth telling; for the free rider balanced data, so that it
#: lacks nothing but the training.
_OVER_CLAIM_TWIN, _FREE_RIDE_TWIN = 1.0, 0.0


def population(participants: int, classes: int) -> list[Member]:
    """The demo's participants, in participant-id order of creation.

    Args:
        participants: how many, 5 to 64.
        classes: labels of the data set.

    Raises:
        CommandError: too few for a quorum beside the two dishonest ones, or too many.
    """
    if not MIN_PARTICIPANTS <= participants <= MAX_PARTICIPANTS:
        raise CommandError(
            f"--participants is {participants}; expected {MIN_PARTICIPANTS} to {MAX_PARTICIPANTS}: a quorum of "
            f"{MIN_QUORUM} honest ones, an over-claimer and a free rider"
        )
    honest = participants - 2
    members = [
        Member(f"honest-{i + 1:02}", Strategy.HONEST, *_anchor(i, honest), majority=i % classes)
        for i in range(honest)
    ]
    for name, strategy, position in (
        ("over-claimer", Strategy.OVER_CLAIM, _OVER_CLAIM_TWIN),
        ("free-rider", Strategy.FREE_RIDE, _FREE_RIDE_TWIN),
    ):
        twin = members[round(position * (honest - 1))]
        # Another label in the majority: two models from the very same samples would rightly count as one.
        majority = (twin.majority + classes // 2) % classes
        members.append(Member(name, strategy, twin.start_degree, twin.cost, majority, twin.id))
    return members


def _anchor(index: int, honest: int) -> tuple[Fraction, Fraction]:
    """Start degree and cost of one of `honest` participants, interpolated between the anchors."""
    position = Fraction(index * (len(_ANCHORS) - 1), honest - 1)
    below = min(int(position), len(_ANCHORS) - 2)
    share = position - below
    (low_degree, low_cost), (high_degree, high_cost) = _ANCHORS[below], _ANCHORS[below + 1]
    return low_degree + share * (high_degree - low_degree), low_cost + share * (high_cost - low_cost)
