"""Pools of processes that train models or run somebody's code, and what such a process does first."""

import atexit
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import connection
from weakref import WeakSet

#: How processes begin: a fork of this one, which may have running threads, may hang.
_CONTEXT = multiprocessing.get_context("spawn")

#: Those of this process.
_pools: "WeakSet[ProcessPoolExecutor]" = WeakSet()


def spawned_pool(processes: int, niceness: int = 0) -> ProcessPoolExecutor:
    """A pool of so many processes that begin by `begin_worker`.

    Who makes it shuts it down. One that serves as long as this process does is shut down at its end: where Python takes
    its modules apart first, what is left of a pool complains on standard error.
    """
    pool = ProcessPoolExecutor(processes, _CONTEXT, initializer=begin_worker, initargs=(niceness,))
    _pools.add(pool)
    return pool


@atexit.register
def _shut_down() -> None:
    for pool in list(_pools):
        pool.shutdown(wait=False, cancel_futures=True)


def begin_worker(niceness: int = 0) -> None:
    """One torch thread, so that results are those of one process, bit for bit; a priority lower by `niceness`.

    The process ends with the one that started it, however that ends, SIGKILL included; Ctrl-C, which reaches it
    too, ends it without a traceback.
    """
    threading.Thread(target=_follow_parent, daemon=True).start()  # before what takes its time
    try:
        import torch  # of the workers alone
    except ModuleNotFoundError:  # a workload of another library's
        pass
    else:
        torch.set_num_threads(1)
    os.dup2(2, 1)  # what somebody's code prints is no part of a command's answer
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.nice(niceness)


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
