"""The command: run the market, read the ledger, check it, tell what happened."""

import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from fedpeer.audit.export import export_tiles
from fedpeer.audit.sources import open_source
from fedpeer.cli.errors import CommandError
from fedpeer.demo.population import population
from fedpeer.demo.settings import DATASETS
from fedpeer.extras import unmet
from fedpeer.terminal import output
from mechanism.ledger.entry import Entry
from mechanism.ledger.openings import Openings
from mechanism.ledger.verify import Report, verify_ledger

#: Where results land when no folder is named.
DEFAULT_OUT = Path("fedpeer-demo")

#: Most rounds: each takes seconds.
MAX_ROUNDS = 100

#: What the demo found, in its folder.
RESULT_FILE = "result.json"

#: Marks a folder as a demo's own from the start, so that the next one may replace it, however this one ends.
_MARKER = ".fedpeer-demo"

#: Exit code of a ledger that does not verify.
_NOT_VERIFIED = 1


def demo(
    dataset: Annotated[str, typer.Option(help="digits or fashion-mnist.")] = "digits",
    participants: Annotated[int, typer.Option(help="How many, two of them dishonest.")] = 8,
    rounds: Annotated[int, typer.Option(help="Training rounds.")] = 3,
    seed: Annotated[int, typer.Option(help="The same seed gives the same payments.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for results, ledger, logs and plots.")] = DEFAULT_OUT,
    watch: Annotated[
        bool, typer.Option("--watch", help="Serve the web console beside, and print a link to it.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """A whole market on this machine: one coordinator, its participants, real processes, real data."""
    started = time.monotonic()
    if dataset not in DATASETS:
        raise CommandError(f"--dataset is {dataset!r}; expected one of {', '.join(DATASETS)}")
    if not 1 <= rounds <= MAX_ROUNDS:
        raise CommandError(f"--rounds is {rounds}; expected 1 to {MAX_ROUNDS}")
    if not 0 <= seed < 2**31:
        raise CommandError(f"--seed is {seed}; expected 0 to {2**31 - 1}")
    if watch and (sentence := unmet("console")) is not None:
        raise CommandError(sentence)
    members = population(participants, DATASETS[dataset].classes)
    _make_room(out)

    # These import the data sets and torch; a mistake above is reported before.
    from coordinator.operator import Operator
    from fedpeer.demo.outcome import demo_result
    from fedpeer.demo.processes import DemoPlan, ProcessLogs, run_market, set_up
    from fedpeer.demo.progress import MarketProgress
    from fedpeer.demo.report import print_result, write_page, write_plots

    plan = DemoPlan(out, dataset, members, rounds, seed)
    progress = MarketProgress(Console(stderr=True), participants, rounds)
    process_logs = ProcessLogs()
    try:
        with _stopped_by_signals(_interrupt):  # nothing runs yet, so that it may end anywhere
            set_up(plan)
        with _stopped_by_signals(process_logs.stop), progress.shown():
            report = run_market(plan, progress.watch, process_logs, _show_link if watch else None)
    except KeyboardInterrupt:
        shutil.rmtree(out, ignore_errors=True)
        typer.echo("interrupted: every process of the demo is stopped, and nothing is kept", err=True)
        raise
    with closing(Operator(plan.state)) as operator:
        openings = operator.openings()
    ledger, entries = _ledger(plan.state.database_url(plan.state.config()), out / "ledger", openings)
    result = demo_result(plan, report, entries, openings, ledger, time.monotonic() - started)
    (out / RESULT_FILE).write_text(json.dumps(result.record(), indent=2) + "\n")
    write_plots(result, out)
    page = write_page(result, out)
    if as_json:
        typer.echo(json.dumps(result.record()))
    else:
        console = output(highlight=True)
        print_result(result, console)
        console.print(f"{result.seconds:.0f} s. Everything is in {out}; look at {page}.", highlight=False)
        if watch:
            console.print(
                f"The console has ended. Again: fedpeer console --state {plan.state.path}", highlight=False
            )
    if not ledger.verified:
        raise typer.Exit(_NOT_VERIFIED)


def _show_link(link: str) -> None:
    typer.echo(f"Watch it here, as its operator; the link works once: {link}", err=True)


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and Ctrl-C call `stop` inside, so that every process that was started is stopped first."""

    def handle(number: int, frame: object) -> None:
        del number, frame
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _make_room(out: Path) -> None:
    """An empty place for the results: a new folder, an empty one, or one of an earlier demo, however that ended.

    Raises:
        CommandError: something else is there.
    """
    if (out / _MARKER).is_file():
        shutil.rmtree(out)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise CommandError(f"{out} exists and is not a demo's folder; name another with --out, or remove it")
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / _MARKER).touch()
    except OSError as error:
        raise CommandError(
            f"{out} cannot be made ({error.strerror}); name another folder with --out"
        ) from None


def _ledger(source: str, folder: Path, openings: Openings) -> tuple[Report, list[Entry]]:
    """Exports the ledger to a folder of its own and verifies what is there as its auditor would."""
    with ExitStack() as resources:
        export_tiles(open_source(source, resources), folder)
        exported = open_source(str(folder), resources)
        return verify_ledger(exported, openings=openings), [Entry.parse(data) for data in exported.entries()]
