"""What a command on a state folder says when it is done: an object or words on standard output, the rest on standard
error, and whether a change is in force by the exit code."""

import inspect
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer
from rich.console import RenderableType

from coordinator.control_socket import ANSWER_SECONDS
from fedpeer.streams import discard_output, nowhere
from fedpeer.terminal import output, printable

if TYPE_CHECKING:  # --help needs no extra, and does not wait for them
    from coordinator.operator import Notice, Operator

State = Annotated[
    Path,
    typer.Option(
        "--state",
        "-s",
        envvar="FEDPEER_STATE",
        help="The coordinator's state folder, made by `fedpeer coordinator init`.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
DEFAULT_STATE = Path()

#: Exit code of a change that is recorded, and that the service which runs has not said to have taken up.
UNCONFIRMED = 6

#: Exit code of what was done, and whose result could not be written to standard output.
UNSHOWN = 7


class Answer(Protocol):
    """What a command comes to."""

    def show(self, operator: "Operator", as_json: bool) -> None:
        """Writes it."""


@dataclass(frozen=True)
class Listed:
    """What a command has looked up: for --json, and for people."""

    record: Mapping[str, Any]
    shown: RenderableType

    def show(self, operator: "Operator", as_json: bool) -> None:
        if as_json:
            print_json(self.record)
        elif isinstance(self.shown, str):
            typer.echo(self.shown)
        else:
            output().print(self.shown)


@dataclass(frozen=True)
class Written:
    """What a command has done beside the market, as to files."""

    record: Mapping[str, Any]
    text: str

    def show(self, operator: "Operator", as_json: bool) -> None:
        show(as_json, self.record, self.text)


@dataclass(frozen=True)
class Changed:
    """What a command has changed; its exit code says too whether that is in force.

    Attributes:
        done: what is so where it is in force.
        recorded: what is so where that is not known; the same where it is left out.
        certificates: whether it has made certificates, which the service that runs may refuse.
    """

    record: Mapping[str, Any]
    done: str
    recorded: str = ""
    certificates: bool = False

    def show(self, operator: "Operator", as_json: bool) -> None:
        from coordinator.operator import Notice

        notice = notice_of(operator)
        text = (self.recorded or self.done) if notice is Notice.UNCONFIRMED else self.done
        unshown = said(as_json, {**self.record, "service": notice.value}, text)
        conclude(operator, operator.refused_certificates() if self.certificates else "")
        if unshown:
            raise typer.Exit(UNSHOWN)


def operating(
    app: typer.Typer, name: str | None = None
) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Makes a command of a function on an operator, its first argument, which --state names; what it returns is
    shown, by --json as one object. Whether that is wanted is its argument `as_json`, where it has one."""

    def register(function: Callable[..., Answer]) -> Callable[..., Answer]:
        @wraps(function)
        def run(state: Path, as_json: bool, **given: Any) -> None:
            with operator_of(state) as operator:
                given |= {"as_json": as_json} if asks else {}
                function(operator, **given).show(operator, as_json)

        _, *own = inspect.signature(function).parameters.values()
        asks = "as_json" in (each.name for each in own)
        common = inspect.signature(_common).parameters.values()
        parameters = [*(each for each in own if each.name != "as_json"), *common]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        app.command(name)(run)
        return function

    return register


def _common(state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """What every such command takes besides, the last."""


def operator_of(state: Path) -> "AbstractContextManager[Operator]":
    from coordinator.folder import StateFolder
    from coordinator.operator import Operator

    return closing(Operator(StateFolder(state)))


def notice_of(operator: "Operator") -> "Notice":
    assert operator.notice is not None, "something was changed"
    return operator.notice


def conclude(operator: "Operator", refused: str = "") -> None:
    """Says whether a change is in force; not where the service has `refused` the certificates, for this reason."""
    from coordinator.operator import Notice

    if operator.unsigned is not None:
        note(f"Recorded, and not yet under a signed head: {operator.unsigned}")
    if refused:
        note(
            f"Recorded, NOT IN FORCE: the coordinator that runs goes on with the certificates it had: {refused}"
        )
        raise typer.Exit(UNCONFIRMED)
    match notice_of(operator):
        case Notice.CONFIRMED:
            note("In force: the coordinator that runs has taken notice.")
        case Notice.NOT_SERVED:
            note("Recorded. No coordinator runs; the next one begins with it.")
        case Notice.UNCONFIRMED:
            note(
                f"Recorded, NOT CONFIRMED: {silent(operator.machine(), 'this database')}. Fronts take it up at once, "
                "on whichever machine; another one when it goes on, at the next command that it answers, or when it is "
                "started again. Do not repeat the command; `status` shows whether it answers."
            )
            raise typer.Exit(UNCONFIRMED)


def silent(machine: str, what: str) -> str:
    """Why the coordinator that serves `what`, on a machine of that name, has not answered."""
    if machine not in ("", gethostname()):
        return f"the coordinator that serves {what} runs on another machine, {printable(machine)}, and answers there"
    return (
        f"the coordinator that serves {what} has not answered for {ANSWER_SECONDS:g} seconds, or runs from elsewhere: "
        "it is stopped, is starting, or waits for its disk or database"
    )


def show(as_json: bool, record: Mapping[str, Any], text: str) -> None:
    """What a command has done; where nobody can read it, standard error and the exit code say that it is done."""
    if said(as_json, record, text):
        raise typer.Exit(UNSHOWN)


def said(as_json: bool, record: Mapping[str, Any], text: str) -> bool:
    """Writes a result to standard output; whether standard error alone says that it is done."""
    if (why := written(as_json, record, text)) is not None:
        note(f"Done, but standard output cannot be written ({why}). {text}")
    return why is not None


def written(as_json: bool, record: Mapping[str, Any], text: str) -> str | None:
    """Writes a result to standard output; why that cannot be done, where it cannot."""
    if nowhere(sys.stdout):
        return "it is closed"
    try:
        typer.echo(json.dumps(record) if as_json else text)
        sys.stdout.flush()
    except OSError as error:
        discard_output()
        return error.strerror or str(error)
    return None


def print_json(record: Mapping[str, Any]) -> None:
    typer.echo(json.dumps(record))


def note(text: str) -> None:
    typer.echo(text, err=True)
