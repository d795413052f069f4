"""Audits as entries; see `mechanism.audit`.

<task>/round/<r>/audit/<p>/<n>     what the n-th audit of a submission comes to, and a commitment to what was found; the
                                   pay in question is released where it has passed
<task>/round/<r>/appeal/<p>        the participant asks for a second audit
<task>/round/<r>/audit/<p>/end     a time is over
<task>/held/<p>/release, /loss     what was held, when the task ends
<task>/remeasurement/<n>           an auditor has measured the ended task again, and what that comes to
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from mechanism.audit import ENDS, PASSED, UNAPPEALED, UNVISITED, Audit
from mechanism.audit_verdict import AuditVerdict
from mechanism.canonical import Json, canonical_digest
from mechanism.errors import FieldError
from mechanism.ledger.accounts import Transfer, held, moved, payable, stake
from mechanism.ledger.entries import payer
from mechanism.ledger.entry import Entry
from mechanism.settlement import Payment
from mechanism.statements import AuditStatement, RemeasurementStatement, check_salt
from mechanism.terms import Terms


@dataclass(frozen=True)
class AuditFindings:
    """An auditor's statement, and what was measured of the weights that came with it.

    Attributes:
        signature: DER, by the auditor's key.
        features: of the weights, millionths, a list a stratum; empty where none came.
        differences: of shadows, millionths.
    """

    statement: AuditStatement
    signature: bytes
    features: tuple[tuple[int, ...], ...] = ()
    differences: tuple[int, ...] = ()

    def record(self) -> dict[str, Json]:
        return {
            "statement": self.statement.record(),
            "signature": self.signature.hex(),
            "features": [list(row) for row in self.features],
            "differences": list(self.differences),
        }


def question_micro(audit: Audit, line: Payment) -> int:
    """What of an audited round's pay is in question: all that is held of it but what would be held anyway."""
    return line.held_micro - audit.held(line.paid_micro - line.withheld_micro)


def audit(at: str, findings: AuditFindings, verdict: AuditVerdict, question: int, salt: bytes) -> Entry:
    """What an audit has found and comes to. Its findings are not published: the entry commits to them.

    Args:
        at: as of `entries.transition`, here and below.
        question: micro-credits of the round's pay that are in question; released where it has passed.
        salt: 32 random bytes.
    """
    said, opening = findings.statement, {**findings.record(), "salt": check_salt(salt).hex()}
    place = said.task_id, said.round, said.participant_id, said.number
    return audit_as(*place, at, verdict, question, canonical_digest(opening), opening)


def audit_as(
    task_id: str,
    round_: int,
    participant_id: str,
    number: int,
    at: str,
    verdict: AuditVerdict,
    question: int,
    commitment: bytes,
    opening: Mapping[str, Json] | None = None,
) -> Entry:
    """The same of the commitment. The verdict's explanation is in no entry: it tells what is committed to."""
    return Entry(
        audit_id(task_id, round_, participant_id, number),
        "audit",
        {
            "task_id": task_id,
            "round": round_,
            "participant_id": participant_id,
            "number": number,
            "at": at,
            "outcome": verdict.outcome,
            "submitted_micro": verdict.submitted_micro,
            "retrained_micro": verdict.retrained_micro,
            "limit_micro": verdict.limit_micro,
            "commitment": commitment.hex(),
        },
        moved(held(task_id, participant_id), payable(participant_id), question)
        if verdict.outcome == PASSED
        else (),
        opening=opening,
    )


def audit_id(task_id: str, round_: int, participant_id: str, number: int) -> str:
    """Id of the entry of an audit."""
    return f"{task_id}/round/{round_}/audit/{participant_id}/{number}"


def appeal(task_id: str, round_: int, participant_id: str, reason: str, at: str) -> Entry:
    """A participant asks for a second audit of its submission; arguments as above."""
    body: dict[str, Json] = {
        "task_id": task_id, "round": round_, "participant_id": participant_id, "reason": reason, "at": at,
    }  # fmt: skip
    return Entry(f"{task_id}/round/{round_}/appeal/{participant_id}", "appeal", body)


def audit_end(terms: Terms, round_: int, participant_id: str, why: str, question: int, at: str) -> Entry:
    """A time is over: of an audit, of an appeal, or of the audit after one. The pay in question is released, unless
    nobody has appealed, or nobody came in time and the terms give it back to who pays.

    Args:
        why: of `mechanism.audit.ENDS`.

    Raises:
        FieldError: another word.
    """
    if why not in ENDS or terms.audit is None:
        raise FieldError("why", why, "one of " + ", ".join(ENDS))
    task_id, name = terms.task_id, participant_id
    transfers: tuple[Transfer, ...] = ()
    if why != UNAPPEALED:
        back = why == UNVISITED and terms.audit.unaudited == "refunded"
        transfers = moved(held(task_id, name), payer(terms) if back else payable(name), question)
    return Entry(
        f"{task_id}/round/{round_}/audit/{name}/end",
        "audit_end",
        {"task_id": task_id, "round": round_, "participant_id": name, "why": why, "at": at},
        transfers,
    )


def held_entries(
    terms: Terms, helds: Mapping[str, int], stakes: Mapping[str, int], convicted: Collection[str]
) -> list[Entry]:
    """What becomes of all that is held when a task ends: released, or, with the stake, lost by who failed an audit.

    Args:
        helds, stakes: micro-credits by participant id; zeros are passed over.
        convicted: who has failed an audit, and has not appealed or has failed again.
    """
    task_id, made = terms.task_id, []
    for name in sorted(helds):
        account, staked = held(task_id, name), stakes.get(name, 0)
        place: dict[str, Json] = {"task_id": task_id, "participant_id": name}
        if name in convicted:
            lost = moved(account, payer(terms), helds[name]) + moved(
                stake(task_id, name), payer(terms), staked
            )
            if lost:
                made.append(Entry(loss_id(task_id, name), "audit_loss", place, lost))
        elif helds[name]:
            released = moved(account, payable(name), helds[name])
            made.append(Entry(f"{task_id}/held/{name}/release", "held_release", place, released))
    return made


def loss_id(task_id: str, participant_id: str) -> str:
    """Id of the entry with which one that has failed an audit loses what is held."""
    return f"{task_id}/held/{participant_id}/loss"


def remeasurement(statement: RemeasurementStatement, signature: bytes, at: str) -> Entry:
    """An auditor's statement on an ended task, for everybody to read: it says nothing of anybody alone.

    Args:
        signature: DER, by the auditor's key.
    """
    return Entry(
        remeasurement_id(statement.task_id, statement.number),
        "remeasurement",
        {
            "task_id": statement.task_id,
            "at": at,
            "outcome": statement.outcome,
            "statement": statement.record(),
            "signature": signature.hex(),
        },
    )


def remeasurement_id(task_id: str, number: int) -> str:
    """Id of the entry of an auditor's n-th statement on an ended task."""
    return f"{task_id}/remeasurement/{number}"
