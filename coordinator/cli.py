"""`fedpeer coordinator`: set a market up, run it, offer tasks, invite and revoke, look at it.

Results go to standard output (one JSON object with --json), everything else to standard error.
"""

import asyncio
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from coordinator.backup import read_backup
from coordinator.config import TaskConfig, read_config, resolve_paths
from coordinator.doorbell import ANSWER_SECONDS
from coordinator.errors import FolderError, TaskError
from coordinator.folder import StateFolder, initialise
from coordinator.office import Office, TaskReport
from fedpeer.protocol.certificates import certificate_hosts
from fedpeer.terminal import configure_logs, counted, output, printable
from mechanism.settlement import MICRO

app = typer.Typer(
    help="Run a market: publish tasks, invite participants, serve, settle.", no_args_is_help=True
)

certificate_app = typer.Typer(no_args_is_help=True, help="The server's certificate.")
authority_app = typer.Typer(no_args_is_help=True, help="The certificate authority.")
log_key_app = typer.Typer(no_args_is_help=True, help="The key that signs the ledger's heads.")
app.add_typer(certificate_app, name="certificate")
app.add_typer(authority_app, name="authority")
app.add_typer(log_key_app, name="log-key")

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


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Where to keep keys, database and models.")],
    name: Annotated[str, typer.Option(help="Name of this coordinator: origin of its ledger.")] = "fedpeer",
    host: Annotated[
        list[str] | None,
        typer.Option(help="DNS name or IP address that participants connect to; may be repeated."),
    ] = None,
    market: Annotated[str, typer.Option(help="Address of the mutual TLS port.")] = "0.0.0.0:7443",
    public: Annotated[str, typer.Option(help="Address of the enrolment port.")] = "0.0.0.0:7444",
    metrics: Annotated[str, typer.Option(help="Address for Prometheus; empty: off.")] = "127.0.0.1:9464",
    database: Annotated[str, typer.Option(help="SQLAlchemy URL; empty: SQLite in the folder.")] = "",
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS. For experiments only.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a state folder: certificate authority, server certificate, ledger key, configuration."""
    hosts = host or ["localhost", "127.0.0.1"]
    text = _config_text(name, market, public, metrics, database, insecure, hosts)
    made = initialise(folder, text, name, hosts)
    office = Office(made)
    key = str(office.verification_key)
    office.close()
    if insecure:
        _note("INSECURE: this coordinator will serve without TLS; anyone can act as any participant")
    _show(
        as_json,
        {"state": str(folder), "hosts": hosts, "authority": str(folder / "authority.pem"), "ledger_key": key},
        f"{folder} is ready for {', '.join(hosts)}.\nLedger key: {key}\n"
        f"Next: fedpeer coordinator serve --state {folder}",
    )


@app.command()
def serve(
    state: State = DEFAULT_STATE,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every detail.")] = False,
    as_json: AsJson = False,
) -> None:
    """Serve until SIGTERM; with --json, print the addresses once calls are taken."""
    from coordinator.server import serve as run

    configure_logs(level=logging.DEBUG if verbose else logging.INFO, library_level=logging.WARNING)
    asyncio.run(run(state, _announce if as_json else None))


@app.command("open")
def open_(
    file: Annotated[Path, typer.Argument(help="The task file (TOML).")],
    state: State = DEFAULT_STATE,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Reserve the budget without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """Publish a task and reserve its budget; shows the maximal bill first."""
    from coordinator.opening import prepare_task  # imports the data sets

    config = resolve_paths(read_config(file, TaskConfig), file.parent)
    with _office(state) as office:
        prepared = prepare_task(config, datetime.now(UTC).timestamp())
        schedule = prepared.row.terms.schedule
        _note(
            f"At most {_credits(prepared.bill_micro)} credits: {counted(schedule.rounds, 'round')} x "
            f"{schedule.capacity} participants x {_credits(prepared.head_micro)}; "
            f"{_credits(prepared.row.terms.budget_micro)} will be reserved."
        )
        if not yes:
            if as_json or not sys.stdin.isatty():
                raise TaskError("nobody can be asked here; give --yes to reserve the budget")
            typer.confirm("Open the task?", abort=True, err=True)
        office.open(prepared)
        row = prepared.row
        _show(
            as_json,
            {
                "task": row.id,
                "terms_digest": row.terms_digest.hex(),
                "bill_micro": prepared.bill_micro,
                "budget_micro": row.terms.budget_micro,
            },
            f"Task {row.id} is open; terms {row.terms_digest.hex()}.",
        )


@app.command()
def invite(
    name: Annotated[str, typer.Argument(help="The participant's id.")],
    state: State = DEFAULT_STATE,
    as_json: AsJson = False,
) -> None:
    """Make a one-time token with which a participant gets its certificate."""
    with _office(state) as office:
        made = office.invite(name)
        authority = (state / "authority.pem").read_text()
        server = office.config.server
        service = office.serving()
        bound = {} if service is None else service.addresses
        record = {
            "participant": made.participant_id,
            "token": made.token,
            "expires": made.expires,
            "withdrawn": made.withdrawn,
            "public": bound.get("public", server.public),
            "market": bound.get("market", server.market),
            "authority": authority,
        }
        _show(
            as_json,
            record,
            f"{made.token}\n\nHand this token and {state / 'authority.pem'} to {name}. It works once, until "
            f"{_time(made.expires)}." + (" The earlier token no longer works." if made.withdrawn else ""),
        )


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(help="The participant's id.")],
    reason: Annotated[str, typer.Option(help="For the ledger.")] = "revoked by the operator",
    state: State = DEFAULT_STATE,
    as_json: AsJson = False,
) -> None:
    """Revoke a participant's certificates, at once; of one that has not enrolled, withdraw the invitation."""
    with _office(state) as office:
        enrolled = office.revoke(name, reason)
    _show(
        as_json,
        {"participant": name, "revoked": enrolled, "withdrawn": not enrolled},
        f"{name} is revoked." if enrolled else f"{name} had not enrolled; its invitation is withdrawn.",
    )


@certificate_app.command("renew")
def renew_certificate(
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="DNS name or IP address, may be repeated; else those of the configuration, or as before."
        ),
    ] = None,
    state: State = DEFAULT_STATE,
    as_json: AsJson = False,
) -> None:
    """Make a new certificate and key for the server; a running service serves them from then on."""
    with _office(state) as office:
        made = office.renew_server(host or []).certificate
    names, until = certificate_hosts(made), made.not_valid_after_utc
    _show(
        as_json,
        {"hosts": names, "expires": until.timestamp()},
        f"The server's certificate is for {', '.join(names)}, until {until:%Y-%m-%d}.",
    )


@authority_app.command("rotate")
def rotate_authority(state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """Begin a new authority; certificates of the old one count beside it until `authority end`.

    Participants that run take the new one over by themselves. New ones are invited with authority.pem as it is now.
    """
    with _office(state) as office:
        until = office.begin_authority().certificate.not_valid_after_utc
        behind = office.behind()
    _show(
        as_json,
        {"authority": str(state / "authority.pem"), "expires": until.timestamp(), "behind": behind},
        f"A new authority issues from now on, until {until:%Y-%m-%d}; the old one counts beside it.\n"
        f"{counted(len(behind), 'participant')} have yet to take it over. Then: fedpeer coordinator authority end",
    )


@authority_app.command("end")
def end_authority(
    leave_behind: Annotated[
        bool,
        typer.Option(
            "--leave-behind", help="Also where participants have no certificate of the new one yet."
        ),
    ] = False,
    state: State = DEFAULT_STATE,
    as_json: AsJson = False,
) -> None:
    """End the old authority: its certificates no longer count, and the server's is issued by the new one."""
    with _office(state) as office:
        behind = office.end_authority(left_behind=leave_behind)
    _show(
        as_json,
        {"authority": str(state / "authority.pem"), "left_behind": behind},
        "The old authority has ended."
        + (f" Left behind, to be invited again: {', '.join(behind)}." if behind else ""),
    )


@log_key_app.command("rotate")
def rotate_log_key(state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """Announce a new key in the ledger, under the old one, and sign by it from then on.

    Whoever has the old key can verify what the new one signs, through the announcement. Publish the new one.
    """
    with _office(state) as office:
        old, new, index = office.change_log_key()
    _show(
        as_json,
        {"old": str(old), "ledger_key": str(new), "entry": index},
        f"Ledger key: {new}\nEntry {index} announces it under {old}. Publish it.",
    )


@app.command()
def cancel(
    task: Annotated[str, typer.Argument(help="The task's id.")],
    reason: Annotated[str, typer.Option(help="A sentence for everyone.")] = "cancelled by the operator",
    state: State = DEFAULT_STATE,
    as_json: AsJson = False,
) -> None:
    """Cancel a task and refund what is not yet paid."""
    with _office(state) as office:
        report = office.cancel(task, reason)
    _show(as_json, report.record(), f"Task {task} is cancelled; {_paid(report)} credits had been paid.")


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="The tar file to write; it will hold the keys.")],
    state: State = DEFAULT_STATE,
    as_json: AsJson = False,
) -> None:
    """Write keys, configuration, database and models to one file, also while serving."""
    with _office(state) as office:
        size = office.back_up(file)
    _show(
        as_json,
        {"file": str(file), "bytes": size},
        f"{file}: {size:,} bytes. Keep it secret: it has the keys.",
    )


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="A file that `backup` wrote.")],
    folder: Annotated[Path, typer.Argument(help="The state folder to make.")],
    as_json: AsJson = False,
) -> None:
    """Make a state folder from a backup."""
    manifest = read_backup(file, folder)
    size = manifest["ledger_size"]
    _note(
        f"The ledger has {counted(size, 'entry')}. What was signed after this backup was taken is not in it: "
        "whoever saw a later head will see a fork."
    )
    _show(as_json, {"state": str(folder), "ledger_size": size}, f"{folder} is restored.")


@app.command()
def status(
    task: Annotated[str | None, typer.Argument(help="One task; all where left out.")] = None,
    state: State = DEFAULT_STATE,
    as_json: AsJson = False,
) -> None:
    """Show the service, its participants and its tasks; one task in full where it is named."""
    with _office(state) as office:
        reports = office.tasks() if task is None else [office.task(task)]
        people = office.participants()
        service = office.serving()
        certificates, warnings = _certificates(office)
        record = {
            "state": str(state),
            "serving": service is not None,
            "answers": service is not None and service.answers,
            "addresses": {} if service is None else service.addresses,
            "troubles": {} if service is None else service.troubles,
            "insecure": office.config.server.insecure,
            "ledger_size": office.ledger_size(),
            "certificates": certificates,
            "participants": [
                {"id": p.id, "enrolled": p.enrolled_at, "revoked": p.revoked_at is not None} for p in people
            ],
            "tasks": [report.record() for report in reports],
        }
        if as_json:
            _print_json(record)
            return
        running = "serving" if record["serving"] else "not serving"
        output().print(
            f"{state}: {running}, {counted(len(people), 'participant')}, "
            f"{counted(len(reports), 'task')}, {counted(office.ledger_size(), 'ledger entry')}"
            if task is None
            else f"{state}: {running}"
        )
        for warning in warnings:
            _note(f"WARNING: {warning}")
        for name, why in ({} if service is None else service.troubles).items():
            output().print(f"{name} fails, and is tried again: {printable(why)}", markup=False)
        if task is None:
            _print_tasks(reports)
            return
        from coordinator.task_text import show_task

        show_task(output(), reports[0], datetime.now(UTC).timestamp())


@app.command()
def participants(state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """List who has enrolled, until when their certificates hold, and who is revoked."""
    with _office(state) as office:
        people = office.enrolled()
    if as_json:
        _print_json({"participants": [vars(person) for person in people]})
        return
    table = Table("participant", "enrolled", "certificate until", "standing")
    for person in people:
        times = _time(person.enrolled_at), _time(person.certificate_expires)
        table.add_row(person.id, *times, person.standing)
    output().print(table)


@app.command()
def tasks(state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    """List the tasks."""
    with _office(state) as office:
        reports = office.tasks()
    if as_json:
        _print_json({"tasks": [report.record() for report in reports]})
    else:
        _print_tasks(reports)


def _certificates(office: Office) -> tuple[dict[str, Any], list[str]]:
    """When the certificates expire, seconds since the epoch, and what is wrong with them or soon will be."""
    try:
        found = office.certificates()
    except FolderError as error:
        return {"problem": str(error)}, [str(error)]
    warnings = found.warnings(datetime.now(UTC))
    ends: dict[str, Any] = {name: end.timestamp() for name, end in found.ends().items()}
    return ends | ({"warnings": warnings} if warnings else {}), warnings


def _print_tasks(reports: list[TaskReport]) -> None:
    table = Table(
        "task", "state", "round", "claimed", "selected", "delivered", "paid", "reserved", "accuracy"
    )
    for report in reports:
        row = report.row
        accuracy = next((r.accuracy for r in reversed(report.rounds) if r.accuracy is not None), "")
        table.add_row(
            row.id,
            row.state,
            f"{row.round}/{row.terms.schedule.rounds}",
            str(len(report.claimed)),
            str(len(report.selected)),
            str(len(report.delivered)),
            _paid(report),
            _credits(report.escrow_micro),
            accuracy,
        )
    output().print(table)
    for report in reports:
        if report.row.reason:
            output().print(f"{report.row.id}: {report.row.reason}", markup=False)
        for name, reason in report.failures.items():
            output().print(f"{report.row.id}: {name} cannot deliver: {printable(reason)}", markup=False)


@contextmanager
def _office(state: Path) -> Iterator[Office]:
    office = Office(StateFolder(state))
    try:
        yield office
        if office.unanswered:
            _note(
                f"The coordinator that runs from {state} has not answered for {ANSWER_SECONDS:g} seconds: it is "
                "stopped, or waits for its disk or database. What was changed is kept; it takes it up when it goes on."
            )
    finally:
        office.close()


def _config_text(
    name: str, market: str, public: str, metrics: str, database: str, insecure: bool, hosts: list[str]
) -> str:
    lines = [
        "# fedpeer coordinator; every key is explained in docs/operations.md",
        f"name = {json.dumps(name)}",
        "",
        "[server]",
        f"market = {json.dumps(market)}",
        f"public = {json.dumps(public)}",
        f"metrics = {json.dumps(metrics)}",
        f"insecure = {json.dumps(insecure)}",
        f"hosts = {json.dumps(hosts)}",
        "",
        "[storage]",
        f"database = {json.dumps(database)}",
        "",
    ]
    return "\n".join(lines)


def _show(as_json: bool, record: dict[str, Any], text: str) -> None:
    if as_json:
        _print_json(record)
    else:
        typer.echo(text)


def _print_json(record: dict[str, Any]) -> None:
    typer.echo(json.dumps(record))


def _announce(addresses: dict[str, str]) -> None:
    try:
        _print_json({"addresses": addresses})
        sys.stdout.flush()  # a pipe's reader waits for it
    except OSError as error:  # whoever wanted to know is away; the service goes on
        _note(
            f"the addresses cannot be written: {error.strerror}; they stand in the state folder's serving.json"
        )


def _note(text: str) -> None:
    typer.echo(text, err=True)


def _credits(micro: int) -> str:
    return f"{micro / MICRO:,.6f}"


def _paid(report: TaskReport) -> str:
    return _credits(sum(report.paid_micro.values()))


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
