"""Measuring an ended task again, as its auditor does: with D_c, the models, the openings and the task's secret root.

The root gives the seed of the shadows, and the terms commit to it: s, of which they have the head of the hash chain, is
derived from it (`coordinator.derivation`), so that no other root, and no other seed, fits them. From there everything
that the coordinator has measured is done once more: shadows are trained, maps fitted, submissions measured and judged,
next models merged. On a processor and libraries of the same arithmetic (`fedpeer.learning.arithmetic`) it comes out bit
for bit; on others within a tolerance.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from coordinator.aggregation import merge
from coordinator.derivation import chain_secret
from coordinator.errors import MarketTaskError
from coordinator.scoring import EarlierRound, RoundStart, Scored, make_scorer, merged_parts
from coordinator.storage.tasks import TaskRow
from fedpeer.protocol.audit_folder import TaskOrder
from fedpeer.protocol.submission import Submission
from mechanism.canonical import canonical_bytes
from mechanism.evidence import KEPT_BROADCASTS
from mechanism.ledger import entries
from mechanism.ledger.audit_entries import remeasurement_id
from mechanism.ledger.entry import Entry
from mechanism.ledger.merkle import leaf_hash
from mechanism.lifecycle import State
from mechanism.peers import seed_commitment
from mechanism.settlement import MICRO, Assessment, Outcome, outcome_of
from mechanism.statements import ClaimOpening, ModelOpening, ModelStatement, measured_after

#: Kinds of entries that say what was measured.
MEASURED_KINDS = ("evidence", "verdict", "aggregation")


@dataclass
class LoggedRound:
    """What the ledger and its openings say of a settled round.

    Attributes:
        start: digest of the model that it began from.
        sent: statements of models in time by participant, each with its place in the order of commitments.
        evidence: the opened maps and limits; measurements, assessments: what is opened of verdicts of those who sent.
        shadows, carried: how many the evidence rests on, and how many of earlier rounds; in clear.
        outcomes: in clear, of all who were selected.
        result, state: digests of the next model and of the server's state.
    """

    number: int
    start: bytes
    sent: dict[str, tuple[ModelStatement, int]] = field(default_factory=dict)
    evidence: Mapping[str, Any] = field(default_factory=dict)
    shadows: int = 0
    carried: int = 0
    measurements: dict[str, Any] = field(default_factory=dict)
    assessments: dict[str, Assessment] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    result: bytes = b""
    state: bytes | None = None


@dataclass
class LoggedTask:
    """What they say of a task.

    Attributes:
        claimed: degrees of those who sent a model; samples: of each model, by round and participant.
        measured: the digest of its evidence (`mechanism.statements.measured_after`).
        statements: how many of an auditor it has already.
        ended: whether it has.
    """

    claimed: dict[str, Fraction] = field(default_factory=dict)
    samples: dict[tuple[int, str], int] = field(default_factory=dict)
    rounds: list[LoggedRound] = field(default_factory=list)
    measured: bytes = bytes(32)
    statements: int = 0
    ended: bool = False


@dataclass
class Found:
    """What measuring again has found; as of `mechanism.statements.RemeasurementStatement`."""

    rounds: int = 0
    submissions: int = 0
    identical: int = 0
    merged: int = 0
    degree_micro: int = 0
    weight_micro: int = 0
    multiplier_micro: int = 0
    turned: int = 0


def read_task(
    order: TaskOrder, ledger: Iterable[bytes], openings: Mapping[str, Mapping[str, Any]]
) -> LoggedTask:
    """The task of an order, from a ledger and openings that were verified before. Nothing is needed of who claimed and
    sent no model, or of a round that was not settled.

    Raises:
        MarketTaskError: it has not ended, no round of it was settled, or an opening that is needed is not there.
    """
    terms, found = order.terms, LoggedTask()
    start, current = terms.initial_model, LoggedRound(0, terms.initial_model)
    ids: dict[str, str] = {}  # of claims, and of the round's models and verdicts, by kind and participant

    def opened(entry_id: str) -> Mapping[str, Any]:
        if entry_id not in openings:
            raise MarketTaskError(
                f"what {entry_id} commits to is not among the openings: it was erased, or their file is not whole; "
                f"without it task {terms.task_id!r} cannot be measured again"
            )
        return openings[entry_id]

    def settled(round_: LoggedRound) -> None:
        for name in round_.sent:
            if name not in found.claimed:
                claim = ClaimOpening.from_record(opened(ids[f"claim/{name}"]))
                found.claimed[name] = claim.degree
            model = ModelOpening.from_record(opened(ids[f"model/{name}"]))
            found.samples[round_.number, name] = model.samples
            judged = opened(ids[f"verdict/{name}"])
            round_.measurements[name] = judged["measurement"]
            round_.assessments[name] = entries.assessment_from_record(judged["assessment"])
        if round_.shadows:
            round_.evidence = opened(entries.evidence_id(terms.task_id, round_.number))["model"]
        found.rounds.append(round_)

    for data in ledger:
        entry = Entry.parse(data)
        body: Any = entry.body
        about = body.get("statement", body)
        if about.get("task_id") != terms.task_id:
            continue
        if entry.kind in MEASURED_KINDS:
            found.measured = measured_after(found.measured, leaf_hash(data))
        match entry.kind:
            case "claim":
                ids[f"claim/{about['participant_id']}"] = entry.id
            case "transition":
                if body["state"] == State.TRAINING:
                    current = LoggedRound(int(body["round"]), start)
                found.ended = State(body["state"]).final
            case "model" if not body["late"]:
                statement = ModelStatement.from_record(about)
                current.sent[statement.participant_id] = statement, int(body["sequence"])
                ids[f"model/{statement.participant_id}"] = entry.id
            case "evidence":
                current.shadows, current.carried = int(body["shadows"]), int(body["carried"])
            case "verdict":
                outcome = entries.outcome_from_record(body["outcome"])
                current.outcomes[outcome.participant_id] = outcome
                ids[f"verdict/{outcome.participant_id}"] = entry.id
            case "aggregation":
                current.result = start = bytes.fromhex(body["model_sha256"])
                current.state = None if body["state_sha256"] is None else bytes.fromhex(body["state_sha256"])
                settled(current)
            case _ if entry.id == remeasurement_id(terms.task_id, found.statements + 1):
                found.statements += 1
    if not found.ended or not found.rounds:
        raise MarketTaskError(
            f"task {terms.task_id!r} has not ended in this ledger, or no round of it was settled"
        )
    return found


def task_row(order: TaskOrder, data: Mapping[str, Any] | None, folder: Path | None) -> TaskRow:
    """The task as the coordinator's scorer takes it.

    Args:
        data: its section [data], with paths of this machine.
        folder: where modules of factories lie here.

    Raises:
        MarketTaskError: the secret root is not the one that the terms commit to.
    """
    terms = order.terms
    if seed_commitment(chain_secret(order.root), terms.schedule.rounds) != terms.seed_commitment:
        raise MarketTaskError(
            f"the secret root in {order.folder} is not the one that the terms of {terms.task_id!r} commit to; ask the "
            "operator for the folder again"
        )
    settings = {
        "data": data,
        "evidence": {"shadows": order.shadows, "later": order.later, "tricked": order.tricked},
        "folder": None if folder is None else str(folder),
        "leaderboard": False,
    }
    return TaskRow.opened(terms, order.root, settings, 0.0)


def measure_again(
    order: TaskOrder,
    row: TaskRow,
    logged: LoggedTask,
    report: Callable[[int, int, int], None] = lambda round_, trained, of: None,
) -> Found:
    """Does all of it. It trains as many models as the task's coordinator has: minutes a round.

    Args:
        row: of `task_row`.
        report: takes the round, how many shadows are trained, and of how many.

    Raises:
        MarketTaskError: other data than the terms commit to, or another number of shadows than the ledger says.
        AuditFolderError: a model that is not there, or is another.
        LearningError: data or a workload that are not to be had.
    """
    check_shadows(order, logged)
    number = [0]
    scorer = make_scorer(row, report=lambda trained, of: report(number[0], trained, of))
    found = Found()
    try:
        with TemporaryDirectory() as scratch:
            state: Path | None = None
            for place, one in enumerate(logged.rounds):
                number[0] = one.number
                submissions = _submissions(order, logged, one)
                again = scorer.score(_start(order, logged, place), submissions)
                if one.shadows and (count := _shadows(again)) != one.shadows:
                    raise _other_shadows(order, one, count)
                _compare(found, row, one, again)
                state = _merge(found, order, one, submissions, state, Path(scratch))
    finally:
        scorer.close()
    return found


def check_shadows(order: TaskOrder, logged: LoggedTask) -> None:
    """That each round's evidence can rest on as many shadows as are to be trained: the ledger counts those that did not
    diverge, of which a round has nearly all (`fedpeer.evidence.measuring.LEAST_FINITE`)."""
    from fedpeer.evidence.measuring import LEAST_FINITE
    from fedpeer.evidence.planning import trainings

    for place, one in enumerate(logged.rounds):
        if not one.shadows:
            continue
        asked = order.later if place and one.carried else order.shadows
        trained = trainings(asked, tricked=order.tricked, later=place > 0)
        diverged = trained - ceil(LEAST_FINITE * trained)
        if not asked - diverged <= one.shadows <= asked:
            raise _other_shadows(order, one, asked)


def _other_shadows(order: TaskOrder, one: LoggedRound, asked: int) -> MarketTaskError:
    return MarketTaskError(
        f"the ledger says that the evidence of round {one.number} rests on {one.shadows} shadow models; by "
        f"{order.folder} it is {asked}; ask the operator for the folder again"
    )


def _submissions(order: TaskOrder, logged: LoggedTask, one: LoggedRound) -> list[Submission]:
    return [
        Submission(
            participant_id=name,
            model=order.model(statement.model_sha256),
            model_sha256=statement.model_sha256,
            samples=logged.samples[one.number, name],
            claimed_degree=logged.claimed[name],
            order=sequence,
        )
        for name, (statement, sequence) in sorted(one.sent.items())
    ]


def _shadows(again: Scored) -> int:
    record: Any = again.evidence
    return int(record["model"]["shadows"])


def _start(order: TaskOrder, logged: LoggedTask, place: int) -> RoundStart:
    """As `coordinator.history.round_start` makes it of the database's rows."""
    one, most = logged.rounds[place], order.terms.recipe.samples
    history = []
    for before in logged.rounds[:place]:
        near = before.number >= one.number - KEPT_BROADCASTS
        merged = {
            name: (order.model(statement.model_sha256), min(logged.samples[before.number, name], most))
            for name, (statement, _) in sorted(before.sent.items())
            if near and before.outcomes[name].scored
        }
        history.append(EarlierRound(order.model(before.start), merged))
    return RoundStart(one.number, order.model(one.start), one.start, tuple(history))


def _compare(found: Found, row: TaskRow, one: LoggedRound, again: Scored) -> None:
    """Takes up how far a round comes out otherwise."""
    found.rounds += 1
    found.submissions += len(one.sent)
    measured: Any = again.evidence
    same = canonical_bytes(measured["model"]) == canonical_bytes(one.evidence) and all(
        canonical_bytes(item) == canonical_bytes(one.measurements[item["participant_id"]])
        for item in measured["measurements"]
    )
    outcomes = {a.participant_id: outcome_of(row.terms, a) for a in again.assessments}
    logged = {name: one.outcomes[name] for name in one.sent}
    found.identical += same and outcomes == logged
    for name, other in outcomes.items():
        own = logged[name]
        facts = [(each.verdicts, each.refuted, each.cluster, each.scored) for each in (own, other)]
        found.turned += facts[0] != facts[1]
        found.weight_micro = max(found.weight_micro, abs(own.weight_micro - other.weight_micro))
        found.multiplier_micro = max(found.multiplier_micro, abs(own.multiplier_ppm - other.multiplier_ppm))
        if own.verified_micro is not None and other.verified_micro is not None:
            found.degree_micro = max(found.degree_micro, abs(own.verified_micro - other.verified_micro))
        for rule in own.scores.keys() & other.scores.keys():
            apart = abs(Decimal(own.scores[rule]) - Decimal(other.scores[rule])) * MICRO
            found.degree_micro = max(found.degree_micro, int(apart))


def _merge(
    found: Found,
    order: TaskOrder,
    one: LoggedRound,
    submissions: Sequence[Submission],
    state: Path | None,
    scratch: Path,
) -> Path | None:
    """Merges a round's models by the logged assessments; returns the file of the server's state after it."""
    terms = order.terms
    logged = Scored(tuple(one.assessments[name] for name in sorted(one.sent)))
    parts = merged_parts(logged, submissions, terms.recipe.samples)
    if not parts:
        found.merged += one.result == one.start
        return state
    target, made = scratch / "mean", scratch / "state"
    result = merge(parts, terms.aggregation, terms.contract, order.model(one.start), state, target, made)
    found.merged += (result.model_sha256, result.state_sha256) == (one.result, one.state)
    target.unlink()
    if result.state_sha256 is None:
        return None
    kept = scratch / f"state-{one.number}"
    shutil.move(made, kept)
    return kept
