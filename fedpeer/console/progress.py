"""How far training and evidence are: what the service has in memory, asked for as often as it helps."""

import threading
import time

from coordinator.control_socket import RoundProgress, progress, round_progress
from fedpeer.console.reading import Reader

#: Seconds for which an answer is taken as it was: pages are looked at again once a second.
_FRESH_SECONDS = 0.5


class CurrentProgress:
    """Reads the service's memory through its control socket. Threads may share it."""

    def __init__(self, reader: Reader) -> None:
        self._path = reader.folder.control_socket
        self._lock = threading.Lock()
        self._asked = -_FRESH_SECONDS
        self._said: dict[str, RoundProgress] = {}

    def look(self) -> dict[str, RoundProgress]:
        """As the service has just said, or half a second ago."""
        with self._lock:
            if time.monotonic() - self._asked >= _FRESH_SECONDS:
                self._said = progress(self._path)
                self._asked = time.monotonic()
            return self._said

    def of(self, task_id: str, round_: int) -> RoundProgress:
        """Of one round of a task."""
        return round_progress(self.look(), task_id, round_)
