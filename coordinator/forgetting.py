"""Forgetting a participant: what the coordinator keeps of it beside the ledger, erased in one transaction.

The ledger stays as it is, and verifies: an entry whose opening is gone says what stands in clear, and no more. What
goes are openings with their salts, assessments and claims beyond what the ledger shows, references to its models, its
bank account, its organisation, and its invitations. It goes once nothing that was promised hangs on it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from coordinator.errors import MarketTaskError
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


@dataclass
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
    names: list[str] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    openings: int = 0
    assessments: int = 0
    models: int = 0
    bank_details: int = 0
    invitations: int = 0
    owed_micro: dict[str, int] = field(default_factory=dict)

    @property
    def unknown(self) -> bool:
        """Whether nothing at all was kept under the name."""
        return not (self.names or self.bank_details or self.invitations)


def forget(t: Transaction, participant_id: str) -> Forgotten:
    """Erases what is kept of a participant and of all its pseudonyms. Safe to repeat: what is gone stays gone.

    Nobody can say whether a name of which nothing is kept was ever known: it is no error, and nothing is found.

    Raises:
        MarketTaskError: it is in good standing, or something that was promised still needs what would be erased;
            nothing was changed.
    """
    own = t.market.participant(participant_id)
    rows = [*([] if own is None else [own]), *t.market.pseudonyms_of(participant_id)]
    for row in rows:
        if row.revoked_at is None:
            raise MarketTaskError(
                f"{row.id!r} is in good standing and can still send something; `revoke {row.id}` first"
            )
        _check_unrepeatable(t, row)
    found = Forgotten(participant_id, [row.id for row in rows])
    for name in found.names:
        _forget(t, name, found)
    found.bank_details += t.market.erase_bank_details(participant_id)
    found.invitations += t.market.erase_person(participant_id)
    return found


def _check_unrepeatable(t: Transaction, row: ParticipantRow) -> None:
    """That nobody could come back to a task under another name: whose a pseudonym is keeps its owner from a second."""
    task = None if row.task_id is None else t.market.task(row.task_id)
    if task is not None and task.state in (State.OPEN, State.EFFORT):
        raise MarketTaskError(
            f"task {task.id!r}, for which {row.id!r} was made, still takes claims: its owner could have a second name "
            f"in it. Wait for its selection, or `cancel {task.id}`"
        )


def _forget(t: Transaction, participant_id: str, found: Forgotten) -> None:
    """Of one identity; what is erased is counted in `found`."""
    tasks = [task for task in t.market.tasks() if t.market.claim(task.id, participant_id) is not None]
    for task in tasks:
        _check_over(t, task, participant_id)
    for line in t.market.paid_out_to(participant_id):
        run = t.market.payout(line.number)
        if run is not None and run.outcome is None:
            raise MarketTaskError(
                f"payout {line.number} is on its way and pays {participant_id!r}; `payout confirm` or `payout "
                "withdraw` first"
            )
    known = t.market.participant(participant_id)
    if known is not None and known.task_id is not None:
        found.openings += t.market.erase_openings(known.task_id, participant_id)
    for task in tasks:
        found.openings += t.market.erase_openings(task.id, participant_id)
        found.models += t.market.erase_models(task.id, participant_id)
        t.market.erase_claim(task.id, participant_id)
        for settled in t.market.paid_to(task.id, participant_id):
            if not settled.erased:
                t.market.set_settlement(task.id, _in_clear(task, settled))
                found.assessments += 1
        for audit in t.market.audits(task.id):
            if audit.participant_id == participant_id:
                t.market.set_audit(task.id, replace(audit, explanation=""))
    found.tasks += [task.id for task in tasks if task.id not in found.tasks]
    found.bank_details += t.market.erase_bank_details(participant_id)
    found.invitations += t.market.erase_person(participant_id)
    if micro := owed(t, participant_id).payable_micro:
        found.owed_micro[participant_id] = micro


def _check_over(t: Transaction, task: TaskRow, participant_id: str) -> None:
    """That no dispute, audit or promise of a task needs what would be erased."""
    if not task.state.final:
        raise MarketTaskError(
            f"task {task.id!r}, in which {participant_id!r} takes part, is {task.state}: disputes and audits need what "
            "would be erased. Wait for its end, or `cancel` it"
        )
    kept = task.terms.schedule.retention_seconds
    if kept is not None and not t.ledger_store.find([deletion_id(task.id)]):
        raise MarketTaskError(
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
