"""The raw client's steps: each call of fedpeer.v1, repeated until it is answered.

Every call is safe to repeat: a state-changing message carries a submission id, and the same id with the same
content gives the same receipt. So a call whose reply was lost is made again, after a wait with jitter, until the
client's patience is at an end. What the coordinator refuses is not repeated, unless `fedpeer.protocol.faults` says
that it may pass.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from fedpeer.protocol.codec import decode_signed
from fedpeer.protocol.errors import Code
from fedpeer.protocol.faults import Outlook, outlook
from fedpeer.protocol.frames import Frame, parse_frame, upload_message
from fedpeer.protocol.limits import FRAME_BYTES, MIN_FRAME_BYTES, PROGRESS_SECONDS
from fedpeer.protocol.model_file import frames
from fedpeer.v1 import enrolment_pb2, ledger_pb2, market_pb2
from mechanism.settlement import MICRO
from mechanism.statements import ClaimStatement, ModelStatement
from participant.backoff import Backoff
from participant.effects import (
    Cast,
    Diagnose,
    Download,
    Emit,
    Emits,
    Interrupted,
    Method,
    Next,
    Open,
    Pause,
    Steps,
    Unary,
    Upload,
)
from participant.errors import (
    BusyError,
    ConfigurationError,
    ConflictError,
    InvalidSubmissionError,
    LostConnectionError,
    NotFoundError,
    RefusedError,
    StateError,
    TransportError,
    UnreachableError,
)
from participant.identity import storage_error, stored

T = TypeVar("T")

#: Seconds after which an unanswered unary call is made again: far above a slow link's round trip.
CALL_SECONDS = 30.0

#: Attempts between two looks at why the coordinator cannot be reached.
_LOOK_EVERY = 10

#: How calls end that a coordinator has taken and has no time for.
_TAKEN = (grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)

_log = logging.getLogger("participant")

#: Seconds for which a bug of the coordinator's, perhaps, or a fault of the participant's machine is tried again.
DOUBT_SECONDS = 120.0

#: Frames of one attempt below which the next one's are smaller, and from which on they are larger.
_FEW_FRAMES, _MANY_FRAMES = 4, 32

#: Seconds after which a fetch that has brought little is one over a slow link.
_SLOW_SECONDS = 2.0

#: States after which a task sends no more events.
ENDED = {market_pb2.TASK_STATE_CLOSED, market_pb2.TASK_STATE_CANCELLED}

M = market_pb2
MARKET = "/fedpeer.v1.Market/"
LEDGER = "/fedpeer.v1.Ledger/"
LIST_TASKS = Method(MARKET + "ListTasks", M.ListTasksRequest, M.ListTasksResponse)
GET_TASK = Method(MARKET + "GetTask", M.GetTaskRequest, M.Task)
WATCH = Method(MARKET + "Watch", M.WatchRequest, M.Event)
LIST_SELECTED = Method(MARKET + "ListSelected", M.ListSelectedRequest, M.ListSelectedResponse)
SUBMIT_EFFORT = Method(MARKET + "SubmitEffort", M.Signed, M.Receipt)
FETCH_MODEL = Method(MARKET + "FetchModel", M.FetchModelRequest, M.ModelFrame, parse_frame)
GET_UPLOAD = Method(MARKET + "GetUpload", M.GetUploadRequest, M.UploadStatus)
SUBMIT_MODEL = Method(MARKET + "SubmitModel", M.SubmitModelRequest, M.Receipt)
REPORT_FAILURE = Method(MARKET + "ReportFailure", M.ReportFailureRequest, M.Receipt)
REPORT_PROGRESS = Method(MARKET + "ReportProgress", M.ReportProgressRequest, M.ReportProgressResponse)
GET_RECEIPT = Method(MARKET + "GetReceipt", M.GetReceiptRequest, M.Receipt)
OPEN_DISPUTE = Method(MARKET + "OpenDispute", M.OpenDisputeRequest, M.Dispute)
GET_OPENINGS = Method(MARKET + "GetOpenings", M.GetOpeningsRequest, M.OpeningPart)
GET_AUDITS = Method(MARKET + "GetAudits", M.GetAuditsRequest, M.Audits)
GET_REPUTATION = Method(MARKET + "GetReputation", M.GetReputationRequest, M.Reputation)
APPEAL = Method(MARKET + "Appeal", M.AppealRequest, M.Audits)
GET_SETTLEMENT = Method(MARKET + "GetSettlement", M.GetSettlementRequest, M.Settlement)
ENROLL = Method("/fedpeer.v1.Enrolment/Enroll", enrolment_pb2.EnrollRequest, enrolment_pb2.EnrollResponse)
GET_AUTHORITY = Method(
    "/fedpeer.v1.Enrolment/GetAuthority", enrolment_pb2.GetAuthorityRequest, enrolment_pb2.Authority
)
GET_CHECKPOINT = Method(LEDGER + "GetCheckpoint", ledger_pb2.GetCheckpointRequest, ledger_pb2.Checkpoint)
GET_ENTRIES = Method(LEDGER + "GetEntries", ledger_pb2.GetEntriesRequest, ledger_pb2.Entries)
GET_INCLUSION = Method(
    LEDGER + "GetInclusionProof", ledger_pb2.GetInclusionProofRequest, ledger_pb2.InclusionProof
)
GET_CONSISTENCY = Method(
    LEDGER + "GetConsistencyProof", ledger_pb2.GetConsistencyProofRequest, ledger_pb2.ConsistencyProof
)
GET_KEYS = Method(LEDGER + "GetKeys", ledger_pb2.GetKeysRequest, ledger_pb2.Keys)
GET_BALANCE = Method(LEDGER + "GetBalance", ledger_pb2.GetBalanceRequest, ledger_pb2.Balance)


class MarketSteps:
    """The calls, as steps. One instance for each connection: it remembers whether it was ever answered."""

    def __init__(self, backoff: Backoff | None = None, clock: Callable[[], float] = monotonic) -> None:
        self._backoff = backoff or Backoff()
        self.clock = clock
        self._answered = False

    def call(self, method: Method[Any, T], request: Message, seconds: float = CALL_SECONDS) -> Steps[T]:  # type: ignore[type-var]  # T is a message wherever a Method exists
        """One unary call, repeated until it is answered."""
        trial = _Trial(self)
        while True:
            try:
                response: T = yield Unary(method, request, seconds)
            except (Interrupted, RefusedError) as error:
                yield from trial.wait_after(error)
            else:
                self._answered = True
                return response

    def tasks(self) -> Steps[list[M.Task]]:
        """All tasks that the coordinator offers or has offered."""
        found: list[M.Task] = []
        page = ""
        while True:
            response = yield from self.call(LIST_TASKS, M.ListTasksRequest(page=page))
            found += response.tasks
            page = response.next_page
            if not page:
                return found

    def task(self, task_id: str) -> Steps[M.Task]:
        """How a task stands, and what the coordinator holds of the caller in it."""
        return self.call(GET_TASK, M.GetTaskRequest(task_id=task_id))

    def selected(self, task_id: str) -> Steps[list[str]]:
        """Who trains, in id order; SHA-256 of its canonical JSON is what the selection's event and entries name."""
        found: list[str] = []
        while True:
            after = found[-1] if found else ""
            page = yield from self.call(LIST_SELECTED, M.ListSelectedRequest(task_id=task_id, after=after))
            found += page.participants
            if not page.more:
                return found

    def receipt(self, task_id: str, submission_id: str) -> Steps[M.Receipt]:
        """The receipt of a submission that the coordinator holds."""
        return self.call(GET_RECEIPT, M.GetReceiptRequest(task_id=task_id, submission_id=submission_id))

    def settlement(self, task_id: str, round: int) -> Steps[M.Settlement]:  # noqa: A002 - the field's word
        """What a round paid the caller, with its proof."""
        return self.call(GET_SETTLEMENT, M.GetSettlementRequest(task_id=task_id, round=round))

    def open_dispute(self, request: M.OpenDisputeRequest) -> Steps[M.Dispute]:
        return self.call(OPEN_DISPUTE, request)

    def audits(self, task_id: str) -> Steps[M.Audits]:
        """How the audits of the caller's submissions stand."""
        return self.call(GET_AUDITS, M.GetAuditsRequest(task_id=task_id))

    def reputation(self) -> Steps[M.Reputation]:
        """The caller's standing across tasks."""
        return self.call(GET_REPUTATION, M.GetReputationRequest())

    def appeal(self, request: M.AppealRequest) -> Steps[M.Audits]:
        return self.call(APPEAL, request)

    def checkpoint(self) -> Steps[ledger_pb2.Checkpoint]:
        """The ledger's latest signed head."""
        return self.call(GET_CHECKPOINT, ledger_pb2.GetCheckpointRequest())

    def inclusion_proof(self, index: int, size: int) -> Steps[ledger_pb2.InclusionProof]:
        """That entry `index` is in the tree of the first `size`."""
        return self.call(GET_INCLUSION, ledger_pb2.GetInclusionProofRequest(index=index, size=size))

    def consistency_proof(self, first: int, second: int) -> Steps[ledger_pb2.ConsistencyProof]:
        """That the tree of the first `first` entries is continued by that of the first `second`."""
        return self.call(GET_CONSISTENCY, ledger_pb2.GetConsistencyProofRequest(first=first, second=second))

    def balance(self, account: str) -> Steps[ledger_pb2.Balance]:
        """What an account holds; its name is as `GetBalanceRequest` has it."""
        return self.call(GET_BALANCE, ledger_pb2.GetBalanceRequest(account=account))

    def keys(self, request: ledger_pb2.GetKeysRequest) -> Steps[ledger_pb2.Keys]:
        return self.call(GET_KEYS, request)

    def authority(self) -> Steps[enrolment_pb2.Authority]:
        return self.call(GET_AUTHORITY, enrolment_pb2.GetAuthorityRequest())

    def submit_effort(self, claim: M.Signed) -> Steps[M.Receipt]:
        """Sends a signed claim; where its id is taken already, the receipt that stands for it."""
        try:
            return (yield from self.call(SUBMIT_EFFORT, claim))
        except ConflictError:
            said = decode_signed(ClaimStatement, claim)
            return (yield from self.receipt(said.task_id, said.submission_id))

    def report_failure(self, request: M.ReportFailureRequest) -> Steps[M.Receipt]:
        """Tells that a round gets no model, and why; repeated as `submit_effort`."""
        try:
            return (yield from self.call(REPORT_FAILURE, request))
        except ConflictError:
            return (yield from self.receipt(request.task_id, request.submission_id))

    def report_progress(self, request: M.ReportProgressRequest) -> Steps[M.ReportProgressResponse]:
        """Reports how far the training of a round is, for the operator to see; repeated until it is answered."""
        return self.call(REPORT_PROGRESS, request)

    def progress(self, task_id: str, round_: int) -> Steps[Callable[[float], None]]:
        """A function that reports how far the training of a round is: a share in [0, 1], from any thread.

        It waits for nothing and never fails; what comes within `PROGRESS_SECONDS` of the last is left out, the end
        apart.
        """
        send = yield Cast(REPORT_PROGRESS, CALL_SECONDS)
        sent, at = -1.0, float("-inf")

        def tell(done: float) -> None:
            nonlocal sent, at
            now, ended = self.clock(), done >= 1 > sent
            if ended or now - at >= PROGRESS_SECONDS:
                sent, at = done, now if done > 0 else at  # that it has begun does not hold up the first step
                micro = round(min(1.0, max(0.0, done)) * MICRO)
                send(M.ReportProgressRequest(task_id=task_id, round=round_, done_millionths=micro))

        return tell

    def watch(self, task_id: str, cursor: int = 0) -> Emits[M.Event]:
        """Events after `cursor`, each once and in order, over any number of reconnections, until the task ends."""
        trial = _Trial(self)
        over = False
        while True:
            stream = None
            try:
                stream = yield Open(WATCH, M.WatchRequest(task_id=task_id, cursor=cursor))
                while (event := (yield Next(stream))) is not None:
                    self._answered = True
                    trial = _Trial(self)
                    if event.cursor <= cursor:
                        continue
                    cursor, over = event.cursor, False
                    yield Emit(event)
                    if event.state in ENDED:
                        return
                if over:
                    return  # the task had ended before this stream was opened, and nothing was left to tell
                over = (yield from self.task(task_id)).state in ENDED
                if not over:
                    yield from trial.wait()
            except (Interrupted, RefusedError) as error:
                yield from trial.wait_after(error)
            finally:
                if stream is not None:
                    stream.cancel()

    def openings(self, task_id: str) -> Steps[dict[str, bytes]]:
        """What the ledger's entries about the caller commit to, canonical JSON by the entries' ids."""
        trial = _Trial(self)
        while True:
            found: dict[str, bytes] = {}
            begun = bytearray()
            stream = None
            try:
                stream = yield Open(GET_OPENINGS, M.GetOpeningsRequest(task_id=task_id))
                while (part := (yield Next(stream))) is not None:
                    self._answered = True
                    begun += part.data
                    if part.last:
                        found[part.entry_id] = bytes(begun)
                        begun.clear()
                return found
            except (Interrupted, RefusedError) as error:
                yield from trial.wait_after(error)
            finally:
                if stream is not None:
                    stream.cancel()

    def fetch_model(self, task_id: str, round: int, sha256: bytes, path: Path) -> Steps[None]:  # noqa: A002
        """The model that a round starts from, to `path`, which appears only when it is whole.

        Resumes a fetch that an earlier process began. Where an attempt has brought less than a few frames, the next one
        asks for frames half as large, as in `submit_model`.

        Raises:
            StateError: the disk is full, or the coordinator sends another model than it announced.
        """
        trial, partial, size = _Trial(self), path.with_suffix(".part"), FRAME_BYTES
        for _ in range(2):
            while True:
                sink, began = _Sink(partial), self.clock()
                request = M.FetchModelRequest(
                    task_id=task_id, round=round, offset=sink.offset, max_frame_bytes=size
                )
                try:
                    yield Download(FETCH_MODEL, request, sink.take, None)
                    self._answered = True
                    break
                except InvalidSubmissionError:
                    if sink.offset == 0:
                        raise
                    break  # the rest of an earlier fetch is longer than the model
                except (Interrupted, RefusedError) as error:
                    if self.clock() - began >= _SLOW_SECONDS:  # else nobody was there
                        size = _frame_bytes(size, sink.offset - request.offset)
                    if sink.grew:
                        self._answered, trial = True, _Trial(self)
                    yield from trial.wait_after(error)
                finally:
                    sink.close()
            if sink.digest == sha256:
                partial.replace(path)
                return
            partial.unlink(missing_ok=True)  # a damaged rest of an earlier fetch, perhaps: once more, whole
        raise StateError(
            f"the model of round {round} has the digest {sink.digest.hex()}, the coordinator announced "
            f"{sha256.hex()}; twice. Tell the coordinator's operator"
        )

    def submit_model(self, model: M.Signed, path: Path, *, resume: bool = True) -> Steps[M.Receipt]:
        """Sends a model file, from where the coordinator has it.

        What the coordinator keeps are whole frames: where an attempt has brought it less than a few, the next one's
        are half as large, so that a slow link loses little each time that its stream is ended.

        Args:
            model: the signed statement.
            resume: ask first what the coordinator holds; False where nothing can have been sent yet.

        Raises:
            ConflictError, ModelRejectedError, WrongStateError, ...: the coordinator refused it.
            FieldError: what is signed is not a model statement.
        """
        said = decode_signed(ModelStatement, model)
        trial, offset = _Trial(self), 0
        size, misplaced = FRAME_BYTES, 0
        sent = _Sent()
        while True:
            try:
                if resume:
                    status = yield from self._upload_status(said)
                    if status.complete:
                        return (yield from self.receipt(said.task_id, said.submission_id))
                    if sent.frames:
                        size = _frame_bytes(size, status.offset - offset)
                    if status.offset > offset:
                        trial = _Trial(self)
                    offset = status.offset
                resume, sent = True, _Sent()
                header = M.ModelHeader(model=model, offset=offset)
                requests = _upload_requests(header, path, size, sent)
                receipt: M.Receipt = yield Upload(SUBMIT_MODEL, requests, None)
                self._answered = True
                return receipt
            except ConflictError:
                return (yield from self.receipt(said.task_id, said.submission_id))
            except InvalidSubmissionError as error:
                # The offset was right when it was asked for, and another stream of ours moved it since.
                misplaced += 1
                if error.code is not Code.FRAMES_INVALID or misplaced > 3:
                    raise
                yield from trial.wait()
            except (Interrupted, RefusedError) as error:
                if sent.failure is not None:
                    raise storage_error(f"{path} cannot be read", sent.failure) from sent.failure
                yield from trial.wait_after(error)

    def enroll(self, request: enrolment_pb2.EnrollRequest) -> Steps[enrolment_pb2.EnrollResponse]:
        """Has a key certified."""
        return self.call(ENROLL, request)

    def entries(self, first: int = 0, count: int = 0) -> Emits[bytes]:
        """Canonical JSON of the ledger's entries from `first` on, over any number of reconnections; count 0: all."""
        trial, end = _Trial(self), None if count == 0 else first + count
        while end is None or first < end:
            request = ledger_pb2.GetEntriesRequest(first=first, count=0 if end is None else end - first)
            stream = None
            try:
                stream = yield Open(GET_ENTRIES, request)
                while (batch := (yield Next(stream))) is not None:
                    self._answered = True
                    trial = _Trial(self)
                    for entry in batch.entries:
                        first += 1
                        yield Emit(entry)
                return
            except (Interrupted, RefusedError) as error:
                yield from trial.wait_after(error)
            finally:
                if stream is not None:
                    stream.cancel()

    def _upload_status(self, said: ModelStatement) -> Steps[M.UploadStatus]:
        request = M.GetUploadRequest(task_id=said.task_id, submission_id=said.submission_id)
        try:
            return (yield from self.call(GET_UPLOAD, request))
        except NotFoundError as error:
            if error.code is not Code.SUBMISSION_UNKNOWN:
                raise
            return M.UploadStatus()


class _Trial:
    """One run of failures: waits between attempts until patience is at an end."""

    def __init__(self, steps: MarketSteps) -> None:
        self._steps = steps
        self._waits = steps._backoff.waits()
        self._since: float | None = None
        self._attempts = 0
        self._busy = False
        self._logged = ""

    def wait(self) -> Steps[None]:
        yield Pause(next(self._waits))

    def wait_after(self, error: Interrupted | RefusedError) -> Steps[None]:
        """Waits before the next attempt, or raises what ends them."""
        steps = self._steps
        if isinstance(error, RefusedError):
            steps._answered = True
            found = outlook(error.code)
            if found is Outlook.LASTING:
                raise error
        else:
            found = outlook(error.status)
            if found is Outlook.LASTING:
                raise _foreign(error) from None
        now, first = steps.clock(), False
        if self._since is None:
            self._since = now
            first = True
        # At first contact a wrong authority shows at once; later a certificate may have run out meanwhile.
        if self._attempts % _LOOK_EVERY == (0 if not steps._answered else _LOOK_EVERY - 1):
            yield from self._explain(error, unless=UnreachableError)
        self._attempts += 1
        there = steps._answered or self._busy
        patience = steps._backoff.patience if there else steps._backoff.first_contact
        if found is Outlook.DOUBTFUL:
            patience = DOUBT_SECONDS if patience is None else min(patience, DOUBT_SECONDS)
        if first:  # after the look: what it finds may be the end of it
            how_long = "until it does" if patience is None else f"for up to {patience:g} s"
            said = "cannot carry this out now" if isinstance(error, RefusedError) else "does not answer"
            _log.warning("the coordinator %s (%s); trying again %s", said, error, how_long)
        if patience is not None and now - self._since >= patience:
            yield from self._explain(error)
            if isinstance(error, RefusedError):
                raise error
            raise LostConnectionError(
                f"the coordinator has not answered for {now - self._since:.0f} s ({error}); "
                "run again when the connection is back: what was sent is not lost"
            ) from None
        yield from self.wait()

    def _explain(
        self, error: Interrupted | RefusedError, unless: type[TransportError] | None = None
    ) -> Steps[None]:
        """Raises what a look at the address shows, gRPC's own words being too few.

        Args:
            unless: between two attempts, what is no reason to give up. There, and once the coordinator has been
                reached, a connection that only breaks is none either.
        """
        if isinstance(error, RefusedError):
            return
        found: TransportError | None = yield Diagnose(certain=unless is not None and self._steps._answered)
        # A wrong address does not take a call first.
        taken = found is None and error.status in _TAKEN
        self._busy = taken or isinstance(found, BusyError)
        if found is None:
            return
        if unless is None or not isinstance(found, unless):
            raise found from None
        if str(found) != self._logged:
            self._logged = str(found)
            _log.warning("%s", found)  # one who waits for ever must know what for


class _Sink:
    """Appends the frames of a download to a file and hashes all of it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hash = hashlib.sha256()
        self.grew = False
        with stored(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
            self._file.seek(0)
            while block := self._file.read(FRAME_BYTES):
                self._hash.update(block)
        self.offset = self._file.tell()

    @property
    def digest(self) -> bytes:
        return self._hash.digest()

    def take(self, frame: Frame) -> None:
        if frame.offset != self.offset:
            raise Interrupted(
                grpc.StatusCode.ABORTED, f"a frame begins at {frame.offset}, expected {self.offset}"
            )
        with stored(self._path):
            self._file.write(frame.data)
        self._hash.update(frame.data)
        self.offset += len(frame.data)
        self.grew = True

    def close(self) -> None:
        with stored(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()


def _frame_bytes(size: int, brought: int) -> int:
    """Bytes of a model's frames after an attempt with frames of `size` that has brought so many bytes."""
    if brought < _FEW_FRAMES * size:
        return max(min(size, MIN_FRAME_BYTES), size // 2)
    return min(FRAME_BYTES, 2 * size) if brought >= _MANY_FRAMES * size else size


class _Sent:
    """What happened on the sending side of an upload, which runs in gRPC's own thread."""

    frames = 0
    failure: OSError | None = None


def _upload_requests(
    header: M.ModelHeader, path: Path, size: int, sent: _Sent
) -> Iterator[M.SubmitModelRequest | bytes]:
    yield M.SubmitModelRequest(header=header)
    try:
        for offset, data in frames(path, header.offset, size):
            sent.frames += 1
            yield upload_message(offset, data)
    except OSError as error:
        sent.failure = error
        raise


def _foreign(error: Interrupted) -> Exception:
    """An answer that no coordinator of fedpeer.v1 gives."""
    if error.status is grpc.StatusCode.UNIMPLEMENTED:
        return ConfigurationError(
            "the address answers, but not with the service that was asked for; the market and the public "
            "(enrolment) port are two: check which one the address names"
        )
    return LostConnectionError(
        f"the call ended with {error}; a proxy on the way may have answered. Check the address"
    )
