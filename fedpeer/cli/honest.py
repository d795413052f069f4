"""`fedpeer arena --honest`: how many honest participants are hurt, by what their training has beside the recipe."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import typer
from rich.console import Console
from rich.table import Table

from fedpeer.cli.errors import CommandError, writable
from fedpeer.cli.progress import cell_progress
from fedpeer.experiments.accuracy.honest import HABITS, HONEST_TASKS, HonestResult, honest_cells
from fedpeer.experiments.cells import CellStore, local_executor, run_cells


def measure_honest(
    tasks: Sequence[str],
    seeds: int,
    shadows: int,
    allow: bool,
    workers: int | None,
    json_output: bool,
    out: Path | None,
) -> None:
    """Runs the starts that `out` lacks; prints the counts and keeps them in honest.json.

    Args:
        allow: whether the terms allow the habits that they would have to allow.

    Raises:
        CommandError: no such task.
    """
    for name in tasks:
        if name not in HONEST_TASKS:
            raise CommandError(
                f"--task {name}: no such task of --honest; expected one of {', '.join(HONEST_TASKS)}"
            )
    cells = honest_cells(tasks or HONEST_TASKS, range(seeds), shadows=shadows, allow=allow)
    with TemporaryDirectory() as scratch, writable(out or Path(scratch)):
        store = CellStore((out or Path(scratch)) / "cells")
        missing = len(cells) - len(store.finished(cells))
        jobs = max(1, min(workers or os.cpu_count() or 1, missing))
        with cell_progress("honest, starts", missing) as done, local_executor(jobs) as executor:
            found = run_cells(cells, store, executor, done=done)
        record = HonestResult([(cell, found[cell.key]) for cell in cells]).record()
        if out is not None:
            (out / "honest.json").write_text(json.dumps(record, indent=2, allow_nan=False) + "\n")
    if json_output:
        typer.echo(json.dumps(record, allow_nan=False))
        return
    table = Table(
        title="Honest participants that are hurt, by what their training has beside the recipe, in terms that "
        + ("allow the second half" if allow else "allow nothing"),
        caption="hurt: any screen failed, or a true claim refuted; linked: to another by samples in common; weight: "
        "the mean that distinct samples leave",
    )
    for column in ("habit", "in terms that allow it", *record):
        table.add_column(column)
    for name, habit in HABITS.items():
        counts = [each["habits"][name] for each in record.values()]
        table.add_row(
            name,
            "yes" if habit.allowed else "",
            *(
                f"{c['hurt']} of {c['of']}, weight {c['weight']:.2f}"
                + (f", {c['linked']} linked" if c["linked"] else "")
                for c in counts
            ),
        )
    Console().print(table)
