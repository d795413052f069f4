"""Audits: who is to be audited, what auditors find, appeals, and times that are over."""

from collections.abc import Mapping
from typing import Any

from mechanism.audit import FAILED, MAX_REMARK, UNANSWERED, UNAPPEALED, UNVISITED, Audit, auditor_key
from mechanism.audit_verdict import judge
from mechanism.canonical import parse_canonical
from mechanism.ledger import audit_entries as events
from mechanism.ledger.accounts import held, stake
from mechanism.ledger.entries import joined
from mechanism.ledger.entry import Entry
from mechanism.ledger.replay.comparing import Wrong, same, same_parts
from mechanism.ledger.replay.forms import check_findings
from mechanism.ledger.replay.keys import check_standing
from mechanism.ledger.replay.world import Audited, Task, World, moment
from mechanism.settlement import Settlement
from mechanism.statements import AuditStatement, signature_holds


def begin(task: Task, settlement: Settlement) -> None:
    """Opens the audits of a round that is being settled; the time runs from SETTLED."""
    terms, evidence = task.terms.audit, task.round.evidence
    if terms is None or evidence is None:
        return
    model, measured = evidence
    for line in settlement.payments:
        if line.audited:
            name = line.participant_id
            task.audits[task.round.number, name] = Audited(
                start=task.round.start,
                degree=model.degree,
                submitted_micro=model.degree.degree_micro(measured[name].features),
                question_micro=events.question_micro(terms, line),
            )


def started(task: Task, at: int) -> None:
    """The round is settled: its audits are awaited from `at` on."""
    for (number, _), audited in task.audits.items():
        if number == task.round.number:
            audited.since = at


def audit(world: World, entry: Entry, body: Mapping[str, Any]) -> None:
    """A part of what an audit has found; its verdict is computed."""
    task, terms = _task(world, body)
    round_, name, number = body["round"], body["participant_id"], body["number"]
    if not world.part(entry, task, "audit", events.audit_id(task.id, round_, name, number)):
        return
    data = joined([str(one.body["data"]) for one in task.parts], str(body["sha256"]))
    record = parse_canonical(data)
    check_findings(record)
    statement = AuditStatement.from_record(record["statement"])
    findings = events.AuditFindings(
        statement,
        bytes.fromhex(record["signature"]),
        events.features_of(record["features"]),
        tuple(record["differences"]),
    )
    at = body["at"]
    same_parts(task.parts, events.audit_parts(at, findings))
    task.parts.clear()
    audited = _pending(task, statement.round, statement.participant_id)
    expected = {"open": 1, "appealed": 2}.get(audited.stage)
    if statement.number != expected:
        raise Wrong(f"audit {statement.number} where {_awaited(audited)} is awaited")
    if statement.terms_digest != task.terms.digest:
        raise Wrong("the statement is about other terms than the task's")
    if statement.start_sha256 != audited.start:
        raise Wrong("the statement is about another model than the one that the round began from")
    if not signature_holds(statement, findings.signature, auditor_key(terms.auditor)):
        raise Wrong("the statement is not signed by the auditor whom the terms name")
    world.counts.statements += 1
    _check_time(task, audited, at, terms.seconds, over=False)
    if bool(findings.features) != bool(statement.model_sha256):
        raise Wrong("features are measured of weights that the statement names, and of no others")
    claim = task.claims[statement.participant_id]
    retrained = audited.degree.degree_micro(findings.features) if findings.features else None
    verdict = judge(
        terms,
        statement,
        claim.samples_root,
        claim.degree,
        audited.submitted_micro,
        retrained,
        findings.differences,
    )
    if verdict.outcome != FAILED:
        del task.audits[statement.round, statement.participant_id]
    elif statement.number == 2:
        _convict(task, statement.round, statement.participant_id)
    else:
        audited.stage, audited.since = "failed", moment(at)
    made = events.audit_verdict(statement, verdict, audited.question_micro)
    world.begin(task.id, "audit", [made])


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


def left_held(world: World, task: Task) -> list[Entry]:
    """What becomes of all that is held, when the task ends."""
    if task.terms.audit is None:
        return []
    helds = {name: world.book.holds(held(task.id, name)) for name in task.claims}
    stakes = {name: world.book.holds(stake(task.id, name)) for name in task.claims}
    return events.held_entries(task.terms, helds, stakes, task.convicted)


def _convict(task: Task, round_: int, name: str) -> None:
    del task.audits[round_, name]
    task.convicted.add(name)


def _task(world: World, body: Mapping[str, Any]) -> tuple[Task, Audit]:
    task = world.task(body["task_id"])
    if task.terms.audit is None:
        raise Wrong("an audit in a task whose terms have none")
    return task, task.terms.audit


def _pending(task: Task, round_: Any, name: Any) -> Audited:
    audited = task.audits.get((round_, name))
    if audited is None or audited.since is None:
        raise Wrong(f"no audit of {name!r:.80} for round {round_!r:.20} is pending")
    return audited


def _check_time(task: Task, audited: Audited, at: str, seconds: int, *, over: bool) -> None:
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
