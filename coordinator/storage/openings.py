"""What entries of the ledger commit to (`mechanism.ledger.openings`): written with them, in one transaction."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from sqlalchemy import Index, String

from coordinator.storage.rows import Id, Rows, table_of_task
from fedpeer.audit.sql.statements import insertion
from mechanism.canonical import canonical_bytes
from mechanism.ledger.entry import MAX_ID_CHARACTERS, Entry
from mechanism.ledger.openings import subject_of


@dataclass(frozen=True)
class OpeningRow:
    """The opening of an entry.

    Attributes:
        number: of it in the task, in the order of the ledger.
        entry_kind: of the entry; round: 0 outside rounds.
        participant_id: whom it is about; empty where it is about nobody alone.
        opening: its canonical JSON.
    """

    entry_id: Annotated[str, String(MAX_ID_CHARACTERS)]
    number: int
    entry_kind: str
    round: int
    participant_id: Id
    opening: bytes


@dataclass(frozen=True)
class OpeningName:
    """Which opening, without what it says; as `OpeningRow`."""

    entry_id: str
    number: int


openings = table_of_task(
    "openings",
    OpeningRow,
    Index(None, "task_id", "participant_id"),
    Index(None, "task_id", "round"),
    key=("entry_id",),
)


class KeptOpenings(Rows):
    """Openings of the ledger's entries."""

    def add_openings(self, first: int, entries: Iterable[Entry]) -> None:
        """Those of the entries that have one; `first` is the index of the first entry in the ledger."""
        rows = []
        for number, entry in enumerate(entries, first):
            if entry.opening is not None:
                task_id, round_, participant_id = subject_of(entry.id)
                data = canonical_bytes(entry.opening)
                row = OpeningRow(entry.id, number, entry.kind, round_, participant_id, data)
                rows.append({**vars(row), "task_id": task_id})
        if rows:
            insertion(openings).run_many(self._connection, rows)

    def erase_openings(self, task_id: str, participant_id: str) -> int:
        """Destroys those about one participant, salts and all; returns how many there were."""
        return self._delete(openings, task_id=task_id, participant_id=participant_id)

    def opening(self, task_id: str, entry_id: str) -> OpeningRow | None:
        return self._one(OpeningRow, openings, task_id=task_id, entry_id=entry_id)

    def openings(self, task_id: str) -> list[OpeningRow]:
        """All of a task, in the order of the ledger."""
        return self._all(OpeningRow, openings, "number", task_id=task_id)

    def openings_about(self, task_id: str, participant_id: str) -> list[OpeningName]:
        """Which there are about one participant, in the order of the ledger."""
        return self._all(OpeningName, openings, "number", task_id=task_id, participant_id=participant_id)

    def openings_of_kind(self, task_id: str, kind: str) -> list[OpeningName]:
        """Which there are of entries of a kind, in the order of the ledger."""
        return self._all(OpeningName, openings, "number", task_id=task_id, entry_kind=kind)

    def openings_of_round(self, task_id: str, round_: int, kind: str) -> list[OpeningRow]:
        """Those of entries of a kind in one round, in the order of the ledger."""
        return self._all(OpeningRow, openings, "number", task_id=task_id, round=round_, entry_kind=kind)
