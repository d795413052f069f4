"""The life cycle of a task: its states, which may follow which, and what entering one rests on.

    OPEN -> EFFORT -> SELECTED -> TRAINING(1) -> SCORED(1) -> SETTLED(1) -> TRAINING(2) ... -> SETTLED(T) -> CLOSED
    OPEN, EFFORT, SELECTED, TRAINING(r), SETTLED(r) -> CANCELLED, which refunds what is not yet paid and says why

    state        rests on
    OPEN         terms, and a reservation for every round, together the whole budget
    EFFORT       nothing: claims are taken from here on
    SELECTED     the selection: everyone who claimed in time, as many as the quorum asks for
    TRAINING(r)  SELECTED, or a settled round r - 1; r <= T
    SCORED(r)    the round's closing, with models in time, as many as the quorum asks for; evidence on each of them
                 where the rule pays on evidence; a verdict on everyone selected
    SETTLED(r)   seed, peers, settlement, payments, the next global model
    CLOSED       SETTLED(T); awards of disputes, stakes released
    CANCELLED    a reason; awards, refunds of the rounds that were not settled, stakes released

The service, its database and the ledger's verifier go by this module. SCORED and SETTLED are entered in one
transaction, so in a ledger nothing comes between them. A service holds a round in SCORED from the moment when its
models are fixed, which a ledger shows as the closing; until its verdicts are recorded such a task can still be
cancelled, and its ledger goes from TRAINING to CANCELLED.
"""

from collections.abc import Mapping
from enum import StrEnum

from mechanism.errors import LifecycleError
from mechanism.terms import Schedule


class State(StrEnum):
    """Where a task stands. The names are those of `TaskState` in market.proto."""

    OPEN = "OPEN"
    EFFORT = "EFFORT"
    SELECTED = "SELECTED"
    TRAINING = "TRAINING"
    SCORED = "SCORED"
    SETTLED = "SETTLED"
    CLOSED = "CLOSED"
    CANCELLED = "CANCELLED"

    @property
    def final(self) -> bool:
        return self in (State.CLOSED, State.CANCELLED)


#: Which state may follow which; None is a task whose terms are published and nothing else.
FOLLOWS: Mapping[State | None, frozenset[State]] = {
    None: frozenset({State.OPEN}),
    State.OPEN: frozenset({State.EFFORT, State.CANCELLED}),
    State.EFFORT: frozenset({State.SELECTED, State.CANCELLED}),
    State.SELECTED: frozenset({State.TRAINING, State.CANCELLED}),
    State.TRAINING: frozenset({State.SCORED, State.CANCELLED}),
    State.SCORED: frozenset({State.SETTLED}),
    State.SETTLED: frozenset({State.TRAINING, State.CLOSED, State.CANCELLED}),
    State.CLOSED: frozenset(),
    State.CANCELLED: frozenset(),
}

#: The rules that pay without evidence: on what was claimed. Under every other a round's models are measured.
RULES_WITHOUT_EVIDENCE = frozenset({"paper"})


def check_step(
    schedule: Schedule,
    before: State | None,
    round_: int,
    after: State,
    entered: int,
    reason: str,
    *,
    judged: bool = True,
) -> None:
    """That a task may go from a state of a round to another.

    Args:
        schedule: of the task's terms.
        before, round_: where it stands; 0 before the first round.
        after, entered: where it goes.
        reason: why it is cancelled; empty for every other step.
        judged: False where a round in SCORED has no recorded verdicts yet.

    Raises:
        LifecycleError: it may not.
    """
    if after not in FOLLOWS[before] and not (
        before is State.SCORED and after is State.CANCELLED and not judged
    ):
        raise LifecycleError(f"{after} does not follow {before or 'the terms'}")
    expected = round_ + (1 if after is State.TRAINING else 0)
    if entered != expected:
        raise LifecycleError(f"{after} is entered in round {entered}; expected round {expected}")
    if entered > schedule.rounds:
        raise LifecycleError(f"round {entered} is beyond the {schedule.rounds} of the terms")
    if after is State.CLOSED and round_ < schedule.rounds:
        raise LifecycleError(f"CLOSED after round {round_} of {schedule.rounds}")
    if after is State.CANCELLED and not reason.strip():
        raise LifecycleError("CANCELLED without a reason; expected a sentence that says why")
    if after is not State.CANCELLED and reason:
        raise LifecycleError(f"{after} has a reason, which only CANCELLED has")


def check_quorum(schedule: Schedule, models: int) -> None:
    """That a round with so many models in time may be scored.

    Raises:
        LifecycleError: fewer than the quorum.
    """
    if models < schedule.quorum:
        raise LifecycleError(
            f"{models} models came in time, fewer than the quorum of {schedule.quorum}; such a round is not scored"
        )


def needs_evidence(rule: str) -> bool:
    """Whether a rule of `mechanism.terms.RULE_NAMES` pays on evidence."""
    return rule not in RULES_WITHOUT_EVIDENCE
