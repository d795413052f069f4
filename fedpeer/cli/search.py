"""`fedpeer arena --search`: the best that an optimiser finds in a family of attacks."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer
from rich.console import Console
from rich.table import Column, Table

from fedpeer.cli.errors import CommandError, writable
from fedpeer.cli.progress import cell_progress
from fedpeer.experiments.arena.families import FAMILIES
from fedpeer.experiments.arena.searching import POPULATION, SearchSetting, run_searches, search_cells
from fedpeer.experiments.cells import CellStore, local_executor


def search_families(
    setting: SearchSetting, names: Sequence[str], workers: int | None, json_output: bool, out: Path | None
) -> None:
    """Runs the searches that `out` lacks; prints what they found and keeps it in search.json.

    Raises:
        CommandError: no such family, or a budget of less than one generation.
    """
    for name in names:
        if name not in (*FAMILIES, "all"):
            raise CommandError(f"--search {name}: no such family; expected all, or {', '.join(FAMILIES)}")
    if 0 < setting.budget < POPULATION:
        raise CommandError(
            f"--budget {setting.budget}: expected at least {POPULATION}, one generation; or 0 for no search, "
            "which plays each family's usual point"
        )
    families = tuple(FAMILIES) if "all" in names else tuple(dict.fromkeys(names))
    with TemporaryDirectory() as scratch, writable(out or Path(scratch)):
        store = CellStore((out or Path(scratch)) / "cells")
        cells = search_cells(setting, families)
        missing = len(cells) - len(store.finished(cells))
        jobs = max(1, min(workers or os.cpu_count() or 1, missing))
        with (
            cell_progress(f"{setting.dataset}, families", missing) as done,
            local_executor(jobs) as executor,
        ):
            found = run_searches(setting, families, store, executor, done)
        if out is not None:
            (out / "search.json").write_text(json.dumps(found, indent=2, allow_nan=False) + "\n")
    if json_output:
        typer.echo(json.dumps(found, allow_nan=False))
    else:
        _print(found)


def _print(found: dict[str, Any]) -> None:
    for rule in found["rules"]:
        table = Table(
            Column("family", no_wrap=True),
            *(
                Column(heading, justify="right", no_wrap=True)
                for heading in ("gain", "from", "to", "same data", "from", "to", "caught")
            ),
            Column("found at"),
            title=f"{found['dataset']}, rule {rule}: the best of {found['budget']} points under "
            f"{found['rules'][0]}, on fresh starts, credits a round",
            caption="gain: over an honest participant at its best response; same data: over honesty on what was "
            "collected; with 95 % intervals",
            box=None, padding=(0, 1), header_style="underline",
        )  # fmt: skip
        for name, of in found["families"].items():
            v = of["rules"][rule]
            gains = [v["advantage"], *v["ci"], v["same_advantage"], *v["same_ci"]]
            table.add_row(
                name,
                *(f"{gain:+.2f}" for gain in gains),
                f"{100 * v['caught']:.0f} %",
                ", ".join(f"{key} {value:g}" for key, value in of["values"].items()),
                style="red" if v["ci"][0] > 0 else None,
            )
        Console().print(table)
