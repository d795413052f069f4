"""Cells: the units of computation, each done once and kept on the disk.

A cell is a function's name with its parameters. Its file, `cells/KIND-DIGEST.json`, holds the parameters,
the result, the seconds and CPU seconds it took and the versions of what computed it; the digest is SHA-256 over the
function's name, its version and the parameters. A file that is there is not computed again, so a run that was
killed goes on where it was. Files are written under another name first: half a file is never read.
"""

import contextlib
import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future, as_completed
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from fedpeer.experiments.errors import CellError, ExperimentError
from fedpeer.learning.workers import spawned_pool

#: A cell's parameters and results: what JSON can hold.
Record = dict[str, Any]

#: Where the function of each kind lives, and its version: a new one where its results change.
COMPUTATIONS: Mapping[str, tuple[str, int]] = {
    "accuracy": ("fedpeer.experiments.accuracy.trial:accuracy_cell", 5),
    "arena": ("fedpeer.experiments.arena.running:arena_cell", 6),
    "audited": ("fedpeer.experiments.arena.audited:audited_cell", 2),
    "estimators": ("fedpeer.experiments.accuracy.estimators:estimator_cell", 1),
    "federation": ("fedpeer.experiments.federation:federation_cell", 1),
    "honest": ("fedpeer.experiments.accuracy.honest:honest_cell", 1),
    "made": ("fedpeer.experiments.arena.made:made_cell", 1),
    "gradients": ("fedpeer.experiments.gradients:gradients_cell", 1),
    "private": ("fedpeer.experiments.accuracy.private:private_cell", 2),
    "search": ("fedpeer.experiments.arena.searching:search_cell", 2),
    "settlement": ("fedpeer.experiments.settlements:settlement_cell", 2),
    "verified": ("fedpeer.experiments.verification:verified_cell", 4),
}


@dataclass(frozen=True)
class Cell:
    """One computation.

    Attributes:
        kind: a key of `COMPUTATIONS`.
        parameters: the function's argument; JSON, its seed included.
        priority: lower ones are computed first; no part of the identity.
    """

    kind: str
    parameters: Record = field(hash=False)
    priority: int = field(default=0, compare=False)

    @property
    def key(self) -> str:
        """The name of the cell's file, without its ending."""
        _, number = COMPUTATIONS[self.kind]
        text = json.dumps([self.kind, number, self.parameters], sort_keys=True, separators=(",", ":"))
        return f"{self.kind}-{hashlib.sha256(text.encode()).hexdigest()[:20]}"


def versions() -> dict[str, str]:
    """What computed a result."""
    names = ("fedpeer", "numpy", "scipy", "torch", "matplotlib")
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        **{name: _version(name) for name in names},
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"


class CellStore:
    """The folder of finished cells."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, cell: Cell) -> Record | None:
        """The result of `cell`, or None where it has not been computed.

        Raises:
            ExperimentError: a file of that name that is not a cell.
        """
        try:
            result: Record = _read(self._path(cell))["result"]
        except FileNotFoundError:
            return None
        return result

    def of_kind(self, kind: str) -> Iterator[tuple[Path, Record]]:
        """File and parameters of every finished cell of one kind, whatever computed it.

        Raises:
            ExperimentError: a file of such a name that is not a cell.
        """
        for path in sorted(self._folder.glob(f"{kind}-*.json")):
            yield path, _read(path)["parameters"]

    def put(self, cell: Cell, result: Record, took: "Took", device: str) -> None:
        """Keep `result`, whole or not at all."""
        self._folder.mkdir(parents=True, exist_ok=True)
        record = {
            "kind": cell.kind,
            "parameters": cell.parameters,
            "seconds": round(took.seconds, 3),
            "cpu_seconds": round(took.cpu_seconds, 3),
            "device": device,
            "versions": versions(),
            "result": result,
        }
        text = json.dumps(record, allow_nan=False)
        path = self._path(cell)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        with partial.open("w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)

    def finished(self, cells: Iterable[Cell]) -> dict[str, Record]:
        """The results that are there, by key."""
        results = {}
        for cell in cells:
            result = self.get(cell)
            if result is not None:
                results[cell.key] = result
        return results

    def _path(self, cell: Cell) -> Path:
        return self._folder / f"{cell.key}.json"


def _read(path: Path) -> Record:
    """A finished cell's file."""
    try:
        record: Record = json.loads(path.read_text())
        if not isinstance(record["result"], dict) or not isinstance(record["parameters"], dict):
            raise TypeError("its result or its parameters are not an object")
    except (ValueError, KeyError, TypeError) as error:
        raise ExperimentError(
            f"{path} is not a finished cell ({error}); delete it to compute it again"
        ) from error
    return record


def first_of_each(cells: Iterable[Cell]) -> list[Cell]:
    """Each cell once, at its lowest priority, in the order in which they are to be computed."""
    unique: dict[str, Cell] = {}
    for cell in sorted(cells, key=lambda cell: cell.priority):
        unique.setdefault(cell.key, cell)
    return list(unique.values())


class Took(NamedTuple):
    """What a cell took, by the clock and of the processor: on a busy machine the second is what it costs."""

    seconds: float
    cpu_seconds: float


def compute(kind: str, parameters: Record, device: str) -> tuple[Record, Took]:
    """The cell's result, and what it took."""
    module, _, name = COMPUTATIONS[kind][0].partition(":")
    function: Callable[[Record, str], Record] = getattr(import_module(module), name)
    start, cpu_start = time.perf_counter(), time.process_time()
    result = function(parameters, device)
    return result, Took(time.perf_counter() - start, time.process_time() - cpu_start)


@contextlib.contextmanager
def local_executor(jobs: int) -> Iterator[Executor]:
    """`jobs` spawned processes, each with one torch thread; unfinished work is dropped on the way out."""
    executor = spawned_pool(jobs)
    try:
        yield executor
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def run_cells(
    cells: Iterable[Cell],
    store: CellStore,
    executor: Executor,
    *,
    device: str = "cpu",
    done: Callable[[Cell, float], None] = lambda cell, seconds: None,
) -> dict[str, Record]:
    """The results of all cells by key; only those that the store lacks are computed, the rest is read.

    Args:
        done: called after each cell that was computed, with its seconds.

    Raises:
        CellError: a computation failed. The others are still computed and kept.
    """
    wanted = first_of_each(cells)
    results = store.finished(wanted)
    pending: dict[Future[tuple[Record, Took]], Cell] = {
        executor.submit(compute, cell.kind, cell.parameters, device): cell
        for cell in wanted
        if cell.key not in results
    }
    failures: list[tuple[Cell, Exception]] = []
    for future in as_completed(pending):
        cell = pending[future]
        try:
            result, took = future.result()
        except Exception as failure:  # whatever it was, the other cells are still worth having
            failures.append((cell, failure))
            continue
        try:
            store.put(cell, result, took, device)
        except ValueError as failure:  # a number that JSON does not have: the training diverged
            failures.append((cell, failure))
            continue
        results[cell.key] = result
        done(cell, took.seconds)
    if failures:
        cell, error = failures[0]
        raise CellError(
            f"{len(failures)} of {len(pending)} cells failed; the first, {cell.key}, with "
            f"{type(error).__name__}: {error}. The finished ones are kept: remove the cause and run again"
        ) from error
    return results
