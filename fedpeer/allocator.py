"""Keeps freed memory in the process.

By default glibc returns every large block to the kernel when it is freed, and the next message, batch or activation
of that size faults its pages in again, one by one, which costs a large part of training a small CNN and of receiving a
model. The limits below make it keep them. A process that was started from here inherits them.
"""

import ctypes
import os
from typing import NamedTuple


class _Limit(NamedTuple):
    """One of malloc's parameters: its number in malloc.h, its environment variable, and the value."""

    number: int
    variable: str
    value: int


_LIMITS = (
    # Blocks from this size on would be mapped one by one.
    _Limit(-3, "MALLOC_MMAP_THRESHOLD_", 1 << 30),
    # Free memory at the end of the heap beyond which it would be cut off.
    _Limit(-1, "MALLOC_TRIM_THRESHOLD_", (1 << 31) - 1),
    # Added to each growth of the heap.
    _Limit(-2, "MALLOC_TOP_PAD_", 1 << 26),
    # Heaps: with one for each thread, each would keep the frames of all uploads.
    _Limit(-8, "MALLOC_ARENA_MAX", 2),
)


def keep_pages() -> bool:
    """Sets the limits for this process and those that it starts; a variable that the user has set is left alone.

    Returns whether there is a malloc that knows them: on other systems than Linux with glibc there is not.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    if "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return True
    for limit in _LIMITS:
        if limit.variable not in os.environ:
            os.environ[limit.variable] = str(limit.value)
            mallopt(limit.number, limit.value)
    return True
