"""Steps of a task, each one transaction: market rows, ledger entries and postings together, or nothing.

`Transaction` is what a step works with; its methods are the steps. `Transactions` runs them, one after another,
in the one thread that talks to the database, so that the event loop never waits for a disk. Steps that have come
while the last commit was on its way to the disk are committed together, each behind a savepoint of its own: what
is acknowledged is durable, and a thousand participants that arrive at once do not wait for a thousand flushes.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import Connection

from coordinator.clock import Clock
from coordinator.errors import CoordinatorError, TaskError
from coordinator.identity import Enrolled
from coordinator.metrics import Metrics
from coordinator.opening import PreparedTask
from coordinator.scoring import Quality
from coordinator.storage.market import (
    ClaimRow,
    FailureRow,
    MarketStore,
    ModelRow,
    ModelStanding,
    ReceiptRow,
    StaleTask,
    TaskRow,
)
from fedpeer.audit.sql.database import Database
from fedpeer.audit.sql.ledger_store import SignedLog, SqlLedgerStore
from fedpeer.audit.sql.statements import driver
from fedpeer.protocol.certificates import certificate_key, load_certificate, load_public_key
from fedpeer.protocol.errors import Code, FieldViolation, Refusal
from mechanism.canonical import Json, canonical_digest, decimal_text
from mechanism.dispute import Review, disputes_possible, review
from mechanism.errors import MechanismError
from mechanism.ledger import entries
from mechanism.ledger.accounts import escrow, reservation_id
from mechanism.ledger.entry import Entry
from mechanism.ledger.journal import Journal
from mechanism.ledger.key_history import fingerprint
from mechanism.lifecycle import State
from mechanism.peers import Draw
from mechanism.settlement import Assessment, Settlement
from mechanism.statements import ClaimStatement, ModelStatement, statement_digest
from mechanism.terms import Terms

Result = TypeVar("Result")

#: Steps that are committed together: a commit of so many takes tens of milliseconds, during which no one reads.
_GROUP = 64

#: What a step refuses by. Anything else may have damaged the transaction that it shares.
_REFUSALS = (Refusal, MechanismError, CoordinatorError, StaleTask)

#: Chooses who trains: terms and claims to participant ids.
Selection = Callable[[Terms, Sequence[ClaimRow]], list[str]]


class Transaction:
    """One open transaction over market and ledger.

    Attributes:
        market, journal: the rows, the record.
        now: one time for everything in the transaction, seconds since the epoch.
    """

    def __init__(self, connection: Connection, now: float, ledger: SqlLedgerStore | None = None) -> None:
        self.market = MarketStore(connection)
        self.ledger = ledger or SqlLedgerStore(connection)
        self.journal = Journal(self.ledger)
        self.now = now

    # What the operator does

    def open_task(self, prepared: PreparedTask) -> None:
        """Publishes a task and reserves its budget."""
        row = prepared.row
        self.market.add_task(row)
        self.market.add_event(row.id, State.OPEN, 0, None, {}, self.now)
        self._record(*entries.terms_entries(row.terms), self._transition(row.id, 0, State.OPEN))

    def enrol(self, enrolled: Enrolled) -> None:
        """Records a participant's key.

        Raises:
            Refusal: FIELD_INVALID where that key was revoked before, under whatever name, or is enrolled under
                another one: a revocation of either would leave it to the other.
        """
        name, key = enrolled.participant.id, load_public_key(enrolled.participant.public_key)
        made = entries.enrolment(name, key)
        mark = fingerprint(entries.public_key_bytes(key))
        revoked = self.ledger.revoked_keys(mark)
        if revoked or any(id_ != made.id for id_ in self.ledger.enrolled_keys(mark)):
            raise Refusal(
                Code.FIELD_INVALID,
                f"This key {'was revoked' if revoked else 'is enrolled under another name'}; a new one of {name!r} is "
                "expected: move key.pem out of its state folder, and enrol again.",
                violations=[FieldViolation("certificate_signing_request", "a key that no name ever had")],
            )
        self._record(made)

    def revoke(self, participant_id: str, reason: str) -> None:
        """Ends a participant's standing; none of the keys that it ever had counts for anything from here on."""
        row = self.market.participant(participant_id)
        self.market.withdraw_invitations(participant_id, self.now)
        if row is None or row.revoked_at is not None:
            return
        issued = [certificate_key(load_certificate(c.pem.encode())) for c in self.market.certificates(row.id)]
        gone = {e.id: e for e in (entries.revocation(row.id, key, reason) for key in issued)}
        known = self.ledger.find(list(gone))
        self.market.revoke(participant_id, self.now)
        self._record(*(entry for name, entry in gone.items() if name not in known))

    # What participants do

    def add_claim(self, task: TaskRow, statement: ClaimStatement, signature: bytes) -> ReceiptRow:
        index = self._record(entries.claim(statement, signature, keys=self.journal.keys()))
        self.market.add_claim(
            task.id,
            ClaimRow(
                participant_id=statement.participant_id,
                submission_id=statement.submission_id,
                effort=decimal_text(statement.effort),
                degree=str(statement.degree),
                selected=False,
                draw_head=statement.draw_head,
                counts_commitment=statement.counts_commitment or None,
            ),
        )
        return self._receipt(statement, 0, index, late=False)

    def model_standing(self, statement: ModelStatement) -> ModelStanding:
        return self.market.model_standing(
            statement.task_id, statement.participant_id, statement.submission_id, statement.round
        )

    def begin_upload(self, statement: ModelStatement, standing: ModelStanding) -> int:
        """Fixes when a model was committed to; known already where an upload is resumed."""
        names = statement.task_id, statement.participant_id, statement.submission_id
        return standing.sequence or self.market.add_upload(
            *names, statement.round, statement_digest(statement), self.now
        )

    def add_model(
        self, statement: ModelStatement, signature: bytes, standing: ModelStanding, *, late: bool
    ) -> ReceiptRow:
        """Records a model that came whole; a late one counts for nothing."""
        sequence = self.begin_upload(statement, standing)
        index = self._record(entries.model(statement, signature, sequence, late, self.journal.keys()))
        if not late:
            self.market.add_model(
                statement.task_id,
                statement.round,
                ModelRow(
                    participant_id=statement.participant_id,
                    submission_id=statement.submission_id,
                    sequence=sequence,
                    model_sha256=statement.model_sha256,
                    model_bytes=statement.model_bytes,
                    samples=statement.samples,
                    draw_share=statement.draw_share,
                ),
            )
        return self._receipt(statement, statement.round, index, late=late)

    def open_dispute(self, task: TaskRow, participant_id: str, counts: Sequence[int], salt: bytes) -> int:
        """Records opened label counts; returns where they stand in the ledger."""
        return self._record(entries.dispute(task.id, participant_id, counts, salt))

    def disputed(self, task_id: str, names: Sequence[str]) -> dict[str, int]:
        """Who of `names` has opened its counts, and where that stands in the ledger."""
        ids = {entries.dispute_id(task_id, name): name for name in names}
        return {ids[id_]: place for id_, place in self.ledger.find(list(ids)).items()}

    def reviews(self, task: TaskRow, participant_id: str) -> dict[int, Review]:
        """What opened counts change about each settled round in which the participant was selected."""
        found = {}
        for round_ in range(1, task.round + 1):
            line = self.market.settlement(task.id, round_, participant_id)
            if line is not None:
                found[round_] = self._review(task, round_, line[1])
        return found

    def add_failure(self, task: TaskRow, participant_id: str, submission_id: str, reason: str) -> ReceiptRow:
        """Records that a participant cannot deliver in the current round."""
        index = self._record(entries.failure(task.id, task.round, participant_id, submission_id, reason))
        self.market.add_failure(task.id, FailureRow(participant_id, task.round, reason, self.now))
        receipt = ReceiptRow(
            task_id=task.id,
            participant_id=participant_id,
            submission_id=submission_id,
            kind="failure",
            round=task.round,
            digest=failure_digest(task.id, task.round, participant_id, submission_id, reason),
            ledger_index=index,
            late=False,
            at=self.now,
        )
        self.market.add_receipt(receipt)
        return receipt

    # What the task does by itself

    def check_terms(self, task: TaskRow) -> None:
        """That a stored task is the one that was published.

        Raises:
            TaskError: the ledger has other terms.
        """
        published = entries.published(task.terms)
        places = self.ledger.find([entry.id for entry in published])
        same = task.terms.digest == task.terms_digest and all(
            entry.id in places and next(iter(self.ledger.entries(places[entry.id], 1))) == entry.data
            for entry in published
        )
        if not same:
            raise TaskError(
                f"the stored terms of task {task.id!r} are not those in the ledger; restore the database from "
                "a backup"
            )

    def begin_effort(self, task: TaskRow, deadline: float) -> None:
        self.market.advance(task, State.EFFORT, now=self.now, deadline=deadline)
        self._record(self._transition(task.id, 0, State.EFFORT))

    def select(self, task: TaskRow, selection: Selection) -> None:
        standing = self.market.progress(task).claimed
        claims = [c for c in self.market.claims(task.id) if c.participant_id in standing]
        if len(claims) < task.terms.schedule.quorum:
            raise StaleTask(f"claims of task {task.id} have fallen below the quorum since they were counted")
        chosen = selection(task.terms, claims)
        self.market.select_participants(task.id, chosen)
        self.market.advance(task, State.SELECTED, now=self.now, detail={"selected": chosen})
        self._record(
            *entries.selection_entries(task.id, chosen), self._transition(task.id, 0, State.SELECTED)
        )

    def open_round(self, task: TaskRow, round_: int, size: int, deadline: float) -> None:
        self.market.advance(
            task,
            State.TRAINING,
            now=self.now,
            round_=round_,
            deadline=deadline,
            detail={"model_sha256": task.model.hex(), "model_bytes": size},
        )
        self.market.open_round(task.id, round_, task.model, size, self.now)
        self._record(self._transition(task.id, round_, State.TRAINING))

    def close_round(self, task: TaskRow) -> None:
        """Fixes the round's models; evidence comes next. The ledger enters SCORED with the verdicts."""
        self.market.advance(task, State.SCORED, now=self.now)
        self.market.update_round(task.id, task.round, closed_at=self.now)

    def settle(
        self,
        task: TaskRow,
        draw: Draw,
        assessments: Sequence[Assessment],
        evidence: Mapping[str, Json],
        model: bytes,
        quality: Quality | None,
    ) -> Settlement:
        """Posts a closed round: verdicts, seed, peers, payments, the next model, the new state."""
        ordered = sorted(assessments, key=lambda a: a.participant_id)
        stakes = self.journal.stakes(task.id, [a.participant_id for a in ordered])
        disputable = disputes_possible(task.terms, self._private(task))
        settlement, settled = entries.settlement_entries(
            task.terms, task.round, draw, ordered, stakes, disputable, self.journal.keys()
        )
        if evidence:
            self._record(*entries.evidence_entries(task.id, task.round, evidence))
        figures = {} if quality is None else {"accuracy": quality.accuracy, "loss": quality.loss}
        self._record(
            *(entries.verdict(task.id, task.round, a) for a in ordered),
            self._transition(task.id, task.round, State.SCORED),
        )
        places = {r.id: r.index for r in self.journal.append(settled)}
        self._record(
            entries.aggregation(task.id, task.round, model, figures),
            self._transition(task.id, task.round, State.SETTLED),
        )
        self._settle_rows(task, settlement, ordered, places)
        size = self.journal.size()
        last = task.round == task.terms.schedule.rounds
        window = self.now + task.terms.schedule.dispute_seconds if disputable and last else None
        self.market.advance(
            task, State.SETTLED, now=self.now, deadline=window, model=model, detail={"ledger_size": size}
        )
        self.market.update_round(
            task.id,
            task.round,
            settled_at=self.now,
            result_model=model,
            ledger_size=size,
            **figures,
        )
        return settlement

    def close(self, task: TaskRow) -> None:
        """All rounds are settled: what is left of the budget and the stakes goes back."""
        self._end(task, State.CLOSED, "")

    def cancel(self, task: TaskRow, reason: str) -> None:
        """Refunds what is not yet paid."""
        self._end(task, State.CANCELLED, reason)

    def escrow_left(self, task: TaskRow) -> int:
        """Micro-credits still reserved for a task."""
        return self.journal.balance(escrow(task.id)).credits_pending

    def _end(self, task: TaskRow, state: State, reason: str) -> None:
        detail = {"reason": reason} if reason else {}
        self.market.advance(task, state, now=self.now, reason=reason or None, detail=detail)
        rounds = range(1, task.terms.schedule.rounds + 1)
        held = self.ledger.reservations([reservation_id(task.id, r) for r in rounds])
        unresolved = [r for r in rounds if not held[reservation_id(task.id, r)].resolved]
        stakes = self.journal.stakes(task.id, [c.participant_id for c in self.market.claims(task.id)])
        self._record(
            *entries.ending_entries(
                task.id,
                task.round,
                state,
                unresolved,
                stakes,
                self._time(task.id),
                reason,
                self._awards(task),
            )
        )

    def _private(self, task: TaskRow) -> list[str]:
        """The selected who committed to their label counts."""
        return [c.participant_id for c in self.market.claims(task.id) if c.selected and c.counts_commitment]

    def _awards(self, task: TaskRow) -> list[Entry]:
        """What pays the disputes of every round that kept something back for them."""
        rounds = range(1, task.round + 1)
        kept = self.ledger.reservations([entries.dispute_reservation(task.terms, r) for r in rounds])
        disputed = sorted(self.disputed(task.id, self._private(task))) if kept else []
        found: list[Entry] = []
        for round_ in rounds:
            if entries.dispute_reservation(task.terms, round_) not in kept:
                continue
            lines = {name: self.market.settlement(task.id, round_, name) for name in disputed}
            awards = {
                name: self._review(task, round_, line[1]).award_micro
                for name, line in lines.items()
                if line is not None
            }
            found += entries.award_entries(task.terms, round_, awards)
        return found

    def _review(self, task: TaskRow, round_: int, line: Mapping[str, Any]) -> Review:
        def assessment(record: Mapping[str, Any]) -> Assessment:
            return entries.assessment_from_record(record["assessment"])

        peers = []
        for name in line["peers"]:
            found = self.market.settlement(task.id, round_, name)
            assert found is not None  # a peer is settled in the same transaction
            peers.append(assessment(found[1]))
        return review(task.terms, assessment(line), peers, line["paid_micro"])

    def _settle_rows(
        self,
        task: TaskRow,
        settlement: Settlement,
        ordered: Sequence[Assessment],
        places: Mapping[str, int],
    ) -> None:
        lines = []
        for assessment, line in zip(ordered, settlement.payments, strict=True):
            name = assessment.participant_id
            record: dict[str, Any] = {
                "paid_micro": line.paid_micro,
                "penalty_micro": line.penalty_micro,
                "withheld_micro": line.withheld_micro,
                "stake_lost_micro": line.stake_lost_micro,
                "peers": list(line.peers),
                "assessment": entries.assessment_record(assessment),
            }
            lines.append((name, places[f"{task.id}/round/{task.round}/payment/{name}"], record))
        self.market.add_settlements(task.id, task.round, lines)

    def _receipt(
        self, statement: ClaimStatement | ModelStatement, round_: int, index: int, *, late: bool
    ) -> ReceiptRow:
        receipt = ReceiptRow(
            task_id=statement.task_id,
            participant_id=statement.participant_id,
            submission_id=statement.submission_id,
            kind=statement.kind,
            round=round_,
            digest=statement_digest(statement),
            ledger_index=index,
            late=late,
            at=self.now,
        )
        self.market.add_receipt(receipt)
        return receipt

    def _transition(self, task_id: str, round_: int, state: State) -> Entry:
        return entries.transition(task_id, round_, state, self._time(task_id))

    def _time(self, task_id: str) -> str:
        """When a task takes a step now: not before its last one, though a clock may be set back."""
        return _timestamp(max(self.now, self.market.latest_event_at(task_id)))

    def _record(self, *recorded: Entry) -> int:
        """Appends entries; returns the index of the last."""
        return self.journal.append(recorded)[-1].index


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
        self._waiting: deque[_Step] = deque()
        self._called = False

    async def __call__(self, work: Callable[[Transaction], Result], *, durable: bool = True) -> Result:
        """`work`, whose changes are durable when it has returned, and undone where it raises.

        It may be run twice: once with others, then alone where the others' commit failed.

        Args:
            durable: False for what nobody is told of before a later step that is; see `Database.begin`.
        """
        result: Result = await self._in_turn(_Step(work, writes=True, durable=durable))
        return result

    async def read(self, work: Callable[[Transaction], Result]) -> Result:
        """`work` in a transaction that changes nothing. It may be run twice, as above."""
        result: Result = await self._in_turn(_Step(work, writes=False, durable=False))
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

    def covered(self, t: Transaction, index: int) -> str | None:
        """`proof` within a transaction; None where no signed head covers the entry yet."""
        return self.all_covered(t, [index])[0]

    def all_covered(self, t: Transaction, indices: Sequence[int]) -> list[str | None]:
        """`covered` of several entries."""
        return [None if found is None else str(found) for found in self._log.covered(t.ledger, indices)]

    def run(self, work: Callable[[Transaction], Result], *, durable: bool = True) -> Result:
        """`work` as a step, in the calling thread; for commands."""
        with self._database.begin(durable=durable) as connection:
            transaction = Transaction(connection, self._clock.now())
            # One writer at a time on every database, from its first read on: what a step decides from still holds
            # when it commits.
            transaction.ledger.lock()
            return work(transaction)

    def look(self, work: Callable[[Transaction], Result]) -> Result:
        """`read` in the calling thread."""
        with self._database.read() as connection:
            return work(Transaction(connection, self._clock.now()))

    def stop(self) -> None:
        """Waits for the transaction in progress. A computation is left to itself: it is done again after a restart."""
        self._thread.shutdown()
        self._scoring.shutdown(wait=False, cancel_futures=True)

    @property
    def computing(self) -> bool:
        """Whether a computation is in progress."""
        return self._computations > 0

    async def _in_turn(self, step: "_Step") -> Any:
        self._enqueue(step)
        return await step.done

    def _enqueue(self, step: "_Step") -> None:
        step.began = time.perf_counter()
        self._waiting.append(step)
        if not self._called:
            self._called = True
            try:
                self._thread.submit(self._take_all_waiting)
            except RuntimeError:
                self._called = False
                step.withdrawn = True
                raise _draining() from None

    def _take_all_waiting(self) -> None:
        """In the database's thread: the steps that wait now. Those that come meanwhile call it again."""
        self._called = False
        waiting = len(self._waiting)
        while waiting > 0 and self._waiting:
            waiting -= self._take_waiting()

    def _take_waiting(self) -> int:
        """In the database's thread: the steps that wait, up to the first of another kind, in one transaction.

        Returns:
            how many they were.
        """
        steps: list[_Step] = []
        taken = 0
        while (
            self._waiting
            and len(steps) < _GROUP
            and self._waiting[0].writes is (steps or self._waiting)[0].writes
        ):
            step = self._waiting.popleft()
            taken += 1
            if not (step.done.cancelled() or step.withdrawn):
                steps.append(step)
        if not steps:
            return taken
        together = self._run_together if steps[0].writes else self._look_together
        try:
            outcomes = together(steps) if len(steps) > 1 else []
        except Exception:  # whatever it was, nothing of the group has happened
            outcomes = []
        outcomes = outcomes or [self._alone(step) for step in steps]
        # All in one message to the event loop, which takes longer than a step does.
        loop = steps[0].done.get_loop()
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._deliver, steps, outcomes)
        return taken

    def _run_together(self, steps: "Sequence[_Step]") -> list[Any]:
        """What each step returned or was refused by. Raises where the transaction as a whole has failed."""
        outcomes: list[Any] = []
        with self._database.begin(durable=any(step.durable for step in steps)) as connection:
            ledger = SqlLedgerStore(connection)
            ledger.lock()
            execute = driver(connection).execute
            for step in steps:
                execute("SAVEPOINT step")
                try:
                    outcomes.append(step.work(Transaction(connection, self._clock.now(), ledger)))
                except _REFUSALS as error:
                    execute("ROLLBACK TO SAVEPOINT step")
                    ledger = SqlLedgerStore(connection)  # the other knows what has been undone
                    outcomes.append(_Raised(error))
                execute("RELEASE SAVEPOINT step")
        return outcomes

    def _alone(self, step: "_Step") -> Any:
        try:
            return self.run(step.work, durable=step.durable) if step.writes else self.look(step.work)
        except StopIteration as error:  # which no future takes: whoever waits would wait for ever
            return _Raised(RuntimeError(f"a step has raised {error!r}"))
        except BaseException as error:
            return _Raised(error)

    def _look_together(self, steps: "Sequence[_Step]") -> list[Any]:
        """What each reading step returned or was refused by. Raises where the transaction as a whole has failed."""
        outcomes: list[Any] = []
        with self._database.read() as connection:
            for step in steps:
                try:
                    outcomes.append(step.work(Transaction(connection, self._clock.now())))
                except _REFUSALS as error:
                    outcomes.append(_Raised(error))
        return outcomes

    def _deliver(self, steps: "Sequence[_Step]", outcomes: Sequence[Any]) -> None:
        """In the event loop: wakes whoever still waits."""
        now = time.perf_counter()
        for step, outcome in zip(steps, outcomes, strict=True):
            self._metrics.transaction_seconds.observe(now - step.began)
            if step.done.done():  # nobody does
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
class _Step:
    """Work that waits for its transaction, and what the event loop waits for."""

    work: Callable[[Transaction], Any]
    writes: bool
    durable: bool
    done: "asyncio.Future[Any]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    began: float = 0.0
    withdrawn: bool = False


@dataclass(frozen=True)
class _Raised:
    """The outcome of work that raised."""

    error: BaseException


def _draining() -> Refusal:
    return Refusal(Code.DRAINING, "The coordinator is shutting down.")


def failure_digest(task_id: str, round_: int, participant_id: str, submission_id: str, reason: str) -> bytes:
    """What makes two failure reports the same."""
    return canonical_digest(
        {
            "kind": "failure",
            "task_id": task_id,
            "round": round_,
            "participant_id": participant_id,
            "submission_id": submission_id,
            "reason": reason,
        }
    )


def _timestamp(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
