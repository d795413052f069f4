"""What the demo found, as it is printed, plotted and written to result.json."""

from dataclasses import dataclass
from typing import Any

from fedpeer.demo.population import Member
from mechanism.ledger.verify import Report
from mechanism.settlement import MICRO, Verdict
from mechanism.terms import Terms


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
        verdicts: of the screens, each with its round.
    """

    member: Member
    effort: float
    claimed_degree: float
    true_degree: float
    measured_degree: float | None
    cost: float
    paid_micro: int
    expected_micro: int
    verdicts: tuple[tuple[int, Verdict], ...]

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
    def failed(self) -> dict[str, tuple[int, str]]:
        """The screens that it failed, in the order first failed: the round of the first failure and why."""
        found: dict[str, tuple[int, str]] = {}
        for round_, verdict in self.verdicts:
            if not verdict.passed:
                found.setdefault(verdict.screen, (round_, verdict.explanation))
        return found

    def record(self) -> dict[str, Any]:
        """As JSON. A degree that was never measured reads 1, the worst there is."""
        return {
            "id": self.member.id,
            "strategy": str(self.member.strategy),
            "effort": self.effort,
            "claimed_degree": self.claimed_degree,
            "true_degree": self.true_degree,
            "measured_degree": 1.0 if self.measured_degree is None else self.measured_degree,
            "scored": self.measured_degree is not None,
            "cost": self.cost,
            "paid_micro": self.paid_micro,
            "expected_micro": self.expected_micro,
            "utility": self.utility,
            "verdicts": [
                {"round": round_, "screen": v.screen, "passed": v.passed, "explanation": v.explanation}
                for round_, v in self.verdicts
            ],
        }


@dataclass(frozen=True)
class RoundResult:
    """The global model after one round, on held-out data."""

    round: int
    accuracy: float
    loss: float
    seconds: float


@dataclass(frozen=True)
class DemoResult:
    """The whole demo.

    Attributes:
        ledger: what the verification of the exported ledger found.
        seconds: that all of it took.
    """

    terms: Terms
    participants: tuple[ParticipantResult, ...]
    rounds: tuple[RoundResult, ...]
    ledger: Report
    seconds: float

    def participant(self, name: str) -> ParticipantResult:
        return next(p for p in self.participants if p.member.id == name)

    @property
    def paid_micro(self) -> int:
        return sum(p.paid_micro for p in self.participants)

    def record(self) -> dict[str, Any]:
        """The object of `fedpeer demo --json`."""
        terms, ledger = self.terms, self.ledger
        return {
            "task": {
                "id": terms.task_id,
                "Q": float(terms.Q),
                "phi": float(terms.phi),
                "upsilon": float(terms.upsilon),
                "payment": terms.payment.name,
                "reference": [float(p) for p in terms.reference],
                "budget_micro": terms.budget_micro,
            },
            "participants": [p.record() for p in self.participants],
            "rounds": [{**vars(r), "seconds": round(r.seconds, 3)} for r in self.rounds],
            "ledger": {"size": ledger.size, "root": ledger.root, "verified": ledger.verified},
            "seconds": round(self.seconds, 3),
        }
