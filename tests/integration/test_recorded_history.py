"""What the service records of a task, read from its ledger: it is verified, and says what receipts say."""

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from coordinator.clock import ManualClock
from coordinator.errors import MarketTaskError
from coordinator.folder import StateFolder
from fedpeer.audit.sources import open_source
from fedpeer.protocol.errors import Code
from mechanism.errors import FieldError
from mechanism.ledger.entry import Entry
from tests.integration import market
from tests.integration.market import close, model_like, open_task, refused, running, task_config, verified


def recorded(folder: StateFolder) -> list[Entry]:
    with ExitStack() as resources:
        source = open_source(folder.database_url(folder.config()), resources)
        return [Entry.parse(data) for data in source.entries()]


async def test_failures_late_models_and_a_clock_set_back_leave_a_sound_history(tmp_path: Path) -> None:
    folder = market.make_folder(tmp_path / "market")
    config = task_config(tmp_path, schedule={"capacity": 4, "rounds": 2})
    await asyncio.to_thread(open_task, folder, config)
    clock = ManualClock(time.time())
    async with running(folder, clock) as coordinator:
        everyone = [await market.enrol(coordinator, name) for name in ("ann", "ben", "cem", "dan")]
        ann, ben, cem, dan = everyone
        await ann.until("EFFORT")
        for client in everyone:
            await client.claim()
        await ann.until("TRAINING")
        clock.advance(-50)
        for number, client in enumerate((cem, ann, ben)):
            await client.submit(model_like(number), 1)
        await dan.fail(1, "no disk")
        await ann.until("TRAINING", round_=2)
        assert (await dan.submit(model_like(7), 1)).late
        await refused(dan.submit(model_like(8), 1, submission_id="again"), Code.SUBMISSION_CONFLICT)
        for number, client in enumerate((dan, ben, ann, cem)):
            await client.submit(model_like(10 + number), 2)
        await ann.until("CLOSED")
        await close(everyone)
    report = verified(folder)
    assert report.counts.degrees == 0  # claims were paid, nothing was measured
    ledger = recorded(folder)
    models = [e for e in ledger if e.kind == "model"]
    assert [(e.id.split("/")[2], e.id.split("/")[4], e.body["sequence"], e.body["late"]) for e in models] == [
        ("1", "cem", 1, False), ("1", "ann", 2, False), ("1", "ben", 3, False), ("1", "dan", 4, True),
        ("2", "dan", 5, False), ("2", "ben", 6, False), ("2", "ann", 7, False), ("2", "cem", 8, False),
    ]  # fmt: skip
    [failure] = [e for e in ledger if e.kind == "failure"]
    assert failure.id == "task/round/1/failure/dan/failure-1-dan"
    assert (failure.body["round"], failure.body["participant_id"], failure.body["reason"]) == (
        1,
        "dan",
        "no disk",
    )
    times = [str(e.body["at"]) for e in ledger if e.kind == "transition"]
    assert times == sorted(times)
    assert all(times)


async def test_an_operator_may_cancel_a_round_whose_models_are_in_and_the_log_says_why(
    tmp_path: Path,
) -> None:
    folder = market.make_folder(tmp_path / "market")
    config = task_config(tmp_path, schedule={"capacity": 4, "rounds": 2})
    await asyncio.to_thread(open_task, folder, config)
    async with running(folder) as coordinator:
        everyone = [await market.enrol(coordinator, name) for name in ("ann", "ben", "cem", "dan")]
        await everyone[0].until("EFFORT")
        for client in everyone:
            await client.claim()
        await everyone[0].until("TRAINING")
        for number, client in enumerate(everyone[:3]):
            await client.submit(model_like(number), 1)
        with pytest.raises(ValueError, match="CANCELLED without a reason"):
            await asyncio.to_thread(cancel, folder, "")
        await asyncio.to_thread(cancel, folder, "the data were withdrawn")
        await everyone[0].until("CANCELLED")
        await close(everyone)
    assert verified(folder).open_tasks == {}
    assert recorded(folder)[-1].body["reason"] == "the data were withdrawn"


def cancel(folder: StateFolder, reason: str) -> None:
    operator = market.Operator(folder)
    try:
        operator.cancel("task", reason)
    finally:
        operator.close()


def test_a_task_whose_rule_needs_evidence_that_cannot_be_had_is_not_opened(tmp_path: Path) -> None:
    folder = market.make_folder(tmp_path / "market")
    data = {"dataset": "digits", "validation": 400, "test": 100}
    config = task_config(tmp_path, rule={"name": "verified"}, data=data, reference=None)
    with pytest.raises(FieldError, match=r'recipe.model is .custom.*rule\.name = "paper"'):
        open_task(folder, config)
    config = task_config(tmp_path, rule={"name": "shapley"})
    with pytest.raises(MarketTaskError, match=r"needs the learner's data.*rule\.name = .paper"):
        open_task(folder, config)
    assert recorded(folder) == []
