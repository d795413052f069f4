"""What may pass and what lasts: one table for both ends.

A fault of the machine (a disk that fails once, too many open files, a database that restarts) is nobody's answer to a
message. The coordinator answers with a refusal that says so, and the participant tries again: no trained round is given
up for it. `outlook` says what to do with a refusal or with a call that ended without one, `code_of` what an error of
the operating system becomes.

    PASSING    ends by itself, or when people repair it: try again for as long as there is patience
    DOUBTFUL   perhaps a bug: try again a few times, then give up
    LASTING    the same message is refused again: give up at once
"""

import errno
from collections.abc import Mapping
from enum import Enum

import grpc

from fedpeer.protocol.errors import Code


class Outlook(Enum):
    """What becomes of a fault when one tries again."""

    PASSING = "passing"
    DOUBTFUL = "doubtful"
    LASTING = "lasting"


#: Refusals that are not the last word; all others are about the message, which stays the same.
_CODES: Mapping[Code, Outlook] = {
    Code.STORAGE_UNAVAILABLE: Outlook.PASSING,
    Code.STORAGE_FULL: Outlook.PASSING,
    Code.OVERLOADED: Outlook.PASSING,
    Code.QUOTA_EXCEEDED: Outlook.PASSING,
    Code.DRAINING: Outlook.PASSING,
    Code.INTERNAL: Outlook.DOUBTFUL,
}

#: Calls that ended without an answer of the coordinator's: a lost connection, a proxy's reset, a time-out.
#: RESOURCE_EXHAUSTED is the library's word for its own limits: of memory and streams, or of a message's size.
_STATUSES: Mapping[grpc.StatusCode, Outlook] = {
    grpc.StatusCode.UNAVAILABLE: Outlook.PASSING,
    grpc.StatusCode.DEADLINE_EXCEEDED: Outlook.PASSING,
    grpc.StatusCode.CANCELLED: Outlook.PASSING,
    grpc.StatusCode.ABORTED: Outlook.PASSING,
    grpc.StatusCode.UNKNOWN: Outlook.PASSING,
    grpc.StatusCode.INTERNAL: Outlook.PASSING,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Outlook.DOUBTFUL,
}

#: No space, by whatever limit.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

#: Too little of something that others give back: files, memory, processes, locks.
_SCARCE = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN, errno.ENOLCK, errno.EBUSY}
)

#: Errors of the operating system that a program causes by itself: the same call fails again.
_OURS = frozenset(
    {errno.EBADF, errno.EFAULT, errno.EINVAL, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP}
)


def outlook(answer: Code | grpc.StatusCode) -> Outlook:
    """What trying again may bring after a refusal, or after a call that ended without one."""
    if isinstance(answer, Code):
        return _CODES.get(answer, Outlook.LASTING)
    return _STATUSES.get(answer, Outlook.LASTING)


def code_of(error: BaseException) -> Code:
    """The code of an error of the operating system or of the interpreter; INTERNAL where it is none of those.

    Rights and missing files are counted among what passes: an operator's hand, a file system that was mounted
    read-only after a fault, a folder that is not mounted yet.
    """
    if isinstance(error, MemoryError) or _thread_failed(error):
        return Code.OVERLOADED
    if not isinstance(error, OSError) or error.errno in _OURS:
        return Code.INTERNAL
    if error.errno in FULL:
        return Code.STORAGE_FULL
    return Code.OVERLOADED if error.errno in _SCARCE else Code.STORAGE_UNAVAILABLE


def passes(error: BaseException) -> bool:
    """Whether an error of this machine may be gone at the next attempt."""
    return outlook(code_of(error)) is Outlook.PASSING


def _thread_failed(error: BaseException) -> bool:
    """Python has no error of its own for a thread that the system does not give."""
    return isinstance(error, RuntimeError) and "start new thread" in str(error)
