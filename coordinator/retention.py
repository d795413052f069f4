"""Which model files are kept, and when a task's submitted models are to be deleted.

A task's terms may promise how long submitted models are kept after its end: not deleted before, and soon after; the log
says when they were. Of all other files, and of tasks without a promise, the configuration decides.
"""

from collections.abc import Iterator

from coordinator.config import StorageSection
from coordinator.storage.rounds import Retention
from coordinator.storage.store import MarketStore
from coordinator.storage.tasks import TaskRow

#: Seconds.
DAY = 86_400.0


def retention_at(market: MarketStore, section: StorageSection, now: float) -> Retention:
    """What is kept at a time."""
    promised = {task.id: until for task, until in promises(market)}
    due = {name for name, until in promised.items() if now >= until}
    held = promised.keys() - due
    return Retention(
        now - section.retention_days * DAY, section.keep_unfetched, frozenset(held), frozenset(due)
    )


def promises(market: MarketStore) -> Iterator[tuple[TaskRow, float]]:
    """Ended tasks whose terms promise a deletion, and from when on it is due."""
    for task in market.tasks():
        seconds = task.terms.schedule.retention_seconds
        if task.ended_at is not None and seconds is not None:
            # The log's time of the end, which no clock that is set back makes earlier.
            yield task, market.latest_event_at(task.id) + seconds
