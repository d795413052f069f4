"""`fedpeer arena --accuracy`: how well degrees are measured, workload by workload."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from fedpeer.cli.measuring import CellRun, chosen, columns
from fedpeer.experiments.accuracy import GOALS, TASKS, AccuracyResult, accuracy_cells
from fedpeer.experiments.accuracy.results import StartFigures, cheapest, shown


def measure_accuracy(tasks: Sequence[str], seeds: int, shadows: int, measurement: CellRun) -> None:
    """Runs the starts that are not finished; shows the figures and keeps them in accuracy.json.

    Raises:
        CommandError: no such task.
    """
    named = chosen("--task", tasks, TASKS, tuple(TASKS), "task")
    result = AccuracyResult(
        measurement.results("accuracy, starts", accuracy_cells(named, range(seeds), shadows=shadows))
    )
    measurement.tell("accuracy", result.record(), lambda: _print(result.figures()))


def _print(found: Mapping[tuple[str, str], Mapping[int, StartFigures]]) -> None:
    _print_accuracy(found)
    _print_cost(found)


def _print_accuracy(found: Mapping[tuple[str, str], Mapping[int, StartFigures]]) -> None:
    table = _table(
        "Non-iid degrees of participants with mixes that no shadow has",
        "goal: of the mean error and the rank correlation; covered: by the interval that is for 90 %, and by the worst "
        "start's",
        [
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
        ],
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


def _print_cost(found: Mapping[tuple[str, str], Mapping[int, StartFigures]]) -> None:
    table = _table(
        "What fewer shadows buy",
        "width: half of the interval's; for 10, for 100: the evidence of a round of so many participants, in trainings "
        "of one; *: the fewest shadows within 20 % of the least error",
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


def _table(title: str, caption: str, numbers: Sequence[str]) -> Table:
    headings = columns(("task", "start"), numbers)
    return Table(*headings, title=title, caption=caption, box=None, padding=(0, 1))
