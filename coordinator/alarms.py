"""What the operator must see to just now, of what the service itself knows. docs/notices.md has the list."""

import shutil
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path

from coordinator.blobs import BlobStore
from coordinator.certificates import Certificates
from coordinator.notices import Alarm
from coordinator.runner import LiveTask
from coordinator.supervision import LASTING_SECONDS
from mechanism.lifecycle import State

#: Bytes of a disk that are left to the database and its log, which grow by some KiB a claim.
_RESERVE_BYTES = 1 << 28

#: States in which models of the present round are still to come.
_BEFORE_MODELS = (State.OPEN, State.EFFORT, State.SELECTED, State.TRAINING)


def stalled(tasks: Iterable[LiveTask], now: float) -> list[Alarm]:
    """Tasks whose step has failed for a minute, or whose phase is over for a minute and was not closed."""
    found = []
    for live in tasks:
        broken, since = live.broken, live.broken_since
        if broken is None and live.row.deadline is not None:
            broken, since = f"its phase {live.row.state} is over, and nothing closes it", live.row.deadline
        if broken is not None and not live.row.state.final and now - since >= LASTING_SECONDS:
            found.append(Alarm("task.stalled", f"task {live.row.id}", broken))
    return found


def failing(troubles: Mapping[str, str]) -> list[Alarm]:
    """Background work that ends again and again.

    Args:
        troubles: by the duty's name.
    """
    return [Alarm("service.failing", name, why) for name, why in troubles.items()]


def expiring(certificates: Certificates, refused: str, now: datetime) -> list[Alarm]:
    """Certificates that expire soon, and those in the folder that are not served.

    Args:
        refused: why; "" where they are served.
    """
    found = [Alarm("certificate.expiring", name, why) for name, why in certificates.warnings(now).items()]
    return [*found, Alarm("certificate.expiring", "the folder's certificates", refused)] if refused else found


def full(folder: Path, tasks: Iterable[LiveTask], blobs: BlobStore) -> list[Alarm]:
    """A disk with less space than the tasks that run may still need for their models."""
    needed = _RESERVE_BYTES + min(blobs.most_bytes, sum(_bytes_to_come(live, blobs) for live in tasks))
    free = shutil.disk_usage(folder).free
    if free >= needed:
        return []
    why = f"{free / 1e6:,.0f} MB are free; tasks that run may still need {needed / 1e6:,.0f} MB: make space"
    return [Alarm("disk.low", "the disk", why)]


def _bytes_to_come(live: LiveTask, blobs: BlobStore) -> int:
    """Of a model of each participant, and the mean, in each round that is not over."""
    row, schedule = live.row, live.row.terms.schedule
    if row.state.final:
        return 0
    rounds = schedule.rounds - row.round + (row.round > 0 and row.state in _BEFORE_MODELS)
    try:
        size = blobs.size(row.model)
    except OSError:  # lost, or not to be asked for just now
        size = 0
    return rounds * (1 + (len(live.feed.selected) or schedule.capacity)) * size
