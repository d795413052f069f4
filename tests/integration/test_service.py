"""The service in this process: several tasks at once, stopping, and failures that must not go unnoticed."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from participant import Activity, Task
from participant.config import ParticipantConfig
from participant.errors import TaskError
from participant.service import Service
from tests.integration.serving import Served, Shift, served


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "coordinator") as running:
        yield running


def config(coordinator: Served, state: Path, *tasks: dict[str, Any], grace: float = 20) -> ParticipantConfig:
    sections = [{"effort": {"strategy": "fixed", "effort": 0.0}, **task} for task in tasks]
    return ParticipantConfig.model_validate(
        {
            "id": "ada",
            "state": str(state),
            "coordinator": {"market": coordinator.market},
            "service": {"isolate": False, "grace_seconds": grace, "trainers": 1},
            "task": sections,
        }
    )


def shift(task_id: str | None) -> dict[str, Any]:
    return {"id": task_id, "factory": "tests.integration.serving:Shift", "options": {"counts": [5, 5, 5, 5]}}


def peers(coordinator: Served, folder: Path, *task_ids: str) -> list[threading.Thread]:
    threads = []
    for number, name in enumerate(("ben", "cho")):
        participant = coordinator.participant(name, folder)
        for task_id in task_ids:
            task = Shift([5, 5, 5, 5], step=2.0 + number)
            threads.append(
                threading.Thread(
                    target=participant.run, args=(task, task_id), kwargs={"effort": 0.0}, daemon=True
                )
            )
    for thread in threads:
        thread.start()
    return threads


def test_two_tasks_at_once_with_one_trainer(coordinator: Served, tmp_path: Path) -> None:
    coordinator.open("first")
    coordinator.open("second")
    threads = peers(coordinator, tmp_path, "first", "second")
    seen: list[Activity] = []
    state = coordinator.enrol("ada", tmp_path / "ada")
    reports = Service(config(coordinator, state, shift("first"), shift(None)), seen.append).run(once=True)
    for thread in threads:
        thread.join(60)
    assert {report.task_id: report.state for report in reports} == {"first": "CLOSED", "second": "CLOSED"}
    assert all(line.receipt is not None for report in reports for line in report.rounds)
    assert {activity.task_id for activity in seen if activity.kind == "submitted"} == {"first", "second"}


class Endless(Task):
    """Trains until it is stopped."""

    begun = threading.Event()

    def label_counts(self) -> list[int]:
        return [5, 5, 5, 5]

    def train(self, weights, round):  # type: ignore[no-untyped-def]  # noqa: A002 - as Task.train
        pause = threading.Event()
        while not pause.wait(0.01):
            Endless.begun.set()
            round.progress(0.5)


def test_stopping_hands_an_endless_training_back(coordinator: Served, tmp_path: Path) -> None:
    coordinator.open("task", schedule={"rounds": 1})
    peers(coordinator, tmp_path, "task")
    state = coordinator.enrol("ada", tmp_path / "ada")
    endless = {"id": "task", "factory": "tests.integration.test_service:Endless"}
    service = Service(config(coordinator, state, endless, grace=0.1), lambda activity: None)
    threading.Thread(target=lambda: (Endless.begun.wait(), service.stop())).start()
    [report] = service.run()
    assert report.rounds[0].missed == "the participant is shutting down"
    assert coordinator.operator(lambda operator: operator.task("task")).failures == {
        "ada": "the participant is shutting down"
    }


def test_stopping_while_nothing_is_trained_is_immediate(coordinator: Served, tmp_path: Path) -> None:
    state = coordinator.enrol("ada", tmp_path / "ada")
    service = Service(config(coordinator, state, shift(None)), lambda activity: None)
    threading.Timer(0.3, service.stop).start()
    assert service.run() == []


def broken() -> Task:
    return Broken()


class Broken(Task):
    def label_counts(self) -> list[int]:
        raise KeyError("no such table")

    def train(self, weights, round):  # type: ignore[no-untyped-def]  # noqa: A002 - as Task.train
        return weights


def test_a_task_object_that_fails_ends_the_service_with_its_reason(
    coordinator: Served, tmp_path: Path
) -> None:
    coordinator.open("task")
    state = coordinator.enrol("ada", tmp_path / "ada")
    section = {"id": "task", "factory": "tests.integration.test_service:broken"}
    with pytest.raises(TaskError, match=r"Broken\.label_counts raised KeyError: 'no such table'"):
        Service(config(coordinator, state, section), lambda activity: None).run()


def test_a_listener_that_fails_does_not_go_unnoticed(coordinator: Served, tmp_path: Path) -> None:
    coordinator.open("task")
    state = coordinator.enrol("ada", tmp_path / "ada")

    def tell(activity: Activity) -> None:
        raise ZeroDivisionError(activity.text)

    with pytest.raises(ZeroDivisionError, match="joined task"):
        Service(config(coordinator, state, shift("task")), tell).run()
