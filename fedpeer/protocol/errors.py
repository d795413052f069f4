"""One catalogue of refusals: code, gRPC status, and what to do; and its way over the wire and back.

    Refusal(Exception)      what a domain function raises and a client gets back
    Code                    every reason, with its status and advice

On the wire a refusal is a google.rpc.Status with ErrorInfo (reason = code, domain = fedpeer.v1),
BadRequest where fields are at fault, and RequestInfo with the request id that the coordinator's log names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, unique

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

#: Domain of google.rpc.ErrorInfo.
DOMAIN = "fedpeer.v1"


@unique
class Code(Enum):
    """Why a call is refused. The value is the advice to the caller."""

    CERTIFICATE_REQUIRED = "Enrol first, and connect with the certificate that enrolment returned."
    CERTIFICATE_REVOKED = "Ask the coordinator's operator for a new invitation and enrol again."
    INVITATION_INVALID = "Ask the coordinator's operator for a new invitation."
    WRONG_PARTICIPANT = "Send messages under the participant id of your own certificate only."
    NOT_SELECTED = "Only participants that the learner selected train; wait for another task."
    SERVICE_UNKNOWN = "Ask for the health of a service of this port, or of all by an empty name."
    TASK_UNKNOWN = "List the tasks and use one of their ids."
    SUBMISSION_UNKNOWN = "Submit first; the coordinator has no such submission."
    NOT_YET = "Watch the task and ask again when its state has moved on."
    EXPIRED = "It was deleted by the retention rule; only the ledger has its digest."
    FIELD_INVALID = "Correct the fields that are named."
    SIGNATURE_INVALID = "Sign the canonical statement with the key of your current certificate."
    NONCE_UNKNOWN = "Fetch the task again and sign with its nonce."
    TERMS_CHANGED = "Fetch the task again and decide on the terms that it now has."
    DRAW_SHARE_INVALID = (
        "Submit the round's share of the chain whose head the claim has; without the chain no model "
        "is scored."
    )
    MODEL_INVALID = "Submit a safetensors file that fits the task's model contract."
    FRAMES_INVALID = "Send the header first and then frames in order, from the announced offset."
    SUBMISSION_CONFLICT = "A submission id stands for one content for ever; choose a new id."
    WRONG_STATE = "Watch the task and act in the state that it is in."
    WRONG_ROUND = "Fetch the task again and train its current round."
    TASK_FULL = "All places are taken; wait for another task."
    IDENTITY_BARRED = (
        "Take part by the identity that the task takes, which the operator knows, or wait for another task."
    )
    TASK_ENDED = "The task has ended; nothing can be submitted to it."
    SESSION_TAKEN_OVER = (
        "Do not connect again from here; stop the other process, or let it go on in this one's place."
    )
    TOO_LARGE = "Keep within the limit that is named."
    QUOTA_EXCEEDED = "Wait and try again, more slowly."
    STORAGE_FULL = "Nothing was changed. Try again later; the operator must make space."
    OVERLOADED = (
        "Nothing was changed. Try again in a moment; where it lasts, the operator must allow more files "
        "or memory."
    )
    STORAGE_UNAVAILABLE = "Nothing was changed. Try again in a moment."
    DRAINING = "The coordinator is shutting down; reconnect in a moment."
    INTERNAL = "This is a fault of the coordinator; give its operator the request id."

    @property
    def status(self) -> grpc.StatusCode:
        return _STATUSES[self]

    @property
    def advice(self) -> str:
        return str(self.value)


#: gRPC's word for each refusal.
_STATUSES = {
    Code[name]: status
    for status, names in (
        (grpc.StatusCode.UNAUTHENTICATED, "CERTIFICATE_REQUIRED CERTIFICATE_REVOKED"),
        (grpc.StatusCode.PERMISSION_DENIED, "INVITATION_INVALID WRONG_PARTICIPANT NOT_SELECTED"),
        (grpc.StatusCode.NOT_FOUND, "SERVICE_UNKNOWN TASK_UNKNOWN SUBMISSION_UNKNOWN NOT_YET EXPIRED"),
        (
            grpc.StatusCode.INVALID_ARGUMENT,
            "FIELD_INVALID SIGNATURE_INVALID NONCE_UNKNOWN DRAW_SHARE_INVALID MODEL_INVALID FRAMES_INVALID",
        ),
        (
            grpc.StatusCode.FAILED_PRECONDITION,
            "TERMS_CHANGED WRONG_STATE WRONG_ROUND TASK_FULL IDENTITY_BARRED TASK_ENDED SESSION_TAKEN_OVER",
        ),
        (grpc.StatusCode.ALREADY_EXISTS, "SUBMISSION_CONFLICT"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_LARGE QUOTA_EXCEEDED STORAGE_FULL OVERLOADED"),
        (grpc.StatusCode.UNAVAILABLE, "STORAGE_UNAVAILABLE DRAINING"),
        (grpc.StatusCode.INTERNAL, "INTERNAL"),
    )
    for name in names.split()
}


@dataclass(frozen=True)
class FieldViolation:
    """One field at fault and what is wrong with it."""

    field: str
    description: str


class Refusal(Exception):
    """A call that is not carried out; nothing has changed.

    Attributes:
        code: why.
        message: what was wrong and what was expected, one sentence.
        violations: the fields at fault.
        metadata: further facts for programs, such as the current state.
        request_id: of the call, as the coordinator's log names it; empty before it is known.
    """

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        violations: Sequence[FieldViolation] = (),
        metadata: Mapping[str, str] | None = None,
        request_id: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.violations = tuple(violations)
        self.metadata = dict(metadata or {})
        self.request_id = request_id

    def __str__(self) -> str:
        trace = f" (request {self.request_id})" if self.request_id else ""
        return f"{self.message} {self.code.advice}{trace}"


def status_of(refusal: Refusal) -> status_pb2.Status:
    """The google.rpc.Status that carries `refusal`."""
    info = error_details_pb2.ErrorInfo(reason=refusal.code.name, domain=DOMAIN, metadata=refusal.metadata)
    details: list[Message] = [info]
    if refusal.violations:
        fields = [
            error_details_pb2.BadRequest.FieldViolation(field=v.field, description=v.description)
            for v in refusal.violations
        ]
        details.append(error_details_pb2.BadRequest(field_violations=fields))
    if refusal.request_id:
        details.append(error_details_pb2.RequestInfo(request_id=refusal.request_id))
    packed = []
    for detail in details:
        container = any_pb2.Any()
        container.Pack(detail)
        packed.append(container)
    return status_pb2.Status(
        code=refusal.code.status.value[0], message=f"{refusal.message} {refusal.code.advice}", details=packed
    )


def refusal_of(error: grpc.RpcError) -> Refusal | None:
    """The refusal inside an RPC error, or None where the error is not a refusal (a lost connection, say)."""
    try:
        status = rpc_status.from_call(error)
    except ValueError:  # details that contradict the call's own status: not from a coordinator of ours
        return None
    if status is None:
        return None
    code: Code | None = None
    metadata: dict[str, str] = {}
    violations: list[FieldViolation] = []
    request_id = ""
    for detail in status.details:
        info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        request = error_details_pb2.RequestInfo()
        if detail.Unpack(info) and info.domain == DOMAIN and info.reason in Code.__members__:
            code, metadata = Code[info.reason], dict(info.metadata)
        elif detail.Unpack(bad):
            violations = [FieldViolation(v.field, v.description) for v in bad.field_violations]
        elif detail.Unpack(request):
            request_id = request.request_id
    if code is None:
        return None
    message = status.message.removesuffix(" " + code.advice)
    return Refusal(code, message, violations=violations, metadata=metadata, request_id=request_id)
