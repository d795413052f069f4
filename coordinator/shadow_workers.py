"""Processes that train shadow models, one a core.

They are started when they are first needed and serve every task of the process. Each computes on one thread, so
that its models are those that one process alone would have trained, bit for bit. They run at a lower priority:
participants are answered first. They end with the process that started them, however it ends, SIGKILL included.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from typing import Any, TypeVar

from coordinator.errors import ConfigError
from coordinator.workload import runs_apart
from fedpeer.learning.samples import Samples
from fedpeer.learning.workers import spawned_pool
from fedpeer.terminal import counted
from mechanism.terms import Recipe

Result = TypeVar("Result")

#: Numbers that all shadows of a round see in training from which workers are worth their start, which takes seconds.
#: Digits are at 6e6 and take as long on one core; Fashion-MNIST is at 2.4e8 and takes minutes.
_WORTH_WORKERS = 5e7

#: Added to the niceness of a worker.
_NICENESS = 5


class ShadowWorkers(Executor):
    """A pool of processes that replaces itself where one of them was killed."""

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._lock = threading.Lock()
        self._pool: ProcessPoolExecutor | None = None

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        with self._lock:
            if self._pool is None:
                self._pool = spawned_pool(self._processes, _NICENESS)
            try:
                return self._pool.submit(fn, *args, **kwargs)
            except BrokenProcessPool:
                # A worker was killed, for want of memory for instance; what it was doing has failed already.
                self._pool = spawned_pool(self._processes, _NICENESS)
                return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(wait, cancel_futures=cancel_futures)
                self._pool = None


#: Those of this process, by their number.
_workers = cache(ShadowWorkers)


class LocalWorkers:
    """Who does heavy work: the cores of this machine.

    Args:
        device: of torch, on which shadows train together; empty: one after another on the CPU.
    """

    def __init__(self, device: str = "") -> None:
        self.device = device

    def for_shadows(self, recipe: Recipe, validation: Samples, shadows: int) -> Executor | None:
        """The executor that trains a round's shadows; None: they are little work, the calling thread does it, or one
        device does all of them.
        """
        if self.device.startswith("cuda"):
            return None
        return self.pool() if heavy(recipe, validation, shadows) and _wanted(recipe) else None

    def for_means(self, size: int) -> Executor | None:
        """The executor that works out the mean of models of so many bytes in all; None: threads of this process do."""
        return None

    def pool(self) -> Executor:
        """A process for each core."""
        return _workers(_cores())

    @property
    def trouble(self) -> str:
        """What a round waits for; "" where all goes as it should."""
        return ""

    @property
    def outstanding(self) -> int:
        """Calls elsewhere that are waited for."""
        return 0

    @property
    def needed(self) -> set[bytes]:
        """Digests of files that calls in progress need."""
        return set()

    def close(self) -> None:
        """Gives up calls in progress. The processes of this machine end with it."""


def check_device(device: str) -> None:
    """Raises ConfigError where models cannot be trained on a device of torch; the empty one is no device."""
    if not device.startswith("cuda"):
        return
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(device.partition(":")[2] or 0) >= count:
        raise ConfigError(
            f"workers.device is {device!r}, and torch finds {counted(count, 'CUDA device')} on this machine; expected "
            'one that is there, or "" for the CPU'
        )


def heavy(recipe: Recipe, validation: Samples, shadows: int) -> bool:
    """Whether a round's shadows are enough work for workers.

    An operator's own workload has them always: how much work it is only its code knows, and it stays out of this
    process.
    """
    return runs_apart(recipe) or shadows * recipe.epochs * recipe.samples * validation.width >= _WORTH_WORKERS


def _wanted(recipe: Recipe) -> bool:
    return runs_apart(recipe) or _cores() > 1


def _cores() -> int:
    return len(os.sched_getaffinity(0))
