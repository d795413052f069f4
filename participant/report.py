"""How a task went: receipts, settlements and missed rounds, from the journal."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction

from google.protobuf.message import DecodeError

from fedpeer.protocol.codec import decode, decode_verdict
from fedpeer.v1 import market_pb2
from mechanism.price import credits_text
from mechanism.readable import Readable, Table
from mechanism.settlement import MICRO, Verdict
from participant.journal import Journal, key_problems


@dataclass(frozen=True, repr=False)
class Receipt(Readable):
    """That the coordinator has durably recorded a submission.

    Attributes:
        digest: SHA-256 of the canonical submission.
        ledger_index: where its entry stands in the ledger.
        late: it came after its phase had closed: recorded, not scored.
    """

    submission_id: str
    task_id: str
    round: int
    kind: str
    digest: bytes
    ledger_index: int
    late: bool

    def __str__(self) -> str:
        what = self.kind if self.kind == "claim" else f"{self.kind} of round {self.round}"
        late = "; it came too late to be scored" if self.late else ""
        return f"{self.task_id}: the {what} is recorded as ledger entry {self.ledger_index}{late}"


@dataclass(frozen=True, repr=False)
class Settlement(Readable):
    """What a participant was paid in a round, and why. Amounts in micro-credits.

    Attributes:
        claimed_degree, verified_degree: None where none stands.
        peers: who it was scored against, in id order.
        verdicts: of every screen.
        ledger_index: where the payment's entry stands in the ledger.
        proof: a C2SP tlog-proof of that entry; verifies offline.
        expected_micro: what the round would have paid against everybody that could be drawn; the coordinator's word.
        opening: what the ledger's verdict commits to (`mechanism.ledger.openings`), canonical JSON; empty where the
            coordinator has erased it.
        held_micro: what of it is held for audits; audited: whether this submission is audited.
    """

    task_id: str
    round: int
    paid_micro: int
    penalty_micro: int
    stake_lost_micro: int
    claimed_degree: Fraction | None
    verified_degree: Fraction | None
    peers: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    ledger_index: int
    proof: str = field(repr=False, default="")
    expected_micro: int = 0
    opening: bytes = field(repr=False, default=b"")
    held_micro: int = 0
    audited: bool = False

    @property
    def paid(self) -> Decimal:
        """Credits."""
        return Decimal(self.paid_micro) / MICRO

    @property
    def failed(self) -> str:
        """What the screens that it did not pass say; empty where all passed."""
        return " ".join(verdict.explanation for verdict in self.verdicts if not verdict.passed)

    def __str__(self) -> str:
        scored = (
            "not scored" if self.verified_degree is None else f"scored by {degree_text(self.verified_degree)}"
        )
        claimed = "nothing" if self.claimed_degree is None else degree_text(self.claimed_degree)
        lines = [
            f"{self.task_id}, round {self.round}: {credits_text(self.paid_micro)} credits, "
            f"{credits_text(self.expected_micro)} expected before peers were drawn",
            f"  degree: {scored}, {claimed} claimed; against {', '.join(self.peers) or 'nobody'}",
            f"  penalty {credits_text(self.penalty_micro)}, stake lost {credits_text(self.stake_lost_micro)}",
            f"  {self.failed or 'all checks passed'}",
        ]
        if self.held_micro:
            why = "till its audit has passed" if self.audited else "to the end of the task"
            lines.append(f"  {credits_text(self.held_micro)} of it held {why}")
        return "\n".join(lines)


@dataclass(frozen=True, repr=False)
class RoundReport(Readable):
    """One round as it went for this participant.

    Attributes:
        receipt: of the model; None where none was recorded.
        missed: why there is no model, or why it was refused; empty where there is one.
        settlement: None before the round is settled.
        metrics: what the task measured for itself.
    """

    number: int
    receipt: Receipt | None
    missed: str
    settlement: Settlement | None
    metrics: Mapping[str, float]

    def __str__(self) -> str:
        if self.settlement is None:
            return f"round {self.number}: {self.missed or 'not settled yet'}"
        return f"round {self.number}: {self.settlement.paid} credits. {self.settlement.failed}".rstrip()


@dataclass(frozen=True, repr=False)
class TaskReport(Readable):
    """One task as it went for this participant.

    Attributes:
        state: the last state seen, such as "CLOSED"; "JOINED" before any was.
        effort: what was decided; None before.
        claimed_degree: of the claimed counts; None before.
        note: why it was cancelled, or that others were selected.
        key_problems: what the last look at the keys of this participant's name found, such as one that is not its own.
    """

    task_id: str
    participant_id: str
    state: str
    effort: Decimal | None
    claimed_degree: Fraction | None
    claim: Receipt | None
    rounds: tuple[RoundReport, ...]
    note: str = ""
    key_problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        """One line for the task and one for each round."""
        return "\n".join([self._title, *(f"  {line}" for line in self.rounds), *self.key_problems])

    @property
    def _title(self) -> str:
        return f"{self.task_id}: {self.state}, {credits_text(self.paid_micro)} credits. {self.note}".strip()

    def _table(self) -> Table:
        rows = [
            (
                line.number,
                "" if line.settlement is None else credits_text(line.settlement.paid_micro),
                ", ".join(f"{name} {value:g}" for name, value in line.metrics.items()),
                line.missed if line.settlement is None else line.settlement.failed,
            )
            for line in self.rounds
        ]
        return Table(
            self._title, ("round", "credits", "metrics", "remarks"), rows, " ".join(self.key_problems)
        )

    @property
    def paid_micro(self) -> int:
        """Earned in all settled rounds, micro-credits."""
        return sum(r.settlement.paid_micro for r in self.rounds if r.settlement is not None)


def receipt_of(message: market_pb2.Receipt) -> Receipt:
    return decode(Receipt, message)


def settlement_of(message: market_pb2.Settlement) -> Settlement:
    return decode(
        Settlement,
        message,
        claimed_degree=_degree(message.claimed_degree),
        verified_degree=_degree(message.verified_degree),
        peers=tuple(message.peers),
        verdicts=tuple(map(decode_verdict, message.verdicts)),
    )


def stored_settlement(task_id: str, round_: int, message: bytes) -> Settlement | None:
    """The settlement that the journal keeps for a round; None where it is damaged or another round's."""
    try:
        settlement = settlement_of(market_pb2.Settlement.FromString(message))
    except (DecodeError, ValueError, ArithmeticError):
        return None
    return settlement if (settlement.task_id, settlement.round) == (task_id, round_) else None


def report_of(journal: Journal, task_id: str, participant_id: str) -> TaskReport:
    """The report of a task that the journal knows."""
    from mechanism.degree import noniid_degree
    from mechanism.terms import Terms

    record = journal.task(task_id)
    if record is None:
        raise KeyError(task_id)
    submissions = {(s.kind, s.round): s for s in journal.submissions(task_id)}
    settlements = {
        number: stored_settlement(task_id, number, message)
        for number, message in journal.settlements(task_id)
    }

    def receipt(kind: str, round_: int) -> Receipt | None:
        found = submissions.get((kind, round_))
        if found is None or found.receipt is None:
            return None
        return receipt_of(market_pb2.Receipt.FromString(found.receipt))

    rounds = []
    for line in journal.rounds(task_id):
        model = submissions.get(("model", line.round))
        refused = model.reason if model is not None and model.status == "refused" else ""
        rounds.append(
            RoundReport(
                number=line.round,
                receipt=receipt("model", line.round),
                missed=line.reason or refused,
                settlement=settlements.get(line.round),
                metrics=json.loads(line.metrics),
            )
        )
    degree = None
    if record.counts:
        degree = noniid_degree(json.loads(record.counts), Terms.parse(record.terms).reference)
    return TaskReport(
        task_id=task_id,
        participant_id=participant_id,
        state=state_name(record.state),
        effort=Decimal(record.effort) if record.effort else None,
        claimed_degree=degree,
        claim=receipt("claim", 0),
        rounds=tuple(rounds),
        note=record.note,
        key_problems=key_problems(journal),
    )


def state_name(state: int) -> str:
    """A task's state without the prefix of its enum; "JOINED" before the coordinator has stated any."""
    if state == market_pb2.TASK_STATE_UNSPECIFIED:
        return "JOINED"
    return str(market_pb2.TaskState.Name(market_pb2.TaskState.ValueType(state))).removeprefix("TASK_STATE_")


def degree_text(degree: Fraction) -> str:
    """A degree in [0, 1] for people."""
    return f"{float(degree):.4f}"


def _degree(text: str) -> Fraction | None:
    return Fraction(text) if text else None
