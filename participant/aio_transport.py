"""Carries out effects with grpc.aio."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import cached_property
from typing import Any, TypeVar

import grpc
import grpc.aio

from participant.effects import (
    Cast,
    Diagnose,
    Download,
    Effect,
    Emit,
    Interrupted,
    Method,
    Next,
    Open,
    Pause,
    Steps,
    Unary,
    Upload,
    Work,
)
from participant.endpoint import Endpoint
from participant.task import TrainingCancelled
from participant.transport import Casting, Streaming, opened, translated, written

T = TypeVar("T")


class AsyncTransport(Streaming):
    """A connection to one endpoint, of the event loop that first uses it."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._replaced: list[Any] = []
        #: Calls that nobody waits for.
        self._cast: set[asyncio.Task[None]] = set()
        self._closed = False

    @cached_property
    def _channel(self) -> Any:
        return opened(grpc.aio, self._endpoint)

    def replace(self, endpoint: Endpoint) -> None:
        """Makes new calls through `endpoint`, with a renewed certificate, say; calls in progress go on."""
        self._endpoint = endpoint
        if "_channel" in self.__dict__:  # else none was used yet
            self._replaced.append(self.__dict__.pop("_channel"))

    async def close(self) -> None:
        """Ends the connection; calls in progress are cancelled."""
        self._closed = True
        self.replace(self._endpoint)
        for task in (cast := tuple(self._cast)):
            task.cancel()
        await asyncio.gather(*cast, return_exceptions=True)
        for channel in self._replaced:
            await channel.close()

    async def run(self, steps: Steps[T]) -> T:
        """Runs `steps` to their end; what an effect raises is raised inside them."""
        returned: list[T] = []

        def kept() -> Steps[None]:
            returned.append((yield from steps))

        async for item in self.iterate(kept()):
            raise AssertionError(f"{item!r} is emitted outside an iteration")
        return returned[0]

    async def iterate(self, steps: Steps[Any]) -> AsyncIterator[Any]:
        """The items that `steps` emit."""
        try:
            effect = next(steps)
            while True:
                if isinstance(effect, Emit):
                    yield effect.item
                    effect = steps.send(None)
                    continue
                try:
                    result = await self.perform(effect)
                except (Exception, TrainingCancelled) as error:
                    effect = steps.throw(error)
                else:
                    effect = steps.send(result)
        except StopIteration:
            return
        finally:
            steps.close()

    async def perform(self, effect: Effect) -> Any:
        try:
            return await self._perform(effect)
        except grpc.RpcError as error:
            raise translated(error) from None

    async def _perform(self, effect: Effect) -> Any:
        metadata = self._endpoint.metadata()
        match effect:
            case Unary(method, request, timeout):
                unary = self._channel.unary_unary(method.path, written, method.read)
                return await unary(request, timeout=timeout, metadata=metadata)
            case Cast(method, timeout):
                return self._casting(method, timeout)
            case Upload(method, requests, timeout):
                upload = self._channel.stream_unary(method.path, written, method.read)
                return await self._upload(upload, requests, timeout)
            case Download(method, request, take, timeout):
                call = self._stream(method, request, timeout)
                try:
                    async for message in call:
                        take(message)
                finally:
                    call.cancel()
                return None
            case Open(method, request):
                return self._stream(method, request, None)
            case Next(stream):
                message = await stream.read()  # type: ignore[attr-defined]  # this driver's streams are grpc.aio's
                return None if message is grpc.aio.EOF else message
            case Pause(seconds):
                return await asyncio.sleep(seconds)
            case Diagnose(certain):
                return await asyncio.to_thread(self._endpoint.diagnose, certain=certain)
            case Work(function):
                return await asyncio.to_thread(function)

    def _casting(self, method: Method[Any, Any], timeout: float) -> Callable[[Any], None]:
        loop = asyncio.get_running_loop()

        async def sent(request: Any) -> None:
            with suppress(grpc.RpcError):
                unary = self._channel.unary_unary(method.path, written, method.read)
                await unary(request, timeout=timeout, metadata=self._endpoint.metadata())

        def begin(request: Any) -> Any:
            if self._closed:
                raise ValueError("the connection is closed")
            task = asyncio.ensure_future(sent(request))
            self._cast.add(task)
            task.add_done_callback(self._cast.discard)
            return task

        casting = Casting(begin)

        def send(request: Any) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(casting, request)

        return send

    async def _upload(self, upload: Any, requests: Iterator[Any], timeout: float | None) -> Any:
        welcome = asyncio.Event()
        call = upload(_gated(requests, welcome), timeout=timeout, metadata=self._endpoint.metadata())
        try:
            await call.initial_metadata()
            welcome.set()
            return await call
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # grpc.aio cancels the call itself where its requests fail: a file that cannot be read.
            raise Interrupted(grpc.StatusCode.CANCELLED, "the requests ended early") from None
        finally:
            call.cancel()
            welcome.set()


async def _gated(requests: Iterator[Any], welcome: asyncio.Event) -> AsyncIterator[Any]:
    """The requests, all but the first of them after `welcome`."""
    yield next(requests)
    await welcome.wait()
    for request in requests:
        yield request
