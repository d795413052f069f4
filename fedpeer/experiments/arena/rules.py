"""The assessments of a set of submissions as each payment rule sees them.

`verified` takes the evidence as it is, screens and all. The others are measured as their sources have them, with
the model contract as the only screen: `paper` believes every claim, the scored rules pay on their own score, those of
other work (`fedpeer.experiments.arena.compared`) among them. A rule of an installed extension sees what `verified`
does.
"""

from collections.abc import Container, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from fedpeer.evidence.assessing import SCORED_RULES, RoundMeasurements
from fedpeer.experiments.arena.compared import COMPARED_RULES, PartComparison, compared_scores
from fedpeer.experiments.errors import ExperimentError
from fedpeer.extensions import PAYMENT_RULES, extension
from fedpeer.protocol.submission import Submission
from mechanism.peers import Draw
from mechanism.settlement import (
    MICRO,
    Assessment,
    Outcome,
    PaymentRule,
    RoundSettlement,
    Verdict,
    max_payment_micro,
    settle_round,
)
from mechanism.terms import Terms

RULES = ("verified", "paper", *SCORED_RULES, *COMPARED_RULES)


def assessments_under(
    rule: str,
    measurements: RoundMeasurements,
    submissions: Sequence[Submission],
    probe: PartComparison,
    harmful: Container[str] | None = None,
) -> tuple[Assessment, ...]:
    """Assessments of submissions that have been measured, in participant-id order; `harmful` as of
    `RoundMeasurements.assess`."""
    names = sorted(s.participant_id for s in submissions)
    if rule == "verified" or rule not in RULES:
        return measurements.assess(names, harmful).assessments
    valid = [name for name in names if measurements.in_order(name)]
    scores = measurements.scores(valid, rules=(rule,)) if rule in SCORED_RULES else {}
    by_id = {s.participant_id: s for s in submissions}
    if rule in COMPARED_RULES:
        scored = compared_scores(rule, probe, [by_id[name] for name in valid])
        scores = {name: {rule: score} for name, score in scored.items()}
    return tuple(
        Assessment(
            participant_id=name,
            model_sha256=by_id[name].model_sha256,
            claimed_degree=by_id[name].claimed_degree,
            verified_micro=round(by_id[name].claimed_degree * MICRO) if name in valid else None,
            scores=scores.get(name, {}),
            verdicts=(Verdict("contract", name in valid, "Whether the model fits the task's contract."),),
        )
        for name in names
    )


def settled(rule: str, terms: Terms, round_: int, draw: Draw, found: Sequence[Assessment]) -> RoundSettlement:
    """The settlement of a round under `rule`, everyone having a whole stake at risk."""
    own = _by_score(rule, found) if rule in COMPARED_RULES else None if rule in RULES else own_rule(rule)
    # The penalty of a false claim is part of the rule `verified`: a rule of somebody's own has its own.
    under = replace(terms, rule=replace(terms.rule, name="paper" if own else rule))
    stakes = {a.participant_id: terms.rule.stake_micro for a in found}
    return settle_round(under, round_, draw, found, stakes, own)


def _by_score(rule: str, found: Sequence[Assessment]) -> PaymentRule:
    """s_k f(Q / Upsilon), as rules on a score of the product pay."""
    scores = {each.participant_id: each.scores for each in found}

    def pay(terms: Terms, subject: Outcome, peers: Sequence[Outcome]) -> Decimal:
        most = Decimal(max_payment_micro(terms.Q, terms.upsilon, terms.payment.exact)) / MICRO
        return Decimal(scores[subject.participant_id][rule]) * most

    return pay


def own_rule(name: str) -> PaymentRule:
    """The payment rule of an installed extension, whose amounts are looked at.

    Raises:
        ExtensionError: there is none, or it cannot be loaded.
        ExperimentError: when it is called and gives no amount.
    """
    rule: Any = extension(PAYMENT_RULES, name)

    def pay(terms: Terms, subject: Outcome, peers: Sequence[Outcome]) -> Decimal:
        amount = rule(terms, subject, peers)
        if not isinstance(amount, Decimal) or not amount.is_finite() or amount < 0:
            raise ExperimentError(
                f"the payment rule {name} gives {amount!r:.60} for {subject.participant_id}; expected credits, "
                "a Decimal of at least 0"
            )
        return amount

    return pay
