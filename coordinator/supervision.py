"""What the service does besides answering calls: each such *duty* begins again where it ends unplanned.

A duty is a coroutine that runs in the background: a task's runner, housekeeping, the look for revocations. It ends by
returning, or because the service stops. Whatever else ends it is a fault, of ours or of the machine: it is logged,
counted, shown by `fedpeer coordinator status`, and the duty begins again after a pause. So nothing dies in silence, and
nothing stays dead because a disk or a database was away at the wrong line.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import structlog

from coordinator.errors import CoordinatorError
from coordinator.metrics import Metrics
from fedpeer.audit.sql.errors import StorageError

log = structlog.get_logger()

#: Seconds until a duty begins again, doubled up to the second figure, or up to a limit of its own.
_RETRY_SECONDS = 0.5
_RETRY_LIMIT_SECONDS = 30.0

#: Seconds of failure after which it counts as lasting: a restart of the database takes less.
LASTING_SECONDS = 60.0


class Duty:
    """One duty, as it stands.

    Attributes:
        vital: whether the service is of no use without it.
        limit: seconds of its longest pause.
        trouble: why it ended last; None where it has done something since.
    """

    def __init__(self, name: str, supervisor: "Supervisor", *, vital: bool, limit: float) -> None:
        self.name = name
        self.vital = vital
        self.limit = limit
        self.trouble: str | None = None
        self._supervisor = supervisor
        self._since: float | None = None
        self._retry = _RETRY_SECONDS

    def well(self) -> None:
        """To be called by the duty: it has done something, so what ended it before is over."""
        if self.trouble is not None:
            self.trouble, self._since, self._retry = None, None, _RETRY_SECONDS
            self._supervisor._changed(self)

    @property
    def lasting(self) -> bool:
        """Whether it has failed for long."""
        return self._since is not None and time.monotonic() - self._since >= LASTING_SECONDS

    async def _carry_out(self, work: Callable[["Duty"], Awaitable[None]]) -> None:
        me = asyncio.current_task()
        while True:
            try:
                await work(self)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError) and me is not None and me.cancelling():
                    raise  # the service stops; any other cancellation is a fault like all others
                self._failed(error)
            else:
                self.well()
                return
            await asyncio.sleep(self._retry)
            self._retry = min(2 * self._retry, self.limit)

    def _failed(self, error: BaseException) -> None:
        self.trouble = f"{type(error).__name__}: {error}"
        if self._since is None:
            self._since = time.monotonic()
        self._supervisor._restarted(self)
        with suppress(Exception):  # a line that cannot be written is no reason to end
            # Of what an operator sees to, such as a database that is away, the sentence says all.
            known = isinstance(error, CoordinatorError | StorageError)
            why: dict[str, Any] = {"why": str(error)} if known else {"exc_info": error}
            log.error("a duty ended; it begins again", duty=self.name, seconds=self._retry, **why)


class Supervisor:
    """The duties of one service.

    Args:
        alarm: called, when that changes, with whether a vital duty fails lastingly.
    """

    def __init__(self, metrics: Metrics, alarm: Callable[[bool], None]) -> None:
        self._metrics = metrics
        self._alarm = alarm
        #: Whether a vital duty fails lastingly.
        self.alarmed = False
        self._duties: dict[str, Duty] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def begin(
        self,
        name: str,
        work: Callable[[Duty], Awaitable[None]],
        *,
        vital: bool = True,
        limit: float = _RETRY_LIMIT_SECONDS,
    ) -> None:
        """Begins a duty; one of that name, if any, has ended."""
        duty = self._duties[name] = Duty(name, self, vital=vital, limit=limit)
        self._metrics.duties_failing.labels(name).set(0)
        self._tasks[name] = asyncio.create_task(duty._carry_out(work), name=name)

    async def stop(self) -> None:
        """Ends all duties."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def troubles(self) -> dict[str, str]:
        """Duties that have ended and done nothing since, and why."""
        return {duty.name: duty.trouble for duty in self._duties.values() if duty.trouble is not None}

    def lasting_troubles(self) -> dict[str, str]:
        """Those of `troubles` that last."""
        found = [duty for duty in self._duties.values() if duty.lasting]
        return {duty.name: duty.trouble for duty in found if duty.trouble is not None}

    def _restarted(self, duty: Duty) -> None:
        self._metrics.duty_restarts.labels(duty.name).inc()
        self._changed(duty)

    def _changed(self, duty: Duty) -> None:
        self._metrics.duties_failing.labels(duty.name).set(duty.trouble is not None)
        lasting = any(each.vital and each.lasting for each in self._duties.values())
        if lasting is not self.alarmed:
            self.alarmed = lasting
            self._alarm(lasting)
