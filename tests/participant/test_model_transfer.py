"""How a model travels: the size of its frames after each attempt, where each begins, and what ends the attempts."""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import grpc
import pytest

import participant.steps
from fedpeer.protocol.codec import encode_signed
from fedpeer.protocol.errors import Code, Refusal
from fedpeer.protocol.frames import Frame, parse_upload_message
from fedpeer.v1 import enrolment_pb2, ledger_pb2, market_pb2
from mechanism.statements import ModelOpening, ModelStatement
from participant.backoff import Backoff
from participant.effects import (
    Diagnose,
    Download,
    Effect,
    Interrupted,
    Method,
    Next,
    Open,
    Pause,
    Unary,
    Upload,
    drive,
    iterate,
)
from participant.errors import (
    BusyError,
    ConfigurationError,
    ConflictError,
    DiskFullError,
    InvalidSubmissionError,
    LostConnectionError,
    RefusedError,
    StateError,
    UnreachableError,
    refused,
)
from participant.steps import GET_UPLOAD, MarketSteps, _frame_bytes

#: Frames of a hundredth of the product's, so that a test is quick; their ratio is the same.
FRAME_BYTES, MIN_FRAME_BYTES = 1 << 15, 1 << 10

LOST = Interrupted(grpc.StatusCode.UNAVAILABLE, "lost")
RECEIPT = market_pb2.Receipt(submission_id="model-1")

#: Several frames even of the largest.
CONTENT = bytes(range(256)) * ((FRAME_BYTES * 40) >> 8)
STATEMENT = ModelStatement(
    submission_id="model-1",
    task_id="task",
    terms_digest=bytes(32),
    participant_id="ann",
    round=2,
    model_sha256=hashlib.sha256(CONTENT).digest(),
    model_bytes=len(CONTENT),
    commitment=bytes(32),
    draw_share=bytes(32),
    nonce=bytes(16),
)
SIGNED = encode_signed(STATEMENT, b"signature", ModelOpening(10, bytes(32)))


@pytest.fixture(autouse=True)
def small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(participant.steps, "FRAME_BYTES", FRAME_BYTES)
    monkeypatch.setattr(participant.steps, "MIN_FRAME_BYTES", MIN_FRAME_BYTES)


def answered(code: Code) -> RefusedError:
    return refused(Refusal(code, "So it is."))


class Far:
    """The other end: takes so many bytes of each upload, sends so many of each fetch, and then breaks off.

    Args:
        takes: of each attempt in turn, bytes; None for all of them, an error for a refusal before the first.
    """

    def __init__(self, *takes: int | Exception | None, content: bytes = CONTENT, known: bool = True) -> None:
        self.takes = iter(takes)
        self.content = content
        self.known = known
        self.held = 0
        self.complete = False
        self.offsets: list[int] = []
        self.sizes: list[int] = []
        self.asked = 0
        self.pauses = 0
        self.looks: list[bool] = []
        self.found: Any = None
        self.clock = 0.0
        self.seconds = 60.0  # that a fetch takes until it breaks off
        self.emitted: list[Any] = []

    def __call__(self, effect: Effect) -> Any:
        match effect:
            case Pause(seconds):
                self.pauses += 1
                self.clock += seconds
                return None
            case Diagnose(certain):
                self.looks.append(certain)
                return self.found
            case Unary(method, request, _):
                if method is not GET_UPLOAD:
                    assert request.submission_id == "model-1"
                    return RECEIPT
                self.asked += 1
                assert (request.task_id, request.submission_id) == ("task", "model-1")
                if not self.known and not self.held:
                    raise answered(Code.SUBMISSION_UNKNOWN)
                return market_pb2.UploadStatus(offset=self.held, complete=self.complete)
            case Upload(_, requests, _):
                return self._upload(iter(requests))
            case Download(_, request, take, _):
                return self._download(request, take)
        raise AssertionError(effect)

    def _upload(self, requests: Any) -> market_pb2.Receipt:
        header = next(requests).header
        assert header.model == SIGNED
        self.offsets.append(header.offset)
        taken, limit = header.offset, next(self.takes)
        if isinstance(limit, Exception):
            raise limit
        for number, message in enumerate(requests):
            frame = parse_upload_message(message)
            assert isinstance(frame, Frame)
            assert frame.offset == taken
            if number == 0:
                self.sizes.append(len(frame.data))
            if limit is not None and taken + len(frame.data) > header.offset + limit:
                self.held = taken
                raise LOST
            assert bytes(frame.data) == self.content[taken : taken + len(frame.data)]
            taken += len(frame.data)
        assert taken == len(self.content)
        return RECEIPT

    def _download(self, request: Any, take: Callable[[Frame], None]) -> None:
        assert (request.task_id, request.round) == ("task", 2)
        self.offsets.append(request.offset)
        self.sizes.append(request.max_frame_bytes)
        limit = next(self.takes)
        if isinstance(limit, Exception):
            raise limit
        end = len(self.content) if limit is None else min(len(self.content), request.offset + limit)
        for at in range(request.offset, end, request.max_frame_bytes):
            take(Frame(at, memoryview(self.content)[at : min(end, at + request.max_frame_bytes)]))
        if limit is not None:
            self.clock += self.seconds
            raise LOST


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.write_bytes(CONTENT)
    return path


def send(far: Far, path: Path, *, resume: bool = False, backoff: Backoff | None = None) -> market_pb2.Receipt:
    steps = MarketSteps(backoff or Backoff(), clock=lambda: far.clock)
    return drive(steps.submit_model(SIGNED, path, resume=resume), far)


def fetch(far: Far, path: Path, content: bytes = CONTENT) -> None:
    steps = MarketSteps(Backoff(), clock=lambda: far.clock)
    drive(steps.fetch_model("task", 2, hashlib.sha256(content).digest(), path), far)


@pytest.mark.parametrize(
    ("brought", "size", "after"),
    [
        (0, FRAME_BYTES, FRAME_BYTES // 2),
        (4 * FRAME_BYTES - 1, FRAME_BYTES, FRAME_BYTES // 2),
        (4 * FRAME_BYTES, FRAME_BYTES, FRAME_BYTES),
        (100 * FRAME_BYTES, FRAME_BYTES, FRAME_BYTES),
        (32 * FRAME_BYTES // 2, FRAME_BYTES // 2, FRAME_BYTES),
        (32 * FRAME_BYTES // 2 - 1, FRAME_BYTES // 2, FRAME_BYTES // 2),
        (0, MIN_FRAME_BYTES, MIN_FRAME_BYTES),
        (0, 2 * MIN_FRAME_BYTES, MIN_FRAME_BYTES),
        (0, 2 * MIN_FRAME_BYTES - 2, MIN_FRAME_BYTES),
        (0, MIN_FRAME_BYTES // 2, MIN_FRAME_BYTES // 2),
        (32 * FRAME_BYTES, FRAME_BYTES - 1, FRAME_BYTES),
    ],
)
def test_frames_are_halved_after_few_and_doubled_after_many(brought: int, size: int, after: int) -> None:
    assert _frame_bytes(size, brought) == after


def test_a_slow_uploads_frames_get_shorter_and_no_byte_is_sent_twice(model: Path) -> None:
    far = Far(FRAME_BYTES, FRAME_BYTES, 0, 0, 0, 0, 20 * MIN_FRAME_BYTES, 40 * MIN_FRAME_BYTES, None)
    assert send(far, model) == RECEIPT
    halves = [FRAME_BYTES >> i for i in (0, 1, 2, 3, 4, 5, 5, 5, 4)]
    assert far.sizes == halves
    assert halves[5] == MIN_FRAME_BYTES
    at, offsets = 0, []
    for taken in (FRAME_BYTES, FRAME_BYTES, 0, 0, 0, 0, 20 * MIN_FRAME_BYTES, 40 * MIN_FRAME_BYTES, 0):
        offsets.append(at)
        at += taken
    assert far.offsets == offsets
    assert far.asked == 8, "before each attempt but the first"


def test_a_slow_fetchs_frames_get_shorter_and_no_byte_is_fetched_twice(tmp_path: Path) -> None:
    far = Far(FRAME_BYTES, 0, 0, 40 * (FRAME_BYTES >> 3), None)
    fetch(far, tmp_path / "model")
    assert far.sizes == [FRAME_BYTES >> i for i in (0, 1, 2, 3, 2)]
    assert far.offsets == [0, FRAME_BYTES, FRAME_BYTES, FRAME_BYTES, 6 * FRAME_BYTES]
    assert (tmp_path / "model").read_bytes() == CONTENT
    assert not (tmp_path / "model.part").exists()


def test_frames_stay_as_they_are_where_nobody_was_there(tmp_path: Path, model: Path) -> None:
    far = Far(LOST, LOST, None)
    fetch(far, tmp_path / "fetched")
    assert far.sizes == [FRAME_BYTES] * 3
    far = Far(LOST, LOST, None)
    send(far, model)
    assert far.sizes == [FRAME_BYTES], "an attempt that sent no frame says nothing of the link"


def test_an_upload_begins_where_the_coordinator_has_it(model: Path) -> None:
    far = Far(None)
    far.held = 3 * FRAME_BYTES
    send(far, model, resume=True)
    assert (far.offsets, far.asked) == ([3 * FRAME_BYTES], 1)
    new = Far(None, known=False)
    send(new, model, resume=True)
    assert (new.offsets, new.asked) == ([0], 1)


def test_an_upload_that_is_complete_is_not_sent_again(model: Path) -> None:
    far = Far()
    far.complete = True
    assert send(far, model, resume=True) == RECEIPT
    assert far.offsets == []


def test_a_model_that_stands_already_gives_its_receipt(model: Path) -> None:
    assert send(Far(answered(Code.SUBMISSION_CONFLICT)), model) == RECEIPT


def test_an_offset_that_another_stream_has_moved_is_asked_for_again_three_times(model: Path) -> None:
    misplaced = answered(Code.FRAMES_INVALID)
    far = Far(misplaced, misplaced, misplaced, None)
    assert send(far, model) == RECEIPT
    assert (far.asked, far.pauses) == (3, 3)
    far = Far(*[misplaced] * 4)
    with pytest.raises(InvalidSubmissionError):
        send(far, model)
    other = Far(answered(Code.FIELD_INVALID))
    with pytest.raises(InvalidSubmissionError):
        send(other, model)
    assert other.pauses == 0


@pytest.mark.parametrize(
    "code", [Code.STORAGE_UNAVAILABLE, Code.DRAINING, Code.QUOTA_EXCEEDED, Code.STORAGE_FULL]
)
def test_refusals_that_end_by_themselves_are_waited_for(model: Path, code: Code) -> None:
    far = Far(answered(code), None)
    assert send(far, model) == RECEIPT
    assert (far.pauses, far.looks) == (1, [])


def test_other_refusals_end_it(model: Path) -> None:
    far = Far(answered(Code.WRONG_ROUND))
    with pytest.raises(RefusedError) as ended:
        send(far, model)
    assert ended.value.code is Code.WRONG_ROUND
    assert far.pauses == 0


def test_a_model_file_that_cannot_be_read_is_said_to_be_so(tmp_path: Path) -> None:
    class Breaking(Far):
        def _upload(self, requests: Any) -> market_pb2.Receipt:
            next(requests)
            with pytest.raises(OSError, match="No such file"):
                next(requests)
            raise LOST

    with pytest.raises((StateError, DiskFullError), match="cannot be read"):
        send(Breaking(), tmp_path / "nothing")


def test_a_fetch_takes_up_what_an_earlier_one_left(tmp_path: Path) -> None:
    (tmp_path / "model.part").write_bytes(CONTENT[:1000])
    far = Far(None)
    fetch(far, tmp_path / "model")
    assert far.offsets == [1000]
    assert (tmp_path / "model").read_bytes() == CONTENT


@pytest.mark.parametrize("left", [b"damaged", CONTENT + b"more"], ids=["damaged", "longer"])
def test_a_damaged_rest_is_thrown_away_once(tmp_path: Path, left: bytes) -> None:
    (tmp_path / "model.part").write_bytes(left)
    far = Far(None if left == b"damaged" else answered(Code.FIELD_INVALID), None)
    fetch(far, tmp_path / "model")
    assert far.offsets == [len(left), 0]
    assert (tmp_path / "model").read_bytes() == CONTENT


def test_another_model_than_was_announced_is_refused_after_two_whole_fetches(tmp_path: Path) -> None:
    far = Far(None, None)
    announced = hashlib.sha256(b"another")
    with pytest.raises(StateError, match="twice") as refused_:
        fetch(far, tmp_path / "model", b"another")
    assert announced.hexdigest() in str(refused_.value)
    assert hashlib.sha256(CONTENT).hexdigest() in str(refused_.value)
    assert far.offsets == [0, 0]
    assert list(tmp_path.iterdir()) == []


def test_a_fetch_that_is_refused_at_its_start_is_not_made_again(tmp_path: Path) -> None:
    far = Far(answered(Code.FIELD_INVALID))
    with pytest.raises(InvalidSubmissionError):
        fetch(far, tmp_path / "model")
    assert far.offsets == [0]


def test_a_frame_in_the_wrong_place_breaks_the_attempt_off(tmp_path: Path) -> None:
    class Shifted(Far):
        def _download(self, request: Any, take: Callable[[Frame], None]) -> None:
            if not self.offsets:
                self.offsets.append(request.offset)
                take(Frame(request.offset + 1, memoryview(b"shifted")))
            super()._download(request, take)

    far = Shifted(None)
    fetch(far, tmp_path / "model")
    assert (far.offsets, far.pauses) == ([0, 0], 1)


@pytest.mark.parametrize(("seconds", "size"), [(1.99, FRAME_BYTES), (2.0, FRAME_BYTES // 2)])
def test_a_fetch_that_breaks_off_at_once_says_nothing_of_the_link(
    tmp_path: Path, seconds: float, size: int
) -> None:
    far = Far(0, None)
    far.seconds = seconds
    fetch(far, tmp_path / "model")
    assert far.sizes == [FRAME_BYTES, size]


def test_every_method_has_the_path_and_the_messages_of_its_service() -> None:
    methods = [value for value in vars(participant.steps).values() if isinstance(value, Method)]
    assert len(methods) > 15
    services = {
        service.full_name: service
        for module in (market_pb2, ledger_pb2, enrolment_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
    }
    for method in methods:
        _, service, name = method.path.split("/")
        described = services[service].methods_by_name[name]
        assert method.request.DESCRIPTOR is described.input_type, method.path
        assert method.response.DESCRIPTOR is described.output_type, method.path


# Patience


def unary(far: Any, backoff: Backoff, answers: Iterable[Exception | None]) -> Any:
    left = iter(answers)

    def perform(effect: Effect) -> Any:
        if isinstance(effect, Unary):
            answer = next(left)
            if answer is not None:
                raise answer
            return market_pb2.Task(round=7)
        return far(effect)

    steps = MarketSteps(backoff, clock=lambda: far.clock)
    return drive(steps.task("task"), perform)


def test_patience_with_who_never_answered_is_that_of_the_first_contact() -> None:
    far = Far()
    with pytest.raises(LostConnectionError, match="has not answered for"):
        unary(far, Backoff(first=1, ceiling=1, patience=1000, first_contact=20), [LOST] * 1000)
    assert 20 <= far.clock < 25
    far.clock = 0
    assert (
        unary(far, Backoff(first=1, ceiling=1, patience=5, first_contact=None), [*[LOST] * 50, None]).round
        == 7
    )


def test_patience_runs_out_with_a_refusal_as_it_was_and_without_a_look(model: Path) -> None:
    far = Far(*[answered(Code.STORAGE_FULL)] * 1000)
    with pytest.raises(RefusedError) as ended:
        send(far, model, backoff=Backoff(first=1, ceiling=1, patience=10, first_contact=0))
    assert ended.value.code is Code.STORAGE_FULL
    assert 10 <= far.clock < 13
    assert far.looks == []


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (grpc.StatusCode.UNIMPLEMENTED, ConfigurationError),
        (grpc.StatusCode.PERMISSION_DENIED, LostConnectionError),
    ],
)
def test_an_answer_that_no_coordinator_gives_ends_it(status: grpc.StatusCode, kind: type[Exception]) -> None:
    far = Far()
    with pytest.raises(kind):
        unary(far, Backoff(), [Interrupted(status, "else")])
    assert far.pauses == 0


@pytest.mark.parametrize(
    "name", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "ABORTED", "UNKNOWN", "INTERNAL"]
)
def test_a_call_that_ended_without_an_answer_is_made_again(name: str) -> None:
    far = Far()
    assert unary(far, Backoff(), [Interrupted(grpc.StatusCode[name], "gone"), None]).round == 7
    assert far.pauses == 1


def test_an_address_is_looked_at_at_once_and_then_every_tenth_time() -> None:
    far = Far()
    unary(far, Backoff(first=0.001, ceiling=0.001, first_contact=None), [*[LOST] * 25, None])
    assert far.looks == [False, False, False]
    assert far.pauses == 25


def test_what_a_look_finds_for_certain_ends_it_and_an_unreachable_address_does_not() -> None:
    far = Far()
    far.found = ConfigurationError("another authority")
    with pytest.raises(ConfigurationError, match="another authority"):
        unary(far, Backoff(), [LOST, None])
    assert far.pauses == 0
    far.found = UnreachableError("nobody listens")
    assert unary(far, Backoff(), [LOST, None]).round == 7
    with pytest.raises(UnreachableError, match="nobody listens"):
        unary(far, Backoff(first=1, ceiling=1, first_contact=3), [LOST] * 100)


@pytest.mark.parametrize(
    ("status", "found"),
    [
        (grpc.StatusCode.UNAVAILABLE, BusyError("no handshake in time")),
        (grpc.StatusCode.CANCELLED, None),
        (grpc.StatusCode.DEADLINE_EXCEEDED, None),
    ],
)
def test_a_coordinator_that_is_there_and_has_no_time_is_not_given_up_at_first_contact(
    status: grpc.StatusCode, found: UnreachableError | None
) -> None:
    far = Far()
    far.found = found
    busy = Interrupted(status, "busy")
    backoff = Backoff(first=1, ceiling=1, patience=1000, first_contact=3)
    assert unary(far, backoff, [*[busy] * 100, None]).round == 7


# Events and entries


class Streaming(Far):
    """Streams of items; an error among them breaks the stream off."""

    def __init__(self, *streams: list[Any], state: int = market_pb2.TASK_STATE_TRAINING) -> None:
        super().__init__()
        self.streams = iter(streams)
        self.state = state
        self.cursors: list[int] = []
        self.counts: list[int] = []
        self.cancelled = 0

    def cancel(self) -> bool:
        self.cancelled += 1
        return True

    def __call__(self, effect: Effect) -> Any:
        match effect:
            case Open(_, request):
                self.cursors.append(request.cursor if hasattr(request, "cursor") else request.first)
                self.counts.append(getattr(request, "count", 0))
                self.items = iter(next(self.streams))
                return self
            case Next(_):
                item = next(self.items, None)
                if isinstance(item, Exception):
                    raise item
                return item
            case Unary():
                return market_pb2.Task(state=market_pb2.TaskState.ValueType(self.state))
        return super().__call__(effect)


def event(cursor: int, state: int = market_pb2.TASK_STATE_TRAINING) -> market_pb2.Event:
    return market_pb2.Event(cursor=cursor, state=market_pb2.TaskState.ValueType(state))


def test_events_come_once_and_in_order_over_any_number_of_streams() -> None:
    closed = event(4, market_pb2.TASK_STATE_CLOSED)
    far = Streaming([event(1), event(2), LOST], [event(2), event(3)], [event(3), closed, event(5)])
    far.emitted += iterate(MarketSteps(Backoff(), clock=lambda: far.clock).watch("task"), far)
    assert [e.cursor for e in far.emitted] == [1, 2, 3, 4]
    assert far.cursors == [0, 2, 3]
    assert far.cancelled == 3, "every stream is let go"


@pytest.mark.parametrize("state", [market_pb2.TASK_STATE_CLOSED, market_pb2.TASK_STATE_CANCELLED])
def test_a_task_that_had_ended_is_looked_at_once_more_and_then_left(state: int) -> None:
    far = Streaming([], [], state=state)
    far.emitted += iterate(MarketSteps(Backoff(), clock=lambda: far.clock).watch("task", 9), far)
    assert (far.cursors, far.emitted) == ([9, 9], [])
    ended = Streaming([event(10, state)])
    ended.emitted += iterate(MarketSteps(Backoff(), clock=lambda: ended.clock).watch("task", 9), ended)
    assert [e.cursor for e in ended.emitted] == [10]


def batch(*leaves: bytes) -> ledger_pb2.Entries:
    return ledger_pb2.Entries(entries=list(leaves))


def test_entries_go_on_where_a_stream_broke_off() -> None:
    far = Streaming([batch(b"5", b"6"), LOST], [batch(b"7")])
    far.emitted += iterate(MarketSteps(Backoff(), clock=lambda: far.clock).entries(5), far)
    assert far.emitted == [b"5", b"6", b"7"]
    assert (far.cursors, far.counts) == ([5, 7], [0, 0])
    part = Streaming([batch(b"5", b"6"), LOST], [batch(b"7")])
    part.emitted += iterate(MarketSteps(Backoff(), clock=lambda: part.clock).entries(5, 3), part)
    assert (part.cursors, part.counts) == ([5, 7], [3, 1])
    whole = Streaming([batch(b"5"), LOST])
    whole.emitted += iterate(MarketSteps(Backoff(), clock=lambda: whole.clock).entries(5, 1), whole)
    assert whole.cursors == [5], "what was asked for has come"
    refusing = Streaming([answered(Code.SUBMISSION_CONFLICT)])
    steps = MarketSteps(Backoff(), clock=lambda: refusing.clock)
    with pytest.raises(ConflictError):
        refusing.emitted += iterate(steps.entries(), refusing)
