"""What can be said of verdicts by what stands in clear alone: an outcome that no assessment has is refused."""

from collections.abc import Mapping
from decimal import ROUND_CEILING
from fractions import Fraction
from functools import lru_cache

from mechanism.coverage import one_share
from mechanism.evidence import KEPT_BROADCASTS
from mechanism.ledger.replay.comparing import Wrong
from mechanism.ledger.replay.world import TaskState
from mechanism.lifecycle import needs_evidence
from mechanism.settlement import MICRO, Outcome, in_micro

#: The tests that decide whether a model is scored, and those of one that is, in their order.
DECIDING = ("contract", "echo", "trained")
SCORED = ("overlap", "samples", "contribution", "claim")

#: The most that one weighs who has all of its samples in common with another, millionths.
_HALF = int(one_share(Fraction(2)) * MICRO)


def check_in_clear(task: TaskState, outcome: Outcome) -> None:
    """That an outcome is about the model that was sent, and fits its own verdicts.

    Raises:
        Wrong: it does not.
    """
    name, rule = outcome.participant_id, task.terms.rule
    sent = task.round.models.get(name)
    if outcome.model_sha256 != (b"" if sent is None else sent.digest):
        raise Wrong(f"the verdict on {name} is about another model than it sent in time")
    measured = sent is not None and needs_evidence(rule.name)
    passed, follow = _tests(outcome.verdicts)
    if not measured:
        expected = (("delivered", False),) if sent is None else (("contract", True),)
        if outcome.verdicts != expected:
            raise Wrong(f"the verdict on {name} is not the one on {'a model' if sent else 'no model'}")
    elif not follow:
        screens = ", ".join(screen for screen, _ in outcome.verdicts)
        raise Wrong(f"the verdict on {name} has the tests {screens}, which do not follow one another")
    sent_out = (task.round.start, *task.starts[-KEPT_BROADCASTS:])
    if measured and passed["contract"] and passed["echo"] and outcome.model_sha256 in sent_out:
        raise Wrong(f"{name} sent a model again that was sent out, and passes the test of echoes")
    scored = sent is not None and all(passed.get(screen, True) for screen in DECIDING)
    if outcome.scored is not scored:
        raise Wrong(f"{name} is scored though a test that decides failed, or is not though all are passed")
    if not scored or not measured:
        plain = Outcome(name, outcome.model_sha256, outcome.verified_micro, verdicts=outcome.verdicts)
        if outcome != plain:
            raise Wrong(f"the verdict on {name} takes or gives what only a measured model can")
        return
    if passed["claim"] is outcome.refuted:
        raise Wrong(f"the claim of {name} is refuted and passed, or neither")
    if (passed["samples"] and passed["contribution"]) is not (outcome.multiplier_ppm == MICRO):
        raise Wrong(f"the multiplier {outcome.multiplier_ppm} of {name} does not fit its tests")
    if not passed["overlap"] and (outcome.cluster is None or outcome.weight_micro == MICRO):
        raise Wrong(f"{name} has samples in common with others, and weighs as if it had not")
    scores = () if rule.name == "verified" else (rule.name,)
    if tuple(outcome.scores) != scores:
        raise Wrong(f"{name} has the scores {', '.join(outcome.scores) or 'none'}; the rule is {rule.name}")
    if outcome.penalty_micro:
        most = in_micro(rule.claim_penalty, ROUND_CEILING) if rule.name == "verified" else 0
        if outcome.penalty_micro > most:
            raise Wrong(f"{name} pays a penalty of {outcome.penalty_micro}; the terms allow at most {most}")


def check_together(task: TaskState, outcomes: Mapping[str, Outcome]) -> None:
    """That clusters are of two or more, named after their first, and that copies are treated as such.

    Raises:
        Wrong: they are not.
    """
    members: dict[str, list[str]] = {}
    for name, outcome in outcomes.items():
        if outcome.cluster is not None:
            members.setdefault(outcome.cluster, []).append(name)
    for cluster, names in members.items():
        if len(names) < 2 or cluster != names[0]:
            raise Wrong(f"the cluster {cluster!r:.80} is of {', '.join(names)}")
    if not needs_evidence(task.terms.rule.name):
        return
    first_of: dict[bytes, Outcome] = {}
    for name, outcome in outcomes.items():
        first = first_of.setdefault(outcome.model_sha256, outcome)
        if first is outcome or not outcome.model_sha256:
            continue
        deciding = len(DECIDING)
        if outcome.verdicts[:deciding] != first.verdicts[:deciding] or (
            outcome.verified_micro != first.verified_micro
        ):
            raise Wrong(f"{name} and {first.participant_id} sent the same model and are judged otherwise")
        together = outcome.cluster is not None and outcome.cluster == first.cluster
        if outcome.scored and (not together or max(outcome.weight_micro, first.weight_micro) > _HALF):
            raise Wrong(f"{name} and {first.participant_id} sent the same model and are paid for it twice")


@lru_cache(1024)
def _tests(verdicts: tuple[tuple[str, bool], ...]) -> tuple[Mapping[str, bool], bool]:
    """Which tests were passed, and whether they are those of a measured model; there are few such lists."""
    passed = dict(verdicts)
    return passed, tuple([screen for screen, _ in verdicts]) == _screens(passed)


def _screens(passed: Mapping[str, bool]) -> tuple[str, ...]:
    """The tests that a measured model with these results has."""
    if not passed.get("contract"):
        return DECIDING[:1]
    return DECIDING + (SCORED if passed.get("echo") and passed.get("trained") else ())
