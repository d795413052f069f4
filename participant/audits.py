"""Audits by re-training, as the participant sees them: whose turn it is, what was found, and appeals.

A claim commits to the samples by a root that hangs on a salt. The salt follows from the participant's key and the
task's terms, so nothing has to be kept but the key; with it and the samples an auditor recomputes the root.
"""

import hmac
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from fedpeer.protocol.codec import decode
from fedpeer.v1 import market_pb2
from mechanism.price import credits_text
from mechanism.readable import Readable
from mechanism.terms import Terms
from participant.effects import Steps
from participant.steps import MarketSteps

_SALT = b"fedpeer samples salt v1"

#: What each stage of an audit means for the participant.
_WORDS = {
    "open": "an auditor is awaited",
    "failed": "it has failed, and an appeal may be made",
    "appealed": "the second audit is awaited",
    "released": "the pay is released",
    "refunded": "nobody came in time, and the pay has gone back to who pays, as the terms say",
    "convicted": "it has failed for good: what is held and staked is lost when the task ends",
}


@dataclass(frozen=True, repr=False)
class AuditStanding(Readable):
    """How the audit of one submission stands.

    Attributes:
        stage: "open", "failed" or "appealed", while something is awaited; "released", "refunded" or "convicted" after.
        question_micro: of the round's pay, what is in question.
        due: until when what is awaited may come, UTC; None where nothing is.
        explanation: of the last verdict, or why there was none; empty before.
    """

    task_id: str
    round: int
    stage: str
    question_micro: int
    due: datetime | None
    explanation: str

    def __str__(self) -> str:
        due = f" until {self.due:%Y-%m-%d %H:%M} UTC" if self.due is not None else ""
        return (
            f"{self.task_id}, round {self.round}: {_WORDS.get(self.stage, self.stage)}{due}; "
            f"{credits_text(self.question_micro)} credits in question. {self.explanation}"
        ).rstrip()

    def record(self) -> dict[str, Any]:
        """As JSON."""
        record = {**vars(self), "due": None if self.due is None else self.due.isoformat()}
        return {"task": record.pop("task_id"), **record}


def samples_salt(key: ec.EllipticCurvePrivateKey, terms_digest: bytes, participant_id: str) -> bytes:
    """Salt of the commitment to the samples in a task, 32 bytes that only the key's holder can tell.

    HMAC-SHA-256(the key's private value, 32 bytes, label | digest of the terms | participant id)
    """
    private = key.private_numbers().private_value.to_bytes(32, "big")
    return hmac.digest(private, _SALT + terms_digest + participant_id.encode(), "sha256")


def salt_for(
    task_id: str, market: MarketSteps, key: ec.EllipticCurvePrivateKey, participant_id: str
) -> Steps[bytes]:
    """What an auditor is given with the samples of a task. Raises NotFoundError where there is no such task."""
    task = yield from market.task(task_id)
    return samples_salt(key, Terms.parse(task.terms).digest, participant_id)


def audits_of(task_id: str, market: MarketSteps) -> Steps[tuple[AuditStanding, ...]]:
    """How the audits of this participant's submissions stand, in the order of rounds.

    Raises:
        NotFoundError: no such task.
    """
    found = yield from market.audits(task_id)
    return _standing(task_id, found)


def appeal(task_id: str, round_: int, reason: str, market: MarketSteps) -> Steps[tuple[AuditStanding, ...]]:
    """Asks for a second audit after one that failed; the reason stands in the ledger, for everybody.

    Raises:
        NotSelectedError: no audit of that round; WrongStateError: none that failed, or the time is over.
        InvalidSubmissionError: a reason that is too long.
    """
    request = market_pb2.AppealRequest(task_id=task_id, round=round_, reason=reason)
    found = yield from market.appeal(request)
    return _standing(task_id, found)


def _standing(task_id: str, found: market_pb2.Audits) -> tuple[AuditStanding, ...]:
    return tuple(
        decode(
            AuditStanding,
            each,
            task_id=task_id,
            due=each.due.ToDatetime(tzinfo=UTC) if each.HasField("due") else None,
        )
        for each in found.audits
    )
