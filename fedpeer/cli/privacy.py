"""`fedpeer arena --privacy`: what noise costs, by epsilon."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from fedpeer.cli.measuring import CellRun, chosen, columns
from fedpeer.experiments.accuracy import TASKS
from fedpeer.experiments.accuracy.private import EPSILONS, PRIVATE_TASKS, PrivateResult, private_cells
from mechanism.privacy import PRIVACY_METHODS


def measure_privacy(
    tasks: Sequence[str], method: str, seeds: int, shadows: int, measurement: CellRun
) -> None:
    """Runs the starts that are not finished; shows the figures and keeps them in privacy-METHOD.json and .png.

    Raises:
        CommandError: no such task or method.
    """
    named = chosen("--task", tasks, TASKS, PRIVATE_TASKS, "task")
    chosen("--privacy", [method], PRIVACY_METHODS, (), "method")
    cells = private_cells(named, range(seeds), epsilons=EPSILONS, method=method, shadows=shadows)
    result = PrivateResult(measurement.results("privacy, starts", cells))
    measurement.tell(f"privacy-{method}", result.record(), lambda: _print(result), result.draw)


def _print(result: PrivateResult) -> None:
    numbers = ("noise", "error", "rank", "covered", "width", "refused", "own choice", "accuracy")
    table = Table(
        *columns(("task", "epsilon"), numbers),
        title="What noise costs",
        caption="refused: honest participants that fail a test, where shadows have the noise of the terms; own choice: "
        "where they have none",
        box=None, padding=(0, 1),
    )  # fmt: skip
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
