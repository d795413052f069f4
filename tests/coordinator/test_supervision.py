"""A duty that ends unplanned begins again, is counted and is said; one that fails for long raises the alarm."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

import coordinator.supervision
from coordinator.errors import BucketError
from coordinator.metrics import Metrics
from coordinator.supervision import Duty, Supervisor
from fedpeer.audit.sql.errors import DatabaseUnreachable


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator.supervision, "_RETRY_SECONDS", 0.0)


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


class Work:
    """Fails as often as there are errors, then goes on until it is stopped."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.going_on = asyncio.Event()
        self.well = asyncio.Event()

    async def __call__(self, duty: Duty) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.going_on.set()
        await self.well.wait()
        duty.well()
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    "error", [RuntimeError("a bug"), OSError(5, "EIO"), asyncio.CancelledError(), GeneratorExit()]
)
async def test_whatever_ends_a_duty_it_begins_again(error: BaseException) -> None:
    metrics, alarms = Metrics(), list[bool]()
    supervisor, work = Supervisor(metrics, alarms.append), Work(error, error)
    supervisor.begin("a duty", work)
    await work.going_on.wait()
    assert value(metrics, "fedpeer_duty_restarts_total", duty="a duty") == 2
    assert value(metrics, "fedpeer_duty_failing", duty="a duty") == 1
    assert list(supervisor.troubles()) == ["a duty"]
    assert type(error).__name__ in supervisor.troubles()["a duty"]
    work.well.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert supervisor.troubles() == {}
    assert value(metrics, "fedpeer_duty_failing", duty="a duty") == 0
    assert alarms == []
    await supervisor.stop()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (DatabaseUnreachable("the database cannot be reached"), {"why": "the database cannot be reached"}),
        (BucketError("the bucket is away"), {"why": "the bucket is away"}),
        (bug := RuntimeError("a bug"), {"exc_info": bug}),
    ],
)
async def test_what_an_operator_sees_to_is_one_sentence_in_the_log_and_a_bug_has_its_place(
    error: Exception, said: dict[str, Any]
) -> None:
    supervisor, work = Supervisor(Metrics(), lambda alarmed: None), Work(error)
    with capture_logs() as lines:
        supervisor.begin("a duty", work)
        await work.going_on.wait()
    [line] = lines
    assert {name: line[name] for name in ("why", "exc_info") if name in line} == said
    await supervisor.stop()


@pytest.mark.parametrize("vital", [True, False])
async def test_a_vital_duty_that_fails_for_long_raises_the_alarm_until_it_is_well(
    monkeypatch: pytest.MonkeyPatch, vital: bool
) -> None:
    monkeypatch.setattr(coordinator.supervision, "LASTING_SECONDS", 0.0)
    alarms: list[bool] = []
    supervisor, work = Supervisor(Metrics(), alarms.append), Work(ValueError())
    supervisor.begin("a duty", work, vital=vital)
    await work.going_on.wait()
    assert alarms == ([True] if vital else [])
    work.well.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert alarms == ([True, False] if vital else [])
    await supervisor.stop()


async def test_a_duty_ends_by_returning_and_with_the_service() -> None:
    metrics = Metrics()
    supervisor = Supervisor(metrics, lambda _: None)

    async def done(duty: Duty) -> None:
        return

    supervisor.begin("done", done)
    supervisor.begin("for ever", Work())
    await asyncio.sleep(0)
    await supervisor.stop()
    assert all(task.done() for task in supervisor._tasks.values())
    for name in ("done", "for ever"):
        assert value(metrics, "fedpeer_duty_restarts_total", duty=name) is None


async def test_pauses_double_up_to_the_limit_of_the_duty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator.supervision, "_RETRY_SECONDS", 1e-6)
    for limit, pauses in ((2e-6, [1, 2, 2, 2, 2, 2]), (8e-6, [1, 2, 4, 8, 8, 8])):
        supervisor, work = Supervisor(Metrics(), lambda _: None), Work(*[ValueError() for _ in range(6)])
        with capture_logs() as lines:
            supervisor.begin("a duty", work, limit=limit)
            await work.going_on.wait()
        assert [round(line["seconds"] * 1e6) for line in lines] == pauses
        await supervisor.stop()


async def test_a_line_that_cannot_be_logged_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(coordinator.supervision.log, "error", full, raising=False)
    supervisor, work = Supervisor(Metrics(), lambda _: None), Work(ValueError("first"))
    supervisor.begin("a duty", work)
    await work.going_on.wait()
    await supervisor.stop()
