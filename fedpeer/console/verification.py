"""The verifier's work and the service's health, each asked for at most as often as it helps."""

import shutil
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from typing import Any

from coordinator.certificates import read_certificates
from coordinator.errors import FolderError
from coordinator.operator import Operator, RunningService
from fedpeer.audit.sources import open_source
from fedpeer.audit.sql.errors import StorageError
from fedpeer.console.alarms import Sample, read_samples, standing
from fedpeer.console.reading import Reader
from mechanism.ledger.errors import LedgerError
from mechanism.ledger.verify import Problem, Report, verify_ledger

#: Bytes of the service's metrics that are read, and seconds that it gets to say them.
_METRICS_BYTES, _METRICS_SECONDS = 1 << 24, 5.0

#: Seconds for which the service's answer is taken as it was: each question makes it read its tables again.
_HEALTH_SECONDS = 15.0


class LedgerVerification:
    """One verification of the whole ledger at a time, and the report of the last.

    Args:
        changed: called from the verification's thread when it has moved on.
    """

    def __init__(self, reader: Reader, changed: Callable[[], None]) -> None:
        self._reader, self._changed = reader, changed
        self._lock = threading.Lock()
        self._running: tuple[int, int] | None = None
        self._report: Report | None = None
        self._ended: float | None = None

    def begin(self) -> None:
        """Begins one where none runs."""
        with self._lock:
            if self._running is not None:
                return
            self._running = (0, 0)
        threading.Thread(target=self._verify, name="verification", daemon=True).start()
        self._changed()

    def record(self) -> dict[str, Any]:
        """Whether one runs and how far it is, and what the last one found."""
        report, running = self._report, self._running
        return {
            "running": running is not None,
            "entries_done": 0 if running is None else running[0],
            "entries_in_all": 0 if running is None else running[1],
            "ended": self._ended,
            "report": None if report is None else report.record(),
            "entries": self._reader.size(),
        }

    def _verify(self) -> None:
        def progress(done: int, total: int) -> None:
            self._running = (done, total)
            self._changed()

        try:
            with ExitStack() as resources:
                with self._reader.transaction() as t:
                    openings = t.openings()
                source = open_source(self._reader.url, resources)
                report = verify_ledger(source, openings=openings, progress=progress)
        except (LedgerError, StorageError) as error:
            report = Report("the database", problems=[Problem("source", str(error))])
        self._report, self._ended = report, self._reader.now()
        self._running = None
        self._changed()


class ServiceHealth:
    """What the operator must know besides the tasks: whether a coordinator serves, certificates, disk, database."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._asked = -_HEALTH_SECONDS
        self._found: dict[str, Any] = {}

    def record(self) -> dict[str, Any]:
        """As of at most `_HEALTH_SECONDS` ago."""
        with self._lock:
            if time.monotonic() - self._asked >= _HEALTH_SECONDS:
                self._found = self._look()
                self._asked = time.monotonic()
            return self._found

    def _look(self) -> dict[str, Any]:
        folder = self._reader.folder
        with closing(Operator(folder, self._reader.clock)) as operator:
            service = operator.serving()
        disk = shutil.disk_usage(folder.path)
        return {
            **vars(service),
            "certificates": self._certificates(),
            "alarms": standing(_samples(service), self._reader.now()),
            "disk_free_bytes": disk.free,
            "disk_bytes": disk.total,
            "database_bytes": self._reader.database_bytes(),
        }

    def _certificates(self) -> dict[str, Any]:
        folder, now = self._reader.folder, datetime.now(UTC)
        try:
            found = read_certificates(folder, self._reader.config.server, now)
        except FolderError as error:
            return {"ends": {}, "warnings": [str(error)]}
        ends = {name: end.timestamp() for name, end in found.ends().items()}
        return {"ends": ends, "warnings": list(found.warnings(now).values())}


def _samples(service: RunningService) -> list[Sample] | None:
    """What the service exports; None where it cannot be asked."""
    address = service.addresses.get("metrics", "")
    if not address:
        return None
    host, _, port = address.rpartition(":")
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    name = f"[{here}]" if ":" in here else here
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://{name}:{port}/metrics", timeout=_METRICS_SECONDS) as answer:
            return read_samples(answer.read(_METRICS_BYTES).decode())
    except (OSError, ValueError):  # it ends just now, or something else answers there
        return None
