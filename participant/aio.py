"""The SDK for asyncio: the names of `participant.sync`, awaited.

    async with AsyncParticipant("state", "market.example:7443") as me:
        await me.run(MyTask(), "cats-1")                          # level 1: everything

        joined = await me.join("cats-1")                          # level 2: one's own loop
        await joined.claim(effort=0.3, counts=[120, 80])
        async for round in joined.rounds():
            await round.submit(my_training(await round.weights()), samples=200)

        await me.client.task("cats-1")                            # level 3: the protocol's messages

A task's own code (`Task.train` and the others) runs in a worker thread, so the event loop stays free. The
journal's short transactions run on the loop.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy.typing as npt

from fedpeer.v1 import enrolment_pb2, ledger_pb2, market_pb2
from participant.aio_transport import AsyncTransport
from participant.backoff import Backoff
from participant.dispute import Dispute, open_dispute
from participant.effort import BestResponse, Effort, Explanation, effort_decimal, explained, strategy_of
from participant.endpoint import Endpoint
from participant.engagement import (
    Assignment,
    Engagement,
    PastTask,
    await_task,
    find_task,
    past_tasks,
    published,
)
from participant.enrolment import EnrolmentRequest
from participant.identity import Credentials, StateFolder
from participant.membership import ForeignKeys, Membership, RoundMembership, TaskMembership
from participant.model_store import read_weights, write_weights
from participant.persistence import patiently
from participant.report import Receipt, Settlement, TaskReport
from participant.steps import (
    GET_BALANCE,
    GET_CONSISTENCY,
    GET_INCLUSION,
    MarketSteps,
)
from participant.sync import trainer_of
from participant.task import Counts, ProgressCallback, Task, Weights
from participant.work import ActivityCallback, LocalTrainer, Trainer, ignore_activity, run_task, settle_past

if TYPE_CHECKING:
    from participant.keys import KeyReport


class AsyncClient:
    """The raw client, as `participant.client.Client`. Make it on the event loop that uses it."""

    def __init__(self, endpoint: Endpoint, backoff: Backoff | None = None) -> None:
        self.steps = MarketSteps(backoff)
        self.transport = AsyncTransport(endpoint)

    async def close(self) -> None:
        await self.transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def tasks(self) -> list[market_pb2.Task]:
        """All tasks that the coordinator offers or has offered."""
        return await self.transport.run(self.steps.tasks())

    async def task(self, task_id: str) -> market_pb2.Task:
        return await self.transport.run(self.steps.task(task_id))

    def watch(self, task_id: str, cursor: int = 0) -> AsyncIterator[market_pb2.Event]:
        """Events after `cursor`, each once and in order, over any number of reconnections, until the task ends."""
        return self.transport.iterate(self.steps.watch(task_id, cursor))

    async def submit_effort(self, claim: market_pb2.Signed) -> market_pb2.Receipt:
        """Sends a signed claim."""
        return await self.transport.run(self.steps.submit_effort(claim))

    async def fetch_model(self, task_id: str, round: int, sha256: bytes, path: Path) -> None:  # noqa: A002 - the field's word
        """The model that a round starts from, to `path`; resumes, and checks the digest."""
        await self.transport.run(self.steps.fetch_model(task_id, round, sha256, path))

    async def submit_model(self, model: market_pb2.Signed, path: Path) -> market_pb2.Receipt:
        """Sends the file of a signed model statement; resumes where the coordinator has it."""
        return await self.transport.run(self.steps.submit_model(model, path))

    async def report_failure(self, request: market_pb2.ReportFailureRequest) -> market_pb2.Receipt:
        return await self.transport.run(self.steps.report_failure(request))

    async def receipt(self, task_id: str, submission_id: str) -> market_pb2.Receipt:
        return await self.transport.run(self.steps.receipt(task_id, submission_id))

    async def settlement(self, task_id: str, round: int) -> market_pb2.Settlement:  # noqa: A002 - the field's word
        return await self.transport.run(self.steps.settlement(task_id, round))

    async def enroll(self, request: enrolment_pb2.EnrollRequest) -> enrolment_pb2.EnrollResponse:
        return await self.transport.run(self.steps.enroll(request))

    async def checkpoint(self) -> ledger_pb2.Checkpoint:
        return await self.transport.run(self.steps.checkpoint())

    def entries(self, first: int = 0, count: int = 0) -> AsyncIterator[bytes]:
        """Canonical JSON of the ledger's entries from `first` on; 0: all."""
        return self.transport.iterate(self.steps.entries(first, count))

    async def inclusion_proof(self, index: int, size: int) -> ledger_pb2.InclusionProof:
        request = ledger_pb2.GetInclusionProofRequest(index=index, size=size)
        return await self.transport.run(self.steps.call(GET_INCLUSION, request))

    async def consistency_proof(self, first: int, second: int) -> ledger_pb2.ConsistencyProof:
        request = ledger_pb2.GetConsistencyProofRequest(first=first, second=second)
        return await self.transport.run(self.steps.call(GET_CONSISTENCY, request))

    async def balance(self, account: str) -> ledger_pb2.Balance:
        request = ledger_pb2.GetBalanceRequest(account=account)
        return await self.transport.run(self.steps.call(GET_BALANCE, request))


class AsyncParticipant(Membership, AbstractAsyncContextManager["AsyncParticipant"]):
    """As `participant.Participant`, for one event loop. Use it with `async with`: the connection is made there."""

    client: AsyncClient

    def __init__(
        self,
        state: Path | str,
        market: str,
        *,
        private_counts: bool = False,
        insecure: bool = False,
        backoff: Backoff | None = None,
        foreign_keys: ForeignKeys = "refuse",
    ) -> None:
        super().__init__(
            state, market, private_counts=private_counts, insecure=insecure, foreign_keys=foreign_keys
        )
        self._backoff = backoff

    @classmethod
    async def enroll(
        cls,
        state: Path | str,
        *,
        participant_id: str,
        public: str,
        token: str,
        authority: bytes | None,
        backoff: Backoff | None = None,
    ) -> Credentials:
        """As `Participant.enroll`."""
        request = EnrolmentRequest(StateFolder(state), participant_id, token, authority)
        async with AsyncClient(Endpoint(public, authority), backoff) as client:
            return request.complete(await client.enroll(request.message()), authority)

    async def __aenter__(self) -> Self:
        self.client = AsyncClient(self._endpoint, self._backoff)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connection and gives the state folder up."""
        await self.client.close()
        self._journal.close()

    async def join(self, task_id: str) -> "AsyncJoinedTask":
        """As `Participant.join`."""
        steps = self._joined(task_id, self.client.steps, None)
        return AsyncJoinedTask(self.client, await self.client.transport.run(steps))

    async def run(
        self,
        task: Task | Trainer,
        task_id: str | None = None,
        *,
        effort: Effort | None = None,
        on_activity: ActivityCallback = ignore_activity,
    ) -> TaskReport:
        """As `Participant.run`; the task's code, and so `on_activity` with its progress, runs in a worker thread."""
        if task_id is None:
            await self.keys()  # at once: a task may be long in coming
            task_id = await self.client.transport.run(
                await_task(self.client.steps, self._journal, self.participant_id)
            )
        joined = await self.join(task_id)
        return await joined.run(task, effort=effort, on_activity=on_activity)

    async def find_task(self, excluded: Collection[str] = ()) -> str | None:
        """As `Participant.find_task`."""
        return await self.client.transport.run(
            find_task(self.client.steps, self._journal, self.participant_id, excluded)
        )

    async def past_tasks(self, excluded: Collection[str] = ()) -> list[PastTask]:
        """As `Participant.past_tasks`."""
        return await self.client.transport.run(
            past_tasks(self.client.steps, self._journal, self.participant_id, excluded)
        )

    async def catch_up(self, task_id: str, on_activity: ActivityCallback = ignore_activity) -> TaskReport:
        """As `Participant.catch_up`."""
        joined = await self.join(task_id)
        await self.client.transport.run(settle_past(joined._engagement, on_activity))
        return joined.report()

    async def explain(self, task: Task, task_id: str, effort: BestResponse | None = None) -> Explanation:
        """As `Participant.explain`."""
        strategy, trainer = explained(effort), trainer_of(task)
        _, terms = await self.client.transport.run(published(task_id, self.client.steps))

        def explanation() -> Explanation:
            trainer.prepare(terms)
            return strategy.explain(terms, trainer.label_counts())

        return await asyncio.to_thread(explanation)

    async def renew(self, now: datetime | None = None) -> bool:
        """As `Participant.renew`."""
        authority = await self.client.transport.run(self.client.steps.authority())
        request = self._renewal(now, authority.certificates)
        if request is None:
            return False
        answer = await self.client.enroll(request.message())
        self.client.transport.replace(self._renewed(request, answer))
        return True

    async def keys(self) -> "KeyReport":
        """As `Participant.keys`."""
        return await self.client.transport.run(self._keys(self.client.steps))

    async def dispute(self, task_id: str) -> Dispute:
        """As `Participant.dispute`."""
        return await self.client.transport.run(open_dispute(task_id, self.client.steps, self._journal))


class AsyncJoinedTask(TaskMembership):
    """As `participant.JoinedTask`."""

    def __init__(self, client: AsyncClient, engagement: Engagement) -> None:
        super().__init__(engagement)
        self._transport = client.transport

    async def run(
        self,
        task: Task | Trainer,
        *,
        effort: Effort | None = None,
        on_activity: ActivityCallback = ignore_activity,
    ) -> TaskReport:
        """As `AsyncParticipant.run`."""
        strategy = strategy_of(BestResponse() if effort is None else effort)
        await self._transport.run(run_task(self._engagement, trainer_of(task), strategy, on_activity))
        return self.report()

    async def claim(self, effort: float, counts: Counts) -> Receipt:
        """As `JoinedTask.claim`."""
        return await self._transport.run(self._engagement.claim(effort_decimal(effort), counts))

    async def rounds(self) -> AsyncIterator["AsyncRound"]:
        """As `JoinedTask.rounds`."""
        async for assignment in self._transport.iterate(self._engagement.assignments()):
            yield AsyncRound(self, assignment)

    async def settlement(self, round: int) -> Settlement:  # noqa: A002 - the field's word
        """As `JoinedTask.settlement`."""
        return await self._transport.run(self._engagement.settlement(round))


class AsyncRound(RoundMembership):
    """As `participant.Round`."""

    def __init__(self, joined: AsyncJoinedTask, assignment: Assignment) -> None:
        super().__init__(joined._engagement, assignment)
        self._transport = joined._transport

    async def model_file(self) -> Path:
        """The safetensors file that the round starts from, fetched when it is not there yet."""
        return await self._transport.run(self._engagement.fetch(self._assignment))

    async def weights(self) -> dict[str, npt.NDArray[Any]]:
        """The weights that the round starts from."""
        path = await self.model_file()
        return await asyncio.to_thread(lambda: patiently(lambda: read_weights(path)))

    async def train(self, task: Task, on_progress: ProgressCallback | None = None) -> Receipt:
        """Trains with a `Task` object in a worker thread, and submits."""
        start, engagement = await self.model_file(), self._engagement
        trained = engagement.trained_path(self.number)
        made = await asyncio.to_thread(LocalTrainer(task).train, start, trained, self._context(on_progress))
        receipt = await self._transport.run(engagement.submit(self.number, made.samples))
        engagement.note_metrics(self.number, made.metrics)
        return receipt

    async def submit(
        self, weights: Weights, samples: int, metrics: Mapping[str, float] | None = None
    ) -> Receipt:
        """As `Round.submit`."""
        path, contract = self._engagement.trained_path(self.number), self._engagement.terms.contract
        await asyncio.to_thread(lambda: patiently(lambda: write_weights(path, weights, contract)))
        receipt = await self._transport.run(self._engagement.submit(self.number, samples))
        self._engagement.note_metrics(self.number, metrics or {})
        return receipt

    async def fail(self, reason: str) -> Receipt:
        """As `Round.fail`."""
        return await self._transport.run(self._engagement.fail(self.number, reason, reason))
