"""Pieces of work on an executor, in order, a few ahead."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import TypeVar

Result = TypeVar("Result")


def side_by_side(executor: Executor, work: Iterable[Callable[[], Result]], ahead: int) -> Iterator[Result]:
    """What each piece comes to, in order.

    Args:
        ahead: pieces that are handed out while the first of them is waited for, so that no more results than these
            are in memory.
    """
    waiting: deque[Future[Result]] = deque()
    for piece in work:
        waiting.append(executor.submit(piece))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
