"""What was earned, checked offline: every payment's receipt against the log key that was seen first.

A receipt proves that the payment's entry stands in the log under a signed checkpoint; what the entry says is
held against the settlement that the coordinator told. Nobody is asked.
"""

from dataclasses import dataclass
from typing import Any

from mechanism.ledger.entry import Entry
from mechanism.ledger.errors import LedgerError
from mechanism.ledger.note import VerificationKey
from mechanism.ledger.tlog_proof import TlogProof
from participant.journal import LOG_KEY, Journal
from participant.report import Settlement, settlement_of
from protos.fedpeer.v1 import market_pb2


@dataclass(frozen=True)
class Earned:
    """One settled round.

    Attributes:
        proof_error: why the receipt does not hold; empty where it does.
    """

    settlement: Settlement
    proof_error: str

    @property
    def why(self) -> str:
        """The verdicts in words: those that failed, or that all passed."""
        failed = [verdict.explanation for verdict in self.settlement.verdicts if not verdict.passed]
        return " ".join(failed) or "all checks passed"

    def record(self) -> dict[str, Any]:
        """As JSON."""
        s = self.settlement
        return {
            "task": s.task_id,
            "round": s.round,
            "paid_micro": s.paid_micro,
            "penalty_micro": s.penalty_micro,
            "stake_lost_micro": s.stake_lost_micro,
            "claimed_degree": None if s.claimed_degree is None else str(s.claimed_degree),
            "verified_degree": None if s.verified_degree is None else str(s.verified_degree),
            "peers": list(s.peers),
            "verdicts": [verdict.record() for verdict in s.verdicts],
            "ledger_index": s.ledger_index,
            "receipt": self.proof_error or "holds",
        }


def check_earnings(journal: Journal, participant_id: str) -> list[Earned]:
    """Every settled round of the journal with its receipt checked, by task and round."""
    key = journal.meta(LOG_KEY)
    return [
        Earned(settlement, receipt_error(settlement, participant_id, key))
        for task in journal.tasks()
        for _, message in journal.settlements(task.task_id)
        for settlement in [settlement_of(market_pb2.Settlement.FromString(message))]
    ]


def receipt_error(settlement: Settlement, participant_id: str, log_key: str | None) -> str:
    """Why the settlement's receipt does not prove it; empty where it does."""
    if log_key is None:
        return "the log's key is not known: join a task of this coordinator first"
    if not settlement.proof:
        return "the coordinator gave no receipt"
    try:
        proof = TlogProof.parse(settlement.proof)
        proof.verify(VerificationKey.parse(log_key))
        entry = Entry.parse(proof.entry)
    except LedgerError as error:
        return f"the receipt does not hold: {error}"
    told = {
        "task_id": settlement.task_id,
        "round": settlement.round,
        "participant_id": participant_id,
        "paid_micro": settlement.paid_micro,
    }
    if entry.kind != "payment" or proof.index != settlement.ledger_index:
        return f"the receipt is for another entry ({entry.kind} at {proof.index})"
    differing = [name for name, value in told.items() if entry.body.get(name) != value]
    if differing:
        return f"the ledger says something else about {', '.join(differing)}"
    return ""
