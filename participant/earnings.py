"""What was earned, checked offline: every payment's receipt against the log key that was seen first.

A receipt proves that the payment's entry stands in the log under a signed checkpoint; what the entry says (task,
round, participant, paid, penalty, stake lost) is compared with the settlement that the coordinator sent. Nobody
is asked. Degrees, peers and verdicts are the coordinator's word here: they stand in other entries, which
`fedpeer ledger verify` recomputes the payment from.
"""

from dataclasses import dataclass
from typing import Any

from fedpeer.v1 import ledger_pb2
from mechanism.ledger.accounts import Balance, Owed, paid, payable
from mechanism.ledger.entry import Entry
from mechanism.ledger.errors import LedgerError
from mechanism.ledger.log_keys import LogKeys
from mechanism.ledger.tlog_proof import TlogProof
from mechanism.price import credits_text
from mechanism.readable import Readable
from participant.effects import Steps
from participant.journal import Journal
from participant.log_keys import pinned_log_keys
from participant.report import Settlement, stored_settlement
from participant.steps import MarketSteps


@dataclass(frozen=True, repr=False)
class Earned(Readable):
    """One settled round.

    Attributes:
        task_id, round: where the journal keeps it.
        settlement: what it says; None where that cannot be read.
        proof_error: why the receipt does not hold; empty where it does.
    """

    task_id: str
    round: int
    settlement: Settlement | None
    proof_error: str

    @property
    def proven_micro(self) -> int:
        """What the round paid as far as the receipt proves it, micro-credits."""
        return 0 if self.settlement is None or self.proof_error else self.settlement.paid_micro

    def __str__(self) -> str:
        paid = (
            "not known" if self.settlement is None else f"{credits_text(self.settlement.paid_micro)} credits"
        )
        if self.settlement is not None:
            paid += f", {credits_text(self.settlement.expected_micro)} expected"
        receipt = self.proof_error or "the receipt holds"
        return f"{self.task_id}, round {self.round}: {paid}; {receipt}; {self.why}"

    @property
    def why(self) -> str:
        """The verdicts in words: those that failed, or that all passed."""
        if self.settlement is None:
            return "not known"
        return self.settlement.failed or "all checks passed"

    def record(self) -> dict[str, Any]:
        """As JSON."""
        s = self.settlement
        named = {"task": self.task_id, "round": self.round}
        if s is None:
            return {**named, "paid_micro": None, "receipt": self.proof_error}
        return {
            **named,
            "paid_micro": s.paid_micro,
            "expected_micro": s.expected_micro,
            "penalty_micro": s.penalty_micro,
            "stake_lost_micro": s.stake_lost_micro,
            "claimed_degree": None if s.claimed_degree is None else str(s.claimed_degree),
            "verified_degree": None if s.verified_degree is None else str(s.verified_degree),
            "peers": list(s.peers),
            "verdicts": [verdict.record() for verdict in s.verdicts],
            "ledger_index": s.ledger_index,
            "receipt": self.proof_error or "holds",
        }


def ask_owed(steps: MarketSteps, participant_id: str) -> Steps[Owed]:
    """What the coordinator says is payable, on its way to the bank, and paid out."""
    held = yield from steps.balance(payable(participant_id))
    gone = yield from steps.balance(paid(participant_id))
    return Owed.of(_balance(held), _balance(gone))


def _balance(message: ledger_pb2.Balance) -> Balance:
    return Balance(
        message.debits_posted_micro,
        message.credits_posted_micro,
        message.debits_pending_micro,
        message.credits_pending_micro,
    )


def check_earnings(journal: Journal, participant_id: str) -> list[Earned]:
    """Every settled round of the journal with its receipt checked, by task and round."""
    return [line for task in journal.tasks() for line in check_task(journal, task.task_id, participant_id)]


def unproven_rounds(journal: Journal, task_id: str, participant_id: str) -> list[int]:
    """Rounds with a recorded model of which the journal has no settlement with a receipt that holds."""
    proven = {line.round for line in check_task(journal, task_id, participant_id) if not line.proof_error}
    sent = {s.round for s in journal.submissions(task_id) if s.kind == "model" and s.receipt is not None}
    return sorted(sent - proven)


def check_task(journal: Journal, task_id: str, participant_id: str) -> list[Earned]:
    """The same of one task, by round."""
    found = []
    try:
        keys = pinned_log_keys(journal)
    except LedgerError:
        keys = None
    for round_, message in journal.settlements(task_id):
        # With its own task and round, and held against its entry, no entry can count for two rounds.
        settlement = stored_settlement(task_id, round_, message)
        error = (
            "the receipt does not hold: the journal's record of the round is damaged"
            if settlement is None
            else receipt_error(settlement, participant_id, keys)
        )
        found.append(Earned(task_id, round_, settlement, error))
    return found


def receipt_error(settlement: Settlement, participant_id: str, keys: LogKeys | None) -> str:
    """Why the settlement's receipt does not prove it; empty where it does."""
    if keys is None:
        return "the log's key is not known: join a task of this coordinator first"
    if not settlement.proof:
        return "the coordinator gave no receipt"
    try:
        proof = TlogProof.parse(settlement.proof)
        keys.verify(proof)
        entry = Entry.parse(proof.entry)
    except (LedgerError, ValueError) as error:
        return f"the receipt does not hold: {error}"
    stated = {
        "task_id": settlement.task_id,
        "round": settlement.round,
        "participant_id": participant_id,
        "paid_micro": settlement.paid_micro,
        "penalty_micro": settlement.penalty_micro,
        "stake_lost_micro": settlement.stake_lost_micro,
    }
    if entry.kind != "payment" or proof.index != settlement.ledger_index:
        return f"the receipt does not hold: it is for another entry ({entry.kind} at {proof.index})"
    differing = [name for name, value in stated.items() if entry.body.get(name) != value]
    if differing:
        return f"the receipt does not hold: the ledger says something else about {', '.join(differing)}"
    return ""
