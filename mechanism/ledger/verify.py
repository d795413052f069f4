"""Verification of a whole ledger: key, heads, leaves, tree, stored tables, and the replay of what the entries say.

One pass over the entries, in memory that grows with open tasks and accounts alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Generic, NoReturn, Protocol, TypeVar

from mechanism.canonical import Json
from mechanism.ledger.accounts import Balance, Post, Reservation, Reserve, Transfer
from mechanism.ledger.entry import Entry
from mechanism.ledger.errors import EntryError, LedgerError
from mechanism.ledger.log_keys import KeyChange, LogKeys, key_change
from mechanism.ledger.merkle import HASH_BYTES, leaf_hash
from mechanism.ledger.note import Checkpoint, Note, VerificationKey
from mechanism.ledger.openings import Openings
from mechanism.ledger.replay import Counts, Replay, ReplayError
from mechanism.ledger.tiles import TILE_WIDTH, GrowingTree, split_hashes, tiles_of
from mechanism.ledger.tlog_proof import TlogProof
from mechanism.statements import RemeasurementStatement

#: As whom a ledger is verified without any openings.
PUBLIC = "public"

#: Places of what contradicts a head, or a receipt, that was seen before.
_KNOWN, _RECEIPT = "known checkpoint", "receipt"

#: Bytes and number of entries that are read after the first wrong one, which show whether an entry or a head was
#: altered. The maker of the ledger says how many there are, and may have no end of them.
MAX_AFTER_WRONG_BYTES, MAX_AFTER_WRONG_ENTRIES = 1 << 28, 1 << 17

#: A row of the stored transfers: entry index, position, operation, debit, credit, micro, reservation, held.
TransferRow = tuple[int, int, str, str, str, int, str | None, int]


#: A row of the ids, and one of the key history: number, index of the entry, digest after it, the entry, the fingerprint
#: of its key.
IdRow = tuple[str, int]
KeyRow = tuple[int, int, bytes, bytes, str]
T = TypeVar("T")


class StoredTables(Protocol):
    """What a database keeps besides the log, to be compared with what the log gives."""

    def size(self) -> int: ...

    def transfers(self) -> Iterator[TransferRow]:
        """In order of entry and position."""

    def balances(self) -> Mapping[str, Balance]: ...

    def totals(self) -> Balance: ...

    def ids(self) -> Iterator[IdRow]:
        """In order of the index."""

    def tiles(self) -> int:
        """How many tiles are stored."""

    def keys(self) -> Iterator[KeyRow]:
        """The key history."""


class LedgerSource(Protocol):
    """Where a ledger is read from. Its errors are LedgerError or of the storage, one sentence each."""

    name: str

    def verification_key(self) -> str:
        """The key under which the log's first heads were signed; changes of it stand in the log."""

    def checkpoint(self) -> str:
        """The latest signed head."""

    def heads(self) -> Iterator[str]:
        """Every signed head that is kept, by size; the latest is the last."""

    def entries(self, first: int = 0) -> Iterator[bytes]:
        """All entries from `first` on, in order."""

    def tile(self, level: int, index: int, width: int) -> bytes | None:
        """A stored tile; None where this source keeps none."""

    def tables(self) -> StoredTables | None: ...


class Known(StrEnum):
    """How a ledger stands to a head that was seen before.

    EXTENDED: it has all of that head's entries. OLDER: it ends before them, and contradicts nothing that is known of
    them. CONTRADICTED: it has others.
    """

    EXTENDED = "extended"
    OLDER = "older"
    CONTRADICTED = "contradicted"


@dataclass(frozen=True)
class Problem:
    """One thing that does not hold: where, what, and the entry's index where it is an entry."""

    place: str
    message: str
    index: int | None = None


@dataclass
class Report:
    """What a verification found.

    Attributes:
        source: what was verified.
        key: the log's present key; `pinned` where the caller gave one that leads there, so that it was not taken
            from the source.
        keys: every key that the log has had, oldest first.
        size, root: of the signed head.
        unsigned: entries after it that no head covers yet.
        known, known_size: how it stands to the head that the caller gave, and what that covers; None without one.
        problems: what does not hold, the first bad entry first; empty where all holds.
        level: as whom it was verified: "public", "participant NAME" or "auditor" (`mechanism.ledger.openings`). What
            that does not see is counted in `counts.unchecked`.
        newer: how many openings are of entries that it does not have and may have later, by task: of those that are
            open in it, and of those that it does not know. Nothing distinguishes them from openings that no
            entry commits to before their task has ended.
        missing: entries about the participant whose openings were given, without theirs, by task
            (`mechanism.ledger.replay.Replay.missing`): it was not given them, or they were erased.
        counts: what was checked.
        balances: of every account, recomputed.
        open_tasks: tasks that have not ended, and their states.
        remeasured: what auditors have said last of tasks that they measured again.
    """

    source: str
    key: str = ""
    pinned: bool = False
    keys: list[str] = field(default_factory=list)
    size: int = 0
    root: str = ""
    heads: int = 0
    unsigned: int = 0
    known: Known | None = None
    known_size: int | None = None
    problems: list[Problem] = field(default_factory=list)
    level: str = PUBLIC
    newer: dict[str, int] = field(default_factory=dict)
    missing: dict[str, list[str]] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    balances: dict[str, Balance] = field(default_factory=dict)
    open_tasks: dict[str, str] = field(default_factory=dict)
    remeasured: dict[str, RemeasurementStatement] = field(default_factory=dict)

    @property
    def verified(self) -> bool:
        return not self.problems

    @property
    def holds(self) -> int | None:
        """Entries, from the first one on, of which nothing is wrong; None where a problem is not of one entry, such as
        a head that its entries do not give: then nothing can be said of any.
        """
        wrong = [problem.index for problem in self.problems if problem.index is not None]
        return min(wrong, default=self.counts.entries) if len(wrong) == len(self.problems) else None

    def record(self) -> dict[str, Json]:
        """The report as JSON."""
        plain = (
            "source",
            "verified",
            "key",
            "keys",
            "size",
            "root",
            "heads",
            "unsigned",
            "known",
            "known_size",
        )
        more = ("holds", "level", "newer", "missing", "open_tasks")
        return {
            **{name: getattr(self, name) for name in plain + more},
            "key_pinned": self.pinned,
            "problems": [asdict(problem) for problem in self.problems],
            "checked": asdict(self.counts),
            "unchecked": self.counts.unchecked,
            "balances": {name: asdict(balance) for name, balance in self.balances.items()},
            "remeasured": {
                name: {**said.record(), "outcome": said.outcome} for name, said in self.remeasured.items()
            },
        }


def verify_ledger(
    source: LedgerSource,
    key: VerificationKey | None = None,
    known: str | None = None,
    *,
    openings: Openings | None = None,
    check_statements: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Verifies all of a ledger.

    Args:
        source: where it is.
        key: a key that the log has or had, from elsewhere. Without it the source's own is taken, which proves
            consistency alone.
        known: a head seen before, as a note, or a receipt, which has a head and an entry: the ledger must not
            contradict them. Where it ends before them, `Report.known` says so.
        openings: what entries commit to, as far as the caller has it; each must be that of an entry, and those of a
            participant about it, or about nobody alone.
        check_statements: whether to check participants' signatures.
        progress: called with (entries done, entries in all) now and then.
    """
    report = Report(source.name)
    replay = Replay(check_statements)
    if openings is not None:
        replay = Replay(check_statements, openings.by_id, openings.participant)
        report.level = openings.level
    verification = _Verification(source, report, replay)
    try:
        verification.open_heads(key, known)
        verification.read_entries(progress)
        if openings is not None:
            verification.compare_reader(openings)
        verification.compare_tables()
    except _Stop:
        pass
    verification.summarise()
    return report


class _Stop(Exception):
    pass


class _Rows(Generic[T]):
    """The rows of a stored table, read beside what the log gives, up to the first that is another."""

    def __init__(self, rows: Iterator[T] | None = None) -> None:
        self._rows = rows

    def next(self) -> T | None:
        """The next row; None at the end, and where it is read no further."""
        return None if self._rows is None else next(self._rows, None)

    def other(self, expected: Sequence[T]) -> tuple[int, str] | None:
        """Where the next rows are first others than `expected`, and what stands there, in words; None where they are
        not, or it is read no further."""
        if self._rows is None:
            return None
        found: list[T | None] = list(islice(self._rows, len(expected)))
        if found == expected:
            return None
        self._rows = None
        found += [None] * (len(expected) - len(found))
        place = next(i for i, wanted in enumerate(expected) if found[i] != wanted)
        return place, f"{found[place]!r:.200}"


class _Verification:
    def __init__(self, source: LedgerSource, report: Report, replay: Replay) -> None:
        self._source = source
        self._report = report
        self._replay, self._sound = replay, True
        self._tree = GrowingTree()
        self._differing: tuple[int, str] | None = None
        self._tables: StoredTables | None = None
        self._rows, self._id_rows, self._key_rows = _Rows[TransferRow](), _Rows[IdRow](), _Rows[KeyRow]()
        self._receipt: TlogProof | None = None
        self._upcoming: tuple[Checkpoint, Note] | None = None
        self._keys = 0, replay.key_history

    # Keys and heads

    def open_heads(self, key: VerificationKey | None, known: str | None) -> None:
        report = self._report
        try:
            own = VerificationKey.parse(self._source.verification_key())
        except LedgerError as error:
            self._stop("key", str(error))
        if key is not None and own.name != key.name:
            self._stop("key", f"the ledger's key is {own}; the trusted key is {key}")
        self._log_keys, self._trusted, report.pinned = LogKeys(own), key, key is not None
        report.key, report.keys = str(own), [str(own)]
        self._handed_over: set[KeyChange] = set()
        try:
            self._head, note = self._read_head(self._source.checkpoint())
        except LedgerError as error:
            self._stop("checkpoint", str(error))
        report.size, report.root = self._head.size, self._head.root.hex()
        self._milestones: list[tuple[Checkpoint, Note, str]] = [(self._head, note, "checkpoint")]
        if known is not None:
            try:
                text = known
                if TlogProof.begins(known):
                    self._receipt = TlogProof.parse(known)
                    self._receipt.included()
                    text = str(self._receipt.checkpoint)
                old, note = self._read_head(text)
            except LedgerError as error:
                self._stop(_KNOWN, str(error))
            report.known_size = old.size
            self._milestones.append((old, note, _KNOWN))
        self._heads = self._source.heads()
        self._next_head()

    def _read_head(self, text: str) -> tuple[Checkpoint, Note]:
        """A head of this log. Its signature is checked when its size is reached, for only then is it known whose it
        must be; where the log's first key has signed it, it is checked here.
        """
        note, first = Note.parse(text), self._log_keys.first
        head = Checkpoint.parse_text(note.text)
        if head.origin != first.name or any(s.key_id == first.key_id for s in note.signatures):
            Checkpoint.open(note, first)
        return head, note

    def _check_signed(self, head: Checkpoint, note: Note, place: str) -> None:
        try:
            Checkpoint.open(note, self._log_keys.at(head.size))
            for change in self._log_keys.changes:
                if change.size == head.size:
                    Checkpoint.open(note, change.key)
                    self._handed_over.add(change)
        except LedgerError as error:
            self._problem(place, str(error))

    def _check_keys(self) -> None:
        """Every change of the key under a head of both, and the trusted key one of them."""
        report = self._report
        for change in self._log_keys.changes:
            if change not in self._handed_over:
                message = (
                    f"it announces the key {change.key}, and no kept head of {change.size} entries is signed both by "
                    "that and by the key before it"
                )
                self._problem(f"entry {change.index}", message, change.index)
        report.keys = [str(key) for key in self._log_keys.all]
        report.key = report.keys[-1]
        if self._trusted is not None and self._trusted not in self._log_keys.all:
            had = ", ".join(report.keys)
            self._problem("key", f"the ledger's key is {had}; the trusted key is {self._trusted}")

    def _note_changes(self, first: int, chunk: list[bytes]) -> None:
        for index, data in enumerate(chunk, first):
            try:
                change = key_change(index, data)
                if change is not None:
                    self._log_keys = self._log_keys.changed(change)
            except LedgerError:
                pass  # the replay says what is wrong with the entry, and heads stay under the key before it

    def _next_head(self) -> None:
        """Opens the next kept head, so that its root is compared when its size is reached."""
        previous, self._upcoming = None if self._upcoming is None else self._upcoming[0], None
        after = "first head" if previous is None else f"head after that of {previous.size}"
        try:
            note = next(self._heads, None)
        except LedgerError as error:
            self._stop(after, str(error))
        if note is None:
            if previous is not None and previous != self._head:
                self._problem(f"head of {previous.size}", "the last kept head is not the checkpoint")
            return
        try:
            head, parsed = self._read_head(note)
        except LedgerError as error:
            self._stop(after, str(error))
        if previous is not None and head.size <= previous.size:
            self._stop(f"head of {head.size}", f"it is kept after the head of {previous.size}")
        self._report.heads += 1
        self._upcoming = head, parsed

    # Entries and tree

    def read_entries(self, progress: Callable[[int, int], None] | None) -> None:
        self._tables = self._source.tables()
        if self._tables is not None:
            self._rows, self._id_rows = _Rows(self._tables.transfers()), _Rows(self._tables.ids())
            self._key_rows = _Rows(self._tables.keys())
        self._compare_heads()
        entries = self._source.entries()
        try:
            wrong = entries_after = 0
            while chunk := list(islice(entries, TILE_WIDTH)):
                self._take(chunk)
                if not self._sound:
                    wrong += sum(map(len, chunk))
                    entries_after += len(chunk)
                    if wrong > MAX_AFTER_WRONG_BYTES or entries_after > MAX_AFTER_WRONG_ENTRIES:
                        self._stop(
                            "entries", f"those from {self._tree.size} on were not read: enough is wrong"
                        )
                if progress is not None:
                    progress(self._tree.size, max(self._head.size, self._tree.size))
        except LedgerError as error:
            self._stop(f"entry {self._tree.size}", str(error), self._tree.size)
        size = self._tree.size
        if size < self._head.size:
            message = f"the ledger ends after {size} of the {self._head.size} entries that its head covers"
            self._problem(f"entry {size}", message, size)
        self._report.unsigned = max(0, size - self._head.size)
        for head, note, place in self._milestones:
            if place == _KNOWN and head.size > size:  # by the last key that this ledger knows
                self._check_signed(head, note, place)
        self._check_keys()
        self._compare_partial_tiles()
        if self._sound and size >= self._head.size:
            try:
                self._replay.finish()
            except ReplayError as error:
                self._problem(f"entry {error.index} ({error.entry_id})", error.reason, error.index)
            never, newer = self._replay.unmet()
            for name in never:
                self._problem(f"opening of {name}", "the ledger has no entry that commits to it")
            self._report.newer = newer

    def compare_reader(self, openings: Openings) -> None:
        """That the openings can be those of whom they say they are."""
        if not self._sound:
            return
        name, committing = openings.participant, sum(self._replay.counts.commitments.values())
        if name is not None and not self._replay.knows(name):
            self._problem(
                "openings", f"they are said to be those of {name}, who never enrolled in this ledger"
            )
        if name is None and not openings.by_id and committing:
            message = f"they are said to be all, and there are none; {committing} entries commit to one"
            self._problem("openings", message)
        self._report.missing = self._replay.missing()

    def _take(self, chunk: list[bytes]) -> None:
        first = self._tree.size
        leaves = [leaf_hash(item) for item in chunk]
        self._note_changes(first, chunk)
        self._extend(leaves)
        if self._receipt is not None and first <= self._receipt.index < first + len(chunk):
            found = chunk[self._receipt.index - first]
            if found != self._receipt.entry:
                message = _contradiction(self._receipt.entry, found)
                self._problem(_RECEIPT, message, self._receipt.index)
        taken: list[Entry] = []
        try:
            for data in chunk if self._sound else ():
                taken.append(self._replay.feed(data))
                if self._replay.key_history != self._keys[1] and self._tables is not None:
                    self._compare_key(first + len(taken) - 1, data, taken[-1])
        except ReplayError as error:
            self._problem(f"entry {error.index} ({error.entry_id})", error.reason, error.index)
            self._sound = False
        if self._tables is not None:
            self._compare_stored(first, taken)

    def _extend(self, leaves: list[bytes]) -> None:
        """Grows the tree, compares the tiles that become whole, and stops at every head on the way to compare roots."""
        start = 0
        while start < len(leaves):
            passed = start - self._tree.size
            stops = [head.size for head, _, _ in self._milestones if head.size > self._tree.size]
            if self._upcoming is not None:
                stops.append(self._upcoming[0].size)
            end = min([len(leaves), *(passed + stop for stop in stops)])
            for (level, index), tile in self._tree.extend(leaves[start:end]):
                self._compare_tile(level, index, tile)
            start = end
            self._compare_heads()

    def _compare_heads(self) -> None:
        size = self._tree.size
        for head, note, place in self._milestones:
            if head.size != size:
                continue
            self._check_signed(head, note, place)
            if head.root != self._tree.root():
                about = "that of the head that was given" if place == _KNOWN else "the signed one"
                self._problem(
                    place, f"the root of the first {size} entries is not {about}: a fork, or altered"
                )
        while self._upcoming is not None and self._upcoming[0].size <= size:
            head, note = self._upcoming
            self._check_signed(head, note, f"head of {head.size}")
            if head.size < size or head.root != self._tree.root():
                self._problem(f"head of {head.size}", "the entries do not give its root")
            self._next_head()

    def _compare_partial_tiles(self) -> None:
        for (level, index), row in self._tree.edge():
            self._compare_tile(level, index, row)
        if self._tables is not None:
            stored, expected = self._tables.tiles(), sum(1 for _ in tiles_of(self._tree.size))
            if stored != expected:
                self._problem(
                    "tiles", f"{stored} tiles are stored; {self._tree.size} entries make {expected}"
                )

    def _compare_tile(self, level: int, index: int, hashes: list[bytes]) -> None:
        try:
            stored = self._source.tile(level, index, len(hashes))
        except LedgerError as error:
            self._problem(f"tile {level}/{index}", str(error))
            return
        if stored is None or stored == b"".join(hashes):
            return
        place = f"tile {level}/{index}"
        if len(stored) != len(hashes) * HASH_BYTES:
            self._problem(
                place, f"it holds {len(stored)} bytes; expected {len(hashes)} hashes of {HASH_BYTES}"
            )
            return
        offset = next(i for i, (a, b) in enumerate(zip(split_hashes(stored), hashes, strict=True)) if a != b)
        if level == 0 and self._differing is None:
            self._differing = (index * TILE_WIDTH + offset, place)
        elif level > 0:
            self._problem(place, f"its hash {offset} is not that of the entries below it")

    # Tables of a database

    def _compare_key(self, index: int, data: bytes, entry: Entry) -> None:
        number, history = self._keys[0], self._replay.key_history
        self._keys = number + 1, history
        if other := self._key_rows.other([(number, index, history, data, entry.id.rpartition("/")[2])]):
            message = f"entry {index} makes row {number}; the database says {other[1]}"
            self._problem("table ledger_keys", message)

    def _compare_stored(self, first: int, entries: Sequence[Entry]) -> None:
        """The rows of entries that have been replayed."""
        if other := self._id_rows.other([(entry.id, index) for index, entry in enumerate(entries, first)]):
            index, found = first + other[0], other[1]
            message = f"entry {index} has the id {entries[other[0]].id!r}; the database says {found}"
            self._problem("table ledger_ids", message)
        reservation = self._replay.book.reservation
        expected = [
            _row(index, position, transfer, reservation)
            for index, entry in enumerate(entries, first)
            for position, transfer in enumerate(entry.transfers)
        ]
        if other := self._rows.other(expected):
            row, found = expected[other[0]], other[1]
            message = f"the database holds {found}; the entry gives {row!r:.200}"
            place = f"transfers of entry {row[0]} ({entries[row[0] - first].id})"
            self._problem(place, message, row[0])

    def compare_tables(self) -> None:
        tables, book = self._tables, self._replay.book
        if tables is None or not self._sound:
            return
        if (extra := self._rows.next()) is not None:
            message = "the database holds a transfer that no entry orders"
            self._problem(f"transfers of entry {extra[0]}", message)
        if tables.size() != self._tree.size:
            message = f"it says {tables.size()} entries; there are {self._tree.size}"
            self._problem("table ledger_log", message)
        stored = tables.balances()
        compared = {f"account {name}": (stored.get(name), book.balance(name)) for name in book.accounts()}
        compared |= {f"account {name}": (stored[name], book.balance(name)) for name in sorted(stored)}
        compared["table ledger_totals"] = (tables.totals(), book.totals())
        for place, (kept, computed) in compared.items():
            if kept != computed:
                self._problem(place, f"the database holds {kept}; the entries give {computed}")
        if (left := self._id_rows.next()) is not None:
            self._problem("table ledger_ids", f"the database has the id {left[0]!r} of no entry")
        if (key := self._key_rows.next()) is not None:
            self._problem("table ledger_keys", f"the database has the key of entry {key[1]}, which is none")

    # Report

    def summarise(self) -> None:
        report = self._report
        if self._differing is not None:
            index, place = self._differing
            rooted = not any(p.place in ("checkpoint", _KNOWN) for p in report.problems)
            if rooted:
                self._problem(place, f"its hash {index % TILE_WIDTH} is not that of entry {index}")
            else:
                self._problem(f"entry {index}", "its hash is not the one in the tree: it was altered", index)
        if report.known_size is not None:
            if any(p.place in (_KNOWN, _RECEIPT) for p in report.problems):
                report.known = Known.CONTRADICTED
            else:
                short = self._tree.size < report.known_size
                report.known = Known.OLDER if short else Known.EXTENDED
        report.problems.sort(key=lambda p: (p.index is None, p.index or 0))
        book, report.counts = self._replay.book, self._replay.counts
        report.balances = {name: book.balance(name) for name in book.accounts()}
        report.open_tasks, report.remeasured = self._replay.open_tasks(), self._replay.remeasured()

    def _problem(self, place: str, message: str, index: int | None = None) -> None:
        self._report.problems.append(Problem(place, message, index))

    def _stop(self, place: str, message: str, index: int | None = None) -> NoReturn:
        self._problem(place, message, index)
        raise _Stop


def _contradiction(receipt: bytes, found: bytes) -> str:
    """In words, what a ledger has where a receipt proves another entry."""
    try:
        proven, stands = Entry.parse(receipt), Entry.parse(found)
    except EntryError:
        return "the ledger's entry is another one than the receipt proves, and one of both is unreadable"
    if proven.id != stands.id:
        return f"the receipt proves the entry {proven.id}; the ledger has {stands.id} in its place"
    differing = sorted(
        k for k in proven.body.keys() | stands.body.keys() if proven.body.get(k) != stands.body.get(k)
    )
    if "late" in differing:
        words = {False: "in time", True: "late"}
        says, has = (words.get(bool(one.body.get("late"))) for one in (proven, stands))
        return f"the receipt says that {proven.id} came {says}; the ledger says {has}"
    return (
        f"the receipt proves another {proven.id} than the ledger has: they differ in {', '.join(differing)}"
    )


def _row(
    index: int, position: int, transfer: Transfer, reservation: Callable[[str], Reservation | None]
) -> TransferRow:
    if isinstance(transfer, Post):
        return index, position, "post", transfer.debit, transfer.credit, transfer.micro, None, 0
    if isinstance(transfer, Reserve):
        name = transfer.reservation
        return index, position, "reserve", transfer.debit, transfer.credit, transfer.micro, name, 0
    held = reservation(transfer.reservation)
    assert held is not None  # the entry has been replayed
    micro, name = transfer.micro, transfer.reservation
    return index, position, "resolve", held.debit, held.credit, micro, name, held.micro
