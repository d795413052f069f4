"""What a process of a pool does first when it is to train models or to run somebody's code."""

import multiprocessing
import os
import signal
import threading
from multiprocessing import connection


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
