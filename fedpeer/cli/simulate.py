"""`fedpeer simulate`: a whole market in one process, with real scoring and settlement and without certificates."""

import contextlib
import importlib
import json
import logging
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from coordinator.errors import CoordinatorError
from fedpeer.cli.errors import CommandError
from fedpeer.extras import missing
from fedpeer.protocol.model_file import open_model
from fedpeer.terminal import configure_logs, counted, output
from fedpeer.testing import LocalMarket, MarketTestError
from fedpeer.testing.market import start_weights
from fedpeer.text_files import TextFileError, naming, read_toml
from mechanism.cost import LinearCost
from mechanism.errors import kind_of
from mechanism.ledger.verify import Report
from mechanism.settlement import MICRO
from participant import Activity, ParticipantError, Task, TaskReport
from participant.effort import BestResponse

#: The terms, where the folder has them.
TASK_FILE = "task.toml"

#: Most participants: each is a thread with a connection of its own.
MAX_PARTICIPANTS = 200


#: Seconds in which something must happen: a round's evidence may take hours, and who watches has Ctrl-C.
_PATIENCE_SECONDS = 86_400.0


def simulate(
    task: Annotated[
        str,
        typer.Argument(help="module:Name, or file.py:Name, of a Task, or of what makes one.", metavar="TASK"),
    ],
    participants: Annotated[int, typer.Option(min=3, max=MAX_PARTICIPANTS, help="How many take part.")] = 5,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds.  [default: as the terms say]")] = None,
    terms: Annotated[
        Path | None,
        typer.Option(
            help="A task file.  [default: file.toml beside file.py, or task.toml, where there is one]"
        ),
    ] = None,
    effort: Annotated[
        float | None, typer.Option(min=0, max=1, help="Of everybody.  [default: the best response]")
    ] = None,
    cost: Annotated[
        float | None,
        typer.Option(
            help="Credits for a unit of degree improved; the best response weighs it.  [default: 1]"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed draws the same peers.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """A whole market in one process: your task, real scoring and settlement, no certificates."""
    started = time.monotonic()
    configure_logs(level=logging.CRITICAL, library_level=logging.CRITICAL)
    if cost is not None and effort is not None:
        raise CommandError("give --cost, by which everybody chooses the best effort, or --effort, not both")
    decided = effort if cost is None else BestResponse(LinearCost(cost))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    progress = _Progress(participants)
    try:
        factory, terms = find_task(task), terms or _default_terms(task)
        changes = _read_terms(terms)
        # What a task prints is not part of the result.
        with contextlib.redirect_stdout(sys.stderr):
            market = LocalMarket(
                factory, participants, rounds=rounds, terms=changes, effort=decided, insecure=True, seed=seed,
                paths=terms.parent if terms else Path(), on_progress=progress.note,
            )  # fmt: skip
            if "initial_model" in changes:
                _check_start(market, terms or Path(TASK_FILE), str(changes["initial_model"]))
            with contextlib.ExitStack() as running:
                with naming(terms or Path(TASK_FILE)) if changes else contextlib.nullcontext():
                    running.enter_context(market)
                running.enter_context(progress.shown())
                reports = market.run(_PATIENCE_SECONDS)
                record = _record(market, reports, market.verify(), time.monotonic() - started)
    except (MarketTestError, ParticipantError) as error:
        raise CommandError(str(error)) from error
    except CoordinatorError as error:
        raise CommandError(f"the terms cannot be opened: {error}") from error
    except KeyboardInterrupt:
        typer.echo("fedpeer: interrupted: the market is stopped, and nothing of it is kept", err=True)
        raise
    if record["task"]["state"] != "CLOSED":
        raise CommandError(_why(record, reports))
    if as_json:
        typer.echo(json.dumps(record))
    else:
        _print(record, output())


def find_task(name: str) -> Callable[..., Task] | Task:
    """What `module:Name` or `file.py:Name` names; modules of the working folder, or of the file's, are found, too.

    Raises:
        CommandError: no such module or name, or a module that cannot be imported.
    """
    module, colon, attribute = name.rpartition(":")
    if not (module and colon and attribute):
        raise CommandError(
            f"the task is {name!r}; expected module:Name, such as my_task:MyTask, or file.py:Name"
        )
    file = _file(name)
    if file is not None:
        if not file.is_file():
            raise CommandError(f"there is no file {file}")
        module = file.stem
    sys.path.insert(0, str(Path.cwd() if file is None else file.absolute().parent))
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module.partition(".")[0] or error.name == module:
            raise CommandError(
                f"there is no module {module!r} in {Path.cwd()} or among the installed ones; start it from its folder"
            ) from None
        raise CommandError(
            missing(error) or f"{module} imports {error.name}, which is not installed"
        ) from None
    except SyntaxError as error:
        raise CommandError(f"{error.filename}, line {error.lineno}: {error.msg}") from None
    except (Exception, SystemExit) as error:
        line = traceback.extract_tb(error.__traceback__)[-1]
        raise CommandError(
            f"importing {module} raised {type(error).__name__}: {error} ({line.filename}, line {line.lineno})"
        ) from error
    if not hasattr(found, attribute):
        tasks = [
            n for n, v in vars(found).items() if isinstance(v, type) and issubclass(v, Task) and v is not Task
        ]
        has = f"; it has {', '.join(tasks)}" if tasks else ""
        raise CommandError(f"the module {module} has no {attribute}{has}")
    value: Callable[..., Task] | Task = getattr(found, attribute)
    if isinstance(value, type) and not issubclass(value, Task):
        raise CommandError(f"{name} is a class that is no Task; derive it from fedpeer.Task")
    if not isinstance(value, Task) and not callable(value):
        raise CommandError(
            f"{name} is {value!r:.80}, {kind_of(value)}; expected a Task, or a class or function that makes one"
        )
    return value


def _file(task: str) -> Path | None:
    """The file that a task's name begins with, where it does."""
    place = task.rpartition(":")[0]
    return Path(place) if place.endswith(".py") else None


def _default_terms(task: str) -> Path | None:
    """The terms that lie beside the task's file, else those of the working folder, where there are any."""
    file = _file(task)
    beside = [] if file is None else [file.with_suffix(".toml")]
    return next((path for path in (*beside, Path(TASK_FILE)) if path.is_file()), None)


def _read_terms(path: Path | None) -> Mapping[str, Any]:
    if path is None:
        return {}
    try:
        return read_toml(path)
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from None
    except TextFileError as error:
        raise CommandError(f"{path} cannot be used: {error}") from None


def _check_start(market: LocalMarket, terms: Path, named: str) -> None:
    """Holds the first model that the terms name against the one that the task gives itself, where it gives one.

    Raises:
        CommandError: the task could not train it, its tensors being others.
    """
    task: Any = market.participants["p1"].task
    path = terms.parent / named
    if not hasattr(task, "start_weights") or not path.is_file():
        return
    own, given = start_weights(task), open_model(path).weights()
    wanted, found = ({name: list(np.shape(array)) for name, array in each.items()} for each in (own, given))
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise CommandError(
                f"{terms} names {path} as the first model, whose tensor {name!r} is {_words(found.get(name))}, and "
                f"{_words(wanted.get(name))} in start_weights(); write the file again from start_weights(), or take "
                "initial_model out of the terms"
            )
    if any((np.asarray(own[name]) != given[name]).any() for name in given):
        typer.echo(
            f"The market begins with {path}, as {terms} says; start_weights() gives other numbers.", err=True
        )


def _words(shape: list[int] | None) -> str:
    return "absent" if shape is None else f"of shape {shape}"


class _Progress:
    """One line on standard error, where that is a terminal: which round, and how many models are in."""

    def __init__(self, participants: int) -> None:
        self._participants = participants
        self._lock = threading.Lock()
        self._in: dict[int, int] = {}
        self._status: Any = None

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        with Console(stderr=True).status("the market opens") as self._status:
            yield

    def note(self, name: str, activity: Activity) -> None:
        if activity.kind not in ("claimed", "submitted") or self._status is None:
            return
        with self._lock:
            number = self._in[activity.round] = self._in.get(activity.round, 0) + 1
        what = f"round {activity.round}" if activity.round else "claims"
        self._status.update(f"{what}: {number} of {self._participants} are in")


def _record(
    market: LocalMarket, reports: Mapping[str, TaskReport], ledger: Report, seconds: float
) -> dict[str, Any]:
    """The object of --json."""
    found = market.coordinator.task(market.task_id)
    row, expected = found.row, market.expected_micro
    return {
        "task": {
            "id": row.id,
            "state": str(row.state),
            "reason": row.reason,
            "rule": row.terms.rule.name,
            "budget_micro": row.terms.budget_micro,
        },
        "participants": [_person(report, expected[name]) for name, report in reports.items()],
        "rounds": [
            {
                "round": r.round,
                "accuracy": None if r.accuracy is None else float(r.accuracy),
                "loss": None if r.loss is None else float(r.loss),
            }
            for r in found.rounds
        ],
        "ledger": {"size": ledger.size, "root": ledger.root, "verified": ledger.verified},
        "seconds": round(seconds, 3),
    }


def _person(report: TaskReport, expected_micro: int) -> dict[str, Any]:
    settled = [line.settlement for line in report.rounds if line.settlement is not None]
    degrees = [float(s.verified_degree) for s in settled if s.verified_degree is not None]
    failed = dict.fromkeys(v.screen for s in settled for v in s.verdicts if not v.passed)
    return {
        "id": report.participant_id,
        "effort": None if report.effort is None else float(report.effort),
        "claimed_degree": None if report.claimed_degree is None else float(report.claimed_degree),
        "verified_degree": sum(degrees) / len(degrees) if degrees else None,
        "expected_micro": expected_micro,
        "paid_micro": report.paid_micro,
        "failed": list(failed),
        "rounds": [
            {
                "round": line.number,
                "paid_micro": None if line.settlement is None else line.settlement.paid_micro,
                "peers": [] if line.settlement is None else list(line.settlement.peers),
                "missed": line.missed,
                "metrics": dict(line.metrics),
            }
            for line in report.rounds
        ],
    }


def _why(record: Mapping[str, Any], reports: Mapping[str, TaskReport]) -> str:
    """Why a task was not played to its end: the first participant's own reason, where one has any."""
    reasons = [
        f"{name}, round {line.number}: {line.missed}"
        for name, report in reports.items()
        for line in report.rounds
        if line.missed
    ]
    more = f" ({counted(len(reasons) - 1, 'more reason')} like it)" if len(reasons) > 1 else ""
    why = f"; {reasons[0]}{more}" if reasons else ""
    return f"the task ended as {record['task']['state']}: {record['task']['reason']}{why}"


def _print(record: Mapping[str, Any], console: Console) -> None:
    task, rounds = record["task"], record["rounds"]
    table = Table(
        title=f"Who would be paid what: {task['id']}, {counted(len(rounds), 'round')}, rule {task['rule']}",
        box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0),
    )  # fmt: skip
    measured = task["rule"] != "paper"  # which takes degrees as claimed
    table.add_column("participant", no_wrap=True)
    for heading in ("effort", "claimed", *(["measured"] if measured else []), "expected", "paid", "models"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("checks")
    for person in record["participants"]:
        models = sum(not line["missed"] for line in person["rounds"])
        table.add_row(
            person["id"],
            _number(person["effort"]),
            _number(person["claimed_degree"]),
            *([_number(person["verified_degree"])] if measured else []),
            f"{person['expected_micro'] / MICRO:.3f}",
            f"{person['paid_micro'] / MICRO:.3f}",
            f"{models}/{len(rounds)}",
            f"failed: {', '.join(person['failed'])}" if person["failed"] else "all passed",
        )
    console.print(table)
    console.print(
        f"claimed{', measured' if measured else ''}: the non-iid degree, 0 (as the learner wants it) to 1;"
    )
    console.print("paid: credits, all rounds; expected: the mean of that over all draws of peers;")
    console.print("models: rounds in which one came.")
    for name in ("accuracy", "loss"):
        if rounds and rounds[-1][name] is not None:
            console.print(f"{name} by round: " + ", ".join(f"{r[name]:.3f}" for r in rounds))
            break
    paid = sum(person["paid_micro"] for person in record["participants"]) / MICRO
    console.print(
        f"Paid {paid:.6f} of a budget of {task['budget_micro'] / MICRO:.6f} credits.\n"
        f"ledger verified: {record['ledger']['size']} entries"
    )


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"
