"""`fedpeer report`: what a task came to, as one HTML file that needs nothing else."""

from contextlib import ExitStack, closing
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.folder import StateFolder
from fedpeer.audit.export import replaced
from fedpeer.audit.sources import open_source
from fedpeer.console import records
from fedpeer.console.errors import ConsoleError
from fedpeer.console.reading import NotThere, Reader
from fedpeer.console.rendering import templates
from fedpeer.console.routes import json_text
from mechanism.ledger.verify import verify_ledger


def report(
    task: Annotated[str, typer.Argument(help="The task's id, or the folder of a demo.")],
    state: Annotated[
        Path, typer.Option("--state", "-s", envvar="FEDPEER_STATE", help="The coordinator's state folder.")
    ] = Path(),
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file to write; else TASK.html here.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record, and write no file.")] = False,
) -> None:
    """Write a task's report: who was paid what, why, and that the ledger holds. Exit 1 where it does not."""
    name: str | None = task
    if (demo := Path(task) / "coordinator").is_dir():
        state, name = demo, None
    record = task_report(StateFolder(state), name)
    if as_json:
        typer.echo(json_text(record))
    else:
        target = out or Path(f"{record['id']}.html")
        with replaced(target, 0o644) as file:
            file.write(page(record).encode())
        typer.echo(f"{target}: task {record['id']}, {record['state']}")
    if not record["ledger"]["verified"]:
        typer.echo("the ledger does NOT verify; the report says where", err=True)
        raise typer.Exit(1)


def task_report(folder: StateFolder, task_id: str | None) -> dict[str, Any]:
    """The record of a task's report, and the verifier's on the ledger.

    Args:
        task_id: None: the one task that there is.

    Raises:
        ConsoleError: no such task, or not one.
    """
    with closing(Reader(folder)) as reader, ExitStack() as resources:
        with reader.transaction() as t:
            known = [row.id for row in t.market.tasks()]
            if task_id is None and len(known) != 1:
                raise ConsoleError(f"name one of the tasks there: {', '.join(known) or 'none yet'}")
            try:
                record = records.operator_task(t, task_id or known[0])
            except NotThere as error:
                raise ConsoleError(f"{error} Known: {', '.join(known) or 'none yet'}") from None
            openings = t.openings()
        found = verify_ledger(open_source(reader.url, resources), openings=openings).record()
        del found["balances"]
        return {**record, "market": reader.config.name, "written": reader.now(), "ledger": found}


def page(record: dict[str, Any]) -> str:
    """The report as HTML, its style sheet in it."""
    style = files("fedpeer.console").joinpath("static/console.css").read_text()
    return templates(lambda: record["written"]).get_template("report.html").render(r=record, style=style)
