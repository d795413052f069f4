"""A coordinator's protocol rules at the level of effects, for tests of the client's steps: no sockets, no time.

It checks what the real one checks of a client (names, signatures, digests, offsets, ids) and can lose a call
before it arrives, lose its reply, cut an upload short, or kill the client at any effect. What counts is tested
against the real coordinator too; this one can fail at every single point, in milliseconds.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeVar

import grpc
import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from fedpeer.protocol.certificates import new_key
from fedpeer.protocol.codec import decode_opening, decode_signed
from fedpeer.protocol.errors import Code, Refusal
from fedpeer.protocol.frames import Frame, parse_upload_message
from fedpeer.protocol.model_file import contract_of, encode_model
from fedpeer.v1 import ledger_pb2, market_pb2
from mechanism.canonical import canonical_digest
from mechanism.payment import Log
from mechanism.peers import share_fits
from mechanism.statements import ClaimOpening, ClaimStatement, ModelOpening, ModelStatement, signature_holds
from mechanism.terms import Recipe, Rule, Schedule, Terms
from participant.effects import (
    Cast,
    Diagnose,
    Download,
    Effect,
    Emit,
    Interrupted,
    Next,
    Open,
    Pause,
    Steps,
    Unary,
    Upload,
    Work,
)
from participant.errors import refused
from participant.task import Task, Trained, TrainingRound, Weights

T = TypeVar("T")

FRAME = 256
NONCE = bytes(range(16))
PARTICIPANT = "clinic"


class Killed(BaseException):
    """The client's process is gone."""


def start_weights() -> dict[str, np.ndarray[Any, Any]]:
    return {"w": np.arange(300, dtype=np.float32), "n": np.array(3, dtype=np.int64)}


def terms(rounds: int = 2) -> Terms:
    return Terms(
        task_id="cats-1",
        reference=(Fraction(1, 2), Fraction(1, 2)),
        Q=Decimal(100),
        phi=Decimal(10),
        upsilon=Decimal(1),
        payment=Log(),
        rule=Rule(),
        schedule=Schedule(rounds, 3, 8, 60, 60),
        contract=contract_of(start_weights(), Decimal(100_000), 100_000),
        recipe=Recipe("custom", 1, 8, "sgd", Decimal("0.1"), 10),
        budget_micro=10**12,
        seed_commitment=bytes(32),
        validation_commitment=bytes(32),
        initial_model=hashlib.sha256(encode_model(start_weights())).digest(),
    )


class Cats(Task):
    """Adds one to every weight."""

    def __init__(self) -> None:
        self.held = [30, 10]
        self.trained: list[int] = []
        self.failing: set[int] = set()

    def label_counts(self) -> list[int]:
        return list(self.held)

    def collect(self, effort: float) -> None:
        self.held = [30, 10 + round(20 * effort)]

    def train(self, weights: Weights, round: TrainingRound) -> Trained:  # noqa: A002 - as Task.train
        if round.number in self.failing:
            raise ValueError("the scanner is on fire")
        self.trained.append(round.number)
        round.progress(0.5, loss=1.0)
        changed = {n: a + 1 if a.dtype == np.float32 else a for n, a in weights.items()}
        return Trained(changed, metrics={"loss": 0.5})


@dataclass
class _Stream:
    events: Iterator[Any]
    cancelled: bool = False

    def cancel(self) -> bool:
        self.cancelled = True
        return True


@dataclass
class SimulatedMarket:
    """One task, one participant that decides when rounds close.

    Attributes:
        fault: called with the number of each remote effect; returns "", "lost", "unanswered", "cut" or "killed".
    """

    key: ec.EllipticCurvePrivateKey = field(default_factory=new_key)
    rounds: int = 2
    fault: Callable[[int], str] = lambda number: ""
    state: int = market_pb2.TASK_STATE_EFFORT
    round: int = 0
    effects: int = 0
    uploaded: int = 0
    #: Whose settlement a settled round's event carries; none where empty.
    settlement_for: str = PARTICIPANT
    #: Settlements that were asked for.
    asked: list[int] = field(default_factory=list)
    #: What the next models are refused by.
    refusals: list[Code] = field(default_factory=list)
    #: Bytes of a frame above which none gets through.
    largest_frame: int = 1 << 30
    #: What was told and not waited for.
    told: list[Any] = field(default_factory=list)
    claims: list[Any] = field(default_factory=list)
    models: dict[int, list[bytes]] = field(default_factory=dict)
    failures: dict[int, list[str]] = field(default_factory=dict)
    receipts: dict[str, market_pb2.Receipt] = field(default_factory=dict)
    spool: dict[str, bytes] = field(default_factory=dict)
    starts: dict[int, bytes] = field(default_factory=dict)
    events: list[market_pb2.Event] = field(default_factory=list)
    clock: float = 0.0

    def __post_init__(self) -> None:
        self.terms = terms(self.rounds)

    def run(self, steps: Steps[T]) -> T:
        from participant.effects import drive

        return drive(steps, self.perform)

    def perform(self, effect: Effect) -> Any:
        match effect:
            case Work(function):
                return function()
            case Pause(seconds):
                self.clock += seconds
                return None
            case Diagnose():
                return None
            case Cast():
                return self.told.append
            case Emit():
                raise AssertionError("an item outside an iteration")
        self.effects += 1
        fault = self.fault(self.effects)
        if fault == "killed":
            raise Killed
        if fault == "lost":
            raise Interrupted(grpc.StatusCode.UNAVAILABLE, "lost")
        answer = self._answer(effect, cut=fault == "cut")
        if fault == "unanswered":
            raise Interrupted(grpc.StatusCode.UNAVAILABLE, "reply lost")
        return answer

    def _answer(self, effect: Effect, cut: bool) -> Any:
        try:
            match effect:
                case Unary(method, request, _):
                    return getattr(self, "_" + method.path.rpartition("/")[2])(request)
                case Upload(_, requests, _):
                    return self._SubmitModel(requests, cut)
                case Download(_, request, take, _):
                    return self._FetchModel(request, take, cut)
                case Open(_, request):
                    return _Stream(self._follow(request.cursor))
                case Next(stream):
                    return self._next(stream, cut)
        except Refusal as refusal:
            raise refused(refusal) from None
        raise AssertionError(effect)

    def _follow(self, cursor: int) -> Iterator[Any]:
        while cursor < len(self.events):
            yield self.events[cursor]
            cursor += 1

    def _next(self, stream: Any, cut: bool) -> Any:
        if cut:
            raise Interrupted(grpc.StatusCode.UNAVAILABLE, "stream cut")
        return next(stream.events, None)

    def _GetTask(self, request: market_pb2.GetTaskRequest) -> market_pb2.Task:  # noqa: N802 - the RPC's name
        if request.task_id != self.terms.task_id:
            raise Refusal(Code.TASK_UNKNOWN, "There is no such task.")
        return market_pb2.Task(
            task_id=self.terms.task_id,
            terms=self.terms.canonical,
            state=market_pb2.TaskState.ValueType(self.state),
            round=self.round,
            nonce=NONCE,
            submissions=list(self.receipts),
            selected=bool(self.claims),
            draw_head=self.claims[0].draw_head if self.claims else b"",
        )

    def _GetCheckpoint(self, request: Any) -> ledger_pb2.Checkpoint:  # noqa: N802 - the RPC's name
        return ledger_pb2.Checkpoint(verification_key="log+key")

    def _SubmitEffort(self, request: market_pb2.Signed) -> market_pb2.Receipt:  # noqa: N802 - the RPC's name
        statement = decode_signed(ClaimStatement, request)
        assert statement.terms_digest == self.terms.digest
        assert signature_holds(statement, request.signature, self.key.public_key())
        assert statement.nonce == NONCE
        assert statement.participant_id == PARTICIPANT
        known = self._known(statement.submission_id, statement.digest)
        if known is not None:
            return known
        if self.claims or self.state != market_pb2.TASK_STATE_EFFORT:
            raise Refusal(Code.WRONG_STATE, "Claims are closed.")
        self.degree = decode_opening(ClaimOpening, statement, request).degree
        self.claims.append(statement)
        receipt = self._receipt(statement.submission_id, "claim", 0, statement.digest)
        chosen = market_pb2.Selected(
            count=1, chosen=True, participants_sha256=canonical_digest([PARTICIPANT])
        )
        self._event(market_pb2.TASK_STATE_SELECTED).selected.CopyFrom(chosen)
        self._open_round()
        return receipt

    def _FetchModel(self, request: Any, take: Any, cut: bool) -> None:  # noqa: N802 - the RPC's name
        data = self.starts[request.round]
        size = min(FRAME, request.max_frame_bytes)
        for offset in range(request.offset, len(data), size):
            if cut and offset > request.offset:
                raise Interrupted(grpc.StatusCode.UNAVAILABLE, "download cut")
            frame = market_pb2.ModelFrame(offset=offset, data=data[offset : offset + size])
            if len(frame.data) > self.largest_frame:
                self.clock += 60
                raise Interrupted(grpc.StatusCode.UNAVAILABLE, "the link was reset before the frame's end")
            take(frame)

    def _GetUpload(self, request: Any) -> market_pb2.UploadStatus:  # noqa: N802 - the RPC's name
        if request.submission_id in self.receipts:
            return market_pb2.UploadStatus(complete=True)
        return market_pb2.UploadStatus(offset=len(self.spool.get(request.submission_id, b"")))

    def _SubmitModel(self, requests: Iterator[Any], cut: bool) -> market_pb2.Receipt:  # noqa: N802 - the RPC's name
        header = next(requests).header
        if self.refusals:
            raise Refusal(self.refusals.pop(0), "Not now.")
        statement = decode_signed(ModelStatement, header.model)
        assert decode_opening(ModelOpening, statement, header.model).samples
        assert statement.terms_digest == self.terms.digest
        assert signature_holds(statement, header.model.signature, self.key.public_key())
        known = self._known(statement.submission_id, statement.digest)
        if known is not None:
            return known
        if statement.round != self.round or self.state != market_pb2.TASK_STATE_TRAINING:
            raise Refusal(Code.WRONG_ROUND, "That round is over.")
        if not share_fits(statement.draw_share, statement.round, self.claims[0].draw_head):
            raise Refusal(Code.DRAW_SHARE_INVALID, "The draw share is of another chain.")
        held = self.spool.get(statement.submission_id, b"")
        if header.offset > len(held):
            raise Refusal(Code.FRAMES_INVALID, "The offset is beyond what is held.")
        held = held[: header.offset]
        for number, request in enumerate(requests):
            if cut and number == 2:
                self.spool[statement.submission_id] = held
                raise Interrupted(grpc.StatusCode.UNAVAILABLE, "upload cut")
            frame = parse_upload_message(request)
            assert isinstance(frame, Frame)
            assert frame.offset == len(held)
            if len(frame.data) > self.largest_frame:
                self.spool[statement.submission_id] = held
                raise Interrupted(grpc.StatusCode.UNAVAILABLE, "no frame came in time")
            held += frame.data
            self.uploaded += len(frame.data)
        if hashlib.sha256(held).digest() != statement.model_sha256:
            self.spool.pop(statement.submission_id, None)
            raise Refusal(Code.MODEL_INVALID, "The digest differs.")
        self.models.setdefault(self.round, []).append(held)
        receipt = self._receipt(statement.submission_id, "model", self.round, statement.digest)
        self._close_round(held)
        return receipt

    def _ReportFailure(self, request: market_pb2.ReportFailureRequest) -> market_pb2.Receipt:  # noqa: N802 - the RPC's name
        digest = hashlib.sha256(request.SerializeToString()).digest()
        known = self._known(request.submission_id, digest)
        if known is not None:
            return known
        if request.round != self.round:
            raise Refusal(Code.WRONG_ROUND, "That round is over.")
        self.failures.setdefault(self.round, []).append(request.reason)
        receipt = self._receipt(request.submission_id, "failure", self.round, digest)
        self._close_round(self.starts[self.round])
        return receipt

    def _GetReceipt(self, request: Any) -> market_pb2.Receipt:  # noqa: N802 - the RPC's name
        if request.submission_id not in self.receipts:
            raise Refusal(Code.SUBMISSION_UNKNOWN, "There is no such submission.")
        return self.receipts[request.submission_id]

    def _GetSettlement(self, request: Any) -> market_pb2.Settlement:  # noqa: N802 - the RPC's name
        self.asked.append(request.round)
        return self._settlement(request.round, PARTICIPANT)

    def _settlement(self, round_: int, name: str) -> market_pb2.Settlement:
        paid = 1_000_000 if self.models.get(round_) else 0
        return market_pb2.Settlement(
            task_id=self.terms.task_id, round=round_, participant_id=name, paid_micro=paid
        )

    def _known(self, submission_id: str, digest: bytes) -> market_pb2.Receipt | None:
        receipt = self.receipts.get(submission_id)
        if receipt is not None and receipt.digest != digest:
            raise Refusal(Code.SUBMISSION_CONFLICT, "The id stands for something else.")
        return receipt

    def _receipt(self, submission_id: str, kind: str, round_: int, digest: bytes) -> market_pb2.Receipt:
        receipt = market_pb2.Receipt(
            submission_id=submission_id,
            task_id=self.terms.task_id,
            participant_id=PARTICIPANT,
            round=round_,
            kind=kind,
            digest=digest,
            ledger_index=len(self.receipts),
        )
        self.receipts[submission_id] = receipt
        return receipt

    def _event(self, state: int) -> market_pb2.Event:
        self.state = state
        event = market_pb2.Event(
            cursor=len(self.events) + 1,
            task_id=self.terms.task_id,
            state=market_pb2.TaskState.ValueType(state),
            round=self.round,
        )
        self.events.append(event)
        return event

    def _open_round(self) -> None:
        self.round += 1
        model = self.models[self.round - 1][0] if self.models.get(self.round - 1) else None
        if model is None:
            model = self.starts.get(self.round - 1, encode_model(start_weights()))
        self.starts[self.round] = model
        opened = self._event(market_pb2.TASK_STATE_TRAINING).round_opened
        opened.model_sha256, opened.model_bytes = hashlib.sha256(model).digest(), len(model)

    def _close_round(self, model: bytes) -> None:
        settled = self._event(market_pb2.TASK_STATE_SETTLED).round_settled
        settled.ledger_size = len(self.receipts)
        if self.settlement_for:
            settled.settlement.CopyFrom(self._settlement(self.round, self.settlement_for))
        if self.round < self.rounds:
            self._open_round()
        else:
            self._event(market_pb2.TASK_STATE_CLOSED)

    def miss_round(self) -> None:
        """The round closes without the participant."""
        self._close_round(self.starts[self.round])
