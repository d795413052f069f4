"""When participants were last heard of, by whichever process heard them: what a runner's patience goes by where several
processes serve one market.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import delete, select, text

from coordinator.storage.rows import Id, Rows, table_of_task
from coordinator.storage.tasks import tasks
from fedpeer.audit.sql.statements import Statement


@dataclass(frozen=True)
class PresenceRow:
    """A participant's last sign of life in a task, seconds since the epoch."""

    participant_id: Id
    heard: float


presence = table_of_task("presence", PresenceRow, key=("participant_id",))


class Presences(Rows):
    """Signs of life."""

    def hear(self, task_id: str, heard: Mapping[str, float]) -> None:
        """Notes when participants were heard; an earlier time than is known changes nothing."""
        rows = [{"task": task_id, "who": name, "heard": at} for name, at in sorted(heard.items())]
        if rows:
            _HEAR.run_many(self._connection, rows)

    def heard(self, task_id: str) -> dict[str, float]:
        """When each participant of a task was last heard of."""
        return {row.participant_id: row.heard for row in self._all(PresenceRow, presence, task_id=task_id)}

    def sweep_presence(self) -> None:
        """Deletes the signs of tasks that have ended."""
        _SWEEP.run(self._connection)


_HEAR = Statement(
    text(
        "INSERT INTO presence (task_id, participant_id, heard) VALUES (:task, :who, :heard) "
        "ON CONFLICT (task_id, participant_id) DO UPDATE SET heard = excluded.heard "
        "WHERE presence.heard < excluded.heard"
    )
)
_SWEEP = Statement(
    delete(presence).where(presence.c.task_id.in_(select(tasks.c.id).where(tasks.c.ended_at.is_not(None))))
)
