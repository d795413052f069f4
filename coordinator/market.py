"""What each call of a participant does, whatever the transport: checks, one transaction, and a runner woken."""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import TypeVar

import structlog

from coordinator.admission import (
    admit_claim,
    admit_dispute,
    admit_failure,
    admit_model,
    admit_progress,
    admit_upload,
    barred,
    check_author,
    check_name,
    same_receipt,
)
from coordinator.audits import appeal
from coordinator.boundary import refusal_for
from coordinator.control_socket import RoundProgress
from coordinator.identity import Caller, check_standing
from coordinator.notices import Refused
from coordinator.reputation import reputation_of
from coordinator.runner import LiveTask, Workplace
from coordinator.settlements import PaidRound, Settlements
from coordinator.shared_frames import SharedFrame, SharedFrames
from coordinator.spool import UploadKey
from coordinator.storage.audits import AuditRow
from coordinator.storage.changes import Kind
from coordinator.storage.openings import OpeningRow
from coordinator.storage.submissions import ModelStanding, ReceiptRow
from coordinator.storage.tasks import EventRow, TaskRow
from coordinator.tracing import annotate
from coordinator.transaction import FailureReport, Transaction
from coordinator.upload_places import UploadStream
from fedpeer.protocol.codec import decode_opening, decode_signed
from fedpeer.protocol.errors import Code, Refusal
from fedpeer.protocol.faults import Outlook, outlook
from fedpeer.protocol.frames import Frame
from fedpeer.protocol.limits import (
    FRAME_BYTES,
    MAX_REASON_CHARACTERS,
    MAX_REFUSAL_SENTENCE,
    MIN_FRAME_BYTES,
    PLAIN_FRAME_BYTES,
)
from fedpeer.terminal import printable
from fedpeer.v1 import market_pb2
from mechanism.dispute import Review, check_opening
from mechanism.errors import FieldError
from mechanism.lifecycle import State
from mechanism.reputation import Reputation
from mechanism.settlement import MICRO
from mechanism.statements import ClaimOpening, ClaimStatement, ModelOpening, ModelStatement
from mechanism.terms import identifier

log = structlog.get_logger()

Result = TypeVar("Result")

#: Where a participant may still come to claim.
_BEFORE_SELECTION = (State.OPEN, State.EFFORT)

#: Ended tasks that a list still names; `GetTask` knows them all.
_LISTED_ENDED = 20

#: Names in a page of those selected: of 64 characters each they take a tenth of a message.
_LISTED_SELECTED = 5000


@dataclass(frozen=True)
class Participation:
    """How one participant takes part in one task, as far as the coordinator has it recorded.

    Attributes:
        barred: why a claim of its own would be refused because of its organisation's others; empty: it would not.
    """

    submissions: tuple[str, ...]
    selected: bool = False
    draw_head: bytes = b""
    barred: str = ""


@dataclass(frozen=True)
class ReceivedEvent:
    """An event as one participant receives it.

    Attributes:
        paid: what the round that it settles paid to this participant; None where that is not in memory.
        chosen: whether this participant is one of those selected.
    """

    event: EventRow
    paid: PaidRound | None = None
    chosen: bool = False


@dataclass(frozen=True)
class DisputeStanding:
    """Where a dispute stands in the ledger, what the opened counts change by round, and whether that is paid."""

    ledger_index: int
    rounds: dict[int, Review]
    paid: bool


class Market:
    """Serves participants. One instance for one service.

    Args:
        catch_up: reads what the database has of a task beyond what this process knows; nothing where there is no
            such task. Another process may have changed it a moment ago, and who heard of it there asks here.
    """

    def __init__(self, workplace: Workplace, catch_up: Callable[[str], Awaitable[None]]) -> None:
        self._work = workplace
        self._catch_up = catch_up
        self._uploads = workplace.uploads
        self._frames = SharedFrames()
        self._tasks: dict[str, LiveTask] = {}
        self._settlements = Settlements(workplace.transact)

    def add(self, live: LiveTask) -> None:
        """Holds a task from here on, at its place by age: processes hear of two in either order."""
        last = next(reversed(self._tasks.values()), live)
        self._tasks[live.row.id] = live
        if _age(live) < _age(last):
            self._tasks = {each.row.id: each for each in sorted(self._tasks.values(), key=_age)}

    def person_changed(self, participant_id: str | None = None) -> None:
        """What is kept in memory of a participant is read again: it may have been forgotten. None: of everybody."""
        self._settlements.drop(participant_id)

    def held(self, task_id: str) -> LiveTask | None:
        """The task, where this process knows it."""
        return self._tasks.get(task_id)

    def tasks(self) -> list[LiveTask]:
        """All tasks, the oldest first."""
        return list(self._tasks.values())

    async def offered(self, after: str = "") -> list[LiveTask]:
        """Tasks that have not ended, and the last ones that have; with `after`, those that follow that task.

        Raises:
            FieldError: there is no task `after`.
        """
        if after and await self._known(after) is None:
            raise FieldError("page", after[:64], "what the page before gives as next_page, or nothing")
        ended = [live for live in self._tasks.values() if live.row.state.final]
        dropped = {live.row.id for live in ended[:-_LISTED_ENDED]}
        places = list(self._tasks)
        following = places[places.index(after) + 1 :] if after else places
        return [self._tasks[name] for name in following if name not in dropped]

    async def task(self, task_id: str) -> LiveTask:
        """Raises Refusal TASK_UNKNOWN."""
        live = await self._known(task_id)
        if live is None:
            raise Refusal(Code.TASK_UNKNOWN, f"There is no task {task_id[:64]!r}.")
        annotate(task=live.row.id, round=live.row.round)
        return live

    async def participation(self, caller: Caller, live: LiveTask) -> Participation:
        """What the coordinator already holds from the caller."""
        name = caller.participant_id
        live.presence.hear(name, self._work.clock.now())

        def read(t: Transaction) -> Participation:
            claim = t.market.claim(live.row.id, name)
            receipts = t.market.receipts(live.row.id, name)
            submissions = tuple(r.submission_id for r in receipts)
            if claim is not None:
                return Participation(submissions, claim.selected, claim.draw_head)
            refusal = live.row.state in _BEFORE_SELECTION and barred(t.market, live.row, name)
            return Participation(submissions, barred=refusal.message if refusal else "")

        return await self._work.transact.read(read)

    async def selected(self, caller: Caller, task_id: str, after: str) -> tuple[list[str], bool]:
        """A page of those who train, in id order, that begins after an id; and whether others follow.

        Raises:
            Refusal: NOT_YET.
        """
        live = await self._heard(caller, task_id)
        if not live.feed.chosen:
            await self._catch_up(task_id)
        chosen = live.feed.chosen
        if not chosen:
            raise Refusal(Code.NOT_YET, f"Nobody is selected in task {task_id} yet.")
        first = bisect_right(chosen, after)
        page = chosen[first : first + _LISTED_SELECTED]
        return page, first + len(page) < len(chosen)

    async def watch(self, caller: Caller, task_id: str, cursor: int) -> AsyncIterator[ReceivedEvent]:
        """Events above `cursor`, as they come, until the task has ended.

        Raises:
            FieldError: a cursor that no event has yet.
            Refusal: why the stream ends before the task does: another session takes over, or the service shuts down.
        """
        live = await self._heard(caller, task_id)
        if cursor > live.feed.cursor:
            await self._catch_up(task_id)
        if cursor > live.feed.cursor:
            raise FieldError("cursor", cursor, f"at most {live.feed.cursor}, the last event's")
        now = self._work.clock.now()
        session = live.presence.enter(caller.participant_id, now)
        live.glance()
        self._work.metrics.watchers.inc()
        try:
            await self._work.tell(Kind.WATCHES, task_id, caller.participant_id, at=now)
            async for event in live.feed.follow(cursor, session):
                yield await self._received(caller, live, event)
            if session.reason is not None:
                raise session.reason
        finally:
            self._work.metrics.watchers.dec()
            live.presence.leave(session, self._work.clock.now())
            # The runner sets its alarm for the time when this absence begins to count.
            live.glance()

    async def claim(
        self, caller: Caller, statement: ClaimStatement, signature: bytes, opening: ClaimOpening
    ) -> ReceiptRow:
        """Takes an effort claim, with what it commits to."""
        live = await self._heard(caller, statement.task_id)
        with self._notifying_refusals(caller, live, "claim"):
            check_author(caller, live.row, statement, signature)
            return await self._take(
                caller,
                live,
                statement,
                lambda t, task: admit_claim(t.market, task, statement),
                lambda t, task: t.add_claim(task, statement, signature, opening),
            )

    async def fail(self, caller: Caller, report: FailureReport) -> ReceiptRow:
        """Takes a participant's word that it cannot deliver."""
        live = await self._heard(caller, report.task_id)
        check_name(caller, report.participant_id)
        identifier("submission_id", report.submission_id)
        if (size := len(report.reason)) > MAX_REASON_CHARACTERS:
            raise FieldError("reason", f"{size} characters", f"at most {MAX_REASON_CHARACTERS} characters")
        receipt = await self._take(
            caller,
            live,
            report,
            lambda t, task: admit_failure(t.market, task, report.participant_id, report.round),
            lambda t, task: t.add_failure(task, report),
        )
        why = printable(report.reason)
        log.warning("participant cannot deliver", task=report.task_id, round=report.round, why=why)
        return receipt

    async def progress(self, caller: Caller, task_id: str, round_: int, done_micro: int) -> None:
        """Keeps how far the caller's training is, in millionths, until it says more or the round is over."""
        live = await self._heard(caller, task_id)
        if live.row.round < round_:
            await self._catch_up(task_id)
        admit_progress(live.row, live.feed.selected, caller.participant_id, round_)
        if done_micro > MICRO:
            raise FieldError("done_millionths", done_micro, f"at most {MICRO}, all of the training")
        name, now = caller.participant_id, self._work.clock.now()
        live.progress_of(round_).done_micro[name] = done_micro
        await self._work.tell(Kind.PROGRESS, task_id, name, str(round_), str(done_micro), at=now)

    def rounds(self) -> dict[str, RoundProgress]:
        """How far the rounds are that are trained and scored now, by task; nothing depends on it."""
        return {
            live.row.id: live.progress
            for live in self._tasks.values()
            if live.row.state in (State.TRAINING, State.SCORED) and live.progress.round == live.row.round
        }

    async def _take(
        self,
        caller: Caller,
        live: LiveTask,
        said: ClaimStatement | FailureReport,
        admit: Callable[[Transaction, TaskRow], None],
        add: Callable[[Transaction, TaskRow], ReceiptRow],
    ) -> ReceiptRow:
        """The receipt of what was said before, or of what is admitted and added now."""

        def record(t: Transaction) -> ReceiptRow:
            task = t.task(live.row.id)
            known = t.market.receipt(task.id, said.participant_id, said.submission_id)
            if (same := same_receipt(known, said.digest)) is not None:
                return same
            admit(t, task)
            return add(t, task)

        receipt = await self._work.transact(_standing(caller, record))
        live.arrived()
        return receipt

    async def dispute(
        self, caller: Caller, task_id: str, counts: Sequence[int], salt: bytes
    ) -> DisputeStanding:
        """Opens the counts that the caller's claim commits to, once; asked again, says how the dispute stands.

        Raises:
            Refusal: see `admit_dispute`.
            FieldError: counts that the claim did not commit to, or of another degree.
        """
        await self._heard(caller, task_id)
        name = caller.participant_id

        def record(t: Transaction) -> DisputeStanding:
            task = t.task(task_id)
            place = t.disputed(task.id, [name]).get(name)
            claim = (
                admit_dispute(t.market, task, name, t.now) if place is None else t.market.claim(task.id, name)
            )
            assert claim is not None  # a dispute needs a claim
            check_opening(task.terms, claim.counts_commitment, Fraction(claim.degree), counts, salt)
            if place is None:
                place = t.open_dispute(task, name, counts, salt)
            return DisputeStanding(place, t.reviews(task, name), task.state.final)

        standing = await self._work.transact(_standing(caller, record))
        await self._work.transact.sign_head()
        return standing

    async def reputation(self, caller: Caller) -> Reputation:
        """The caller's own standing across tasks, with its reasons."""
        return await self._work.transact.read(lambda t: reputation_of(t, caller.participant_id))

    async def audits(self, caller: Caller, task_id: str) -> list[AuditRow]:
        """How the audits of the caller's submissions stand, in the order of rounds."""
        await self._heard(caller, task_id)
        return await self._work.transact.read(lambda t: _own_audits(t, task_id, caller))

    async def appeal(self, caller: Caller, task_id: str, round_: int, reason: str) -> list[AuditRow]:
        """Takes an appeal against an audit that failed, once; asked again, says how the audits stand.

        Raises:
            Refusal, FieldError: see `coordinator.audits.appeal`.
        """
        live = await self._heard(caller, task_id)

        def record(t: Transaction) -> list[AuditRow]:
            appeal(t, t.task(task_id), caller.participant_id, round_, reason)
            return _own_audits(t, task_id, caller)

        standing = await self._work.transact(_standing(caller, record))
        live.changed.set()
        await self._work.transact.sign_head()
        return standing

    async def start_model(
        self, caller: Caller, task_id: str, round_: int, offset: int, max_frame_bytes: int
    ) -> AsyncIterator[SharedFrame]:
        """The file that a round starts from, in frames from byte `offset` on.

        Args:
            max_frame_bytes: of a frame, as the caller asks; 0 where it does not. Held within the limits.

        Raises:
            Refusal: NOT_SELECTED, NOT_YET, EXPIRED.
            FieldError: an offset past the file's end.
        """
        live = await self._heard(caller, task_id)
        # From the events, which participants act upon: asked by everybody at once when a round opens.
        opened = live.feed.last(State.TRAINING, round_)
        if opened is None:
            await self._catch_up(task_id)
            opened = live.feed.last(State.TRAINING, round_)
        if opened is None:
            raise Refusal(Code.NOT_YET, f"Round {round_} of task {task_id} has not begun.")
        if caller.participant_id not in live.feed.selected:
            raise Refusal(Code.NOT_SELECTED, f"{caller.participant_id!r} does not train in {task_id}.")
        size = opened.detail["model_bytes"]
        if offset > size:
            raise FieldError("offset", offset, f"at most the model's {size} bytes")
        digest = bytes.fromhex(opened.detail["model_sha256"])
        frame_bytes = min(FRAME_BYTES, max(MIN_FRAME_BYTES, max_frame_bytes or PLAIN_FRAME_BYTES))
        try:
            path = await asyncio.to_thread(self._work.blobs.fetch, digest)
            while offset < size:
                frame = await self._frames.frame(path, offset, frame_bytes)
                if not frame.size:
                    return  # the file was cut off: its receiver sees that by the digest
                yield frame
                offset += frame.size
        except FileNotFoundError:
            raise Refusal(Code.EXPIRED, f"The model of round {round_} is no longer kept.") from None

    async def upload_status(self, caller: Caller, task_id: str, submission_id: str) -> tuple[int, bool]:
        """Bytes held of an upload, and whether it is complete."""
        key = UploadKey(task_id, caller.participant_id, submission_id)
        if await self._receipt(caller, task_id, submission_id) is not None:
            return 0, True
        return await self._uploads.held(key), False

    async def receipt(self, caller: Caller, task_id: str, submission_id: str) -> ReceiptRow:
        """Raises Refusal SUBMISSION_UNKNOWN."""
        found = await self._receipt(caller, task_id, submission_id)
        if found is None:
            raise Refusal(
                Code.SUBMISSION_UNKNOWN,
                f"There is no submission {submission_id[:64]!r} of {caller.participant_id!r}.",
            )
        return found

    async def _receipt(self, caller: Caller, task_id: str, submission_id: str) -> ReceiptRow | None:
        await self._heard(caller, task_id)
        return await self._work.transact.read(
            lambda t: t.market.receipt(task_id, caller.participant_id, submission_id)
        )

    async def openings(self, caller: Caller, task_id: str) -> AsyncIterator[tuple[str, bytes]]:
        """What the entries about the caller commit to, by their ids in the ledger's order; after the task has ended,
        what its evidence does, too: until then the maps are of use to who would pass for another."""
        await self._heard(caller, task_id)
        name = caller.participant_id

        def read(t: Transaction) -> list[str]:
            rows = t.market.openings_about(task_id, name)
            if t.task(task_id).state.final:
                rows += t.market.openings_of_kind(task_id, "evidence")
            return [row.entry_id for row in sorted(rows, key=lambda row: row.number)]

        for entry_id in await self._work.transact.read(read):
            row = await self._work.transact.read(partial(_opening, task_id, entry_id))
            if row is not None:  # it was not erased meanwhile
                yield entry_id, row.opening

    async def settlement(self, caller: Caller, task_id: str, round_: int) -> PaidRound:
        """As `Settlements.line`, of the caller."""
        live = await self._heard(caller, task_id)
        return await self._settlements.line(live.row, round_, caller.participant_id)

    async def submit(
        self,
        caller: Caller,
        messages: AsyncIterator[market_pb2.ModelHeader | Frame],
        welcome: Callable[[], Awaitable[None]],
    ) -> ReceiptRow:
        """Takes a model: a header, then, after `welcome`, frames from the offset that the header names."""
        stream = UploadStream(messages, welcome)
        header = await stream.next()
        if not isinstance(header, market_pb2.ModelHeader):
            raise Refusal(Code.FRAMES_INVALID, "The first message is not a header.")
        statement = decode_signed(ModelStatement, header.model)
        live = await self._heard(caller, statement.task_id)
        with self._notifying_refusals(caller, live, "model"):
            return await self._take_model(caller, live, stream, header, statement)

    async def _take_model(
        self,
        caller: Caller,
        live: LiveTask,
        stream: UploadStream,
        header: market_pb2.ModelHeader,
        statement: ModelStatement,
    ) -> ReceiptRow:
        """The receipt of a model whose header has come."""
        signature = header.model.signature
        check_author(caller, live.row, statement, signature)
        opening = decode_opening(ModelOpening, statement, header.model)
        upload = statement.task_id, statement.participant_id, statement.submission_id

        def begin(t: Transaction) -> tuple[ReceiptRow | None, bool, int]:
            known, standing, late = self._admit(t, live, statement)
            turn = 0
            if known is None:
                admit_upload(live.row, statement, standing)
                if not late:
                    t.begin_upload(statement, standing)
                    if self._work.shared:
                        turn = t.market.turn()
                        t.market.announce(Kind.SENDS, *upload, str(turn))
            return known, late, turn

        def finish(t: Transaction) -> ReceiptRow:
            known, standing, late = self._admit(t, live, statement)
            return known or t.add_model(statement, signature, opening, standing, late=late)

        async def record() -> ReceiptRow:
            receipt = await self._work.transact(_standing(caller, finish))
            live.arrived()
            return receipt

        # Nobody learns of the commitment before the receipt, whose commit is a later one.
        known, late, stream.turn = await self._work.transact(_standing(caller, begin), durable=False)
        if known is not None:
            return known
        if late:
            return await record()  # by its header alone
        contract = live.row.terms.contract
        return await self._uploads.receive(stream, statement, header.offset, contract, record)

    @contextmanager
    def _notifying_refusals(self, caller: Caller, live: LiveTask, kind: str) -> Iterator[None]:
        """Notifies the caller's receivers where what it sends is refused for good."""
        try:
            yield
        except Exception as error:
            refusal = refusal_for(error)
            if outlook(refusal.code) is Outlook.LASTING:
                why = refusal.message[:MAX_REFUSAL_SENTENCE]
                self._work.refused(Refused(caller.participant_id, live.row.id, kind, refusal.code.name, why))
            raise

    async def _received(self, caller: Caller, live: LiveTask, event: EventRow) -> ReceivedEvent:
        chosen = caller.participant_id in live.feed.selected
        last = event is live.feed.last(State.SETTLED)
        if event.state is not State.SETTLED or not last or not chosen:
            return ReceivedEvent(event, chosen=chosen)
        # What all that trained would ask for next, at the same time.
        return ReceivedEvent(
            event, await self._settlements.of_event(live.row, event.round, caller.participant_id)
        )

    def _admit(
        self, t: Transaction, live: LiveTask, statement: ModelStatement
    ) -> tuple[ReceiptRow | None, ModelStanding, bool]:
        """The receipt of a known submission; how one stands; whether one that is admitted now is late."""
        task, standing = t.task(live.row.id), t.model_standing(statement)
        known = same_receipt(standing.receipt, statement.digest)
        return known, standing, known is None and admit_model(t.market, task, statement, standing)

    async def _known(self, task_id: str) -> LiveTask | None:
        if task_id not in self._tasks:
            await self._catch_up(task_id)
        return self._tasks.get(task_id)

    async def _heard(self, caller: Caller, task_id: str) -> LiveTask:
        live = await self.task(task_id)
        live.presence.hear(caller.participant_id, self._work.clock.now())
        return live


def _age(live: LiveTask) -> tuple[float, str]:
    return live.row.opened_at, live.row.id


def _opening(task_id: str, entry_id: str, t: Transaction) -> OpeningRow | None:
    return t.market.opening(task_id, entry_id)


def _own_audits(t: Transaction, task_id: str, caller: Caller) -> list[AuditRow]:
    return [row for row in t.market.audits(task_id) if row.participant_id == caller.participant_id]


def _standing(caller: Caller, work: Callable[[Transaction], Result]) -> Callable[[Transaction], Result]:
    """`work`, provided that the caller stands in the transaction that it is part of: for all that a caller writes."""

    def act(t: Transaction) -> Result:
        check_standing(t.market, caller)
        return work(t)

    return act
