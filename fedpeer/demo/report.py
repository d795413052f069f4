"""The demo's result for people: tables on the terminal, plots, and a page that shows both."""

import base64
import html
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Column, Table

from fedpeer.demo.population import Strategy
from fedpeer.demo.result import DemoResult, ParticipantResult, RoundResult
from fedpeer.demo.settings import CLAIM_PENALTY, PEERS
from mechanism.settlement import MICRO

#: File names of the plots in the output folder.
ACCURACY_PLOT, DEGREE_PLOT, PAYMENT_PLOT = "accuracy.png", "degrees.png", "payments.png"

#: How to read the table of participants.
LEGEND = (
    "claimed, true, measured: the degree, how far the labels are from the reference, from 0 (alike) to 1. Measured is "
    "the mean over the rounds; it is off by about 0.05, and on few data reads up to 0.2 where the labels are balanced.",
    f"paid: credits of all rounds. Each round scores a participant against up to {PEERS} peers, drawn at random; "
    "expected is what it would be paid against all of them. Better data are paid more; equally good data may be paid a "
    f"little unequally. A claim costs {CLAIM_PENALTY} * (claimed - measured)^2 a round, and the stake where it is "
    "refuted.",
    "utility: paid less the cost of the effort.",
)

#: What the checks found, in the plot of payments.
_REASONS = {
    Strategy.HONEST: "a check failed",
    Strategy.OVER_CLAIM: "claimed balanced data: refuted",
    Strategy.FREE_RIDE: "sent back the model untrained",
}

#: Columns of a terminal on which three digits fit.
_WIDE = 100

#: Shades that stay apart in grey.
_SHADES = {Strategy.HONEST: "#2b6cb0", Strategy.OVER_CLAIM: "#dd8452", Strategy.FREE_RIDE: "#7f7f7f"}


def print_result(result: DemoResult, console: Console) -> None:
    """Who was paid what and why, the model's accuracy, the balance, and the ledger's state."""
    console.print(_participant_table(result, 3 if console.width >= _WIDE else 2))
    for line in LEGEND:
        console.print(line, highlight=False)
    console.print()
    for line in dishonesty(result):
        console.print(line, highlight=False)
    console.print()
    console.print(_round_table(result))
    console.print()
    paid, budget = result.paid_micro / MICRO, result.terms.budget_micro / MICRO
    console.print(
        f"Paid {paid:.6f} of a budget of {budget:.6f} credits; the remaining {budget - paid:.6f} went back to the "
        "learner or into rounding.",
        highlight=False,
    )
    state = "[bold green]ledger verified" if result.ledger.verified else "[bold red]ledger NOT verified"
    console.print(
        f"{state}[/]: {result.ledger.size} entries, root {result.ledger.root[:16]}…", highlight=False
    )


def dishonesty(result: DemoResult) -> list[str]:
    """What the over-claimer and the free rider earned next to their honest twins, and by which check."""
    lines = []
    for dishonest in result.participants:
        if dishonest.member.twin is None:
            continue
        twin = result.participant(dishonest.member.twin)
        over_claims = dishonest.member.strategy is Strategy.OVER_CLAIM
        verb = "claimed a degree that it does not have" if over_claims else "returned what it was sent"
        checks = ", ".join(f"the {screen} check" for screen in dishonest.failed) or "no check"
        lines.append(
            f"{dishonest.member.id} {verb}: paid {dishonest.paid:.4f}, its honest twin {twin.member.id} "
            f"{twin.paid:.4f}. Caught by {checks}."
        )
        lines += [
            f"    round {round_}, {screen}: {why}"
            for screen, (round_, why) in sorted(dishonest.failed.items())
        ]
    return lines


def write_plots(result: DemoResult, folder: Path) -> None:
    """Accuracy over rounds, degrees as claimed, true and measured, and payments with costs, as PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 120})
    names = [p.member.id for p in result.participants]
    positions = range(len(names))

    figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
    rounds = [r.round for r in result.rounds]
    axes.plot(rounds, [r.accuracy for r in result.rounds], marker="o", color=_SHADES[Strategy.HONEST])
    axes.set(xlabel="round", ylabel="accuracy on held-out data", ylim=(0, 1), xticks=rounds)
    figure.savefig(folder / ACCURACY_PLOT)
    plt.close(figure)

    figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
    markers = (
        ("claimed", "claimed_degree", "v"),
        ("true", "true_degree", "o"),
        ("measured", "measured_degree", "x"),
    )
    for label, attribute, marker in markers:
        values = [getattr(p, attribute) for p in result.participants]
        shown = [float("nan") if v is None else v for v in values]
        axes.plot(positions, shown, marker, label=label, color="black", fillstyle="none", markersize=8)
    axes.set(ylabel="non-iid degree", ylim=(-0.03, 1), xticks=list(positions))
    axes.set_xticklabels(names, rotation=30, ha="right")
    axes.legend(frameon=False, ncols=3)
    figure.savefig(folder / DEGREE_PLOT)
    plt.close(figure)

    _payment_plot(result, plt.subplots(figsize=(8, 0.5 * len(names) + 1), layout="constrained"))
    plt.savefig(folder / PAYMENT_PLOT)
    plt.close()


def _payment_plot(result: DemoResult, canvas: tuple[Any, Any]) -> None:
    """Who was paid what, and why: a bar each, what was expected before the draw, and the reason beside it."""
    _, axes = canvas
    people, rows = result.participants, range(len(result.participants))
    most = max(p.paid for p in people) or 1
    axes.barh(rows, [p.paid for p in people], color=[_SHADES[p.member.strategy] for p in people], height=0.6)
    axes.plot(
        [p.expected for p in people],
        rows,
        "|",
        color="black",
        markersize=14,
        label="expected before the draw",
    )
    for row, p in zip(rows, people, strict=True):
        reason = f"degree {p.true_degree:.2f}" + (f", {_REASONS[p.member.strategy]}" if p.failed else "")
        axes.annotate(reason, (max(p.paid, p.expected), row), (8, 0), textcoords="offset points", va="center")
    axes.set(xlabel="credits paid, all rounds", yticks=list(rows), xlim=(0, 1.25 * most))
    axes.set_yticklabels([p.member.id for p in people])
    axes.invert_yaxis()
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)


def write_page(result: DemoResult, folder: Path) -> Path:
    """One self-contained HTML page with the tables and plots."""
    template, terms = Template(Path(__file__).with_name("report.html").read_text()), result.terms
    page = template.substitute(
        task=html.escape(terms.task_id),
        terms=html.escape(
            f"Q = {terms.Q}, Phi = {terms.phi}, Upsilon = {terms.upsilon}, "
            f"payment function {terms.payment.name}"
        ),
        participants="\n".join(
            _html_row([p.member.id, str(p.member.strategy), *_cells(p, 4)]) for p in result.participants
        ),
        legend=html.escape(" ".join(LEGEND)),
        dishonesty="\n".join(f"<p>{html.escape(line)}</p>" for line in dishonesty(result)),
        rounds="\n".join(_html_row(_round_cells(r)) for r in result.rounds),
        ledger=html.escape(
            f"{'verified' if result.ledger.verified else 'NOT verified'}, {result.ledger.size} entries, "
            f"root {result.ledger.root}"
        ),
        accuracy=_inline(folder / ACCURACY_PLOT),
        degrees=_inline(folder / DEGREE_PLOT),
        payments=_inline(folder / PAYMENT_PLOT),
    )
    path = folder / "report.html"
    path.write_text(page)
    return path


def _participant_table(result: DemoResult, digits: int) -> Table:
    """One row a participant; a narrow terminal gets fewer digits, not fewer columns."""
    figures = ("effort", "claimed", "true", "measured", "cost", "expected", "paid", "utility")
    table = Table(
        Column("participant", no_wrap=True),
        *(Column(heading, justify="right", no_wrap=True) for heading in figures),
        "verdicts",
        title="Who was paid what", box=box.SIMPLE_HEAD, title_justify="left", padding=0, show_edge=False,
        pad_edge=False,
    )  # fmt: skip
    for p in result.participants:
        table.add_row(p.member.id, *_cells(p, digits))
    return table


def _cells(p: ParticipantResult, digits: int) -> list[str]:
    """A participant's figures, from its effort to its verdicts."""
    measured = "none" if p.measured_degree is None else f"{p.measured_degree:.{digits}f}"
    degrees = [f"{value:.{digits}f}" for value in (p.effort, p.claimed_degree, p.true_degree)]
    amounts = [f"{value:.{digits}f}" for value in (p.cost, p.expected, p.paid)]
    verdict = f"failed: {', '.join(p.failed)}" if p.failed else "passed"
    return [*degrees, measured, *amounts, f"{p.utility:+.{digits}f}", verdict]


def _round_table(result: DemoResult) -> Table:
    columns = (Column(heading, justify="right") for heading in ("round", "accuracy", "loss", "seconds"))
    table = Table(*columns, title="The global model", box=box.SIMPLE_HEAD, title_justify="left")
    for r in result.rounds:
        table.add_row(*_round_cells(r))
    return table


def _round_cells(r: RoundResult) -> list[str]:
    return [str(r.round), f"{r.accuracy:.3f}", f"{r.loss:.3f}", f"{r.seconds:.1f}"]


def _html_row(cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"


def _inline(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
