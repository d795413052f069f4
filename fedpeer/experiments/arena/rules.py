"""The assessments of a set of submissions as each payment rule sees them.

`verified` takes the evidence as it is, screens and all. The others are measured as their sources have them, with
the model contract as the only screen: `paper` believes every claim, the scored rules pay on their own score.
"""

from collections.abc import Sequence
from dataclasses import replace

from fedpeer.evidence.assessing import SCORED_RULES, RoundMeasurements
from fedpeer.protocol.submission import Submission
from mechanism.peers import Draw
from mechanism.settlement import MICRO, Assessment, Settlement, Verdict, settle_round
from mechanism.terms import Terms

RULES = ("verified", "paper", *SCORED_RULES)


def assessments_under(
    rule: str, measurements: RoundMeasurements, submissions: Sequence[Submission]
) -> tuple[Assessment, ...]:
    """Assessments of submissions that have been measured, in participant-id order."""
    names = sorted(s.participant_id for s in submissions)
    if rule == "verified":
        return measurements.assess(names).assessments
    valid = [name for name in names if measurements.in_order(name)]
    scores = measurements.scores(valid, rules=(rule,)) if rule in SCORED_RULES else {}
    by_id = {s.participant_id: s for s in submissions}
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


def settled(rule: str, terms: Terms, round_: int, draw: Draw, found: Sequence[Assessment]) -> Settlement:
    """The settlement of a round under `rule`, everyone having a whole stake at risk."""
    under = replace(terms, rule=replace(terms.rule, name=rule))
    stakes = {a.participant_id: terms.rule.stake_micro for a in found}
    return settle_round(under, round_, draw, found, stakes)
