"""What each page shows, as JSON: read from market and ledger, or computed by the mechanism. Amounts in millionths."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import orjson

from coordinator import payouts
from coordinator.control_socket import RoundProgress
from coordinator.derivation import pseudonym
from coordinator.operator import Standing, TaskOverview, report_of
from coordinator.reputation import reputation_of
from coordinator.storage.audits import AuditRow
from coordinator.storage.rounds import SettlementRow
from coordinator.storage.tasks import TaskRow
from coordinator.task_text import standing_counts
from coordinator.transaction import Transaction
from fedpeer.audit.proofs import entry as entry_of
from fedpeer.audit.proofs import trusted_keys
from fedpeer.console.reading import NotThere, task_of
from fedpeer.console.words import duration, rounded_credits
from fedpeer.terminal import counted
from mechanism.ledger.accounts import stake
from mechanism.ledger.entries import verdict_id
from mechanism.ledger.entry import Entry
from mechanism.ledger.errors import LedgerError
from mechanism.ledger.note import Checkpoint, Note
from mechanism.ledger.tlog_proof import TlogProof
from mechanism.ledger.verify import LedgerSource
from mechanism.lifecycle import State
from mechanism.settlement import max_payment_micro
from mechanism.terms import Terms
from participant.report import Settlement
from participant.why import Why, explained

#: Entries on one page of the ledger.
PAGE = 50

#: Entries that are read at once backwards from a payment, for its round's verdicts.
_RUN = 256


def market(t: Transaction, name: str) -> dict[str, Any]:
    """The market for everybody: its tasks, the newest first, and its ledger's head."""
    return {
        "market": name,
        "ledger": ledger_head(t),
        "tasks": [_brief(t, row) for row in reversed(t.market.tasks())],
    }


def _brief(t: Transaction, row: TaskRow) -> dict[str, Any]:
    schedule, progress = row.terms.schedule, t.market.progress(row)
    training = row.state is State.TRAINING
    return {
        "id": row.id,
        "state": row.state.value,
        "round": row.round,
        "rounds": schedule.rounds,
        "deadline": row.deadline,
        "opened": row.opened_at,
        "ended": row.ended_at,
        "reason": row.reason,
        "claims": t.market.count_claims(row.id),
        "capacity": schedule.capacity,
        "models": len(progress.delivered) if training else None,
        "selected": len(progress.selected) if training else None,
        "budget_micro": row.terms.budget_micro,
    }


def task(t: Transaction, task_id: str) -> dict[str, Any]:
    """A task for everybody: what it offers in words, its rounds, and when it entered which state."""
    row = task_of(t, task_id)
    return {
        **_brief(t, row),
        "terms_digest": row.terms.digest.hex(),
        "words": terms_in_words(row.terms),
        "terms": row.terms.record(),
        "classes": list(row.terms.classes),
        "leaderboard": leaderboard_allowed(row),
        "history": _rounds(t, row),
        "events": _events(t, row),
    }


def leaderboard_allowed(row: TaskRow) -> bool:
    """Whether the task file has said so."""
    return bool(row.settings.get("leaderboard", False))


def leaderboard(t: Transaction, task_id: str) -> dict[str, Any]:
    """What a task has paid to each who trains, the most first, under pseudonyms that nobody else can undo.

    Raises:
        NotThere: the task does not allow one.
    """
    row = task_of(t, task_id)
    if not leaderboard_allowed(row):
        raise NotThere(f"Task {task_id:.100} has no leaderboard: its operator has not asked for one.")
    paid: dict[str, int] = {c.participant_id: 0 for c in t.market.claims(row.id) if c.selected}
    rounds: dict[str, int] = dict.fromkeys(paid, 0)
    for line in t.market.settlements(row.id):
        paid[line.participant_id] += line.paid_micro
        rounds[line.participant_id] += line.paid_micro > 0
    lines = [
        {"pseudonym": pseudonym(row.root, name), "paid_micro": micro, "rounds_paid": rounds[name]}
        for name, micro in paid.items()
    ]
    return {
        **_brief(t, row),
        "lines": sorted(lines, key=lambda line: (-line["paid_micro"], line["pseudonym"])),
    }


def _rounds(t: Transaction, row: TaskRow) -> list[dict[str, Any]]:
    return [
        {
            "round": r.round,
            "opened": r.opened_at,
            "closed": r.closed_at,
            "settled": r.settled_at,
            "accuracy": r.accuracy,
            "loss": r.loss,
            "accuracy_by_label": orjson.loads(r.accuracy_by_label or "[]"),
            "model_sha256": None if r.result_model is None else r.result_model.hex(),
            "paid_micro": sum(line.paid_micro for line in t.market.round_settlements(row.id, r.round)),
        }
        for r in t.market.rounds(row.id)
    ]


def _events(t: Transaction, row: TaskRow) -> list[dict[str, Any]]:
    return [{"state": e.state.value, "round": e.round, "at": e.at} for e in t.market.events(row.id)]


def _against(terms: Terms) -> str:
    """Whom a participant is scored against, to the end of the sentence."""
    if terms.rule.name not in ("verified", "paper"):
        return "."
    if terms.all_peers:
        return ", against everybody else."
    drawn = f", against {counted(terms.rule.peers, 'peer')} drawn at random"
    return drawn + (", those first that it has met least often." if terms.rule.name == "verified" else ".")


def terms_in_words(terms: Terms) -> list[str]:
    """What a task offers and asks, as sentences."""
    schedule, rule, recipe = terms.schedule, terms.rule, terms.recipe
    most = max_payment_micro(terms.Q, terms.upsilon, terms.payment.exact)
    basis = {
        "verified": "on the degree that is measured from the model",
        "paper": "on the degree that is claimed; claims are checked by nobody",
    }.get(rule.name, f"by the rule {rule.name}")
    lines = [
        f"{counted(schedule.rounds, 'round')}, each for at most {duration(schedule.round_seconds)}; claims are taken "
        f"for {duration(schedule.effort_seconds)}.",
        f"Places for {schedule.capacity} participants; a round counts with {schedule.quorum}.",
        f"A round pays a participant at most {rounded_credits(most)} credits, {basis}" + _against(terms),
        f"{rounded_credits(terms.budget_micro)} credits are reserved for all of it"
        + (f", of what {terms.funder} has deposited" if terms.funder else "")
        + "; what is not paid goes back.",
        f"Training: {recipe.model}, {counted(recipe.epochs, 'epoch')} of {recipe.samples} samples a round in batches "
        f"of {recipe.batch_size}, {recipe.optimizer} at a learning rate of {recipe.learning_rate:f}"
        + (f"; participants may vary {recipe.allowed}." if recipe.allowed else "."),
    ]
    if terms.price is not None:
        lines.append(f"A credit is paid out as {terms.price.amount:f} {terms.price.currency}.")
    if rule.claim_penalty:
        lines.append(
            f"A claim costs the square of its distance to what is measured, times {rule.claim_penalty:f} credits."
        )
    if rule.name == "verified":
        lines.append(
            "Samples that several participants have are paid once, in parts"
            + (f"; a weight of 0 costs {rule.fee:f} credits besides." if rule.fee else ".")
        )
    if rule.stake_micro:
        lines.append(
            f"Up to {rounded_credits(rule.stake_micro)} credits of the earnings are held as a stake, which a refuted "
            "claim loses."
        )
    if (most := schedule.identities_per_organisation) > 1:
        lines.append(f"An organisation may take part by {most} identities.")
    if terms.audit is not None:
        lines.append(
            f"A round that is paid is audited with probability {float(terms.audit.probability):.3g}: the auditor "
            "trains again where the data are"
            + (
                f"; {terms.audit.held_back:.0%} of every payment is held for it to the end of the task."
                if terms.audit.held_back
                else "."
            )
        )
    if recipe.privacy is not None:
        lines.append(f"Everybody adds noise for privacy: {recipe.privacy}.")
    if schedule.retention_seconds is not None:
        lines.append(
            f"Submitted models are deleted {duration(schedule.retention_seconds)} after the task's end."
            if schedule.retention_seconds
            else "Submitted models are deleted when the task ends."
        )
    if schedule.dispute_seconds:
        lines.append(
            f"Private label counts may be opened for {duration(schedule.dispute_seconds)} after the last settlement."
        )
    return lines


def operator_task(t: Transaction, task_id: str) -> dict[str, Any]:
    """A task for its operator: besides what everybody sees, who stands where, what was spent, every verdict.

    `expected_micro` is `mechanism.settlement.expected_payments` over the settled rounds: what meeting every peer that
    could be drawn would have paid.
    """
    row = task_of(t, task_id)
    report = report_of(t, row)
    paid = sum(report.paid_micro.values())
    settlements = t.market.settlements(row.id)
    return {
        **task(t, task_id),
        "shadows": None,
        "epochs": row.terms.recipe.epochs,
        "evidence_seconds": _evidence_seconds(t, row),
        "entered": t.market.latest_event_at(row.id),
        "paid_micro": paid,
        "escrow_micro": report.escrow_micro,
        "standings": standing_counts(report),
        "people": _people(t, report),
        "failures": [vars(failure) for failure in report.failed],
        "verdicts": [verdict for line in settlements for verdict in _failed(line)],
        "checked": sum(len(line.assessment.verdicts) for line in settlements),
        "audits": [_audit(row.id, audit) for audit in t.market.audits(row.id)],
    }


def with_progress(record: dict[str, Any], progress: RoundProgress) -> dict[str, Any]:
    """A record of `operator_task` with how far its round is, which no entry of the ledger says."""
    people = [
        {**person, "done_micro": progress.done_micro.get(person["id"])}
        if person["standing"] == Standing.AWAITED
        else person
        for person in record["people"]
    ]
    shadows = {"trained": progress.trained, "of": progress.of, "seconds_left": progress.seconds_left}
    return {**record, "people": people, "shadows": shadows if progress.of else None}


def _audit(task_id: str, audit: AuditRow) -> dict[str, Any]:
    """How an audit stands; `awaited` until `due`, which is None where nothing is awaited any more."""
    return {
        "task": task_id,
        "round": audit.round,
        "participant": audit.participant_id,
        "question_micro": audit.question_micro,
        "stage": audit.stage,
        "due": audit.due_at,
        "explanation": audit.explanation,
    }


def _evidence_seconds(t: Transaction, row: TaskRow) -> float | None:
    """From the close to the settlement of the last round that is settled; None before there is one."""
    took = [r.settled_at - r.closed_at for r in t.market.rounds(row.id) if r.settled_at and r.closed_at]
    return took[-1] if took else None


def _people(t: Transaction, report: TaskOverview) -> list[dict[str, Any]]:
    row = report.row
    found = []
    for person in report.people:
        late = [r for r in t.market.receipts(row.id, person.id) if r.late]
        found.append(
            {
                "id": person.id,
                "standing": person.standing.value,
                "done_micro": None,
                "claimed_degree": person.degree,
                "paid_micro": person.paid_micro,
                "expected_micro": person.expected_micro,
                "late_rounds": sorted({r.round for r in late}),
            }
        )
    return found


def _failed(line: SettlementRow) -> list[dict[str, Any]]:
    return [
        {"round": line.round, "participant": line.participant_id, **verdict.record()}
        for verdict in line.assessment.verdicts
        if not verdict.passed
    ]


def participant(t: Transaction, name: str) -> dict[str, Any]:
    """What a participant was paid, owes its stake to, and has receipts of.

    Raises:
        NotThere: nobody of that name ever enrolled.
    """
    row = t.market.participant(name)
    if row is None:
        raise NotThere(f"There is no participant {name:.100}.")
    claims = {task.id: t.market.claim(task.id, name) for task in t.market.tasks()}
    tasks = [task for task in t.market.tasks() if claims[task.id] is not None]
    balances = t.ledger_store.balances([stake(task.id, name) for task in tasks])
    payments = [payment for task in tasks for payment in _payments(t, task, name)]
    held = {task.id: balances[key].holds for task in tasks if (key := stake(task.id, name)) in balances}
    return {
        "participant": name,
        "enrolled": row.enrolled_at,
        "revoked": row.revoked_at,
        **asdict(payouts.owed(t, name)),
        "stakes_micro": {task_id: micro for task_id, micro in held.items() if micro},
        "paid_micro": sum(payment["paid_micro"] for payment in payments),
        "tasks": [
            {
                **_brief(t, task),
                "claimed_degree": claim.degree,
                "selected": claim.selected,
                "pseudonym": pseudonym(task.root, name) if leaderboard_allowed(task) else None,
            }
            for task in reversed(tasks)
            if (claim := claims[task.id]) is not None
        ],
        "reputation": reputation_of(t, name).record(),
        "audits": [
            _audit(task.id, audit)
            for task in reversed(tasks)
            for audit in t.market.audits(task.id)
            if audit.participant_id == name
        ],
        "payments": payments[::-1],
        "payouts": payouts.paid_out_to(t, name)[::-1],
        "receipts": [
            {
                "task": task.id,
                "kind": r.kind,
                "round": r.round,
                "late": r.late,
                "at": r.at,
                "entry": r.ledger_index,
            }
            for task in reversed(tasks)
            for r in reversed(t.market.receipts(task.id, name))
        ],
    }


def _payments(t: Transaction, row: TaskRow, name: str) -> list[dict[str, Any]]:
    settled = {r.round: r.settled_at for r in t.market.rounds(row.id)}
    return [_paid(row, line, settled.get(line.round)) for line in t.market.paid_to(row.id, name)]


def _paid(row: TaskRow, line: SettlementRow, at: float | None) -> dict[str, Any]:
    own = line.assessment
    return {
        "task": row.id,
        "round": line.round,
        "at": at,
        "paid_micro": line.paid_micro,
        "expected_micro": line.expected_micro,
        "penalty_micro": line.record["penalty_micro"],
        "withheld_micro": line.record["withheld_micro"],
        "stake_lost_micro": line.record["stake_lost_micro"],
        "claimed_degree": "" if line.erased else str(own.claimed_degree),
        "verified_micro": own.verified_micro,
        "peers": list(line.record["peers"]),
        "failed": [verdict.explanation for verdict in own.verdicts if not verdict.passed],
        "entry": line.ledger_index,
    }


def why(t: Transaction, name: str, task_id: str, round_: int) -> Why:
    """Why a round paid what it paid, from the ledger's entries; the database's row is what they are compared with.

    Raises:
        NotThere: nothing was due to that participant in that round, or it is not settled yet.
    """
    row = task_of(t, task_id)
    line = t.market.settlement(task_id, round_, name)
    if line is None:
        raise NotThere(f"Round {round_} of task {task_id:.100} has settled nothing for {name:.100}.")
    earlier = [before for before in t.market.paid_to(task_id, name) if before.round < round_]
    held = sum(b.record["withheld_micro"] - b.record["stake_lost_micro"] for b in earlier)
    met = [b.record["peers"] for b in earlier]
    kept = t.market.opening(task_id, verdict_id(task_id, round_, name))
    settlement = replace(_settlement(row, line), opening=b"" if kept is None else kept.opening)
    return explained(row.terms, name, settlement, _block(t, row.id, line), held, met)


def _settlement(row: TaskRow, line: SettlementRow) -> Settlement:
    """The row as a participant gets it."""
    own = line.assessment
    return Settlement(
        task_id=row.id,
        round=line.round,
        paid_micro=line.paid_micro,
        penalty_micro=line.record["penalty_micro"],
        stake_lost_micro=line.record["stake_lost_micro"],
        claimed_degree=own.claimed_degree,
        verified_degree=None,
        peers=tuple(line.record["peers"]),
        verdicts=own.verdicts,
        ledger_index=line.ledger_index,
    )


def _block(t: Transaction, task_id: str, line: SettlementRow) -> list[Entry]:
    """The entries of a settled round from its first verdict to one payment."""
    first, block = line.ledger_index + 1, list[Entry]()
    prefix = verdict_id(task_id, line.round, "")
    while first:
        count = min(_RUN, first)
        first -= count
        block = [Entry.parse(data) for data in t.ledger_store.entries(first, count)] + block
        if start := next((i for i, entry in enumerate(block) if entry.id.startswith(prefix)), 0):
            return block[start:]
    raise NotThere(f"The ledger has no verdicts of round {line.round} of task {task_id:.100}.")


def ledger_head(t: Transaction) -> dict[str, Any]:
    """How many entries there are, and the last signed head."""
    note = t.ledger_store.checkpoint()
    head = None if note is None else Checkpoint.parse_text(Note.parse(note).text)
    return {
        "entries": t.ledger.size(),
        "signed": 0 if head is None else head.size,
        "root": "" if head is None else head.root.hex(),
        "origin": "" if head is None else head.origin,
        "checkpoint": note,
        "key": t.ledger_store.verification_key(),
    }


def ledger(t: Transaction, end: int | None) -> dict[str, Any]:
    """A page of the ledger, the newest first.

    Args:
        end: one more than the index of the newest that is shown; None: the newest there is.
    """
    head = ledger_head(t)
    end = min(head["entries"], head["entries"] if end is None else end)
    first = max(0, end - PAGE)
    found = (
        list(enumerate(islice(t.ledger_store.entries(first, end - first), PAGE), first))
        if end > first
        else []
    )
    return {**head, "first": first, "end": end, "shown": [_entry(i, data) for i, data in reversed(found)]}


def _entry(index: int, data: bytes) -> dict[str, Any]:
    entry = Entry.parse(data)
    return {
        "index": index,
        "kind": entry.kind,
        "id": entry.id,
        "moved": [transfer.record() for transfer in entry.transfers],
    }


def ledger_entry(t: Transaction, index: int) -> dict[str, Any]:
    """One entry with its body, and whether a signed head covers it.

    Raises:
        NotThere: the ledger is shorter.
    """
    head = ledger_head(t)
    if not 0 <= index < head["entries"]:
        raise NotThere(f"The ledger has {counted(head['entries'], 'entry')}; there is no entry {index}.")
    data = next(t.ledger_store.entries(index, 1))
    return {
        **_entry(index, data),
        "entry": orjson.loads(data),
        "covered": index < head["signed"],
        "entries": head["entries"],
        "key": head["key"],
    }


def receipt(source: LedgerSource, text: str) -> dict[str, Any]:
    """Whether a receipt, a C2SP tlog-proof, proves an entry of this ledger, and which.

    It holds where one of the log's keys has signed its head, and the entry that it proves is the ledger's.
    """
    record: dict[str, Any] = {"receipt": text, "holds": False, "said": "", "entry": None}
    try:
        proof = TlogProof.parse(text)
        head = trusted_keys(source, None).verify(proof)
        if entry_of(source, proof.index) != proof.entry:
            raise LedgerError(f"the ledger's entry {proof.index} is another one than the receipt proves")
    except LedgerError as error:
        return {**record, "said": str(error)}
    said = f"It proves entry {proof.index} in the log {head.origin} of {head.size} entries."
    return {**record, "holds": True, "said": said, "entry": proof.index}


def learner(t: Transaction, name: str) -> dict[str, Any]:
    """What a learner has paid in, what its tasks have reserved and spent, and what is left.

        free = deposits - withdrawals - spent + lost stakes - reserved

    Raises:
        NotThere: nobody of that name has ever paid in.
    """
    if name not in t.market.learners():
        raise NotThere(f"There is no learner {name:.100} who has paid in.")
    found = payouts.learner_statement(t, name)
    tasks = [_funded(t, line) for line in reversed(found["tasks"])]
    moved = [line["micro"] for line in found["funding"]]
    return {
        **found,
        "funding": found["funding"][::-1],
        "tasks": tasks,
        "deposited_micro": sum(micro for micro in moved if micro > 0),
        "withdrawn_micro": -sum(micro for micro in moved if micro < 0),
        "spent_micro": sum(line["spent_micro"] for line in tasks),
        "stakes_lost_micro": sum(line["stakes_lost_micro"] for line in tasks),
    }


def _funded(t: Transaction, line: dict[str, Any]) -> dict[str, Any]:
    returned = line["budget_micro"] - line["reserved_micro"] - line["spent_micro"] + line["stakes_lost_micro"]
    return {**line, **_brief(t, task_of(t, line["task"])), "returned_micro": returned}


def learners(t: Transaction) -> dict[str, Any]:
    """Everyone who has paid in, and what each has left."""
    return {"learners": [learner(t, name) for name in t.market.learners()]}


def learner_statement(record: dict[str, Any]) -> list[Sequence[Any]]:
    """What a learner paid in and got back, then its tasks, as rows of a table under a heading, the oldest first."""
    moved = ("kind", "reference", "at", "micro", "entry")
    spent = ("task", "state", "opened", "budget_micro", "reserved_micro", "spent_micro", "stakes_lost_micro")
    return [
        (*moved, *spent, "returned_micro"),
        *([*(_cell(line, n) for n in moved), *("" for _ in range(8))] for line in record["funding"][::-1]),
        *(
            ["task", *("" for _ in moved[1:]), *(_cell(line, n) for n in (*spent, "returned_micro"))]
            for line in record["tasks"][::-1]
        ),
    ]


def statement(record: dict[str, Any]) -> list[Sequence[Any]]:
    """A participant's payments, then its payouts, as rows of a table, the oldest first, its heading included."""
    earned = (
        "task",
        "round",
        "at",
        "paid_micro",
        "penalty_micro",
        "withheld_micro",
        "stake_lost_micro",
        "entry",
    )
    moved = ("payout", "standing", "amount", "currency", "micro")
    return [
        (*earned, *(f"payout_{name}" if name == "micro" else name for name in moved)),
        *(
            [*(_cell(payment, name) for name in earned), *("" for _ in moved)]
            for payment in record["payments"][::-1]
        ),
        *(
            [*(_cell(line, name) if name == "at" else "" for name in earned), *(line[name] for name in moved)]
            for line in record["payouts"][::-1]
        ),
    ]


def _cell(line: dict[str, Any], name: str) -> Any:
    """A value for a table; a time as ISO 8601 has it, UTC."""
    value = line[name]
    if name in ("at", "opened") and value is not None:
        return datetime.fromtimestamp(value, UTC).isoformat(timespec="seconds")
    return value
