"""What the operator does, on the state folder, whether or not a service runs from it.

Each act is one transaction in the database. The act then notifies a running service through its control socket, and
returns when the service has read the change; `Operator.notice` says whether it has.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from cryptography.hazmat.primitives.hashes import SHA256

from coordinator import audits, payouts
from coordinator.backup import Manifest, write_backup
from coordinator.banking import PaymentFiles, checked_account, checked_payer, payment_files
from coordinator.blobs import BlobStore, open_blobs
from coordinator.certificates import Certificates, read_certificates
from coordinator.clock import Clock, SystemClock
from coordinator.commits import Transactions
from coordinator.config import ServiceConfig
from coordinator.control_socket import RoundProgress, notify, progress, round_progress
from coordinator.errors import FolderError, MarketTaskError, PayoutError
from coordinator.folder import StateFolder
from coordinator.forgetting import Forgotten, forget
from coordinator.history import merged_before, round_start
from coordinator.identity import Invitation, invite
from coordinator.metrics import Metrics
from coordinator.opening import PreparedTask
from coordinator.reputation import reputation_of
from coordinator.retention import retention_at
from coordinator.revocations import CarriedOver, carry_over, check_copy, earlier_keys, unrecorded
from coordinator.scoring import make_scorer
from coordinator.states import Progress
from coordinator.storage.audits import AuditRow
from coordinator.storage.changes import Kind
from coordinator.storage.identities import ParticipantRow
from coordinator.storage.lease import holder, served
from coordinator.storage.payouts import BankAccountRow, FundingRow
from coordinator.storage.rounds import Retention, RoundRow
from coordinator.storage.store import MarketStore
from coordinator.storage.submissions import ClaimRow, FailureRow, ModelRow
from coordinator.storage.tasks import TaskRow
from coordinator.transaction import Transaction
from fedpeer.audit.sql.database import Database, parse_url, sqlite_file
from fedpeer.audit.sql.errors import StorageError
from fedpeer.audit.sql.ledger_store import SignedLog
from fedpeer.protocol.audit_folder import AuditOrder, Brought, BroughtRemeasurement, TaskOrder
from fedpeer.protocol.certificates import (
    Identity,
    authority_id,
    certificate_hosts,
    issuer_id,
    load_certificate,
)
from mechanism.audit_verdict import AuditVerdict
from mechanism.ledger.entries import CONFIRMED, WITHDRAWN, aggregation_id
from mechanism.ledger.entry import Entry
from mechanism.ledger.note import VerificationKey
from mechanism.ledger.openings import Openings
from mechanism.lifecycle import State
from mechanism.reputation import Reputation

Result = TypeVar("Result")


class Notice(StrEnum):
    """Whether what was changed is in force.

    CONFIRMED: a service runs and has taken notice.
    NOT_SERVED: no service runs: the next one begins with it.
    UNCONFIRMED: a service holds the database and has not said that it has taken notice: it does when it looks again,
        at the next command that it answers or when it starts again.
    """

    CONFIRMED = "confirmed"
    NOT_SERVED = "not served"
    UNCONFIRMED = "unconfirmed"


@dataclass(frozen=True)
class Revoked:
    """What a revocation found.

    Attributes:
        enrolled: whether the participant had enrolled.
        before: whether it was revoked already.
        withdrawn: its invitations that could still be used, and no longer can; its pseudonyms' among them.
        pseudonyms: of it that were revoked with it.
        standing: pseudonyms of it that stay in good standing.
    """

    enrolled: bool
    before: bool
    withdrawn: int
    pseudonyms: tuple[str, ...] = ()
    standing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entrance:
    """Where participants find the market, and how they know it.

    Attributes:
        market, public: host:port of the two ports, by a name that the server's certificate has.
        fingerprints: SHA-256 of the authorities' certificates, the one that issues first.
    """

    market: str
    public: str
    fingerprints: tuple[str, ...]


@dataclass(frozen=True)
class RunningService:
    """The service of the folder.

    Attributes:
        serving: whether one runs.
        answers: whether it does, too.
        addresses: empty while it is just starting, and where none runs.
        machine: on which it runs, of fronts the one that leads; empty where the database does not say, as SQLite.
        troubles: what does not go well in it, by the name of a task or duty, and why.
    """

    serving: bool = False
    answers: bool = False
    machine: str = ""
    addresses: dict[str, str] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Enrolment:
    """One participant of the market: when it enrolled, until when its last certificate holds, and how it stands.

    Attributes:
        standing: "enrolled", "expired" or "revoked".
        organisation: whom it is of; empty: one by itself.
        task, owner: of a pseudonym, the task that it was made for and whose it is; else empty.
    """

    id: str
    enrolled_at: float
    certificate_expires: float
    standing: str
    organisation: str = ""
    task: str = ""
    owner: str = ""


class Standing(StrEnum):
    """How a participant stands in the task's current round."""

    CLAIMED = "claimed"
    NOT_SELECTED = "not selected"
    SELECTED = "selected"
    AWAITED = "awaited"
    DELIVERED = "delivered"
    FAILED = "failed"
    MISSED = "did not deliver"


@dataclass(frozen=True)
class LearnedModel:
    """A model of a task: after which round, its digest, which is the ledger's, its file, and loss and accuracy by name
    where the learner's data gave them."""

    task_id: str
    round: int
    digest: bytes
    path: Path
    figures: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Person:
    """One participant of a task, what it was paid so far, and what was to be expected before peers were drawn."""

    id: str
    standing: Standing
    degree: str
    paid_micro: int
    expected_micro: int


@dataclass(frozen=True)
class TaskOverview:
    """One task for the operator: its row, its rounds, who takes part, what was paid and what is reserved.

    Attributes:
        people: those who have claimed, by id.
        failures: what participants reported in the current round, by id.
        failed: what participants reported in any round, the oldest first.
    """

    row: TaskRow
    rounds: tuple[RoundRow, ...]
    claimed: tuple[str, ...]
    selected: tuple[str, ...]
    delivered: tuple[str, ...]
    people: tuple[Person, ...]
    failures: dict[str, str]
    failed: tuple[FailureRow, ...]
    paid_micro: dict[str, int]
    escrow_micro: int

    def record(self, progress: Mapping[str, RoundProgress]) -> dict[str, Any]:
        """For --json; with how far the round is, as the service says."""
        row = self.row
        current = round_progress(progress, row.id, row.round)
        return {
            "id": row.id,
            "state": row.state.value,
            "round": row.round,
            "rounds": row.terms.schedule.rounds,
            "deadline": row.deadline,
            "reason": row.reason,
            "budget_micro": row.terms.budget_micro,
            "escrow_micro": self.escrow_micro,
            "model_sha256": row.model.hex(),
            "claimed": list(self.claimed),
            "selected": list(self.selected),
            "delivered": list(self.delivered),
            "participants": [vars(person) for person in self.people],
            "training_micro": dict(current.done_micro),
            "shadows": {"trained": current.trained, "of": current.of, "seconds_left": current.seconds_left},
            "failures": self.failures,
            "failed": [vars(failure) for failure in self.failed],
            "paid_micro": self.paid_micro,
            "history": [
                {
                    "round": r.round,
                    "model_sha256": None if r.result_model is None else r.result_model.hex(),
                    "fetched": r.fetched_at,
                    "accuracy": None if r.accuracy is None else float(r.accuracy),
                    "loss": None if r.loss is None else float(r.loss),
                    "seconds": None if r.settled_at is None else r.settled_at - r.opened_at,
                }
                for r in self.rounds
            ],
        }


class Operator:
    """Acts on one state folder.

    Raises:
        CoordinatorError, StorageError: the folder, its configuration or its database cannot be used.
    """

    def __init__(self, folder: StateFolder, clock: Clock | None = None) -> None:
        self.folder = folder
        self.config: ServiceConfig = folder.config()
        self._clock = clock or SystemClock()
        url = folder.database_url(self.config)
        file = sqlite_file(parse_url(url))
        # On a read-only mount what only reads works all the same.
        self._database = Database(url, read_only=file is not None and not os.access(file.parent, os.W_OK))
        self._database.check_schema()  # an older one is for the service to migrate
        self._log = SignedLog(self._database, folder.signing_key(), folder.changed_signing_key)
        self._log.follow_key()
        self._transact = Transactions(self._database, self._log, self._clock, Metrics())
        #: Whether the last act is in force; None before the first.
        self.notice: Notice | None = None
        #: Why the last act has no signed head yet: it is recorded all the same, and signed with the next.
        self.unsigned: StorageError | None = None
        #: What the service has said last, where it answers; whether one serves and does not.
        self._troubles: dict[str, str] = {}
        self._silent = False

    @property
    def verification_key(self) -> VerificationKey:
        """The log's public key, which verifies the ledger."""
        return self._log.verification_key

    def close(self) -> None:
        self._transact.stop()
        self._database.close()

    def invite(self, participant_id: str, organisation: str = "", task_id: str = "") -> Invitation:
        """A new invitation; earlier unused ones of the same participant are withdrawn.

        Args:
            organisation: as of `coordinator.identity.invite`.
            task_id: for which it is invited under a pseudonym; empty: under its own name.
        """
        return self._act(
            lambda t: invite(
                t.market, participant_id, t.now, organisation, _task(t, task_id) if task_id else None
            )
        )

    def withdraw(self, invitation: Invitation) -> None:
        """Ends an invitation that nobody was given, and any other of its participant."""
        self._act(lambda t: t.market.withdraw_invitations(invitation.participant_id, t.now))

    def revoke(self, participant_id: str, reason: str, *, only: bool = False) -> Revoked:
        """Ends a participant's standing at once, and its open invitations; that of all its pseudonyms, too.

        Args:
            only: under this name alone. Else the revocations stand together in the log, which links the names.

        Raises:
            MarketTaskError: there is no such participant and no invitation for it.
        """

        def act(t: Transaction) -> Revoked:
            row, owned = t.market.participant(participant_id), t.market.pseudonyms_of(participant_id)
            good = tuple(each.id for each in owned if each.revoked_at is None)
            invited = [] if only else t.market.invited_for(participant_id)
            withdrawn = sum(t.market.withdraw_invitations(name, t.now) for name in (participant_id, *invited))
            if row is None and not withdrawn and (only or not owned):
                raise MarketTaskError(
                    f"there is no participant {participant_id!r} and no invitation for it; `participants` lists those "
                    "who enrolled"
                )
            for name in (participant_id, *(() if only else good)):
                t.revoke(name, reason)
            before = row is not None and row.revoked_at is not None
            return Revoked(row is not None, before, withdrawn, *(((), good) if only else (good, ())))

        return self._act(act)

    def forget(self, participant_id: str) -> tuple[Forgotten, bool]:
        """Erases what is kept of a participant beside the ledger; see `coordinator.forgetting.forget`.

        Returns:
            what was erased, and whether the database's own log is rid of it, too: where somebody reads it, it is after
            a repetition, or once the service ends.
        """
        found = self._transact.run(lambda t: forget(t, participant_id))
        self._tell()
        return found, self._database.empty_log()

    def check_unused(self, task_id: str) -> None:
        """Raises MarketTaskError where a task has the id already."""
        self._transact.look(lambda t: _check_unused(t, task_id))

    def check_money(self, prepared: PreparedTask) -> None:
        """Raises PayoutError where the price is another than the log's, or its learner has not deposited the budget."""
        self._transact.look(lambda t: _check_money(t, prepared))

    def open(self, prepared: PreparedTask) -> None:
        """Publishes a task and reserves its budget.

        Raises:
            MarketTaskError: the id is taken, or the task could not be scored.
            PayoutError: as `check_money`.
            LearningError: its data are not to be had.
            ConfigError, BucketError: its models cannot be stored, or are another market's where they would be.
        """
        row = prepared.row
        make_scorer(row, prepared.data)
        blobs = self._blobs()
        blobs.claim(self._log.identity())
        blobs.put(prepared.initial_model, row.terms.initial_model)

        def act(t: Transaction) -> None:
            _check_unused(t, row.id)
            _check_money(t, prepared)
            t.open_task(prepared)

        self._act(act)

    def cancel(self, task_id: str, reason: str) -> TaskOverview:
        """Ends a task and refunds what is not yet paid.

        Raises:
            MarketTaskError: no such task, or it has ended.
        """

        def act(t: Transaction) -> TaskOverview:
            row = _task(t, task_id)
            if row.state.final:
                raise MarketTaskError(f"task {task_id!r} is {row.state} already")
            t.cancel(row, reason)
            return report_of(t, _task(t, task_id))

        return self._act(act)

    def reputation(self, participant_id: str) -> Reputation:
        """A participant's standing across tasks. Raises MarketTaskError where nobody of that name has enrolled."""

        def read(t: Transaction) -> Reputation:
            if t.market.participant(participant_id) is None:
                if owned := t.market.pseudonyms_of(participant_id):
                    raise MarketTaskError(
                        f"{participant_id!r} has not enrolled under its own name, and each of its pseudonyms has a "
                        f"reputation of its own: {', '.join(row.id for row in owned)}; name one of them"
                    )
                raise MarketTaskError(
                    f"there is no participant {participant_id!r}; `participants` lists those who enrolled"
                )
            return reputation_of(t, participant_id)

        return self._transact.look(read)

    def audits(self, task_id: str) -> list[AuditRow]:
        """All that were drawn. Raises MarketTaskError where there is no such task, or its terms have no audits."""

        def read(t: Transaction) -> list[AuditRow]:
            row = _task(t, task_id)
            audits.section(row)
            return t.market.audits(row.id)

        return self._transact.look(read)

    def order_audit(self, task_id: str, round_: int, participant_id: str, folder: Path) -> AuditOrder:
        """Writes what the auditor of a submission needs to a new folder.

        Raises:
            MarketTaskError: no such audit is awaited.
            AuditFolderError: the folder is there, or cannot be written.
        """
        blobs = self._blobs()
        ordered = self._transact.look(lambda t: audits.order(t, _task(t, task_id), round_, participant_id))
        start = _kept(lambda: blobs.fetch(ordered.start_sha256))
        ordered.write(folder, start, blobs.path(ordered.submitted_sha256))
        return ordered

    def order_task_audit(self, task_id: str, folder: Path) -> TaskOrder:
        """Writes what the auditor of an ended task needs, beside D_c, to a new folder: its secrets among it.

        Raises:
            MarketTaskError: the task cannot be measured again; see `coordinator.audits.order_task`.
            AuditFolderError, SourceError: the folder is there, or cannot be written.
        """
        from coordinator.remeasuring import read_task
        from fedpeer.audit.export import export_json_lines
        from fedpeer.audit.sources import open_source  # gRPC takes its time

        def read(t: Transaction) -> tuple[TaskOrder, list[bytes], Openings]:
            row = _task(t, task_id)
            return *audits.order_task(t, row, folder), t.openings(row.id)

        self._log.sign_head()  # an export ends with a head over all that it has
        ordered, digests, openings = self._transact.look(read)
        blobs = self._blobs()
        with ExitStack() as resources:
            source = open_source(self.folder.database_url(self.config), resources)
            read_task(ordered, source.entries(), openings.by_id)  # that nothing that is needed was erased
            files = _kept(lambda: [(digest, blobs.fetch(digest)) for digest in digests])
            ordered.write(files, openings.lines(), lambda path: export_json_lines(source, path))
        return ordered

    def record_remeasurement(self, brought: BroughtRemeasurement) -> Entry:
        """Records what an auditor says of an ended task; see `coordinator.audits.record_remeasurement`."""
        return self._act(
            lambda t: audits.record_remeasurement(t, _task(t, brought.statement.task_id), brought)
        )

    def record_audit(self, brought: Brought) -> AuditVerdict:
        """Measures what an auditor has brought and records it with its verdict. It trains models: minutes.

        Raises:
            MarketTaskError: it is not the audit that is awaited, or it cannot be measured; nothing was recorded.
        """
        blobs, said = self._blobs(), brought.statement

        def look(t: Transaction) -> tuple[TaskRow, audits.Ground, list[RoundRow], dict[int, list[ModelRow]]]:
            row = _task(t, said.task_id)
            ground = audits.ground(t, row, brought)
            rounds = [r for r in t.market.rounds(row.id) if r.round <= said.round]
            return row, ground, rounds, merged_before(t, row, said.round)

        row, ground, rounds, merged = self._transact.look(look)
        start = _kept(lambda: round_start(row, blobs, rounds, merged))
        findings = audits.measured(row, start, ground, brought)
        return self._act(lambda t: audits.record(t, _task(t, said.task_id), ground, findings))

    def task(self, task_id: str) -> TaskOverview:
        """Raises MarketTaskError where there is no such task."""
        return self._transact.look(lambda t: report_of(t, _task(t, task_id)))

    def openings(self, task_id: str | None = None) -> Openings:
        """All that the entries of a task commit to, or those of every task: what its auditor is given.

        Raises:
            MarketTaskError: no such task.
        """

        def read(t: Transaction) -> Openings:
            return t.openings(None if task_id is None else _task(t, task_id).id)

        return self._transact.look(read)

    def model(self, task_id: str, round_: int | None = None) -> LearnedModel:
        """The model after a round, 0: the one that the task began with; None: the last that was trained.

        Raises:
            MarketTaskError: no such task, no such model yet, a file that retention has deleted, or another model than
                the ledger's.
        """

        def read(t: Transaction) -> tuple[int, bytes, bytes, dict[str, str]]:
            row, rounds = _task(t, task_id), t.market.rounds(task_id)
            made = {0: row.terms.initial_model}
            made |= {r.round: r.result_model for r in rounds if r.result_model is not None}
            wanted = max(made) if round_ is None else round_
            if round_ is None and not wanted:
                raise MarketTaskError(
                    f"task {task_id!r} has trained no model: it is {row.state} in round {row.round}; expected a round "
                    "that is settled. --round 0 fetches what it began with"
                )
            if wanted not in made:
                few = f"round {wanted}: its terms have {row.terms.schedule.rounds}"
                lacks = few if wanted > row.terms.schedule.rounds else f"model of round {wanted}"
                raise MarketTaskError(
                    f"task {task_id!r} has no {lacks}; expected 0, what it began with, to {max(made)}, the last round "
                    "that is settled"
                )
            measured = {r.round: {"loss": r.loss, "accuracy": r.accuracy} for r in rounds}.get(wanted, {})
            figures = {name: str(value) for name, value in measured.items() if value is not None}
            return wanted, made[wanted], _recorded_model(t, row, wanted), figures

        number, digest, recorded, figures = self._transact.look(read)
        if digest != recorded:
            raise MarketTaskError(
                f"the model of task {task_id!r} after round {number} is {digest.hex()} in the database and "
                f"{recorded.hex()} in the ledger; restore the database from a backup"
            )
        try:
            path = self._blobs().fetch(digest)
        except FileNotFoundError:
            raise MarketTaskError(
                f"the model of task {task_id!r} after round {number} is not in {self.folder.models} any more: model "
                f"files are kept for {self.config.storage.retention_days:g} days after a task has ended "
                f"(storage.retention_days), and by the service that runs from this folder; its SHA-256 is "
                f"{digest.hex()}: restore the file from a backup"
            ) from None
        return LearnedModel(task_id, number, digest, path, figures)

    def _blobs(self) -> BlobStore:
        return open_blobs(self.folder.models, self.config.s3, self.folder.path)

    def fetched(self, model: LearnedModel) -> None:
        """Notes that the learner has a model: retention may delete it then."""
        if model.round:
            self._transact.run(lambda t: t.market.update_round(model.task_id, model.round, fetched_at=t.now))

    def tasks(self) -> list[TaskOverview]:
        """All tasks, the oldest first."""
        return self._transact.look(lambda t: [report_of(t, row) for row in t.market.tasks()])

    def set_bank_account(self, participant_id: str, holder: str, iban: str, bic: str = "") -> BankAccountRow:
        """Where a participant is paid, from the next payout on.

        Raises:
            PayoutError: no such participant, or an account that cannot be.
        """
        plain = checked_account(holder, iban, bic)
        return self._transact.run(lambda t: payouts.set_account(t, participant_id, *plain))

    def bank_accounts(self) -> list[BankAccountRow]:
        return self._transact.look(lambda t: t.market.bank_accounts())

    def due(self) -> payouts.Due:
        """What a payout that began now would pay."""
        return self._transact.look(payouts.due)

    def payout_files(self, number: int) -> PaymentFiles:
        """The files of a payout. Raises PayoutError where there is none, or it was withdrawn: another pays the same."""
        payer = checked_payer(self.config.payouts)
        run = self._transact.look(lambda t: payouts.run_of(t, number))
        if run.row.outcome == WITHDRAWN:
            raise PayoutError(
                f"payout {number} was withdrawn, and has no files any more: a later one pays the same"
            )
        return payment_files(self.config.name, run.row, run.lines, payer)

    def pay_out(self) -> tuple[payouts.PayoutRun, PaymentFiles]:
        """The payout that is on its way, or a new one of all that is payable, and its files.

        Raises:
            PayoutError, ConfigError: nothing to pay, no price, or files that cannot be made; nothing was changed.
        """
        payer = checked_payer(self.config.payouts)
        made: list[PaymentFiles] = []

        def act(t: Transaction) -> payouts.PayoutRun:
            made.clear()
            return payouts.begin(
                t, lambda run: made.append(payment_files(self.config.name, run.row, run.lines, payer))
            )

        return self._act(act), made[0]

    def confirm_payout(self, number: int) -> tuple[payouts.PayoutRun, bool]:
        """The bank has paid it. Raises PayoutError where it has ended otherwise, or was never begun."""
        return self._act(lambda t: payouts.end(t, number, CONFIRMED))

    def withdraw_payout(self, number: int, reason: str) -> tuple[payouts.PayoutRun, bool]:
        """It was not paid: all of it is payable again. Raises PayoutError as `confirm_payout`."""
        return self._act(lambda t: payouts.end(t, number, WITHDRAWN, reason))

    def return_payment(self, number: int, participant_id: str, reason: str) -> tuple[payouts.PayoutRun, bool]:
        """One payment came back. Raises PayoutError where the payout has not paid it."""
        return self._act(lambda t: payouts.return_payment(t, number, participant_id, reason))

    def payout_runs(self) -> list[payouts.PayoutRun]:
        """All payouts, the oldest first."""
        return self._transact.look(payouts.runs)

    def fund(self, learner_id: str, reference: str, micro: int) -> tuple[FundingRow, bool]:
        """Records a deposit of `micro` > 0, or a withdrawal of `micro` < 0; see `coordinator.payouts.fund`."""
        return self._act(lambda t: payouts.fund(t, learner_id, reference, micro))

    def learner(self, learner_id: str) -> dict[str, Any]:
        """A learner's statement; see `coordinator.payouts.learner_statement`."""
        return self._transact.look(lambda t: payouts.learner_statement(t, learner_id))

    def learners(self) -> list[dict[str, Any]]:
        """The statements of all who have paid in."""
        return self._transact.look(
            lambda t: [payouts.learner_statement(t, name) for name in t.market.learners()]
        )

    def enrolled(self) -> list[Enrolment]:
        """Everyone who ever enrolled, with how long the last certificate holds."""
        people, issued = self._transact.look(lambda t: (t.market.participants(), t.market.certificates()))
        expires = {certificate.participant_id: certificate.expires_at for certificate in issued}
        now = self._clock.now()

        def enrolment(row: ParticipantRow) -> Enrolment:
            standing = "expired" if expires[row.id] < now else "enrolled"
            standing = "revoked" if row.revoked_at is not None else standing
            of = row.organisation or "", row.task_id or "", row.owner or ""
            return Enrolment(row.id, row.enrolled_at, expires[row.id], standing, *of)

        return [enrolment(row) for row in people]

    def ledger_size(self) -> int:
        return self._transact.look(lambda t: t.ledger.size())

    def serving(self) -> RunningService:
        """The service that runs from this folder, if any does."""
        notice = self._notify()
        if notice is Notice.NOT_SERVED:
            return RunningService()
        try:
            addresses: dict[str, str] = json.loads(self.folder.addresses.read_text())
        except (OSError, ValueError):  # it is just starting, or runs from elsewhere
            addresses = {}
        return RunningService(True, notice is Notice.CONFIRMED, self.machine(), addresses, self._troubles)

    def machine(self) -> str:
        """As of `RunningService`."""
        try:
            return holder(self._database)
        except StorageError:
            return ""

    def progress(self) -> dict[str, RoundProgress]:
        """How far training and evidence are, as the service says; nothing where none answers."""
        return progress(self.folder.control_socket)

    def back_up(self, target: Path) -> Manifest:
        """Writes a backup, also while a service runs.

        Raises:
            FolderError, StorageError: it cannot be written.
        """
        now = self._clock.now()

        def retention(market: MarketStore) -> Retention:
            return retention_at(market, self.config.storage, now)

        # So that the keys and the database are of one moment; nobody changes them where the folder accepts no writes.
        with self.folder.changing_keys() if os.access(self.folder.path, os.W_OK) else nullcontext():
            self._log.follow_key()
            return write_backup(self.folder, self._database, target, retention, now)

    def carry_over_revocations(self, source: str) -> CarriedOver:
        """Records here the revocations that a later copy of this log has: see `coordinator.revocations`.

        Args:
            source: an exported folder or file, a database, or an address.

        Raises:
            LedgerError, FolderError: no copy of this log; nothing was changed.
        """
        from fedpeer.audit.sources import open_source  # gRPC takes its time

        with ExitStack() as resources:
            opened = open_source(source, resources)
            check_copy(opened, [self.verification_key, *self._transact.look(earlier_keys)])
            found = self._transact.look(lambda t: unrecorded(t, opened))
        return self._act(lambda t: carry_over(t, found))

    def certificates(self) -> Certificates:
        """The certificates in the folder.

        Raises:
            FolderError: they cannot be served.
        """
        return read_certificates(self.folder, self.config.server, datetime.now(UTC))

    def entrance(self) -> Entrance:
        """Raises FolderError where the certificates cannot be read."""
        bound, section = self.serving().addresses, self.config.server
        hosts = self.server_hosts()
        return Entrance(
            reachable(bound.get("market", section.market), hosts),
            reachable(bound.get("public", section.public), hosts),
            tuple(c.fingerprint(SHA256()).hex(":").upper() for c in self.folder.authorities()),
        )

    def refused_certificates(self) -> str:
        """Why the service that runs does not serve the certificates in the folder; "" where it does, or none runs."""
        return self._troubles.get("certificates", "")

    def server_hosts(self) -> list[str]:
        """Names and addresses of the server's certificate; none where it cannot be read."""
        try:
            return certificate_hosts(self.folder.server().certificate)
        except FolderError:
            return []

    def renew_server(self, hosts: Sequence[str]) -> Identity:
        """A new certificate for the server, which a running service takes over.

        Args:
            hosts: names and addresses; none: those of the configuration, or of the present certificate.

        Raises:
            FolderError: they leave out one that the configuration names: such a certificate is not served.
        """
        if hosts and (left_out := [name for name in self.config.server.hosts if name not in hosts]):
            raise FolderError(
                f"server.hosts in coordinator.toml names {', '.join(left_out)} too, and the service serves no "
                f"certificate without them; add --host {' --host '.join(left_out)}, or take them out there first"
            )
        made = self.folder.issue_server(hosts or self.config.server.hosts)
        self._tell_of_certificates()
        return made

    def begin_authority(self) -> Identity:
        """A new authority, next to the old one until `end_authority`; participants learn of it by themselves."""
        made = self.folder.begin_authority(self.config.name)
        self._tell_of_certificates()
        return made

    def without_new_certificate(self) -> list[str]:
        """Participants in good standing whose valid certificates are all of the older authority."""
        older = self.folder.older_authority()
        if older is None:
            return []
        people, issued = self._transact.look(lambda t: (t.market.participants(), t.market.certificates()))
        now, current = self._clock.now(), authority_id(self.folder.authorities()[0])
        valid = [c for c in issued if c.revoked_at is None and c.expires_at > now]
        moved = {c.participant_id for c in valid if issuer_id(load_certificate(c.pem.encode())) == current}
        waiting = {c.participant_id for c in valid} - moved
        return sorted(p.id for p in people if p.revoked_at is None and p.id in waiting)

    def end_authority(self, *, leave_behind: bool = False) -> list[str]:
        """Ends the older authority and all certificates of it; returns whose.

        Args:
            leave_behind: end it even if participants have no certificate of the new one yet.

        Raises:
            FolderError: none is being replaced, or some participants have no certificate of the new one.
        """
        left = self.without_new_certificate()
        if left and not leave_behind:
            shown = ", ".join(left[:10]) + (" and others" if len(left) > 10 else "")
            raise FolderError(
                f"{len(left)} participants have no certificate of the new authority yet: {shown}. Their services "
                "take one within minutes of running. Wait, or end it all the same with --leave-behind: they would have "
                "to be invited again"
            )
        self.folder.end_authority(self.config.server.hosts)
        self._tell_of_certificates()
        return left

    def change_log_key(self) -> tuple[VerificationKey, VerificationKey, int]:
        """Announces a new key of the log under the old one, and signs by it from here on.

        Returns:
            the old key, the new one, and the index of the announcement.
        """
        with self.folder.changing_keys():
            self._log.follow_key()
            old = self.verification_key
            key = self.folder.prepare_signing_key(old.name)
            index = self._log.change_key(key)
            self.folder.changed_signing_key(str(key.verification_key))
        self._tell()
        return old, key.verification_key, index

    def _act(self, work: Callable[[Transaction], Result]) -> Result:
        result = self._transact.run(work)
        try:
            self._log.sign_head()
        except StorageError as error:
            self._tell(unsigned=error)
        else:
            self._tell()
        return result

    def _tell_of_certificates(self) -> None:
        """As `_tell`, and to all fronts, of which one alone answers."""
        with suppress(StorageError):  # they look by themselves, too
            self._transact.run(lambda t: t.market.announce(Kind.CERTIFICATES))
        self._tell()

    def _tell(self, unsigned: StorageError | None = None) -> None:
        """What every act ends with."""
        self.unsigned = unsigned
        self.notice = self._notify()

    def _notify(self) -> Notice:
        """Notifies the service. After one that does not answer, no other answer is waited for."""
        troubles = None if self._silent else notify(self.folder.control_socket)
        self._troubles = troubles or {}
        if troubles is not None:
            return Notice.CONFIRMED
        # The socket does not answer, and yet a service may run: from another folder or machine, or it just starts.
        # One that has ended since has given up the lease.
        try:
            self._silent = served(self._database.url)
        except StorageError:
            return Notice.UNCONFIRMED
        return Notice.UNCONFIRMED if self._silent else Notice.NOT_SERVED


def reachable(address: str, hosts: Sequence[str]) -> str:
    """host:port under a name that the certificate has, where the service listens on all of its machine's."""
    host, _, port = address.rpartition(":")
    name = host.strip("[]") if host.strip("[]") in hosts or not hosts else hosts[0]
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def _check_unused(t: Transaction, task_id: str) -> None:
    if t.market.task(task_id) is not None:
        raise MarketTaskError(f"there is a task {task_id!r} already; an id is used once, choose another")


def _check_money(t: Transaction, prepared: PreparedTask) -> None:
    payouts.check_price(t, prepared.row.terms)
    payouts.check_funded(t, prepared.row.terms)


def _kept(find: Callable[[], Result]) -> Result:
    """What model files give. Raises MarketTaskError where one of them is gone."""
    try:
        return find()
    except FileNotFoundError as error:
        raise MarketTaskError(
            f"{error.filename} is not there any more: without the round's models nothing can be audited; restore the "
            "file from a backup"
        ) from None


def _task(t: Transaction, task_id: str) -> TaskRow:
    row = t.market.task(task_id)
    if row is None:
        known = ", ".join(task.id for task in t.market.tasks()) or "none yet"
        raise MarketTaskError(f"there is no task {task_id!r}; known: {known}")
    return row


def _recorded_model(t: Transaction, row: TaskRow, round_: int) -> bytes:
    """The digest of a round's model in the ledger."""
    t.check_terms(row)
    if round_ == 0:
        return row.terms.initial_model
    [place] = t.ledger_store.find([aggregation_id(row.id, round_)]).values()
    return bytes.fromhex(str(t.entry(place).body["model_sha256"]))


def report_of(t: Transaction, row: TaskRow) -> TaskOverview:
    """The task as it stands within a transaction."""
    progress = t.market.progress(row)
    paid, expected = Counter[str](), Counter[str]()
    for line in t.market.settlements(row.id):
        paid[line.participant_id] += line.paid_micro
        expected[line.participant_id] += line.expected_micro
    people = []
    for c in t.market.claims(row.id):
        name = c.participant_id
        people.append(Person(name, _standing(progress, c), c.degree, paid[name], expected[name]))
    failed = t.market.all_failures(row.id)
    return TaskOverview(
        row=row,
        rounds=tuple(t.market.rounds(row.id)),
        claimed=tuple(sorted(progress.claimed)),
        selected=tuple(sorted(progress.selected)),
        delivered=tuple(sorted(progress.delivered)),
        people=tuple(people),
        failures={f.participant_id: f.reason for f in failed if f.round == row.round},
        failed=tuple(failed),
        paid_micro=dict(paid),
        escrow_micro=t.escrow_left(row),
    )


def _standing(progress: Progress, claim: ClaimRow) -> Standing:
    name = claim.participant_id
    if not claim.selected:
        undecided = progress.state in (State.OPEN, State.EFFORT)
        return Standing.CLAIMED if undecided else Standing.NOT_SELECTED
    if name in progress.delivered:
        return Standing.DELIVERED
    if name in progress.failed:
        return Standing.FAILED
    if progress.state is State.TRAINING:
        return Standing.AWAITED
    return Standing.MISSED if progress.round else Standing.SELECTED
