"""`fedpeer coordinator`: set a market up, run it, offer tasks, invite and revoke, look at it.

Results go to standard output (one JSON object with --json), everything else to standard error. A command that changes
something says whether it is in force: confirmed by the service that runs (exit code 0), recorded where none runs (0),
or recorded and not confirmed by one that runs (`UNCONFIRMED`). What is done and cannot be shown ends with `UNSHOWN`.
"""

import asyncio
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from coordinator.command_output import (
    DEFAULT_STATE,
    AsJson,
    Changed,
    Listed,
    State,
    Written,
    conclude,
    note,
    notice_of,
    operating,
    operator_of,
    print_json,
    show,
    silent,
    written,
)
from coordinator.config import (
    SERVICE_FILE,
    ServiceConfig,
    TaskConfig,
    config_text,
    read_config,
    resolve_paths,
    split_address,
    validated_config,
)
from coordinator.control_socket import round_progress
from coordinator.errors import FolderError, MarketTaskError, PayoutError, ServeError
from fedpeer.audit.sql.errors import StorageError
from fedpeer.extras import unmet
from fedpeer.protocol.certificates import certificate_hosts
from fedpeer.protocol.console_link import CONSOLE_ADDRESS
from fedpeer.streams import nowhere
from fedpeer.terminal import configure_logs, counted, output, printable, shown
from fedpeer.text_files import naming
from mechanism.canonical import MAX_INTEGER
from mechanism.price import grouped_credits
from mechanism.settlement import MICRO

if TYPE_CHECKING:  # --help needs no extra, and does not wait for them
    from coordinator.backup import Manifest
    from coordinator.folder import StateFolder
    from coordinator.operator import Operator, TaskOverview
    from coordinator.revocations import CarriedOver

#: An amount of credits on the command line; what is too much for an entry has a sentence of its own.
_CREDITS = re.compile(r"[0-9]{1,30}(\.[0-9]{1,6})?")

app = typer.Typer(
    help="Run a market: publish tasks, invite participants, serve, settle.", no_args_is_help=True
)

certificate_app = typer.Typer(no_args_is_help=True, help="The server's certificate.")
authority_app = typer.Typer(no_args_is_help=True, help="The certificate authority.")
log_key_app = typer.Typer(no_args_is_help=True, help="The key that signs the ledger's heads.")
payout_app = typer.Typer(
    invoke_without_command=True,
    help="Pay out what is payable: a run of it, confirmed by the bank or withdrawn as a whole.",
)
app.add_typer(certificate_app, name="certificate")
app.add_typer(authority_app, name="authority")
app.add_typer(log_key_app, name="log-key")
app.add_typer(payout_app, name="payout")
audit_app = typer.Typer(
    no_args_is_help=True, help="Audits by re-training: who was drawn, orders, what came back."
)
app.add_typer(audit_app, name="audit")

ParticipantId = Annotated[str, typer.Argument(help="The participant's id.")]
TaskId = Annotated[str, typer.Argument(help="The task's id.")]
PayoutNumber = Annotated[int, typer.Argument(help="Which payout.")]
AuditFolder = Annotated[Path, typer.Option("--out", "-o", help="The new folder for the auditor.")]
Reference = Annotated[str, typer.Option(help="The bank's reference, or yours: each counts once.")]
#: A database's URL. By the environment where it holds a password: the process table shows arguments to everybody.
DatabaseUrl = typer.Option(
    envvar="FEDPEER_DATABASE",
    help="SQLAlchemy URL. With a password in it, give it by the environment: others see arguments.",
)

#: Exit code of a backup without all models that tasks need.
INCOMPLETE = 1


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
    database: Annotated[str, DatabaseUrl] = "",
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS. For experiments only.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a state folder: certificate authority, server certificate, ledger key, configuration."""
    hosts = host or ["localhost", "127.0.0.1"]
    server = {"market": market, "public": public, "metrics": metrics, "insecure": insecure, "hosts": hosts}
    document = {"name": name, "server": server, "storage": {"database": database}}
    head = "# fedpeer coordinator; every key is explained in docs/operations.md\n"
    config = validated_config(document, ServiceConfig, folder / SERVICE_FILE)
    from coordinator.folder import initialise

    _warn_of_password(database)
    with _cleaning_up():
        made = initialise(folder, head + config_text(config), name, hosts)
    key = str(made.signing_key().verification_key)
    if insecure:
        note("INSECURE: this coordinator will serve without TLS; anyone can act as any participant")
    show(
        as_json,
        {"state": str(folder), "hosts": hosts, "authority": str(folder / "authority.pem"), "ledger_key": key},
        f"{folder} is ready for {', '.join(hosts)}.\nLedger key: {key}\n"
        f"Next: fedpeer coordinator serve --state {folder}",
    )


@app.command()
def serve(
    state: State = DEFAULT_STATE,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every detail.")] = False,
    console: Annotated[
        bool, typer.Option("--console", help="Start the web console beside, for this machine alone.")
    ] = False,
    console_listen: Annotated[
        str, typer.Option(help="The same on another host:port; not on this machine alone: over TLS.")
    ] = "",
    fronts: Annotated[
        int,
        typer.Option(
            min=0, max=64, help="Share the ports among so many processes; needs PostgreSQL. 0: serve in one."
        ),
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Serve until SIGTERM; with --json, print the addresses once calls are taken."""
    from coordinator.fronts import serve_fronts
    from coordinator.server import serve as run

    beside = console_listen or (CONSOLE_ADDRESS if console else "")
    if beside:
        split_address("--console-listen", beside)
        if (sentence := unmet("console")) is not None:
            raise ServeError(sentence)
    configure_logs(level=logging.DEBUG if verbose else logging.INFO, library_level=logging.WARNING)
    announce = _announce if as_json else None
    if fronts:
        asyncio.run(serve_fronts(state, fronts, announce, beside, verbose=verbose))
    else:
        asyncio.run(run(state, announce, beside))


@app.command("front", hidden=True)
def front_(
    number: Annotated[int, typer.Option(help="0, 1, ...")],
    market: Annotated[str, typer.Option(help="host:port of the participants' port.")],
    public: Annotated[str, typer.Option(help="host:port of the public port.")],
    state: State = DEFAULT_STATE,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every detail.")] = False,
    console: Annotated[str, typer.Option(help="host:port of the web console.")] = "",
) -> None:
    """One of the processes of `serve --fronts`, which starts it; ends with its standard input."""
    import structlog

    from coordinator.server import Front
    from coordinator.server import serve as run

    configure_logs(level=logging.DEBUG if verbose else logging.INFO, library_level=logging.WARNING)
    structlog.contextvars.bind_contextvars(front=number)
    asyncio.run(run(state, _announce, console, Front(number, market, public)))


@operating(app, "open")
def open_(
    operator: "Operator",
    file: Annotated[Path, typer.Argument(help="The task file (TOML).")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Reserve the budget without asking.")] = False,
    accept_noise: Annotated[
        bool, typer.Option("--accept-noise", help="Even where nothing can be learnt of the learner's data.")
    ] = False,
    as_json: bool = False,
) -> Changed:
    """Publish a task and reserve its budget; first a dry round proves it, and the maximal bill is shown."""
    from coordinator.calibration import check_calibration
    from coordinator.dry_round import prove  # imports the data sets
    from coordinator.opening import prepare_task

    config = resolve_paths(read_config(file, TaskConfig), file.parent)
    operator.check_unused(config.id)
    with naming(file):
        prepared = prepare_task(config, datetime.now(UTC).timestamp())
        operator.check_money(prepared)
        doubts = check_calibration(prepared, config)
    schedule = prepared.row.terms.schedule
    note(
        f"At most {grouped_credits(prepared.bill_micro)} credits: {counted(schedule.rounds, 'round')} x "
        f"{schedule.capacity} participants x {grouped_credits(prepared.head_micro)} credits; "
        f"{grouped_credits(prepared.row.terms.budget_micro)} credits will be reserved."
    )
    if not yes and (as_json or not sys.stdin.isatty()):
        raise MarketTaskError("nobody can be asked here; give --yes to reserve the budget")
    with _status_line() as say, _cleaning_up():
        proof = prove(prepared, say, accept_noise=accept_noise)
    proof = replace(proof, doubts=proof.doubts + doubts)
    note(proof.sentence())
    if not yes:
        typer.confirm("Open the task?", abort=True, err=True)
    operator.open(proof.task)
    row = prepared.row
    record = {
        "task": row.id,
        "terms_digest": row.terms.digest.hex(),
        "bill_micro": prepared.bill_micro,
        "budget_micro": row.terms.budget_micro,
        "training_seconds": proof.training_seconds,
        "evidence_seconds": proof.evidence_seconds,
        "shadows": None if proof.shadows is None else list(proof.shadows[1:]),
        "half_width": proof.half_width,
        "doubts": list(proof.doubts),
    }
    digest = row.terms.digest.hex()
    return Changed(
        record,
        f"Task {row.id} is open; terms {digest}.",
        f"Task {row.id} is recorded, and not offered yet; terms {digest}.",
    )


@app.command()
def invite(
    name: ParticipantId,
    organisation: Annotated[
        str,
        typer.Option(
            help="Whom it is of. A task has one identity of an organisation, unless its terms allow more."
        ),
    ] = "",
    task: Annotated[
        str,
        typer.Option(
            help="Under a pseudonym, for this task alone, whose terms ask for them. The log never has the name."
        ),
    ] = "",
    state: State = DEFAULT_STATE,
    as_json: AsJson = False,
) -> None:
    """Make a one-time token with which a participant gets its certificate, and say what to hand over with it."""
    with operator_of(state) as operator:
        entrance, made = operator.entrance(), operator.invite(name, organisation, task)
        owner, name = name, made.participant_id
        insecure = operator.config.server.insecure
        command = (
            f"fedpeer participant init {name} --market {entrance.market} --public {entrance.public} && "
            f"FEDPEER_INVITATION={made.token} fedpeer participant enroll"
        )
        record = {
            "participant": name,
            "owner": owner,
            "token": made.token,
            "expires": made.expires,
            "withdrawn": made.withdrawn,
            "colleagues": list(made.colleagues),
            "public": entrance.public,
            "market": entrance.market,
            "authority": (state / "authority.pem").read_text(),
            "fingerprints": list(entrance.fingerprints),
            "command": command,
        }
        whom = f"{owner}, who is {name} in task {task}" if task else name
        lines = [
            made.token,
            "",
            f"Hand over to {whom}: this token, the two addresses and {state / 'authority.pem'}.",
            f"  market       {entrance.market}",
            f"  enrolment    {entrance.public}",
            *(f"  fingerprint  {mark} (SHA-256 of the authority)" for mark in entrance.fingerprints),
            "In a new folder that has authority.pem in it, this makes participant.toml and enrols:",
            f"  {command}",
        ]
        if insecure:
            lines.append("This coordinator serves without TLS: set insecure = true in participant.toml.")
        lines.append(
            f"The token works once, until {_time(made.expires)}."
            + (" The earlier token no longer works." if made.withdrawn else "")
        )
        if made.colleagues:
            lines.append(
                f"Of its organisation there are {', '.join(made.colleagues)} already: a task takes the claims of as "
                "many as its terms allow, by default of one."
            )
        text = "\n".join(lines)
        if (why := written(as_json, {**record, "service": notice_of(operator).value}, text)) is not None:
            operator.withdraw(made)
            raise MarketTaskError(
                f"the invitation of {name} is withdrawn again: standard output cannot be written ({why}), and nobody "
                "has its token; invite again"
                + ("; the earlier token no longer works" if made.withdrawn else "")
            )
        conclude(operator)


@operating(app)
def revoke(
    operator: "Operator",
    name: ParticipantId,
    reason: Annotated[str, typer.Option(help="For the ledger.")] = "revoked by the operator",
    only: Annotated[
        bool, typer.Option("--only", help="Under this name alone; its pseudonyms stay as they are.")
    ] = False,
) -> Changed:
    """Revoke a participant's certificates, at once, and withdraw its open invitation; of all its pseudonyms, too.

    Revocations of several names stand together in the log, and so tell everybody that they are of one owner. To keep
    that from them, revoke each pseudonym apart, at another time.
    """
    found = operator.revoke(name, reason, only=only)
    also = " Its open invitation is withdrawn." if found.withdrawn else ""
    if found.pseudonyms:
        also += f" Its pseudonyms are revoked: {', '.join(found.pseudonyms)}."
    if found.standing:
        also += f" Still enrolled: {', '.join(found.standing)}; `revoke` each, apart from the others."
    if not found.enrolled:
        done = recorded = f"{name} had not enrolled itself.{also}"
    elif found.before:
        done = recorded = f"{name} was revoked before.{also}"
    else:
        done, recorded = f"{name} is revoked.{also}", f"The revocation of {name} is recorded.{also}"
    record = {
        "participant": name,
        "revoked": found.enrolled,
        "withdrawn": bool(found.withdrawn),
        "pseudonyms": list(found.pseudonyms),
        "standing": list(found.standing),
    }
    return Changed(record, done, recorded)


@operating(app)
def forget(operator: "Operator", name: ParticipantId) -> Changed:
    """Erase what is kept of a revoked participant beside the ledger: openings with their salts, claims, bank account.

    Refused while a task that it takes part in runs, while terms promise to keep what was sent, and while a payout to it
    is on its way. Safe to repeat. The ledger stays, and verifies.
    """
    found, gone = operator.forget(name)
    if found.unknown:
        text = (
            f"Nothing is kept of {name}: it was forgotten before, or was never known here; `participants` lists "
            "those who enrolled. What is owed to names that were its own stays payable to them."
        )
    else:
        text = (
            f"{name} is forgotten: {counted(found.openings, 'opening')}, "
            f"{counted(found.assessments, 'assessment')}, {counted(found.models, 'model')}, "
            f"{counted(found.invitations, 'invitation')} and {counted(found.bank_details, 'record')} of bank "
            "details erased. What stays: its entries in the ledger, under the ids and keys that it had, with what "
            "they show in clear; what others' openings say of samples in common with it; backups, payment files "
            "and logs, which are yours to delete."
        )
    for owed, micro in found.owed_micro.items():
        text += (
            f" {owed} is owed {grouped_credits(micro)} credits, payable once you give an account for that name: "
            f"`payout account {owed}`."
        )
    if found.models:
        text += " The model files go with the service's next daily housekeeping."
    if not gone:
        text += (
            " The database's write-ahead log still has it, since the service reads there: repeat the command, or "
            "restart the service."
        )
    return Changed({**vars(found), "log_emptied": gone}, text)


@operating(certificate_app, "renew")
def renew_certificate(
    operator: "Operator",
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="DNS name or IP address, may be repeated; else those of the configuration, or as before."
        ),
    ] = None,
) -> Changed:
    """Make a new certificate and key for the server; a running service serves them from then on."""
    before = operator.server_hosts()
    made = operator.renew_server(host or []).certificate
    names, until = certificate_hosts(made), made.not_valid_after_utc
    lost = [name for name in before if name not in names]
    text = f"The server's certificate is for {', '.join(names)}, until {until:%Y-%m-%d}." + (
        f" It is no longer for {', '.join(lost)}." if lost else ""
    )
    record = {"hosts": names, "expires": until.timestamp()}
    return Changed(record, text, certificates=True)


@operating(authority_app, "rotate")
def rotate_authority(operator: "Operator") -> Changed:
    """Begin a new authority; certificates of the old one count, too, until `authority end`.

    Participants that run take the new one over by themselves. New ones are invited with authority.pem as it is now.
    """
    until = operator.begin_authority().certificate.not_valid_after_utc
    waiting = operator.without_new_certificate()
    rest = (
        f"the old one counts, too.\n{counted(len(waiting), 'participant')} have yet to take it over. Then: "
        "fedpeer coordinator authority end"
    )
    return Changed(
        {
            "authority": str(operator.folder.path / "authority.pem"),
            "expires": until.timestamp(),
            "waiting": waiting,
        },
        f"A new authority issues from now on, until {until:%Y-%m-%d}; {rest}",
        f"A new authority is made, until {until:%Y-%m-%d}; {rest}",
        certificates=True,
    )


@operating(authority_app, "end")
def end_authority(
    operator: "Operator",
    leave_behind: Annotated[
        bool,
        typer.Option(
            "--leave-behind", help="End it even if participants have no certificate of the new one yet."
        ),
    ] = False,
) -> Changed:
    """End the old authority: its certificates no longer count, and the server's is issued by the new one."""
    left = operator.end_authority(leave_behind=leave_behind)
    rest = f" Left behind, to be invited again: {', '.join(left)}." if left else ""
    return Changed(
        {"authority": str(operator.folder.path / "authority.pem"), "left_behind": left},
        f"The old authority has ended.{rest}",
        f"The end of the old authority is recorded.{rest}",
        certificates=True,
    )


@operating(log_key_app, "rotate")
def rotate_log_key(operator: "Operator") -> Changed:
    """Announce a new key in the ledger, under the old one, and sign by it from then on.

    Those who have the old key can verify what the new one signs, through the announcement. Publish the new one.
    """
    old, new, index = operator.change_log_key()
    text = f"Ledger key: {new}\nEntry {index} announces it under {old}. Publish it."
    record = {"old": str(old), "ledger_key": str(new), "entry": index}
    return Changed(record, text)


@operating(app)
def cancel(
    operator: "Operator",
    task: TaskId,
    reason: Annotated[str, typer.Option(help="A sentence for everyone.")] = "cancelled by the operator",
) -> Changed:
    """Cancel a task and refund what is not yet paid."""
    report = operator.cancel(task, reason)
    paid = f"{_paid(report)} credits had been paid."
    return Changed(
        report.record({}),
        f"Task {task} is cancelled; {paid}",
        f"The cancellation of task {task} is recorded; {paid}",
    )


@app.command()
def notice(
    receiver: Annotated[str, typer.Argument(help="The name of its section: [notices.NAME].")],
    state: State = DEFAULT_STATE,
    as_json: AsJson = False,
) -> None:
    """Send a receiver of notices a test, now; exit code 3 where it does not take it."""
    from coordinator.clock import SystemClock
    from coordinator.folder import StateFolder
    from coordinator.notices import try_out
    from coordinator.sending import NotSent

    why = ""
    try:
        asyncio.run(try_out(StateFolder(state).config(), receiver, SystemClock().now()))
    except NotSent as error:
        why = str(error)
    if as_json:
        print_json({"receiver": receiver, "taken": not why, "why": why})
    elif not why:
        output().print(f"{receiver} has taken it.")
    if why:
        typer.echo(f"{receiver} has not taken it: {why}", err=True)
        raise typer.Exit(3)


@app.command()
def model(
    task: TaskId,
    target: Annotated[
        Path, typer.Option("--output", "-o", help="The safetensors file to write; - is standard output.")
    ],
    round_: Annotated[
        int | None,
        typer.Option("--round", min=0, help="After which round; 0: what it began with. Else the last."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    state: State = DEFAULT_STATE,
    as_json: AsJson = False,
) -> None:
    """Fetch the model that a task has trained; while it runs, the one of its last settled round."""
    from coordinator.fetching import copy_model, write_model

    piped = str(target) == "-"
    if piped and (as_json or sys.stdout.isatty()):
        raise MarketTaskError(
            "a model is not text for a terminal or for --json; redirect -o -, or name a file"
        )
    if piped and nowhere(sys.stdout):
        raise MarketTaskError(
            "standard output is closed, so that -o - has nowhere to go; redirect it, or name a file"
        )
    with operator_of(state) as operator:
        found = operator.model(task, round_)
        if piped:
            write_model(found.path, found.digest, sys.stdout.buffer)
        else:
            copy_model(found.path, found.digest, target, force=force)
        try:
            operator.fetched(found)
        except StorageError as error:
            note(f"That it was fetched is not noted, so that the service keeps its file: {error}")
        size = found.path.stat().st_size
        said = "".join(f"{name} {value}, " for name, value in found.figures.items())
        text = f"the model of task {task} after round {found.round}, {said}{size:,} bytes, SHA-256 {found.digest.hex()}"
        if piped:
            note(text)
            return
        record = {
            "task": task,
            "round": found.round,
            "file": str(target),
            "bytes": size,
            "model_sha256": found.digest.hex(),
            **found.figures,
        }
        show(as_json, record, f"{target}: {text}")


@app.command()
def worker(
    folder: Annotated[Path, typer.Argument(help="The folder to make, for the machine that is to work.")],
    name: Annotated[str, typer.Option(help="Name of the worker, in its certificate.")] = "worker",
    state: State = DEFAULT_STATE,
    as_json: AsJson = False,
) -> None:
    """Make the folder that a worker, or the scheduler, on another machine runs from. It holds keys: keep it secret."""
    from coordinator.folder import StateFolder
    from coordinator.worker_folders import make_worker_folder

    with _cleaning_up():
        made = make_worker_folder(StateFolder(state), folder, name)
    store = made.models or f"s3://{made.s3.bucket}"
    show(
        as_json,
        {"folder": str(folder), "scheduler": made.scheduler, "models": store},
        f"{folder} is ready, for the scheduler {made.scheduler} and the models in {store}.\n"
        f"Next, on its machine: fedpeer worker run {folder}, or once: fedpeer worker schedule {folder}",
    )


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="The tar file to write; it will hold the keys.")],
    state: State = DEFAULT_STATE,
    as_json: AsJson = False,
) -> None:
    """Write keys, configuration, database and models to one file, also while serving; it is read again to check it."""
    with operator_of(state) as operator, _cleaning_up():
        manifest = operator.back_up(file)
    left_out = list(manifest.left_out)
    show(
        as_json,
        {"file": str(file), "bytes": file.stat().st_size, **_facts(manifest), "left_out": left_out},
        f"{file}: {file.stat().st_size:,} bytes, {_summary(manifest)}. Keep it secret: it has the keys.",
    )
    if left_out:
        note(
            f"INCOMPLETE: {counted(len(left_out), 'model file')} that tasks need is missing or damaged in "
            f"{state / 'models'}, and so not in the backup: {', '.join(left_out)}"
        )
        raise typer.Exit(INCOMPLETE)


@app.command("check-backup")
def check_backup_(
    file: Annotated[Path, typer.Argument(help="A file that `backup` wrote.")], as_json: AsJson = False
) -> None:
    """Check every byte of a backup, and write nothing."""
    from coordinator.backup import check_backup

    manifest = check_backup(file)
    show(as_json, {"file": str(file), **_facts(manifest)}, f"{file} is whole: {_summary(manifest)}.")


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="A file that `backup` wrote.")],
    folder: Annotated[Path, typer.Argument(help="The state folder to make.")],
    database: Annotated[str | None, DatabaseUrl] = None,
    revocations: Annotated[
        str | None,
        typer.Option(
            "--revocations-from",
            help="A later copy of the ledger (an export, a database): what it has revoked since is revoked again.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a state folder from a backup, all of it or nothing; with --database, from another database."""
    from coordinator.backup import read_backup
    from coordinator.operator import Operator
    from coordinator.storage.schema import migrate
    from fedpeer.audit.sql.database import Database

    def carry_over(made: "StateFolder") -> "CarriedOver | None":
        if revocations is None:
            return None
        database = Database(made.database_url(made.config()))
        migrate(database)  # of an older version, as the service does
        database.close()
        with closing(Operator(made)) as operator:
            return operator.carry_over_revocations(revocations)

    _warn_of_password(database or "")
    with _cleaning_up():
        manifest, carried = read_backup(file, folder, database=database or None, act=carry_over)
    note(
        f"The ledger has {counted(manifest.ledger_size, 'entry')}, as of {_time(manifest.created)}. What was signed "
        "after this backup was taken is not in it: those who saw a later head will see a fork. A payout that was made "
        "since is forgotten, and its credits are payable again: compare with your bank before the next one. Who was "
        "forgotten since is there again: `forget` them once more before you serve."
    )
    if carried is None:
        note(
            "REVOCATIONS made since then are forgotten: those who were revoked are let in again. Before you serve, "
            "revoke them again, or take them from a later copy of the ledger: "
            f"fedpeer coordinator carry-revocations LEDGER --state {folder}"
        )
    else:
        note(_carried_over_text(carried))
    if manifest.left_out:
        note(f"{counted(len(manifest.left_out), 'model file')} that tasks need was not there to be backed up")
    record = {
        "state": str(folder),
        **_facts(manifest),
        "carried_over": None if carried is None else vars(carried),
    }
    show(as_json, record, f"{folder} is restored: {_summary(manifest)}.")


@operating(app)
def openings(
    operator: "Operator",
    task_id: Annotated[str, typer.Argument(metavar="TASK", help="The task whose openings are written.")],
    out: Annotated[Path, typer.Option(help="The file to write, which nobody else may read.")],
) -> Written:
    """Write everything that a task's entries commit to, for its auditor.

    Then the auditor: fedpeer ledger verify SOURCE --openings FILE. The file tells what participants keep private.
    """
    found = operator.openings(task_id)
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(line + b"\n" for line in found.lines())
    except OSError as error:
        raise MarketTaskError(
            f"{out} cannot be written: {error.strerror}; name another file with --out"
        ) from None
    record = {"task": task_id, "file": str(out), "openings": len(found.by_id)}
    return Written(record, f"wrote {counted(len(found.by_id), 'opening')} to {out}")


@operating(app, "carry-revocations")
def carry_revocations(
    operator: "Operator",
    ledger: Annotated[
        str, typer.Argument(help="A later copy of this ledger: an exported folder or file, or a database.")
    ],
    as_json: bool = False,
) -> Changed | Listed:
    """After a restore: revoke again everyone that a later copy of the ledger says was revoked."""
    carried = operator.carry_over_revocations(ledger)
    text = _carried_over_text(carried)
    if not (carried.beyond or as_json):
        return Listed(vars(carried), text)
    return Changed(vars(carried), text, f"Recorded: {text}")


@app.command()
def status(
    task: Annotated[str | None, typer.Argument(help="One task; all where left out.")] = None,
    state: State = DEFAULT_STATE,
    as_json: AsJson = False,
) -> None:
    """Show the service, its participants and its tasks; one task in full where it is named."""
    with operator_of(state) as operator:
        reports = operator.tasks() if task is None else [operator.task(task)]
        people = operator.enrolled()
        service = operator.serving()
        progress = operator.progress() if service.answers else {}
        certificates, warnings = _certificates(operator)
        record = {
            "state": str(state),
            **vars(service),
            "insecure": operator.config.server.insecure,
            "ledger_size": operator.ledger_size(),
            "certificates": certificates,
            "participants": [
                {"id": p.id, "enrolled": p.enrolled_at, "revoked": p.standing == "revoked"} for p in people
            ],
            "tasks": [report.record(progress) for report in reports],
        }
        if service.serving and not service.answers:
            why = silent(service.machine, str(state))
            note(f"{why[0].upper()}{why[1:]}. What was changed is kept.")
        if as_json:
            print_json(record)
            return
        said = [f"{state}: {'serving' if service.serving else 'not serving'}"]
        if task is None:
            said += [counted(len(people), "participant"), counted(len(reports), "task")]
            said += [counted(operator.ledger_size(), "ledger entry")]
        output().print(", ".join(said))
        for warning in warnings:
            note(f"WARNING: {warning}")
        for name, why in service.troubles.items():
            output().print(f"{name} fails, and is tried again: {printable(why)}", markup=False)
        if task is None:
            output().print(_tasks_table(reports))
            return
        from coordinator.task_text import show_task

        current = round_progress(progress, reports[0].row.id, reports[0].row.round)
        show_task(output(), reports[0], current, datetime.now(UTC).timestamp())


@operating(app)
def participants(operator: "Operator") -> Listed:
    """List who has enrolled, until when their certificates hold, and who is revoked."""
    people = operator.enrolled()
    table = Table("participant", "is", "organisation", "enrolled", "certificate until", "standing")
    for person in people:
        times = _time(person.enrolled_at), _time(person.certificate_expires)
        table.add_row(person.id, person.owner, Text(person.organisation), *times, person.standing)
    return Listed({"participants": [vars(person) for person in people]}, table)


@operating(app)
def reputation(operator: "Operator", name: ParticipantId) -> Listed:
    """Show a participant's past across tasks, with every reason: for whom to invite. No payment follows from it."""
    found = operator.reputation(name)
    return Listed(found.record(), "\n".join(map(shown, found.lines())))


@operating(app)
def tasks(operator: "Operator", as_json: bool = False) -> Listed:
    """List the tasks."""
    reports, progress = operator.tasks(), operator.progress() if as_json else {}
    return Listed({"tasks": [report.record(progress) for report in reports]}, _tasks_table(reports))


@operating(audit_app, "list")
def audit_list(operator: "Operator", task: TaskId) -> Listed:
    """List the submissions of a task that were drawn, and how each audit stands."""
    from coordinator.audits import audit_record
    from mechanism.price import credits_text

    rows, lines = operator.audits(task), []
    for row in rows:
        due = f", until {_time(row.due_at)}" if row.due_at is not None else ""
        lines.append(
            f"round {row.round}  {row.participant_id}  {row.stage}{due}; "
            f"{credits_text(row.question_micro)} credits in question. {row.explanation}".rstrip()
        )
    record = {"audits": [dict(audit_record(row)) for row in rows]}
    return Listed(record, "\n".join(lines) or f"No submission of {task} was drawn so far.")


@operating(audit_app, "order")
def audit_order(
    operator: "Operator",
    task: TaskId,
    round_: Annotated[int, typer.Argument(metavar="ROUND", min=1)],
    participant: Annotated[str, typer.Argument(help="Whose submission.")],
    out: AuditFolder,
) -> Written:
    """Write what an auditor takes along: terms, claim, and the model that the round began from."""
    made = operator.order_audit(task, round_, participant, out)
    about = {"task": task, "round": round_, "participant": participant, "number": made.number}
    return Written(
        {**about, "folder": str(out)},
        f"{out} is for the auditor, who runs `fedpeer audit site {out.name}` where the data are.",
    )


@operating(audit_app, "task")
def audit_task(operator: "Operator", task: TaskId, out: AuditFolder) -> Written:
    """Write what the auditor of an ended task measures it again with: ledger, openings, models, the task's secrets."""
    operator.order_task_audit(task, out)
    return Written(
        {"task": task, "folder": str(out)},
        f"{out} is for the auditor alone, who has D_c from you, too, and runs `fedpeer audit task {out.name}`. It "
        "holds the submitted models and the task's secrets.",
    )


@operating(audit_app, "record")
def audit_record_(
    operator: "Operator", folder: Annotated[Path, typer.Argument(help="What the auditor has brought back.")]
) -> Changed:
    """Record what an auditor has brought back. Of an audit by re-training it is measured first: minutes."""
    from fedpeer.protocol.audit_folder import BroughtRemeasurement, read_brought

    brought = read_brought(folder)
    if isinstance(brought, BroughtRemeasurement):
        body, of = operator.record_remeasurement(brought).body, brought.statement
        return Changed(
            body, f"Task {of.task_id}, measured again by its auditor: {of.words} (statement {of.number})."
        )
    said, verdict = brought.statement, operator.record_audit(brought)
    about = {"task": said.task_id, "round": said.round, "participant": said.participant_id}
    text = f"{said.participant_id}, round {said.round}: {verdict.outcome}. {verdict.explanation}"
    return Changed({**about, "number": said.number, **vars(verdict)}, text)


@operating(app)
def deposit(
    operator: "Operator",
    learner: Annotated[str, typer.Argument(help="The learner's id, which task files name as funder.")],
    credits_: Annotated[str, typer.Argument(metavar="CREDITS", help="How many credits it has paid for.")],
    reference: Reference,
) -> Changed:
    """Record that a learner has paid in: its tasks are reserved from that, and refunded to it."""
    return _funded(operator, learner, reference, _micro(credits_))


@operating(app)
def withdraw(
    operator: "Operator",
    learner: Annotated[str, typer.Argument(help="The learner's id.")],
    credits_: Annotated[str, typer.Argument(metavar="CREDITS", help="How many credits go back to it.")],
    reference: Reference,
) -> Changed:
    """Record that a learner was given back what no task has reserved."""
    return _funded(operator, learner, reference, -_micro(credits_))


@operating(app)
def learners(
    operator: "Operator",
    name: Annotated[str | None, typer.Argument(help="One learner; all where left out.")] = None,
) -> Listed:
    """Show what learners paid in, what their tasks have reserved and spent, and what is left."""
    statements = operator.learners() if name is None else [operator.learner(name)]
    parts: list[RenderableType] = []
    for statement in statements:
        parts.append(
            f"{statement['learner']}: {grouped_credits(statement['free_micro'])} credits free, "
            f"{grouped_credits(statement['reserved_micro'])} reserved"
        )
        table = Table("what", "", "credits", "reserved", "spent", "lost stakes")
        for line in statement["funding"]:
            table.add_row(
                line["kind"], f"{line['reference']}, {_time(line['at'])}", grouped_credits(line["micro"])
            )
        for task in statement["tasks"]:
            amounts = (task[f"{key}_micro"] for key in ("budget", "reserved", "spent", "stakes_lost"))
            table.add_row(f"task {task['task']}", task["state"], *map(grouped_credits, amounts))
        parts.append(table)
    return Listed({"learners": statements}, Group(*parts))


def _funded(operator: "Operator", learner: str, reference: str, micro: int) -> Changed:
    row, new = operator.fund(learner, reference, micro)
    statement = operator.learner(learner)
    return Changed(
        {**statement, "new": new},
        f"The {row.movement} {reference} of {grouped_credits(abs(micro))} credits is recorded"
        f"{'' if new else ' already'}; {learner} has {grouped_credits(statement['free_micro'])} credits that no "
        "task has reserved.",
    )


def _micro(text: str) -> int:
    """Credits as micro-credits."""
    micro = int(Decimal(text) * MICRO) if _CREDITS.fullmatch(text) else 0
    if micro < 1:
        raise PayoutError(
            f"{text!r:.40} is no number of credits; expected digits with at most six decimal places, such as 1000 or "
            "12.5, above 0"
        )
    if micro > MAX_INTEGER:
        raise PayoutError(
            f"{text!r:.40} credits are too many for one entry; expected at most {grouped_credits(MAX_INTEGER)}"
        )
    return micro


@payout_app.callback()
def payout(
    context: typer.Context,
    folder: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for the files; else payouts in the state folder."),
    ] = None,
    state: State = DEFAULT_STATE,
    as_json: AsJson = False,
) -> None:
    """Begin a payout of all that is payable, or find the one that is on its way, and write its files for the bank.

    Pay it, then `payout confirm`; or `payout withdraw`. Until then the credits are on their way, and no other begins.
    """
    if context.invoked_subcommand is not None:
        return
    from coordinator.banking import ready_folder, write_files

    target = folder or state / "payouts"
    with operator_of(state) as operator:
        ready_folder(target)
        run, files = operator.pay_out()
        files_written = write_files(target, run.row.number, files)
        price = run.row.price
        text = "\n".join(
            [
                f"Payout {run.row.number} {'has begun' if run.new else 'is on its way, as before'}: "
                f"{counted(len(run.lines), 'payment')}, {price.text(run.units)} in all.",
                *(f"  {path}" for path in files_written),
                f"Pay it once, then: fedpeer coordinator payout confirm {run.row.number}",
            ]
        )
        if files.message is None:
            note(f"Only the CSV file is written: {files.why}.")
        if run.left_out:
            note(
                f"Left out, since no bank account of theirs is known here: {', '.join(run.left_out[:10])}"
                + (f" and {len(run.left_out) - 10} more" if len(run.left_out) > 10 else "")
            )
        record = {**run.record(), "new": run.new, "files": [str(path) for path in files_written]}
        Changed(record, text).show(operator, as_json)


@operating(payout_app, "confirm")
def confirm_payout(operator: "Operator", number: PayoutNumber) -> Changed:
    """Record that the bank has paid a payout."""
    run, new = operator.confirm_payout(number)
    paid = run.row.price.text(run.units)
    text = f"Payout {number} is confirmed{'' if new else ' already'}: {paid} were paid."
    return Changed({**run.record(), "new": new}, text)


@operating(payout_app, "withdraw")
def withdraw_payout(
    operator: "Operator", number: PayoutNumber, reason: Annotated[str, typer.Option(help="For the ledger.")]
) -> Changed:
    """Take a payout back that was not paid: all of it is payable again. Be sure that the bank does not have it."""
    run, new = operator.withdraw_payout(number, reason)
    text = (
        f"Payout {number} is withdrawn{'' if new else f' already, for the reason {run.row.reason!r}'}: its credits "
        "are payable again. Delete its files wherever they lie: the next payout pays the same."
    )
    return Changed({**run.record(), "new": new}, text)


@operating(payout_app, "return")
def return_payment(
    operator: "Operator",
    number: PayoutNumber,
    participant: Annotated[str, typer.Argument(help="Whose payment came back.")],
    reason: Annotated[str, typer.Option(help="For the ledger, such as the bank's.")],
) -> Changed:
    """Record that one payment of a confirmed payout came back from the bank: it is payable again."""
    run, new = operator.return_payment(number, participant, reason)
    text = (
        f"The payment of payout {number} to {participant} came back{'' if new else ', as recorded before'}: it is "
        "payable again. Give the right account before the next payout: fedpeer coordinator payout account"
    )
    return Changed({**run.record(), "new": new}, text)


@operating(payout_app, "list")
def list_payouts(operator: "Operator") -> Listed:
    """List the payouts, and who was paid what."""
    runs = operator.payout_runs()
    table = Table("payout", "began", "standing", "participant", "amount", "credits", "")
    for run in runs:
        for place, line in enumerate(run.lines):
            first = (
                (str(run.row.number), _time(run.row.began_at), run.standing) if not place else ("", "", "")
            )
            amount = run.row.price.text(line.units)
            came_back = "" if line.returned_at is None else f"came back: {printable(line.returned)}"
            table.add_row(*first, line.participant_id, amount, grouped_credits(line.micro), came_back)
    return Listed({"payouts": [run.record() for run in runs]}, table)


@operating(payout_app, "account")
def bank_account(
    operator: "Operator",
    participant: ParticipantId,
    holder: Annotated[str, typer.Option(help="Name of the account's holder, as the bank has it.")],
    iban: Annotated[str, typer.Option(help="The account's IBAN.")],
    bic: Annotated[str, typer.Option(help="The bank's BIC, where it asks for one.")] = "",
) -> Written:
    """Set where a participant is paid. Bank details stand in the database alone, never in the ledger."""
    row = operator.set_bank_account(participant, holder, iban, bic)
    return Written(vars(row), f"{participant} is paid to {row.iban} of {row.holder} from the next payout on.")


@operating(payout_app, "accounts")
def list_bank_accounts(operator: "Operator") -> Listed:
    """List where participants are paid."""
    rows = operator.bank_accounts()
    table = Table("participant", "holder", "IBAN", "BIC", "since")
    for row in rows:
        table.add_row(row.participant_id, row.holder, row.iban, row.bic, _time(row.changed_at))
    return Listed({"accounts": [vars(row) for row in rows]}, table)


def _certificates(operator: "Operator") -> tuple[dict[str, Any], list[str]]:
    """When the certificates expire, seconds since the epoch, and what is wrong with them or soon will be."""
    try:
        found = operator.certificates()
    except FolderError as error:
        return {"problem": str(error)}, [str(error)]
    warnings = list(found.warnings(datetime.now(UTC)).values())
    ends: dict[str, Any] = {name: end.timestamp() for name, end in found.ends().items()}
    return ends | ({"warnings": warnings} if warnings else {}), warnings


def _tasks_table(reports: "list[TaskOverview]") -> Group:
    from coordinator.task_text import quality_text

    counts = ("claimed", "selected", "delivered")
    table = Table("task", "state", "round", *counts, "credits paid", "credits reserved", "quality")
    for report in reports:
        row = report.row
        table.add_row(
            row.id,
            row.state,
            f"{row.round}/{row.terms.schedule.rounds}",
            *(str(len(getattr(report, each))) for each in counts),
            _paid(report),
            grouped_credits(report.escrow_micro),
            next((words for r in reversed(report.rounds) if (words := quality_text(r))), ""),
        )
    said = [Text(f"{each.row.id}: {each.row.reason}") for each in reports if each.row.reason]
    for each in reports:
        failed = (f"{name} cannot deliver: {printable(why)}" for name, why in each.failures.items())
        said += [Text(f"{each.row.id}: {text}") for text in failed]
    return Group(table, *said)


@contextmanager
def _cleaning_up() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does: what it has begun is taken away."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _status_line() -> Iterator[Callable[[str], None]]:
    """What goes on, on standard error: one line that changes at a terminal, and nothing elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status("") as status:
        yield status.update


def _facts(manifest: "Manifest") -> dict[str, Any]:
    return {
        "created": manifest.created,
        "ledger_size": manifest.ledger_size,
        "models": manifest.models,
        "database": manifest.database,
    }


def _summary(manifest: "Manifest") -> str:
    return f"{counted(manifest.ledger_size, 'ledger entry')}, {counted(manifest.models, 'model')}"


def _carried_over_text(carried: "CarriedOver") -> str:
    if not carried.beyond:
        return (
            "nothing: the copy has no entry that this log has not, as this log itself has none. Take a copy that was "
            "made after the backup: an export, the old database, or a mirror's"
        )
    names = ", ".join(carried.revoked) or "nobody more"
    again = ", ".join(carried.invite_again)
    return (
        f"revoked: {names}. The copy has {counted(carried.beyond, 'entry')} that this log had not; from "
        f"entry {carried.shared} on the two are one log only where they come to the same entries."
        + (f" Invite again, since they had enrolled with new keys: {again}." if again else "")
    )


def _warn_of_password(url: str) -> None:
    from fedpeer.audit.sql.database import parse_url

    if url and any(url in argument for argument in sys.argv) and "@" in url and parse_url(url).password:
        note(
            "The database's password stood among this command's arguments, where others can see it; give the URL by "
            "FEDPEER_DATABASE, or leave the password to PostgreSQL's password file"
        )


def _announce(addresses: dict[str, str]) -> None:
    try:
        print_json({"addresses": addresses})
        sys.stdout.flush()  # a pipe's reader waits for it
    except OSError as error:  # the reader has gone; the service goes on
        note(
            f"the addresses cannot be written: {error.strerror}; they stand in the state folder's serving.json"
        )


def _paid(report: "TaskOverview") -> str:
    return grouped_credits(sum(report.paid_micro.values()))


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
