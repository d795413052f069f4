"""The edge of the service: every call gets a request id, an authenticated caller, a quota, a latency, and
errors that a client can act on. The servicers know nothing of this.

Authentication and limits stand here and not in the servicers, so that a new method cannot forget them, and so does the
end of every stream whose caller is one no longer; the libraries' own services (health, reflection) come through here,
too. A method without a line in `fedpeer.protocol.limits.METHODS` is not served.

gRPC reads the message of a call with one message before it asks for a handler. Here every call is served as a stream of
requests, so that nothing is read for a caller that is not known or has enough calls open.
"""

import asyncio
import ipaddress
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from functools import partial
from random import Random
from typing import Any
from urllib.parse import unquote

import grpc
import structlog
from grpc_status.rpc_status import to_status

from coordinator.identity import Caller
from coordinator.metrics import Metrics
from coordinator.quotas import Quotas, held
from coordinator.spool import SpoolFull
from coordinator.tracing import Tracing, annotate, end, fail
from fedpeer.audit.sql.errors import (
    DatabaseDamaged,
    DatabaseFull,
    DatabaseLocked,
    DatabaseReadOnly,
    DatabaseUnreachable,
    NotALedger,
    StorageError,
)
from fedpeer.protocol.errors import Code, FieldViolation, Refusal, status_of
from fedpeer.protocol.faults import code_of
from fedpeer.protocol.frames import parse_upload_message
from fedpeer.protocol.limits import (
    MAX_REFUSAL_FIELD,
    MAX_REFUSAL_SENTENCE,
    MAX_REFUSAL_VIOLATIONS,
    MAX_REQUESTS_PER_SECOND,
    MESSAGE_SECONDS,
    METHODS,
    MethodLimits,
)
from fedpeer.protocol.model_file import ModelFileError
from mechanism.errors import FieldError, MechanismError

log = structlog.get_logger()

#: What our own methods' names begin with; left out where they are named.
_OWN = "/fedpeer.v1."

#: Parsers in the place of the library's.
_PARSERS: dict[str, Callable[[bytes], Any]] = {"/fedpeer.v1.Market/SubmitModel": parse_upload_message}

#: Who makes the call that is being served; set on ports that authenticate.
_caller: ContextVar[Caller] = ContextVar("caller")

#: Lets the client of the call that is being served know that it is.
_welcome: ContextVar[Callable[[], Awaitable[None]]] = ContextVar("welcome")

#: Whom the bytes of the stream that is being served are charged to; None outside streams.
_charge: ContextVar[Callable[[int], None] | None] = ContextVar("charge", default=None)

#: Names requests. They are not secrets: asking the system for bytes at each call would cost more than the rest of the
#: boundary.
_request_ids = Random()

#: Finds the caller of a call, or refuses it; None on a port that takes everybody.
Authenticate = Callable[[Any], Awaitable[Caller]]

#: Why a caller no longer counts as one; None where it still does.
RefusalOf = Callable[[Caller], Refusal | None]

#: The codes of the database's refusals; any other is a statement that it does not take, and so our fault.
_STORAGE: dict[type[StorageError], Code] = {
    DatabaseFull: Code.STORAGE_FULL,
    DatabaseLocked: Code.STORAGE_UNAVAILABLE,
    DatabaseUnreachable: Code.STORAGE_UNAVAILABLE,
    DatabaseReadOnly: Code.STORAGE_UNAVAILABLE,
    # Until the operator has restored a backup.
    DatabaseDamaged: Code.STORAGE_UNAVAILABLE,
    NotALedger: Code.STORAGE_UNAVAILABLE,
}

_SENTENCES = {
    Code.STORAGE_FULL: "The coordinator's disk or database is full.",
    Code.STORAGE_UNAVAILABLE: "The coordinator's disk or database cannot be read or written now.",
    Code.OVERLOADED: "The coordinator is short of open files, memory or threads.",
    Code.INTERNAL: "The coordinator failed to carry this out.",
}

#: Follows the last response of a stream.
_END = object()


def caller() -> Caller:
    """Who makes the call that is being served."""
    found = _caller.get(None)
    if found is None:
        raise Refusal(Code.CERTIFICATE_REQUIRED, "This call needs a participant's certificate.")
    return found


async def welcome() -> None:
    """Lets the client of the call that is being served know that it is."""
    await _welcome.get()()


class Boundary(grpc.aio.ServerInterceptor):
    """The interceptor of one port.

    Args:
        authenticate: None where the port takes callers without a certificate.
        refusal_of: asked at every message of a stream.
        outdated: called when a transaction refuses a caller that was let in here: somebody was revoked, and this
            process has not heard of it yet.
    """

    def __init__(
        self,
        authenticate: Authenticate | None,
        quotas: Quotas,
        metrics: Metrics,
        tracing: Tracing,
        refusal_of: RefusalOf,
        outdated: Callable[[], None],
    ) -> None:
        self._authenticate = authenticate
        self._refusal_of = refusal_of
        self._outdated = outdated
        #: Streams that are open, by caller.
        self._streams: defaultdict[str, set[_BoundaryCall]] = defaultdict(set)
        self._quotas = quotas
        self._metrics = metrics
        self._tracing = tracing
        #: Our handlers by method, each with the one that it stands in front of.
        self._handlers: dict[str, tuple[Any, Any]] = {}
        #: Calls that are open, by method, and by method and caller.
        self._open: Counter[str] = Counter()

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method not in METHODS:
            return None  # gRPC answers UNIMPLEMENTED, and reads nothing
        known = self._handlers.get(method)
        if known is None or known[0] is not handler:
            known = self._handlers[method] = handler, self._guarded(method, handler)
        return known[1]

    def _guarded(self, method: str, handler: Any) -> Any:
        """Our handler in front of a servicer's."""
        limits = METHODS[method]
        made: Any = grpc.stream_unary_rpc_method_handler
        if handler.response_streaming:
            made = grpc.stream_stream_rpc_method_handler
        return made(
            self._served(method, limits, handler),
            _tolerant(_PARSERS.get(method, handler.request_deserializer), limits.request_bytes),
            _metered(handler.response_serializer),
        )

    def end_streams(self, identity: str | None = None) -> None:
        """Ends the streams whose caller is one no longer, also those on which nothing happens.

        Args:
            identity: of this caller alone; None: of everybody.
        """
        found = self._streams.values() if identity is None else [self._streams.get(identity, set())]
        for call in [call for calls in found for call in calls]:
            if (refusal := call.refusal()) is not None:
                call.end(refusal)

    @contextmanager
    def _stream_of(self, call: "_BoundaryCall") -> Iterator[None]:
        """Holds one of the caller's streams, and charges the bytes of its messages, both ways, to the caller."""
        with self._quotas.stream(call.identity):
            _charge.set(partial(self._quotas.moved, call.identity))
            self._streams[call.identity].add(call)
            try:
                yield
            finally:
                self._streams[call.identity].discard(call)
                if not self._streams[call.identity]:
                    del self._streams[call.identity]
                _charge.set(None)

    @contextmanager
    def _place(self, method: str, limits: MethodLimits, identity: str) -> Iterator[None]:
        """Holds one of the method's places, and one of the caller's in it.

        Raises:
            Refusal: QUOTA_EXCEEDED.
        """
        name, own = method.removeprefix(_OWN), f"{method} {identity}"
        for_all = f"{limits.at_once} calls of {name} are open, which is the limit for all."
        for_one = f"{identity!r} has {limits.per_caller} calls of {name} open, which is the limit."
        with (
            held(self._open, method, limits.at_once, for_all),
            held(self._open, own, limits.per_caller, for_one),
        ):
            yield

    def _served(self, method: str, limits: MethodLimits, handler: Any) -> Any:
        """Lets a caller in, and has it answered by the servicer's `handler` within the method's limits."""

        async def served(_: Any, context: Any) -> Any:
            call = _BoundaryCall(self, method, context)
            clock = asyncio.timeout(limits.seconds)
            try:
                await call.admit(limits)
                with self._place(method, limits, call.identity):
                    async with clock:
                        return await self._answer(handler, limits, context, call)
            except asyncio.CancelledError:
                call.cancelled()
                raise
            except Exception as error:
                overdue = f"The call took more than {limits.seconds} seconds."
                await call.refuse(Refusal(Code.QUOTA_EXCEEDED, overdue) if clock.expired() else error)
            finally:
                call.leave()

        return served

    async def _answer(self, handler: Any, limits: MethodLimits, context: Any, call: "_BoundaryCall") -> Any:
        if not (handler.request_streaming or handler.response_streaming):
            return await handler.unary_unary(await _only_message(context), context)
        with self._stream_of(call):
            said = _Messages(call, limits) if handler.request_streaming else await _only_message(context)
            if handler.response_streaming:
                serve = handler.stream_stream or handler.unary_stream
                return await call.write_all(serve(said, context))
            with call.interruptible():
                return await handler.stream_unary(said, context)


class _BoundaryCall:
    """One call on its way through."""

    def __init__(self, boundary: Boundary, method: str, context: Any) -> None:
        self._boundary = boundary
        self._method = method.removeprefix(_OWN)
        self._context = context
        self._request_id = f"{_request_ids.getrandbits(64):016x}"
        self._began = time.perf_counter()
        self._status = grpc.StatusCode.OK
        self.identity = ""
        self._caller: Caller | None = None
        self._task: asyncio.Task[Any] | None = None
        self._ended: Refusal | None = None
        self._welcoming: asyncio.Task[None] | None = None
        structlog.contextvars.bind_contextvars(request=self._request_id, method=self._method)
        self._span = self._begin_span(method) if boundary._tracing.on else None

    def _begin_span(self, method: str) -> Any:
        service, _, name = method[1:].partition("/")
        return self._boundary._tracing.begin(
            self._method,
            carrier={k: v for k, v in self._context.invocation_metadata() or () if isinstance(v, str)},
            request_id=self._request_id,
            **{"rpc.system": "grpc", "rpc.service": service, "rpc.method": name},
        )

    async def admit(self, limits: MethodLimits) -> None:
        """Raises Refusal for a caller without a valid certificate or with too many calls."""
        _welcome.set(self.welcome)
        if self._boundary._authenticate is None:
            self.identity = _address(self._context.peer())
        else:
            found = self._caller = await self._boundary._authenticate(self._context)
            _caller.set(found)
            self.identity = found.participant_id
            structlog.contextvars.bind_contextvars(participant=found.participant_id)
            annotate(participant=found.participant_id)
        self.count(limits)

    def count(self, limits: MethodLimits) -> None:
        """Counts one request. Raises Refusal for too many in a short time."""
        self._boundary._quotas.request(self.identity)
        if limits.per_second < MAX_REQUESTS_PER_SECOND:
            self._boundary._quotas.request(f"{self.identity} {self._method}", limits.per_second)

    def refusal(self) -> Refusal | None:
        """Why the caller no longer counts as one; None where it still does, and on a port that takes everybody."""
        return None if self._caller is None else self._boundary._refusal_of(self._caller)

    def check_standing(self) -> None:
        """Raises what `refusal` says."""
        if (refusal := self.refusal()) is not None:
            raise refusal

    def end(self, refusal: Refusal) -> None:
        """Interrupts what is served; where the client is waited for to read, the stream ends after that."""
        if self._task is not None and self._ended is None:
            self._ended = refusal
            self._task.cancel()

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Inside, `end` has an effect at once."""
        self._task = asyncio.current_task()
        try:
            yield
        except asyncio.CancelledError:
            if self._ended is None:
                raise
            assert self._task is not None
            self._task.uncancel()
            raise self._ended from None
        finally:
            self._task = None

    async def read(self) -> Any:
        """The next message of the stream; grpc.aio.EOF at its end."""
        message = await self._context.read()
        self.check_standing()
        return message

    async def welcome(self) -> None:
        """Sends the initial metadata, once, and whole even if this is interrupted.

        Where the status is sent while gRPC still sends the initial metadata, or a first message with them, gRPC sends
        no status, and the client waits for ever.
        """
        if self._welcoming is None:
            self._welcoming = asyncio.ensure_future(self._context.send_initial_metadata(()))
        await asyncio.shield(self._welcoming)

    async def write_all(self, made: Any) -> None:
        """Writes the responses of a stream as they are made, for as long as the caller is one."""
        async with aclosing(made) as responses:
            while True:
                with self.interruptible():
                    response = await anext(responses, _END)
                if response is _END:
                    return
                await self.welcome()
                await self._context.write(response)
                self.check_standing()

    async def refuse(self, error: Exception) -> None:
        """Ends the call with the status that `error` stands for."""
        refusal = _short(refusal_for(error))
        if refusal.code is Code.CERTIFICATE_REVOKED and self._caller is not None and self.refusal() is None:
            self._boundary._outdated()
        refusal.request_id = self._request_id
        self._status = refusal.code.status
        self._boundary._metrics.refusals.labels(self._method, refusal.code.name).inc()
        fail(self._span, f"{refusal.code.name}: {refusal.message}")
        if refusal.code is Code.INTERNAL:
            log.error("call failed", reason=refusal.code.name, exc_info=error)
        elif not isinstance(error, Refusal | MechanismError | ModelFileError):
            # Everybody tries again and again: one line each, on a disk that is full perhaps.
            log.warning("call failed", reason=refusal.code.name, why=str(error))
        else:
            log.info("call refused", reason=refusal.code.name, message=refusal.message)
        if self._welcoming is not None:
            await asyncio.wait([self._welcoming])
        await self._context.abort_with_status(to_status(status_of(refusal)))

    def cancelled(self) -> None:
        """The client has closed the call."""
        self._status = grpc.StatusCode.CANCELLED

    def leave(self) -> None:
        seconds = time.perf_counter() - self._began
        self._boundary._metrics.rpc_seconds.labels(self._method, self._status.name).observe(seconds)
        end(self._span, **{"rpc.grpc.status_code": self._status.value[0]})


def refusal_for(error: Exception) -> Refusal:
    """The one translation from what goes wrong inside to what a client receives."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, FieldError):
        return Refusal(
            Code.FIELD_INVALID, f"{error}.", violations=[FieldViolation(error.field, error.expected)]
        )
    if isinstance(error, ModelFileError):
        return Refusal(
            Code.MODEL_INVALID,
            f"The model is refused: {error}.",
            violations=[FieldViolation("model", reason) for reason in error.reasons],
        )
    if isinstance(error, MechanismError):
        return Refusal(Code.FIELD_INVALID, f"{error}.")
    code = Code.STORAGE_FULL if isinstance(error, SpoolFull) else code_of(error)
    for kind, storage_code in _STORAGE.items():
        if isinstance(error, kind):
            code = storage_code
    return Refusal(code, _SENTENCES[code])


def _short(refusal: Refusal) -> Refusal:
    """A refusal that fits HTTP/2 headers, whatever it quotes of the caller's message."""
    violations = [
        FieldViolation(v.field[:MAX_REFUSAL_FIELD], v.description[:MAX_REFUSAL_SENTENCE])
        for v in refusal.violations[:MAX_REFUSAL_VIOLATIONS]
    ]
    return Refusal(
        refusal.code, refusal.message[:MAX_REFUSAL_SENTENCE], violations=violations, metadata=refusal.metadata
    )


def _tolerant(parse: Any, most: int) -> Any:
    """A parser of at most `most` bytes that hands on a refusal for what it cannot parse, so that the call ends with our
    own status: see `_parsed`."""

    def parsed(data: bytes) -> Any:
        if (charge := _charge.get()) is not None:
            charge(len(data))
        if len(data) > most:
            return Refusal(
                Code.TOO_LARGE, f"The message has {len(data)} bytes; this method takes at most {most}."
            )
        try:
            return parse(data)
        except Exception:  # whatever a parser makes of hostile bytes
            return Refusal(Code.FIELD_INVALID, "The message is not a protocol buffer of this method's type.")

    return parsed


def _metered(serialize: Any) -> Any:
    """A serializer that charges what it writes to the stream's caller; what is bytes already goes as it is."""

    def serialized(message: Any) -> bytes:
        data: bytes = message if isinstance(message, bytes) else serialize(message)
        if (charge := _charge.get()) is not None:
            charge(len(data))
        return data

    return serialized


def _parsed(message: Any) -> Any:
    """The message; raises the refusal that stands for one which could not be parsed."""
    if isinstance(message, Refusal):
        raise message
    return message


async def _only_message(context: Any) -> Any:
    """The message of a call that has one; more are never read.

    Raises:
        Refusal: FIELD_INVALID where none came, or none in time.
    """
    try:
        async with asyncio.timeout(MESSAGE_SECONDS):
            message = await context.read()
    except TimeoutError:
        raise Refusal(
            Code.QUOTA_EXCEEDED, f"The call's message did not come within {MESSAGE_SECONDS} seconds."
        ) from None
    if message is grpc.aio.EOF:
        raise Refusal(Code.FIELD_INVALID, "The call has no message; this method takes one.")
    return _parsed(message)


class _Messages:
    """The messages of a call, as they come, and as many as its method takes.

    Read from the context: gRPC's own iterator, like every generator, holds on to a message until it is asked for the
    next one, which is a frame for every stream.
    """

    def __init__(self, call: _BoundaryCall, limits: MethodLimits) -> None:
        self._call = call
        self._limits = limits
        self._read = 0

    def __aiter__(self) -> "_Messages":
        return self

    async def __anext__(self) -> Any:
        message = await self._call.read()
        if message is grpc.aio.EOF:
            raise StopAsyncIteration
        self._read += 1
        if (most := self._limits.messages) is not None:
            if self._read > most:
                raise Refusal(Code.TOO_LARGE, f"The call has more than {most} messages, which is the limit.")
            if self._read > 1:
                self._call.count(self._limits)
        return _parsed(message)


def _address(peer: str) -> str:
    """The host of gRPC's peer string "ipv4:127.0.0.1:40112", so that a port for each call is one identity.

    Of IPv6 the network, a /64: the holder of one address has all of them.
    """
    kind, _, rest = peer.partition(":")
    host = unquote(rest.rpartition(":")[0])
    if kind != "ipv6":
        return f"{kind}:{host}"
    try:
        address = ipaddress.IPv6Address(host.strip("[]"))
    except ValueError:
        return f"{kind}:{host}"
    if address.ipv4_mapped is not None:
        return f"ipv4:{address.ipv4_mapped}"
    return f"{kind}:{ipaddress.IPv6Network((int(address), 64), strict=False)}"
