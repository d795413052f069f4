"""`fedpeer arena --privacy`: what noise costs, by epsilon."""

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
from fedpeer.experiments.accuracy import TASKS
from fedpeer.experiments.accuracy.private import EPSILONS, PRIVATE_TASKS, PrivateResult, private_cells
from fedpeer.experiments.cells import CellStore, local_executor, run_cells
from mechanism.privacy import PRIVACY_METHODS


def measure_privacy(
    tasks: Sequence[str],
    method: str,
    seeds: int,
    shadows: int,
    workers: int | None,
    json_output: bool,
    out: Path | None,
) -> None:
    """Runs the starts that `out` lacks; prints the figures and keeps them in privacy-METHOD.json and .png.

    Raises:
        CommandError: no such task or method.
    """
    for name in tasks:
        if name not in TASKS:
            raise CommandError(f"--task {name}: no such task; expected one of {', '.join(TASKS)}")
    if method not in PRIVACY_METHODS:
        raise CommandError(f"--privacy {method}: expected one of {', '.join(PRIVACY_METHODS)}")
    cells = private_cells(
        tasks or PRIVATE_TASKS,
        range(seeds),
        epsilons=EPSILONS,
        method=method,
        shadows=shadows,
    )
    with TemporaryDirectory() as scratch, writable(out or Path(scratch)):
        store = CellStore((out or Path(scratch)) / "cells")
        missing = len(cells) - len(store.finished(cells))
        jobs = max(1, min(workers or os.cpu_count() or 1, missing))
        with cell_progress("privacy, starts", missing) as done, local_executor(jobs) as executor:
            found = run_cells(cells, store, executor, done=done)
        result = PrivateResult([(cell, found[cell.key]) for cell in cells])
        if out is not None:
            text = json.dumps(result.record(), indent=2, allow_nan=False)
            (out / f"privacy-{method}.json").write_text(text + "\n")
            result.draw(out / f"privacy-{method}.png")
    if json_output:
        typer.echo(json.dumps(result.record(), allow_nan=False))
    else:
        _print(result)


def _print(result: PrivateResult) -> None:
    table = Table(
        title="What noise costs",
        caption="refused: honest participants that fail a test, where shadows have the noise of the terms; own choice: "
        "where they have none",
        box=None,
        padding=(0, 1),
    )
    for heading in ("task", "epsilon"):
        table.add_column(heading, no_wrap=True)
    for heading in ("noise", "error", "rank", "covered", "width", "refused", "own choice", "accuracy"):
        table.add_column(heading, justify="right", no_wrap=True)
    for (task, epsilon), found in result.figures().items():
        of, own = found.terms, found.own
        table.add_row(
            task,
            "none" if epsilon is None else f"{epsilon:g}",
            found.noise_multiplier or "",
            f"{of.error:.3f}",
            f"{of.rank:.3f}",
            f"{of.coverage:.2f}",
            f"{of.half_width:.3f}",
            f"{100 * of.refused:.1f} %",
            "" if own is None else f"{100 * own.refused:.1f} %",
            f"{found.accuracy:.3f}",
        )
    Console().print(table)
