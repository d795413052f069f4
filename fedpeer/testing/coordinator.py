"""A coordinator that serves from a thread of this process, and what an operator does with it.

One event loop runs for as long as the object lives; the service is started in it, stopped and started again.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

from coordinator.clock import Clock, ManualClock
from coordinator.config import ABSENCE_SECONDS, TaskConfig
from coordinator.folder import StateFolder, initialise
from coordinator.live import Session
from coordinator.opening import prepare_task
from coordinator.operator import Operator, TaskOverview
from coordinator.server import Coordinator
from coordinator.storage.tasks import EventRow
from fedpeer.audit.sources import open_source
from fedpeer.protocol.errors import Code, Refusal
from fedpeer.testing.errors import PATIENCE_SECONDS, MarketTestError
from mechanism.ledger.verify import Report, verify_ledger
from mechanism.lifecycle import State
from participant import Participant

T = TypeVar("T")

#: Names that the server's certificate is for.
_HOSTS = ("localhost", "127.0.0.1")

#: Seconds of real time in which the service starts, stops and answers, on a machine that is busy with other tests.
_ANSWER_SECONDS = 60.0

_RESTARTING = Refusal(Code.DRAINING, "The coordinator is shutting down.")


class LocalCoordinator:
    """A coordinator on two free ports of 127.0.0.1. `start` it, or use it in a `with` statement.

    Args:
        folder: its state folder, made where nothing is there.
        insecure: no TLS, participants are believed their name.
        database: an SQLAlchemy URL; empty: SQLite in the folder.
        clock: what time it is; default: a clock that stands still at the present, until `advance` moves it.
        absence_seconds: silence after which a participant no longer holds up a round.

    Attributes:
        market, public: its addresses, the same after a restart.

    Raises:
        CoordinatorError, StorageError: as `fedpeer coordinator` has them.
    """

    def __init__(
        self,
        folder: Path,
        *,
        insecure: bool = False,
        database: str = "",
        clock: Clock | None = None,
        absence_seconds: float = ABSENCE_SECONDS,
    ) -> None:
        self.insecure = insecure
        self.clock: Clock = ManualClock(time.time()) if clock is None else clock
        self.market = self.public = ""
        self._database = database
        self._absence_seconds = absence_seconds
        self._loop = asyncio.new_event_loop()
        self._service: Coordinator | None = None
        self._serving = asyncio.Event()
        self._sessions: set[Session] = set()
        self._thread: threading.Thread | None = None
        if (folder / "coordinator.toml").exists():
            self.folder = StateFolder(folder)
        else:
            self.folder = initialise(folder, self._config("127.0.0.1:0", "127.0.0.1:0"), "test", list(_HOSTS))

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @property
    def authority(self) -> bytes:
        """PEM of the certificate authority, which participants enrol with."""
        return (self.folder.path / "authority.pem").read_bytes()

    def start(self) -> None:
        """Serves; a second start takes the ports of the first."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop.run_forever, name="coordinator", daemon=True)
            self._thread.start()
        self._do(self._start())
        (self.folder.path / "coordinator.toml").write_text(self._config(self.market, self.public))

    def stop(self) -> None:
        """Stops without any grace: connections break, uploads in progress are cut."""
        if self._service is not None:
            self._do(self._stop())

    def restart(self) -> None:
        """Stops, and serves again from what is in the folder, on the same ports."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stops for good; the folder stays."""
        if self._thread is not None:
            try:
                self.stop()
                self._do(self._end_tasks())
            finally:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join(_ANSWER_SECONDS)
                self._thread = None
        if not self._loop.is_running():
            self._loop.close()

    def operator(self, act: Callable[[Operator], T]) -> T:
        """What `act` makes of the operator's commands, such as `lambda operator: operator.cancel("task", "why")`."""
        operator = Operator(self.folder, self.clock)
        try:
            return act(operator)
        finally:
            operator.close()

    def open(self, task: TaskConfig, *, deposit: bool = False) -> None:
        """Publishes a task, as `fedpeer coordinator open` does.

        Args:
            deposit: has the learner who funds the task pay in what it reserves.
        """
        prepared = prepare_task(task, self.clock.now())
        terms = prepared.row.terms
        if deposit and terms.funder:
            self.operator(lambda o: o.fund(terms.funder, f"for-{terms.task_id}"[:64], terms.budget_micro))
        self.operator(lambda operator: operator.open(prepared))

    def task(self, task_id: str) -> TaskOverview:
        """How a task stands, as `fedpeer coordinator status` has it."""
        return self.operator(lambda operator: operator.task(task_id))

    def invite(self, name: str) -> str:
        """A one-time token for a participant."""
        return self.operator(lambda operator: operator.invite(name).token)

    def enrol(self, name: str, state: Path, task_id: str = "") -> Path:
        """Invites and enrols a participant through the SDK; returns its state folder, `state`.

        Args:
            task_id: for which it enrols under a pseudonym; empty: under its own name.
        """
        invitation = self.operator(lambda operator: operator.invite(name, task_id=task_id))
        Participant.enroll(
            state,
            participant_id=invitation.participant_id,
            public=self.public,
            token=invitation.token,
            authority=None if self.insecure else self.authority,
        )
        return state

    def participant(self, name: str, folder: Path, *, task_id: str = "", **options: Any) -> Participant:
        """A new participant with its state below `folder`; `task_id` as of `enrol`, `options` as of `Participant`."""
        state = self.enrol(name, folder / name, task_id)
        return Participant(state, self.market, insecure=self.insecure, **options)

    def advance(self, seconds: float) -> None:
        """Moves the clock; what is due happens at once, in the background: wait for it with `until`.

        Raises:
            MarketTestError: the coordinator has another clock than its own.
        """
        clock = self.clock
        if not isinstance(clock, ManualClock):
            raise MarketTestError("the coordinator's clock is not the test's to move; leave `clock` out")

        async def move() -> None:
            clock.advance(seconds)

        self._do(move())

    def until(self, task_id: str, *states: str, round: int = 0, patience: float = PATIENCE_SECONDS) -> str:  # noqa: A002 - the field's word
        """Waits until a task has been in one of the states, in `round` or later; returns which.

        Args:
            states: names of `mechanism.lifecycle.State`, such as "TRAINING".
            patience: seconds of real time.

        Raises:
            MarketTestError: the task has ended without, or patience has.
        """
        wanted = frozenset(State(name) for name in states)
        try:
            event = self._do(self._event(task_id, wanted, round), patience)
        except TimeoutError:
            raise MarketTestError(
                f"task {task_id} did not come to {', '.join(states)} in {patience:g} s; {self.stands(task_id)}"
            ) from None
        if event is None:
            raise MarketTestError(
                f"task {task_id} ended without {', '.join(states)} of round {round}; {self.stands(task_id)}"
            )
        return str(event.state)

    def verify(self) -> Report:
        """Verifies the ledger as its auditor would: leaves, tree, heads, balances, draws, every payment, and everything
        that entries commit to. Can be asked at any time.

        Raises:
            AssertionError: something does not hold, with what.
        """
        with ExitStack() as resources:
            source = open_source(self.folder.database_url(self.folder.config()), resources)
            report = verify_ledger(source, openings=self.operator(lambda operator: operator.openings()))
        assert report.verified, "\n".join(f"{p.place}: {p.message}" for p in report.problems)
        return report

    def entries(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The ledger's entries in order, as parsed JSON: all, or the bodies of those of one kind, such as "payment"."""
        with ExitStack() as resources:
            source = open_source(self.folder.database_url(self.folder.config()), resources)
            entries = [json.loads(entry) for entry in source.entries()]
        return entries if kind is None else [entry["body"] for entry in entries if entry["kind"] == kind]

    def _config(self, market: str, public: str) -> str:
        return f"""\
name = "test"
[server]
market = "{market}"
public = "{public}"
metrics = ""
insecure = {str(self.insecure).lower()}
absence_seconds = {self._absence_seconds}
[storage]
database = {json.dumps(self._database)}
"""

    def stands(self, task_id: str) -> str:
        """Where a task stands and whom it waits for, in words."""
        report = self.task(task_id)
        row, missing = report.row, sorted({*report.selected} - {*report.delivered} - {*report.failures})
        waits = f"; no model came of {', '.join(missing)}" if row.state is State.TRAINING and missing else ""
        return f"it is {row.state} in round {row.round}{waits}{f': {row.reason}' if row.reason else ''}"

    def _do(self, work: Coroutine[Any, Any, T], patience: float = _ANSWER_SECONDS) -> T:
        """What `work` returns, carried out in the service's loop.

        Raises:
            TimeoutError: it takes longer; it is broken off.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(patience)
        except BaseException:
            future.cancel()
            raise

    async def _start(self) -> None:
        service = Coordinator(self.folder, clock=self.clock)
        await service.start()
        self._service = service
        self.market, self.public = service.market_address, service.public_address
        self._serving.set()

    async def _stop(self) -> None:
        assert self._service is not None
        service, self._service = self._service, None
        self._serving.clear()
        for session in self._sessions:
            session.end(_RESTARTING)
        await service.stop(0)

    async def _event(self, task_id: str, states: frozenset[State], round_: int) -> EventRow | None:
        """The first event of one of `states`, through restarts; None where the task ended without."""
        while True:
            await self._serving.wait()
            assert self._service is not None
            session = Session("test")
            self._sessions.add(session)
            try:
                live = await self._service.market.task(task_id)
                async for event in live.feed.follow(0, session):
                    if event.state in states and event.round >= round_:
                        return event
            finally:
                self._sessions.remove(session)
            if session.reason is None:
                return None

    async def _end_tasks(self) -> None:
        """Cancels what is still waited for in the loop, and ends its generators."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()
