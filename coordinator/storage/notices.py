"""Notices that are to be sent: what has happened, in the transaction in which it did, and how far each receiver is.

A notice has a number, from 1 without a gap, and goes to each receiver in this order. A receiver's place is the number
of the last notice that is done with, sent or given up. A receiver that is new begins after what there is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, delete, func, select

from coordinator.storage.rows import Id, Rows, table
from fedpeer.audit.sql.statements import Statement


@dataclass(frozen=True)
class NoticeRow:
    """What has happened.

    Attributes:
        id: unique for ever: a database that was restored counts its numbers again.
        type: such as "round.settled"; see `coordinator.notices`.
        task_id, participant_id: whom it is about; empty where it is about none, or about all.
    """

    number: int
    id: Id
    type: Id
    task_id: Id
    participant_id: Id
    data: Mapping[str, Any]
    at: float


@dataclass(frozen=True)
class PlaceRow:
    """The number of the last notice that a receiver is done with."""

    receiver: Id
    number: int


notices = table("notices", NoticeRow, key=("number",))
notice_places = table("notice_places", PlaceRow, key=("receiver",))


class KeptNotices(Rows):
    """Notices, and how far their receivers are."""

    def add_notice(
        self,
        type_: str,
        id_: str,
        now: float,
        data: Mapping[str, Any],
        task_id: str = "",
        participant_id: str = "",
    ) -> None:
        """One more notice; the caller is the only writer, as all that write to market and ledger are."""
        number = self.last_notice() + 1
        self._add(notices, NoticeRow(number, id_, type_, task_id, participant_id, data, now))

    def last_notice(self) -> int:
        """The number of the last notice, of those that receivers are done with too; 0 before the first."""
        return max(_LAST.value(self._connection) or 0, _FARTHEST.value(self._connection) or 0)

    def notices_after(self, number: int, most: int) -> list[NoticeRow]:
        """The next notices in order."""
        found = _NEXT.rows(self._connection, {"after": number, "most": most})
        return [NoticeRow(*row) for row in found]

    def notice_places(self) -> dict[str, int]:
        """The place of each receiver by its name."""
        return {row.receiver: row.number for row in self._all(PlaceRow, notice_places)}

    def put_notice_place(self, receiver: str, number: int) -> None:
        """Moves a receiver on; a new one begins there."""
        if not self._set(notice_places, {"receiver": receiver}, number=number):
            self._add(notice_places, PlaceRow(receiver, number))

    def drop_notice_place(self, receiver: str) -> None:
        """Forgets a receiver."""
        _DROP.run(self._connection, {"receiver": receiver})

    def sweep_notices(self, before: float) -> None:
        """Deletes notices that every receiver is done with, and those of before a time; the last stays, as a count."""
        done = min(self.notice_places().values(), default=self.last_notice())
        _SWEEP.run(self._connection, {"done": done, "before": before, "last": self.last_notice()})


_LAST = Statement(select(func.max(notices.c.number)))
_FARTHEST = Statement(select(func.max(notice_places.c.number)))
_NEXT = Statement(
    select(*notices.c)
    .where(notices.c.number > bindparam("after"))
    .order_by(notices.c.number)
    .limit(bindparam("most"))
)
_DROP = Statement(delete(notice_places).where(notice_places.c.receiver == bindparam("receiver")))
_SWEEP = Statement(
    delete(notices).where(
        (notices.c.number <= bindparam("done")) | (notices.c.at < bindparam("before")),
        notices.c.number < bindparam("last"),
    )
)
