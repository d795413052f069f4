"""What the demo shows while it runs: bars on a terminal, one line a phase elsewhere, always on standard error."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fedpeer.demo.processes import LogLine


class MarketProgress:
    """Counts what the processes' logs say, phase by phase.

    Phases: participants that have joined, claims, then models and settlements of each round.
    """

    def __init__(self, console: Console, participants: int, rounds: int) -> None:
        self._participants = participants
        self._counts: Counter[tuple[str, int]] = Counter()
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._console = console
        self._rows = {
            (kind, round_): self._bars.add_task(text, total=participants, start=False)
            for kind, round_, text in _phases(rounds)
        }
        self._texts = {(kind, round_): text for kind, round_, text in _phases(rounds)}

    @contextmanager
    def shown(self) -> Iterator[None]:
        """The bars are live inside."""
        with self._bars:
            yield

    def watch(self, log_line: LogLine) -> None:
        """Takes one line of a participant's log into account."""
        phase = (log_line.line.get("kind", ""), log_line.line.get("round", 0))
        if log_line.process == "coordinator" or phase not in self._rows:
            return
        self._counts[phase] += 1
        row = self._rows[phase]
        self._bars.start_task(row)
        self._bars.update(row, completed=self._counts[phase])
        if self._counts[phase] == self._participants:
            self._bars.stop_task(row)
            if not self._console.is_terminal:
                self._console.print(f"{self._texts[phase]}: {self._participants}", highlight=False)


def _phases(rounds: int) -> Iterator[tuple[str, int, str]]:
    yield "joined", 0, "participants joined"
    yield "claimed", 0, "effort claims"
    for round_ in range(1, rounds + 1):
        yield "submitted", round_, f"round {round_}: models"
        yield "settled", round_, f"round {round_}: payments"
