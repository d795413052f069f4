"""`fedpeer arena --audits`: whom audits by re-training accuse, and what tricks earn where they are drawn."""

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
from fedpeer.experiments.arena.audited import AuditedSetting, audited_cells, run_audited
from fedpeer.experiments.cells import CellStore, local_executor

#: Tasks whose strata are classes, which cost least.
AUDITED_TASKS = ("digits", "flights-mlp")


def measure_audits(
    tasks: Sequence[str],
    seeds: int,
    shadows: int,
    attackers: int,
    rounds: int,
    workers: int | None,
    json_output: bool,
    out: Path | None,
) -> None:
    """Runs the seeds that `out` lacks; prints what they found and keeps it in audits.json.

    Raises:
        CommandError: no such task.
    """
    for name in tasks:
        if name not in AUDITED_TASKS:
            raise CommandError(
                f"--task {name}: no such task of --audits; expected one of {', '.join(AUDITED_TASKS)}"
            )
    settings = [
        AuditedSetting(
            name, attackers=min(attackers, AuditedSetting.participants), rounds=rounds, shadows=shadows
        )
        for name in dict.fromkeys(tasks or AUDITED_TASKS)
    ]
    cells = [cell for setting in settings for cell in audited_cells(setting, range(seeds))]
    with TemporaryDirectory() as scratch, writable(out or Path(scratch)):
        store = CellStore((out or Path(scratch)) / "cells")
        missing = len(cells) - len(store.finished(cells))
        jobs = max(1, min(workers or os.cpu_count() or 1, missing))
        with cell_progress("audits, starts", missing) as done, local_executor(jobs) as executor:
            found = {
                setting.dataset: run_audited(setting, range(seeds), store, executor, done)
                for setting in settings
            }
        if out is not None:
            (out / "audits.json").write_text(json.dumps(found, indent=2, allow_nan=False) + "\n")
    if json_output:
        typer.echo(json.dumps(found, allow_nan=False))
        return
    for name, result in found.items():
        _print(name, result)


def _print(name: str, found: dict[str, Any]) -> None:
    console, audits = Console(), found["audits"]
    console.print(
        f"{name}: of honest participants an audit at a rate of {audits['rate']} accuses by degree "
        f"{_of(found['honest']['degree'])}, by training {_of(found['honest']['training'])}, by where "
        f"samples come from {_of(found['honest']['origin'])}, by any {_of(found['honest']['any'])}"
    )
    drawn = " and ".join("none" if q is None else f"{q:g}" for q in audits["probability"].values())
    table = Table(
        title=f"Tricks on {name}, credits a round; audits: drawn with {drawn}, a stake of {audits['stake']:g}, "
        f"{audits['held_back']:g} of the pay held back, {audits['rounds']} rounds",
        caption="gain: over the best response; same: over honesty on what was collected; found: by degree, training, "
        "where samples come from, any; opened: to the auditor; audited: drawn so that no single one gains, more often: "
        "that no group does",
    )
    for column in ("trick", "opened", "found", "gain", "same", "audited", "more often", "distinct", "near"):
        table.add_column(column)
    for trick, kinds in found["tricks"].items():
        for kind, v in kinds.items():
            table.add_row(
                trick,
                kind,
                ", ".join(f"{v[by]['failed']}" for by in ("degree", "training", "origin", "any"))
                + f" of {v['any']['of']}",
                *(
                    f"{v[key]:+.2f} [{v[f'{key}_ci'][0]:+.2f}, {v[f'{key}_ci'][1]:+.2f}]"
                    for key in ("gain", "same", "audited_single", "audited_groups")
                ),
                *(f"{v[key]:.2f}" for key in ("distinct", "near")),
            )
    console.print(table)


def _of(share: dict[str, Any]) -> str:
    low, high = share["ci"]
    return f"{share['failed']} of {share['of']} (95 %: {low:.3f} to {high:.3f})"
