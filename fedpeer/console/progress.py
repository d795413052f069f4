"""How far training and evidence are: what the service has in memory, asked for as often as it helps."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from coordinator.control_socket import Progress, progress
from fedpeer.console.reading import Reader

#: Seconds for which an answer is taken as it was: pages are looked at again once a second.
_FRESH_SECONDS = 0.5


@dataclass(frozen=True)
class RoundProgress:
    """How far a round is.

    Attributes:
        done_micro: what participants say of their training, in millionths, by name.
        trained, of: shadow models of the evidence; 0 of 0 where there are none yet.
        seconds_left: that the other shadows take.
    """

    done_micro: Mapping[str, int] = field(default_factory=dict)
    trained: int = 0
    of: int = 0
    seconds_left: float = 0.0


class CurrentProgress:
    """Reads the service's memory through its control socket. Threads may share it."""

    def __init__(self, reader: Reader) -> None:
        self._path = reader.folder.control_socket
        self._lock = threading.Lock()
        self._asked = -_FRESH_SECONDS
        self._said: Progress = {"training": {}, "shadows": {}}

    def look(self) -> Progress:
        """As the service has just said, or half a second ago."""
        with self._lock:
            if time.monotonic() - self._asked >= _FRESH_SECONDS:
                self._said = progress(self._path)
                self._asked = time.monotonic()
            return self._said

    def of(self, task_id: str, round_: int) -> RoundProgress:
        """Of one round of a task."""
        found = self.look()
        told = found["training"].get(task_id, {})
        done = {name: micro for name, (number, micro, _) in told.items() if number == round_}
        number, trained, of, seconds = found["shadows"].get(task_id, (0, 0, 0, 0.0))
        return RoundProgress(done, trained, of, seconds) if number == round_ else RoundProgress(done)
