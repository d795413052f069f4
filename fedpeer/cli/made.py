"""`fedpeer arena --made`: how often an auditor's test finds that opened samples were made up."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from fedpeer.cli.errors import CommandError, writable
from fedpeer.cli.progress import cell_progress
from fedpeer.experiments.arena.made import DEGREES, MADE_TASKS, made_cells, run_made
from fedpeer.experiments.cells import CellStore, local_executor


def measure_made(
    tasks: Sequence[str], seeds: int, workers: int | None, json_output: bool, out: Path | None
) -> None:
    """Runs the seeds that `out` lacks; prints what they found and keeps it in made.json.

    Raises:
        CommandError: no such task.
    """
    for name in tasks:
        if name not in MADE_TASKS:
            raise CommandError(
                f"--task {name}: no such task of --made; expected one of {', '.join(MADE_TASKS)}"
            )
    chosen = tuple(dict.fromkeys(tasks or MADE_TASKS))
    cells = made_cells(chosen, range(seeds))
    with TemporaryDirectory() as scratch, writable(out or Path(scratch)):
        store = CellStore((out or Path(scratch)) / "cells")
        missing = len(cells) - len(store.finished(cells))
        jobs = max(1, min(workers or os.cpu_count() or 1, missing))
        with cell_progress("made up, seeds", missing) as done, local_executor(jobs) as executor:
            found = run_made(chosen, range(seeds), store, executor, done)
        if out is not None:
            (out / "made.json").write_text(json.dumps(found, indent=2, allow_nan=False) + "\n")
    if json_output:
        typer.echo(json.dumps(found, allow_nan=False))
        return
    for name in chosen:
        _print(name, found)


def _print(name: str, found: dict[str, Any]) -> None:
    table = Table(
        title=f"{name}: found to be made up at a rate of {found['rate']}, {found['seeds']} seeds",
        caption="by the degree of what was collected, which is about the share that is made up; distinct: of what is "
        "opened, what is nearly the same counted once",
    )
    for column in ("opened", *map(str, DEGREES), "distinct"):
        table.add_column(column)
    for making, by_degree in found[name].items():
        each = [by_degree[str(degree)] for degree in DEGREES]
        table.add_row(
            making,
            *(f"{v['found']} of {v['of']}" for v in each),
            ", ".join(f"{v['distinct']:.2f}" for v in each),
        )
    Console().print(table)
