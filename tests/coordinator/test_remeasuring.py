"""What measuring a task again needs of its ledger and openings, and what it refuses before it trains."""

from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.derivation import chain_secret
from coordinator.errors import MarketTaskError
from coordinator.remeasuring import LoggedRound, LoggedTask, check_shadows, measure_again, read_task, task_row
from fedpeer.protocol.audit_folder import TaskOrder
from mechanism.lifecycle import State
from mechanism.peers import seed_commitment
from tests import ledger_samples as samples
from tests.ledger_histories import History, Shape, started

SHAPE = Shape(rounds=2, people=5, auditor=True, absent={1: {"p003": "no disk"}, 2: {"p003": None}})


def unchosen() -> History:
    """p004 has claimed and was not selected; p003 was, and has sent nothing."""
    made = started(SHAPE)
    made.open()
    made.enter(State.EFFORT)
    for name in made.people:
        made.claim(name)
    made.select(made.people[:4])
    made.rounds(1, 2)
    made.end()
    return made


def order_of(made: History, shadows: int = 100, later: int = 50) -> TaskOrder:
    return TaskOrder(made.terms, bytes(32), shadows, later, 0.0, None, Path("given"))


def test_only_what_was_measured_has_to_be_opened() -> None:
    made = unchosen()
    ledger = [entry.data for entry in made.log.entries]
    openings = samples.openings_of(made.log.entries)
    for name in ("p003", "p004"):
        about = [entry_id for entry_id in openings if name in entry_id.split("/")]
        assert f"task/claim/{name}/claim-{name}" in about
        for entry_id in about:
            del openings[entry_id]
    logged = read_task(order_of(made), ledger, openings)
    assert (len(logged.rounds), sorted(logged.claimed)) == (2, ["p000", "p001", "p002"])
    assert sorted(logged.samples) == [(r, n) for r in (1, 2) for n in ("p000", "p001", "p002")]
    for one in logged.rounds:
        assert sorted(one.assessments) == sorted(one.measurements) == sorted(one.sent)
        assert one.evidence["shadows"] == one.shadows
    # Each of the others is needed.
    for entry_id in openings:
        with pytest.raises(MarketTaskError, match=f"what {entry_id} commits to is not among the openings"):
            read_task(order_of(made), ledger, {k: v for k, v in openings.items() if k != entry_id})


def test_another_number_of_shadows_than_the_ledger_has_is_refused() -> None:
    order = order_of(started(SHAPE))
    root = seed_commitment(chain_secret(order.root), 2)
    order = replace(order, terms=replace(order.terms, seed_commitment=root))
    rounds = [LoggedRound(1, bytes(32), shadows=100), LoggedRound(2, bytes(32), shadows=49, carried=100)]
    logged = LoggedTask(rounds=rounds)
    check_shadows(order, logged)  # one of the second round has diverged
    for shadows, later, round_ in ((99, 50, 1), (140, 50, 1), (100, 48, 2), (100, 80, 2)):
        altered = replace(order, shadows=shadows, later=later)
        with pytest.raises(MarketTaskError, match=f"evidence of round {round_} rests on .* by given it is"):
            measure_again(altered, task_row(altered, None, None), logged)
