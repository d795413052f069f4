"""What the demo found, as it is printed, plotted and written to result.json."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from fedpeer.demo.population import Member
from mechanism.settlement import MICRO, Verdict


@dataclass(frozen=True)
class RoundVerdict:
    """A screen's verdict in one round."""

    round: int
    verdict: Verdict


@dataclass(frozen=True)
class ParticipantResult:
    """One participant's line.

    Attributes:
        member: who it is.
        effort: effort that it really made.
        claimed_degree, true_degree: after the effort.
        measured_degree: mean of the verified degrees over the rounds that were scored; None where none was.
        cost: credits, over all rounds.
        paid_micro: earned in all rounds, less stake lost: its balance in the ledger at the end.
        expected_micro: the same if each round had scored it against every peer that could be drawn.
    """

    member: Member
    effort: float
    claimed_degree: float
    true_degree: float
    measured_degree: float | None
    cost: float
    paid_micro: int
    expected_micro: int
    verdicts: tuple[RoundVerdict, ...]

    @property
    def paid(self) -> float:
        """Credits."""
        return self.paid_micro / MICRO

    @property
    def expected(self) -> float:
        """Credits that were expected before the draws."""
        return self.expected_micro / MICRO

    @property
    def utility(self) -> float:
        """Paid less cost, credits."""
        return self.paid - self.cost

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the screens that it failed in any round, in the order first failed."""
        return tuple(dict.fromkeys(v.verdict.screen for v in self.verdicts if not v.verdict.passed))


@dataclass(frozen=True)
class RoundResult:
    """The global model after one round, on held-out data."""

    round: int
    accuracy: float
    loss: float
    seconds: float


@dataclass(frozen=True)
class TaskFacts:
    """The terms that the result should be read with."""

    id: str
    Q: Decimal
    phi: Decimal
    upsilon: Decimal
    payment: str
    reference: tuple[str, ...]
    budget_micro: int


@dataclass(frozen=True)
class LedgerFacts:
    """Size and root of the ledger, and whether it verified."""

    size: int
    root: str
    verified: bool


@dataclass(frozen=True)
class DemoResult:
    """The whole demo."""

    task: TaskFacts
    participants: tuple[ParticipantResult, ...]
    rounds: tuple[RoundResult, ...]
    ledger: LedgerFacts
    seconds: float

    def participant(self, name: str) -> ParticipantResult:
        return next(p for p in self.participants if p.member.id == name)

    @property
    def paid_micro(self) -> int:
        return sum(p.paid_micro for p in self.participants)

    def record(self) -> dict[str, Any]:
        """The object of `fedpeer demo --json`. A degree that was never measured reads 1, the worst there is."""
        return {
            "task": {
                "id": self.task.id,
                "Q": float(self.task.Q),
                "phi": float(self.task.phi),
                "upsilon": float(self.task.upsilon),
                "payment": self.task.payment,
                "reference": [float(_ratio(p)) for p in self.task.reference],
                "budget_micro": self.task.budget_micro,
            },
            "participants": [_participant_record(p) for p in self.participants],
            "rounds": [
                {"round": r.round, "accuracy": r.accuracy, "loss": r.loss, "seconds": round(r.seconds, 3)}
                for r in self.rounds
            ],
            "ledger": {
                "size": self.ledger.size,
                "root": self.ledger.root,
                "verified": self.ledger.verified,
            },
            "seconds": round(self.seconds, 3),
        }


def _participant_record(result: ParticipantResult) -> dict[str, Any]:
    return {
        "id": result.member.id,
        "strategy": str(result.member.strategy),
        "effort": result.effort,
        "claimed_degree": result.claimed_degree,
        "true_degree": result.true_degree,
        "measured_degree": 1.0 if result.measured_degree is None else result.measured_degree,
        "scored": result.measured_degree is not None,
        "cost": result.cost,
        "paid_micro": result.paid_micro,
        "expected_micro": result.expected_micro,
        "utility": result.utility,
        "verdicts": [
            {
                "round": v.round,
                "screen": v.verdict.screen,
                "passed": v.verdict.passed,
                "explanation": v.verdict.explanation,
            }
            for v in result.verdicts
        ],
    }


def _ratio(text: str) -> Decimal:
    numerator, _, denominator = text.partition("/")
    return Decimal(numerator) / Decimal(denominator or 1)
