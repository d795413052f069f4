"""What the measurements of `fedpeer arena` have in common: cells that are kept, progress, and results as JSON."""

import json
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import typer
from rich.table import Column

from fedpeer.cli.errors import CommandError, writable
from fedpeer.cli.progress import cell_progress
from fedpeer.experiments.cells import Cell, CellStore, Record, local_executor, run_cells

T = TypeVar("T")


@dataclass(frozen=True)
class CellRun:
    """How cells are computed, and where their results go.

    Attributes:
        workers: processes; None: one a CPU core.
        as_json: whether one JSON object is printed, and nothing else.
        out: folder of finished cells and results; None: nothing is kept.
    """

    workers: int | None
    as_json: bool
    out: Path | None

    def run(self, title: str, cells: Sequence[Cell], compute: Callable[..., T]) -> T:
        """What `compute` gives of the store, an executor and what is to be called after each of `cells`."""
        with TemporaryDirectory() as scratch, writable(self.out or Path(scratch)):
            folder = (self.out or Path(scratch)) / "cells"
            folder.mkdir(parents=True, exist_ok=True)
            store = CellStore(folder)
            missing = len(cells) - len(store.finished(cells))
            jobs = max(1, min(self.workers or os.cpu_count() or 1, missing))
            with cell_progress(title, missing) as done, local_executor(jobs) as executor:
                return compute(store, executor, done=done)

    def results(self, title: str, cells: Sequence[Cell]) -> list[tuple[Cell, Record]]:
        """Each cell with its result; those that the folder lacks are computed."""
        found = self.run(title, cells, partial(run_cells, cells))
        return [(cell, found[cell.key]) for cell in cells]

    def tell(
        self, name: str, record: Any, show: Callable[[], None], draw: Callable[[Path], None] | None = None
    ) -> None:
        """Keeps a record as NAME.json, with a picture where `draw` makes one; prints it, or shows it to people."""
        if self.out is not None:
            with writable(self.out):
                (self.out / f"{name}.json").write_text(json.dumps(record, indent=2, allow_nan=False) + "\n")
                if draw is not None:
                    draw(self.out / f"{name}.png")
        if self.as_json:
            typer.echo(json.dumps(record, allow_nan=False))
        else:
            show()


def chosen(
    option: str,
    given: Sequence[str] | None,
    known: Collection[str],
    default: Sequence[str],
    what: str = "thing",
) -> tuple[str, ...]:
    """The names that were given, each once; the default where there are none.

    Raises:
        CommandError: a name that is not known.
    """
    for name in given or ():
        if name not in known:
            raise CommandError(f"{option} {name}: no such {what}; expected one of {', '.join(known)}")
    return tuple(dict.fromkeys(given or default))


def columns(names: Sequence[str], numbers: Sequence[str]) -> list[Column]:
    """Columns of words, then of numbers, none of which is broken."""
    words = [Column(heading, no_wrap=True) for heading in names]
    return words + [Column(heading, justify="right", no_wrap=True) for heading in numbers]
