"""Forgetting a participant: what the coordinator keeps of it beside the ledger, erased in one transaction.

The ledger stays as it is, and verifies: an entry whose opening is gone says what stands in clear, and no more. What
goes are openings with their salts, assessments and claims beyond what the ledger shows, references to its models, its
bank account, its organisation, and its invitations. It goes once nothing that was promised hangs on it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from coordinator.errors import TaskError
from coordinator.payouts import owed
from coordinator.storage.identities import ParticipantRow
from coordinator.storage.rounds import SettlementRow
from coordinator.storage.tasks import TaskRow
from coordinator.transaction import Transaction
from mechanism.ledger.entries import assessment_record, deletion_id
from mechanism.lifecycle import State
from mechanism.settlement import MICRO, Assessment, Verdict

#: In the place of a verdict's sentence.
ERASED = "Erased."


@dataclass(frozen=True)
class Forgotten:
    """What was erased; all zero where everything was before.

    Attributes:
        names: under which it enrolled and that were still known to be its own: what is owed hangs on them.
        tasks: that the participant has claimed in.
        invitations: how many were erased; one that was open can be used no more.
        openings, assessments, models, bank_details: how many were erased; `models` are files that the service deletes
            at its next housekeeping, unless somebody else has sent the same.
        owed_micro: what is still owed, by name, and stays so; names that are owed nothing are left out.
    """

    participant_id: str
    names: tuple[str, ...]
    tasks: tuple[str, ...]
    openings: int
    assessments: int
    models: int
    bank_details: int
    invitations: int
    owed_micro: Mapping[str, int]

    @property
    def unknown(self) -> bool:
        """Whether nothing at all was kept under the name."""
        return not (self.names or self.bank_details or self.invitations)

    def record(self) -> dict[str, Any]:
        return {
            **vars(self),
            "names": list(self.names),
            "tasks": list(self.tasks),
            "owed_micro": dict(self.owed_micro),
        }


def forget(t: Transaction, participant_id: str) -> Forgotten:
    """Erases what is kept of a participant and of all its pseudonyms. Safe to repeat: what is gone stays gone.

    Nobody can say whether a name of which nothing is kept was ever known: it is no error, and nothing is found.

    Raises:
        TaskError: it is in good standing, or something that was promised still needs what would be erased; nothing was
            changed.
    """
    own = t.market.participant(participant_id)
    rows = [*([] if own is None else [own]), *t.market.pseudonyms_of(participant_id)]
    for row in rows:
        if row.revoked_at is None:
            raise TaskError(
                f"{row.id!r} is in good standing and can still send something; `revoke {row.id}` first"
            )
        _check_unrepeatable(t, row)
    parts = [_forget(t, row.id) for row in rows]
    return Forgotten(
        participant_id,
        tuple(row.id for row in rows),
        tuple(dict.fromkeys(task for part in parts for task in part.tasks)),
        sum(part.openings for part in parts),
        sum(part.assessments for part in parts),
        sum(part.models for part in parts),
        sum(part.bank_details for part in parts) + t.market.erase_bank_details(participant_id),
        sum(part.invitations for part in parts) + t.market.erase_person(participant_id),
        {name: micro for part in parts for name, micro in part.owed_micro.items()},
    )


def _check_unrepeatable(t: Transaction, row: ParticipantRow) -> None:
    """That nobody could come back to a task under another name: whose a pseudonym is keeps its owner from a second."""
    task = None if row.task_id is None else t.market.task(row.task_id)
    if task is not None and task.state in (State.OPEN, State.EFFORT):
        raise TaskError(
            f"task {task.id!r}, for which {row.id!r} was made, still takes claims: its owner could have a second name "
            f"in it. Wait for its selection, or `cancel {task.id}`"
        )


def _forget(t: Transaction, participant_id: str) -> Forgotten:
    """Of one identity."""
    tasks = [task for task in t.market.tasks() if t.market.claim(task.id, participant_id) is not None]
    for task in tasks:
        _check_over(t, task, participant_id)
    for line in t.market.paid_out_to(participant_id):
        run = t.market.payout(line.number)
        if run is not None and run.outcome is None:
            raise TaskError(
                f"payout {line.number} is on its way and pays {participant_id!r}; `payout confirm` or `payout "
                "withdraw` first"
            )
    openings = assessments = models = 0
    known = t.market.participant(participant_id)
    if known is not None and known.task_id is not None:
        openings += t.market.erase_openings(known.task_id, participant_id)
    for task in tasks:
        openings += t.market.erase_openings(task.id, participant_id)
        models += t.market.erase_models(task.id, participant_id)
        t.market.erase_claim(task.id, participant_id)
        for settled in t.market.paid_to(task.id, participant_id):
            if not settled.erased:
                t.market.set_settlement(task.id, _in_clear(task, settled))
                assessments += 1
        for audit in t.market.audits(task.id):
            if audit.participant_id == participant_id:
                t.market.set_audit(task.id, replace(audit, explanation=""))
    bank_details = t.market.erase_bank_details(participant_id)
    invitations = t.market.erase_person(participant_id)
    micro = owed(t, participant_id).payable_micro
    return Forgotten(
        participant_id,
        (participant_id,),
        tuple(task.id for task in tasks),
        openings,
        assessments,
        models,
        bank_details,
        invitations,
        {participant_id: micro} if micro else {},
    )


def _check_over(t: Transaction, task: TaskRow, participant_id: str) -> None:
    """That no dispute, audit or promise of a task needs what would be erased."""
    if not task.state.final:
        raise TaskError(
            f"task {task.id!r}, in which {participant_id!r} takes part, is {task.state}: disputes and audits need what "
            "would be erased. Wait for its end, or `cancel` it"
        )
    kept = task.terms.schedule.retention_seconds
    if kept is not None and not t.ledger_store.find([deletion_id(task.id)]):
        raise TaskError(
            f"the terms of task {task.id!r} promise to keep what was sent for {kept} seconds after its end, and to "
            "delete it then; forget after the ledger says that it was deleted"
        )


def _in_clear(task: TaskRow, line: SettlementRow) -> SettlementRow:
    """What of a settled round the ledger shows everybody."""
    own = line.assessment
    shown: Assessment = replace(
        own,
        claimed_degree=Fraction(0),
        lower_micro=None,
        upper_micro=None,
        holders_micro=MICRO,
        distinct_micro=MICRO,
        scores={name: own.scores[name] for name in own.scores if name == task.terms.rule.name},
        verdicts=tuple(Verdict(each.screen, each.passed, ERASED, {}) for each in own.verdicts),
    )
    record: Mapping[str, Any] = {**line.record, "assessment": assessment_record(shown), "erased": True}
    return replace(line, record=record)
