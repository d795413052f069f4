"""`fedpeer arena --accuracy`: how well degrees are measured, workload by workload."""

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
from fedpeer.experiments.accuracy import GOALS, TASKS, AccuracyResult, accuracy_cells
from fedpeer.experiments.cells import CellStore, local_executor, run_cells


def measure_accuracy(
    tasks: Sequence[str], seeds: int, shadows: int, workers: int | None, json_output: bool, out: Path | None
) -> None:
    """Runs the starts that `out` lacks; prints the figures and keeps them in accuracy.json.

    Raises:
        CommandError: no such task.
    """
    for name in tasks:
        if name not in TASKS:
            raise CommandError(f"--task {name}: no such task; expected one of {', '.join(TASKS)}")
    cells = accuracy_cells(tasks or tuple(TASKS), range(seeds), shadows=shadows)
    with TemporaryDirectory() as scratch, writable(out or Path(scratch)):
        folder = (out or Path(scratch)) / "cells"
        store = CellStore(folder)
        missing = len(cells) - len(store.finished(cells))
        jobs = max(1, min(workers or os.cpu_count() or 1, missing))
        with cell_progress("accuracy, starts", missing) as done, local_executor(jobs) as executor:
            found = run_cells(cells, store, executor, done=done)
        result = AccuracyResult([(cell, found[cell.key]) for cell in cells])
        text = json.dumps(result.record(), indent=2, allow_nan=False)
        if out is not None:
            (out / "accuracy.json").write_text(text + "\n")
    if json_output:
        typer.echo(json.dumps(result.record(), allow_nan=False))
    else:
        _print(result)


def _print(result: AccuracyResult) -> None:
    table = Table(
        title="Non-iid degrees of participants with mixes that no shadow has",
        caption="goal: of the mean error and the rank correlation; covered: by the nominal 90 % interval, and by the "
        "worst start's; trainings: what the evidence of a round cost",
        box=None,
        padding=(0, 1),
    )
    for heading in ("task", "start"):
        table.add_column(heading, no_wrap=True)
    for heading in (
        "starts",
        "error",
        "goal",
        "bias",
        "rank",
        "goal",
        "covered",
        "worst",
        "width",
        "refused",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("trainings", justify="right", no_wrap=True)
    for (task, start), found in result.figures().items():
        error, rank = GOALS.get(task, {}).get(start, (float("nan"), float("nan")))
        table.add_row(
            task,
            start,
            str(found.starts),
            f"{found.error:.3f}",
            f"{error:.3f}",
            f"{found.bias:+.3f}",
            f"{found.rank:.3f}",
            f"{rank:.3f}",
            f"{found.coverage:.2f}",
            f"{found.worst:.2f}",
            f"{found.half_width:.3f}",
            f"{100 * found.refused:.1f} %",
            f"{found.trainings:.0f}",
        )
    Console().print(table)
