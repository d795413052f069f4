"""What the synchronous and the asyncio client have in common: all that does not depend on how calls are made."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from fedpeer.v1 import enrolment_pb2
from mechanism.terms import Terms
from participant.effects import Steps
from participant.endpoint import Endpoint
from participant.engagement import Assignment, Engagement, join
from participant.enrolment import EnrolmentRequest
from participant.errors import ConfigurationError, ParticipantError
from participant.identity import Credentials, StateFolder, utc_now
from participant.journal import Journal
from participant.model_store import ModelStore
from participant.report import TaskReport, report_of
from participant.steps import MarketSteps
from participant.task import ProgressCallback, TrainingRound

if TYPE_CHECKING:
    from participant.keys import KeyReport, KeyWatch

#: What to do where the log holds a key for this participant's name that is not its own (`participant.keys`): say so and
#: go on; claim nothing, and bring tasks to their end that are claimed; or stop at once.
ForeignKeys = Literal["warn", "refuse", "stop"]
FOREIGN_KEYS: tuple[ForeignKeys, ...] = get_args(ForeignKeys)


class Membership:
    """A participant's open state folder, and the market that it is enrolled at."""

    def __init__(
        self,
        state: Path | str,
        market: str,
        *,
        private_counts: bool,
        insecure: bool,
        foreign_keys: ForeignKeys = "refuse",
    ) -> None:
        if foreign_keys not in FOREIGN_KEYS:
            raise ConfigurationError(
                f"foreign_keys is {foreign_keys!r}; expected one of {', '.join(FOREIGN_KEYS)}"
            )
        self._folder = StateFolder(state)
        self._market, self._insecure = market, insecure
        self.credentials: Credentials = self._folder.credentials()
        self.credentials.check_valid(utc_now())
        self._endpoint = self._market_endpoint()
        self._journal = Journal(self._folder.journal)
        self._models = ModelStore(self._folder.models)
        self._private_counts = private_counts
        self._foreign_keys = foreign_keys
        self._watch: KeyWatch | None = None
        try:
            self._journal.own(self.participant_id)
        except ParticipantError:
            self._journal.close()
            raise

    @property
    def participant_id(self) -> str:
        return self.credentials.participant_id

    def reports(self) -> list[TaskReport]:
        """How each task of the journal went."""
        return [report_of(self._journal, task.task_id, self.participant_id) for task in self._journal.tasks()]

    def _joined(self, task_id: str, market: MarketSteps, private_counts: bool | None) -> Steps[Engagement]:
        return join(
            task_id,
            participant_id=self.participant_id,
            key=self.credentials.key,
            market=market,
            journal=self._journal,
            models=self._models,
            private_counts=self._private_counts if private_counts is None else private_counts,
            watch=self._key_watch(market),
        )

    def _key_watch(self, market: MarketSteps) -> "KeyWatch":
        from participant.keys import KeyWatch  # the ledger's part takes its time to import

        if self._watch is None:
            self._watch = KeyWatch(
                market, self._journal, self._folder, self.participant_id, self._foreign_keys
            )
        return self._watch

    def _keys(self, market: MarketSteps) -> "Steps[KeyReport]":
        from participant.keys import last_receipt
        from participant.log_keys import pin_log_key

        yield from pin_log_key(market, self._journal)
        return (yield from self._key_watch(market).look(last_receipt(self._journal)))

    def _renewal(self, now: datetime | None, authority: bytes) -> EnrolmentRequest | None:
        """The request for the next certificate; None before it is due.

        Args:
            authority: PEM of the coordinator's authorities now. Where they are others than those that are trusted,
                the next one is due.
        """
        if (now or utc_now()) < self.credentials.renewal_due and not self._superseded(authority):
            return None
        return EnrolmentRequest(self._folder, self.participant_id, token="")

    def _superseded(self, authority: bytes) -> bool:
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

    def _renewed(self, request: EnrolmentRequest, answer: enrolment_pb2.EnrollResponse) -> Endpoint:
        """Stores the next certificate; returns the endpoint that uses it."""
        self.credentials = request.complete(answer, self.credentials.authority_pem)
        return self._market_endpoint()

    def _market_endpoint(self) -> Endpoint:
        if self._insecure:
            return Endpoint(self._market, plain_text_name=self.participant_id)
        return Endpoint(self._market, self.credentials.authority_pem, self.credentials)


class TaskMembership:
    """A task that the participant has joined, as far as the journal and the terms tell."""

    def __init__(self, engagement: Engagement) -> None:
        self._engagement = engagement

    @property
    def terms(self) -> Terms:
        return self._engagement.terms

    @property
    def task_id(self) -> str:
        return self._engagement.task_id

    def report(self) -> TaskReport:
        """How the task has gone so far."""
        return self._engagement.report()


class RoundMembership:
    """A round that waits for this participant's model."""

    def __init__(self, engagement: Engagement, assignment: Assignment) -> None:
        self._engagement = engagement
        self._assignment = assignment

    @property
    def number(self) -> int:
        return self._assignment.number

    @property
    def deadline(self) -> datetime | None:
        """When models are no longer accepted, UTC."""
        return self._assignment.deadline

    def _context(self, on_progress: ProgressCallback | None) -> TrainingRound:
        engagement = self._engagement
        return TrainingRound.of(
            engagement.terms, engagement.participant_id, self.number, self.deadline, on_progress
        )
