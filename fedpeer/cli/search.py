"""`fedpeer arena --search`: the best that an optimiser finds in a family of attacks."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from fedpeer.cli.errors import CommandError
from fedpeer.cli.measuring import CellRun, chosen, columns
from fedpeer.experiments.arena.families import FAMILIES
from fedpeer.experiments.arena.searching import POPULATION, SearchSetting, run_searches, search_cells


def search_families(setting: SearchSetting, names: Sequence[str], measurement: CellRun) -> None:
    """Runs the searches that are not finished; shows what they found and keeps it in search.json.

    Raises:
        CommandError: no such family, or a budget of less than one generation.
    """
    families = chosen("--search", names, ("all", *FAMILIES), ("all",), "family")
    if 0 < setting.budget < POPULATION:
        raise CommandError(
            f"--budget {setting.budget}: expected at least {POPULATION}, one generation; or 0 for no search, "
            "which plays each family's usual point"
        )
    families = tuple(FAMILIES) if "all" in families else families
    found = measurement.run(
        f"{setting.dataset}, families",
        search_cells(setting, families),
        partial(run_searches, setting, families),
    )
    measurement.tell("search", found, lambda: _print(found))


def _print(found: dict[str, Any]) -> None:
    for rule in found["rules"]:
        table = Table(
            *columns(("family",), ("gain", "from", "to", "same data", "from", "to", "caught")),
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
