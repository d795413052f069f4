"""What the demo shows while it runs: bars on a terminal, one line a phase elsewhere, always on standard error."""

from collections import Counter
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fedpeer.demo.processes import LogLine

#: The event of the coordinator's log that says how far scoring has come.
_SHADOWS = "shadow models trained"


class MarketProgress:
    """Counts what the processes' logs say, phase by phase.

    Phases: participants that have joined, claims, then for each round models, shadow models that the coordinator trains
    to score them, and payments.
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
            (kind, round_): self._bars.add_task(
                text, total=None if kind == _SHADOWS else participants, start=False
            )
            for kind, round_, text in _phases(rounds)
        }

    def shown(self) -> Progress:
        """The bars are live inside."""
        return self._bars

    def watch(self, log_line: LogLine) -> None:
        """Takes one line of a log into account."""
        line = log_line.line
        if line.get("event") == _SHADOWS:
            self._move((_SHADOWS, line["round"]), line["trained"], line["of"])
            return
        phase = (line.get("kind", ""), line.get("round", 0))
        if log_line.process != "coordinator" and phase in self._rows:
            self._counts[phase] += 1
            self._move(phase, self._counts[phase], self._participants)

    def _move(self, phase: tuple[str, int], completed: int, total: int) -> None:
        row = self._rows[phase]
        self._bars.start_task(row)
        self._bars.update(row, completed=completed, total=total)
        if completed == total:
            self._bars.stop_task(row)
            if not self._console.is_terminal:
                self._console.print(f"{self._bars.tasks[row].description}: {total}", highlight=False)


def _phases(rounds: int) -> Iterator[tuple[str, int, str]]:
    yield "joined", 0, "participants joined"
    yield "claimed", 0, "effort claims"
    for round_ in range(1, rounds + 1):
        yield "submitted", round_, f"round {round_}: models"
        yield _SHADOWS, round_, f"round {round_}: shadow models for scoring"
        yield "settled", round_, f"round {round_}: payments"
