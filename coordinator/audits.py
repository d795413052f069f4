"""Audits as the coordinator takes them: what an auditor is given, what it brings back, appeals; and what it says of an
ended task that it has measured again.

What is measured of re-trained weights is measured by the operator's command, not by the service: it trains the round's
shadows again, and each of them once more by a second seed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coordinator.config import EvidenceSection
from coordinator.errors import MarketTaskError
from coordinator.scoring import RoundStart, make_scorer, new_salt
from coordinator.storage.audits import APPEALED, CONVICTED, FAILED, OPEN, RELEASED, AuditRow
from coordinator.storage.tasks import TaskRow
from coordinator.transaction import Transaction
from fedpeer.protocol.audit_folder import AuditOrder, Brought, BroughtRemeasurement, TaskOrder
from fedpeer.protocol.errors import Code, Refusal
from fedpeer.protocol.model_file import ModelFileError
from mechanism.audit import FAILED as HAS_FAILED
from mechanism.audit import MAX_REMARK, Audit, auditor_key
from mechanism.audit_verdict import AuditVerdict, judge
from mechanism.canonical import parse_canonical
from mechanism.errors import FieldError
from mechanism.evidence import EvidenceModel, Measurement
from mechanism.ledger import audit_entries
from mechanism.ledger.entries import aggregation_id, deletion_id, evidence_id, verdict_id
from mechanism.ledger.entry import Entry
from mechanism.ledger.merkle import leaf_hash
from mechanism.statements import ClaimOpening, ClaimStatement, measured_after, signature_holds


def section(row: TaskRow) -> Audit:
    """What a task's terms say of audits. Raises MarketTaskError where they have none."""
    if row.terms.audit is None:
        raise MarketTaskError(
            f"the terms of task {row.id!r} have no audits; a section [audit] of the task file makes them"
        )
    return row.terms.audit


def pending(t: Transaction, row: TaskRow, round_: int, participant_id: str) -> AuditRow:
    """An audit that is awaited, the first or, after an appeal, the second.

    Raises:
        MarketTaskError: none is.
    """
    section(row)
    found = t.market.audit(row.id, round_, participant_id)
    if found is None or found.stage not in (OPEN, APPEALED):
        standing = "was not drawn" if found is None else f"is {found.stage}"
        raise MarketTaskError(
            f"no audit of {participant_id!r} for round {round_} of task {row.id!r} is awaited: it {standing}"
        )
    return found


def order(t: Transaction, row: TaskRow, round_: int, participant_id: str) -> AuditOrder:
    """What the auditor of a submission is given. Raises MarketTaskError as `pending`."""
    awaited = pending(t, row, round_, participant_id)
    [claimed] = [r for r in t.market.receipts(row.id, participant_id) if r.kind == "claim"]
    entry = t.entry(claimed.ledger_index)
    start = next(r.start_model for r in t.market.rounds(row.id) if r.round == round_)
    [sent] = [m.model_sha256 for m in t.market.models(row.id, round_) if m.participant_id == participant_id]
    return AuditOrder(
        row.terms,
        ClaimStatement.from_record(entry.body["statement"]),
        ClaimOpening.from_record(_opened(t, row, entry.id)),
        round_,
        awaited.number,
        start,
        sent,
    )


def _opened(t: Transaction, row: TaskRow, entry_id: str) -> Any:
    """What an entry commits to. Raises MarketTaskError where it was erased."""
    kept = t.market.opening(row.id, entry_id)
    if kept is None:
        raise MarketTaskError(
            f"what {entry_id} commits to was erased; without it there is nothing to audit against"
        )
    return parse_canonical(kept.opening)


@dataclass(frozen=True)
class Ground:
    """What an audit's verdict rests on besides what the auditor brings.

    Attributes:
        model: the round's evidence; submitted_micro: the degree that it estimates of the submission.
    """

    ordered: AuditOrder
    model: EvidenceModel
    submitted_micro: int


def ground(t: Transaction, row: TaskRow, brought: Brought) -> Ground:
    """Of an audit that is awaited.

    Raises:
        MarketTaskError: it is not, another than its auditor has signed, or it is about other terms or another start.
    """
    said = brought.statement
    ordered = order(t, row, said.round, said.participant_id)
    wanted = (row.id, row.terms.digest, ordered.number, ordered.start_sha256)
    if (said.task_id, said.terms_digest, said.number, said.start_sha256) != wanted:
        raise MarketTaskError(
            f"the statement is not about the audit that is awaited: number {ordered.number} of round {said.round} of "
            f"task {row.id!r}, under its terms and from its start; have the auditor begin from a new order"
        )
    if not signature_holds(said, brought.signature, auditor_key(section(row).auditor)):
        raise MarketTaskError("the statement is not signed by the auditor whom the terms name")
    model = EvidenceModel.from_record(_opened(t, row, evidence_id(row.id, said.round))["model"])
    judged = _opened(t, row, verdict_id(row.id, said.round, said.participant_id))
    measured = Measurement.from_record(judged["measurement"])
    return Ground(ordered, model, model.degree.degree_micro(measured.features))


def measured(
    row: TaskRow, start: RoundStart, ground: Ground, brought: Brought
) -> audit_entries.AuditFindings:
    """The findings with what is measured of the re-trained weights. It trains models: minutes.

    Raises:
        MarketTaskError: weights that do not fit the contract, or shadows that are trained otherwise here.
    """
    from coordinator.scoring import ShadowModels

    findings = audit_entries.AuditFindings(brought.statement, brought.signature)
    if brought.weights is None:
        return findings
    scorer = make_scorer(row)
    try:
        assert isinstance(scorer, ShadowModels), "audits are of the rule that measures"
        features, differences, shadows = scorer.remeasure(start, brought.weights)
    except ModelFileError as error:
        raise MarketTaskError(f"{brought.weights} is no model of this task ({error})") from None
    finally:
        scorer.close()
    if shadows != ground.model.shadows_sha256:
        raise MarketTaskError(
            "the round's shadow models come out otherwise than they did when it was scored, so that nothing can be "
            "compared; run this command on the machine that serves, with the data of then"
        )
    return replace(findings, features=features, differences=differences)


def record(
    t: Transaction, row: TaskRow, ground: Ground, findings: audit_entries.AuditFindings
) -> AuditVerdict:
    """Records an audit and its verdict. Raises MarketTaskError where it is not awaited any more, or too late."""
    said, audit = findings.statement, section(row)
    awaited = pending(t, row, said.round, said.participant_id)
    if awaited.due_at is not None and t.now >= awaited.due_at:
        raise MarketTaskError(
            f"the time for this audit, {audit.seconds} seconds, is over; nothing was recorded"
        )
    again = ground.model.degree.degree_micro(findings.features) if findings.features else None
    root, claimed = ground.ordered.claim.samples_root, ground.ordered.opening.degree
    verdict = judge(audit, said, root, claimed, ground.submitted_micro, again, findings.differences)
    salt = new_salt(audit_entries.audit_id(row.id, said.round, said.participant_id, said.number))
    t.record(audit_entries.audit(t.at(row.id), findings, verdict, awaited.question_micro, salt))
    if verdict.outcome != HAS_FAILED:
        after = replace(awaited, stage=RELEASED, due_at=None)
    elif said.number == 2:
        after = replace(awaited, stage=CONVICTED, due_at=None)
    else:
        after = replace(awaited, stage=FAILED, due_at=t.time(row.id) + audit.appeal_seconds)
    t.market.set_audit(row.id, replace(after, explanation=verdict.explanation))
    return verdict


def order_task(t: Transaction, row: TaskRow, folder: Path) -> tuple[TaskOrder, list[bytes]]:
    """What the auditor of an ended task is given, and the digests of the models that go with it.

    Raises:
        MarketTaskError: the terms name no auditor, the task has not ended or settled nothing, or its models are gone.
    """
    if not row.terms.measured_by:
        raise MarketTaskError(
            f"the terms of task {row.id!r} name no auditor; `auditor` or [audit] of a task file names one"
        )
    settled = [r for r in t.market.rounds(row.id) if r.settled_at is not None]
    if not row.state.final or not settled:
        raise MarketTaskError(
            f"task {row.id!r} is {row.state}, with {len(settled)} settled rounds; a task is measured again once it has "
            "ended: who knows its secrets before knows its shadows"
        )
    if t.ledger_store.find([deletion_id(row.id)]):
        raise MarketTaskError(f"the models of task {row.id!r} were deleted, as its terms have promised")
    digests = {r.start_model for r in settled}
    digests |= {m.model_sha256 for r in settled for m in t.market.models(row.id, r.round)}
    evidence = EvidenceSection(**row.settings["evidence"])
    counts = evidence.counts()
    return TaskOrder(row.terms, row.root, *counts, evidence.tricked, row.settings["data"], folder), sorted(
        digests
    )


def record_remeasurement(t: Transaction, row: TaskRow, brought: BroughtRemeasurement) -> Entry:
    """Records what an auditor says of an ended task; known already where it was recorded before.

    Raises:
        MarketTaskError: it is not the auditor's of the terms, about another task, or not of what the ledger has.
    """
    said = brought.statement
    known = _said(t, row, said.number)
    if known is not None and known.body["statement"] == said.record():
        return known
    auditor = row.terms.measured_by
    if not auditor or not signature_holds(said, brought.signature, auditor_key(auditor)):
        raise MarketTaskError("the statement is not signed by the auditor whom the terms name")
    if not row.state.final or t.ledger_store.find([deletion_id(row.id)]):
        raise MarketTaskError(
            f"task {row.id!r} has not ended, or its models were deleted since; nothing was recorded"
        )
    before = _said(t, row, said.number - 1)
    if known is not None or (before is None) != (said.number == 1):
        raise MarketTaskError(
            f"the statement is number {said.number} of task {row.id!r}, and the ledger has another, or not the one "
            "before it; have the auditor begin from a new folder"
        )
    if (said.terms_digest, said.measured) != (row.terms.digest, _measured(t, row)):
        raise MarketTaskError("the statement is about other terms or other entries than the ledger has")
    at = t.at(row.id) if before is None else max(t.at(row.id), str(before.body["at"]))
    made = audit_entries.remeasurement(said, brought.signature, at)
    t.record(made)
    return made


def _said(t: Transaction, row: TaskRow, number: int) -> Entry | None:
    """The auditor's statement of that number on a task, where the ledger has it."""
    for place in t.ledger_store.find([audit_entries.remeasurement_id(row.id, number)]).values():
        return t.entry(place)
    return None


def _measured(t: Transaction, row: TaskRow) -> bytes:
    """The digest of a task's evidence, as `mechanism.statements.measured_after` has it."""
    ids = []
    for line in t.market.settlements(row.id):
        ids.append(verdict_id(row.id, line.round, line.participant_id))
    for round_ in t.market.rounds(row.id):
        ids += [evidence_id(row.id, round_.round), aggregation_id(row.id, round_.round)]
    found = bytes(32)
    for place in sorted(t.ledger_store.find(ids).values()):
        found = measured_after(found, leaf_hash(t.entry(place).data))
    return found


def appeal(t: Transaction, row: TaskRow, participant_id: str, round_: int, reason: str) -> AuditRow:
    """Takes a participant's appeal; asked again, says how its audit stands.

    Raises:
        Refusal: NOT_SELECTED where it is not audited for that round, WRONG_STATE where nothing can be appealed against,
            TASK_ENDED after the time.
        FieldError: a reason that is too long.
    """
    audit, found = row.terms.audit, t.market.audit(row.id, round_, participant_id)
    if len(reason) > MAX_REMARK:
        raise FieldError("reason", f"{len(reason)} characters", f"at most {MAX_REMARK} characters")
    if audit is None or found is None:
        raise Refusal(
            Code.NOT_SELECTED, f"{participant_id!r} is not audited for round {round_} of task {row.id}."
        )
    if found.stage == APPEALED:
        return found
    if found.stage != FAILED or not audit.appeal_seconds:
        raise Refusal(
            Code.WRONG_STATE,
            f"The audit of {participant_id!r} for round {round_} of task {row.id} is {found.stage}; an appeal is taken "
            f"after one that failed{'' if audit.appeal_seconds else ', and these terms know none'}.",
        )
    if found.due_at is None or t.now >= found.due_at:
        raise Refusal(Code.TASK_ENDED, "The time for an appeal is over.")
    t.record(audit_entries.appeal(row.id, round_, participant_id, reason, t.at(row.id)))
    after = replace(found, stage=APPEALED, due_at=t.time(row.id) + audit.seconds)
    t.market.set_audit(row.id, after)
    return after


def audit_record(row: AuditRow) -> Mapping[str, Any]:
    """For --json."""
    return {
        "round": row.round,
        "participant": row.participant_id,
        "question_micro": row.question_micro,
        "stage": row.stage,
        "due": row.due_at,
        "explanation": row.explanation,
    }
