"""Ctrl-C in the middle of a call's beginning: the connection can be closed still."""

import random
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from fedpeer.v1 import market_pb2
from participant.effects import Open
from participant.endpoint import Endpoint
from participant.steps import WATCH
from participant.transport import SyncTransport

#: Calls that are interrupted, at most this many seconds after they begin. One takes a fraction of a millisecond.
CALLS, WITHIN = 400, 0.0006


@pytest.fixture
def address() -> Iterator[str]:
    """A server whose streams stay open until the client leaves."""
    server = grpc.server(ThreadPoolExecutor(8))

    def watch(request: bytes, context: Any) -> Iterator[bytes]:
        left = threading.Event()
        if context.add_callback(left.set):  # False: it has left already
            left.wait()
        yield from ()

    _, service, method = WATCH.path.split("/")
    handlers = {method: grpc.unary_stream_rpc_method_handler(watch)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals to a thread")
@pytest.mark.timeout(60)
def test_a_connection_is_closed_after_a_call_was_interrupted_at_any_moment_of_its_beginning(
    address: str,
) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    main, chance, interrupted = threading.main_thread().ident, random.Random(1), 0
    assert main is not None
    try:
        for _ in range(CALLS):
            transport = SyncTransport(Endpoint(address, plain_text_name="ada"))
            seconds, begins = WITHIN * chance.random(), threading.Event()

            def soon(begins: threading.Event = begins, seconds: float = seconds) -> None:
                begins.wait()
                threading.Event().wait(seconds)
                signal.pthread_kill(main, signal.SIGUSR1)

            thread = threading.Thread(target=soon)
            thread.start()
            try:
                begins.set()
                transport.perform(Open(WATCH, market_pb2.WatchRequest(task_id="task")))
                thread.join()
            except KeyboardInterrupt:
                interrupted += 1
            thread.join()
            transport.close()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert interrupted > CALLS / 2
