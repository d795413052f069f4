"""What a task does next, decided from what is recorded and from the time alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.states import (
    BeginEffort,
    Cancel,
    Close,
    CloseRound,
    OpenRound,
    Progress,
    Select,
    Settle,
    Wait,
    next_step,
)
from mechanism.lifecycle import FOLLOWS, State
from mechanism.terms import Schedule

SCHEDULE = Schedule(rounds=2, quorum=3, capacity=4, effort_seconds=60, round_seconds=100)
NAMES = frozenset("abcd")


def training(**sets: str) -> Progress:
    members = {name: frozenset(value) for name, value in sets.items()}
    return Progress(State.TRAINING, 1, 100.0, selected=NAMES, claimed=NAMES, **members)


@pytest.mark.parametrize(
    ("progress", "now", "step"),
    [
        (Progress(State.OPEN, 0, None), 5.0, BeginEffort()),
        (Progress(State.EFFORT, 0, 65.0, claimed=frozenset("abc")), 64.9, Wait(65.0)),
        (Progress(State.EFFORT, 0, 65.0, claimed=NAMES), 6.0, Select()),
        (Progress(State.EFFORT, 0, 65.0, claimed=frozenset("abc")), 65.0, Select()),
        (Progress(State.SELECTED, 0, None), 5.0, OpenRound(1)),
        (training(), 50.0, Wait(100.0)),
        (training(delivered="abcd"), 50.0, CloseRound()),
        (training(delivered="abc", failed="d"), 50.0, CloseRound()),
        (training(delivered="abc", absent="d"), 50.0, CloseRound(frozenset("d"))),
        (training(delivered="ab", absent="cd"), 50.0, Wait(100.0)),
        (training(delivered="abc"), 100.0, CloseRound()),
        (Progress(State.SCORED, 1, None), 5.0, Settle()),
        (Progress(State.SETTLED, 1, None), 5.0, OpenRound(2)),
        (Progress(State.SETTLED, 2, None), 5.0, Close()),
        (Progress(State.CLOSED, 2, None), 5.0, Wait(None)),
        (Progress(State.CANCELLED, 1, None), 5.0, Wait(None)),
    ],
)
def test_next_step(progress: Progress, now: float, step: object) -> None:
    assert next_step(SCHEDULE, progress, now) == step


def test_fewer_claims_than_the_quorum_cancel_and_name_both_numbers() -> None:
    step = next_step(SCHEDULE, Progress(State.EFFORT, 0, 65.0, claimed=frozenset("ab")), 65.0)
    assert isinstance(step, Cancel)
    assert "2 claims" in step.reason
    assert "quorum of 3" in step.reason


def test_fewer_models_than_the_quorum_cancel_once_nobody_is_awaited() -> None:
    assert isinstance(next_step(SCHEDULE, training(delivered="ab", failed="cd"), 50.0), Cancel)
    assert isinstance(next_step(SCHEDULE, training(delivered="ab"), 100.0), Cancel)


subsets = st.frozensets(st.sampled_from(sorted(NAMES)))


@given(
    state=st.sampled_from(State),
    round_=st.integers(0, 2),
    now=st.floats(0, 200),
    deadline=st.none() | st.floats(0, 200),
    claimed=subsets,
    delivered=subsets,
    failed=subsets,
    absent=subsets,
)
def test_a_step_leads_only_where_the_table_allows_and_time_alone_never_stalls_a_phase(
    state: State,
    round_: int,
    now: float,
    deadline: float | None,
    claimed: frozenset[str],
    delivered: frozenset[str],
    failed: frozenset[str],
    absent: frozenset[str],
) -> None:
    progress = Progress(state, round_, deadline, claimed, NAMES, delivered, failed, absent)
    step = next_step(SCHEDULE, progress, now)
    leads_to = {
        BeginEffort: State.EFFORT,
        Select: State.SELECTED,
        OpenRound: State.TRAINING,
        CloseRound: State.SCORED,
        Settle: State.SETTLED,
        Close: State.CLOSED,
        Cancel: State.CANCELLED,
    }
    if isinstance(step, Wait):
        assert state.final or (step.until is None and deadline is None) or (step.until or 0) > now
    else:
        assert leads_to[type(step)] in FOLLOWS[state]
    if isinstance(step, CloseRound):
        assert len(delivered) >= SCHEDULE.quorum
