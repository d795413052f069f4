"""What the ledger asks of the storage that is handed to it.

A store is bound to one open transaction. Whatever it writes becomes durable with that transaction or not at all;
what it reads is one consistent state.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from mechanism.ledger.accounts import Balance, Reservation, Transfer
from mechanism.ledger.tiles import Coordinates


class LedgerStore(Protocol):
    """Entries, tiles and accounts of one ledger."""

    def lock(self) -> int:
        """Makes this transaction the only one that appends, until it ends, and returns the size."""

    def size(self) -> int:
        """Number of entries."""

    def insert(self, first: int, ids: Sequence[str], data: Sequence[bytes]) -> None:
        """Writes entries from index `first` on. Their ids are free; the store refuses one that is taken."""

    def find(self, ids: Sequence[str]) -> Mapping[str, int]:
        """Indexes of the ids that are taken."""

    def entries(self, first: int, count: int) -> Iterator[bytes]:
        """Up to `count` entries from `first` on, in order."""

    def read_tiles(self, tiles: Sequence[Coordinates]) -> Mapping[Coordinates, bytes]:
        """The tiles that exist, as wide as they are."""

    def write_tiles(self, tiles: Sequence[tuple[Coordinates, bytes]]) -> None:
        """Writes tiles over what is there."""

    def balances(self, accounts: Sequence[str]) -> Mapping[str, Balance]:
        """Balances of the accounts that exist."""

    def reservations(self, names: Sequence[str]) -> Mapping[str, Reservation]:
        """The reservations that exist."""

    def key_history(self) -> tuple[int, bytes]:
        """How many enrolments and revocations there are, and the digest over them."""

    def extend_key_history(self, first: int, rows: Sequence[tuple[int, bytes, bytes]]) -> None:
        """Adds (entry index, digest after it, entry) after the `first` that there are."""

    def post(self, transfers: Sequence[tuple[int, int, Transfer]]) -> None:
        """Applies (entry index, position in it, transfer) in order. The store enforces the accounts' rules too."""
