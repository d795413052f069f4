"""`fedpeer arena --accuracy`: how well degrees are measured, workload by workload."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import typer
from rich.console import Console
from rich.table import Table

from fedpeer.cli.errors import CommandError, writable
from fedpeer.cli.progress import cell_progress
from fedpeer.experiments.accuracy import GOALS, TASKS, AccuracyResult, accuracy_cells
from fedpeer.experiments.accuracy.results import Figures, cheapest, shown
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
    found = result.figures()
    _print_accuracy(found)
    _print_cost(found)


def _print_accuracy(found: Mapping[tuple[str, str], Mapping[int, Figures]]) -> None:
    table = _table(
        "Non-iid degrees of participants with mixes that no shadow has",
        "goal: of the mean error and the rank correlation; covered: by the interval that is for 90 %, and by the worst "
        "start's",
        ("task", "start"),
        (
            "shadows",
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
        ),
    )
    for (task, start), by_count in found.items():
        error, rank = GOALS.get(task, {}).get(start, (None, None))
        count = shown(by_count)
        of = by_count[count]
        table.add_row(
            task,
            start,
            str(count),
            str(of.starts),
            f"{of.error:.3f}",
            "" if error is None else f"{error:.3f}",
            f"{of.bias:+.3f}",
            f"{of.rank:.3f}",
            "" if rank is None else f"{rank:.3f}",
            f"{of.coverage:.2f}",
            f"{of.worst:.2f}",
            f"{of.half_width:.3f}",
            f"{100 * of.refused:.1f} %",
        )
    Console().print(table)


def _print_cost(found: Mapping[tuple[str, str], Mapping[int, Figures]]) -> None:
    table = _table(
        "What fewer shadows buy",
        "width: half of the interval's; for 10, for 100: the evidence of a round of so many participants, in trainings "
        "of one; *: the fewest shadows within 20 % of the least error",
        ("task", "start"),
        ("shadows", "error", "rank", "covered", "width", "for 10", "for 100"),
    )
    for (task, start), by_count in found.items():
        for count, of in by_count.items():
            table.add_row(
                task,
                start,
                f"{count}{'*' if count == cheapest(by_count) else ' '}",
                f"{of.error:.3f}",
                f"{of.rank:.3f}",
                f"{of.coverage:.2f}",
                f"{of.half_width:.3f}",
                f"{of.trainings(10):.0f}",
                f"{of.trainings(100):.0f}",
            )
    Console().print(table)


def _table(title: str, caption: str, names: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(title=title, caption=caption, box=None, padding=(0, 1))
    for heading in names:
        table.add_column(heading, no_wrap=True)
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
