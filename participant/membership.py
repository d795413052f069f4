"""What a participant can do: each call once, for the blocking client (`participant.sync`) and the asyncio one
(`participant.aio`)."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, get_args

import numpy.typing as npt

from fedpeer.v1 import market_pb2
from mechanism.degree import noniid_degree, stratum_counts
from mechanism.privacy import Privacy
from mechanism.reputation import Reputation
from mechanism.terms import Terms
from participant.accounting import PrivacyLimit
from participant.audits import AuditStanding, appeal, audits_of
from participant.backoff import Backoff
from participant.calls import call, class_call, each
from participant.dispute import Dispute, open_dispute
from participant.effects import Emit, Emits, Steps, Work, transform
from participant.effort import BestResponse, Effort, Explanation, effort_decimal, explained, strategy_of
from participant.endpoint import Endpoint, market_endpoint
from participant.engagement import (
    BEFORE_SELECTION,
    Assignment,
    Engagement,
    OwnerRules,
    PastTask,
    await_task,
    find_task,
    has_claimed,
    join,
    past_tasks,
    published,
)
from participant.enrolment import EnrolmentRequest
from participant.errors import ConfigurationError, DeclinedError, ParticipantError
from participant.identity import Credentials, IdentityFolder, utc_now
from participant.journal import MARKET, Journal
from participant.model_store import ModelStore, read_weights, write_trained
from participant.persistence import patiently
from participant.policy import Policy
from participant.progress import Paused, paused, terminal_progress
from participant.report import Receipt, Settlement, TaskReport, report_of
from participant.reputation import own_reputation
from participant.steps import MarketSteps
from participant.task import Counts, ProgressCallback, Task, TrainingRound, Weights, ignore_progress
from participant.work import (
    Activity,
    ActivityCallback,
    LocalTrainer,
    Trainer,
    ignore_activity,
    other_size,
    run_task,
    settle_past,
    trainer_of,
)

if TYPE_CHECKING:
    from mechanism.ledger.openings import Openings
    from participant.earnings import Earned
    from participant.keys import KeyReport, KeyWatch
    from participant.why import Why

#: The clients' own classes of a task that was joined, and of a round.
JoinedKind = TypeVar("JoinedKind")
RoundKind = TypeVar("RoundKind")

#: What to do where the log holds a key for this participant's name that is not its own (`participant.keys`): say so and
#: go on; claim nothing, and bring tasks to their end that are claimed; or stop at once.
ForeignKeys = Literal["warn", "refuse", "stop"]
FOREIGN_KEYS: tuple[ForeignKeys, ...] = get_args(ForeignKeys)


class Membership(Generic[JoinedKind]):
    """A participant at one coordinator.

    The synchronous one is safe to use from several threads, one task in each. The asyncio one belongs to the event loop
    that first uses it.

    Args:
        state: the folder with its key, certificate and journal; see `enroll`.
        market: the coordinator's market address, host:port.
        insecure: no TLS. For experiments on one machine, with a coordinator that runs so too.
        backoff: how calls are repeated.
        foreign_keys: what to do where the log holds a key for this name that is not its own: "warn" says so and goes
            on; "refuse" claims nothing, and brings tasks to their end that are claimed; "stop" ends at once. It is
            looked at when a task is joined, before a claim and at each receipt.
        policy: which terms are accepted; None: any.
        privacy_limit: what all models of the state folder together may tell of the data; None: there is no limit. A
            round beyond it is handed back before it is trained.

    Raises:
        ConfigurationError: not enrolled, files that do not fit together, or no address.
        CertificateExpiredError: the certificate has run out.
        JournalError: another process uses the folder.
    """

    client: Any
    _client_kind: type[Any]
    _joined_kind: type[Any]

    def __init__(
        self,
        state: Path | str,
        market: str,
        *,
        insecure: bool = False,
        backoff: Backoff | None = None,
        foreign_keys: ForeignKeys = "refuse",
        policy: Policy | None = None,
        privacy_limit: PrivacyLimit | None = None,
    ) -> None:
        if foreign_keys not in FOREIGN_KEYS:
            raise ConfigurationError(
                f"foreign_keys is {foreign_keys!r}; expected one of {', '.join(FOREIGN_KEYS)}"
            )
        self._folder = IdentityFolder(state)
        self._market, self._insecure = market, insecure
        self.credentials: Credentials = self._folder.credentials()
        self.credentials.check_valid(utc_now())
        endpoint = self._market_endpoint()
        self._journal = Journal(self._folder.journal)
        self._models = ModelStore(self._folder.models)
        self._foreign_keys = foreign_keys
        self._watch: KeyWatch | None = None
        self._policy, self._limit = policy, privacy_limit
        self._declined: set[str] = set()
        try:
            self._journal.own(self.participant_id)
            used = f"{'plain' if insecure else 'tls'} {market}"
            if self._journal.meta(MARKET) != used:
                self._journal.set_meta(MARKET, used)
        except ParticipantError:
            self._journal.close()
            raise
        self.client = self._client_kind(endpoint, backoff)
        self.transport = self.client.transport

    @property
    def participant_id(self) -> str:
        return self.credentials.participant_id

    @class_call
    def enroll(
        state: Path | str,  # noqa: N805 - see class_call
        *,
        participant_id: str,
        public: str,
        token: str,
        authority: bytes | None,
        backoff: Backoff | None = None,
    ) -> tuple[Endpoint, Steps[Credentials]]:
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
        request = EnrolmentRequest(IdentityFolder(state), participant_id, token, authority)
        return Endpoint(public, authority), _enrolled(request, MarketSteps(backoff), authority)

    @call
    def join(self, task_id: str, *, privacy: Privacy | None = None) -> Steps[JoinedKind]:
        """Agrees to a task's terms, which are checked and written down. Claims nothing yet.

        Args:
            privacy: noise of one's own choice; None: what the terms ask for. See `run`.

        Raises:
            DeclinedError: the policy does not accept the terms.
        """
        engagement = yield from self._engaged(task_id, privacy)
        joined: JoinedKind = self._joined_kind(self.transport, engagement)
        return joined

    @call
    def run(
        self,
        task: Task | Trainer,
        task_id: str | None = None,
        *,
        effort: Effort | None = None,
        on_progress: ActivityCallback | None = None,
        privacy: Privacy | None = None,
    ) -> Steps[TaskReport]:
        """Takes part in a task to its end, from wherever it stands; can be called again after any failure.

        Args:
            task: trains in the calling thread; with asyncio in a worker thread, from which `on_progress` is called.
            task_id: None: a task that ended while this participant was away (its payments are fetched), else the
                one that was begun, else the oldest that takes claims; waits until there is one.
            effort: a strategy, a number, or a function of terms and counts; None: `BestResponse()`.
            on_progress: is called with what happens; None: it is shown on standard error where that is a terminal.
            privacy: noise of one's own choice (`mechanism.privacy`); None: what the terms ask for. The coordinator's
                shadow models have the noise of the terms alone: with another one a model is read less exactly, or
                refused, at the participant's own risk.

        Raises:
            DeclinedError: the policy does not accept the terms of the named task. Where no task is named, the next one
                is waited for.
            Paused: Ctrl-C, where the call blocks; the same call goes on with what is kept.
        """
        tell = on_progress or terminal_progress()
        try:
            if task_id is None:
                yield from self._keys()  # at once: a task may be long in coming
                tell(Activity("waiting", "", 0, "waiting for a task that takes claims"))
        except KeyboardInterrupt:
            raise paused(self._journal, self.participant_id) from None
        while True:
            try:
                found = task_id
                if found is None:
                    found = yield from await_task(
                        self.client.steps, self._journal, self.participant_id, self._declined
                    )
                engagement = yield from self._engaged(found, privacy)
                return (yield from _run(engagement, task, effort, tell))
            except DeclinedError as error:
                self._declined.add(error.task_id)
                if task_id is not None:
                    raise
                tell(Activity("declined", error.task_id, 0, str(error)))
            except Paused:
                raise
            except KeyboardInterrupt:
                raise paused(self._journal, self.participant_id) from None

    @call
    def find_task(self, excluded: Collection[str] = ()) -> Steps[str | None]:
        """The task that was begun, else the oldest that takes claims; None where there is none.

        Args:
            excluded: ids that are not meant, besides those that the policy has declined.
        """
        passed = {*excluded, *self._declined}
        return find_task(self.client.steps, self._journal, self.participant_id, passed)

    @call
    def past_tasks(self, excluded: Collection[str] = ()) -> Steps[list[PastTask]]:
        """Ended tasks of which the journal lacks settlements or receipts; `catch_up` fetches them.

        After a lost journal too, for the ended tasks that the coordinator still lists.
        """
        return past_tasks(self.client.steps, self._journal, self.participant_id, excluded)

    @call
    def catch_up(self, task_id: str, on_progress: ActivityCallback = ignore_activity) -> Steps[TaskReport]:
        """Fetches what an ended task paid and what the coordinator recorded of this participant; trains nothing.

        Raises:
            NotFoundError: no such task.
            StateError: the task has not ended, or nothing was claimed in it.
        """
        engagement = yield from self._engaged(task_id)
        yield from settle_past(engagement, on_progress)
        return engagement.report()

    @call
    def explain(
        self,
        task: Task,
        task_id: str,
        effort: BestResponse | None = None,
        *,
        privacy: Privacy | None = None,
    ) -> Steps[Explanation]:
        """What each effort would earn in the task, and which is best; print it. Claims nothing and agrees to nothing.

        Its remarks say where the policy would decline the task, and where it takes no claims any more.

        Args:
            privacy: noise of one's own choice; None: what the terms ask for.

        Raises:
            EffortError: `effort` is no `BestResponse`, or its cost or curve cannot be used.
        """
        strategy, trainer = explained(effort), trainer_of(task)
        message, terms = yield from published(task_id, self.client.steps)

        def explanation() -> Explanation:
            trainer.prepare(terms)
            counts = trainer.counts()
            remarks = tuple(self._remarks(message, terms, counts, privacy))
            return replace(strategy.explain(terms, counts), remarks=remarks)

        found: Explanation = yield Work(explanation)
        return found

    def _remarks(
        self, message: market_pb2.Task, terms: Terms, counts: Counts, privacy: Privacy | None
    ) -> Iterator[str]:
        if message.state not in BEFORE_SELECTION:
            state = market_pb2.TaskState.Name(message.state).removeprefix("TASK_STATE_")
            yield f"Task {terms.task_id} takes no claims any more: it is {state}."
        try:
            self._check_policy(terms, stratum_counts(counts, terms.strata_names), privacy)
        except DeclinedError as error:
            yield f"It would not be joined: {error}."
        if sentence := other_size(terms, stratum_counts(counts, terms.strata_names)):
            yield sentence

    def _check_policy(self, terms: Terms, counts: Sequence[int], privacy: Privacy | None) -> None:
        if self._policy is not None:
            self._policy.check(terms, privacy)
            self._policy.check_pay(terms, counts)

    @call
    def check(self, task: Task, task_id: str, *, privacy: Privacy | None = None) -> Steps[Fraction]:
        """Holds files, data and policy against the published terms, as a claim does first; the degree that it would
        state. Claims nothing and agrees to nothing.

        Args:
            privacy: noise of one's own choice; None: what the terms ask for.

        Raises:
            DeclinedError: the policy does not accept the terms.
            TaskError: what does not fit; FieldError: counts of other strata than the terms'.
        """
        trainer = trainer_of(task)
        _, terms = yield from published(task_id, self.client.steps)

        def checked() -> Fraction:
            trainer.prepare(terms)
            counts = stratum_counts(trainer.counts(), terms.strata_names)
            self._check_policy(terms, counts, privacy)
            return noniid_degree(counts, terms.reference)

        degree: Fraction = yield Work(checked)
        return degree

    @call
    def dispute(self, task_id: str) -> Steps[Dispute]:
        """Opens the counts behind a claim to the coordinator and the auditor; says what that changes by round.

        Where the claimed degree agrees with the evidence the round is paid as claimed, when the task ends. Can be
        repeated to see how it stands.

        Raises:
            StateError: no claim of the task in the state folder.
            WrongStateError: terms without disputes, or the task has ended.
            NotFoundError: no round is settled yet.
        """
        return open_dispute(task_id, self.client.steps, self._journal)

    @call
    def audits(self, task_id: str) -> Steps[tuple[AuditStanding, ...]]:
        """How the audits of this participant's submissions stand, in the order of rounds.

        Raises:
            NotFoundError: no such task.
        """
        return audits_of(task_id, self.client.steps)

    @call
    def reputation(self) -> Steps[Reputation]:
        """What the operator sees of this participant's past across tasks, with every reason; in no payment."""
        return own_reputation(self.participant_id, self.client.steps)

    @call
    def appeal(self, task_id: str, round: int, reason: str) -> Steps[tuple[AuditStanding, ...]]:  # noqa: A002 - the field's word
        """Asks for a second audit after one that failed; can be repeated to see how it stands.

        The reason stands in the ledger, for everybody.

        Raises:
            NotSelectedError: no audit of that round.
            WrongStateError: none that failed, or the time for it is over.
        """
        return appeal(task_id, round, reason, self.client.steps)

    @call
    def renew(self, now: datetime | None = None) -> Steps[bool]:
        """Asks for the next certificate, for the same key, where a third of the present one's life is left or less, or
        the coordinator's authority is being replaced.

        Returns:
            whether there is a new one; it is in use already.
        """
        authority = yield from self.client.steps.authority()
        if (now or utc_now()) < self.credentials.renewal_due and not self._superseded(authority.certificates):
            return False
        request = EnrolmentRequest(self._folder, self.participant_id, token="")
        answer = yield from self.client.steps.enroll(request.message())
        self.credentials = request.complete(answer, self.credentials.authority_pem)
        self.transport.replace(self._market_endpoint())
        return True

    @call
    def why(self, task_id: str, round: int | None = None) -> "Steps[Why]":  # noqa: A002 - the field's word
        """Why a round paid what it paid: degrees, peers, the formula with the numbers in it, expected pay, penalty,
        stake and screens, from the ledger's entries, and computed again; print it.

        Args:
            round: None: the last one that is settled.

        Raises:
            StateError: nothing of the task is in the state folder, or nothing was due in the round.
            NotFoundError: the round is not settled yet.
        """
        from participant.why import why

        return why(task_id, round, self.participant_id, self.client.steps, self._journal)

    @call
    def openings(self, task_id: str) -> "Steps[Openings]":
        """What the ledger's entries about this participant commit to, and once the task has ended what the rounds'
        evidence does. `mechanism.ledger.verify.verify_ledger` takes them.

        Raises:
            NotFoundError: no such task.
            StateError: what the coordinator gives cannot be read.
        """
        from participant.openings import fetch_openings

        return fetch_openings(task_id, self.participant_id, self.client.steps)

    @call
    def keys(self) -> "Steps[KeyReport]":
        """Every key that the log holds for this participant's name, and which of them are its own."""
        return self._keys()

    def reports(self) -> list[TaskReport]:
        """How each task of the journal went."""
        return [report_of(self._journal, task.task_id, self.participant_id) for task in self._journal.tasks()]

    def earnings(self) -> "list[Earned]":
        """Every settled round with its receipt checked offline, by task and round."""
        from participant.earnings import check_earnings

        return check_earnings(self._journal, self.participant_id)

    def claimed(self, task_id: str) -> bool:
        """Whether this participant's claim for the task stands, or may stand."""
        return has_claimed(self._journal, task_id)

    def note(self, task_id: str, text: str) -> None:
        """Keeps a sentence on a task in the journal, such as why it was left."""
        self._journal.set_note(task_id, text)

    def _release(self) -> None:
        self._journal.close()

    def _engaged(self, task_id: str, privacy: Privacy | None = None) -> Steps[Engagement]:
        return join(
            task_id,
            participant_id=self.participant_id,
            key=self.credentials.key,
            market=self.client.steps,
            journal=self._journal,
            models=self._models,
            watch=self._key_watch(),
            rules=OwnerRules(self._policy, privacy, self._limit),
        )

    def _key_watch(self) -> "KeyWatch":
        from participant.keys import KeyWatch  # the ledger's part takes its time to import

        if self._watch is None:
            self._watch = KeyWatch(
                self.client.steps, self._journal, self._folder, self.participant_id, self._foreign_keys
            )
        return self._watch

    def _keys(self) -> "Steps[KeyReport]":
        from participant.keys import last_receipt
        from participant.log_keys import pin_log_key

        yield from pin_log_key(self.client.steps, self._journal)
        return (yield from self._key_watch().look(last_receipt(self._journal)))

    def _superseded(self, authority: bytes) -> bool:
        """Whether the coordinator's authorities, as PEM, are others than those that are trusted."""
        from fedpeer.protocol.certificates import CertificateError, issued_by_one_of, load_certificates

        if self._insecure:
            return False
        try:
            issuing, *others = load_certificates(authority)
        except CertificateError:
            return False
        stored = load_certificates(self.credentials.authority_pem)
        mine = self.credentials.certificate
        return stored != [issuing, *others] or not issued_by_one_of(mine, [issuing])

    def _market_endpoint(self) -> Endpoint:
        return market_endpoint(self.credentials, self._market, self._insecure)


class TaskMembership(Generic[RoundKind]):
    """A task that the participant has joined."""

    _round_kind: type[Any]

    def __init__(self, transport: Any, engagement: Engagement) -> None:
        self.transport = transport
        self._engagement = engagement

    @property
    def terms(self) -> Terms:
        return self._engagement.terms

    @property
    def privacy(self) -> Privacy | None:
        """The noise that models are to have: one's own choice, else that of the terms."""
        return self._engagement.privacy

    @property
    def task_id(self) -> str:
        return self._engagement.task_id

    def report(self) -> TaskReport:
        """How the task has gone so far."""
        return self._engagement.report()

    @call
    def run(
        self,
        task: Task | Trainer,
        *,
        effort: Effort | None = None,
        on_progress: ActivityCallback | None = None,
    ) -> Steps[TaskReport]:
        """As `Participant.run`, of this task."""
        return _run(self._engagement, task, effort, on_progress or terminal_progress())

    @call
    def claim(self, effort: float, counts: Counts) -> Steps[Receipt]:
        """Claims an effort in [0, 1] and the counts over strata that came of it. Once a task; repeating is harmless."""
        return self._engagement.claim(effort_decimal(effort), counts)

    @each
    def rounds(self) -> Emits[RoundKind]:
        """Each round that waits for a model, until the task ends. Submit (or fail) one before taking the next."""

        def emitted(assignment: Assignment) -> Steps[bool]:
            yield Emit(self._round_kind(self.transport, self._engagement, assignment))
            return True

        return transform(self._engagement.assignments(), emitted)

    @call
    def settlement(self, round: int) -> Steps[Settlement]:  # noqa: A002 - the field's word
        """What a round paid, and why.

        Raises:
            NotFoundError: not settled yet.
        """
        return self._engagement.settlement(round)


class RoundMembership:
    """A round that waits for this participant's model."""

    def __init__(self, transport: Any, engagement: Engagement, assignment: Assignment) -> None:
        self.transport = transport
        self._engagement = engagement
        self._assignment = assignment
        self._report: Callable[[float], None] | None = None

    @property
    def number(self) -> int:
        return self._assignment.number

    @property
    def deadline(self) -> datetime | None:
        """When models are no longer accepted, UTC."""
        return self._assignment.deadline

    @call
    def model_file(self) -> Steps[Path]:
        """The safetensors file that the round starts from, fetched when it is not there yet."""
        return self._engagement.fetch(self._assignment)

    @call
    def weights(self) -> Steps[dict[str, npt.NDArray[Any]]]:
        """The weights that the round starts from."""
        path = yield from self._engagement.fetch(self._assignment)
        found: dict[str, npt.NDArray[Any]] = yield Work(lambda: patiently(lambda: read_weights(path)))
        return found

    @call
    def train(self, task: Task, on_progress: ProgressCallback | None = None) -> Steps[Receipt]:
        """Trains with a `Task` object, where `Participant.run` would, and submits."""
        engagement = self._engagement
        start = yield from engagement.fetch(self._assignment)
        tell = yield from self._reporting()

        def progress(done: float, figures: Mapping[str, float]) -> None:
            (on_progress or ignore_progress)(done, figures)
            tell(done)

        context = TrainingRound(
            engagement.training_terms, engagement.participant_id, self.number, self.deadline, progress
        )
        tell(0.0)
        trained = engagement.trained_path(self.number)
        made = yield Work(lambda: LocalTrainer(task).train(start, trained, context))
        receipt = yield from engagement.submit(self.number, made.samples)
        engagement.note_metrics(self.number, made.metrics)
        return receipt

    @call
    def progress(self, done: float) -> Steps[None]:
        """Reports how far a training of one's own is, a share in [0, 1], for the operator to see.

        Returns at once and never fails; what comes within two seconds of the last is left out. Nothing depends on it.
        """
        report = yield from self._reporting()
        report(done)

    def _reporting(self) -> Steps[Callable[[float], None]]:
        if self._report is None:
            engagement = self._engagement
            self._report = yield from engagement.market.progress(engagement.task_id, self.number)
        return self._report

    @call
    def submit(
        self, weights: Weights, samples: int, metrics: Mapping[str, float] | None = None
    ) -> Steps[Receipt]:
        """Sends the trained weights; resumes and repeats until there is a receipt.

        Args:
            weights: names, types and shapes as received. Noise of the privacy method "update" is added here; of
                "dp-sgd" the weights are to have come of it, which nobody checks.
            samples: how many samples they were trained on, >= 1.
            metrics: for the journal; not sent.

        Raises:
            WeightsError: the weights do not fit the task's contract; nothing was sent.
            ModelRejectedError, WrongRoundError, ...: the coordinator refused them.
        """
        engagement = self._engagement
        path, start = engagement.trained_path(self.number), (yield from engagement.fetch(self._assignment))
        yield Work(lambda: patiently(lambda: write_trained(path, weights, start, engagement.training_terms)))
        receipt = yield from self._engagement.submit(self.number, samples)
        self._engagement.note_metrics(self.number, metrics or {})
        return receipt

    @call
    def fail(self, reason: str) -> Steps[Receipt]:
        """Tells the coordinator that this round gets no model, and why, so that it need not wait."""
        return self._engagement.fail(self.number, reason, reason)


def _enrolled(request: EnrolmentRequest, market: MarketSteps, authority: bytes | None) -> Steps[Credentials]:
    return request.complete((yield from market.enroll(request.message())), authority)


def _run(
    engagement: Engagement, task: Task | Trainer, effort: Effort | None, tell: ActivityCallback
) -> Steps[TaskReport]:
    strategy = strategy_of(BestResponse() if effort is None else effort)
    try:
        yield from run_task(engagement, trainer_of(task), strategy, tell)
    except KeyboardInterrupt:
        raise paused(engagement.journal, engagement.participant_id) from None
    return engagement.report()
