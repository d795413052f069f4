"""The SDK, synchronous.

    with Participant("state", "market.example:7443") as me:
        me.run(MyTask(), "cats-1")                            # level 1: everything

        joined = me.join("cats-1")                            # level 2: one's own loop
        joined.claim(effort=0.3, counts=[120, 80])
        for round in joined.rounds():
            round.submit(my_training(round.weights()), samples=200)

        me.client.task("cats-1")                              # level 3: the protocol's messages

`participant.aio` has the same names for asyncio.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from participant.backoff import Backoff
from participant.client import Client
from participant.dispute import Dispute, open_dispute
from participant.effort import BestResponse, Effort, Explanation, effort_decimal, explained, strategy_of
from participant.endpoint import Endpoint
from participant.engagement import (
    Assignment,
    Engagement,
    PastTask,
    await_task,
    find_task,
    has_claimed,
    past_tasks,
    published,
)
from participant.enrolment import EnrolmentRequest
from participant.identity import Credentials, StateFolder
from participant.membership import ForeignKeys, Membership, RoundMembership, TaskMembership
from participant.model_store import read_weights, write_weights
from participant.persistence import patiently
from participant.report import Receipt, Settlement, TaskReport
from participant.task import Counts, ProgressCallback, Task, Weights
from participant.work import ActivityCallback, LocalTrainer, Trainer, ignore_activity, run_task, settle_past

if TYPE_CHECKING:
    from participant.keys import KeyReport


class Participant(Membership, AbstractContextManager["Participant"]):
    """A participant at one coordinator. Safe to use from several threads, one task in each.

    Args:
        state: the folder with its key, certificate and journal; see `enroll`.
        market: the coordinator's market address, host:port.
        private_counts: claim a salted commitment in place of the label counts.
        insecure: no TLS. For experiments on one machine, with a coordinator that runs so too.
        backoff: how calls are repeated.
        foreign_keys: what to do where the log holds a key for this name that is not its own: "warn" says so and goes
            on; "refuse" claims nothing, and brings tasks to their end that are claimed; "stop" ends at once. It is
            looked at when a task is joined, before a claim and at each receipt.

    Raises:
        ConfigurationError: not enrolled, files that do not fit together, or no address.
        CertificateExpiredError: the certificate has run out.
        JournalError: another process uses the folder.
    """

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
        self.client = Client(self._endpoint, backoff)

    @classmethod
    def enroll(
        cls,
        state: Path | str,
        *,
        participant_id: str,
        public: str,
        token: str,
        authority: bytes | None,
        backoff: Backoff | None = None,
    ) -> Credentials:
        """Makes a key in `state`, has it certified, and stores the certificate. The key never leaves the folder.

        Args:
            participant_id: as the invitation has it.
            public: the coordinator's public address, host:port.
            token: the invitation.
            authority: PEM of the coordinator's certificate authority, from its operator; None: no TLS.

        Raises:
            NotEnrolledError: the invitation does not hold.
            TLSError: the coordinator is not the one that the authority vouches for.
        """
        request = EnrolmentRequest(StateFolder(state), participant_id, token, authority)
        with Client(Endpoint(public, authority), backoff) as client:
            return request.complete(client.enroll(request.message()), authority)

    def close(self) -> None:
        """Ends the connection and gives the state folder up."""
        self.client.close()
        self._journal.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def join(self, task_id: str, *, private_counts: bool | None = None) -> "JoinedTask":
        """Agrees to a task's terms, which are checked and written down. Claims nothing yet."""
        steps = self._joined(task_id, self.client.steps, private_counts)
        return JoinedTask(self.client, self.client.transport.run(steps))

    def run(
        self,
        task: Task | Trainer,
        task_id: str | None = None,
        *,
        effort: Effort | None = None,
        on_activity: ActivityCallback = ignore_activity,
        private_counts: bool | None = None,
    ) -> TaskReport:
        """Takes part in a task to its end, from wherever it stands; can be called again after any failure.

        Args:
            task: trains in the calling thread.
            task_id: None: a task that ended while this participant was away (its payments are fetched), else the
                one that was begun, else the oldest that takes claims; waits until there is one.
            effort: a strategy, a number, or a function of terms and counts; None: `BestResponse()`.
            on_activity: is told what happens.
            private_counts: None: as the participant was made.
        """
        if task_id is None:
            self.keys()  # at once: a task may be long in coming
            task_id = self.client.transport.run(
                await_task(self.client.steps, self._journal, self.participant_id)
            )
        joined = self.join(task_id, private_counts=private_counts)
        return joined.run(task, effort=effort, on_activity=on_activity)

    def find_task(self, excluded: Collection[str] = ()) -> str | None:
        """The task that was begun, else the oldest that takes claims; None where there is none.

        Args:
            excluded: ids that are not meant.
        """
        return self.client.transport.run(
            find_task(self.client.steps, self._journal, self.participant_id, excluded)
        )

    def past_tasks(self, excluded: Collection[str] = ()) -> list[PastTask]:
        """Ended tasks of which the journal lacks settlements or receipts; `catch_up` fetches them.

        After a lost journal too, for the ended tasks that the coordinator still lists.
        """
        return self.client.transport.run(
            past_tasks(self.client.steps, self._journal, self.participant_id, excluded)
        )

    def catch_up(self, task_id: str, on_activity: ActivityCallback = ignore_activity) -> TaskReport:
        """Fetches what an ended task paid and what the coordinator recorded of this participant; trains nothing.

        Raises:
            NotFoundError: no such task.
            StateError: the task has not ended, or nothing was claimed in it.
        """
        joined = self.join(task_id)
        self.client.transport.run(settle_past(joined._engagement, on_activity))
        return joined.report()

    def explain(self, task: Task, task_id: str, effort: BestResponse | None = None) -> Explanation:
        """What each effort would earn in the task, and which is best; print it. Agrees to nothing and claims nothing.

        Raises:
            EffortError: `effort` is no `BestResponse`, or its cost or curve cannot be used.
        """
        strategy, trainer = explained(effort), trainer_of(task)
        _, terms = self.client.transport.run(published(task_id, self.client.steps))
        trainer.prepare(terms)
        return strategy.explain(terms, trainer.label_counts())

    def dispute(self, task_id: str) -> Dispute:
        """Opens the label counts behind a private claim, for everyone to see; says what that changes by round.

        Where the claimed degree agrees with the evidence the round is paid as claimed, when the task ends. Can be
        repeated to see how it stands.

        Raises:
            StateError: no private claim of the task in the state folder.
            WrongStateError: terms without disputes, or the task has ended.
            NotFoundError: no round is settled yet.
        """
        return self.client.transport.run(open_dispute(task_id, self.client.steps, self._journal))

    def renew(self, now: datetime | None = None) -> bool:
        """Asks for the next certificate, for the same key, where a third of the present one's life is left or less, or
        the coordinator's authority is being replaced.

        Returns:
            whether there is a new one; it is in use already.
        """
        authority = self.client.transport.run(self.client.steps.authority())
        request = self._renewal(now, authority.certificates)
        if request is None:
            return False
        answer = self.client.enroll(request.message())
        self.client.transport.replace(self._renewed(request, answer))
        return True

    def keys(self) -> "KeyReport":
        """Every key that the log holds for this participant's name, and which of them are its own."""
        return self.client.transport.run(self._keys(self.client.steps))

    def claimed(self, task_id: str) -> bool:
        """Whether this participant's claim for the task stands, or may stand."""
        return has_claimed(self._journal, task_id)

    def note(self, task_id: str, text: str) -> None:
        """Keeps a sentence on a task in the journal, such as why it was left."""
        self._journal.set_note(task_id, text)


class JoinedTask(TaskMembership):
    """A task that the participant has joined."""

    def __init__(self, client: Client, engagement: Engagement) -> None:
        super().__init__(engagement)
        self._transport = client.transport

    def run(
        self,
        task: Task | Trainer,
        *,
        effort: Effort | None = None,
        on_activity: ActivityCallback = ignore_activity,
    ) -> TaskReport:
        """As `Participant.run`."""
        strategy = strategy_of(BestResponse() if effort is None else effort)
        self._transport.run(run_task(self._engagement, trainer_of(task), strategy, on_activity))
        return self.report()

    def claim(self, effort: float, counts: Counts) -> Receipt:
        """Claims an effort in [0, 1] and the label counts that came of it. Once a task; repeating is harmless."""
        return self._transport.run(self._engagement.claim(effort_decimal(effort), counts))

    def rounds(self) -> Iterator["Round"]:
        """Each round that waits for a model, until the task ends. Submit (or fail) one before taking the next."""
        for assignment in self._transport.iterate(self._engagement.assignments()):
            yield Round(self, assignment)

    def settlement(self, round: int) -> Settlement:  # noqa: A002 - the field's word
        """What a round paid, and why.

        Raises:
            NotFoundError: not settled yet.
        """
        return self._transport.run(self._engagement.settlement(round))


class Round(RoundMembership):
    """A round that waits for this participant's model."""

    def __init__(self, joined: JoinedTask, assignment: Assignment) -> None:
        super().__init__(joined._engagement, assignment)
        self._transport = joined._transport

    def model_file(self) -> Path:
        """The safetensors file that the round starts from, fetched when it is not there yet."""
        return self._transport.run(self._engagement.fetch(self._assignment))

    def weights(self) -> dict[str, npt.NDArray[Any]]:
        """The weights that the round starts from."""
        path = self.model_file()
        return patiently(lambda: read_weights(path))

    def train(self, task: Task, on_progress: ProgressCallback | None = None) -> Receipt:
        """Trains with a `Task` object and submits."""
        start, engagement = self.model_file(), self._engagement
        trained = engagement.trained_path(self.number)
        made = LocalTrainer(task).train(start, trained, self._context(on_progress))
        receipt = self._transport.run(engagement.submit(self.number, made.samples))
        engagement.note_metrics(self.number, made.metrics)
        return receipt

    def submit(self, weights: Weights, samples: int, metrics: Mapping[str, float] | None = None) -> Receipt:
        """Sends the trained weights; resumes and repeats until there is a receipt.

        Args:
            weights: names, types and shapes as received.
            samples: how many samples they were trained on, >= 1.
            metrics: for the journal; not sent.

        Raises:
            WeightsError: the weights do not fit the task's contract; nothing was sent.
            ModelRejectedError, WrongRoundError, ...: the coordinator refused them.
        """
        path, contract = self._engagement.trained_path(self.number), self._engagement.terms.contract
        patiently(lambda: write_weights(path, weights, contract))
        receipt = self._transport.run(self._engagement.submit(self.number, samples))
        self._engagement.note_metrics(self.number, metrics or {})
        return receipt

    def fail(self, reason: str) -> Receipt:
        """Tells the coordinator that this round gets no model, and why, so that it need not wait."""
        return self._transport.run(self._engagement.fail(self.number, reason, reason))


def trainer_of(task: Task | Trainer) -> Trainer:
    """Where a task runs: a trainer as it is, a `Task` in the calling thread."""
    return LocalTrainer(task) if isinstance(task, Task) else task
