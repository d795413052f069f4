"""The life cycle: which step a task may take from where."""

from itertools import product

import pytest

from mechanism.errors import LifecycleError
from mechanism.lifecycle import FOLLOWS, State, check_quorum, check_step, needs_evidence
from mechanism.terms import RULE_NAMES, Schedule

SCHEDULE = Schedule(rounds=2, quorum=3, capacity=4, effort_seconds=60, round_seconds=100)


def step(
    before: State | None, round_: int, after: State, entered: int, reason: str = "", judged: bool = True
) -> None:
    check_step(SCHEDULE, before, round_, after, entered, reason, judged=judged)


@pytest.mark.parametrize(("before", "after"), list(product([None, *State], State)))
def test_only_what_may_follow_follows(before: State | None, after: State) -> None:
    round_ = 0 if before in (None, State.OPEN, State.EFFORT, State.SELECTED) else 1
    if before is State.SETTLED and after is State.CLOSED:
        round_ = 2
    entered = round_ + (after is State.TRAINING)
    reason = "withdrawn" if after is State.CANCELLED else ""
    if after in FOLLOWS[before]:
        step(before, round_, after, entered, reason)
    else:
        with pytest.raises(LifecycleError, match="does not follow"):
            step(before, round_, after, entered, reason)


def test_every_state_but_the_final_ones_leads_somewhere_and_a_scored_round_only_to_its_settlement() -> None:
    assert [s for s in State if not FOLLOWS[s]] == [State.CLOSED, State.CANCELLED]
    assert [s for s in State if s.final] == [State.CLOSED, State.CANCELLED]
    assert FOLLOWS[State.SCORED] == {State.SETTLED}
    assert FOLLOWS[None] == {State.OPEN}


def test_a_round_whose_verdicts_are_not_recorded_may_be_cancelled_and_nothing_else() -> None:
    step(State.SCORED, 1, State.CANCELLED, 1, "the data are lost", judged=False)
    for after, entered in ((State.TRAINING, 2), (State.CLOSED, 1)):
        with pytest.raises(LifecycleError, match="does not follow"):
            step(State.SCORED, 1, after, entered, judged=False)
    with pytest.raises(LifecycleError, match="does not follow"):
        step(State.CLOSED, 2, State.CANCELLED, 2, "too late", judged=False)


@pytest.mark.parametrize(
    ("before", "round_", "after", "entered", "reason", "words"),
    [
        (State.SELECTED, 0, State.TRAINING, 2, "", "expected round 1"),
        (State.TRAINING, 1, State.SCORED, 2, "", "expected round 1"),
        (State.SETTLED, 1, State.TRAINING, 1, "", "expected round 2"),
        (State.SETTLED, 2, State.TRAINING, 3, "", "beyond the 2 of the terms"),
        (State.SETTLED, 1, State.CLOSED, 1, "", "CLOSED after round 1 of 2"),
        (State.TRAINING, 1, State.CANCELLED, 1, "", "without a reason"),
        (State.TRAINING, 1, State.CANCELLED, 1, " \n", "without a reason"),
        (State.TRAINING, 1, State.SCORED, 1, "because", "has a reason"),
    ],
)
def test_rounds_and_reasons_belong_to_their_steps(
    before: State, round_: int, after: State, entered: int, reason: str, words: str
) -> None:
    with pytest.raises(LifecycleError, match=words):
        step(before, round_, after, entered, reason)


def test_a_round_below_the_quorum_is_not_scored() -> None:
    check_quorum(SCHEDULE, 3)
    with pytest.raises(LifecycleError, match="2 models came in time, fewer than the quorum of 3"):
        check_quorum(SCHEDULE, 2)


def test_only_the_papers_rule_pays_without_evidence() -> None:
    assert [rule for rule in RULE_NAMES if not needs_evidence(rule)] == ["paper"]
