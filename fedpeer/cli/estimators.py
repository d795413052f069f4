"""`fedpeer arena --estimators`: how well other work's estimators tell degrees, beside ours."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Column, Table

from fedpeer.cli.measuring import CellRun, chosen
from fedpeer.experiments.accuracy.estimators import ESTIMATED_TASKS, estimator_cells, estimator_figures


def measure_estimators(tasks: Sequence[str], seeds: int, shadows: int, measurement: CellRun) -> None:
    """Runs the starts that are not finished; shows the figures and keeps them in estimators.json.

    Raises:
        CommandError: no such task.
    """
    cells = estimator_cells(
        chosen("--task", tasks, ESTIMATED_TASKS, ESTIMATED_TASKS, "task"), range(seeds), shadows
    )
    figures = estimator_figures(measurement.results("estimators, starts", cells))

    def show() -> None:
        table = Table(
            "start",
            "estimator",
            *(Column(heading, justify="right") for heading in ("error", "bias", "rank")),
            title="Non-iid degrees of participants with mixes that no shadow has",
            box=None, padding=(0, 1),
        )  # fmt: skip
        for start, by_name in figures.items():
            for name, of in by_name.items():
                table.add_row(start, name, f"{of['error']:.3f}", f"{of['bias']:+.3f}", f"{of['rank']:.3f}")
        Console().print(table)

    measurement.tell("estimators", {"shadows": shadows, "figures": figures}, show)
