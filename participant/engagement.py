"""One participant in one task: what it agreed to, claims, trains, submits and is paid.

Steps over the raw client's (`participant.steps`), with the journal written before anything is sent. They can be
run again from the beginning at any time; what is done already is not done twice.
"""

import hashlib
import hmac
import json
import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.timestamp_pb2 import Timestamp

from fedpeer.protocol.codec import decode_opening, decode_signed, encode_signed
from fedpeer.protocol.errors import Code, Refusal
from fedpeer.protocol.faults import Outlook, outlook
from fedpeer.protocol.limits import MAX_REASON_CHARACTERS
from fedpeer.protocol.model_file import file_digest
from fedpeer.v1 import market_pb2
from mechanism.canonical import MAX_INTEGER
from mechanism.degree import noniid_degree, stratum_counts
from mechanism.errors import FieldError
from mechanism.peers import draw_head, draw_share
from mechanism.privacy import Privacy, gaussians
from mechanism.statements import (
    ClaimOpening,
    ClaimStatement,
    ModelOpening,
    ModelStatement,
    commit_counts,
    sign_statement,
)
from mechanism.terms import Terms
from participant.accounting import UNPROTECTED, Accountant, PrivacyLimit, check_accountant
from participant.audits import samples_salt
from participant.backoff import Backoff
from participant.effects import Emit, Pause, Steps, transform
from participant.errors import (
    CountsChangedError,
    DeclinedError,
    EffortError,
    IdentityBarredError,
    NotFoundError,
    NotSelectedError,
    PrivacyLimitError,
    RefusedError,
    SharesLostError,
    StateError,
    SubmittedError,
    TaskError,
    TrainingError,
    WrongStateError,
)
from participant.journal import Journal, Kind, SubmissionRecord, TaskRecord
from participant.model_store import ModelStore, moved
from participant.persistence import persistently
from participant.policy import Policy
from participant.report import (
    Receipt,
    Settlement,
    TaskReport,
    receipt_of,
    report_of,
    settlement_of,
    stored_settlement,
)
from participant.steps import ENDED, MarketSteps
from participant.task import Counts

if TYPE_CHECKING:
    from participant.keys import KeyWatch

#: States in which a claim that was refused for the task's state may be taken at the next attempt.
BEFORE_SELECTION = (market_pb2.TASK_STATE_OPEN, market_pb2.TASK_STATE_EFFORT)

#: Seconds between looks for a task that opens; the coordinator is asked for its list.
LOOK_SECONDS = 15.0

_SHARES = b"fedpeer draw shares v1"

#: Label of the salts of openings.
_SALTS = b"fedpeer opening salts v1"


@dataclass(frozen=True)
class OwnerRules:
    """What the owner of the data accepts and allows.

    Attributes:
        policy: which terms are accepted; None: any.
        privacy: noise of the owner's own choice; None: as the terms have it.
        limit: how much all models together may tell; None: there is no limit.
    """

    policy: Policy | None = None
    privacy: Privacy | None = None
    limit: PrivacyLimit | None = None


@dataclass(frozen=True)
class Assignment:
    """A round that waits for this participant's model.

    Attributes:
        number: 1..T.
        deadline: when models are no longer accepted, UTC; None where none runs.
        model_sha256: of the model that the round starts from.
    """

    number: int
    deadline: datetime | None
    model_sha256: bytes


@dataclass(eq=False, repr=False)
class Engagement:
    """The steps of one participant in one task. Made by `join`.

    Attributes:
        standing: how the coordinator last said that the task stands, and what it holds of this participant.
        watch: looks at the keys of this participant's name; None: nobody does.
        rules: what the owner accepts and allows.
    """

    terms: Terms
    standing: market_pb2.Task
    participant_id: str
    key: ec.EllipticCurvePrivateKey
    market: MarketSteps
    journal: Journal
    models: ModelStore
    watch: "KeyWatch | None" = None
    rules: OwnerRules = field(default_factory=OwnerRules)

    def __post_init__(self) -> None:
        self._accountant = Accountant(self.journal, self.rules.limit)

    @property
    def privacy(self) -> Privacy | None:
        """The noise that models have: of the owner's own choice, else of the terms."""
        return self.rules.privacy or self.terms.recipe.privacy

    @cached_property
    def training_terms(self) -> Terms:
        """The terms as they are trained by: with the owner's own choice of noise."""
        if self.privacy == self.terms.recipe.privacy:
            return self.terms
        return replace(self.terms, recipe=replace(self.terms.recipe, privacy=self.privacy))

    @property
    def task_id(self) -> str:
        return self.terms.task_id

    @property
    def _record(self) -> TaskRecord | None:
        return self.journal.task(self.task_id)

    @property
    def decided_effort(self) -> Decimal | None:
        """The effort that was decided on, in this process or an earlier one."""
        record = self._record
        return Decimal(record.effort) if record is not None and record.effort else None

    @property
    def claimed_counts(self) -> tuple[int, ...] | None:
        record = self._record
        return tuple(json.loads(record.counts)) if record is not None and record.counts else None

    @property
    def ended(self) -> bool:
        """Whether the task's end has been dealt with already."""
        record = self._record
        return record is not None and record.state in ENDED

    @property
    def over(self) -> bool:
        """Whether the task had ended when it was joined, and this participant had claimed in it: nothing is left
        to do but to fetch what it paid."""
        claimed = bool(self.standing.submissions) or has_claimed(self.journal, self.task_id)
        return self.ended or (self.standing.state in ENDED and claimed)

    def decide(self, effort: Decimal) -> None:
        """Writes the decision down, so that a restart does not make another one."""
        self.journal.set_effort(self.task_id, str(effort))

    def report(self) -> TaskReport:
        return report_of(self.journal, self.task_id, self.participant_id)

    @property
    def samples_salt(self) -> bytes:
        """Salt of the commitment to the samples: who has it and the samples can recompute that."""
        return samples_salt(self.key, self.terms.digest, self.participant_id)

    def claim(self, effort: Decimal, counts: Counts, samples_root: bytes = b"") -> Steps[Receipt]:
        """Claims an effort and the degree of `counts`; a second call with the same gives the same receipt.

        Args:
            samples_root: commitment to the samples, where the terms have audits.

        Raises:
            CountsChangedError: another claim stands.
            EffortError: counts that are not a histogram over the task's strata, or another effort was claimed.
            ForeignKeyError: the log holds a key for this name that is not its own; nothing was claimed.
            DeclinedError: a round pays less than the owner's policy accepts; nothing was claimed.
            WrongStateError: claims are closed, or all places are taken.
            SharesLostError: a claim stands with draw shares that this participant does not have.
        """
        self.check_shares()
        counts = self._checked_counts(counts)
        record = self.journal.submission(self.task_id, "claim")
        if record is None:
            if self.rules.policy is not None:
                with _noting(self.journal):
                    self.rules.policy.check_pay(self.terms, counts)
            if self.watch is not None:
                yield from self.watch.claiming()
            record = self._prepare_claim(effort, counts, samples_root)
        else:
            self.check_counts(counts)
            self._check_effort(effort, record)
        receipt = yield from self._settled_once(record)
        # Of other bytes: another process sent it, or this one in an earlier life, and it is not known what was said.
        if receipt.digest != hashlib.sha256(_signed(record).statement).digest():
            self.standing = yield from self.market.task(self.task_id)
            self.check_shares()
        return receipt

    def check_shares(self) -> None:
        """Raises SharesLostError where the claim that stands commits to other draw shares than this participant has:
        no model that is trained under it would be taken.

        The task is left alone from then on, until it has ended.
        """
        head = draw_head(self._draw_secret(), self.terms.schedule.rounds)
        if self.standing.draw_head in (b"", head):
            return
        text = (
            f"a claim of {self.participant_id} stands in task {self.task_id} whose draw shares are not those of "
            f"{self.journal.folder}: key and journal that it was made with are gone, or another process has them. "
            "Without the shares no model is taken, so nothing is trained. Restore the folder from a backup, or leave "
            "the task to the process that claimed; what earlier rounds paid stays paid"
        )
        self.journal.set_note(self.task_id, text)
        raise SharesLostError(text)

    def check_place(self) -> None:
        """Raises IdentityBarredError where the coordinator has said that a claim will be refused: before effort is made
        for it."""
        if self.standing.barred and not has_claimed(self.journal, self.task_id):
            raise IdentityBarredError(Refusal(Code.IDENTITY_BARRED, self.standing.barred))

    def check_counts(self, counts: Counts) -> None:
        """Raises CountsChangedError where `counts` are not those that were claimed."""
        claimed, now = self.claimed_counts, self._checked_counts(counts)
        if claimed is not None and claimed != now:
            raise CountsChangedError(
                f"the counts are {list(now)}, but {list(claimed)} were claimed for task {self.task_id}; "
                "train on the data that were claimed: a claim stands for the whole task",
                public="the counts are not those that were claimed",
            )

    def _check_effort(self, effort: Decimal, record: SubmissionRecord) -> None:
        if not record.message:  # the journal was lost
            return
        message = _signed(record)
        claimed = decode_opening(ClaimOpening, decode_signed(ClaimStatement, message), message).effort
        if claimed != effort:
            raise EffortError(
                f"the effort is {effort.normalize():f}, but {claimed.normalize():f} was claimed for task "
                f"{self.task_id}; a claim stands for the whole task"
            )

    def assignments(self) -> Steps[None]:
        """Emits each round that waits for a model, in order; ends with the task.

        What happened in the past is caught up with first: receipts that were lost on the way are fetched,
        models that were trained but not sent are sent, rounds that went by are noted as missed. Of a task that
        has ended it fetches what is missing of settlements and receipts, and emits nothing.

        Raises:
            SharesLostError: a claim stands with draw shares that this participant does not have.
        """
        if self.ended:
            for round_ in _unproven_rounds(self.journal, self.task_id, self.participant_id):
                yield from self._fetch_settlement(round_)
            return
        if self.over and self.journal.submission(self.task_id, "claim") is None:
            yield from self._restored("claim", 0)
        if not self.over:
            self.check_shares()
        record = self._record
        cursor = record.cursor if record is not None else 0
        yield from transform(self.market.watch(self.task_id, cursor), self._handle)

    def fetch(self, assignment: Assignment) -> Steps[Path]:
        """The model that the round starts from, as a file."""
        return persistently(lambda: self._fetch(assignment), self.market.clock)

    def _fetch(self, assignment: Assignment) -> Steps[Path]:
        path = self.models.start(self.task_id, assignment.number)
        if not (path.exists() and file_digest(path) == assignment.model_sha256):
            yield from self.market.fetch_model(self.task_id, assignment.number, assignment.model_sha256, path)
        return path

    def trained_path(self, round_: int) -> Path:
        """Where the trained model of a round is to be written before `submit`."""
        return self.models.trained(self.task_id, round_)

    def submit(self, round_: int, samples: int) -> Steps[Receipt]:
        """Sends the model at `trained_path(round_)`.

        Raises:
            SubmittedError: the round has another model already.
            ModelRejectedError, WrongStateError, ...: the coordinator refused it.
        """
        return persistently(lambda: self._submit(round_, samples), self.market.clock)

    def _submit(self, round_: int, samples: int) -> Steps[Receipt]:
        record = self.journal.submission(self.task_id, "model", round_)
        if record is not None and record.receipt is None and not self._holds(record):
            # Refused, or trained again since: another content, which may take the id unless it is taken.
            if (yield from self._found_receipt(record)):
                record = self.journal.submission(self.task_id, "model", round_)
            else:
                self.journal.discard(record.submission_id)
                record = None
        if record is not None:
            self._check_same(record, samples)
            return (yield from self._settled_once(record))
        return (yield from self._settled_once(self._prepare_model(round_, samples), resume=False))

    def _check_same(self, record: SubmissionRecord, samples: int) -> None:
        """Raises SubmittedError where the model at `trained_path` is not the recorded one."""
        path = self.trained_path(record.round)
        if record.receipt is None or not record.message or not path.exists():
            return
        message = _signed(record)
        said = decode_signed(ModelStatement, message)
        other_weights = file_digest(path) != said.model_sha256
        other_samples = samples != decode_opening(ModelOpening, said, message).samples
        self.models.forget(self.task_id, record.round)
        if other_weights or other_samples:
            raise SubmittedError(
                f"round {record.round} of task {self.task_id} has a model already, with "
                f"{'other weights' if other_weights else 'another number of samples'}; a submission stands, take the "
                "next round"
            )

    def _holds(self, record: SubmissionRecord) -> bool:
        """Whether the model file is still the one that was signed."""
        path = self.models.path(record.file)
        if record.status != "prepared" or not path.exists():
            return False
        return file_digest(path) == decode_signed(ModelStatement, _signed(record)).model_sha256

    def fail(self, round_: int, reason: str, public: str) -> Steps[Receipt]:
        """Tells the coordinator that this round gets no model.

        Args:
            reason: for the journal.
            public: what the coordinator learns; it stands in the ledger.
        """
        self._accountant.release(self.task_id, round_)
        self.journal.miss_round(self.task_id, round_, reason)
        message = market_pb2.ReportFailureRequest(
            submission_id=self._submission_id("failure", round_),
            task_id=self.task_id,
            participant_id=self.participant_id,
            round=round_,
            reason=public[:MAX_REASON_CHARACTERS],
        )
        record = self.journal.prepare(
            message.submission_id, self.task_id, "failure", round_, message.SerializeToString()
        )
        return self._settled_once(record)

    def note_metrics(self, round_: int, metrics: Mapping[str, float]) -> None:
        """Keeps figures of a round in the journal."""
        figures = {str(k): float(v) for k, v in metrics.items() if math.isfinite(v)}
        self.journal.set_metrics(self.task_id, round_, json.dumps(figures))

    def settlement(self, round_: int) -> Steps[Settlement]:
        """What a round paid; from the journal once it was fetched."""
        for number, message in self.journal.settlements(self.task_id):
            kept = stored_settlement(self.task_id, number, message)
            if number == round_ and kept is not None:
                return kept
        found = yield from self.market.settlement(self.task_id, round_)
        self.journal.add_settlement(self.task_id, round_, found.SerializeToString())
        return settlement_of(found)

    def _handle(self, event: market_pb2.Event) -> Steps[bool]:
        match event.WhichOneof("detail"):
            case "selected":
                if not event.selected.chosen:
                    self.journal.set_note(self.task_id, "the learner selected other participants")
                    self.journal.set_progress(self.task_id, event.state, event.cursor)
                    return False
            case "round_opened":
                yield from self._round_opened(event)
            case "round_settled":
                yield from self._round_settled(event)
            case "cancelled":
                self.journal.set_note(self.task_id, event.cancelled.reason)
        self.journal.set_progress(self.task_id, event.state, event.cursor)
        return True

    def _round_opened(self, event: market_pb2.Event) -> Steps[None]:
        round_, sha256 = event.round, event.round_opened.model_sha256
        if round_ == 1 and sha256 != self.terms.initial_model:
            raise StateError(
                f"task {self.task_id} starts from the model {sha256.hex()}, its terms promise "
                f"{self.terms.initial_model.hex()}; tell the coordinator's operator"
            )
        self.journal.open_round(self.task_id, round_, sha256)
        if (yield from self._caught_up(round_)):
            return
        now = yield from self.market.task(self.task_id)
        if now.round != round_ or now.state != market_pb2.TASK_STATE_TRAINING:
            self._miss(round_, "the round had closed before this participant came to it")
            return
        if not now.selected:
            self._miss(round_, "the learner selected other participants")
            return
        try:
            self._reserve(round_)
        except PrivacyLimitError as error:
            yield from self._refused_round(round_, error)
            return
        yield Emit(Assignment(round_, _moment(now.deadline if now.HasField("deadline") else None), sha256))
        if self.journal.submission(self.task_id, "model", round_) is None:
            self._miss(round_, "the participant's loop went on without a model")

    def _reserve(self, round_: int) -> None:
        """Takes a round into the account of what models tell, before it is trained."""
        privacy, recipe = self.privacy, self.terms.recipe
        if privacy is None:
            self._accountant.reserve(self.task_id, round_, UNPROTECTED, None)
            return
        samples = sum(self.claimed_counts or ()) or recipe.samples
        spent = gaussians(privacy, samples, recipe.batch_size, recipe.epochs)
        self._accountant.reserve(self.task_id, round_, spent, privacy.delta)

    def _refused_round(self, round_: int, error: PrivacyLimitError) -> Steps[None]:
        try:
            yield from self.fail(round_, str(error), error.public)
        except RefusedError as refusal:
            if outlook(refusal.code) is Outlook.PASSING:
                raise
            self._miss(round_, str(error))

    def _caught_up(self, round_: int) -> Steps[bool]:
        """Whether nothing is left to be done for the round; brings to an end what had been begun."""
        failure = self.journal.submission(self.task_id, "failure", round_)
        if failure is not None:
            yield from self._tolerated(failure)
            return True
        model = self.journal.submission(self.task_id, "model", round_)
        if model is None:
            if (yield from self._restored("failure", round_)):
                self._miss(round_, "the round was handed back")
                return True
            return (yield from self._restored("model", round_))
        if model.status == "refused":
            return True
        if model.receipt is None and not self._holds(model):
            if not (yield from self._found_receipt(model)):
                self.journal.discard(model.submission_id)
                return False
            return True
        yield from self._tolerated(model)
        return True

    def _tolerated(self, record: SubmissionRecord) -> Steps[None]:
        """Sends what an earlier process left; a refusal is noted and is no reason to stop."""
        try:
            yield from self._settled_once(record)
        except RefusedError as error:
            if outlook(error.code) is Outlook.PASSING:
                raise
            self._miss(record.round, str(error))

    def _found_receipt(self, record: SubmissionRecord) -> Steps[bool]:
        try:
            receipt = yield from self.market.receipt(self.task_id, record.submission_id)
        except NotFoundError:
            return False
        self.journal.record_receipt(record.submission_id, receipt.SerializeToString())
        return True

    def _restored(self, kind: Kind, round_: int) -> Steps[bool]:
        """Whether the coordinator holds a submission that this journal does not know: it was lost, or another process
        with this identity took part. Its receipt is written down; what was said in it is not known here."""
        name = self._submission_id(kind, round_)
        if name not in self.standing.submissions:
            return False
        receipt = yield from self.market.receipt(self.task_id, name)
        if kind == "model":  # of an earlier life, by the noise that is asked for now: nobody knows better
            with suppress(PrivacyLimitError):
                self._reserve(round_)
            self._accountant.sending(self.task_id, round_)
        self.journal.prepare(name, self.task_id, kind, round_, b"")
        self.journal.record_receipt(name, receipt.SerializeToString())
        return True

    def _round_settled(self, event: market_pb2.Event) -> Steps[None]:
        self.models.forget(self.task_id, event.round)
        settlement = event.round_settled.settlement
        if (settlement.task_id, settlement.participant_id, settlement.round) == (
            self.task_id,
            self.participant_id,
            event.round,
        ):
            self.journal.add_settlement(self.task_id, event.round, settlement.SerializeToString())
            yield from self._look_at_payment(settlement)
        else:
            yield from self._fetch_settlement(event.round)

    def _fetch_settlement(self, round_: int) -> Steps[None]:
        try:
            found = yield from self.market.settlement(self.task_id, round_)
        except (NotFoundError, NotSelectedError):
            return  # nothing was due: not selected, or no model
        self.journal.add_settlement(self.task_id, round_, found.SerializeToString())
        yield from self._look_at_payment(found)

    def _look_at_payment(self, settlement: market_pb2.Settlement) -> Steps[None]:
        if self.watch is not None and settlement.proof:
            yield from self.watch.paid(settlement.proof)

    def _miss(self, round_: int, reason: str) -> None:
        self._accountant.release(self.task_id, round_)
        self.journal.miss_round(self.task_id, round_, reason)
        self.models.forget(self.task_id, round_)

    def _prepare_claim(
        self, effort: Decimal, counts: tuple[int, ...], samples_root: bytes
    ) -> SubmissionRecord:
        draw_secret, name = self._draw_secret(), self._submission_id("claim", 0)
        salt = self._salt("counts")
        opening = ClaimOpening(effort, noniid_degree(counts, self.terms.reference), self._salt(name))
        statement = ClaimStatement(
            submission_id=name,
            task_id=self.task_id,
            terms_digest=self.terms.digest,
            participant_id=self.participant_id,
            commitment=opening.digest,
            counts_commitment=commit_counts(counts, salt),
            draw_head=draw_head(draw_secret, self.terms.schedule.rounds),
            nonce=self.standing.nonce,
            samples_root=samples_root,
        )
        message = encode_signed(statement, sign_statement(statement, self.key), opening)
        self.journal.set_effort(self.task_id, str(effort))
        self.journal.set_claim(self.task_id, json.dumps(list(counts)), salt, draw_secret)
        return self.journal.prepare(
            statement.submission_id, self.task_id, "claim", 0, message.SerializeToString()
        )

    def _prepare_model(self, round_: int, samples: int) -> SubmissionRecord:
        path = self.trained_path(round_)
        samples = whole_samples(round_, samples)
        start = self.models.start(self.task_id, round_)
        if start.exists() and not moved(start, path):
            path.unlink(missing_ok=True)
            raise TrainingError(
                f"the training of round {round_} moved no weight: the model is the one that the round started from, so "
                "there is nothing to pay for. Look for a learning rate that is too small for the weights' type, data "
                "that no batch was made of, or weights that are copied before the training and returned",
                public="the training moved no weight",
            )
        name = self._submission_id("model", round_)
        opening = ModelOpening(samples, self._salt(name))
        statement = ModelStatement(
            submission_id=name,
            task_id=self.task_id,
            terms_digest=self.terms.digest,
            participant_id=self.participant_id,
            round=round_,
            model_sha256=file_digest(path),
            model_bytes=path.stat().st_size,
            commitment=opening.digest,
            draw_share=draw_share(self._draw_secret(), self.terms.schedule.rounds, round_),
            nonce=self.standing.nonce,
        )
        message = encode_signed(statement, sign_statement(statement, self.key), opening)
        self._accountant.sending(self.task_id, round_)
        return self.journal.prepare(
            statement.submission_id, self.task_id, "model", round_, message.SerializeToString(), path.name
        )

    def _salt(self, what: str) -> bytes:
        """Of what a statement commits to: of the key, so that it outlives the journal."""
        return opening_salt(self.key, self.terms.digest, self.participant_id, what)

    def _draw_secret(self) -> bytes:
        """The end of the chain that the claim commits to: as it was claimed with, whatever has become of the key; else
        of the key, so that it outlives the journal."""
        record = self._record
        if record is not None and record.draw_secret is not None:
            return record.draw_secret
        return share_secret(self.key, self.terms.digest, self.participant_id)

    def _settled_once(self, record: SubmissionRecord, *, resume: bool = True) -> Steps[Receipt]:
        """The receipt of a submission, sent unless it is there already.

        Args:
            resume: of a model: as `MarketSteps.submit_model`.
        """
        if record.receipt is not None:
            return receipt_of(market_pb2.Receipt.FromString(record.receipt))
        try:
            receipt = yield from self._sent(record, resume)
        except RefusedError as error:
            # Else it stays prepared, and the next attempt sends it.
            if outlook(error.code) is Outlook.LASTING:
                self.journal.record_refusal(record.submission_id, str(error))
            raise
        self.journal.record_receipt(record.submission_id, receipt.SerializeToString())
        if record.kind != "claim":
            self.models.forget(self.task_id, record.round)
        if self.watch is not None and record.kind != "failure":
            yield from self.watch.received(receipt)
        return receipt_of(receipt)

    def _sent(self, record: SubmissionRecord, resume: bool) -> Steps[market_pb2.Receipt]:
        if record.kind == "failure":
            return self.market.report_failure(market_pb2.ReportFailureRequest.FromString(record.message))
        if record.kind == "model":
            return self.market.submit_model(_signed(record), self.models.path(record.file), resume=resume)
        return self._claim_sent(record)

    def _claim_sent(self, record: SubmissionRecord) -> Steps[market_pb2.Receipt]:
        waits = Backoff().waits()
        while True:
            try:
                return (yield from self.market.submit_effort(_signed(record)))
            except WrongStateError as error:
                # A task that was just opened takes claims in a moment; it may have begun to since the refusal.
                if error.code is not Code.WRONG_STATE:
                    raise
                if (yield from self.market.task(self.task_id)).state not in BEFORE_SELECTION:
                    raise
            yield Pause(next(waits))

    def _submission_id(self, kind: Kind, round_: int) -> str:
        return submission_id(self.task_id, self.participant_id, kind, round_)

    def _checked_counts(self, counts: Counts) -> tuple[int, ...]:
        return read_counts(counts, self.terms, "the task's counts")


def _signed(record: SubmissionRecord) -> market_pb2.Signed:
    """What was signed and sent, or is about to be; empty where the journal has only found its receipt."""
    return market_pb2.Signed.FromString(record.message)


def read_counts(counts: Counts, terms: Terms, what: str) -> tuple[int, ...]:
    """Counts in the reference's order, as a claim states them; see `mechanism.degree.stratum_counts`.

    Args:
        what: names them in the message.

    Raises:
        EffortError: they are not a histogram over the task's strata, or no statement can carry them.
    """
    try:
        whole = stratum_counts(counts, terms.strata_names)
        if max(whole) > MAX_INTEGER:  # more than a signed statement can carry
            raise FieldError("counts", max(whole), f"at most {MAX_INTEGER} samples of a stratum")
    except FieldError as error:
        raise EffortError(
            f"{what} cannot be used: {error}. Give one whole number for each of the task's {len(terms.reference)} "
            "strata, as a list in the reference's order or as a mapping of their names to counts",
            public="the participant's counts cannot be used",
        ) from None
    return whole


def whole_samples(round_: int, samples: Any) -> int:
    """The number of samples as a statement carries it; nothing is rounded."""
    try:
        whole = None if isinstance(samples, bool) else index(samples)
    except (TypeError, ValueError, RuntimeError):
        whole = None
    if whole is None or not 1 <= whole <= MAX_INTEGER:
        wrong = FieldError("samples", samples, f"a whole number from 1 to {MAX_INTEGER}")
        raise TaskError(
            f"the model of round {round_} cannot be sent: {wrong}",
            public="the number of samples cannot be used",
        )
    return whole


def submission_id(task_id: str, participant_id: str, kind: Kind, round_: int) -> str:
    """The same in every process, so that a participant that lost its journal does not submit twice."""
    text = f"{task_id}/{participant_id}/{kind}/{round_}"
    return f"{kind}-{round_}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def share_secret(key: ec.EllipticCurvePrivateKey, terms_digest: bytes, participant_id: str) -> bytes:
    """The end of a participant's chain of draw shares for a task: 32 bytes that only the key's holder can tell.

        HMAC-SHA-256(the key's private value, 32 bytes, label | digest of the terms | participant id)

    Other terms give another chain, so what one task reveals says nothing of another.
    """
    private = key.private_numbers().private_value.to_bytes(32, "big")
    return hmac.digest(private, _SHARES + terms_digest + participant_id.encode(), "sha256")


def opening_salt(
    key: ec.EllipticCurvePrivateKey, terms_digest: bytes, participant_id: str, what: str
) -> bytes:
    """The salt of what a participant commits to in a task: 32 bytes that only the key's holder can tell.

    HMAC-SHA-256(the key's private value, 32 bytes, label | digest of the terms | participant id | "/" | what)
    """
    private = key.private_numbers().private_value.to_bytes(32, "big")
    return hmac.digest(private, _SALTS + terms_digest + f"{participant_id}/{what}".encode(), "sha256")


def published(task_id: str, market: MarketSteps) -> "Steps[tuple[market_pb2.Task, Terms]]":
    """A task as the coordinator describes it now, and its terms, checked; nothing is agreed to.

    Raises:
        NotFoundError: no such task.
        StateError: terms that do not hold, or are another task's.
    """
    message = yield from market.task(task_id)
    try:
        terms = Terms.parse(message.terms)
    except FieldError as error:
        raise StateError(
            f"the terms of task {task_id} cannot be accepted: {error}; tell the coordinator's operator"
        ) from None
    if terms.task_id != task_id:
        raise StateError(
            f"the terms of task {task_id} are those of {terms.task_id}; tell the coordinator's operator"
        )
    return message, terms


def join(
    task_id: str,
    *,
    participant_id: str,
    key: ec.EllipticCurvePrivateKey,
    market: MarketSteps,
    journal: Journal,
    models: ModelStore,
    watch: "KeyWatch | None" = None,
    rules: OwnerRules | None = None,
) -> Steps[Engagement]:
    """Reads the terms of a task, checks them, and writes down that they are what is agreed to.

    Raises:
        DeclinedError: the owner does not accept them, and nothing is claimed in the task yet.
        NotFoundError, StateError: as `published`; or it has other terms than this participant agreed to.
    """
    message, terms = yield from published(task_id, market)
    yield from _pin_log_key(market, journal)
    rules = rules or OwnerRules()
    if not (message.submissions or has_claimed(journal, task_id)):
        _check_accepted(terms, rules, journal)
    if rules.privacy or terms.recipe.privacy:
        check_accountant()
    journal.accept(task_id)
    if watch is not None:
        yield from watch.joining()
    journal.add_task(task_id, message.terms)
    agreed = journal.task(task_id)
    if agreed is not None and agreed.terms != message.terms:
        raise StateError(
            f"task {task_id} has other terms than the ones that {participant_id} agreed to; "
            "tell the coordinator's operator"
        )
    return Engagement(terms, message, participant_id, key, market, journal, models, watch, rules)


def _check_accepted(terms: Terms, rules: OwnerRules, journal: Journal) -> None:
    """Raises DeclinedError where the owner does not accept the terms, and notes why."""
    # The ledger's part takes its time to import.
    from participant.log_keys import pinned_log_keys

    with _noting(journal):
        if rules.policy is not None:
            rules.policy.check(terms, rules.privacy)
            if rules.policy.coordinator_keys and (keys := pinned_log_keys(journal)) is not None:
                rules.policy.check_keys(terms.task_id, keys)
        if rules.limit is not None and rules.privacy is None and terms.recipe.privacy is None:
            raise DeclinedError(
                terms.task_id,
                [
                    "it asks for models without noise, which tell without a bound, and this participant has a privacy "
                    "limit; choose noise of your own for it"
                ],
            )


@contextmanager
def _noting(journal: Journal) -> Iterator[None]:
    """Keeps the reason in the journal for which a task is declined."""
    try:
        yield
    except DeclinedError as error:
        journal.decline(error.task_id, "; ".join(error.reasons))
        raise


@dataclass(frozen=True)
class PastTask:
    """A task that has ended and of which the journal lacks something that the coordinator can tell.

    Attributes:
        begun: this journal knows of the claim and not of the end: the task ended while the participant was away.
    """

    task_id: str
    begun: bool


def past_tasks(
    market: MarketSteps, journal: Journal, participant_id: str, excluded: Collection[str] = ()
) -> Steps[list[PastTask]]:
    """Ended tasks with this participant's claim whose settlements are not all in the journal, begun ones first.

    The coordinator lists its last ended tasks with what it holds of the caller, so those are found without a
    journal too; older ones only by their id.
    """
    listed = {message.task_id: message for message in (yield from market.tasks())}
    found = []
    for record in journal.tasks():
        task_id = record.task_id
        if task_id in excluded or not has_claimed(journal, task_id):
            continue
        if record.state in ENDED:
            if _unproven_rounds(journal, task_id, participant_id):
                found.append(PastTask(task_id, begun=False))
        elif not record.note:
            try:
                message = listed.get(task_id) or (yield from market.task(task_id))
            except NotFoundError:
                continue  # another coordinator's, or one that was set up again
            if message.state in ENDED:
                found.append(PastTask(task_id, begun=True))
    for task_id, message in listed.items():
        known = journal.task(task_id)
        unknown = not has_claimed(journal, task_id) and (known is None or known.state not in ENDED)
        if message.state in ENDED and message.submissions and unknown and task_id not in excluded:
            found.append(PastTask(task_id, begun=False))
    return sorted(found, key=lambda past: not past.begun)


def find_task(
    market: MarketSteps, journal: Journal, participant_id: str, excluded: Collection[str] = ()
) -> Steps[str | None]:
    """A task to take part in: one that was begun, else the oldest that takes claims; None where there is none.

    A task of which the journal keeps a note (cancelled, others were selected) is left alone. One with a claim that
    the journal has lost counts as begun.
    """
    known = {record.task_id: record for record in journal.tasks()}
    open_ones = []
    for message in (yield from market.tasks()):
        task_id = message.task_id
        if task_id in excluded or message.state in ENDED or (task_id in known and known[task_id].note):
            continue
        claim = submission_id(task_id, participant_id, "claim", 0)
        if has_claimed(journal, task_id) or claim in message.submissions:
            return task_id
        if message.state in BEFORE_SELECTION:
            open_ones.append(task_id)
    return open_ones[0] if open_ones else None


def has_claimed(journal: Journal, task_id: str) -> bool:
    """Whether a claim stands, or may stand because its reply was lost."""
    record = journal.submission(task_id, "claim")
    return record is not None and record.status != "refused"


def await_task(
    market: MarketSteps, journal: Journal, participant_id: str, excluded: Collection[str] = ()
) -> Steps[str]:
    """As `find_task`, waiting until there is one; first of all a task that ended while the participant was away."""
    for past in (yield from past_tasks(market, journal, participant_id)):
        if past.begun:
            return past.task_id
    while (task_id := (yield from find_task(market, journal, participant_id, excluded))) is None:
        yield Pause(LOOK_SECONDS)
    return task_id


def _unproven_rounds(journal: Journal, task_id: str, participant_id: str) -> list[int]:
    # The ledger's part takes its time to import, and only a task that has ended needs it.
    from participant.earnings import unproven_rounds

    return unproven_rounds(journal, task_id, participant_id)


def _pin_log_key(market: MarketSteps, journal: Journal) -> Steps[None]:
    # As above.
    from participant.log_keys import pin_log_key

    return pin_log_key(market, journal)


def _moment(stamp: Timestamp | None) -> datetime | None:
    return None if stamp is None else stamp.ToDatetime(tzinfo=UTC)
