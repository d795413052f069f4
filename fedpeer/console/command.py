"""`fedpeer console`: serve a market's web pages, and make links to sign in."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Annotated

import typer

from fedpeer.protocol.console_link import CONSOLE_ADDRESS, LINK_SECONDS

app = typer.Typer(invoke_without_command=True, help="Serve a market's web pages; make links to sign in.")

State = Annotated[
    Path,
    typer.Option("--state", "-s", envvar="FEDPEER_STATE", help="The coordinator's state folder."),
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
    auditor: Annotated[
        bool, typer.Option("--auditor", help="For an auditor, who may verify and change nothing.")
    ] = False,
    console: Annotated[
        str | None,
        typer.Option(help="The console's URL as you reach it; else the one that serves from the folder."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a link that signs the operator, or an auditor, in once."""
    import time

    from coordinator.folder import StateFolder
    from fedpeer.console.sessions import Role, Sessions

    folder = StateFolder(state)
    folder.config()  # that it is a coordinator's
    role = Role.AUDITOR if auditor else Role.OPERATOR
    token = Sessions(folder.console, time.time, lambda _: None).link(role)
    served = folder.console_address
    base = console or (served.read_text() if served.is_file() else f"http://{CONSOLE_ADDRESS}")
    url = f"{base.rstrip('/')}/sign-in/?token={token}"
    if as_json:
        typer.echo(json.dumps({"link": url, "role": role, "seconds": LINK_SECONDS}))
    else:
        typer.echo(f"{url}\nIt signs the {role} in once, within {LINK_SECONDS // 60} minutes.")


@app.command()
def certificate(
    file: Annotated[Path, typer.Argument(help="The PKCS#12 file to write, such as operator.p12.")],
    state: State = Path(),
    auditor: Annotated[
        bool, typer.Option("--auditor", help="For an auditor, who may verify and change nothing.")
    ] = False,
    days: Annotated[int, typer.Option(min=1, max=3650, help="For how long it holds.")] = 365,
    as_json: Json = False,
) -> None:
    """Make a certificate that signs the operator, or an auditor, in for as long as it holds."""
    from coordinator.folder import StateFolder
    from fedpeer.console.client_certificates import issue
    from fedpeer.console.sessions import Role

    folder, role = StateFolder(state), Role.AUDITOR if auditor else Role.OPERATOR
    password, mark = issue(folder, file, role, days)
    ends = folder.console / "certificates" / mark
    if as_json:
        typer.echo(json.dumps({"file": str(file), "password": password, "role": role, "mark": str(ends)}))
    else:
        typer.echo(
            f"{file}: import it into the browser; its password is {password}\n"
            f"It signs the {role} in for {days} days, over TLS. To end it earlier: rm {ends}"
        )
