"""The ledger's store over SQL, and the signing of its heads."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, bindparam, func, select, text, update

from fedpeer.audit.sql.database import Database
from fedpeer.audit.sql.errors import DatabaseDamaged, HeadRefused
from fedpeer.audit.sql.statements import Statement, among, insert_all, insertion, listed
from fedpeer.audit.sql.tables import ACCOUNTS, BUNDLES, CHECKPOINTS, IDS, KEYS, LOG, TILES, TRANSFERS
from mechanism.ledger.accounts import Balance, Post, Reservation, Reserve, Resolve, Transfer
from mechanism.ledger.appending import Ledger
from mechanism.ledger.entries import log_key, log_key_id
from mechanism.ledger.entry import Entry
from mechanism.ledger.errors import NoteError, SignatureError
from mechanism.ledger.key_history import NO_KEYS
from mechanism.ledger.merkle import EMPTY_ROOT, MAX_SIZE, inclusion_proof
from mechanism.ledger.note import Checkpoint, Note, SigningKey, VerificationKey, sign_checkpoint
from mechanism.ledger.tiles import Coordinates, TileNodes, pack_bundle, unpack_bundle
from mechanism.ledger.tlog_proof import TlogProof

#: Most entries, and bytes of entries, in one stored bundle: what one look-up of an entry reads in vain.
_BUNDLE_ENTRIES = 256
_BUNDLE_BYTES = 256 * 1024

#: Roots of subtrees that are kept for further receipts, 32 bytes each.
_KNOWN_NODES = 10_000

_SIZE = Statement(select(LOG.c.size))
_SET_SIZE = Statement(update(LOG).values(size=bindparam("new_size")))
_LOCKED_SIZE = Statement(select(LOG.c.size).with_for_update())
_LAST_NOTE = Statement(select(CHECKPOINTS.c.note).order_by(CHECKPOINTS.c.size.desc()).limit(1))
_NOTE = Statement(select(CHECKPOINTS.c.note).where(CHECKPOINTS.c.size == bindparam("size")))
_NOTES = Statement(select(CHECKPOINTS.c.size, CHECKPOINTS.c.note).order_by(CHECKPOINTS.c.size))
_KEY = Statement(select(LOG.c.verification_key))
_BIND_KEY = Statement(update(LOG).values(verification_key=bindparam("key")))
_FIND = Statement(select(IDS.c.id, IDS.c.entry_index).where(among(IDS.c.id)))
_KEY_EVENTS = Statement(select(KEYS.c.entry).where(KEYS.c.fingerprint == bindparam("fingerprint")))
_BUNDLE_OF = Statement(
    select(func.max(BUNDLES.c.first_index)).where(BUNDLES.c.first_index <= bindparam("index"))
)
_BUNDLES = Statement(
    select(BUNDLES)
    .where(BUNDLES.c.first_index >= bindparam("first"), BUNDLES.c.first_index < bindparam("end"))
    .order_by(BUNDLES.c.first_index)
)
_LAST_KEY = Statement(select(KEYS.c.number, KEYS.c.digest).order_by(KEYS.c.number.desc()).limit(1))
_KEY_RUN = Statement(
    select(KEYS)
    .where(KEYS.c.number >= bindparam("first"), KEYS.c.number < bindparam("end"))
    .order_by(KEYS.c.number)
)
_TILE = Statement(
    select(TILES.c.hashes).where(
        TILES.c.level == bindparam("level"), TILES.c.tile_index == bindparam("index")
    )
)
_TILE_RUN = Statement(
    select(TILES.c.tile_index, TILES.c.hashes).where(
        TILES.c.level == bindparam("level"),
        TILES.c.tile_index >= bindparam("first"),
        TILES.c.tile_index < bindparam("end"),
    )
)
#: In words: SQLAlchemy has an upsert for each dialect, and none for both.
_WRITE_TILE = Statement(
    text(
        "INSERT INTO ledger_tiles (level, tile_index, hashes) VALUES (:level, :index, :hashes) "
        "ON CONFLICT (level, tile_index) DO UPDATE SET hashes = excluded.hashes"
    )
)
_BALANCES = Statement(select(ACCOUNTS).where(among(ACCOUNTS.c.name)))
_ALL_BALANCES = Statement(select(ACCOUNTS))
_RESERVATIONS = Statement(
    select(*(TRANSFERS.c[name] for name in ("operation", "debit", "credit", "micro", "reservation"))).where(
        among(TRANSFERS.c.reservation)
    )
)
_TRANSFER_RUN = Statement(
    select(TRANSFERS)
    .where(TRANSFERS.c.entry_index >= bindparam("first"), TRANSFERS.c.entry_index < bindparam("end"))
    .order_by(TRANSFERS.c.entry_index, TRANSFERS.c.position)
)


#: A row of the key history: number, index of the entry, digest after it, the entry.
KeyRow = tuple[int, int, bytes, bytes, str]


class SqlLedgerStore:
    """`mechanism.ledger.store.LedgerStore` within one transaction of a `Database`.

    Once it holds the lock, it remembers the size and the tiles that it has written: nobody else changes them. So a
    store is of no use any more where a part of its transaction is rolled back.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._locked_size: int | None = None
        self._locked_keys: tuple[int, bytes] | None = None
        self._written_tiles: dict[Coordinates, bytes] = {}

    def lock(self) -> int:
        if self._locked_size is None:
            self._locked_size = int(self._only(_LOCKED_SIZE))
        return self._locked_size

    def size(self) -> int:
        return int(self._only(_SIZE)) if self._locked_size is None else self._locked_size

    def insert(self, first: int, ids: Sequence[str], data: Sequence[bytes]) -> None:
        insert_all(self._connection, IDS, list(zip(ids, range(first, first + len(ids)), strict=True)))
        insert_all(self._connection, BUNDLES, _bundled(first, data))
        size = first + len(ids)
        _SET_SIZE.run(self._connection, {"new_size": size})
        if self._locked_size is not None:
            self._locked_size = size

    def find(self, ids: Sequence[str]) -> Mapping[str, int]:
        return {name: int(place) for name, place in _FIND.rows(self._connection, listed(ids))}

    def revoked_keys(self, fingerprint: str) -> list[str]:
        """Ids of the revocations of the key with this fingerprint, under any name."""
        return self._key_events("revocation", fingerprint)

    def enrolled_keys(self, fingerprint: str) -> list[str]:
        """Ids of the enrolments of the key with this fingerprint, under any name."""
        return self._key_events("enrolment", fingerprint)

    def _key_events(self, kind: str, fingerprint: str) -> list[str]:
        rows = _KEY_EVENTS.rows(self._connection, {"fingerprint": fingerprint})
        found = [Entry.parse(bytes(data)) for (data,) in rows]
        return sorted(entry.id for entry in found if entry.kind == kind)

    def entries(self, first: int, count: int) -> Iterator[bytes]:
        end = first + count
        for start, entries in self.bundles(self._bundle_of(first), end):
            yield from entries[max(0, first - start) : max(0, end - start)]

    def bundle_of(self, index: int) -> tuple[int, list[bytes]]:
        """The stored run of entries that holds entry `index`: its first index and the entries."""
        return next(self.bundles(self._bundle_of(index), index + 1))

    def bundles(self, first: int = 0, end: int = MAX_SIZE) -> Iterator[tuple[int, list[bytes]]]:
        """Stored runs of entries that begin in [first, end): their first index and the entries."""
        for start, length, data in _BUNDLES.stream(self._connection, {"first": first, "end": end}):
            entries = unpack_bundle(bytes(data))
            if len(entries) != length:
                raise DatabaseDamaged(
                    f"the stored bundle at entry {start} does not hold its {length} entries"
                )
            yield int(start), entries

    def read_tiles(self, tiles: Sequence[Coordinates]) -> Mapping[Coordinates, bytes]:
        found = {}
        for level, index in tiles:
            hashes = self._written_tiles.get((level, index)) or _TILE.value(
                self._connection, {"level": level, "index": index}
            )
            if hashes is not None:
                found[level, index] = bytes(hashes)
        return found

    def tile_run(self, level: int, first: int, count: int) -> dict[Coordinates, bytes]:
        """Up to `count` consecutive tiles of a level."""
        values = {"level": level, "first": first, "end": first + count}
        return {(level, index): bytes(hashes) for index, hashes in _TILE_RUN.rows(self._connection, values)}

    def write_tiles(self, tiles: Sequence[tuple[Coordinates, bytes]]) -> None:
        if not tiles:
            return
        rows = [{"level": level, "index": index, "hashes": hashes} for (level, index), hashes in tiles]
        _WRITE_TILE.run_many(self._connection, rows)
        self._written_tiles = dict(tiles)

    def balances(self, accounts: Sequence[str]) -> Mapping[str, Balance]:
        return {name: Balance(*sums) for name, *sums in _BALANCES.rows(self._connection, listed(accounts))}

    def all_balances(self) -> dict[str, Balance]:
        """Every account's balance, in name order."""
        rows = _ALL_BALANCES.rows(self._connection)
        return dict(sorted((name, Balance(*sums)) for name, *sums in rows))

    def reservations(self, names: Sequence[str]) -> Mapping[str, Reservation]:
        found: dict[str, Reservation] = {}
        resolved: set[str] = set()
        for operation, debit, credit, micro, name in _RESERVATIONS.rows(self._connection, listed(names)):
            if operation == "reserve":
                found[name] = Reservation(debit, credit, micro)
            elif operation == "resolve":
                resolved.add(name)
        return {name: replace(held, resolved=name in resolved) for name, held in found.items()}

    def post(self, transfers: Sequence[tuple[int, int, Transfer]]) -> None:
        resolved = [t.reservation for _, _, t in transfers if isinstance(t, Resolve)]
        held = dict(self.reservations(sorted(set(resolved))))
        for _, _, t in transfers:
            if isinstance(t, Reserve):
                held[t.reservation] = Reservation(t.debit, t.credit, t.micro)
        insert_all(self._connection, TRANSFERS, [_transfer_row(*item, held) for item in transfers])

    def key_history(self) -> tuple[int, bytes]:
        if self._locked_keys is not None:
            return self._locked_keys
        row = _LAST_KEY.row(self._connection)
        found = (0, NO_KEYS) if row is None else (int(row[0]) + 1, bytes(row[1]))
        if self._locked_size is not None:
            self._locked_keys = found
        return found

    def extend_key_history(self, first: int, rows: Sequence[tuple[int, bytes, bytes]]) -> None:
        numbered = [
            (number, *row, Entry.parse(row[2]).id.rpartition("/")[2])
            for number, row in enumerate(rows, first)
        ]
        insert_all(self._connection, KEYS, numbered)
        if self._locked_size is not None:
            self._locked_keys = first + len(rows), rows[-1][1]

    def keys(self, first: int = 0, count: int = MAX_SIZE) -> Iterator[KeyRow]:
        """The key history from its `first` row on: number, index of the entry, digest after it, the entry, the
        fingerprint of its key."""
        for row in _KEY_RUN.stream(self._connection, {"first": first, "end": first + count}):
            yield int(row[0]), int(row[1]), bytes(row[2]), bytes(row[3]), str(row[4])

    def transfers(
        self, first: int, count: int
    ) -> Iterator[tuple[int, int, str, str, str, int, str | None, int]]:
        """Rows of the transfers of entries [first, first + count), in order."""
        return _TRANSFER_RUN.stream(self._connection, {"first": first, "end": first + count})

    def checkpoint(self, size: int | None = None) -> str | None:
        """The signed head of `size`, or the latest one; None where there is none."""
        if size is None:
            note: str | None = _LAST_NOTE.value(self._connection)
        else:
            note = _NOTE.value(self._connection, {"size": size})
        return note

    def checkpoints(self) -> Iterator[tuple[int, str]]:
        """Every head that was signed: size and note, oldest first."""
        for size, note in _NOTES.stream(self._connection):
            yield int(size), note

    def save_checkpoint(self, size: int, note: str) -> None:
        """Keeps a signed head."""
        insertion(CHECKPOINTS).run(self._connection, {"size": size, "note": note})

    def verification_key(self) -> str | None:
        """The key under which this log signs its heads; None before the first."""
        key: str | None = self._only(_KEY)
        return key

    def first_key(self) -> str | None:
        """The key under which this log signed its first heads; None before the first."""
        found = self.find([log_key_id(1)])
        if not found:
            return self.verification_key()
        [place] = found.values()
        return str(Entry.parse(next(self.entries(place, 1))).body["previous"])

    def key_changes(self) -> list[TlogProof]:
        """A receipt of each announcement of a new key, under the head that both keys have signed."""
        proofs: list[TlogProof] = []
        while found := self.find([log_key_id(len(proofs) + 1)]):
            [index] = found.values()
            note = self.checkpoint(index + 1)
            if note is None:
                raise DatabaseDamaged(f"the head that covers the key announced by entry {index} is missing")
            path = Ledger(self).inclusion_proof(index, index + 1)
            proofs.append(TlogProof(index, tuple(path), Note.parse(note), next(self.entries(index, 1))))
        return proofs

    def bind_key(self, key: VerificationKey) -> None:
        """Makes `key` the log's."""
        _BIND_KEY.run(self._connection, {"key": str(key)})

    def _only(self, query: Statement) -> Any:
        """A value of the one row of `ledger_log`."""
        row = query.row(self._connection)
        if row is None:
            raise DatabaseDamaged("the table ledger_log has lost its row; restore the database from a backup")
        return row[0]

    def _bundle_of(self, index: int) -> int:
        """First index of the stored bundle that holds entry `index`."""
        return int(_BUNDLE_OF.value(self._connection, {"index": index}) or 0)


class SignedLog:
    """A ledger whose heads are signed: after a commit, over what that commit made durable, and never a fork.

    Args:
        database: where the ledger is.
        key: the log's signing key; its name is the log's origin.
        another: the signing key of a verification key that the log turns out to have, since its key was changed by
            another process; None where there is none.
    """

    def __init__(
        self,
        database: Database,
        key: SigningKey,
        another: Callable[[str], SigningKey | None] = lambda verification_key: None,
    ) -> None:
        self._database = database
        self._key = key
        self._another = another
        self._opened: tuple[str, Note, Checkpoint] | None = None
        self._known_nodes: dict[tuple[int, int], bytes] = {}
        self._known_bundle: tuple[int, list[bytes]] = 0, []

    @property
    def verification_key(self) -> VerificationKey:
        return self._key.verification_key

    def follow_key(self) -> None:
        """Takes over what another process has changed of the key.

        Raises:
            HeadRefused: the log's key is not to be had here.
        """
        with self._database.read() as connection:
            self._follow_key(SqlLedgerStore(connection))

    def sign_head(self) -> str:
        """Signs the head of all committed entries, keeps it, and returns it; the last one where nothing is new.

        It works in a transaction of its own, so it sees committed entries alone, and returns after the head
        itself is durable.

        Raises:
            HeadRefused: the key is not the log's, or the tree does not extend the last signed one.
        """
        with self._database.begin() as connection:
            store = SqlLedgerStore(connection)
            size = store.lock()
            self._check_key(store)
            last_note = self._extended_head(store, size)
            if last_note is not None and self._last(last_note, store)[1].size == size:
                return last_note
            root = Ledger(store).root() if size else EMPTY_ROOT
            note = str(sign_checkpoint(Checkpoint(self._key.name, size, root), self._key))
            store.save_checkpoint(size, note)
        return note

    def identity(self) -> str:
        """The log's first key: what tells this log from all others, whatever key it has by now."""
        with self._database.read() as connection:
            return SqlLedgerStore(connection).first_key() or str(self.verification_key)

    def change_key(self, key: SigningKey) -> int:
        """Announces a new signing key in the log, hands over to it, and returns the announcement's index.

        One transaction: the announcement, the head over it that both keys sign, and whose the log is. So the log has
        the one key or the other. `key` must be durable already where `another` finds it.

        Raises:
            FieldError: a key of another log, or the present one.
            HeadRefused: as `sign_head`.
        """
        with self._database.begin() as connection:
            store = SqlLedgerStore(connection)
            size = store.lock()
            self._check_key(store)
            self._extended_head(store, size)
            number = len(store.key_changes()) + 1
            announced = log_key(number, self.verification_key, key.verification_key)
            [recorded] = Ledger(store).append([announced])
            head = Checkpoint(key.name, recorded.index + 1, Ledger(store).root())
            handed_over = sign_checkpoint(head, self._key)
            for signature in sign_checkpoint(head, key).signatures:
                handed_over = handed_over.with_signature(signature)
            store.save_checkpoint(head.size, str(handed_over))
            store.bind_key(key.verification_key)
        self._key, self._opened = key, None
        return recorded.index

    def published(self) -> tuple[str, str, list[TlogProof]]:
        """The latest head, the log's present key, and the receipts of every change of it; from one moment."""
        with self._database.read() as connection:
            store = SqlLedgerStore(connection)
            note, key = store.checkpoint(), store.verification_key()
            if note is None or key is None:
                raise HeadRefused("no head has been signed yet")
            return note, key, store.key_changes()

    def _extended_head(self, store: SqlLedgerStore, size: int) -> str | None:
        """The last signed head, once the tree of `size` entries is seen to extend it; None where there is none."""
        note = store.checkpoint()
        if note is None:
            return None
        _, last = self._last(note, store)
        if last.size > size or Ledger(store).root(last.size) != last.root:
            raise HeadRefused(
                f"the tree of {size} entries does not extend the head of {last.size} that was signed; "
                "nothing was signed; restore the database from a backup that does"
            )
        return note

    def receipt(self, index: int) -> TlogProof:
        """A receipt of entry `index` under the latest signed head; signs one where it is not covered yet."""
        with self._database.read() as connection:
            (found,) = self.covered(SqlLedgerStore(connection), [index])
        if found is not None:
            return found
        note = self.sign_head()
        with self._database.read() as connection:
            store = SqlLedgerStore(connection)
            return self._proof(store, index, *self._last(note, store))

    def covered(self, store: SqlLedgerStore, indices: Sequence[int]) -> list[TlogProof | None]:
        """Receipts by an open transaction; None for an entry that no signed head covers yet."""
        found = store.checkpoint()
        if found is None:
            return [None] * len(indices)
        note, head = self._last(found, store)
        return [self._proof(store, index, note, head) if index < head.size else None for index in indices]

    def _proof(self, store: SqlLedgerStore, index: int, note: Note, head: Checkpoint) -> TlogProof:
        """After a settlement everybody asks for a neighbour of the same entry, so what was read
        for the one before is kept: entries and the roots of whole subtrees never change.
        """
        if len(self._known_nodes) > _KNOWN_NODES:
            self._known_nodes.clear()
        tiles = TileNodes(store.read_tiles, head.size)

        def nodes(wanted: Sequence[tuple[int, int]]) -> list[bytes]:
            new = [node for node in wanted if node not in self._known_nodes]
            self._known_nodes.update(zip(new, tiles(new), strict=True))
            return [self._known_nodes[node] for node in wanted]

        first, entries = self._known_bundle
        if not first <= index < first + len(entries):
            self._known_bundle = first, entries = store.bundle_of(index)
        proof = inclusion_proof(nodes, index, head.size)
        return TlogProof(index, tuple(proof), note, entries[index - first])

    def _last(self, text: str, store: SqlLedgerStore) -> tuple[Note, Checkpoint]:
        """The stored head; its signature is checked once, however many receipts it covers."""
        if self._opened is None or self._opened[0] != text:
            try:
                note = Note.parse(text)
                try:
                    head = Checkpoint.open(note, self.verification_key)
                except SignatureError:
                    self._follow_key(store)
                    head = Checkpoint.open(note, self.verification_key)
            except NoteError as error:
                raise HeadRefused(f"the last stored head is not by this log's key: {error}") from None
            self._opened = text, note, head
        return self._opened[1:]

    def _check_key(self, store: SqlLedgerStore) -> None:
        if store.verification_key() is None:
            store.bind_key(self.verification_key)
        self._follow_key(store)

    def _follow_key(self, store: SqlLedgerStore) -> None:
        """Takes the log's key over where another process has changed it."""
        known = store.verification_key()
        if known is None or known == str(self.verification_key):
            return
        key = self._another(known)
        if key is None or str(key.verification_key) != known:
            raise HeadRefused(
                f"this key is {self.verification_key}, the log's is {known}; give the log's own signing key"
            )
        self._key, self._opened = key, None


def _bundled(first: int, data: Sequence[bytes]) -> list[tuple[int, int, bytes]]:
    """Entries as bundles: (first index, count, bytes), each within the limits."""
    bundles = []
    start = 0
    while start < len(data):
        end = min(len(data), start + _BUNDLE_ENTRIES)
        while end > start + 1 and sum(map(len, data[start:end])) > _BUNDLE_BYTES:
            end = start + (end - start) // 2
        bundles.append((first + start, end - start, pack_bundle(data[start:end])))
        start = end
    return bundles


def _transfer_row(
    index: int, position: int, transfer: Transfer, held: Mapping[str, Reservation]
) -> tuple[int, int, str, str, str, int, str | None, int]:
    match transfer:
        case Post(debit, credit, micro):
            return index, position, "post", debit, credit, micro, None, 0
        case Reserve(reservation, debit, credit, micro):
            return index, position, "reserve", debit, credit, micro, reservation, 0
        case Resolve(reservation, micro):
            source = held[reservation]
            return index, position, "resolve", source.debit, source.credit, micro, reservation, source.micro
