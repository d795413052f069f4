"""One task as the operator reads it at a terminal: who stands where, how long there is, what was paid, what failed."""

from collections import Counter
from datetime import UTC, datetime

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from coordinator.control_socket import RoundProgress
from coordinator.operator import Standing, TaskOverview
from coordinator.storage.rounds import RoundRow
from fedpeer.terminal import counted, printable
from mechanism.lifecycle import State
from mechanism.price import grouped_credits
from mechanism.settlement import MICRO

#: What ends each phase before its deadline.
_EARLIER = {
    State.EFFORT: "or when all places are taken",
    State.TRAINING: "or when every selected participant has delivered or failed",
}


def show_task(console: Console, report: TaskOverview, progress: RoundProgress, now: float) -> None:
    """Prints one task; `now` in seconds since the epoch."""
    console.print(_facts(report, progress, now))
    if report.people:
        console.print(_people(report, progress))
    for failure in report.failed:
        # The participants' own words: no markup, no control characters.
        console.print(
            Text(f"round {failure.round}: {failure.participant_id} reported: {printable(failure.reason)}")
        )


def _facts(report: TaskOverview, progress: RoundProgress, now: float) -> RenderableType:
    row, terms = report.row, report.row.terms
    grid = Table.grid(padding=(0, 2))
    round_ = f", round {row.round} of {terms.schedule.rounds}" if row.round else ""
    grid.add_row("state", Text(f"{row.state}{round_}", style="bold"))
    if row.reason:
        grid.add_row("reason", Text(printable(row.reason)))
    if row.deadline is not None:
        earlier = _EARLIER.get(row.state, "")
        grid.add_row("deadline", f"{time_left(row.deadline, now)} ({_time(row.deadline)}) {earlier}".rstrip())
    grid.add_row("participants", standing_counts(report))
    if progress.of:
        left = f", about {time_left(progress.seconds_left, 0)}" if progress.trained < progress.of else ""
        grid.add_row("evidence", f"{progress.trained} of {progress.of} shadow models are trained{left}")
    paid = sum(report.paid_micro.values())
    settled = sum(r.settled_at is not None for r in report.rounds)
    grid.add_row("paid so far", f"{grouped_credits(paid)} credits in {counted(settled, 'settled round')}")
    grid.add_row(
        "escrow left",
        f"{grouped_credits(report.escrow_micro)} of {grouped_credits(terms.budget_micro)} credits",
    )
    for last in [r for r in report.rounds if r.loss is not None][-1:]:
        grid.add_row("quality", f"{quality_text(last)} after round {last.round}")
    for last in [r for r in report.rounds if r.result_model is not None][-1:]:
        fetched = "" if last.fetched_at is None else f", fetched {_time(last.fetched_at)}"
        grid.add_row("model", f"SHA-256 {(last.result_model or b'').hex()} after round {last.round}{fetched}")
    return Group(Text(f"task {row.id}"), grid)


def quality_text(round_: RoundRow) -> str:
    """ "accuracy 0.953000", "loss 0.310000" where nothing is classified, or nothing."""
    if round_.accuracy is not None:
        return f"accuracy {round_.accuracy}"
    return "" if round_.loss is None else f"loss {round_.loss}"


def standing_counts(report: TaskOverview) -> str:
    """ "8 claimed of at most 10, 2 awaited, 5 delivered, 1 failed"."""
    numbers = Counter(person.standing for person in report.people)
    claimed = f"{len(report.claimed)} claimed of at most {report.row.terms.schedule.capacity}"
    stand = [f"{numbers[each]} {each}" for each in Standing if numbers[each] and each is not Standing.CLAIMED]
    return ", ".join([claimed, *stand])


def _people(report: TaskOverview, progress: RoundProgress) -> Table:
    table = Table("participant", "stands as", "degree claimed", "credits paid", "expected before the draw")
    for person in report.people:
        amounts = grouped_credits(person.paid_micro), grouped_credits(person.expected_micro)
        done = progress.done_micro.get(person.id) if person.standing is Standing.AWAITED else None
        stands = training(done, report.row.terms.recipe.epochs) or person.standing
        table.add_row(person.id, stands, person.degree, *amounts)
    return table


def training(done_micro: int | None, epochs: int) -> str:
    """How far a participant says that its training is, such as "in training, epoch 3 of 5"; "" where it says nothing.

    The epoch is the one of the recipe's that the share of the work falls into.
    """
    if done_micro is None:
        return ""
    if done_micro >= MICRO:
        return "trained; its model is on its way"
    epoch = done_micro * epochs // MICRO + 1
    return (
        f"in training, epoch {epoch} of {epochs}" if epochs > 1 else f"in training, {done_micro / MICRO:.0%}"
    )


def time_left(deadline: float, now: float) -> str:
    """ "2 h 5 min left", or how long ago it passed."""
    seconds = round(abs(deadline - now))
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, seconds = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    first = next((i for i, (n, _) in enumerate(parts) if n), 3)
    text = " ".join(f"{n} {unit}" for n, unit in parts[first : first + 2])
    return f"{text} left" if deadline >= now else f"passed {text} ago"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
