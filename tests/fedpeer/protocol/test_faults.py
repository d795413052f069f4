"""Every refusal and every error of the system is one of three: passing, doubtful or lasting."""

import errno
import os

import grpc
import pytest

from fedpeer.protocol.errors import Code
from fedpeer.protocol.faults import Outlook, code_of, outlook, passes

PASSING = {"STORAGE_UNAVAILABLE", "STORAGE_FULL", "OVERLOADED", "QUOTA_EXCEEDED", "DRAINING"}


@pytest.mark.parametrize("code", list(Code))
def test_what_is_no_answer_to_the_message_may_pass(code: Code) -> None:
    passing = code.name in PASSING
    assert (outlook(code) is Outlook.PASSING) == passing
    assert (outlook(code) is Outlook.DOUBTFUL) == (code is Code.INTERNAL)
    # And its status says so to clients that know no reasons; TOO_LARGE names a limit that the message breaks.
    retried = code.status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert retried == (passing or code is Code.TOO_LARGE)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.EIO, Code.STORAGE_UNAVAILABLE),
        (errno.EROFS, Code.STORAGE_UNAVAILABLE),
        (errno.EACCES, Code.STORAGE_UNAVAILABLE),
        (errno.ENOENT, Code.STORAGE_UNAVAILABLE),
        (errno.ESTALE, Code.STORAGE_UNAVAILABLE),
        (errno.ECONNRESET, Code.STORAGE_UNAVAILABLE),
        (errno.ENOSPC, Code.STORAGE_FULL),
        (errno.EDQUOT, Code.STORAGE_FULL),
        (errno.EFBIG, Code.STORAGE_FULL),
        (errno.EMFILE, Code.OVERLOADED),
        (errno.ENFILE, Code.OVERLOADED),
        (errno.ENOMEM, Code.OVERLOADED),
        (errno.EAGAIN, Code.OVERLOADED),
        (errno.EINVAL, Code.INTERNAL),
        (errno.EBADF, Code.INTERNAL),
        (errno.ENAMETOOLONG, Code.INTERNAL),
    ],
)
def test_errors_of_the_system_have_codes_by_what_they_are(number: int, code: Code) -> None:
    error = OSError(number, os.strerror(number))
    assert code_of(error) is code
    assert passes(error) is (code is not Code.INTERNAL)


def test_a_lack_of_memory_or_threads_passes_and_a_bug_does_not() -> None:
    assert code_of(MemoryError()) is code_of(RuntimeError("can't start new thread")) is Code.OVERLOADED
    short = (
        "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate"
    )
    assert code_of(RuntimeError(short)) is Code.OVERLOADED
    assert code_of(RuntimeError("a bug")) is code_of(KeyError("x")) is Code.INTERNAL
    assert code_of(TimeoutError()) is Code.STORAGE_UNAVAILABLE


def test_calls_without_an_answer_are_tried_again_unless_nobody_of_ours_is_there() -> None:
    lasting = {status for status in grpc.StatusCode if outlook(status) is Outlook.LASTING}
    assert grpc.StatusCode.UNAVAILABLE not in lasting
    assert grpc.StatusCode.UNIMPLEMENTED in lasting
    assert outlook(grpc.StatusCode.RESOURCE_EXHAUSTED) is Outlook.DOUBTFUL
