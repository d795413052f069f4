"""`fedpeer`: the commands of the coordinator, the participant, the ledger and the mechanism, in one place.

A command's module is imported when that command is called, so that `fedpeer ledger verify` does not wait for
torch. A user's mistake ends in one sentence on standard error and an exit code:

    0  done          1  checked, and the answer is no (a ledger that does not verify, say)
    2  bad input     3  no connection, or refused by the other side     130  interrupted
    5  another process with this participant's identity has taken over
    6  recorded, but the coordinator that runs has not confirmed that it has taken notice
    7  done, but the result could not be written to standard output
"""

import errno
import os
import sys
from importlib import import_module
from typing import Any, NamedTuple

import typer
import typer.main

from fedpeer.allocator import keep_pages
from fedpeer.exit_codes import REFUSED, TAKEN_OVER, WRONG
from fedpeer.extras import hidden, missing, unmet
from fedpeer.streams import discard_output, secure_standard_streams


class _Command(NamedTuple):
    """Where a command lives: a Typer application, or a single function."""

    module: str
    attribute: str
    help: str


_GROUPS = {
    "coordinator": _Command("coordinator.cli", "app", "Run a market: publish tasks, invite, serve, settle."),
    "participant": _Command("participant.cli", "app", "Take part: enrol, train, earn."),
    "ledger": _Command("fedpeer.audit.cli", "app", "Read and check a ledger, offline or from a coordinator."),
    "worker": _Command("coordinator.worker_cli", "app", "Train shadow models for a coordinator elsewhere."),
    "audit": _Command(
        "fedpeer.cli.audit", "app", "Audit: an auditor's key, re-training on site, measuring a task again."
    ),
    "console": _Command(
        "fedpeer.console.command", "app", "Serve a market's web pages; make links to sign in."
    ),
}
_FUNCTIONS = {
    "demo": _Command(
        "fedpeer.demo.command", "demo", "A whole market on this machine, with real processes and data."
    ),
    "new": _Command("fedpeer.cli.new", "new", "Write a task, its terms and a test that run as they stand."),
    "simulate": _Command(
        "fedpeer.cli.simulate",
        "simulate",
        "Your task in a whole market in one process: who would be paid what.",
    ),
    "calibrate": _Command(
        "fedpeer.cli.calibrate",
        "calibrate",
        "Measure a task's phi and upsilon, and propose what it should pay.",
    ),
    "plan": _Command(
        "fedpeer.cli.plan", "plan", "Efforts, equilibria and the best payment coefficient for a population."
    ),
    "arena": _Command(
        "fedpeer.cli.arena", "arena", "Measure what every attack earns under every payment rule."
    ),
    "health": _Command(
        "fedpeer.cli.health", "health", "Whether a coordinator serves or a participant can; for platforms."
    ),
    "report": _Command(
        "fedpeer.console.report", "report", "Write a task's report: one HTML file that needs nothing else."
    ),
    "figures": _Command("fedpeer.cli.figures", "figures", "Reproduce the paper's experiments."),
}

#: Errors that a user can put right, by where they are defined, with the exit code. A class whose module was
#: never imported cannot have been raised.
_USER_ERRORS = (
    ("mechanism.errors", "MechanismError", WRONG),
    ("fedpeer.learning.errors", "LearningError", WRONG),
    ("fedpeer.experiments.errors", "ExperimentError", WRONG),
    ("fedpeer.extensions", "ExtensionError", WRONG),
    ("fedpeer.protocol.certificates", "CertificateError", WRONG),
    ("fedpeer.protocol.model_file", "ModelFileError", WRONG),
    ("fedpeer.protocol.errors", "Refusal", REFUSED),
    ("coordinator.errors", "AlreadyServed", REFUSED),
    ("coordinator.errors", "CoordinatorError", WRONG),
    ("fedpeer.audit.sql.errors", "LeaseTaken", REFUSED),
    ("fedpeer.audit.sql.errors", "LeaseLost", REFUSED),
    ("fedpeer.audit.sql.errors", "StorageError", WRONG),
    ("participant.errors", "ConfigurationError", WRONG),
    ("participant.errors", "SessionTakenOverError", TAKEN_OVER),
    ("participant.errors", "ParticipantError", REFUSED),
    ("fedpeer.cli.errors", "CommandError", WRONG),
    ("fedpeer.protocol.audit_folder", "AuditFolderError", WRONG),
    ("fedpeer.console.errors", "ConsoleError", WRONG),
)


#: What a full disk under standard output says.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def application(called: str | None) -> typer.Typer:
    """The root application with the command `called` loaded and all others listed only."""
    app = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        help="An incentive marketplace for federated learning: pay participants for what their data is worth.",
    )
    for name, command in _FUNCTIONS.items():
        function = _load(command) if name == called else _listed
        app.command(name, help=command.help)(function)
    for name, command in _GROUPS.items():
        group = _load(command) if name == called else typer.Typer()
        app.add_typer(group, name=name, help=command.help)
    app.callback()(_options)
    return app


def _flags_without_a_type(command: Any) -> Any:
    """The command, whose help shows a flag as a flag and not as an option that takes a value."""
    for parameter in (*command.params, command.get_help_option(typer.Context(command))):
        if getattr(parameter, "is_bool_flag", False):
            parameter.metavar = ""
    for below in getattr(command, "commands", {}).values():
        _flags_without_a_type(below)
    return command


def main() -> int:
    """The console script."""
    # gRPC's own log lines say nothing that our sentences do not; set GRPC_VERBOSITY to see them.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    keep_pages()
    secure_standard_streams()
    called = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    try:
        try:
            sentence = hidden()
            if sentence is None and called is not None and "--help" not in sys.argv:
                sentence = unmet(called)
            if sentence is not None:
                typer.echo(f"fedpeer: {sentence}", err=True)
                return WRONG
            _flags_without_a_type(typer.main.get_command(application(called)))()
        finally:
            sys.stdout.flush()  # here, where a full disk can still be reported
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of a pipe has gone; nothing is left to say
        discard_output()
        return 0
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            typer.echo(f"fedpeer: a file name of {len(str(error.filename))} characters is too long", err=True)
            return WRONG
        if error.errno not in _FULL or error.filename is not None:
            raise
        discard_output()
        typer.echo(f"fedpeer: the output cannot be written: {error.strerror}", err=True)
        return WRONG
    except ImportError as error:
        sentence = missing(error, called)
        if sentence is None:
            raise
        typer.echo(f"fedpeer: {sentence}", err=True)
        return WRONG
    except Exception as error:
        code = _exit_code(error)
        if code is None:
            raise
        from fedpeer.terminal import printable  # somebody else's words may stand in it

        typer.echo(f"fedpeer: {printable(str(error))}", err=True)
        return code
    return 0


def _exit_code(error: Exception) -> int | None:
    for module, name, code in _USER_ERRORS:
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and isinstance(error, kind):
            return code
    return None


def _load(command: _Command) -> typer.Typer:
    loaded: typer.Typer = getattr(import_module(command.module), command.attribute)
    return loaded


def _listed() -> None:
    """Stands for a command in the overview; never called."""


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(version("fedpeer"))
        raise typer.Exit


def _options(
    version: bool = typer.Option(
        False, "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
    ),
) -> None:
    """Options of the root command; each acts in its own callback."""


if __name__ == "__main__":
    raise SystemExit(main())
