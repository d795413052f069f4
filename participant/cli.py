"""`fedpeer participant`: enrol, explain, run, and look at status, earnings, audits and the like."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar

import structlog
import typer
from rich import box
from rich.table import Table

from fedpeer.terminal import LOG_FORMATS, configure_logs, counted, output, printable, shown
from mechanism.errors import FieldError
from mechanism.ledger.accounts import Owed
from mechanism.price import credits_text
from mechanism.terms import identifier
from participant.audits import AuditStanding, audits_of, salt_for
from participant.audits import appeal as ask_again
from participant.backoff import Backoff
from participant.client import Client
from participant.config import CONFIG_FILE, TEMPLATE, ParticipantConfig, read_config
from participant.dispute import Dispute, noted_disputes, open_dispute, opening
from participant.earnings import Earned, ask_owed
from participant.effects import Effect, Steps, drive
from participant.effort import BestResponse
from participant.endpoint import Endpoint, market_endpoint
from participant.errors import ConfigurationError, DeclinedError, StateError, TransportError
from participant.identity import IdentityFolder, check_authority
from participant.journal import MARKET, Journal
from participant.progress import EXIT_INTERRUPTED, kept
from participant.records import read_declined, read_earnings, read_reports, read_spending, reading
from participant.report import TaskReport, degree_text
from participant.reputation import own_reputation
from participant.service import Service
from participant.steps import MarketSteps
from participant.sync import Participant
from participant.work import Activity

app = typer.Typer(no_args_is_help=True, help="Take part in a market: enrol, train, earn.")

ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="The participant's TOML file.")]
StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state", help="A state folder in the place of the TOML file: of a script that uses the SDK, say."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]

T = TypeVar("T")

#: How long `why` waits for a coordinator where the journal has an answer, too.
_SHORT_PATIENCE = Backoff(patience=3, first_contact=3)

#: Exit code of a task that ended without this participant: cancelled, or others were selected.
EXIT_LEFT_OUT = 4


@app.command()
def init(
    participant_id: Annotated[str, typer.Argument(help="As in the invitation.")],
    folder: Annotated[Path, typer.Option(help="Where to write the file.")] = Path(),
    market: Annotated[str, typer.Option(help="The coordinator's market address.")] = "localhost:7443",
    public: Annotated[str, typer.Option(help="Its public address, for enrolment.")] = "localhost:7444",
) -> None:
    """Write a commented participant.toml."""
    try:
        identifier("participant_id", participant_id)
    except FieldError as error:
        raise _mistake(str(error)) from None
    path = folder / CONFIG_FILE
    if path.exists():
        raise _mistake(f"{path} exists already; edit it, or choose another --folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(TEMPLATE.format(id=participant_id, market=market, public=public))
    except OSError as error:
        raise _mistake(f"{path} cannot be written ({error.strerror})") from None
    typer.echo(
        f"wrote {path}; set the task's factory in it, then: fedpeer participant enroll --config {path}"
    )


@app.command()
def enroll(
    token: Annotated[
        str,
        typer.Option(
            envvar="FEDPEER_INVITATION",
            prompt="Invitation",
            hide_input=True,
            help="The invitation; - reads it from standard input. Others see arguments: better there, by the "
            "environment, or at the prompt.",
        ),
    ],
    config: ConfigOption = Path(CONFIG_FILE),
    as_json: JsonOption = False,
) -> None:
    """Make a key and have it certified. The key never leaves the state folder."""
    settings = _settings(config)
    if token == "-":
        token = sys.stdin.readline()
    credentials = Participant.enroll(
        settings.state,
        participant_id=settings.id,
        public=_public(settings, config),
        token=token.strip(),
        authority=_authority(settings, config),
    )
    _say(
        as_json,
        {"id": credentials.participant_id, "expires": credentials.expires.isoformat()},
        f"enrolled {credentials.participant_id}; the certificate is good until {credentials.expires:%Y-%m-%d} and "
        "renewed by `run` before that",
    )


@app.command()
def run(
    config: ConfigOption = Path(CONFIG_FILE),
    once: Annotated[
        bool, typer.Option("--once", help="End after one task where the file names none.")
    ] = False,
    log_format: Annotated[
        str, typer.Option(help="text, json, or auto: json when the output is not a terminal.")
    ] = "auto",
) -> None:
    """Take part in the configured tasks until they end. SIGTERM finishes or hands back the round."""
    settings = _settings(config)
    if log_format not in LOG_FORMATS:
        raise _mistake(f"--log-format is {log_format!r}; expected one of {', '.join(LOG_FORMATS)}")
    configure_logs(log_format)
    log = structlog.get_logger().bind(participant=settings.id)
    service = Service(settings, lambda activity: _log_activity(log, activity))
    interrupted = False

    def interrupt(*_: Any) -> None:
        nonlocal interrupted
        interrupted = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        log.warning(
            f"stopping; a training in progress is handed back after {settings.service.grace_seconds:g} s. Ctrl-C again "
            "ends at once"
        )
        service.stop()

    signal.signal(signal.SIGTERM, lambda *_: service.stop())
    signal.signal(signal.SIGINT, interrupt)
    reports = service.run(once=once)
    if interrupted:
        with reading(settings.state) as (_, journal):
            typer.echo(f"fedpeer: {'stopped' if journal is None else kept(journal, settings.id)}", err=True)
        raise typer.Exit(EXIT_INTERRUPTED)
    if any(report.note for report in reports if _configured(settings, report)):
        raise typer.Exit(EXIT_LEFT_OUT)


@app.command()
def explain(config: ConfigOption = Path(CONFIG_FILE), as_json: JsonOption = False) -> None:
    """What each effort would earn in each configured task, and which is best; whether its data fit. Claims nothing."""
    settings = _settings(config)
    sys.path.insert(0, str(Path.cwd()))  # where `run` looks for a task's modules, too
    records = []
    with Participant(
        settings.state,
        settings.coordinator.market,
        insecure=settings.coordinator.insecure,
        policy=settings.policy.build(),
    ) as participant:
        for section in settings.task:
            strategy, name = section.strategy, section.data or section.factory
            task_id = section.id or participant.find_task()
            if task_id is None:
                typer.echo(f"{name}: nothing to explain, no task takes claims", err=True)
                continue
            if not isinstance(strategy, BestResponse):
                try:
                    degree = participant.check(section.spec.build(), task_id, privacy=section.own_privacy)
                except DeclinedError as error:
                    typer.echo(f"{name}: {error}", err=True)
                    continue
                typer.echo(
                    f"{name}: nothing to explain, the effort is fixed; it fits the task {task_id}, at degree "
                    f"{degree_text(degree)} without effort",
                    err=True,
                )
                continue
            explanation = participant.explain(
                section.spec.build(), task_id, strategy, privacy=section.own_privacy
            )
            if as_json:
                records.append(explanation.record())
            else:
                typer.echo(str(explanation))
    if as_json:
        _print_json({"id": settings.id, "tasks": records})


@app.command()
def status(
    config: ConfigOption = Path(CONFIG_FILE), state: StateOption = None, as_json: JsonOption = False
) -> None:
    """Where each task stands, what models so far tell of the data, which tasks were declined; asks nobody."""
    participant_id, folder = _member(config, state)
    begun = IdentityFolder(folder).journal.exists()
    reports = read_reports(folder) if begun else []
    spent, declined = (read_spending(folder), read_declined(folder)) if begun else (None, [])
    if as_json:
        _print_json(
            {
                "id": participant_id,
                "tasks": [_task_json(report) for report in reports],
                "declined": [{"task": task_id, "reason": reason} for task_id, reason in declined],
                "privacy": None if spent is None else spent.record(),
                "key_problems": list(reports[0].key_problems) if reports else [],
            }
        )
        return
    if not reports:
        typer.echo(f"{participant_id} has taken part in no task yet")
    headings = "task", "state", "effort", "claimed degree", "submitted", "missed", "paid", "note"
    table = Table(*headings, box=box.SIMPLE_HEAD)
    for report in reports:
        table.add_row(
            report.task_id,
            report.state,
            "" if report.effort is None else str(report.effort),
            "" if report.claimed_degree is None else degree_text(report.claimed_degree),
            str(sum(r.receipt is not None for r in report.rounds)),
            str(sum(r.receipt is None and bool(r.missed) for r in report.rounds)),
            credits_text(report.paid_micro),
            report.note,
        )
    if reports:
        output(highlight=True).print(table)
    if spent is not None:
        typer.echo(f"privacy spent: {spent} (by this folder; other names have their own)")
    for task_id, reason in declined:
        typer.echo(printable(f"declined {task_id}: {reason}"))
    if reports:
        for problem in reports[0].key_problems:
            typer.echo(f"WARNING: {printable(problem)}", err=True)


@app.command()
def earnings(
    config: ConfigOption = Path(CONFIG_FILE),
    state: StateOption = None,
    ask: Annotated[
        bool, typer.Option("--ask", help="Ask the coordinator what of it is payable, pending and paid out.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """What each round paid and why, with every receipt checked offline. Exit code 1 when one does not hold.

    The total counts only what a receipt proves. Awards of disputes are listed apart, as the coordinator states them;
    with --ask also what was paid out to the bank.
    """
    participant_id, folder = _member(config, state)
    earned: list[Earned] = []
    disputes: list[Dispute] = []
    if IdentityFolder(folder).journal.exists():
        earned, disputes = read_earnings(folder), noted_disputes(folder)
    owed = _owed(participant_id, folder, config, state) if ask else None
    if as_json:
        _print_json(
            {
                "id": participant_id,
                "paid_micro": sum(line.proven_micro for line in earned),
                "rounds_left_out": sum(bool(line.proof_error) for line in earned),
                "rounds": [line.record() for line in earned],
                "disputes": [dispute.record() for dispute in disputes],
                **({} if owed is None else asdict(owed)),
            }
        )
    else:
        _print_earnings(participant_id, earned)
        if owed is not None:
            typer.echo(
                f"as the coordinator states it: {credits_text(owed.payable_micro)} credits are payable, "
                f"{credits_text(owed.pending_micro)} are on their way to the bank, {credits_text(owed.paid_out_micro)} "
                "were paid out"
            )
        for dispute in disputes:
            typer.echo(f"dispute, as the coordinator states it: {dispute}")
    if any(line.proof_error for line in earned):
        raise typer.Exit(1)


@app.command()
def why(
    task_id: Annotated[str, typer.Argument(metavar="TASK", help="A task that was taken part in.")],
    round_: Annotated[
        int | None, typer.Option("--round", min=1, help="Which round; without it, the last that is settled.")
    ] = None,
    config: ConfigOption = Path(CONFIG_FILE),
    state: StateOption = None,
    market: Annotated[
        str, typer.Option(help="With --state: the market address, where it is another than the last one.")
    ] = "",
    ledger: Annotated[
        str, typer.Option(help="Read a copy of the ledger instead: a folder, a .jsonl file, a database.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Why a round paid what it paid: degrees, peers, the formula with its numbers, expected pay, penalty, stake.

    Reads the ledger's entries of the round from the coordinator, or from a copy, and computes the payment again. Exit
    code 1 where the amounts differ. Where the coordinator does not answer, it says what the journal has, and since
    when. Works while a service runs.
    """
    from participant.why import LedgerCopy, asked, stored
    from participant.why import why as explained

    participant_id, folder = _member(config, state)
    with _journal(folder, participant_id) as journal:
        with _mistaken():  # before anybody is called
            _, number = asked(task_id, round_, participant_id, journal)
        if ledger:
            from fedpeer.audit.sources import open_source  # takes its time to import

            with ExitStack() as resources, _mistaken():
                copy = LedgerCopy(open_source(ledger, resources), participant_id)
                found = drive(explained(task_id, number, participant_id, copy, journal), _asks_nobody)
        else:
            endpoint = (
                _endpoint(_settings(config)) if state is None else _endpoint_of(folder, market, journal)
            )
            kept_line = stored(task_id, number, participant_id, journal)
            try:
                found = _ask(
                    endpoint,
                    lambda steps: explained(task_id, number, participant_id, steps, journal),
                    None if kept_line is None else _SHORT_PATIENCE,
                )
            except TransportError as error:
                if kept_line is None:
                    raise
                typer.echo(
                    f"fedpeer: {error}. What follows is the journal's; the peers' degrees and the formula stand in the "
                    "ledger: name a copy of it with --ledger, or ask again",
                    err=True,
                )
                _say(as_json, kept_line.record(), str(kept_line))
                raise typer.Exit(1 if kept_line.earned.proof_error else 0) from None
    _say(as_json, found.record(), str(found))
    if found.problems:
        raise typer.Exit(1)


@app.command()
def keys(
    config: ConfigOption = Path(CONFIG_FILE),
    own: Annotated[
        list[str] | None,
        typer.Option("--own", help="Note that the key of this fingerprint is yours; may be repeated."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Every key that the log holds for this participant's name, and which are its own. Exit code 1 where one is not.

    Works while a service runs. Each holder of one of these keys can claim and send models in this name.
    """
    from participant.keys import keys_of

    settings = _settings(config)
    folder = IdentityFolder(settings.state)
    with ExitStack() as resources:
        journal = None
        if folder.journal.exists():
            journal = resources.enter_context(closing(Journal(folder.journal, writer=False)))
        client = resources.enter_context(Client(_endpoint(settings)))
        report = client.transport.run(keys_of(client.steps, journal, folder, settings.id))
        known = {key.fingerprint: key.sha256 for key in report.keys}
        if unknown := [name for name in own or () if name not in known]:
            raise _mistake(
                f"the log holds no key {', '.join(unknown)} for {settings.id}; it holds {', '.join(known)}"
            )
        for name in own or ():
            folder.add_own_key(known[name])
        if own:
            report = client.transport.run(keys_of(client.steps, journal, folder, settings.id))
    if as_json:
        _print_json(report.record())
    else:
        table = Table("fingerprint", "enrolled by entry", "standing", "own", box=box.SIMPLE_HEAD)
        for key in report.keys:
            standing = (
                "counts" if key.revoked_at is None else f"revoked by entry {key.revoked_at}: {key.reason}"
            )
            mine = "yes" if key.fingerprint in report.own else "NO"
            table.add_row(key.fingerprint, str(key.enrolled_at), printable(standing), mine)
        output(highlight=True).print(table)
        for sentence in (*report.notices, *report.problems):
            typer.echo(printable(sentence), err=True)
        if not report.proven:
            typer.echo(
                "no receipt of your own proves yet that these are all: claim in a task first", err=True
            )
    if report.problems:
        raise typer.Exit(1)


@app.command()
def dispute(
    task_id: Annotated[
        str, typer.Argument(metavar="TASK", help="A task that was claimed from this state folder.")
    ],
    config: ConfigOption = Path(CONFIG_FILE),
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Open the counts behind a claim to the coordinator, to be paid as claimed where the evidence agrees.

    Works while a service runs. Repeat it to see how the dispute stands.
    """
    settings = _settings(config)
    with _journal(settings.state, settings.id) as journal:
        with _mistaken():
            opening(task_id, journal)
        if not yes:
            if as_json or not sys.stdin.isatty():
                raise _mistake("nobody can be asked here; give --yes to open the counts")
            typer.confirm(
                f"The coordinator and the auditor will learn the counts of {settings.id} in {task_id}. Open them?",
                abort=True,
                err=True,
            )
        found = _ask(_endpoint(settings), lambda steps: open_dispute(task_id, steps, journal))
    _say(as_json, {"id": settings.id, **found.record()}, str(found))


@app.command()
def openings(
    task_id: Annotated[str, typer.Argument(metavar="TASK", help="A task that you take or took part in.")],
    config: ConfigOption = Path(CONFIG_FILE),
    out: Annotated[
        Path | None, typer.Option(help="The file to write; TASK.openings.jsonl where it is left out.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch what the ledger only commits to about you: your measurements, sentences and figures.

    Then: fedpeer ledger verify SOURCE --openings FILE. It holds them against the ledger's commitments, and recomputes
    your degree and your verdicts in tasks that have ended, when the rounds' evidence comes with them.
    """
    from participant.openings import fetch_openings

    settings, path = _settings(config), out or Path(f"{task_id}.openings.jsonl")
    found = _ask(_endpoint(settings), lambda steps: fetch_openings(task_id, settings.id, steps))
    try:
        # It tells what the ledger keeps private.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.writelines(line + b"\n" for line in found.lines())
    except OSError as error:
        raise _mistake(f"{path} cannot be written ({error.strerror}); name another with --out") from None
    rounds = sum(name.endswith("/evidence") for name in found.by_id)
    later = "" if rounds else "; the rounds' evidence comes with them when the task has ended"
    _say(
        as_json,
        {"id": settings.id, "file": str(path), "openings": len(found.by_id), "evidence": rounds},
        f"wrote {counted(len(found.by_id), 'opening')} to {path}{later}",
    )


def audits(
    task_id: Annotated[str, typer.Argument(metavar="TASK", help="A task whose terms have audits.")],
    config: ConfigOption = Path(CONFIG_FILE),
    salt: Annotated[
        bool,
        typer.Option("--salt", help="Print the salt of your samples' commitment, for the auditor on site."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how the audits of your submissions stand. Works while a service runs."""
    settings = _settings(config)
    if salt:
        key = IdentityFolder(settings.state).credentials().key
        made = _ask(_endpoint(settings), lambda steps: salt_for(task_id, steps, key, settings.id))
        typer.echo(made.hex())
        return
    found = _ask(_endpoint(settings), lambda steps: audits_of(task_id, steps))
    _show_audits(settings.id, found, as_json)


@app.command()
def reputation(config: ConfigOption = Path(CONFIG_FILE), as_json: JsonOption = False) -> None:
    """Show what the operator sees of your past across tasks, and why. No payment follows from it."""
    settings = _settings(config)
    found = _ask(_endpoint(settings), lambda steps: own_reputation(settings.id, steps))
    _say(as_json, found.record(), "\n".join(map(shown, found.lines())))


@app.command()
def appeal(
    task_id: Annotated[str, typer.Argument(metavar="TASK")],
    round_: Annotated[int, typer.Argument(metavar="ROUND", min=1)],
    reason: Annotated[str, typer.Option(help="A sentence. It stands in the ledger, for everybody.")],
    config: ConfigOption = Path(CONFIG_FILE),
    as_json: JsonOption = False,
) -> None:
    """Ask for a second audit after one that failed. Repeat it to see how it stands."""
    settings = _settings(config)
    found = _ask(_endpoint(settings), lambda steps: ask_again(task_id, round_, reason, steps))
    _show_audits(settings.id, found, as_json)


def _show_audits(name: str, found: Sequence[AuditStanding], as_json: bool) -> None:
    if found or as_json:
        record = {"id": name, "audits": [each.record() for each in found]}
        _say(as_json, record, "\n".join(map(str, found)))
    else:
        typer.echo(f"No submission of {name} was drawn so far.", err=True)


@app.command()
def console(
    url: Annotated[
        str, typer.Argument(help="Where the market's console is: https://market.example.org:7445, say.")
    ],
    config: ConfigOption = Path(CONFIG_FILE),
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a link that signs this participant in to the market's web console, once. Asks nobody."""
    import time

    from fedpeer.protocol.console_link import LINK_SECONDS, console_place, sign_in_token

    participant_id, folder = _member(config, state)
    place = console_place(url)
    if place is None:
        raise _mistake(
            f"{url!r:.300} is not a console's address; expected such as https://market.example.org:7445"
        )
    base, host = place
    key = IdentityFolder(folder).credentials().key
    link = f"{base}/sign-in/?token={sign_in_token(participant_id, key, host, time.time())}"
    said = f"{link}\nIt signs {participant_id} in once, within {LINK_SECONDS // 60} minutes."
    _say(as_json, {"id": participant_id, "link": link, "seconds": LINK_SECONDS}, said)


def _owed(participant_id: str, folder: Path, config: Path, state: Path | None) -> Owed:
    """What the coordinator says is payable, pending and paid out."""
    if state is None:
        endpoint = _endpoint(_settings(config))
    else:
        with _journal(folder, participant_id) as journal:
            endpoint = _endpoint_of(folder, "", journal)
    return _ask(endpoint, lambda steps: ask_owed(steps, participant_id))


def _print_earnings(participant_id: str, earned: list[Earned]) -> None:
    if not earned:
        typer.echo(f"{participant_id} has earned nothing yet")
        return
    headings = "task", "round", "paid", "expected", "claimed", "scored by", "peers", "receipt", "why"
    table = Table(*headings, box=box.SIMPLE_HEAD)
    for line in earned:
        s = line.settlement
        if s is None:
            table.add_row(line.task_id, str(line.round), "", "", "", "", "", line.proof_error, line.why)
            continue
        table.add_row(
            line.task_id,
            str(line.round),
            credits_text(s.paid_micro),
            credits_text(s.expected_micro),
            "" if s.claimed_degree is None else f"{float(s.claimed_degree):.4f}",
            "not scored" if s.verified_degree is None else f"{float(s.verified_degree):.4f}",
            ", ".join(s.peers),
            line.proof_error or "holds",
            line.why,
        )
    output(highlight=True).print(table)
    proven = [line for line in earned if not line.proof_error]
    total = sum(line.proven_micro for line in proven)
    typer.echo(
        f"{participant_id} has earned {credits_text(total)} credits in {counted(len(proven), 'round')}"
    )
    if left := len(earned) - len(proven):
        said = sum(0 if line.settlement is None else line.settlement.paid_micro for line in earned) - total
        typer.echo(
            f"left out: {counted(left, 'round')} whose receipt does not hold, said to have paid {credits_text(said)} "
            "credits; `fedpeer participant run` fetches them again while the coordinator knows the task"
        )


def _settings(path: Path) -> ParticipantConfig:
    try:
        settings = read_config(path)
        enrolled = IdentityFolder(settings.state).enrolled_id()
    except ConfigurationError as error:
        raise _mistake(str(error)) from None
    if enrolled not in (None, settings.id):
        raise _mistake(
            f"{path}: id is {settings.id!r}, and the state folder {settings.state} is {enrolled}'s; name {enrolled}'s "
            "id, or another folder"
        )
    return settings


def _endpoint(settings: ParticipantConfig) -> Endpoint:
    """The market, for a call while a service runs, which holds the state folder."""
    return market_endpoint(
        IdentityFolder(settings.state).credentials(),
        settings.coordinator.market,
        settings.coordinator.insecure,
    )


def _endpoint_of(state: Path, market: str, journal: Journal) -> Endpoint:
    """The same without a TOML file: the market that the state folder was last used with."""
    kind, _, last = (journal.meta(MARKET) or "").partition(" ")
    if not (market or last):
        raise _mistake(f"{state} does not say which market it belongs to; give --market host:port")
    return market_endpoint(IdentityFolder(state).credentials(), market or last, insecure=kind == "plain")


def _public(settings: ParticipantConfig, path: Path) -> str:
    if not settings.coordinator.public:
        raise _mistake(f"{path}: missing key coordinator.public; enrolment goes to the public port")
    return settings.coordinator.public


def _authority(settings: ParticipantConfig, path: Path) -> bytes | None:
    if settings.coordinator.insecure:
        return None
    if settings.coordinator.authority is None:
        raise _mistake(
            f"{path}: missing key coordinator.authority; the operator hands the authority's certificate out "
            "with the invitation"
        )
    named = settings.coordinator.authority
    try:
        pem = named.read_bytes()
    except OSError as error:
        raise _mistake(f"{named} cannot be read ({error.strerror})") from None
    check_authority(pem, f"{named}, named by coordinator.authority in {path},", "ask the operator for it")
    return pem


@contextmanager
def _journal(state: Path, participant_id: str) -> Iterator[Journal]:
    """The journal of a state folder, to read from."""
    path = IdentityFolder(state).journal
    if not path.exists():
        raise _mistake(f"{participant_id} has taken part in no task yet")
    with closing(Journal(path, writer=False)) as journal:
        yield journal


def _ask(endpoint: Endpoint, steps: Callable[[MarketSteps], Steps[T]], patience: Backoff | None = None) -> T:
    """What the coordinator answers, over a connection of its own."""
    with Client(endpoint, patience) as client:
        answer: T = client.transport.run(steps(client.steps))
        return answer


def _member(config: Path, state: Path | None) -> tuple[str, Path]:
    """The participant that is meant, and its state folder."""
    if state is None:
        if not config.exists():
            raise _mistake(
                f"{config} is not there; name a participant's TOML file with --config, or its state folder with --state"
            )
        settings = _settings(config)
        return settings.id, settings.state
    return IdentityFolder(state).credentials().participant_id, state


def _asks_nobody(effect: Effect) -> Any:
    raise AssertionError(f"{effect} needs a coordinator")


def _task_json(report: TaskReport) -> dict[str, Any]:
    return {
        "task": report.task_id,
        "state": report.state,
        "effort": None if report.effort is None else str(report.effort),
        "claimed_degree": None if report.claimed_degree is None else str(report.claimed_degree),
        "paid_micro": report.paid_micro,
        "note": report.note,
        "rounds": [
            {
                "round": line.number,
                "submitted": line.receipt is not None,
                "late": line.receipt is not None and line.receipt.late,
                "ledger_index": None if line.receipt is None else line.receipt.ledger_index,
                "missed": line.missed,
                "paid_micro": None if line.settlement is None else line.settlement.paid_micro,
                "metrics": dict(line.metrics),
            }
            for line in report.rounds
        ],
    }


def _log_activity(log: Any, activity: Activity) -> None:
    level = (
        log.warning if activity.kind == "missed" else log.debug if activity.kind == "progress" else log.info
    )
    # A task may call its figures what it likes; ours come last and win.
    fields = {**activity.figures, "kind": activity.kind, "task": activity.task_id, "round": activity.round}
    level(activity.text, **{name: value for name, value in fields.items() if name != "event"})


def _configured(settings: ParticipantConfig, report: TaskReport) -> bool:
    return report.task_id in {section.id for section in settings.task}


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")


def _say(as_json: bool, record: Any, text: str) -> None:
    """A result, as JSON or for people."""
    _print_json(record) if as_json else typer.echo(printable(text))


@contextmanager
def _mistaken() -> Iterator[None]:
    """What the state folder does not know is a mistake in the arguments."""
    try:
        yield
    except StateError as error:
        raise _mistake(str(error)) from None


def _mistake(text: str) -> typer.Exit:
    """A user's mistake: one sentence on standard error, exit code 2."""
    typer.echo(f"fedpeer: {text}", err=True)
    return typer.Exit(2)
