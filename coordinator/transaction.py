"""Steps of a task: market rows, ledger entries and postings together, in one transaction, or nothing.

`Transaction` is what a step works with; its methods are the steps. `coordinator.commits` runs them.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from uuid import uuid4

from sqlalchemy import Connection

from coordinator.admission import mark_of
from coordinator.aggregation import Merged
from coordinator.errors import MarketTaskError
from coordinator.identity import Enrolled
from coordinator.opening import PreparedTask
from coordinator.scoring import Quality, judgement, new_salt
from coordinator.storage.audits import APPEALED, CONVICTED, FAILED, OPEN, REFUNDED, RELEASED, AuditRow
from coordinator.storage.identities import ParticipantRow
from coordinator.storage.rounds import SettlementRow
from coordinator.storage.store import MarketStore
from coordinator.storage.submissions import ClaimRow, FailureRow, ModelRow, ModelStanding, ReceiptRow
from coordinator.storage.tasks import StaleTask, TaskRow
from fedpeer.audit.sql.ledger_store import SqlLedgerStore
from fedpeer.protocol.certificates import certificate_key, load_certificate, load_public_key
from fedpeer.protocol.errors import Code, FieldViolation, Refusal
from mechanism.audit import UNANSWERED, UNAPPEALED, UNVISITED
from mechanism.canonical import Json, canonical_digest, parse_canonical
from mechanism.dispute import Review, disputes_possible, review
from mechanism.ledger import entries
from mechanism.ledger.accounts import escrow, held, payable, reservation_id
from mechanism.ledger.appending import Ledger
from mechanism.ledger.audit_entries import audit_end, held_entries, question_micro
from mechanism.ledger.entry import Entry
from mechanism.ledger.key_history import fingerprint
from mechanism.ledger.note import Checkpoint, Note
from mechanism.ledger.openings import Openings
from mechanism.lifecycle import State
from mechanism.peers import Draw, Meetings
from mechanism.settlement import Assessment, RoundSettlement, expected_payments
from mechanism.statements import ClaimOpening, ClaimStatement, ModelOpening, ModelStatement, Statement


@dataclass(frozen=True)
class FailureReport:
    """A participant's word that it cannot deliver in a round."""

    task_id: str
    round: int
    participant_id: str
    submission_id: str
    reason: str

    kind: ClassVar[str] = "failure"

    @property
    def digest(self) -> bytes:
        """What makes two reports the same."""
        return canonical_digest({"kind": self.kind, **vars(self)})


class Transaction:
    """One open transaction over market and ledger.

    Attributes:
        market: the rows.
        ledger, ledger_store: the record, and what it is stored in.
        now: one time for everything in the transaction, seconds since the epoch.
    """

    def __init__(self, connection: Connection, now: float, ledger: SqlLedgerStore | None = None) -> None:
        self.market = MarketStore(connection)
        self.ledger_store = ledger or SqlLedgerStore(connection)
        self.ledger = Ledger(self.ledger_store)
        self.now = now

    def task(self, task_id: str) -> TaskRow:
        """A task that there is, as it stands in this transaction: what decides between in time and late."""
        row = self.market.task(task_id)
        assert row is not None  # tasks are never deleted
        return row

    # What the operator does

    def open_task(self, prepared: PreparedTask) -> None:
        """Publishes a task and reserves its budget."""
        row = prepared.row
        self.market.add_task(row)
        self.market.add_event(row.id, State.OPEN, 0, None, {}, self.now)
        self.record(*entries.terms_entries(row.terms), self._transition(row.id, 0, State.OPEN))

    def enrol(self, enrolled: Enrolled) -> None:
        """Records a participant's key.

        Raises:
            Refusal: FIELD_INVALID where that key was revoked before, under whatever name, or is enrolled under
                another one: a revocation of either would leave it to the other.
        """
        name, key = enrolled.participant.id, load_public_key(enrolled.participant.public_key)
        made = entries.enrolment(name, key)
        mark = fingerprint(entries.public_key_bytes(key))
        revoked = self.ledger_store.revoked_keys(mark)
        if revoked or any(id_ != made.id for id_ in self.ledger_store.enrolled_keys(mark)):
            raise Refusal(
                Code.FIELD_INVALID,
                f"This key {'was revoked' if revoked else 'is enrolled under another name'}; a new one of {name!r} is "
                "expected: move key.pem out of its state folder, and enrol again.",
                violations=[FieldViolation("certificate_signing_request", "a key that no name ever had")],
            )
        self.record(made)
        self.name_pseudonym(enrolled.participant)

    def name_pseudonym(self, row: ParticipantRow) -> None:
        """Commits to whose a pseudonym is, once; of an identity that is none it does nothing."""
        if row.task_id is None or row.owner is None:
            return
        named = entries.pseudonym_id(row.task_id, row.id)
        if not self.ledger_store.find([named]):
            self.record(entries.pseudonym(row.task_id, row.id, row.owner, new_salt(named)))

    def revoke(self, participant_id: str, reason: str) -> None:
        """Ends a participant's standing; none of the keys that it ever had counts for anything from here on."""
        row = self.market.participant(participant_id)
        self.market.withdraw_invitations(participant_id, self.now)
        if row is None or row.revoked_at is not None:
            return
        issued = [certificate_key(load_certificate(c.pem.encode())) for c in self.market.certificates(row.id)]
        gone = {e.id: e for e in (entries.revocation(row.id, key, reason) for key in issued)}
        known = self.ledger_store.find(list(gone))
        self.market.revoke(participant_id, self.now)
        self.record(*(entry for name, entry in gone.items() if name not in known))

    # What participants do

    def add_claim(
        self, task: TaskRow, statement: ClaimStatement, signature: bytes, opening: ClaimOpening
    ) -> ReceiptRow:
        organisation = mark_of(self.market, task, statement.participant_id)
        index = self.record(
            entries.claim(statement, signature, opening, self.ledger.keys(), organisation or b"")
        )
        self.market.add_claim(
            task.id,
            ClaimRow(
                participant_id=statement.participant_id,
                degree=str(opening.degree),
                selected=False,
                draw_head=statement.draw_head,
                counts_commitment=statement.counts_commitment,
                organisation=organisation,
            ),
        )
        return self._receipt(statement, 0, index, late=False)

    def model_standing(self, statement: ModelStatement) -> ModelStanding:
        return self.market.model_standing(
            statement.task_id, statement.participant_id, statement.submission_id, statement.round
        )

    def begin_upload(self, statement: ModelStatement, standing: ModelStanding) -> int:
        """Fixes when a model was committed to; known already where an upload is resumed."""
        return standing.sequence or self.market.add_upload(
            statement.task_id,
            statement.participant_id,
            statement.submission_id,
            statement.round,
            statement.digest,
            self.now,
        )

    def add_model(
        self,
        statement: ModelStatement,
        signature: bytes,
        opening: ModelOpening,
        standing: ModelStanding,
        *,
        late: bool,
    ) -> ReceiptRow:
        """Records a model that came whole; a late one counts for nothing."""
        sequence = self.begin_upload(statement, standing)
        index = self.record(entries.model(statement, signature, sequence, late, opening, self.ledger.keys()))
        if not late:
            self.market.add_model(
                statement.task_id,
                statement.round,
                ModelRow(
                    participant_id=statement.participant_id,
                    sequence=sequence,
                    model_sha256=statement.model_sha256,
                    samples=opening.samples,
                    draw_share=statement.draw_share,
                ),
            )
        return self._receipt(statement, statement.round, index, late=late)

    def open_dispute(self, task: TaskRow, participant_id: str, counts: Sequence[int], salt: bytes) -> int:
        """Records that counts were opened, and keeps them; returns where that stands in the ledger."""
        return self.record(entries.dispute(task.id, participant_id, self.at(task.id), counts, salt))

    def disputed(self, task_id: str, names: Sequence[str]) -> dict[str, int]:
        """Those of `names` that have opened their counts, and where that stands in the ledger."""
        ids = {entries.dispute_id(task_id, name): name for name in names}
        return {ids[id_]: place for id_, place in self.ledger_store.find(list(ids)).items()}

    def reviews(self, task: TaskRow, participant_id: str) -> dict[int, Review]:
        """What opened counts change about each settled round in which the participant was selected."""
        found = {}
        for round_ in range(1, task.round + 1):
            line = self.market.settlement(task.id, round_, participant_id)
            if line is not None:
                found[round_] = self._review(task, line)
        return found

    def add_failure(self, task: TaskRow, report: FailureReport) -> ReceiptRow:
        """Records that a participant cannot deliver in the current round."""
        index = self.record(entries.failure(*vars(report).values()))
        row = FailureRow(report.participant_id, report.round, report.reason, self.now)
        self.market.add_failure(task.id, row)
        return self._receipt(report, report.round, index, late=False)

    # What the task does by itself

    def check_terms(self, task: TaskRow) -> None:
        """That a stored task is the one that was published.

        Raises:
            MarketTaskError: the ledger has other terms.
        """
        published = entries.published(task.terms)
        places = self.ledger_store.find([entry.id for entry in published])
        same = all(
            entry.id in places and next(iter(self.ledger_store.entries(places[entry.id], 1))) == entry.data
            for entry in published
        )
        if not same:
            raise MarketTaskError(
                f"the stored terms of task {task.id!r} are not those in the ledger; restore the database from "
                "a backup"
            )

    def begin_effort(self, task: TaskRow) -> None:
        deadline = self.time(task.id) + task.terms.schedule.effort_seconds
        self.market.advance(task, State.EFFORT, now=self.now, deadline=deadline)
        self.record(self._transition(task.id, 0, State.EFFORT))
        self.notice("task.opened", {"deadline": deadline}, task.id)

    def select(self, task: TaskRow, choose: Callable[[list[str]], list[str]] = list) -> None:
        """Fixes who trains: by default everybody whose claim came in time, in participant-id order.

        Raises:
            StaleTask: claims are still to be taken, or were withdrawn since they were counted.
        """
        claimed, schedule = sorted(self.market.progress(task).claimed), task.terms.schedule
        if len(claimed) < schedule.quorum:
            raise StaleTask(f"claims of task {task.id} have fallen below the quorum since they were counted")
        if len(claimed) < schedule.capacity and not self._over(task):
            raise StaleTask(f"claims of task {task.id} are taken until its deadline")
        chosen = choose(claimed)
        self.market.select_participants(task.id, chosen)
        self.market.advance(task, State.SELECTED, now=self.now, detail={"selected": chosen})
        self.record(*entries.selection_entries(task.id, chosen), self._transition(task.id, 0, State.SELECTED))

    def open_round(self, task: TaskRow, round_: int, size: int) -> None:
        deadline = self.time(task.id) + task.terms.schedule.round_seconds
        self.market.advance(
            task,
            State.TRAINING,
            now=self.now,
            round_=round_,
            deadline=deadline,
            detail={"model_sha256": task.model.hex(), "model_bytes": size},
        )
        self.market.open_round(task.id, round_, task.model, size, self.now)
        self.record(self._transition(task.id, round_, State.TRAINING))
        self.notice("round.opened", {"round": round_, "deadline": deadline}, task.id)

    def close_round(self, task: TaskRow, absent: Collection[str] = ()) -> None:
        """Fixes the round's models; evidence comes next. The ledger enters SCORED with the verdicts.

        Args:
            absent: who is not waited for.

        Raises:
            StaleTask: somebody else is, and the time is not over.
        """
        awaited = set() if self._over(task) else self.market.progress(task).outstanding
        if not awaited <= set(absent):
            raise StaleTask(f"models of round {task.round} of task {task.id} are taken until its deadline")
        self.market.advance(task, State.SCORED, now=self.now)
        self.market.update_round(task.id, task.round, closed_at=self.now)
        self.record(*entries.closing_entries(task.id, task.round, self.at(task.id), awaited))

    def settle(
        self,
        task: TaskRow,
        draw: Draw,
        assessments: Sequence[Assessment],
        evidence: Mapping[str, Json],
        merged: Merged,
        quality: Quality | None,
    ) -> RoundSettlement:
        """Posts a closed round: verdicts, seed, peers, payments, the next model, the new state."""
        model = merged.model_sha256
        ordered = sorted(assessments, key=lambda a: a.participant_id)
        stakes = self.ledger.stakes(task.id, [a.participant_id for a in ordered])
        disputable = disputes_possible(task.terms)
        settlement, settled = entries.settlement_entries(
            task.terms,
            task.round,
            draw,
            ordered,
            stakes,
            disputable,
            self.ledger.keys(),
            self._meetings(task),
        )
        figures = {} if quality is None else quality.figures()
        by_label = json.dumps(quality.by_label) if quality is not None and quality.by_label else None
        self.record(
            *judgement(task.terms, task.round, ordered, evidence),
            self._transition(task.id, task.round, State.SCORED),
        )
        places = {r.id: r.index for r in self.ledger.append(settled)}
        self.record(
            entries.aggregation(task.id, task.round, model, figures, merged.state_sha256),
            self._transition(task.id, task.round, State.SETTLED),
        )
        self._settle_rows(task, settlement, ordered, places)
        self._add_audits(task, settlement)
        size = self.ledger.size()
        last = task.round == task.terms.schedule.rounds
        window = self.time(task.id) + task.terms.schedule.dispute_seconds if disputable and last else None
        self.market.advance(
            task, State.SETTLED, now=self.now, deadline=window, model=model, detail={"ledger_size": size}
        )
        self.market.update_round(
            task.id,
            task.round,
            settled_at=self.now,
            result_model=model,
            server_state=merged.state_sha256,
            ledger_size=size,
            accuracy_by_label=by_label,
            **figures,
        )
        paid = sum(line.paid_micro for line in settlement.payments)
        self.notice("round.settled", {"round": task.round, "paid_micro": paid}, task.id)
        return settlement

    def close(self, task: TaskRow) -> None:
        """All rounds are settled: what is left of the budget and the stakes goes back.

        Raises:
            StaleTask: disputes may still be opened.
        """
        if self.market.audits_due(task.id) is not None:
            raise StaleTask(f"audits of task {task.id} are pending")
        if task.deadline is not None and not self._over(task):
            raise StaleTask(f"disputes of task {task.id} are taken until its deadline")
        self._end(task, State.CLOSED, "")

    def end_audits(self, task: TaskRow) -> None:
        """Ends what audits await and nobody has brought in time."""
        for row in self.market.audits(task.id):
            if row.due_at is None or self.now < row.due_at:
                continue
            why = {OPEN: UNVISITED, FAILED: UNAPPEALED, APPEALED: UNANSWERED}[row.stage]
            ended = audit_end(
                task.terms, row.round, row.participant_id, why, row.question_micro, self.at(task.id)
            )
            self.record(ended)
            stage, words = RELEASED, f"The time for it is over: {why}."
            if why == UNAPPEALED:
                stage, words = CONVICTED, row.explanation
            elif (
                why == UNVISITED and task.terms.audit is not None and task.terms.audit.unaudited == "refunded"
            ):
                stage = REFUNDED
            self.market.set_audit(task.id, replace(row, stage=stage, due_at=None, explanation=words))

    def cancel(self, task: TaskRow, reason: str) -> None:
        """Refunds what is not yet paid."""
        self._end(task, State.CANCELLED, reason)

    def models_deleted(self, task: TaskRow) -> None:
        """No file of a model that was submitted in an ended task is kept any more, as its terms have promised."""
        if not self.ledger_store.find([entries.deletion_id(task.id)]):
            self.record(entries.deletion(task.id, self.at(task.id)))

    def notice(
        self, type_: str, data: Mapping[str, Any], task_id: str = "", participant_id: str = ""
    ) -> None:
        """Leaves word of what happens in this transaction for `coordinator.notices` to send."""
        self.market.add_notice(type_, uuid4().hex, self.now, data, task_id, participant_id)

    def signed_size(self) -> int:
        """Entries that the last signed head covers."""
        note = self.ledger_store.checkpoint()
        return 0 if note is None else Checkpoint.parse_text(Note.parse(note).text).size

    def openings(self, task_id: str | None = None) -> Openings:
        """All that the entries of a task commit to, or those of every task: what its auditor is given."""
        tasks = [row.id for row in self.market.tasks()] if task_id is None else [task_id]
        kept = [row for name in tasks for row in self.market.openings(name)]
        kept.sort(key=lambda row: row.number)
        return Openings(None, {row.entry_id: parse_canonical(row.opening) for row in kept})

    def escrow_left(self, task: TaskRow) -> int:
        """Micro-credits still reserved for a task."""
        return self.ledger.balance(escrow(task.id)).credits_pending

    def _end(self, task: TaskRow, state: State, reason: str) -> None:
        detail = {"reason": reason} if reason else {}
        self.market.advance(task, state, now=self.now, reason=reason or None, detail=detail)
        rounds = range(1, task.terms.schedule.rounds + 1)
        reserved = self.ledger_store.reservations([reservation_id(task.id, r) for r in rounds])
        unresolved = [r for r in rounds if not reserved[reservation_id(task.id, r)].resolved]
        people = [claim.participant_id for claim in self.market.claims(task.id)]
        stakes = self.ledger.stakes(task.id, people)
        convicted = {a.participant_id for a in self.market.audits(task.id) if a.stage == CONVICTED}
        self.record(
            *entries.ending_entries(
                task.id,
                task.round,
                state,
                unresolved,
                stakes,
                self.at(task.id),
                reason,
                self._awards(task),
                self._left_held(task, people, stakes, convicted),
                convicted,
            )
        )
        self.notice(f"task.{state.value.lower()}", {"round": task.round, **detail}, task.id)
        owed = self.ledger_store.balances([payable(name) for name in people])
        if due := sum(balance.free for balance in owed.values()):
            self.notice("payout.due", {"payable_micro": due}, task.id)

    def _add_audits(self, task: TaskRow, settlement: RoundSettlement) -> None:
        """Of those whom the round's draw key has drawn."""
        audit = task.terms.audit
        if audit is None:
            return
        due = self.time(task.id) + audit.seconds
        self.market.add_audits(
            task.id,
            [
                AuditRow(task.round, line.participant_id, question_micro(audit, line), OPEN, due)
                for line in settlement.payments
                if line.audited
            ],
        )

    def _left_held(
        self, task: TaskRow, people: Sequence[str], stakes: Mapping[str, int], convicted: Collection[str]
    ) -> list[Entry]:
        if task.terms.audit is None:
            return []
        accounts = {held(task.id, name): name for name in people}
        found = self.ledger_store.balances(sorted(accounts))
        helds = {name: found[a].holds if a in found else 0 for a, name in accounts.items()}
        return held_entries(task.terms, helds, stakes, convicted)

    def _meetings(self, task: TaskRow) -> Meetings:
        """Who was scored against whom in the rounds before, as the log has it, where a draw hangs on that."""
        if task.terms.rule.name != "verified" or task.terms.all_peers:
            return Meetings()
        firsts = [entries.peers_id(task.id, number, 1) for number in range(1, task.round)]
        meetings = Meetings()
        for index in self.ledger_store.find(firsts).values():
            first: Any = self.entry(index).body
            for data in self.ledger_store.entries(index, first["parts"]):  # parts stand together
                part: Any = Entry.parse(data).body
                meetings.add(part["draws"])
        return meetings

    def _awards(self, task: TaskRow) -> list[Entry]:
        """What pays the disputes of every round that kept something back for them."""
        rounds = range(1, task.round + 1)
        kept = self.ledger_store.reservations([entries.dispute_reservation(task.terms, r) for r in rounds])
        selected = [claim.participant_id for claim in self.market.claims(task.id) if claim.selected]
        disputed = sorted(self.disputed(task.id, selected)) if kept else []
        found: list[Entry] = []
        for round_ in rounds:
            if entries.dispute_reservation(task.terms, round_) not in kept:
                continue
            lines = {name: self.market.settlement(task.id, round_, name) for name in disputed}
            awards = {
                name: self._review(task, line).award_micro for name, line in lines.items() if line is not None
            }
            found += entries.award_entries(task.terms, round_, awards)
        return found

    def _review(self, task: TaskRow, line: SettlementRow) -> Review:
        peers = []
        for name in line.record["peers"]:
            found = self.market.settlement(task.id, line.round, name)
            assert found is not None  # a peer is settled in the same transaction
            peers.append(found.assessment)
        return review(task.terms, line.assessment, peers, line.paid_micro)

    def _settle_rows(
        self,
        task: TaskRow,
        settlement: RoundSettlement,
        ordered: Sequence[Assessment],
        places: Mapping[str, int],
    ) -> None:
        rows, expected = [], expected_payments(task.terms, ordered)
        for assessment, line in zip(ordered, settlement.payments, strict=True):
            name = assessment.participant_id
            record: dict[str, Any] = {
                "paid_micro": line.paid_micro,
                "expected_micro": expected[name],
                "penalty_micro": line.penalty_micro,
                "withheld_micro": line.withheld_micro,
                "stake_lost_micro": line.stake_lost_micro,
                "held_micro": line.held_micro,
                "audited": bool(line.audited),
                "peers": list(line.peers),
                "assessment": entries.assessment_record(assessment),
            }
            place = places[f"{task.id}/round/{task.round}/payment/{name}"]
            rows.append(SettlementRow(task.round, name, place, record))
        self.market.add_settlements(task.id, rows)

    def _receipt(
        self, statement: Statement | FailureReport, round_: int, index: int, *, late: bool
    ) -> ReceiptRow:
        receipt = ReceiptRow(
            task_id=statement.task_id,
            participant_id=statement.participant_id,
            submission_id=statement.submission_id,
            kind=statement.kind,
            round=round_,
            digest=statement.digest,
            ledger_index=index,
            late=late,
            at=self.now,
        )
        self.market.add_receipt(receipt)
        return receipt

    def _transition(self, task_id: str, round_: int, state: State) -> Entry:
        return entries.transition(task_id, round_, state, self.at(task_id))

    def entry(self, index: int) -> Entry:
        """The ledger's entry at an index that it has."""
        return Entry.parse(next(iter(self.ledger_store.entries(index, 1))))

    def at(self, task_id: str) -> str:
        """The same as entries write it."""
        return entries.timestamp(self.time(task_id))

    def time(self, task_id: str) -> float:
        """When a task takes a step now: not before its last one, though a clock may be set back."""
        return max(self.now, self.market.latest_event_at(task_id))

    def _over(self, task: TaskRow) -> bool:
        """Whether the task's phase is over, by the time that this transaction is recorded with."""
        return task.deadline is not None and self.now >= task.deadline

    def record(self, *recorded: Entry) -> int:
        """Appends entries and keeps what they commit to; returns the index of the last."""
        appended = self.ledger.append(recorded)
        self.market.add_openings(appended[0].index, recorded)
        return appended[-1].index
