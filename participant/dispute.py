"""Opening the counts behind a claim to the coordinator, to be paid as claimed where the evidence agrees.

The coordinator and a task's auditor learn the counts; the ledger says that there is a dispute, and what it brought. It
can be done once a round is settled and until the task ends, and again at any time to see how it stands; the coordinator
takes it once.

What the coordinator last answered is kept in a file of the state folder, for `earnings`: not in the journal, which a
running service holds while the command opens a dispute.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from fedpeer.protocol.codec import decode
from fedpeer.v1 import market_pb2
from mechanism.readable import Readable
from mechanism.settlement import MICRO
from participant.effects import Steps
from participant.errors import StateError
from participant.identity import IdentityFolder
from participant.journal import Journal
from participant.steps import MarketSteps

#: The file of the state folder: a JSON list of `Dispute.record`.
DISPUTES = "disputes.json"


@dataclass(frozen=True)
class DisputedRound:
    """What opened counts change about one settled round.

    Attributes:
        agreed: the claimed degree lies within what the evidence shows.
        explanation: a sentence.
        award_micro: what the round pays on top, micro-credits.
    """

    round: int
    agreed: bool
    explanation: str
    award_micro: int


@dataclass(frozen=True, repr=False)
class Dispute(Readable):
    """How a dispute stands.

    Attributes:
        ledger_index: where the dispute stands in the ledger.
        rounds: those that are settled so far.
        paid: the task has ended, and the awards are posted.
    """

    task_id: str
    ledger_index: int
    rounds: tuple[DisputedRound, ...]
    paid: bool

    @property
    def award_micro(self) -> int:
        """What all rounds so far pay on top, micro-credits."""
        return sum(r.award_micro for r in self.rounds)

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "task": self.task_id,
            "ledger_index": self.ledger_index,
            "award_micro": self.award_micro,
            "paid": self.paid,
            "rounds": [vars(r) for r in self.rounds],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Dispute":
        """Raises KeyError, TypeError or AttributeError where `record` is not one."""
        rounds = tuple(DisputedRound(**r) for r in record["rounds"])
        return cls(record["task"], record["ledger_index"], rounds, record["paid"])

    def __str__(self) -> str:
        """One line for the dispute and one for each round."""
        when = "paid" if self.paid else "to be paid when the task ends"
        lines = [f"{self.task_id}: {Decimal(self.award_micro) / MICRO} credits on top, {when}."]
        lines += [
            f"  round {r.round}: {Decimal(r.award_micro) / MICRO} credits. {r.explanation}"
            for r in self.rounds
        ]
        return "\n".join(lines)


def open_dispute(task_id: str, market: MarketSteps, journal: Journal) -> Steps[Dispute]:
    """Opens the counts that the journal has of a task.

    Raises:
        StateError: this journal has no claim for the task.
        WrongStateError: the coordinator takes no dispute: the terms know none, or the task has ended.
        NotFoundError: no round is settled yet.
    """
    found = yield from market.open_dispute(opening(task_id, journal))
    rounds = tuple(decode(DisputedRound, each) for each in found.rounds)
    dispute = decode(Dispute, found, task_id=task_id, rounds=rounds)
    kept = [other for other in noted_disputes(journal.folder) if other.task_id != task_id]
    records = [other.record() for other in (*kept, dispute)]
    IdentityFolder(journal.folder).write(DISPUTES, json.dumps(records, indent=1).encode(), mode=0o600)
    return dispute


def opening(task_id: str, journal: Journal) -> market_pb2.OpenDisputeRequest:
    """What opens the counts; asks nobody. Raises StateError as `open_dispute`."""
    record = journal.task(task_id)
    if record is None or record.counts is None or record.salt is None:
        raise StateError(
            f"there is no claim for task {task_id!r} in this state folder; counts can be opened from the folder that "
            "claimed them"
        )
    return market_pb2.OpenDisputeRequest(task_id=task_id, counts=json.loads(record.counts), salt=record.salt)


def noted_disputes(folder: Path) -> list[Dispute]:
    """What the coordinator last answered to each dispute that was opened from a state folder.

    Raises:
        StateError: the file cannot be read.
    """
    path = folder / DISPUTES
    if not path.exists():
        return []
    try:
        return [Dispute.from_record(record) for record in json.loads(path.read_bytes())]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateError(
            f"{path} cannot be read ({error}); remove it, and `fedpeer participant dispute` asks the coordinator again"
        ) from error
