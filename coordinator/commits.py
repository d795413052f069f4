"""Steps run one after another, in the one thread that talks to the database, so that the event loop never waits for a
disk.

Steps that have come while the last commit was on its way to the disk are committed together, each after a savepoint of
its own: what is acknowledged is durable, and a thousand participants that arrive at once do not wait for a thousand
flushes.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeVar, cast

from coordinator.clock import Clock
from coordinator.errors import CoordinatorError
from coordinator.metrics import Metrics
from coordinator.storage.tasks import StaleTask
from coordinator.transaction import Transaction
from fedpeer.audit.sql.database import Database
from fedpeer.audit.sql.ledger_store import SignedLog, SqlLedgerStore
from fedpeer.audit.sql.statements import driver
from fedpeer.protocol.errors import Code, Refusal
from mechanism.errors import MechanismError

Result = TypeVar("Result")

#: A step within a transaction.
Work = Callable[[Transaction], Any]

#: Steps that are committed together: more would make readers wait longer.
_GROUP = 64

#: What a step refuses by. Anything else may have damaged the transaction that it shares.
_REFUSALS = (Refusal, MechanismError, CoordinatorError, StaleTask)


class Transactions:
    """Runs transactions in one thread, and long computations in another."""

    def __init__(self, database: Database, log: SignedLog, clock: Clock, metrics: Metrics) -> None:
        self._database = database
        self._log = log
        self._clock = clock
        self._metrics = metrics
        self._thread = ThreadPoolExecutor(1, "database")
        self._scoring = ThreadPoolExecutor(1, "scoring")
        self._computations = 0
        self._waiting: deque[_QueuedStep] = deque()
        self._called = False

    async def __call__(self, work: Callable[[Transaction], Result], *, durable: bool = True) -> Result:
        """`work`, whose changes are durable when it has returned, and undone where it raises.

        It may be run twice: once with others, then alone where the others' commit failed.

        Args:
            durable: False for what nobody learns of before a later step that is; see `Database.begin`.
        """
        result: Result = await self._in_turn(_QueuedStep(work, writes=True, durable=durable))
        return result

    async def read(self, work: Callable[[Transaction], Result]) -> Result:
        """`work` in a transaction that changes nothing. It may be run twice, as above."""
        result: Result = await self._in_turn(_QueuedStep(work, writes=False, durable=False))
        return result

    async def compute(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Evidence, means and evaluation: off the event loop and off the database's thread."""

        def counted() -> Result:
            self._computations += 1
            try:
                return work(*arguments)
            finally:
                self._computations -= 1

        return await asyncio.get_running_loop().run_in_executor(self._scoring, counted)

    async def sign_head(self) -> str:
        """The signed head of everything that is committed."""
        return await self._in_thread(self._log.sign_head)

    async def published(self) -> tuple[str, str, list[str]]:
        """As `sign_head`, with the log's present key and the receipts of every change of it."""

        def sign() -> tuple[str, str, list[str]]:
            self._log.sign_head()
            note, key, changes = self._log.published()
            return note, key, [str(proof) for proof in changes]

        return await self._in_thread(sign)

    async def proof(self, index: int) -> str:
        """A receipt of a ledger entry under a signed head: a C2SP tlog-proof."""
        return await self._in_thread(lambda: str(self._log.receipt(index)))

    def covered(self, t: Transaction, indices: Sequence[int]) -> list[str | None]:
        """`proof` of several entries within a transaction; None where no signed head covers one yet."""
        return [None if found is None else str(found) for found in self._log.covered(t.ledger_store, indices)]

    def run(self, work: Callable[[Transaction], Result]) -> Result:
        """`work` as a step, in the calling thread; for commands."""
        return cast(Result, self._together([work], writes=True, durable=True)[0])

    def look(self, work: Callable[[Transaction], Result]) -> Result:
        """`read` in the calling thread."""
        return cast(Result, self._together([work], writes=False)[0])

    def stop(self) -> None:
        """Waits for the transaction in progress. A computation is left to itself: it is done again after a restart."""
        self._thread.shutdown()
        self._scoring.shutdown(wait=False, cancel_futures=True)

    @property
    def computing(self) -> bool:
        """Whether a computation is in progress."""
        return self._computations > 0

    async def _in_turn(self, step: "_QueuedStep") -> Any:
        self._waiting.append(step)
        if not self._called:
            self._called = True
            try:
                self._thread.submit(self._take_waiting)
            except RuntimeError:
                self._called = False
                step.withdrawn = True
                raise _draining() from None
        return await step.done

    def _take_waiting(self) -> None:
        """In the database's thread: the steps that wait now, in groups of one kind. Those that come meanwhile call it
        again."""
        self._called = False
        waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
        for _, found in groupby(waiting, lambda step: step.writes):
            alike = list(found)
            for first in range(0, len(alike), _GROUP):
                self._carry_out(alike[first : first + _GROUP])

    def _carry_out(self, group: "Sequence[_QueuedStep]") -> None:
        """In one transaction: the steps of a group that somebody still waits for."""
        steps = [step for step in group if not (step.done.cancelled() or step.withdrawn)]
        if not steps:
            return
        outcomes = self._outcomes(steps)
        # All in one message to the event loop, which takes longer than a step does.
        loop = steps[0].done.get_loop()
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._deliver, steps, outcomes)

    def _outcomes(self, steps: "Sequence[_QueuedStep]") -> list[Any]:
        """What each step has returned or raised."""
        if len(steps) > 1:
            with suppress(Exception):  # whatever it is, nothing of the group has happened
                durable = any(step.durable for step in steps)
                return self._together([step.work for step in steps], writes=steps[0].writes, durable=durable)
        return [self._alone(step) for step in steps]

    def _together(self, works: Sequence[Work], *, writes: bool, durable: bool = False) -> list[Any]:
        """What each returned in one transaction, or was refused by where there are several; the only one's refusal is
        raised. Raises where the transaction as a whole has failed."""
        outcomes: list[Any] = []
        several = len(works) > 1
        with self._database.begin(durable=durable) if writes else self._database.read() as connection:
            execute = driver(connection).execute if writes and several else lambda statement: None
            ledger = SqlLedgerStore(connection)
            if writes:
                # One writer at a time on every database, from its first read on: what a step decides from still holds
                # when it commits.
                ledger.lock()
            for work in works:
                execute("SAVEPOINT step")
                try:
                    outcomes.append(work(Transaction(connection, self._clock.now(), ledger)))
                except _REFUSALS as error:
                    if not several:
                        raise
                    execute("ROLLBACK TO SAVEPOINT step")
                    ledger = SqlLedgerStore(connection)  # the other knows what has been undone
                    outcomes.append(_Raised(error))
                execute("RELEASE SAVEPOINT step")
        return outcomes

    def _alone(self, step: "_QueuedStep") -> Any:
        try:
            return self._together([step.work], writes=step.writes, durable=step.durable)[0]
        except StopIteration as error:  # which no future takes, so that its waiter would wait for ever
            return _Raised(RuntimeError(f"a step has raised {error!r}"))
        except BaseException as error:
            return _Raised(error)

    def _deliver(self, steps: "Sequence[_QueuedStep]", outcomes: Sequence[Any]) -> None:
        """In the event loop: gives each waiter its outcome."""
        now = time.perf_counter()
        for step, outcome in zip(steps, outcomes, strict=True):
            self._metrics.transaction_seconds.observe(now - step.began)
            if step.done.done():  # nobody waits any more
                continue
            if isinstance(outcome, _Raised):
                step.done.set_exception(outcome.error)
            else:
                step.done.set_result(outcome)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        began = time.perf_counter()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except RuntimeError as error:
            if "shutdown" in str(error):
                raise _draining() from None
            raise
        finally:
            self._metrics.transaction_seconds.observe(time.perf_counter() - began)


@dataclass
class _QueuedStep:
    """Work that waits for its transaction, and what the event loop waits for."""

    work: Callable[[Transaction], Any]
    writes: bool
    durable: bool
    done: "asyncio.Future[Any]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    began: float = field(default_factory=time.perf_counter)
    withdrawn: bool = False


@dataclass(frozen=True)
class _Raised:
    """The outcome of work that raised."""

    error: BaseException


def _draining() -> Refusal:
    return Refusal(Code.DRAINING, "The coordinator is shutting down.")
