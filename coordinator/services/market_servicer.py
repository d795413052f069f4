"""The Market service: decode, one call of `coordinator.market`, encode."""

from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from coordinator.boundary import caller, welcome
from coordinator.derivation import nonce
from coordinator.identity import Caller
from coordinator.market import Market, ReceivedEvent
from coordinator.metrics import Metrics
from coordinator.runner import LiveTask
from coordinator.settlements import PaidRound
from coordinator.storage.audits import AuditRow
from coordinator.transaction import FailureReport
from fedpeer.protocol.codec import decode_opening, decode_signed, encode_verdict
from fedpeer.protocol.frames import Frame
from fedpeer.protocol.limits import MAX_PAGE_BYTES
from fedpeer.v1 import market_pb2, market_pb2_grpc
from mechanism.canonical import canonical_digest
from mechanism.lifecycle import State
from mechanism.settlement import MICRO
from mechanism.statements import ClaimOpening, ClaimStatement

#: Any message.
Filled = TypeVar("Filled", bound=Message)

_STATES: dict[State, market_pb2.TaskState] = {
    state: getattr(market_pb2, f"TASK_STATE_{state}") for state in State
}

#: Events that are kept in serialised form: those that watchers of a few tasks receive now. The largest names all who
#: were selected.
_KEPT_EVENTS = 32


class MarketServicer(market_pb2_grpc.MarketServicer):
    """Serves `coordinator.market.Market` to authenticated participants."""

    def __init__(self, market: Market, metrics: Metrics) -> None:
        self._market = market
        self._metrics = metrics
        #: Events that are the same for many watchers, serialised, by task, cursor and whether one is selected.
        self._encoded: OrderedDict[tuple[str, int, bool], bytes] = OrderedDict()

    async def ListTasks(
        self, request: market_pb2.ListTasksRequest, context: Any
    ) -> market_pb2.ListTasksResponse:
        who, page = caller(), market_pb2.ListTasksResponse()
        used = 0
        for live in await self._market.offered(request.page):
            task = await self._task(who, live)
            used += task.ByteSize()
            if page.tasks and used > MAX_PAGE_BYTES:
                page.next_page = page.tasks[-1].task_id
                break
            page.tasks.append(task)
        return page

    async def GetTask(self, request: market_pb2.GetTaskRequest, context: Any) -> market_pb2.Task:
        return await self._task(caller(), await self._market.task(request.task_id))

    async def Watch(self, request: market_pb2.WatchRequest, context: Any) -> AsyncIterator[Any]:
        async for received in self._market.watch(caller(), request.task_id, request.cursor):
            yield self._encoded_event(request.task_id, received)

    async def ListSelected(
        self, request: market_pb2.ListSelectedRequest, context: Any
    ) -> market_pb2.ListSelectedResponse:
        names, more = await self._market.selected(caller(), request.task_id, request.after)
        return market_pb2.ListSelectedResponse(participants=names, more=more)

    async def SubmitEffort(self, request: market_pb2.Signed, context: Any) -> market_pb2.Receipt:
        statement = decode_signed(ClaimStatement, request)
        opening = decode_opening(ClaimOpening, statement, request)
        return _filled(
            market_pb2.Receipt, await self._market.claim(caller(), statement, request.signature, opening)
        )

    async def FetchModel(self, request: market_pb2.FetchModelRequest, context: Any) -> AsyncIterator[Any]:
        frames = self._market.start_model(
            caller(), request.task_id, request.round, request.offset, request.max_frame_bytes
        )
        async for frame in frames:
            yield frame.message
            self._metrics.sent_bytes.inc(frame.size)

    async def GetUpload(self, request: market_pb2.GetUploadRequest, context: Any) -> market_pb2.UploadStatus:
        offset, complete = await self._market.upload_status(caller(), request.task_id, request.submission_id)
        return market_pb2.UploadStatus(offset=offset, complete=complete)

    async def SubmitModel(  # type: ignore[override]  # its messages come from `fedpeer.protocol.frames`
        self, request_iterator: AsyncIterator[market_pb2.ModelHeader | Frame], context: Any
    ) -> market_pb2.Receipt:
        return _filled(market_pb2.Receipt, await self._market.submit(caller(), request_iterator, welcome))

    async def ReportFailure(
        self, request: market_pb2.ReportFailureRequest, context: Any
    ) -> market_pb2.Receipt:
        said = request.task_id, request.round, request.participant_id, request.submission_id, request.reason
        return _filled(market_pb2.Receipt, await self._market.fail(caller(), FailureReport(*said)))

    async def ReportProgress(
        self, request: market_pb2.ReportProgressRequest, context: Any
    ) -> market_pb2.ReportProgressResponse:
        await self._market.progress(caller(), request.task_id, request.round, request.done_millionths)
        return market_pb2.ReportProgressResponse()

    async def GetReceipt(self, request: market_pb2.GetReceiptRequest, context: Any) -> market_pb2.Receipt:
        return _filled(
            market_pb2.Receipt, await self._market.receipt(caller(), request.task_id, request.submission_id)
        )

    async def GetSettlement(
        self, request: market_pb2.GetSettlementRequest, context: Any
    ) -> market_pb2.Settlement:
        return _settlement(
            request.task_id, await self._market.settlement(caller(), request.task_id, request.round)
        )

    async def OpenDispute(self, request: market_pb2.OpenDisputeRequest, context: Any) -> market_pb2.Dispute:
        who = caller()
        standing = await self._market.dispute(who, request.task_id, tuple(request.counts), request.salt)
        return market_pb2.Dispute(
            task_id=request.task_id,
            participant_id=who.participant_id,
            ledger_index=standing.ledger_index,
            rounds=[
                _filled(market_pb2.DisputedRound, found, round=number)
                for number, found in sorted(standing.rounds.items())
            ],
            paid=standing.paid,
        )

    async def GetOpenings(self, request: market_pb2.GetOpeningsRequest, context: Any) -> AsyncIterator[Any]:
        async for entry_id, data in self._market.openings(caller(), request.task_id):
            for start in range(0, len(data), MAX_PAGE_BYTES):
                end = start + MAX_PAGE_BYTES
                yield market_pb2.OpeningPart(entry_id=entry_id, data=data[start:end], last=end >= len(data))

    async def GetReputation(
        self, request: market_pb2.GetReputationRequest, context: Any
    ) -> market_pb2.Reputation:
        found = await self._market.reputation(caller())
        return market_pb2.Reputation(
            value=found.value,
            reasons=[
                _filled(market_pb2.ReputationReason, event, at=_time(event.at), weight=weight)
                for event, weight in found.reasons
            ],
        )

    async def GetAudits(self, request: market_pb2.GetAuditsRequest, context: Any) -> market_pb2.Audits:
        return _audits(await self._market.audits(caller(), request.task_id))

    async def Appeal(self, request: market_pb2.AppealRequest, context: Any) -> market_pb2.Audits:
        who = caller()
        return _audits(await self._market.appeal(who, request.task_id, request.round, request.reason))

    def _encoded_event(self, task_id: str, received: ReceivedEvent) -> market_pb2.Event | bytes:
        """The event, serialised once for all who receive the same."""
        if received.paid is not None:
            return _event(task_id, received)
        key = task_id, received.event.cursor, received.chosen
        found = self._encoded.get(key)
        if found is None:
            found = self._encoded[key] = _event(task_id, received).SerializeToString()
            if len(self._encoded) > _KEPT_EVENTS:
                self._encoded.popitem(last=False)
        return found

    async def _task(self, who: Caller, live: LiveTask) -> market_pb2.Task:
        part = await self._market.participation(who, live)
        row = live.row
        return market_pb2.Task(
            task_id=row.id,
            terms=row.terms.canonical,
            state=_STATES[row.state],
            round=row.round,
            nonce=nonce(row.root, who.participant_id),
            submissions=part.submissions,
            deadline=_time(row.deadline),
            selected=part.selected,
            draw_head=part.draw_head,
            barred=part.barred,
        )


def _time(seconds: float | None) -> Timestamp | None:
    if seconds is None:
        return None
    whole = int(seconds)
    return Timestamp(seconds=whole, nanos=int((seconds - whole) * 1_000_000_000))


def _event(task_id: str, received: ReceivedEvent) -> market_pb2.Event:
    event = received.event
    message = market_pb2.Event(
        cursor=event.cursor,
        task_id=task_id,
        state=_STATES[event.state],
        round=event.round,
        deadline=_time(event.deadline),
    )
    detail = event.detail
    match event.state:
        case State.SELECTED:
            message.selected.count = len(detail["selected"])
            message.selected.chosen = received.chosen
            message.selected.participants_sha256 = canonical_digest(detail["selected"])
        case State.TRAINING:
            message.round_opened.model_sha256 = bytes.fromhex(detail["model_sha256"])
            message.round_opened.model_bytes = detail["model_bytes"]
        case State.SETTLED:
            message.round_settled.ledger_size = detail["ledger_size"]
            if received.paid is not None:
                message.round_settled.settlement.CopyFrom(_settlement(task_id, received.paid))
        case State.CANCELLED:
            message.cancelled.reason = detail["reason"]
    return message


def _audits(rows: Sequence[AuditRow]) -> market_pb2.Audits:
    return market_pb2.Audits(audits=[_filled(market_pb2.Audit, row, due=_time(row.due_at)) for row in rows])


def _settlement(task_id: str, paid: PaidRound) -> market_pb2.Settlement:
    line, assessment = paid.line, paid.line.assessment
    verified = assessment.verified_micro
    kept = ("penalty_micro", "stake_lost_micro", "held_micro", "peers", "audited")
    return _filled(
        market_pb2.Settlement,
        line,
        task_id=task_id,
        claimed_degree=str(assessment.claimed_degree),
        verified_degree="" if verified is None else f"{verified}/{MICRO}",
        verdicts=[encode_verdict(verdict) for verdict in assessment.verdicts],
        proof=paid.proof,
        opening=paid.opening,
        **{key: line.record[key] for key in kept},
    )


def _filled(kind: type[Filled], source: Any, **rest: Any) -> Filled:
    """A message whose fields are those of `source` by their names, but for the `rest`."""
    own = kind.DESCRIPTOR.fields_by_name.keys() - rest.keys()
    return kind(**{name: getattr(source, name) for name in own}, **rest)
