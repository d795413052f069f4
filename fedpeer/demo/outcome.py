"""From the settled task to the demo's result: what the ledger says, beside what only the demo knows.

Verified degrees and payments are read from the ledger, claims and the verdicts' sentences from what it commits to. The
true degree and the cost of a participant are its own business and stand in no ledger; the demo knows them because it
made the data.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from coordinator.operator import TaskOverview
from fedpeer.cli.errors import CommandError
from fedpeer.demo.population import Member, Strategy
from fedpeer.demo.processes import DemoPlan
from fedpeer.demo.result import DemoResult, ParticipantResult, RoundResult
from fedpeer.demo.settings import EFFORT_RATE
from fedpeer.learning.partition import LabelMix, majority_minority, toward_reference
from mechanism.cost import LinearCost
from mechanism.effort import ExponentialEffort
from mechanism.ledger.entries import outcome_from_record
from mechanism.ledger.entry import Entry
from mechanism.ledger.openings import Openings
from mechanism.ledger.verify import Report
from mechanism.settlement import MICRO, Outcome, Verdict, expected_payments
from mechanism.terms import Terms


@dataclass
class _Record:
    """What the ledger says of one participant."""

    claim: Mapping[str, Any] = field(default_factory=dict)
    verified_micro: list[int] = field(default_factory=list)
    verdicts: list[tuple[int, Verdict]] = field(default_factory=list)
    paid_micro: int = 0
    expected_micro: int = 0


def demo_result(
    plan: DemoPlan,
    report: TaskOverview,
    entries: Iterable[Entry],
    openings: Openings,
    ledger: Report,
    seconds: float,
) -> DemoResult:
    """The demo's result.

    Args:
        report: of the ended task.
        entries: of the ledger, in order; openings: all that they commit to.
        ledger: what its verification found.
        seconds: that the whole demo took.

    Raises:
        CommandError: the task did not close.
    """
    if report.row.state.value != "CLOSED":
        raise CommandError(
            f"the task ended as {report.row.state.value}: {report.row.reason or 'see the logs'}; "
            f"look into {plan.folder / 'logs'}"
        )
    terms = report.row.terms
    records = _records(terms, entries, openings)
    return DemoResult(
        terms=terms,
        participants=tuple(_participant(m, terms, records[m.id]) for m in plan.members),
        rounds=tuple(
            RoundResult(
                r.round,
                float(r.accuracy or "nan"),
                float(r.loss or "nan"),
                (r.settled_at or r.opened_at) - r.opened_at,
            )
            for r in report.rounds
        ),
        ledger=ledger,
        seconds=seconds,
    )


def true_mix(member: Member, terms: Terms, effort: float) -> LabelMix:
    """The label mix that a member really has after an effort."""
    start = majority_minority(
        terms.reference, terms.recipe.samples, majority=member.majority, degree=member.start_degree
    )
    degree = ExponentialEffort(float(start.degree), EFFORT_RATE).degree(effort)
    return toward_reference(start, min(Fraction(float(degree)), start.degree))


def _participant(member: Member, terms: Terms, record: _Record) -> ParticipantResult:
    effort = float(record.claim["effort"]) if member.strategy is Strategy.HONEST else 0.0
    start, now = true_mix(member, terms, 0.0), true_mix(member, terms, effort)
    cost = LinearCost(float(member.cost)).value(float(start.degree - now.degree))
    measured = [micro / MICRO for micro in record.verified_micro]
    return ParticipantResult(
        member=member,
        effort=effort,
        claimed_degree=float(Fraction(record.claim["degree"])),
        true_degree=float(now.degree),
        measured_degree=sum(measured) / len(measured) if measured else None,
        cost=float(cost) * terms.schedule.rounds,
        paid_micro=record.paid_micro,
        expected_micro=record.expected_micro,
        verdicts=tuple(record.verdicts),
    )


def _records(terms: Terms, entries: Iterable[Entry], openings: Openings) -> Mapping[str, _Record]:
    records: dict[str, _Record] = defaultdict(_Record)
    rounds: dict[int, list[Outcome]] = defaultdict(list)
    for entry in entries:
        body: Mapping[str, Any] = entry.body
        if entry.kind == "claim":
            records[body["statement"]["participant_id"]].claim = openings.by_id[entry.id]
        elif entry.kind == "verdict":
            assessment = openings.by_id[entry.id]["assessment"]
            rounds[body["round"]].append(outcome_from_record(body["outcome"]))
            record = records[assessment["participant_id"]]
            record.verdicts += [(body["round"], Verdict(**v)) for v in assessment["verdicts"]]
            if assessment["verified_micro"] is not None:
                record.verified_micro.append(assessment["verified_micro"])
        elif entry.kind == "payment":
            record = records[body["participant_id"]]
            record.paid_micro += body["paid_micro"] - body["stake_lost_micro"]
            record.expected_micro -= body["stake_lost_micro"]
    for outcomes in rounds.values():
        for name, micro in expected_payments(terms, outcomes).items():
            records[name].expected_micro += micro
    return records
