"""A ledger in other forms: tlog-tiles, JSON lines, CSV, hledger journal.

The first two carry all that verification needs. Each is written beside its place and moved there when it is whole.

What a log holds was written by others, and exports need not be verified first. In CSV and hledger, text is escaped so
that it means nothing but itself, and can be had back:

    backslash             \\\\, and what is not printable \\xNN, \\uNNNN or \\UNNNNNNNN, as Python has it
    CSV                   a cell that a spreadsheet would take for a formula (= + - @) gets an apostrophe in front, as
                          does one that begins with an apostrophe: take one away from every cell that has one
    hledger               ; and |, which begin a comment or split a description, are written \\x3b and \\x7c
"""

import csv
import io
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO

import orjson

from fedpeer.audit.input_files import SourceError
from fedpeer.audit.sources import FORMAT, head_size
from fedpeer.terminal import shown
from mechanism.ledger.accounts import Book, Post, Reservation, Reserve, Resolve, Transfer
from mechanism.ledger.entry import Entry
from mechanism.ledger.merkle import leaf_hash, perfect_root
from mechanism.ledger.tiles import TILE_WIDTH, bundle_path, pack_bundle, tile_path
from mechanism.ledger.verify import LedgerSource
from mechanism.price import credits_text

#: hledger's name of the unit of account.
_COMMODITY = "CREDIT"

#: How a cell begins that a spreadsheet takes for a formula; and the mark before one that does, and before itself.
_FORMULA = ("=", "+", "-", "@", "'")

#: How a date begins.
_DATE = re.compile(r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])(?:T|$)")

#: Date of what stands before the first dated transition.
_NO_DATE = "1970-01-01"


def export_tiles(source: LedgerSource, folder: Path) -> None:
    """Writes the entries that the latest head covers, their tiles and all kept heads under `folder`.

    Raises:
        SourceError: the folder exists and is not empty, or cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SourceError(f"{folder} exists already; name a new folder")
    partial = folder.with_name(folder.name + ".partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        (partial / "ledger.json").write_bytes(
            _line(format=FORMAT, key=source.verification_key()).rstrip(b"\n")
        )
        (partial / "checkpoint").write_text(source.checkpoint(), newline="\n")
        with (partial / "heads").open("wb") as heads:
            for note in _heads(source):
                heads.write(_line(head=note))
        _write_tree(source, partial)
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise SourceError(f"{folder} cannot be written: {error.strerror}") from None


def export_json_lines(source: LedgerSource, path: Path) -> None:
    """Writes header, entries and heads as lines; each head stands after the last entry that it covers."""
    with replaced(new_file(path)) as file:
        file.write(_line(format=FORMAT, key=source.verification_key()))
        heads = _heads(source)
        note: str | None = next(heads)
        count = 0
        entries = _covered(source)
        while note is not None:
            size = head_size(note)
            while count < size:
                file.write(next(entries) + b"\n")
                count += 1
            file.write(_line(head=note))
            note = next(heads, None)


def export_csv(source: LedgerSource, path: Path) -> None:
    """Writes one row a transfer, amounts in micro-credits."""
    with replaced(new_file(path)) as binary, _text(binary) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ["index", "entry", "kind", "operation", "debit", "credit", "micro", "reservation", "voided_micro"]
        )
        book = Book()
        for index, data in enumerate(_covered(source)):
            entry = Entry.parse(data)
            for transfer in entry.transfers:
                book.apply(transfer)
                row = [index, entry.id, entry.kind, *_csv_row(transfer, book)]
                writer.writerow([csv_cell(value) if isinstance(value, str) else value for value in row])


def export_hledger(source: LedgerSource, path: Path) -> None:
    """Writes a journal: what leaves an account is negative, what enters it positive, so a balance is what it holds.

    Reservations are pending transactions (`!`), what is posted is cleared (`*`); a resolve undoes the one and makes
    the other. Dates are those of the task's last dated transition.
    """
    with replaced(new_file(path)) as binary, _text(binary) as file:
        file.write(f"; {_escaped(source.name)}\ncommodity {_COMMODITY} 1.000000\n")
        book = Book()
        date = _NO_DATE
        for index, data in enumerate(_covered(source)):
            entry = Entry.parse(data)
            at = entry.body.get("at")
            if isinstance(at, str) and _DATE.match(at):
                date = at[: len(_NO_DATE)]
            for transfer in entry.transfers:
                book.apply(transfer)
                for status, debit, credit, micro in _movements(transfer, book):
                    file.write(f"\n{date} {status} ({index}) {_described(entry.id)}\n")
                    file.write(f"    {debit}  {_COMMODITY} {credits_text(-micro)}\n")
                    file.write(f"    {credit}  {_COMMODITY} {credits_text(micro)}\n")


def _write_tree(source: LedgerSource, folder: Path) -> None:
    """Bundles and tiles, 256 entries at a time."""
    rows: list[list[bytes]] = []
    counts: list[int] = []

    def add(level: int, hashes: list[bytes]) -> None:
        if level == len(rows):
            rows.append([])
            counts.append(0)
        rows[level] += hashes
        if len(rows[level]) == TILE_WIDTH:
            flush(level)

    def flush(level: int) -> None:
        tile, rows[level] = rows[level], []
        _write(folder / tile_path(level, counts[level], len(tile)), b"".join(tile))
        counts[level] += 1
        if len(tile) == TILE_WIDTH:
            add(level + 1, [perfect_root(tile)])

    entries = _covered(source)
    for number, chunk in enumerate(iter(lambda: list(islice(entries, TILE_WIDTH)), [])):
        _write(folder / bundle_path(number, len(chunk)), pack_bundle(chunk))
        add(0, [leaf_hash(data) for data in chunk])
    for level in range(len(rows)):
        if rows[level]:
            flush(level)


def _covered(source: LedgerSource) -> Iterator[bytes]:
    """The entries that the latest head covers."""
    size = head_size(source.checkpoint())
    entries = source.entries()
    for index in range(size):
        data = next(entries, None)
        if data is None:
            raise SourceError(f"{source.name} ends after {index} of the {size} entries that its head covers")
        yield data


def _heads(source: LedgerSource) -> Iterator[str]:
    """Every kept head, the latest one last in any case."""
    last, note = source.checkpoint(), ""
    for note in source.heads():
        yield note
    if note != last:
        yield last


def _csv_row(transfer: Transfer, book: Book) -> list[object]:
    match transfer:
        case Post(debit, credit, micro):
            return ["post", debit, credit, micro, "", ""]
        case Reserve(name, debit, credit, micro):
            return ["reserve", debit, credit, micro, name, ""]
        case Resolve(name, micro):
            held = _held(name, book)
            return ["resolve", held.debit, held.credit, micro, name, held.micro - micro]


def _movements(transfer: Transfer, book: Book) -> list[tuple[str, str, str, int]]:
    match transfer:
        case Post(debit, credit, micro):
            return [("*", debit, credit, micro)]
        case Reserve(_, debit, credit, micro):
            return [("!", debit, credit, micro)]
        case Resolve(name, micro):
            held = _held(name, book)
            released = ("!", held.credit, held.debit, held.micro)
            return [released, ("*", held.debit, held.credit, micro)] if micro else [released]


def _held(name: str, book: Book) -> Reservation:
    held = book.reservation(name)
    if held is None:
        raise SourceError(f"there is no reservation {name}")
    return held


def _escaped(text: str) -> str:
    return shown(text.replace("\\", "\\\\"))


def csv_cell(text: str) -> str:
    """A text for a table: no control characters, and no formula for a spreadsheet."""
    escaped = _escaped(text)
    return f"'{escaped}" if escaped.lstrip().startswith(_FORMULA) else escaped


def _described(text: str) -> str:
    return _escaped(text).replace(";", "\\x3b").replace("|", "\\x7c")


def _line(**fields: str) -> bytes:
    return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS) + b"\n"


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@contextmanager
def replaced(path: Path, mode: int = 0o644) -> Iterator[IO[bytes]]:
    """A file that is whole and durable, or not there; where a link points, at its target.

    What is not a regular file (a terminal, a pipe, a device) is written to as it is.

    Raises:
        SourceError: it cannot be written.
    """
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as stream:
                yield stream
            return
        target = path.resolve()
        partial = target.with_name(target.name + ".partial")
        try:
            with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise SourceError(f"{path} cannot be written: {error.strerror}") from None


def new_file(path: Path) -> Path:
    """`path`, which must not be a regular file that exists already.

    Raises:
        SourceError: it is one; an export does not replace what may be somebody's only copy.
    """
    if path.is_file():
        raise SourceError(f"{path} exists already; name a new file")
    return path


@contextmanager
def _text(file: IO[bytes]) -> Iterator[IO[str]]:
    wrapper = io.TextIOWrapper(file, encoding="utf-8", newline="\n")
    yield wrapper
    wrapper.flush()
    wrapper.detach()
