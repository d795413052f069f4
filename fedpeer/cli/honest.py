"""`fedpeer arena --honest`: how many honest participants are hurt, by what their training has beside the recipe."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from fedpeer.cli.measuring import CellRun, chosen
from fedpeer.experiments.accuracy.honest import HABITS, HONEST_TASKS, HonestResult, honest_cells
from fedpeer.experiments.cells import Record


def measure_honest(tasks: Sequence[str], seeds: int, shadows: int, allow: bool, measurement: CellRun) -> None:
    """Runs the starts that are not finished; shows the counts and keeps them in honest.json.

    Args:
        allow: whether the terms allow the habits that they would have to allow.

    Raises:
        CommandError: no such task.
    """
    named = chosen("--task", tasks, HONEST_TASKS, HONEST_TASKS, "task of --honest")
    cells = honest_cells(named, range(seeds), shadows=shadows, allow=allow)
    record = HonestResult(measurement.results("honest, starts", cells)).record()
    measurement.tell("honest", record, lambda: _print(record, allow))


def _print(record: Record, allow: bool) -> None:
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
