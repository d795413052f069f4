"""Audits: who is to be audited, what auditors find, appeals, and times that are over."""

from collections.abc import Mapping
from typing import Any

from mechanism.audit import (
    FAILED,
    MAX_REMARK,
    PASSED,
    UNANSWERED,
    UNAPPEALED,
    UNVISITED,
    Audit,
    auditor_key,
)
from mechanism.audit_verdict import AuditVerdict, judge
from mechanism.ledger import audit_entries as events
from mechanism.ledger.accounts import held, stake
from mechanism.ledger.entry import Entry
from mechanism.ledger.replay.comparing import Wrong, alike, same
from mechanism.ledger.replay.forms import check_findings
from mechanism.ledger.replay.keys import check_standing
from mechanism.ledger.replay.world import Audited, TaskState, World, moment
from mechanism.settlement import MICRO, RoundSettlement
from mechanism.statements import AuditStatement, RemeasurementStatement, signature_holds


def begin(task: TaskState, settlement: RoundSettlement) -> None:
    """Opens the audits of a round that is being settled; the time runs from SETTLED."""
    terms, current = task.terms.audit, task.round
    if terms is None:
        return
    for line in settlement.payments:
        if line.audited:
            name = line.participant_id
            verified = current.verdicts[name].verified_micro
            assert verified is not None  # nobody else is paid
            task.audits[current.number, name] = Audited(
                start=current.start,
                degree=current.degree,
                submitted_micro=current.shown.get(name),
                verified_micro=verified,
                question_micro=events.question_micro(terms, line),
            )


def started(task: TaskState, at: int) -> None:
    """The round is settled: its audits are awaited from `at` on."""
    for (number, _), audited in task.audits.items():
        if number == task.round.number:
            audited.since = at


def audit(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    """What an audit comes to; where its findings are opened, that it follows from them."""
    task, terms = _task(world, body)
    round_, name, number, at = body["round"], body["participant_id"], body["number"], body["at"]
    audited = _pending(task, round_, name)
    if number != {"open": 1, "appealed": 2}.get(audited.stage):
        raise Wrong(f"audit {number} where {_awaited(audited)} is awaited")
    _check_time(task, audited, at, terms.seconds, over=False)
    logged = AuditVerdict(
        body["outcome"], body["submitted_micro"], body["retrained_micro"], body["limit_micro"], explanation=""
    )
    commitment = bytes.fromhex(body["commitment"])
    question = audited.question_micro
    same(entry, events.audit_as(task.id, round_, name, number, at, logged, question, commitment))
    _check_in_clear(audited, logged)
    opening = world.opened(entry, commitment)
    if opening is not None:
        found = _opened(world, task, audited, (round_, name, number), logged, opening)
        same(entry, events.audit_as(task.id, round_, name, number, at, found, question, commitment))
    if logged.outcome != FAILED:
        del task.audits[round_, name]
    elif number == 2:
        _convict(task, round_, name)
    else:
        audited.stage, audited.since = "failed", moment(at)


def _check_in_clear(audited: Audited, logged: AuditVerdict) -> None:
    """That a verdict fits its own figures: an audit that has failed may have done so for what is not published."""
    again, limit, shown = logged.retrained_micro, logged.limit_micro, logged.submitted_micro
    if logged.outcome not in (PASSED, FAILED):
        raise Wrong(f"an audit that has {logged.outcome!r:.60}; expected {PASSED} or {FAILED}")
    if not 0 <= shown <= audited.verified_micro:
        raise Wrong(
            f"the submission showed {shown}; the verdict of the round says at most {audited.verified_micro}"
        )
    if again is None and (limit is not None or logged.outcome == PASSED):
        raise Wrong("an audit that has passed, or a limit, without re-trained weights")
    if again is not None and not 0 <= again <= MICRO:
        raise Wrong(f"retrained_micro is {again}; expected at most {MICRO}")
    if again is not None and limit is not None and again - shown > limit and logged.outcome == PASSED:
        raise Wrong(f"an audit that has passed, though {again} is more than {limit} above {shown}")


def _opened(
    world: World,
    task: TaskState,
    audited: Audited,
    place: tuple[int, str, int],
    logged: AuditVerdict,
    opening: Mapping[str, Any],
) -> AuditVerdict:
    """What opened findings come to; of what is not at hand, as `logged`."""
    terms = task.terms.audit
    assert terms is not None
    check_findings(opening)
    statement = AuditStatement.from_record(opening["statement"])
    if not alike(statement.record(), opening["statement"]):
        raise Wrong("the auditor's statement has fields that its form does not know")
    if (statement.task_id, statement.round, statement.participant_id, statement.number) != (task.id, *place):
        raise Wrong("the statement is about another audit")
    if statement.terms_digest != task.terms.digest:
        raise Wrong("the statement is about other terms than the task's")
    if statement.start_sha256 != audited.start:
        raise Wrong("the statement is about another model than the one that the round began from")
    if not signature_holds(statement, bytes.fromhex(opening["signature"]), auditor_key(terms.auditor)):
        raise Wrong("the statement is not signed by the auditor whom the terms name")
    world.counts.statements += 1
    features = opening["features"]
    if not bool(features) == bool(statement.model_sha256) == (logged.retrained_micro is not None):
        raise Wrong("features are measured of weights that the statement names, and of no others")
    again, shown = logged.retrained_micro, audited.submitted_micro
    if features and audited.degree is not None:
        again = audited.degree.degree_micro(features)
    claim = task.claims[place[1]]
    if claim.degree is None:
        return logged
    return judge(
        terms,
        statement,
        claim.samples_root,
        claim.degree,
        logged.submitted_micro if shown is None else shown,
        again,
        opening["differences"],
    )


def appeal(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    task, terms = _task(world, body)
    name, reason, at = body["participant_id"], body["reason"], body["at"]
    same(entry, events.appeal(task.id, body["round"], name, reason, at))
    audited = _pending(task, body["round"], name)
    if audited.stage != "failed":
        raise Wrong(f"an appeal where {_awaited(audited)} is awaited")
    if len(reason) > MAX_REMARK:
        raise Wrong(f"a reason of {len(reason)} characters; expected at most {MAX_REMARK}")
    check_standing(world, name)
    _check_time(task, audited, at, terms.appeal_seconds, over=False)
    if not terms.appeal_seconds:
        raise Wrong("an appeal where the terms allow none")
    audited.stage, audited.since = "appealed", moment(at)


def audit_end(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    task, terms = _task(world, body)
    round_, name, why, at = body["round"], body["participant_id"], body["why"], body["at"]
    audited = _pending(task, round_, name)
    same(entry, events.audit_end(task.terms, round_, name, why, audited.question_micro, at))
    if why != {"open": UNVISITED, "failed": UNAPPEALED, "appealed": UNANSWERED}[audited.stage]:
        raise Wrong(f"an audit ends as {why} where {_awaited(audited)} is awaited")
    seconds = terms.appeal_seconds if audited.stage == "failed" else terms.seconds
    _check_time(task, audited, at, seconds, over=True)
    if why == UNAPPEALED:
        _convict(task, round_, name)
    else:
        del task.audits[round_, name]


def remeasurement(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    """That the auditor of an ended task speaks of all that was measured in it, before its models are deleted."""
    statement = RemeasurementStatement.from_record(body["statement"])
    name, at, signature = statement.task_id, body["at"], bytes.fromhex(body["signature"])
    same(entry, events.remeasurement(statement, signature, at))
    measured = world.measured.get(name)
    if measured is None:
        raise Wrong(f"the task {name} is measured again, which {_unmeasurable(world, name)}")
    if statement.terms_digest != measured.terms:
        raise Wrong("the statement is about other terms than the task's")
    if statement.number != measured.statements + 1:
        raise Wrong(f"statement {statement.number}; the task had {measured.statements}")
    if statement.measured != measured.digest:
        raise Wrong("the statement is about other evidence, verdicts or models than the task's")
    if (statement.rounds, statement.submissions) != (measured.rounds, measured.submissions):
        raise Wrong(
            f"{statement.submissions} models of {statement.rounds} rounds were measured again; the task has "
            f"{measured.submissions} of {measured.rounds}"
        )
    if moment(at) < measured.at:
        raise Wrong(f"at is {at}, before the task's end or the statement before it")
    if not signature_holds(statement, signature, auditor_key(measured.auditor)):
        raise Wrong("the statement is not signed by the auditor whom the terms name")
    world.counts.statements += 1
    measured.statements, measured.at = statement.number, moment(at)
    world.remeasured[name] = statement


def _unmeasurable(world: World, name: str) -> str:
    if name in world.tasks:
        return "has not ended"
    if name in world.ended:
        return "has no auditor and settled rounds, or whose models were deleted"
    return "has no terms"


def left_held(world: World, task: TaskState) -> list[Entry]:
    """What becomes of all that is held, when the task ends."""
    if task.terms.audit is None:
        return []
    helds = {name: world.book.holds(held(task.id, name)) for name in task.claims}
    stakes = {name: world.book.holds(stake(task.id, name)) for name in task.claims}
    return events.held_entries(task.terms, helds, stakes, task.convicted)


def _convict(task: TaskState, round_: int, name: str) -> None:
    del task.audits[round_, name]
    task.convicted.add(name)


def _task(world: World, body: Mapping[str, Any]) -> tuple[TaskState, Audit]:
    task = world.task(body["task_id"])
    if task.terms.audit is None:
        raise Wrong("an audit in a task whose terms have none")
    return task, task.terms.audit


def _pending(task: TaskState, round_: Any, name: Any) -> Audited:
    audited = task.audits.get((round_, name))
    if audited is None or audited.since is None:
        raise Wrong(f"no audit of {name!r:.80} for round {round_!r:.20} is pending")
    return audited


def _check_time(task: TaskState, audited: Audited, at: str, seconds: int, *, over: bool) -> None:
    """That `at` is not before anything that it follows, and within the time, or not within it."""
    task.waited(at)
    assert audited.since is not None
    waited = moment(at) - audited.since
    if waited < 0:
        raise Wrong(f"at is {at}, before what the audit has waited for")
    if over and waited < seconds:
        raise Wrong(f"it ends after {waited} of {seconds} seconds")
    if not over and waited > seconds:
        raise Wrong(f"it comes after {waited} seconds; the terms give {seconds}")


def _awaited(audited: Audited) -> str:
    return {"open": "the first audit", "failed": "an appeal", "appealed": "the second audit"}[audited.stage]
