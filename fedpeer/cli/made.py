"""`fedpeer arena --made`: how often an auditor's test finds that opened samples were made up."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from fedpeer.cli.measuring import CellRun, chosen
from fedpeer.experiments.arena.made import DEGREES, MADE_TASKS, made_cells, run_made


def measure_made(tasks: Sequence[str], seeds: int, measurement: CellRun) -> None:
    """Runs the seeds that are not finished; shows what they found and keeps it in made.json.

    Raises:
        CommandError: no such task.
    """
    named = chosen("--task", tasks, MADE_TASKS, MADE_TASKS, "task of --made")
    found: dict[str, Any] = measurement.run(
        "made up, seeds",
        made_cells(named, range(seeds)),
        lambda store, executor, done: run_made(named, range(seeds), store, executor, done),
    )
    measurement.tell("made", found, lambda: _print(found))


def _print(found: dict[str, Any]) -> None:
    for name in (each for each in MADE_TASKS if each in found):
        _print_task(name, found)


def _print_task(name: str, found: dict[str, Any]) -> None:
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
