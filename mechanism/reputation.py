"""A participant's standing across tasks, from the ledger: for whom an operator invites, never in a payment.

Of each settled round in which it was selected there is an event, kept (s = 1) or not (s = 0), and one of each audit
that has come to an end. With ages in days, at most `WINDOW_DAYS`,

    reputation = (PRIOR / 2 + sum_i 2^(-age_i / HALF_LIFE_DAYS) s_i) / (PRIOR + sum_i 2^(-age_i / HALF_LIFE_DAYS))

*Symmetric*: with s and 1 - s exchanged it is 1 less itself, so that a good name is lost as fast as a bad one, and
either fades at the same pace: one half of an event's weight in `HALF_LIFE_DAYS`, all of it after the window. Who is
new, or has long been away, has 1/2. That somebody sent nothing because it said so, or was not scored, counts as not
kept: those are what an operator cannot rely on. An operator's own word enters nowhere, and the reasons are the
ledger's.

`mechanism.ledger.reputation` has the events of a ledger.

Source: Josang and Ismail 2002, The beta reputation system, whose mean this is, with decay.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from mechanism.canonical import Json
from mechanism.readable import Readable

#: Days in which an event loses half of its weight, and after which it counts for nothing.
HALF_LIFE_DAYS, WINDOW_DAYS = 90, 365

#: Weight of what is assumed of somebody new: as much as four rounds of today, half of them kept.
PRIOR = 4

_DAY = 86_400


@dataclass(frozen=True)
class ReputationEvent:
    """What a round, or an audit, has shown of a participant.

    Attributes:
        at: seconds since the epoch.
        kept: whether it did what it had said.
        explanation: a sentence.
    """

    task_id: str
    round: int
    at: int
    kept: bool
    explanation: str


@dataclass(frozen=True, repr=False)
class Reputation(Readable):
    """A participant's standing at a time.

    Attributes:
        value: in [0, 1]; 1/2 of one of whom nothing is known.
        reasons: the events that count, the latest first, each with its weight in (0, 1].
    """

    participant_id: str
    value: float
    reasons: tuple[tuple[ReputationEvent, float], ...]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """One for the whole and one for each reason."""
        said = f"{self.value:.3f}, from {len(self.reasons)} events of the last {WINDOW_DAYS} days"
        reasons = [
            f"  {'+' if event.kept else '-'} {weight:.2f}  {event.task_id}, round {event.round}: {event.explanation}"
            for event, weight in self.reasons
        ]
        return [f"{self.participant_id}: {said}", *reasons]

    def record(self) -> dict[str, Json]:
        """As JSON, numbers as decimals of three places."""
        return {
            "participant": self.participant_id,
            "reputation": f"{self.value:.3f}",
            "reasons": [{**vars(event), "weight": f"{weight:.3f}"} for event, weight in self.reasons],
        }


def reputation(participant_id: str, events: Iterable[ReputationEvent], now: float) -> Reputation:
    """The standing at `now`, seconds since the epoch; events in any order, later ones left out."""
    weighed = [
        (event, 2 ** (-(now - event.at) / _DAY / HALF_LIFE_DAYS))
        for event in sorted(events, key=lambda e: (-e.at, e.task_id, -e.round))
        if 0 <= now - event.at <= WINDOW_DAYS * _DAY
    ]
    total = sum(weight for _, weight in weighed)
    kept = sum(weight for event, weight in weighed if event.kept)
    return Reputation(participant_id, (PRIOR / 2 + kept) / (PRIOR + total), tuple(weighed))
