"""Tasks of the largest documented values open, and real participants join, claim, train and are paid in them."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save as save_tensors

from coordinator.blobs import BlobStore
from fedpeer.protocol.limits import (
    MAX_DIMENSIONS,
    MAX_LABELS,
    MAX_MESSAGE_BYTES,
    MAX_ROUNDS,
    MAX_TENSOR_NAME,
    MAX_TENSORS,
)
from fedpeer.protocol.model_file import open_model
from fedpeer.v1 import market_pb2
from mechanism.canonical import MAX_INTEGER
from mechanism.terms import DTYPE_BYTES
from participant import Participant, RefusedError, Task, TaskReport, Trained, TrainingRound, Weights
from participant.steps import LIST_TASKS
from tests.integration.market import verified
from tests.integration.serving import Served, served

pytestmark = pytest.mark.long

NAMES = ("ada", "ben", "cho")

#: How a round moves the weights of each participant.
STEPS = {"ada": 1.0, "ben": 2.0, "cho": 4.5}


class Moves(Task):
    """Adds a step to every number, in the type that it came in."""

    def __init__(self, counts: list[int], step: float) -> None:
        self.held = counts
        self.step = step

    def label_counts(self) -> list[int]:
        return self.held

    def train(self, weights: Weights, round: TrainingRound) -> Trained:  # noqa: A002 - as Task.train
        moved = {
            name: array if array.dtype == bool else array + array.dtype.type(self.step)
            for name, array in weights.items()
        }
        return Trained(moved, samples=100)


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("largest") / "coordinator") as running:
        yield running


@pytest.fixture(scope="module")
def people(coordinator: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Participant]]:
    folder = tmp_path_factory.mktemp("people")
    found = {name: coordinator.participant(name, folder) for name in NAMES}
    yield found
    for participant in found.values():
        participant.close()


def all_run(
    people: dict[str, Participant], task_id: str, counts: Callable[[str], list[int]], **options: Any
) -> dict[str, TaskReport]:
    """Every participant runs the task in a thread of its own, to its end."""
    reports: dict[str, Any] = {}

    def run(name: str) -> None:
        try:
            task = Moves(counts(name), STEPS[name])
            reports[name] = people[name].run(task, task_id, effort=0.5, **options)
        except BaseException as error:
            reports[name] = error

    threads = [threading.Thread(target=run, args=(name,)) for name in people]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()
    for report in reports.values():
        if isinstance(report, BaseException):
            raise report
    return reports


def paid(
    coordinator: Served,
    people: dict[str, Participant],
    task_id: str,
    counts: Callable[[str], list[int]] = lambda _: [10, 10, 10, 10],
    **options: Any,
) -> Path:
    """The last model of a task that was opened, run by everybody, and paid; its ledger verifies."""
    for report in all_run(people, task_id, counts, **options).values():
        assert report.state == "CLOSED"
        assert [line.receipt is not None for line in report.rounds] == [True]
        assert report.paid_micro > 0
    verified(coordinator.folder)
    row = coordinator.operator(lambda operator: operator.task(task_id)).row
    return BlobStore(coordinator.folder.models).path(row.model)


def few(**changes: Any) -> dict[str, Any]:
    return {"schedule": {"rounds": 1}, **changes}


@pytest.mark.parametrize(
    ("name", "count"), [("usual", 847), pytest.param("most", MAX_TENSORS, marks=pytest.mark.slow)]
)
def test_models_of_many_tensors(
    coordinator: Served, people: dict[str, Participant], name: str, count: int
) -> None:
    weights = {f"layer.{i:05d}.attention.self.query.weight": np.full(1, i, np.float32) for i in range(count)}
    coordinator.open(f"tensors-{name}", **few(weights=weights))
    mean = open_model(paid(coordinator, people, f"tensors-{name}")).weights()
    assert len(mean) == count
    assert mean[f"layer.{7:05d}.attention.self.query.weight"][0] == 9.5


@pytest.mark.extended
def test_as_many_tensors_as_there_may_be_are_agreed_to(
    coordinator: Served, people: dict[str, Participant]
) -> None:
    weights = {
        f"layer.{i:05d}.attention.self.query.weight": np.ones(1, np.float32) for i in range(MAX_TENSORS)
    }
    coordinator.open("agreed", **few(weights=weights))
    joined = people["ada"].join("agreed")
    assert len(joined.terms.contract.tensors) == MAX_TENSORS
    assert joined.claim(0.5, [10, 10, 10, 10]).kind == "claim"
    verified(coordinator.folder)
    coordinator.operator(lambda operator: operator.cancel("agreed", "seen enough"))


def test_as_many_labels_as_there_may_be(coordinator: Served, people: dict[str, Participant]) -> None:
    """With counts of the largest numbers."""
    coordinator.open("labels", **few(reference=[f"1/{MAX_LABELS}"] * MAX_LABELS))

    def counts(name: str) -> list[int]:
        return [MAX_INTEGER - (i if name == "ada" else 0) for i in range(MAX_LABELS)]

    paid(coordinator, people, "labels", counts)


def test_as_many_dimensions_and_characters_as_there_may_be(
    coordinator: Served, people: dict[str, Participant]
) -> None:
    weights = {
        "n" * MAX_TENSOR_NAME: np.zeros((1,) * MAX_DIMENSIONS, np.float32),
        "é" * MAX_TENSOR_NAME: np.zeros((2, 0), np.float32),
    }
    coordinator.open("shapes", **few(weights=weights))
    mean = open_model(paid(coordinator, people, "shapes")).weights()
    assert mean["n" * MAX_TENSOR_NAME].shape == (1,) * MAX_DIMENSIONS


def test_as_many_rounds_and_places_as_there_may_be(
    coordinator: Served, people: dict[str, Participant]
) -> None:
    coordinator.open(
        "schedule",
        Q="201",
        schedule={"rounds": MAX_ROUNDS, "capacity": 100_000},
    )
    joined = people["ada"].join("schedule")
    assert joined.claim(0.5, [10, 10, 10, 10]).kind == "claim"
    coordinator.operator(lambda operator: operator.cancel("schedule", "seen enough"))


TORCH = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool,
}  # fmt: skip


def test_every_element_type_that_contracts_know(
    coordinator: Served, people: dict[str, Participant], tmp_path: Path
) -> None:
    """First model, terms, upload, checks and mean; bfloat16 comes as float32 and is rounded when it is sent."""
    assert TORCH.keys() == DTYPE_BYTES.keys()
    dice = torch.Generator().manual_seed(5)
    start = {name: (torch.randn(300, generator=dice) * 20).abs().to(kind) for name, kind in TORCH.items()}
    first = tmp_path / "first.safetensors"
    first.write_bytes(save_tensors(start))
    coordinator.open("types", **few(initial_model=str(first)))
    file = open_model(paid(coordinator, people, "types"))
    assert {t.spec.name: t.spec.dtype for t in file.tensors} == {name: name for name in TORCH}
    mean = file.weights()
    for name, kind in TORCH.items():
        if name == "BOOL":
            expected = start[name]
        elif kind.is_floating_point:
            moved = [
                (start[name].float() + step).to(kind) if name == "BF16" else start[name] + step
                for step in STEPS.values()
            ]
            total = sum(m.double() for m in moved)
            assert isinstance(total, torch.Tensor)
            expected = (total / 3).float().to(kind) if name == "BF16" else (total / 3).to(kind)
        else:
            moved = [start[name] + int(step) for step in STEPS.values()]
            expected = torch.tensor([round(sum(int(m[i]) for m in moved) / 3) for i in range(300)]).to(kind)
        found = torch.from_numpy(mean[name])
        assert torch.equal(found, expected.float() if name == "BF16" else expected), name


def test_all_tasks_are_listed_page_by_page(coordinator: Served, people: dict[str, Participant]) -> None:
    """Together their terms are larger than a message."""
    weights = {f"{'long.' * 30}{i:05d}": np.zeros(1, np.float32) for i in range(6_000)}
    for number in range(3):
        coordinator.open(f"listed-{number}", **few(weights=dict(weights)))
    rows = [report.row for report in coordinator.operator(lambda operator: operator.tasks())]
    assert sum(len(row.terms.canonical) for row in rows) > MAX_MESSAGE_BYTES
    client = people["ada"].client
    assert sorted(task.task_id for task in client.tasks()) == sorted(row.id for row in rows)
    page = client.transport.run(client.steps.call(LIST_TASKS, market_pb2.ListTasksRequest()))
    assert page.next_page
    assert page.ByteSize() <= MAX_MESSAGE_BYTES
    unknown = client.steps.call(LIST_TASKS, market_pb2.ListTasksRequest(page="nobody"))
    with pytest.raises(RefusedError, match="next_page"):
        client.transport.run(unknown)
    for number in range(3):
        coordinator.operator(lambda operator, name=f"listed-{number}": operator.cancel(name, "seen enough"))
