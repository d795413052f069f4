import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TaskState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_STATE_UNSPECIFIED: _ClassVar[TaskState]
    TASK_STATE_OPEN: _ClassVar[TaskState]
    TASK_STATE_EFFORT: _ClassVar[TaskState]
    TASK_STATE_SELECTED: _ClassVar[TaskState]
    TASK_STATE_TRAINING: _ClassVar[TaskState]
    TASK_STATE_SCORED: _ClassVar[TaskState]
    TASK_STATE_SETTLED: _ClassVar[TaskState]
    TASK_STATE_CLOSED: _ClassVar[TaskState]
    TASK_STATE_CANCELLED: _ClassVar[TaskState]
TASK_STATE_UNSPECIFIED: TaskState
TASK_STATE_OPEN: TaskState
TASK_STATE_EFFORT: TaskState
TASK_STATE_SELECTED: TaskState
TASK_STATE_TRAINING: TaskState
TASK_STATE_SCORED: TaskState
TASK_STATE_SETTLED: TaskState
TASK_STATE_CLOSED: TaskState
TASK_STATE_CANCELLED: TaskState

class ListTasksRequest(_message.Message):
    __slots__ = ("page",)
    PAGE_FIELD_NUMBER: _ClassVar[int]
    page: str
    def __init__(self, page: _Optional[str] = ...) -> None: ...

class ListTasksResponse(_message.Message):
    __slots__ = ("tasks", "next_page")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    next_page: str
    def __init__(self, tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ..., next_page: _Optional[str] = ...) -> None: ...

class GetTaskRequest(_message.Message):
    __slots__ = ("task_id",)
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    def __init__(self, task_id: _Optional[str] = ...) -> None: ...

class Signed(_message.Message):
    __slots__ = ("statement", "signature", "opening")
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    OPENING_FIELD_NUMBER: _ClassVar[int]
    statement: bytes
    signature: bytes
    opening: bytes
    def __init__(self, statement: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., opening: _Optional[bytes] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("task_id", "terms", "state", "round", "nonce", "submissions", "deadline", "selected", "draw_head", "barred")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    SELECTED_FIELD_NUMBER: _ClassVar[int]
    DRAW_HEAD_FIELD_NUMBER: _ClassVar[int]
    BARRED_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    terms: bytes
    state: TaskState
    round: int
    nonce: bytes
    submissions: _containers.RepeatedScalarFieldContainer[str]
    deadline: _timestamp_pb2.Timestamp
    selected: bool
    draw_head: bytes
    barred: str
    def __init__(self, task_id: _Optional[str] = ..., terms: _Optional[bytes] = ..., state: _Optional[_Union[TaskState, str]] = ..., round: _Optional[int] = ..., nonce: _Optional[bytes] = ..., submissions: _Optional[_Iterable[str]] = ..., deadline: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., selected: bool = ..., draw_head: _Optional[bytes] = ..., barred: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("task_id", "cursor")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    cursor: int
    def __init__(self, task_id: _Optional[str] = ..., cursor: _Optional[int] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("cursor", "task_id", "state", "round", "deadline", "selected", "round_opened", "round_settled", "cancelled")
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    SELECTED_FIELD_NUMBER: _ClassVar[int]
    ROUND_OPENED_FIELD_NUMBER: _ClassVar[int]
    ROUND_SETTLED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    cursor: int
    task_id: str
    state: TaskState
    round: int
    deadline: _timestamp_pb2.Timestamp
    selected: Selected
    round_opened: RoundOpened
    round_settled: RoundSettled
    cancelled: Cancelled
    def __init__(self, cursor: _Optional[int] = ..., task_id: _Optional[str] = ..., state: _Optional[_Union[TaskState, str]] = ..., round: _Optional[int] = ..., deadline: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., selected: _Optional[_Union[Selected, _Mapping]] = ..., round_opened: _Optional[_Union[RoundOpened, _Mapping]] = ..., round_settled: _Optional[_Union[RoundSettled, _Mapping]] = ..., cancelled: _Optional[_Union[Cancelled, _Mapping]] = ...) -> None: ...

class Selected(_message.Message):
    __slots__ = ("count", "chosen", "participants_sha256")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANTS_SHA256_FIELD_NUMBER: _ClassVar[int]
    count: int
    chosen: bool
    participants_sha256: bytes
    def __init__(self, count: _Optional[int] = ..., chosen: bool = ..., participants_sha256: _Optional[bytes] = ...) -> None: ...

class ListSelectedRequest(_message.Message):
    __slots__ = ("task_id", "after")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    after: str
    def __init__(self, task_id: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class ListSelectedResponse(_message.Message):
    __slots__ = ("participants", "more")
    PARTICIPANTS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    participants: _containers.RepeatedScalarFieldContainer[str]
    more: bool
    def __init__(self, participants: _Optional[_Iterable[str]] = ..., more: bool = ...) -> None: ...

class RoundOpened(_message.Message):
    __slots__ = ("model_sha256", "model_bytes")
    MODEL_SHA256_FIELD_NUMBER: _ClassVar[int]
    MODEL_BYTES_FIELD_NUMBER: _ClassVar[int]
    model_sha256: bytes
    model_bytes: int
    def __init__(self, model_sha256: _Optional[bytes] = ..., model_bytes: _Optional[int] = ...) -> None: ...

class RoundSettled(_message.Message):
    __slots__ = ("ledger_size", "settlement")
    LEDGER_SIZE_FIELD_NUMBER: _ClassVar[int]
    SETTLEMENT_FIELD_NUMBER: _ClassVar[int]
    ledger_size: int
    settlement: Settlement
    def __init__(self, ledger_size: _Optional[int] = ..., settlement: _Optional[_Union[Settlement, _Mapping]] = ...) -> None: ...

class Cancelled(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class FetchModelRequest(_message.Message):
    __slots__ = ("task_id", "round", "offset", "max_frame_bytes")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    round: int
    offset: int
    max_frame_bytes: int
    def __init__(self, task_id: _Optional[str] = ..., round: _Optional[int] = ..., offset: _Optional[int] = ..., max_frame_bytes: _Optional[int] = ...) -> None: ...

class ModelFrame(_message.Message):
    __slots__ = ("offset", "data")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: bytes
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class ModelHeader(_message.Message):
    __slots__ = ("model", "offset")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    model: Signed
    offset: int
    def __init__(self, model: _Optional[_Union[Signed, _Mapping]] = ..., offset: _Optional[int] = ...) -> None: ...

class SubmitModelRequest(_message.Message):
    __slots__ = ("header", "frame")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    header: ModelHeader
    frame: ModelFrame
    def __init__(self, header: _Optional[_Union[ModelHeader, _Mapping]] = ..., frame: _Optional[_Union[ModelFrame, _Mapping]] = ...) -> None: ...

class GetUploadRequest(_message.Message):
    __slots__ = ("task_id", "submission_id")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    submission_id: str
    def __init__(self, task_id: _Optional[str] = ..., submission_id: _Optional[str] = ...) -> None: ...

class UploadStatus(_message.Message):
    __slots__ = ("offset", "complete")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    offset: int
    complete: bool
    def __init__(self, offset: _Optional[int] = ..., complete: bool = ...) -> None: ...

class ReportFailureRequest(_message.Message):
    __slots__ = ("submission_id", "task_id", "participant_id", "round", "reason")
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANT_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    submission_id: str
    task_id: str
    participant_id: str
    round: int
    reason: str
    def __init__(self, submission_id: _Optional[str] = ..., task_id: _Optional[str] = ..., participant_id: _Optional[str] = ..., round: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ReportProgressRequest(_message.Message):
    __slots__ = ("task_id", "round", "done_millionths")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DONE_MILLIONTHS_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    round: int
    done_millionths: int
    def __init__(self, task_id: _Optional[str] = ..., round: _Optional[int] = ..., done_millionths: _Optional[int] = ...) -> None: ...

class ReportProgressResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetReceiptRequest(_message.Message):
    __slots__ = ("task_id", "submission_id")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    submission_id: str
    def __init__(self, task_id: _Optional[str] = ..., submission_id: _Optional[str] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("submission_id", "task_id", "participant_id", "round", "kind", "digest", "ledger_index", "late")
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANT_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    LEDGER_INDEX_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    submission_id: str
    task_id: str
    participant_id: str
    round: int
    kind: str
    digest: bytes
    ledger_index: int
    late: bool
    def __init__(self, submission_id: _Optional[str] = ..., task_id: _Optional[str] = ..., participant_id: _Optional[str] = ..., round: _Optional[int] = ..., kind: _Optional[str] = ..., digest: _Optional[bytes] = ..., ledger_index: _Optional[int] = ..., late: bool = ...) -> None: ...

class OpenDisputeRequest(_message.Message):
    __slots__ = ("task_id", "counts", "salt")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    counts: _containers.RepeatedScalarFieldContainer[int]
    salt: bytes
    def __init__(self, task_id: _Optional[str] = ..., counts: _Optional[_Iterable[int]] = ..., salt: _Optional[bytes] = ...) -> None: ...

class Dispute(_message.Message):
    __slots__ = ("task_id", "participant_id", "ledger_index", "rounds", "paid")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANT_ID_FIELD_NUMBER: _ClassVar[int]
    LEDGER_INDEX_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    PAID_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    participant_id: str
    ledger_index: int
    rounds: _containers.RepeatedCompositeFieldContainer[DisputedRound]
    paid: bool
    def __init__(self, task_id: _Optional[str] = ..., participant_id: _Optional[str] = ..., ledger_index: _Optional[int] = ..., rounds: _Optional[_Iterable[_Union[DisputedRound, _Mapping]]] = ..., paid: bool = ...) -> None: ...

class DisputedRound(_message.Message):
    __slots__ = ("round", "agreed", "explanation", "award_micro")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    AGREED_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    AWARD_MICRO_FIELD_NUMBER: _ClassVar[int]
    round: int
    agreed: bool
    explanation: str
    award_micro: int
    def __init__(self, round: _Optional[int] = ..., agreed: bool = ..., explanation: _Optional[str] = ..., award_micro: _Optional[int] = ...) -> None: ...

class GetOpeningsRequest(_message.Message):
    __slots__ = ("task_id",)
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    def __init__(self, task_id: _Optional[str] = ...) -> None: ...

class OpeningPart(_message.Message):
    __slots__ = ("entry_id", "data", "last")
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    entry_id: str
    data: bytes
    last: bool
    def __init__(self, entry_id: _Optional[str] = ..., data: _Optional[bytes] = ..., last: bool = ...) -> None: ...

class GetAuditsRequest(_message.Message):
    __slots__ = ("task_id",)
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    def __init__(self, task_id: _Optional[str] = ...) -> None: ...

class AppealRequest(_message.Message):
    __slots__ = ("task_id", "round", "reason")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    round: int
    reason: str
    def __init__(self, task_id: _Optional[str] = ..., round: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class GetReputationRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Reputation(_message.Message):
    __slots__ = ("value", "reasons")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    value: float
    reasons: _containers.RepeatedCompositeFieldContainer[ReputationReason]
    def __init__(self, value: _Optional[float] = ..., reasons: _Optional[_Iterable[_Union[ReputationReason, _Mapping]]] = ...) -> None: ...

class ReputationReason(_message.Message):
    __slots__ = ("task_id", "round", "at", "kept", "explanation", "weight")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    round: int
    at: _timestamp_pb2.Timestamp
    kept: bool
    explanation: str
    weight: float
    def __init__(self, task_id: _Optional[str] = ..., round: _Optional[int] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., kept: bool = ..., explanation: _Optional[str] = ..., weight: _Optional[float] = ...) -> None: ...

class Audits(_message.Message):
    __slots__ = ("audits",)
    AUDITS_FIELD_NUMBER: _ClassVar[int]
    audits: _containers.RepeatedCompositeFieldContainer[Audit]
    def __init__(self, audits: _Optional[_Iterable[_Union[Audit, _Mapping]]] = ...) -> None: ...

class Audit(_message.Message):
    __slots__ = ("round", "stage", "question_micro", "due", "explanation")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    QUESTION_MICRO_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    round: int
    stage: str
    question_micro: int
    due: _timestamp_pb2.Timestamp
    explanation: str
    def __init__(self, round: _Optional[int] = ..., stage: _Optional[str] = ..., question_micro: _Optional[int] = ..., due: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., explanation: _Optional[str] = ...) -> None: ...

class GetSettlementRequest(_message.Message):
    __slots__ = ("task_id", "round")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    round: int
    def __init__(self, task_id: _Optional[str] = ..., round: _Optional[int] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("screen", "passed", "explanation", "figures")
    class FiguresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SCREEN_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    screen: str
    passed: bool
    explanation: str
    figures: _containers.ScalarMap[str, str]
    def __init__(self, screen: _Optional[str] = ..., passed: bool = ..., explanation: _Optional[str] = ..., figures: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Settlement(_message.Message):
    __slots__ = ("task_id", "round", "participant_id", "paid_micro", "penalty_micro", "stake_lost_micro", "claimed_degree", "verified_degree", "peers", "verdicts", "ledger_index", "proof", "expected_micro", "opening", "held_micro", "audited")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANT_ID_FIELD_NUMBER: _ClassVar[int]
    PAID_MICRO_FIELD_NUMBER: _ClassVar[int]
    PENALTY_MICRO_FIELD_NUMBER: _ClassVar[int]
    STAKE_LOST_MICRO_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_DEGREE_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_DEGREE_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    LEDGER_INDEX_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_MICRO_FIELD_NUMBER: _ClassVar[int]
    OPENING_FIELD_NUMBER: _ClassVar[int]
    HELD_MICRO_FIELD_NUMBER: _ClassVar[int]
    AUDITED_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    round: int
    participant_id: str
    paid_micro: int
    penalty_micro: int
    stake_lost_micro: int
    claimed_degree: str
    verified_degree: str
    peers: _containers.RepeatedScalarFieldContainer[str]
    verdicts: _containers.RepeatedCompositeFieldContainer[Verdict]
    ledger_index: int
    proof: str
    expected_micro: int
    opening: bytes
    held_micro: int
    audited: bool
    def __init__(self, task_id: _Optional[str] = ..., round: _Optional[int] = ..., participant_id: _Optional[str] = ..., paid_micro: _Optional[int] = ..., penalty_micro: _Optional[int] = ..., stake_lost_micro: _Optional[int] = ..., claimed_degree: _Optional[str] = ..., verified_degree: _Optional[str] = ..., peers: _Optional[_Iterable[str]] = ..., verdicts: _Optional[_Iterable[_Union[Verdict, _Mapping]]] = ..., ledger_index: _Optional[int] = ..., proof: _Optional[str] = ..., expected_micro: _Optional[int] = ..., opening: _Optional[bytes] = ..., held_micro: _Optional[int] = ..., audited: bool = ...) -> None: ...
