"""Processes that train shadow models, one a core.

They are started when they are first needed and serve every task of the process. Each computes on one thread, so
that its models are those that one process alone would have trained, bit for bit. They run at a lower priority:
participants are answered first. They end with the process that started them, however it ends, SIGKILL included.
"""

import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from typing import Any, TypeVar

from coordinator.workload import runs_apart
from fedpeer.learning.samples import Samples
from fedpeer.learning.workers import begin_worker
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
                self._pool = self._started()
            try:
                return self._pool.submit(fn, *args, **kwargs)
            except BrokenProcessPool:
                # A worker was killed, for want of memory for instance; what it was doing has failed already.
                self._pool = self._started()
                return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(wait, cancel_futures=cancel_futures)
                self._pool = None

    def _started(self) -> ProcessPoolExecutor:
        # Spawned: a fork of a process with running gRPC and torch threads may hang.
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(
            self._processes, mp_context=context, initializer=begin_worker, initargs=(_NICENESS,)
        )


#: Those of this process, by their number.
_workers = cache(ShadowWorkers)


def workers_for(recipe: Recipe, validation: Samples, shadows: int) -> Executor | None:
    """The workers, where a round's shadows are enough work for them and there is more than one core.

    An operator's own workload has them always: how much work it is only its code knows, and it stays out of this
    process.
    """
    numbers = shadows * recipe.epochs * recipe.samples * validation.width
    cores = len(os.sched_getaffinity(0))
    if runs_apart(recipe):
        return _workers(cores)
    return None if numbers < _WORTH_WORKERS or cores < 2 else _workers(cores)
