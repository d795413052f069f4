"""`fedpeer arena --estimators`: how well other work's estimators tell degrees, beside ours."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import typer
from rich.console import Console
from rich.table import Column, Table

from fedpeer.cli.errors import CommandError, writable
from fedpeer.cli.progress import cell_progress
from fedpeer.experiments.accuracy.estimators import ESTIMATED_TASKS, estimator_cells, estimator_figures
from fedpeer.experiments.cells import CellStore, local_executor, run_cells


def measure_estimators(
    tasks: Sequence[str], seeds: int, shadows: int, workers: int | None, json_output: bool, out: Path | None
) -> None:
    """Runs the starts that `out` lacks; prints the figures and keeps them in estimators.json.

    Raises:
        CommandError: no such task.
    """
    for name in tasks:
        if name not in ESTIMATED_TASKS:
            raise CommandError(f"--task {name}: no such task; expected one of {', '.join(ESTIMATED_TASKS)}")
    cells = estimator_cells(tasks or ESTIMATED_TASKS, range(seeds), shadows)
    with TemporaryDirectory() as scratch, writable(out or Path(scratch)):
        store = CellStore((out or Path(scratch)) / "cells")
        missing = len(cells) - len(store.finished(cells))
        jobs = max(1, min(workers or os.cpu_count() or 1, missing))
        with cell_progress("estimators, starts", missing) as done, local_executor(jobs) as executor:
            results = run_cells(cells, store, executor, done=done)
        found = {"shadows": shadows, "figures": estimator_figures([(c, results[c.key]) for c in cells])}
        if out is not None:
            (out / "estimators.json").write_text(json.dumps(found, indent=2, allow_nan=False) + "\n")
    if json_output:
        typer.echo(json.dumps(found, allow_nan=False))
        return
    table = Table(
        "start",
        "estimator",
        *(Column(heading, justify="right") for heading in ("error", "bias", "rank")),
        title="Non-iid degrees of participants with mixes that no shadow has",
        box=None, padding=(0, 1),
    )  # fmt: skip
    for start, by_name in estimator_figures([(c, results[c.key]) for c in cells]).items():
        for name, of in by_name.items():
            table.add_row(start, name, f"{of['error']:.3f}", f"{of['bias']:+.3f}", f"{of['rank']:.3f}")
    Console().print(table)
