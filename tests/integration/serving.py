"""A real coordinator in this process, on an event loop of its own, for participants that block or run elsewhere."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.clock import Clock
from coordinator.config import TaskConfig
from coordinator.folder import StateFolder, initialise
from coordinator.opening import prepare_task
from coordinator.operator import Operator
from coordinator.server import Coordinator
from fedpeer.protocol.model_file import encode_model
from participant import Participant, Task, Trained, TrainingRound, Weights

CONFIG = """
name = "test"
[server]
market = "127.0.0.1:{market}"
public = "127.0.0.1:{public}"
metrics = ""
insecure = {insecure}
[storage]
database = {database!r}
"""

#: A model without an architecture; two types and a scalar, as real state dicts have.
WEIGHTS = {
    "bias": np.zeros(4, np.float32),
    "steps": np.array(0, np.int64),
    "weight": np.ones((40, 30), np.float32),
}


@dataclass
class Served:
    """A coordinator that serves, and what an operator does with it."""

    folder: StateFolder
    market: str = ""
    public: str = ""
    insecure: bool = False
    clock: Clock | None = None
    database: str = ""
    _loop: asyncio.AbstractEventLoop | None = None
    _coordinator: Coordinator | None = None
    _thread: threading.Thread | None = None

    @property
    def authority(self) -> bytes:
        return (self.folder.path / "authority.pem").read_bytes()

    def start(self) -> None:
        """Serves; a second start takes the ports of the first."""
        started: list[BaseException | None] = []
        ready = threading.Event()

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self._stopping = asyncio.Event()
            self._coordinator = Coordinator(self.folder, clock=self.clock)
            try:
                await self._coordinator.start()
            except BaseException as error:
                started.append(error)
                raise
            finally:
                ready.set()
            await self._stopping.wait()
            await self._coordinator.stop(0)

        self._thread = threading.Thread(target=lambda: asyncio.run(serve()), name="coordinator", daemon=True)
        self._thread.start()
        assert ready.wait(30)
        assert not started, started
        assert self._coordinator is not None
        self.market, self.public = self._coordinator.market_address, self._coordinator.public_address
        ports = self.market.rpartition(":")[2], self.public.rpartition(":")[2]
        text = config_text(*ports, self.insecure, self.database)
        (self.folder.path / "coordinator.toml").write_text(text)

    def stop(self) -> None:
        if self._thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(30)
            assert not self._thread.is_alive()
            self._thread = None

    def operator(self, act: Callable[[Operator], Any]) -> Any:
        operator = Operator(self.folder)
        try:
            return act(operator)
        finally:
            operator.close()

    def invite(self, name: str) -> str:
        token: str = self.operator(lambda operator: operator.invite(name).token)
        return token

    def open(self, task_id: str = "task", **changes: Any) -> None:
        config = task_config(self.folder.path, task_id, **changes)
        self.operator(lambda operator: operator.open(prepare_task(config, 1_000.0)))

    def enrol(self, name: str, state: Path) -> Path:
        """Enrols a participant through the SDK; returns its state folder."""
        Participant.enroll(
            state,
            participant_id=name,
            public=self.public,
            token=self.invite(name),
            authority=None if self.insecure else self.authority,
        )
        return state

    def participant(self, name: str, folder: Path, **options: Any) -> Participant:
        state = self.enrol(name, folder / name)
        return Participant(state, self.market, insecure=self.insecure, **options)


def config_text(market: int | str, public: int | str, insecure: bool, database: str = "") -> str:
    return CONFIG.format(market=market, public=public, insecure=str(insecure).lower(), database=database)


@contextmanager
def served(
    path: Path, *, insecure: bool = False, clock: Clock | None = None, database: str = ""
) -> Iterator[Served]:
    folder = initialise(path, config_text(0, 0, insecure, database), "test", ["localhost", "127.0.0.1"])
    coordinator = Served(folder, insecure=insecure, clock=clock, database=database)
    coordinator.start()
    try:
        yield coordinator
    finally:
        coordinator.stop()


def task_config(folder: Path, task_id: str = "task", **changes: Any) -> TaskConfig:
    """A task on claimed degrees with a model of a few kilobytes; `changes` by section."""
    initial = folder / f"{task_id}-initial.safetensors"
    initial.write_bytes(encode_model(changes.pop("weights", None) or WEIGHTS))
    values: dict[str, Any] = {
        "id": task_id,
        "Q": "1000",
        "phi": "300",
        "upsilon": "200",
        "seed": 7,
        "reference": ["1/4", "1/4", "1/4", "1/4"],
        "initial_model": str(initial),
        "rule": {"name": "paper"},
        "schedule": {"rounds": 2, "quorum": 3, "capacity": 3, "effort_seconds": 600, "round_seconds": 600},
        "recipe": {"model": "custom", "samples": 100},
    }
    for section, value in changes.items():
        known = values.get(section)
        values[section] = {**known, **value} if isinstance(known, dict) else value
    return TaskConfig.model_validate({key: value for key, value in values.items() if value is not None})


def stepped(weights: Weights) -> Weights:
    """Weights after a step: what nothing has moved is not sent."""
    return {name: array + 1 if array.dtype == np.float32 else array for name, array in weights.items()}


class Shift(Task):
    """Moves every weight by a step of its own; needs no framework."""

    def __init__(self, counts: list[int], step: float = 1.0) -> None:
        self.start = list(counts)
        self.counts = list(counts)
        self.step = step
        self.trained: list[int] = []

    def label_counts(self) -> list[int]:
        return list(self.counts)

    def collect(self, effort: float) -> None:
        """Moves the counts toward their mean."""
        mean = sum(self.start) / len(self.start)
        self.counts = [round(mean + (count - mean) * (1 - effort)) for count in self.start]

    def train(self, weights: Weights, round: TrainingRound) -> Trained:  # noqa: A002 - as Task.train
        self.trained.append(round.number)
        round.progress(1.0, loss=0.1)
        moved = {n: a + np.float32(self.step) if a.dtype == np.float32 else a for n, a in weights.items()}
        return Trained(moved, metrics={"step": self.step})
