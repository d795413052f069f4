"""The client's steps, apart from how they are carried out.

A step is a generator: it yields *effects* (a call, a pause, ...) and is sent their results. `transport` carries
them out with grpc, `aio` with grpc.aio, and a test with a script; so the synchronous and the asyncio client are
the same code, and every point between two effects can be tested.

    steps = fetch_task(...)                    Generator[Effect, Any, Task]
    task = drive(steps, perform)               the synchronous driver
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message

from participant.task import TrainingCancelled

T = TypeVar("T")
Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class Interrupted(Exception):
    """A call that ended without an answer of the domain: the connection was lost, or time was up.

    Attributes:
        status: gRPC's status.
        details: gRPC's words.
    """

    def __init__(self, status: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{status.name}: {details}")
        self.status = status
        self.details = details


class Stopped(BaseException):
    """The client is to stop; the journal knows what was begun."""


@dataclass(frozen=True)
class Method(Generic[Request, Response]):
    """A method of fedpeer.v1: its path and how its messages are written.

    Attributes:
        parse: reads a response in the place of the library.
    """

    path: str
    request: type[Request]
    response: type[Response]
    parse: Callable[[bytes], Any] | None = None

    def read(self, data: bytes) -> Any:
        return (self.parse or self.response.FromString)(data)


@dataclass(frozen=True)
class Unary:
    """Result: the response."""

    method: Method[Any, Any]
    request: Message
    timeout: float


@dataclass(frozen=True)
class Cast:
    """Result: a function that sends one message and waits for nothing, from any thread.

    It never fails. Of messages that come while one is on its way the last goes next; what cannot be sent is dropped.
    """

    method: Method[Any, Any]
    timeout: float


@dataclass(frozen=True)
class Upload:
    """A client stream. Result: the response.

    `requests`, messages or their bytes, is consumed while the call runs: the first at once, the others when the server
    has sent its initial metadata, which says that it reads them now. What came before would wait in its memory.
    """

    method: Method[Any, Any]
    requests: Iterator[Message | bytes]
    timeout: float | None


@dataclass(frozen=True)
class Download:
    """A server stream whose every message is handed to `take`. Result: None at its end."""

    method: Method[Any, Any]
    request: Message
    take: Callable[[Any], None]
    timeout: float | None


class Stream(Protocol):
    """An open server stream, of whichever driver."""

    def cancel(self) -> bool: ...


@dataclass(frozen=True)
class Open:
    """Result: a `Stream`."""

    method: Method[Any, Any]
    request: Message


@dataclass(frozen=True)
class Next:
    """Result: the stream's next message, or None at its end."""

    stream: Stream


@dataclass(frozen=True)
class Pause:
    """Result: None, after so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Diagnose:
    """Result: the `TransportError` that explains why the coordinator cannot be reached, or None if it can.

    Attributes:
        certain: name only what cannot be chance: not a connection that merely breaks.
    """

    certain: bool = False


@dataclass(frozen=True)
class Work:
    """The participant's own code, which may take long. Result: what it returns."""

    function: Callable[[], Any]


@dataclass(frozen=True)
class Emit(Generic[T]):
    """Hands an item to the caller that iterates over the steps. Result: None."""

    item: T


Performed: TypeAlias = Unary | Cast | Upload | Download | Open | Next | Pause | Diagnose | Work
Effect: TypeAlias = Performed | Emit[Any]

#: What has a result, and what emits items.
Steps: TypeAlias = Generator[Effect, Any, T]
Emits: TypeAlias = Generator[Performed | Emit[T], Any, None]


def drive(steps: Steps[T], perform: Callable[[Effect], Any]) -> T:
    """Runs `steps` to their end; what `perform` raises is raised inside them."""
    try:
        next(iterate(steps, perform))
    except StopIteration as end:
        value: T = end.value
        return value
    raise AssertionError("items are emitted only inside an iteration")


def iterate(steps: Steps[T], perform: Callable[[Effect], Any]) -> Generator[Any, None, T]:
    """The items that `steps` emit; what `perform` raises is raised inside them."""
    try:
        effect = next(steps)
        while True:
            if isinstance(effect, Emit):
                yield effect.item
                effect = steps.send(None)
                continue
            try:
                result = perform(effect)
            except (Exception, KeyboardInterrupt, TrainingCancelled) as error:
                effect = steps.throw(error)
            else:
                effect = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value
    finally:
        steps.close()


def transform(steps: Steps[Any], handle: Callable[[Any], Steps[bool]]) -> Steps[None]:
    """Steps that carry out `steps` and hand each item that they emit to `handle`, until it returns False."""
    try:
        effect = next(steps)
        while True:
            if isinstance(effect, Emit):
                if not (yield from handle(effect.item)):
                    return
                effect = steps.send(None)
                continue
            try:
                result = yield effect
            except (Exception, KeyboardInterrupt, TrainingCancelled) as error:
                effect = steps.throw(error)
            else:
                effect = steps.send(result)
    except StopIteration:
        return
    finally:
        steps.close()
