"""One catalogue of refusals: code, gRPC status, and what to do; and its way over the wire and back.

    Refusal(Exception)      what a domain function raises and a client gets back
    Code                    every reason, with its status and advice

On the wire a refusal is a google.rpc.Status with ErrorInfo (reason = code, domain = fedpeer.v1),
BadRequest where fields are at fault, and RequestInfo with the request id that the coordinator's log names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

#: Domain of google.rpc.ErrorInfo.
DOMAIN = "fedpeer.v1"


class _Meaning(NamedTuple):
    status: grpc.StatusCode
    advice: str


class Code(Enum):
    """Why a call is refused. The value is the gRPC status and the advice to the caller."""

    CERTIFICATE_REQUIRED = _Meaning(
        grpc.StatusCode.UNAUTHENTICATED,
        "Enrol first, and connect with the certificate that enrolment returned.",
    )
    CERTIFICATE_REVOKED = _Meaning(
        grpc.StatusCode.UNAUTHENTICATED,
        "Ask the coordinator's operator for a new invitation and enrol again.",
    )
    INVITATION_INVALID = _Meaning(
        grpc.StatusCode.PERMISSION_DENIED, "Ask the coordinator's operator for a new invitation."
    )
    WRONG_PARTICIPANT = _Meaning(
        grpc.StatusCode.PERMISSION_DENIED,
        "Send messages under the participant id of your own certificate only.",
    )
    NOT_SELECTED = _Meaning(
        grpc.StatusCode.PERMISSION_DENIED,
        "Only participants that the learner selected train; wait for another task.",
    )
    SERVICE_UNKNOWN = _Meaning(
        grpc.StatusCode.NOT_FOUND, "Ask for the health of a service of this port, or of all by an empty name."
    )
    TASK_UNKNOWN = _Meaning(grpc.StatusCode.NOT_FOUND, "List the tasks and use one of their ids.")
    SUBMISSION_UNKNOWN = _Meaning(
        grpc.StatusCode.NOT_FOUND, "Submit first; the coordinator has no such submission."
    )
    NOT_YET = _Meaning(grpc.StatusCode.NOT_FOUND, "Watch the task and ask again when its state has moved on.")
    EXPIRED = _Meaning(
        grpc.StatusCode.NOT_FOUND, "It was deleted by the retention rule; only the ledger has its digest."
    )
    FIELD_INVALID = _Meaning(grpc.StatusCode.INVALID_ARGUMENT, "Correct the fields that are named.")
    SIGNATURE_INVALID = _Meaning(
        grpc.StatusCode.INVALID_ARGUMENT,
        "Sign the canonical statement with the key of your current certificate.",
    )
    NONCE_UNKNOWN = _Meaning(
        grpc.StatusCode.INVALID_ARGUMENT, "Fetch the task again and sign with its nonce."
    )
    TERMS_CHANGED = _Meaning(
        grpc.StatusCode.FAILED_PRECONDITION, "Fetch the task again and decide on the terms that it now has."
    )
    DRAW_SHARE_INVALID = _Meaning(
        grpc.StatusCode.INVALID_ARGUMENT,
        "Submit the round's share of the chain whose head the claim has; without the chain no model is scored.",
    )
    MODEL_INVALID = _Meaning(
        grpc.StatusCode.INVALID_ARGUMENT, "Submit a safetensors file that fits the task's model contract."
    )
    FRAMES_INVALID = _Meaning(
        grpc.StatusCode.INVALID_ARGUMENT,
        "Send the header first and then frames in order, from the announced offset.",
    )
    SUBMISSION_CONFLICT = _Meaning(
        grpc.StatusCode.ALREADY_EXISTS, "A submission id stands for one content for ever; choose a new id."
    )
    WRONG_STATE = _Meaning(
        grpc.StatusCode.FAILED_PRECONDITION, "Watch the task and act in the state that it is in."
    )
    WRONG_ROUND = _Meaning(
        grpc.StatusCode.FAILED_PRECONDITION, "Fetch the task again and train its current round."
    )
    TASK_FULL = _Meaning(grpc.StatusCode.FAILED_PRECONDITION, "All places are taken; wait for another task.")
    IDENTITY_BARRED = _Meaning(
        grpc.StatusCode.FAILED_PRECONDITION,
        "Take part by the identity that the task takes, which the operator knows, or wait for another task.",
    )
    TASK_ENDED = _Meaning(
        grpc.StatusCode.FAILED_PRECONDITION, "The task has ended; nothing can be submitted to it."
    )
    SESSION_TAKEN_OVER = _Meaning(
        grpc.StatusCode.FAILED_PRECONDITION,
        "Do not connect again from here; stop the other process, or let it go on in this one's place.",
    )
    TOO_LARGE = _Meaning(grpc.StatusCode.RESOURCE_EXHAUSTED, "Keep within the limit that is named.")
    QUOTA_EXCEEDED = _Meaning(grpc.StatusCode.RESOURCE_EXHAUSTED, "Wait and try again, more slowly.")
    STORAGE_FULL = _Meaning(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "Nothing was changed. Try again later; the operator must make space.",
    )
    OVERLOADED = _Meaning(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "Nothing was changed. Try again in a moment; where it lasts, the operator must allow more files or memory.",
    )
    STORAGE_UNAVAILABLE = _Meaning(grpc.StatusCode.UNAVAILABLE, "Nothing was changed. Try again in a moment.")
    DRAINING = _Meaning(
        grpc.StatusCode.UNAVAILABLE, "The coordinator is shutting down; reconnect in a moment."
    )
    INTERNAL = _Meaning(
        grpc.StatusCode.INTERNAL, "This is a fault of the coordinator; give its operator the request id."
    )

    @property
    def status(self) -> grpc.StatusCode:
        return self.value.status

    @property
    def advice(self) -> str:
        return self.value.advice


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
    details: list[
        error_details_pb2.ErrorInfo | error_details_pb2.BadRequest | error_details_pb2.RequestInfo
    ] = [error_details_pb2.ErrorInfo(reason=refusal.code.name, domain=DOMAIN, metadata=refusal.metadata)]
    if refusal.violations:
        details.append(
            error_details_pb2.BadRequest(
                field_violations=[
                    error_details_pb2.BadRequest.FieldViolation(field=v.field, description=v.description)
                    for v in refusal.violations
                ]
            )
        )
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
        info, bad, request = (
            error_details_pb2.ErrorInfo(),
            error_details_pb2.BadRequest(),
            error_details_pb2.RequestInfo(),
        )
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
