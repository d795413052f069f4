"""Progress of cells that are computed, on standard error: a bar on a terminal, else a line a cell."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fedpeer.experiments.cells import Cell


@contextmanager
def cell_progress(title: str, total: int) -> Iterator[Callable[[Cell, float], None]]:
    """What to call after each of `total` cells, with its seconds."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=console)
    count = 0
    with progress if console.is_terminal else nullcontext():
        task = progress.add_task(title, total=total)

        def done(cell: Cell, seconds: float) -> None:
            nonlocal count
            count += 1
            progress.advance(task)
            if not console.is_terminal:
                console.print(
                    f"{title}: {count} of {total} cells, {cell.key} took {seconds:.1f} s",
                    highlight=False,
                    soft_wrap=True,
                )

        yield done
