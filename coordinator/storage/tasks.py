"""Tasks and the events of their streams.

A transition names the version of the task that it follows, so that two processes (a service and a `cancel` on
the command line) cannot both take a step from the same state.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Index, bindparam, literal_column, select

from coordinator.storage.changes import Kind
from coordinator.storage.rows import Digest, Id, Rows, Settings, table, table_of_task
from fedpeer.audit.sql.statements import Statement
from mechanism.lifecycle import State, check_step
from mechanism.terms import Terms


class StaleTask(RuntimeError):
    """The task has moved on since it was read, or its step is not due; read it and decide again."""


@dataclass(frozen=True)
class TaskRow:
    """A task as stored.

    Attributes:
        root: secret: the seeds of peers, nonces and shadows derive from it.
        settings: what the service needs of the task file besides the terms.
        version: counts transitions; a transition names the one that it follows.
        model: the one that the next round starts from.
    """

    id: Id
    terms: Terms
    root: Digest
    settings: Settings
    state: State
    round: int
    deadline: float | None
    version: int
    model: Digest
    opened_at: float
    ended_at: float | None
    reason: str | None

    @classmethod
    def opened(cls, terms: Terms, root: bytes, settings: Mapping[str, Any], at: float) -> "TaskRow":
        """A task that begins."""
        first = terms.initial_model
        return cls(terms.task_id, terms, root, settings, State.OPEN, 0, None, 1, first, at, None, None)


@dataclass(frozen=True)
class EventRow:
    """One event of a task's stream; cursors run from 1 without a gap."""

    cursor: int
    state: State
    round: int
    deadline: float | None
    detail: Mapping[str, Any]
    at: float


tasks = table("tasks", TaskRow, Index(None, "state"), key=("id",))
events = table_of_task("events", EventRow, key=("cursor",))


class Tasks(Rows):
    """Tasks and their events."""

    def add_task(self, row: TaskRow) -> None:
        """Stores a new task; its id must be new."""
        self._add(tasks, row)

    def task(self, task_id: str) -> TaskRow | None:
        return self._one(TaskRow, tasks, id=task_id)

    def tasks(self) -> list[TaskRow]:
        """All tasks, the oldest first."""
        return self._all(TaskRow, tasks, "opened_at", "id")

    def advance(
        self,
        task: TaskRow,
        state: State,
        *,
        now: float,
        round_: int | None = None,
        deadline: float | None = None,
        model: bytes | None = None,
        reason: str | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """Moves a task on and writes the event that says so.

        Raises:
            StaleTask: the task is no longer at `task.version`.
            LifecycleError: `state` may not follow `task.state`.
        """
        entered = task.round if round_ is None else round_
        # A row enters SCORED when the round's models are fixed, and leaves it when the verdicts are recorded.
        check_step(task.terms.schedule, task.state, task.round, state, entered, reason or "", judged=False)
        moved = self._set(
            tasks,
            {"id": task.id, "version": task.version},
            state=state,
            round=entered,
            deadline=deadline,
            version=task.version + 1,
            model=model or task.model,
            reason=reason,
            ended_at=now if state.final else None,
        )
        if moved != 1:
            raise StaleTask(f"task {task.id} has moved on from version {task.version}")
        self.add_event(task.id, state, entered, deadline, detail or {}, now)

    def add_event(
        self,
        task_id: str,
        state: State,
        round_: int,
        deadline: float | None,
        detail: Mapping[str, Any],
        now: float,
    ) -> None:
        cursor, before = _LAST_EVENT.row(self._connection, {"task_id": task_id}) or (0, now)
        # Never before the event before it, though a clock may be set back.
        row = EventRow(cursor + 1, state, round_, deadline, detail, max(now, before))
        self._add(events, row, task_id=task_id)
        self.announce(Kind.TASK, task_id)

    def latest_event_at(self, task_id: str) -> float:
        """When the task entered its state."""
        last = _LAST_EVENT.row(self._connection, {"task_id": task_id})
        assert last is not None  # its opening is an event
        return float(last[1])

    def events(self, task_id: str, after: int = 0) -> list[EventRow]:
        """Events with a cursor above `after`, in order."""
        found = _EVENTS.rows(self._connection, {"task_id": task_id, "after": after})
        return [EventRow(*row) for row in found]


_LAST_EVENT = Statement(
    select(events.c.cursor, events.c.at)
    .where(events.c.task_id == bindparam("task_id"))
    .order_by(events.c.cursor.desc())
    .limit(literal_column("1"))
)
_EVENTS = Statement(
    select(events.c.cursor, events.c.state, events.c.round, events.c.deadline, events.c.detail, events.c.at)
    .where(events.c.task_id == bindparam("task_id"), events.c.cursor > bindparam("after"))
    .order_by(events.c.cursor)
)
