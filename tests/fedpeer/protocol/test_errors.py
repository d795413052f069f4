import grpc
import pytest
from google.rpc import code_pb2
from grpc_status import rpc_status

from fedpeer.protocol.errors import Code, FieldViolation, Refusal, refusal_of, status_of


class _Failed(grpc.RpcError):
    """A failed call as a client sees it, made from the status that a server would send."""

    def __init__(self, status: grpc.Status) -> None:
        self._status = status

    def code(self) -> grpc.StatusCode:
        return self._status.code

    def details(self) -> str:
        return self._status.details

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return self._status.trailing_metadata


@pytest.mark.parametrize("code", list(Code))
def test_every_refusal_comes_back_over_the_wire_as_it_was(code: Code) -> None:
    sent = Refusal(
        code,
        "Something was wrong.",
        violations=[FieldViolation("effort", "is 2; expected at most 1")],
        metadata={"state": "OPEN"},
        request_id="r-1",
    )
    received = refusal_of(_Failed(rpc_status.to_status(status_of(sent))))
    assert received is not None
    assert (received.code, received.message, received.violations) == (code, sent.message, sent.violations)
    assert (received.metadata, received.request_id) == (sent.metadata, "r-1")
    assert code.advice in str(received)
    assert "r-1" in str(received)


def test_an_error_that_is_no_refusal_is_not_taken_for_one() -> None:
    class Plain(_Failed):
        def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
            return ()

    status = rpc_status.to_status(status_of(Refusal(Code.INTERNAL, "x")))
    assert refusal_of(Plain(status)) is None


def test_details_that_contradict_the_status_are_not_believed() -> None:
    class Contradicting(_Failed):
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.OK

    status = rpc_status.to_status(status_of(Refusal(Code.INTERNAL, "x")))
    assert refusal_of(Contradicting(status)) is None


def test_codes_are_distinct_and_each_says_what_to_do() -> None:
    assert len(Code.__members__) == len(list(Code)), "two codes with equal meaning would be one"
    for code in Code:
        assert code.advice.endswith(".")
        assert code.status.value[0] in code_pb2.Code.values()
        assert code.status is not grpc.StatusCode.OK
