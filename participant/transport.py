"""Carries out effects with grpc (synchronous)."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from time import sleep
from typing import Any, TypeVar

import grpc

from fedpeer.protocol.errors import refusal_of
from participant.effects import (
    Cast,
    Diagnose,
    Download,
    Effect,
    Interrupted,
    Method,
    Next,
    Open,
    Pause,
    Steps,
    Stopped,
    Unary,
    Upload,
    Work,
    drive,
    iterate,
)
from participant.endpoint import Endpoint
from participant.errors import refused

T = TypeVar("T")


class Streaming:
    """What both transports call alike."""

    _endpoint: Endpoint
    _channel: Any

    def _stream(self, method: Method[Any, Any], request: Any, timeout: float | None) -> Any:
        stream = self._channel.unary_stream(method.path, written, method.read)
        return stream(request, timeout=timeout, metadata=self._endpoint.metadata())


def opened(library: Any, endpoint: Endpoint) -> Any:
    """A channel of grpc, or of grpc.aio."""
    if endpoint.secure:
        return library.secure_channel(endpoint.address, endpoint.channel_credentials(), endpoint.options())
    return library.insecure_channel(endpoint.address, endpoint.options())


class Casting:
    """Sends one message at a time and waits for nothing; of those that come meanwhile, the last goes next.

    Args:
        begin: begins a call; raises ValueError where the connection is closed.
    """

    def __init__(self, begin: Callable[[Any], Any]) -> None:
        self._begin = begin
        self._lock = threading.RLock()  # a call that is over at once is followed at once
        self._call: Any = None
        self._waiting: Any = None

    def __call__(self, request: Any) -> None:
        with self._lock:
            self._waiting = request
            if self._call is None:
                self._follow()

    def _follow(self, _ended: Any = None) -> None:
        with self._lock:
            request, self._waiting, self._call = self._waiting, None, None
            if request is not None:
                with suppress(ValueError):
                    self._call = self._begin(request)
                    self._call.add_done_callback(self._follow)


class SyncTransport(Streaming):
    """A connection to one endpoint; safe to use from several threads."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._stopped = threading.Event()
        self._channel = opened(grpc, endpoint)
        self._replaced: list[grpc.Channel] = []

    def replace(self, endpoint: Endpoint) -> None:
        """Makes new calls through `endpoint`, with a renewed certificate, say; calls in progress go on."""
        self._endpoint = endpoint
        self._replaced.append(self._channel)
        self._channel = opened(grpc, endpoint)

    def stop(self) -> None:
        """Ends the connection from another thread; calls in progress and later ones raise `Stopped`."""
        self._stopped.set()
        for channel in (self._channel, *self._replaced):
            channel.close()

    def close(self) -> None:
        """Ends the connection; calls in progress are cancelled."""
        self.stop()

    def run(self, steps: Steps[T]) -> T:
        return drive(steps, self.perform)

    def iterate(self, steps: Steps[Any]) -> Iterator[Any]:
        return iterate(steps, self.perform)

    def perform(self, effect: Effect) -> Any:
        if self._stopped.is_set():
            raise Stopped
        try:
            return self._perform(effect)
        except grpc.RpcError as error:
            if self._stopped.is_set():
                raise Stopped from None
            raise translated(error) from None
        except ValueError:
            if self._stopped.is_set():  # gRPC's word for a call on a closed channel
                raise Stopped from None
            raise

    def _perform(self, effect: Effect) -> Any:
        metadata = self._endpoint.metadata()
        match effect:
            case Unary(method, request, timeout):
                unary = self._channel.unary_unary(method.path, written, method.read)
                return unary(request, timeout=timeout, metadata=metadata)
            case Cast(method, timeout):
                return self._casting(method, timeout)
            case Upload(method, requests, timeout):
                upload = self._channel.stream_unary(method.path, written, method.read)
                welcome = threading.Event()
                sent = _gated(requests, welcome)
                try:
                    call = begun(lambda: upload.future(sent, timeout=timeout, metadata=metadata))
                    try:
                        call.initial_metadata()
                        welcome.set()
                        return call.result()
                    finally:
                        call.cancel()
                finally:
                    welcome.set()
            case Download(method, request, take, timeout):
                call = begun(lambda: self._stream(method, request, timeout))
                try:
                    for message in call:
                        take(message)
                finally:
                    call.cancel()
                return None
            case Open(method, request):
                return begun(lambda: self._stream(method, request, None))
            case Next(stream):
                return next(stream, None)  # type: ignore[call-overload]  # this driver's streams are iterators
            case Pause(seconds):
                return self._pause(seconds)
            case Diagnose(certain):
                return self._endpoint.diagnose(certain=certain)
            case Work(function):
                return function()

    def _casting(self, method: Method[Any, Any], timeout: float) -> Callable[[Any], None]:
        def begin(request: Any) -> Any:
            unary = self._channel.unary_unary(method.path, written, method.read)
            metadata = self._endpoint.metadata()
            return begun(lambda: unary.future(request, timeout=timeout, metadata=metadata))

        return Casting(begin)

    def _pause(self, seconds: float) -> None:
        if threading.current_thread() is threading.main_thread():
            sleep(seconds)  # a signal handler may raise here
        else:
            self._stopped.wait(seconds)


def begun(begin: Callable[[], Any]) -> Any:
    """A call that `begin` has begun, in a thread that Ctrl-C does not interrupt.

    gRPC waits for ever, when its channel is closed, for a call whose beginning was cut short.
    """
    if threading.current_thread() is not threading.main_thread():
        return begin()
    call: Future[Any] = Future()

    def work() -> None:
        try:
            call.set_result(begin())
        except BaseException as error:
            call.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        return call.result()
    except KeyboardInterrupt:
        call.add_done_callback(lambda ended: ended.exception() or ended.result().cancel())
        raise


def _gated(requests: Iterator[Any], welcome: threading.Event) -> Iterator[Any]:
    """The requests, all but the first of them after `welcome`; runs in a thread of gRPC's."""
    yield next(requests)
    welcome.wait()
    yield from requests


def written(message: Any) -> bytes:
    data: bytes = message if isinstance(message, bytes) else message.SerializeToString()
    return data


def translated(error: grpc.RpcError) -> Exception:
    """What an RPC error means: a refusal of the coordinator, or a call without an answer."""
    refusal = refusal_of(error)
    if refusal is not None:
        return refused(refusal)
    return Interrupted(error.code(), (error.details() or "").splitlines()[0] if error.details() else "")
