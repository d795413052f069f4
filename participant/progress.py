"""What a run shows of itself on a terminal, and how Ctrl-C ends it."""

import os
import sys
from collections.abc import Callable
from time import monotonic
from typing import TextIO

from mechanism.price import credits_text
from participant.journal import Journal
from participant.report import report_of
from participant.work import Activity, ignore_activity

#: Seconds between two states of the line that moves.
_MOVE_SECONDS = 0.1

_ENDED = ("CLOSED", "CANCELLED")

#: Exit code of a program that Ctrl-C has ended.
EXIT_INTERRUPTED = 130


class Paused(KeyboardInterrupt, SystemExit):
    """Ctrl-C has ended a run; what was begun is kept, and the same call goes on with it.

    It can be caught as a KeyboardInterrupt. Uncaught it ends the program without a traceback, with exit code 130.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = EXIT_INTERRUPTED


def paused(journal: Journal, participant_id: str) -> Paused:
    """Says on standard error what is kept, and how to go on."""
    text = kept(journal, participant_id)
    _write(sys.stderr, f"\nfedpeer: {text}\n")
    return Paused(text)


def kept(journal: Journal, participant_id: str) -> str:
    """A sentence on what a stop leaves of the tasks that were begun."""
    begun = []
    for task in journal.tasks():
        report = report_of(journal, task.task_id, participant_id)
        if report.claim is None or report.note or report.state in _ENDED:
            continue
        sent = sum(line.receipt is not None for line in report.rounds)
        models = "1 model" if sent == 1 else f"{sent} models"
        begun.append(
            f"the claim of {task.task_id}, {models} sent, {credits_text(report.paid_micro)} credits paid so far"
        )
    if not begun:
        return "stopped; no task is begun. Run the same again to go on"
    return (
        f"stopped; {journal.folder} keeps {'; '.join(begun)}. Run the same again to go on: nothing is done twice, and "
        "a round is open until its deadline"
    )


def terminal_progress() -> Callable[[Activity], None]:
    """Shows what happens on standard error where that is a terminal; shows nothing elsewhere."""
    stream = sys.stderr
    if stream is None or stream.closed or not stream.isatty():
        return ignore_activity
    return TerminalLines(stream)


class TerminalLines:
    """A line a step; a training in progress on one line that moves."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._moving = 0
        self._moved = 0.0

    def __call__(self, activity: Activity) -> None:
        text, moves = activity.text, activity.kind == "progress"
        if moves:
            if monotonic() - self._moved < _MOVE_SECONDS:
                return
            self._moved = monotonic()
            figures = (f"{name} {value:.4g}" for name, value in activity.figures.items() if name != "done")
            room = self._columns() - len(activity.task_id) - 3
            text = ", ".join([text, *figures])[:room]
        line = "".join(
            c if c.isprintable() else " " for c in f"{activity.task_id}: {text}".removeprefix(": ")
        )
        over = "\r" if self._moving else ""
        _write(self._stream, over + line.ljust(self._moving) + ("" if moves else "\n"))
        self._moving = len(line) if moves else 0

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or 80
        except (OSError, ValueError):
            return 80


def _write(stream: TextIO | None, text: str) -> None:
    """What cannot be written is lost; the work that it is about goes on."""
    try:
        if stream is not None:
            stream.write(text)
            stream.flush()
    except (OSError, ValueError):
        pass
