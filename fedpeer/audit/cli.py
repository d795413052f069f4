"""`fedpeer ledger`: verify, read, prove and export a ledger, and witness its heads.

SOURCE is an exported folder, a .jsonl or database file, a database URL, or a coordinator's host:port.
"""

import hashlib
import inspect
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from enum import StrEnum
from functools import wraps
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from fedpeer.audit.export import export_csv, export_hledger, export_json_lines, export_tiles, replaced
from fedpeer.audit.input_files import (
    MAX_KEY_BYTES,
    MAX_OPENING_BYTES,
    MAX_RECEIPT_BYTES,
    NothingThereError,
    SourceError,
    is_file,
    read_bytes,
    read_lines,
    read_text,
)
from fedpeer.audit.proofs import consistency, receipt, trusted_keys
from fedpeer.audit.sources import named, open_source
from fedpeer.audit.sql.errors import DatabaseUnreachable, StorageError
from fedpeer.terminal import counted, output, shown
from mechanism.ledger.accounts import Balance, Book
from mechanism.ledger.entry import Entry
from mechanism.ledger.errors import LedgerError, SignatureError
from mechanism.ledger.key_history import KINDS, HeldKey, held_keys, key_event
from mechanism.ledger.log_keys import LogKeys
from mechanism.ledger.note import COSIGNATURE_V1, Checkpoint, Note, SigningKey, VerificationKey
from mechanism.ledger.openings import Openings, joined_openings, read_openings
from mechanism.ledger.reputation import ReputationEvents
from mechanism.ledger.tlog_proof import TlogProof
from mechanism.ledger.verify import Known, LedgerSource, Problem, Report, verify_ledger
from mechanism.ledger.witness import AddCheckpoint, check_request, cosignature
from mechanism.reputation import reputation

app = typer.Typer(no_args_is_help=True, help="Read and check a ledger, offline or from a coordinator.")

#: Exit code of "checked, and the answer is no".
_NO = 1

#: Exit code of a ledger that holds, and is older than the head that it was to be compared with.
_OLDER = 3

#: Bytes of one part of a path on the usual file systems.
_MAX_FILE_NAME = 255

#: A verification that takes longer shows its progress; entries.
_LONG = 20_000


class Format(StrEnum):
    """Forms of an export."""

    TILES = "tiles"
    JSONL = "jsonl"
    CSV = "csv"
    HLEDGER = "hledger"


Key = Annotated[
    str | None,
    typer.Option(
        "--key", envvar="FEDPEER_LOG_KEY", help="The log's verification key (name+id+key), or a file with it."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Ca = Annotated[
    Path | None, typer.Option("--ca", help="PEM of the authority that issued a coordinator's certificate.")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Speak to a coordinator without TLS.")]


@dataclass(frozen=True)
class SourceOptions:
    """SOURCE, and how it is reached."""

    source: str
    ca: Path | None = None
    insecure: bool = False
    certificate: tuple[Path, Path] | None = None

    @contextmanager
    def opened(self) -> Iterator[LedgerSource]:
        with ExitStack() as resources:
            yield open_source(
                self.source, resources, ca=self.ca, insecure=self.insecure, certificate=self.certificate
            )


def _ledger(
    source: Annotated[
        str, typer.Argument(help="Folder, .jsonl or database file, database URL, or host:port.")
    ],
    ca: Ca = None,
    insecure: Insecure = False,
    certificate: Annotated[
        Path | None,
        typer.Option("--certificate", help="PEM of your certificate, where the port asks for one."),
    ] = None,
    private_key: Annotated[Path | None, typer.Option("--private-key", help="PEM of its private key.")] = None,
) -> SourceOptions:
    if certificate is None or private_key is None:
        if certificate is not private_key:
            raise typer.BadParameter("give both or none", param_hint="--certificate, --private-key")
        return SourceOptions(source, ca, insecure)
    return SourceOptions(source, ca, insecure, (certificate, private_key))


def reads(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with the arguments of `_ledger`, SOURCE in the place of `ledger`, the options last."""
    (source, *options), own = (
        inspect.signature(function).parameters.values() for function in (_ledger, command)
    )

    @wraps(command)
    def run(**given: Any) -> None:
        how = {each.name: given.pop(each.name) for each in (source, *options)}
        command(ledger=_ledger(**how), **given)

    parameters = [source if each.name == "ledger" else each for each in own]
    run.__signature__ = inspect.Signature([*parameters, *options])  # type: ignore[attr-defined]
    return run


@app.command()
@reads
def verify(
    ledger: SourceOptions,
    key: Key = None,
    known: Annotated[
        str | None,
        typer.Option(
            "--from", help="A checkpoint or receipt seen before (a file): the ledger must not contradict it."
        ),
    ] = None,
    openings: Annotated[
        list[Path] | None,
        typer.Option(
            help="What entries commit to, as far as you have it: a file, or a folder of files named *.jsonl. A "
            "participant has its own, an auditor all."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Recompute everything that a ledger claims, as the public, a participant or an auditor.

    What the openings that are given do not cover is counted as unchecked.

    Exit 0 where all of it holds, 1 where not, 2 where a file that is named is missing or damaged, 3 where it holds and
    ends before the head of --from.
    """
    try:
        with ledger.opened() as opened:
            given = _openings(openings) if openings else None
            report = _verified(opened, _key(key), None if known is None else _file_text(known), given)
    except (NothingThereError, DatabaseUnreachable):
        raise
    except (LedgerError, StorageError) as error:
        report = Report(named(ledger.source), problems=[Problem("source", str(error))])
    if as_json:
        _print_json(report.record())
    else:
        _print_report(report)
    if not report.verified:
        raise typer.Exit(_NO)
    if report.known is Known.OLDER:
        raise typer.Exit(_OLDER)


@app.command()
@reads
def show(
    ledger: SourceOptions,
    first: Annotated[int, typer.Option("--first", min=0, help="Index of the first entry.")] = 0,
    count: Annotated[int, typer.Option("--count", min=1, help="How many entries at most.")] = 50,
    kind: Annotated[str | None, typer.Option("--kind", help="Only entries of this kind.")] = None,
    task: Annotated[str | None, typer.Option("--task", help="Only entries of this task.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print entries as JSON, one a line.")] = False,
) -> None:
    """Print entries, as they stand; nothing is verified. Exit 1 where there is none of that kind or task."""
    seen: dict[str, set[str]] = {"kind": set(), "task": set()}
    with ledger.opened() as opened:
        chosen = _chosen(opened, first, kind, task, seen)
        if (found := next(chosen, None)) is None:
            typer.echo(_none_found(first, {"kind": kind, "task": task}, seen), err=True)
            raise typer.Exit(_NO)
        chosen = chain([found], chosen)
        if as_json:
            for index, entry in islice(chosen, count):
                _print_json({"index": index, "entry": orjson.loads(entry.data)})
        else:
            table = Table("index", "kind", "id", "micro-credits", "body", box=None, pad_edge=False)
            for index, entry in islice(chosen, count):
                moved = ", ".join(f"{t.record()['micro']}" for t in entry.transfers)
                cells = (str(index), entry.kind, entry.id, moved, _shortened(entry))
                table.add_row(*(Text(shown(cell)) for cell in cells))
            output().print(table)
        if (more := next(chosen, None)) is not None:
            typer.echo(f"There are more: go on with --first {more[0]}, or raise --count {count}.", err=True)


@app.command()
@reads
def balance(
    ledger: SourceOptions,
    account: Annotated[
        str | None, typer.Argument(help="Such as payable:alice, escrow:TASK, treasury; all where omitted.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print what accounts hold, computed from the entries' transfers, in micro-credits."""
    with ledger.opened() as opened:
        book = Book()
        for data in opened.entries():
            for transfer in Entry.parse(data).transfers:
                book.apply(transfer)
    names = list(book.accounts()) if account is None else [account]
    if account is not None and account not in book.accounts():
        raise LedgerError(_no_posting(account, list(book.accounts())))
    balances = {name: book.balance(name) for name in names}
    if as_json:
        _print_json({name: _balance_record(held) for name, held in balances.items()})
        return
    table = Table(
        "account", box=None, pad_edge=False, caption="All in micro-credits, a millionth of a credit."
    )
    for column in ("holds", "debits", "credits", "debits pending", "credits pending"):
        table.add_column(column, justify="right")
    for name, held in balances.items():
        table.add_row(name, *(str(value) for value in _balance_record(held).values()))
    output().print(table)


@app.command()
@reads
def prove(
    ledger: SourceOptions,
    index: Annotated[int, typer.Argument(min=0, help="Index of the entry.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to write the receipt; standard output where omitted.")
    ] = None,
) -> None:
    """Write the receipt of an entry: a C2SP tlog-proof, which `check` verifies offline."""
    with ledger.opened() as opened:
        text = str(receipt(opened, index))
    if out is None:
        typer.echo(text, nl=False)
        return
    _write(out, text)
    typer.echo(f"the receipt of entry {index} is in {out}", err=True)


@app.command()
def check(
    receipt_file: Annotated[Path, typer.Argument(metavar="RECEIPT", help="A .tlog-proof file.")],
    key: Key = None,
    entry: Annotated[
        Path | None, typer.Option("--entry", help="The entry that it must prove; else the one it carries.")
    ] = None,
    ledger: Annotated[
        str | None, typer.Option("--ledger", help="The log, a SOURCE, where its key may have changed since.")
    ] = None,
    as_json: Json = False,
    ca: Ca = None,
    insecure: Insecure = False,
) -> None:
    """Verify a receipt offline, with the log's key alone; exit 0 where it holds, 1 where not.

    The key must be the one that signed the receipt's head. With --ledger an earlier one will do: the changes of key
    since then are read there.
    """
    trusted = _key(key)
    if trusted is None:
        raise typer.BadParameter("give the log's key, as the operator publishes it", param_hint="--key")
    record: dict[str, object] = {"receipt": str(receipt_file), "verified": False}
    try:
        proof = TlogProof.parse(_file_text(str(receipt_file)))
        keys = LogKeys(trusted)
        if ledger is not None:
            with SourceOptions(ledger, ca, insecure).opened() as source:
                keys = trusted_keys(source, trusted)
        head = keys.verify(proof, None if entry is None else read_bytes(entry, MAX_RECEIPT_BYTES))
        recorded = Entry.parse(proof.entry or read_bytes(entry or receipt_file, MAX_RECEIPT_BYTES))
        record.update(verified=True, index=proof.index, size=head.size, entry=orjson.loads(recorded.data))
        sentence = f"entry {proof.index} ({recorded.id}) is in the log {head.origin} of {head.size} entries"
    except NothingThereError:
        raise
    except LedgerError as error:
        record["problem"] = sentence = str(error)
    if as_json:
        _print_json(record)
    else:
        typer.echo(shown(sentence))
    if not record["verified"]:
        raise typer.Exit(_NO)


@app.command()
@reads
def export(
    ledger: SourceOptions,
    form: Annotated[Format, typer.Option("--format", help="tiles and jsonl can be verified again.")],
    out: Annotated[Path, typer.Option("--out", help="A new folder for tiles, a file for the others.")] = Path(
        "/dev/stdout"
    ),
) -> None:
    """Write a ledger in another form."""
    if form is Format.TILES and out == Path("/dev/stdout"):
        raise typer.BadParameter("tiles are a folder; name it", param_hint="--out")
    writers = {
        Format.TILES: export_tiles,
        Format.JSONL: export_json_lines,
        Format.CSV: export_csv,
        Format.HLEDGER: export_hledger,
    }
    with ledger.opened() as opened:
        writers[form](opened, out)


@app.command()
@reads
def keys(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A participant's id.")],
    ledger: SourceOptions,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Verify a ledger and print every key that it holds for a participant; exit 1 where it holds none or is not sound.

    Each holder of one of these keys can claim and send models in that name, so each must be the participant's own.
    """
    with ledger.opened() as opened:
        report = _sound(opened, key)
        events = [
            key_event(index, entry.data)
            for index, entry in _chosen(opened, 0)
            if index < report.size and entry.kind in KINDS
        ]
    everyone = held_keys(events)
    held = everyone.get(name, [])
    if as_json:
        _print_json({"participant": name, "key": report.key, "keys": [one.record() for one in held]})
    elif held:
        output().print(keys_table(held))
    if not held:
        near = " or ".join(map(shown, get_close_matches(name, everyone)))
        typer.echo(
            shown(f"the ledger holds no key for {name}")
            + (f"; did you mean {near}?" if near else f"; it holds keys of {counted(len(everyone), 'name')}"),
            err=True,
        )
        raise typer.Exit(_NO)


@app.command("reputation")
@reads
def ledger_reputation(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A participant's id.")],
    ledger: SourceOptions,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Verify a ledger and print a participant's standing across its tasks, with every reason; exit 1 without any."""
    events = ReputationEvents()
    with ledger.opened() as opened:
        report = _sound(opened, key)
        for index, entry in _chosen(opened, 0):
            if index < report.size and entry.kind in ReputationEvents.KINDS:
                events.feed(entry)
    found = reputation(name, events.of(name), time.time())
    if as_json:
        _print_json(found.record())
    else:
        typer.echo("\n".join(map(shown, found.lines())))
    if not events.of(name):
        raise typer.Exit(_NO)


def keys_table(held: list[HeldKey]) -> Table:
    """The keys of one name: fingerprint, where each was enrolled, and whether it still counts."""
    table = Table("fingerprint", "enrolled by entry", "standing", box=None, pad_edge=False)
    for one in held:
        standing = "counts" if one.revoked_at is None else f"revoked by entry {one.revoked_at}: {one.reason}"
        table.add_row(one.fingerprint, str(one.enrolled_at), standing)
    return table


@app.command()
@reads
def witness(
    ledger: SourceOptions,
    state: Annotated[Path, typer.Option("--state", help="Folder of the witness's key and last heads.")],
    key: Key = None,
    name: Annotated[
        str, typer.Option("--name", help="The witness's name, for its key on first use.")
    ] = "fedpeer-witness",
    as_json: Json = False,
) -> None:
    """Cosign a log's latest head where it extends the last one seen; exit 1 where it does not."""
    record: dict[str, object] = {"cosigned": False}
    try:
        with ledger.opened() as opened:
            signer = _witness_key(state, name)  # after the source: a mistake in its name leaves no folder
            record["witness"] = str(signer.verification_key)
            note, old, new = _witnessed(opened, state, _key(key), signer)
        record.update(cosigned=True, old=old, size=new.size, checkpoint=str(note))
        sentence = str(note)
    except NothingThereError:
        raise
    except LedgerError as error:
        record["problem"] = sentence = shown(f"not cosigned: {error}")
    if as_json:
        _print_json(record)
    else:
        typer.echo(sentence, nl=not record["cosigned"])
    if not record["cosigned"]:
        raise typer.Exit(_NO)


def _witnessed(
    source: LedgerSource, state: Path, trusted: VerificationKey | None, signer: SigningKey
) -> tuple[Note, int, Checkpoint]:
    """The cosigned head, the size that it extends, and the head; remembered durably before it is signed.

    A key once seen is kept: without --key the first one is trusted, and later only one that is
    announced under it.
    """
    name = (trusted or VerificationKey.parse(source.verification_key())).name
    folder = state / _file_name(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SourceError(f"the folder {folder} cannot be made: {error.strerror}") from None
    pinned = folder / "key"
    seen = os.path.lexists(pinned)
    first = VerificationKey.parse(read_text(pinned, MAX_KEY_BYTES).strip()) if seen else trusted
    note = Note.parse(source.checkpoint())
    keys = _followed(source, first, note)
    if trusted is not None and trusted not in keys.all:
        raise LedgerError(f"the log {name} has another key than the one seen first, {first}")
    last = folder / "checkpoint"
    known = keys.open(_file_text(str(last))) if os.path.lexists(last) else None
    old = 0 if known is None else known.size
    request = AddCheckpoint(old, tuple(consistency(source, old)), note)
    head = check_request(known, request, keys.at(Checkpoint.parse_text(note.text).size))
    _write(pinned, f"{keys.first}\n")
    _write(last, str(note))
    return note.with_signature(cosignature(request, signer, int(time.time()))), old, head


def _followed(source: LedgerSource, first: VerificationKey | None, note: Note) -> LogKeys:
    """The log's keys from the trusted one on; its changes are read only where that has not signed the latest head."""
    keys = LogKeys(first or VerificationKey.parse(source.verification_key()))
    try:
        keys.open(note)
    except SignatureError as error:
        keys = trusted_keys(source, first)
        if not keys.changes:
            raise LedgerError(
                f"the log {keys.first.name} now has another key than the one seen first, {keys.first}, and does not "
                f"announce it: {error}"
            ) from None
    return keys


def _witness_key(state: Path, name: str) -> SigningKey:
    path = state / "witness.key"
    if state.exists() and not state.is_dir():
        raise SourceError(f"{state} is a file; --state takes the witness's folder")
    if os.path.lexists(path):
        return SigningKey.parse(read_text(path, MAX_KEY_BYTES))
    signer = SigningKey.generate(name, COSIGNATURE_V1)
    state.mkdir(parents=True, exist_ok=True)
    _write(path, signer.secret_text() + "\n", mode=0o600)
    return signer


def _openings(paths: Sequence[Path]) -> Openings:
    """Those of all files. Raises NothingThereError where one is none, or they do not fit together: that says nothing of
    the ledger."""
    found = []
    for path in paths:
        files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not files:
            raise NothingThereError(f"{path} has no file of openings; expected names that end in .jsonl")
        for file in files:
            try:
                found.append(read_openings(read_lines(file, MAX_OPENING_BYTES)))
            except NothingThereError:
                raise
            except LedgerError as error:
                raise NothingThereError(f"{file} is no file of openings, or a damaged one: {error}") from None
    try:
        return joined_openings(found)
    except LedgerError as error:
        raise NothingThereError(f"--openings: {error}") from None


def _verified(
    source: LedgerSource, key: VerificationKey | None, known: str | None, openings: Openings | None
) -> Report:
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("verifying", total=None, visible=False)

        def advance(done: int, total: int) -> None:
            progress.update(bar, completed=done, total=total, visible=total > _LONG)

        return verify_ledger(source, key, known, openings=openings, progress=advance)


def _sound(source: LedgerSource, key: str | None) -> Report:
    """The report of a ledger that holds; ends the command where it does not."""
    report = _verified(source, _key(key), None, None)
    if not report.verified:
        _print_report(report)
        raise typer.Exit(_NO)
    return report


def _print_report(report: Report) -> None:
    counts = report.counts
    if report.verified:
        typer.echo(
            # A coordinator serves its latest head alone, which is always checked.
            f"verified: {counted(report.size, 'entry')}, {counted(max(1, report.heads), 'head')}, "
            f"{counted(counts.tasks, 'task')}, {counted(counts.statements, 'signed statement')}, "
            f"{counted(counts.verdicts, 'verdict')}, {counted(counts.degrees, 'degree')} recomputed from "
            f"evidence, {counted(counts.settlements, 'settlement')}, "
            f"{counted(counts.payments, 'payment')} of {counts.paid_micro} micro-credits"
        )
        typer.echo(f"checked as {report.level}: {_seen(report)}")
        if report.newer:
            typer.echo(shown(f"NEWER openings than this copy: {_newer(report)}"))
        if report.missing:
            typer.echo(shown(f"MISSING of your own openings: {_missing(report)}"))
        typer.echo(f"root {report.root}")
        typer.echo(
            shown(f"key  {report.key}")
            + ("" if report.pinned else "  (the source's own: compare it, or give --key)")
        )
        if report.known is Known.EXTENDED:
            typer.echo(f"it extends the head of {counted(report.known_size or 0, 'entry')} that was given")
        elif report.known is Known.OLDER:
            typer.echo(
                f"OLDER: it ends after {counted(report.size, 'entry')}, the head that was given covers "
                f"{report.known_size}. Nothing that it holds contradicts that head; verify a newer copy. Where this "
                "is the coordinator's own ledger, it was rolled back."
            )
        if len(report.keys) > 1:
            typer.echo(
                f"the log's key was changed {counted(len(report.keys) - 1, 'time')}; before: "
                + ", ".join(report.keys[:-1])
            )
        if report.unsigned:
            typer.echo(f"{report.unsigned} entries after the head are not signed yet")
        for name, state in report.open_tasks.items():
            typer.echo(shown(f"task {name} is open: {state or 'not yet open'}"))
        for name, said in report.remeasured.items():
            typer.echo(shown(f"task {name} was measured again by its auditor: {said.words}"))
        return
    typer.echo("NOT verified")
    for problem in report.problems:
        typer.echo(shown(f"{problem.place}: {problem.message}"))
    if report.holds:
        typer.echo(f"all before entry {report.holds} holds")


#: Missing openings of a task that are named one by one.
_NAMED = 5

#: What stays unchecked where an entry's opening is not at hand, by the entry's kind.
_UNSEEN = {
    "pseudonym": "whose pseudonyms are",
    "claim": "claimed degrees",
    "model": "numbers of samples",
    "evidence": "the evidence of rounds",
    "verdict": "what outcomes follow from",
    "dispute": "opened counts",
    "audit": "what audits have found",
}


def _seen(report: Report) -> str:
    """What of the commitments was checked, and what was not."""
    counts = report.counts
    opened, unchecked = sum(counts.opened.values()), counts.unchecked
    said = f"{counted(opened, 'opening')} checked"
    if not unchecked:
        return f"{said}, nothing left unchecked"
    parts = ", ".join(f"{_UNSEEN[kind]} ({count})" for kind, count in unchecked.items())
    awards = counts.reviews - counts.reviewed
    return f"{said}; unchecked: {parts}" + (f", awards of disputes ({awards})" if awards else "")


def _newer(report: Report) -> str:
    """Which openings this copy has no entries for, and what that means."""
    of = [
        f"{count} of task {name} ({report.open_tasks.get(name, 'not in this copy')})"
        for name, count in report.newer.items()
    ]
    return (
        f"{', '.join(of)}. They were checked against nothing: verify a newer copy, which has their entries, or names "
        "those that no entry commits to once their task has ended"
    )


def _missing(report: Report) -> str:
    """Which of one's own openings were not given, and what that means."""
    of = []
    for ids in report.missing.values():
        more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
        of.append(f"{', '.join(ids[:_NAMED])}{more}")
    return (
        f"{'; '.join(of)}. What these entries commit to was not checked. `fedpeer participant openings TASK` fetches "
        "them; what it does not bring is withheld, or was erased: a ledger does not tell which"
    )


def _no_posting(account: str, accounts: list[str]) -> str:
    """What to say of an account without a posting: which ones there are for this name, or which come near."""
    name = account.rpartition(":")[2]
    near = [held for held in accounts if name in held.split(":")] or get_close_matches(account, accounts)
    said = f"Nothing was ever posted to {account}."
    if not near:
        kinds = ", ".join(sorted({held.partition(":")[0] for held in accounts}))
        return f"{said} `fedpeer ledger balance SOURCE` without an account lists all; there are {kinds or 'none'}."
    return f"{said} Did you mean {' or '.join(shown(held) for held in near[:5])}?"


def _chosen(
    source: LedgerSource,
    first: int,
    kind: str | None = None,
    task: str | None = None,
    seen: dict[str, set[str]] | None = None,
) -> Iterator[tuple[int, Entry]]:
    """The entries of a kind and a task with their indices; the kinds and tasks that it comes by go to `seen`."""
    for index, data in enumerate(source.entries(first), first):
        entry = Entry.parse(data)
        statement = entry.body.get("statement")
        about = statement if isinstance(statement, dict) else entry.body
        if seen is not None:
            seen["kind"].add(entry.kind)
            seen["task"].add(str(about.get("task_id") or ""))
        if (kind is None or entry.kind == kind) and (task is None or about.get("task_id") == task):
            yield index, entry


def _none_found(first: int, wanted: dict[str, str | None], seen: dict[str, set[str]]) -> str:
    """What to say where `show` finds nothing: what there is instead."""
    start = f" from entry {first} on" if first else ""
    if not seen["kind"]:
        return f"The ledger has no entry{start}."
    asked = {name: value for name, value in wanted.items() if value is not None}
    said = " and ".join(f"{name} {value}" for name, value in asked.items())
    known = [
        f"{name}s: {', '.join(sorted(seen[name] - {''})) or 'none'}"
        for name, value in asked.items()
        if value not in seen[name]
    ]
    both = f"both are there{start}, but of different entries"
    return shown(f"There is no entry of {said}{start}; {'; '.join(known) if known else both}.")


def _shortened(entry: Entry) -> str:
    text = orjson.dumps(entry.body).decode()
    return text if len(text) <= 100 else text[:97] + "..."


def _balance_record(held: Balance) -> dict[str, int]:
    return {"holds": held.holds, **asdict(held)}


def _key(text: str | None) -> VerificationKey | None:
    """A key given as text or as a file that holds it."""
    if text is None:
        return None
    if not text.strip():
        raise NothingThereError("--key is empty; expected the log's verification key, or a file with it")
    if "+" not in text or is_file(Path(text)):
        text = _file_text(text, MAX_KEY_BYTES).strip()
    return VerificationKey.parse(text)


def _file_text(path: str, limit: int = MAX_RECEIPT_BYTES) -> str:
    return read_text(Path(path), limit)


def _file_name(origin: str) -> str:
    """A log's name as one part of a path."""
    name = "".join(c if c.isalnum() or c in "._-" else "_" for c in origin)
    if name.strip(".") and len(name.encode()) <= _MAX_FILE_NAME:
        return name
    return "log-" + hashlib.sha256(origin.encode()).hexdigest()


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    with replaced(path, mode) as file:
        file.write(text.encode())


def _print_json(record: object) -> None:
    """JSON whose strings cannot steer a terminal: orjson leaves what lies above ASCII as it is."""
    text = orjson.dumps(record).decode()
    if not text.isprintable():
        text = "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
    typer.echo(text)
