"""One description of each call, from which the blocking client and the asyncio one follow.

    class Calls(Generic[J]):
        @call
        def join(self, task_id: str) -> Steps[J]: ...       described once, by its steps

    class Participant(Calls[JoinedTask], Blocking): ...                       me.join("cats-1")
    class AsyncParticipant(Calls[AsyncJoinedTask], Awaited): ...        await me.join("cats-1")

Both get real functions with the description's parameters and docstring, so `help` and debuggers show what is called.
"""

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import closing
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, get_args, get_origin, overload

from participant.aio_transport import AsyncTransport
from participant.effects import Emit, Emits, Steps
from participant.endpoint import Endpoint
from participant.transport import SyncTransport

P = ParamSpec("P")
T = TypeVar("T")


class call(Generic[P, T]):  # noqa: N801 - a decorator
    """A call with one answer.

    Args:
        steps: what it does; gets the client, and the call's arguments.
        of: the client's attribute that has the steps, where it is not the client itself.
    """

    def __init__(self, steps: Callable[Concatenate[Any, P], Steps[T]], of: str = "") -> None:
        self.described = steps
        self.steps = (lambda client, *a, **k: steps(getattr(client, of), *a, **k)) if of else steps

    @overload
    def __get__(self, client: "Blocking", kind: object) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: "Awaited", kind: object) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, kind: Any) -> Any:
        return self.described.__get__(client, kind)

    def waiting(self) -> Any:
        steps = self.steps
        return lambda client, *a, **k: client.transport.run(steps(client, *a, **k))

    def awaited(self) -> Any:
        steps = self.steps

        async def function(client: Any, *args: Any, **kwargs: Any) -> Any:
            return await client.transport.run(steps(client, *args, **kwargs))

        return function


class each(Generic[P, T]):  # noqa: N801 - a decorator
    """A call that is iterated over; see `call`."""

    def __init__(self, steps: Callable[Concatenate[Any, P], Emits[T]], of: str = "") -> None:
        self.described = steps
        self.steps = call(steps, of).steps

    @overload
    def __get__(self, client: "Blocking", kind: object) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, client: "Awaited", kind: object) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, client: Any, kind: Any) -> Any:
        return self.described.__get__(client, kind)

    def waiting(self) -> Any:
        steps = self.steps
        return lambda client, *a, **k: client.transport.iterate(steps(client, *a, **k))

    awaited = waiting


class class_call(Generic[P, T]):  # noqa: N801 - a decorator
    """A call of the class, over a connection of its own: to the endpoint that comes with the steps."""

    def __init__(self, steps: Callable[P, tuple[Endpoint, Steps[T]]]) -> None:
        self.described = steps

    @overload
    def __get__(self, client: "Blocking | None", kind: "type[Blocking]") -> Callable[P, T]: ...
    @overload
    def __get__(
        self, client: "Awaited | None", kind: "type[Awaited]"
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, kind: Any) -> Any:
        return self.described

    def waiting(self) -> Any:
        def function(kind: type, *args: P.args, **kwargs: P.kwargs) -> T:
            endpoint, steps = self.described(*args, **kwargs)
            with closing(SyncTransport(endpoint)) as transport:
                return transport.run(steps)

        return function

    def awaited(self) -> Any:
        async def function(kind: type, *args: P.args, **kwargs: P.kwargs) -> T:
            endpoint, steps = self.described(*args, **kwargs)
            transport = AsyncTransport(endpoint)
            try:
                return await transport.run(steps)
            finally:
                await transport.close()

        return function


def _described(kind: type) -> Iterator[tuple[str, Any]]:
    for name in dir(kind):
        found = inspect.getattr_static(kind, name)
        if isinstance(found, call | each | class_call):
            yield name, found


def _dressed(kind: type, name: str, found: Any, function: Any, iterator: Any) -> Any:
    """`function` with the name, parameters, docstring and result that a caller sees."""
    signature = inspect.signature(found.described)
    parameters = list(signature.parameters.values())
    if isinstance(found, class_call):
        parameters.insert(0, inspect.Parameter("cls", inspect.Parameter.POSITIONAL_OR_KEYWORD))
    result = _result(kind, found, signature.return_annotation)
    if isinstance(found, each):
        result = iterator[result]
    wraps(found.described)(function)
    function.__name__, function.__qualname__ = name, f"{kind.__qualname__}.{name}"
    function.__module__ = kind.__module__
    function.__annotations__ = {**found.described.__annotations__, "return": result}
    function.__signature__ = signature.replace(parameters=parameters, return_annotation=result)
    return classmethod(function) if isinstance(found, class_call) else function


def _result(kind: type, found: Any, annotation: Any) -> Any:
    """X of Steps[X], Emits[X], or an endpoint with Steps[X]; a type variable as `kind` fills it."""
    if isinstance(annotation, str):
        return annotation.removeprefix("Steps[").removesuffix("]")
    if isinstance(found, class_call):
        annotation = get_args(annotation)[1]
    effects, _, result = get_args(annotation)
    if isinstance(found, each):
        result = next(get_args(effect)[0] for effect in get_args(effects) if get_origin(effect) is Emit)
    for base in getattr(kind, "__orig_bases__", ()):
        if isinstance(result, TypeVar) and get_args(base):
            result = dict(zip(get_origin(base).__parameters__, get_args(base), strict=True))[result]
    return result


class Blocking:
    """A client whose calls wait for their answer."""

    transport: SyncTransport

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, found in _described(cls):
            setattr(cls, name, _dressed(cls, name, found, found.waiting(), Iterator))


class Awaited:
    """A client whose calls are awaited, on one event loop."""

    transport: AsyncTransport

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, found in _described(cls):
            setattr(cls, name, _dressed(cls, name, found, found.awaited(), AsyncIterator))


class BlockingConnection(Blocking):
    """One that holds the connection."""

    def close(self) -> None:
        """Ends the connection, with the calls in progress, and gives up the state folder where there is one."""
        self.transport.close()
        self._release()

    def _release(self) -> None:
        """Gives up what else it holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        self.close()


class AwaitedConnection(Awaited):
    """One that holds the connection."""

    async def close(self) -> None:
        """Ends the connection, with the calls in progress, and gives up the state folder where there is one."""
        await self.transport.close()
        self._release()

    def _release(self) -> None:
        """Gives up what else it holds."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()
