"""Appending: entries, leaves, tiles and postings as one step of the store's transaction."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mechanism.ledger.accounts import (
    Balance,
    Book,
    Transfer,
    accounts_of,
    parse_transfer,
    reservations_of,
    stake,
)
from mechanism.ledger.entry import Entry
from mechanism.ledger.errors import EntryConflictError, ProofError
from mechanism.ledger.key_history import KINDS, extended
from mechanism.ledger.merkle import consistency_proof, inclusion_proof, leaf_hash, root_from
from mechanism.ledger.store import LedgerStore
from mechanism.ledger.tiles import TileNodes, append_to_tiles


@dataclass(slots=True)  # not frozen: that doubles the time to make one, and each entry makes one
class AppendedEntry:
    """Where an entry stands, and whether this call put it there."""

    id: str
    index: int
    new: bool


class Ledger:
    """One ledger, within one transaction of its store."""

    def __init__(self, store: LedgerStore) -> None:
        self._store = store

    def append(self, entries: Sequence[Entry]) -> list[AppendedEntry]:
        """Appends entries in order and posts their transfers.

        An entry whose id is taken by the same bytes is not appended again; its old place is returned. When this
        raises, nothing was written and the caller rolls its transaction back.

        Raises:
            EntryConflictError: an id is taken by other bytes.
            PostingError: a transfer that the accounts do not allow.
            EntryError: an entry that is not of the form.
        """
        size = self._store.lock()
        places = dict(self._store.find([entry.id for entry in entries]))
        known = {place: next(self._store.entries(place, 1)) for place in places.values()}
        recorded: list[AppendedEntry] = []
        fresh: list[Entry] = []
        for entry in entries:
            place = places.get(entry.id)
            if place is None:
                place = places[entry.id] = size + len(fresh)
                known[place] = entry.data
                fresh.append(entry)
                recorded.append(AppendedEntry(entry.id, place, True))
            elif known[place] != entry.data:
                raise EntryConflictError(entry.id, place)
            else:
                recorded.append(AppendedEntry(entry.id, place, False))
        if fresh:
            transfers = [
                (size + i, position, transfer)
                for i, entry in enumerate(fresh)
                for position, transfer in enumerate(entry.transfers)
            ]
            self._check_transfers([transfer for _, _, transfer in transfers])
            leaves = [known[place] for place in range(size, size + len(fresh))]
            self._store.insert(size, [entry.id for entry in fresh], leaves)
            self._grow(size, leaves)
            self._extend_key_history(size, fresh)
            if transfers:
                self._store.post(transfers)
        return recorded

    def size(self) -> int:
        """Number of entries."""
        return self._store.size()

    def keys(self) -> bytes:
        """Digest of the key history, for an entry that is appended in this transaction."""
        return self._store.key_history()[1]

    def root(self, size: int | None = None) -> bytes:
        """Root of the first `size` entries; of all where None."""
        size = self._within(size)
        return root_from(self._nodes(), size)

    def inclusion_proof(self, index: int, size: int | None = None) -> list[bytes]:
        """Proof that entry `index` is in the tree of the first `size` entries."""
        return inclusion_proof(self._nodes(), index, self._within(size))

    def consistency_proof(self, first: int, second: int | None = None) -> list[bytes]:
        """Proof that the tree of `second` entries extends that of `first`."""
        return consistency_proof(self._nodes(), first, self._within(second))

    def balance(self, account: str) -> Balance:
        """Balance of one account; zero where it was never used."""
        return self._store.balances([account]).get(account, Balance())

    def stakes(self, task_id: str, participants: Iterable[str]) -> dict[str, int]:
        """Micro-credits at stake in a task, by participant id."""
        names = {stake(task_id, p): p for p in participants}
        found = self._store.balances(sorted(names))
        return {p: found[account].holds if account in found else 0 for account, p in names.items()}

    def _check_transfers(self, transfers: Sequence[Transfer]) -> None:
        """Refuses, in words, what the store would refuse by its constraints."""
        if not transfers:
            return
        for transfer in transfers:  # what could not be read again must not be written
            parse_transfer(transfer.record())
        reservations = self._store.reservations(sorted(reservations_of(transfers)))
        accounts = accounts_of(transfers).union(*((r.debit, r.credit) for r in reservations.values()))
        book = Book(self._store.balances(sorted(accounts)), reservations)
        for transfer in transfers:
            book.apply(transfer)

    def _grow(self, size: int, data: Sequence[bytes]) -> None:
        leaves = [leaf_hash(item) for item in data]
        self._store.write_tiles(append_to_tiles(self._store.read_tiles, size, leaves))

    def _extend_key_history(self, size: int, fresh: Sequence[Entry]) -> None:
        new = [(index, entry) for index, entry in enumerate(fresh, size) if entry.kind in KINDS]
        if not new:
            return
        count, digest = self._store.key_history()
        rows = []
        for index, entry in new:
            digest = extended(digest, index, entry.data)
            rows.append((index, digest, entry.data))
        self._store.extend_key_history(count, rows)

    def _nodes(self) -> TileNodes:
        return TileNodes(self._store.read_tiles, self._store.size())

    def _within(self, size: int | None) -> int:
        present = self._store.size()
        if size is None:
            return present
        if not 0 <= size <= present:
            raise ProofError(f"the ledger has {present} entries; there is no tree of {size} yet")
        return size
