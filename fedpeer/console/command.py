"""`fedpeer console`: serve a market's web pages, and make links to sign in."""

import asyncio
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpeer.protocol.console_link import CONSOLE_ADDRESS, LINK_SECONDS

if TYPE_CHECKING:
    from coordinator.folder import StateFolder
    from fedpeer.console.sessions import Role

app = typer.Typer(invoke_without_command=True, help="Serve a market's web pages; make links to sign in.")

State = Annotated[
    Path,
    typer.Option("--state", "-s", envvar="FEDPEER_STATE", help="The coordinator's state folder."),
]
Auditor = Annotated[
    bool, typer.Option("--auditor", help="For an auditor, who may verify and change nothing.")
]
Learner = Annotated[
    str, typer.Option("--learner", metavar="ID", help="For a learner who has paid in, to see its account.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.callback()
def console(
    context: typer.Context,
    state: State = Path(),
    listen: Annotated[
        str,
        typer.Option(
            help="host:port. Not on this machine alone: over TLS, with the coordinator's certificate."
        ),
    ] = CONSOLE_ADDRESS,
    results: Annotated[
        Path | None,
        typer.Option(
            envvar="FEDPEER_RESULTS",
            file_okay=False,
            exists=True,
            help="A folder of `fedpeer arena` or `fedpeer figures`, for all to see.",
        ),
    ] = None,
    with_parent: Annotated[
        bool, typer.Option("--with-parent", hidden=True, help="End when standard input does.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Serve the web pages of the market in a state folder until SIGTERM; `link` makes a link to sign in."""
    if context.invoked_subcommand is not None:
        return
    from fedpeer.console.serving import run
    from fedpeer.terminal import configure_logs

    configure_logs(level=logging.INFO, library_level=logging.WARNING)

    def announce(url: str) -> None:
        typer.echo(
            json.dumps({"console": url})
            if as_json
            else f"{url}/\nTo sign in as its operator: fedpeer console link --state {state}"
        )

    asyncio.run(run(state, listen, announce, results=results, with_parent=with_parent))


@app.command()
def link(
    state: State = Path(),
    auditor: Auditor = False,
    learner: Learner = "",
    console: Annotated[
        str | None,
        typer.Option(help="The console's URL as you reach it; else the one that serves from the folder."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a link that signs the operator, an auditor or a learner in once."""
    import time

    from coordinator.folder import StateFolder
    from fedpeer.console.addresses import served_url
    from fedpeer.console.sessions import Sessions

    folder = StateFolder(state)
    role, called = _whom(folder, auditor, learner)
    token = Sessions(folder.console, time.time, lambda _: None).link(role, learner)
    served = served_url(folder.console)
    if not console and not served:
        typer.echo("No console serves from this folder now; the link is for one that you start.", err=True)
    base = console or served or f"http://{CONSOLE_ADDRESS}"
    url = f"{base.rstrip('/')}/sign-in/?token={token}"
    if as_json:
        typer.echo(json.dumps({"link": url, "role": role, "name": learner, "seconds": LINK_SECONDS}))
    else:
        typer.echo(f"{url}\nIt signs {called} in once, within {LINK_SECONDS // 60} minutes.")


@app.command()
def certificate(
    file: Annotated[Path, typer.Argument(help="The PKCS#12 file to write, such as operator.p12.")],
    state: State = Path(),
    auditor: Auditor = False,
    learner: Learner = "",
    days: Annotated[int, typer.Option(min=1, max=3650, help="For how long it holds.")] = 365,
    as_json: Json = False,
) -> None:
    """Make a certificate that signs the operator, an auditor or a learner in for as long as it holds."""
    from coordinator.folder import StateFolder
    from fedpeer.console.client_certificates import issue

    folder = StateFolder(state)
    role, called = _whom(folder, auditor, learner)
    password, mark = issue(folder, file, role, days, learner)
    ends = folder.console / "certificates" / mark
    if as_json:
        made = {"file": str(file), "password": password, "role": role, "name": learner, "mark": str(ends)}
        typer.echo(json.dumps(made))
    else:
        typer.echo(
            f"{file}: import it into the browser; its password is {password}\n"
            f"It signs {called} in for {days} days, over TLS. To end it earlier: rm {ends}"
        )


def _whom(folder: "StateFolder", auditor: bool, learner: str) -> "tuple[Role, str]":
    """The role that is meant, and who it is in words.

    Raises:
        CoordinatorError, StorageError: the folder is no coordinator's, or cannot be read.
        ConsoleError: two are meant, or a learner that has never paid in.
    """
    from contextlib import closing

    from fedpeer.console.errors import ConsoleError
    from fedpeer.console.reading import Reader
    from fedpeer.console.sessions import Role, Visitor

    folder.config()  # that it is a coordinator's
    if auditor and learner:
        raise ConsoleError("--auditor and --learner are two people; make a link for each")
    if learner:
        with closing(Reader(folder)) as reader, reader.transaction() as t:
            known = t.market.learners()
        if learner not in known:
            raise ConsoleError(
                f"no learner {learner!r:.80} has paid in; known: {', '.join(known) or 'none yet'}. Record a deposit "
                "first: fedpeer coordinator deposit"
            )
    role = Role.LEARNER if learner else Role.AUDITOR if auditor else Role.OPERATOR
    return role, Visitor(role, learner).called
