"""OpenTelemetry spans for calls, transitions, scoring and settlement; nothing at all unless it is configured.

    [tracing]
    endpoint = "http://localhost:4317"     # an OTLP collector, gRPC

The libraries come with the extra fedpeer[tracing] and are imported only where an endpoint is set. Spans carry
`fedpeer.task`, `fedpeer.round`, `fedpeer.participant` and `fedpeer.request_id`, the id that the log and the client's
refusal name. A caller's `traceparent` (W3C Trace Context) is taken up.

The current span is kept in a context variable of ours: OpenTelemetry's own must be given back in the context that it
was set in, which a stream that its client cancels does not do.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from coordinator.config import TracingSection
from coordinator.errors import ServeError

_PREFIX = "fedpeer."

#: The span of what is being served or done; OpenTelemetry's type, absent where there is no tracing.
_current: ContextVar[Any] = ContextVar("span", default=None)


def annotate(**attributes: str | int) -> None:
    """Adds `fedpeer.` attributes to the current span, where there is one."""
    span = _current.get()
    if span is not None:
        _set(span, attributes)


class Tracing:
    """Makes spans by an OpenTelemetry tracer; without one it does nothing.

    Args:
        tracer: opentelemetry.trace.Tracer, or None.
        shutdown: sends what is not sent yet.
    """

    def __init__(self, tracer: Any = None, shutdown: Callable[[], None] | None = None) -> None:
        self._tracer = tracer
        self._shutdown = shutdown

    @property
    def on(self) -> bool:
        """Whether spans are made at all."""
        return self._tracer is not None

    def begin(self, name: str, *, carrier: Mapping[str, str] | None = None, **attributes: str | int) -> Any:
        """Opens a span and makes it the current one; `end` closes it. None where there is no tracing.

        Args:
            carrier: metadata of a call, which may name the caller's span; with it the span is a server's.
        """
        if self._tracer is None:
            return None
        from opentelemetry.trace import SpanKind, set_span_in_context

        parent, kind = None, SpanKind.INTERNAL
        if carrier is not None:
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

            parent, kind = TraceContextTextMapPropagator().extract(dict(carrier)), SpanKind.SERVER
        elif (above := _current.get()) is not None:
            parent = set_span_in_context(above)
        span = self._tracer.start_span(name, context=parent, kind=kind)
        _set(span, attributes)
        _current.set(span)
        return span

    @contextmanager
    def span(self, name: str, **attributes: str | int) -> Iterator[None]:
        """A span around a block; what the block raises is recorded."""
        above = _current.get()
        span = self.begin(name, carrier=None, **attributes)
        try:
            yield
        except BaseException as error:
            fail(span, f"{type(error).__name__}: {error}")
            raise
        finally:
            _current.set(above)
            end(span)

    def close(self) -> None:
        """Sends what is not sent yet; takes at most a few seconds where the collector is away."""
        if self._shutdown is not None:
            self._shutdown()


def fail(span: Any, why: str) -> None:
    """Marks a span as failed."""
    if span is not None:
        from opentelemetry.trace import Status, StatusCode

        span.set_status(Status(StatusCode.ERROR, why))


def end(span: Any, **attributes: str | int) -> None:
    """Closes a span that `Tracing.begin` opened."""
    if span is not None:
        _set(span, attributes)
        span.end()


def exporting(section: TracingSection, service: str) -> Tracing:
    """Tracing as configured: to an OTLP collector, or none.

    Raises:
        ServeError: an endpoint is set and the libraries are not installed.
    """
    if not section.endpoint:
        return Tracing()
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    except ImportError:
        raise ServeError(
            "tracing.endpoint is set, and OpenTelemetry is not installed; install fedpeer[tracing], or leave the "
            "endpoint empty"
        ) from None
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(section.ratio)),
        resource=Resource.create({"service.name": "fedpeer-coordinator", "service.instance.id": service}),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=section.endpoint)))
    return Tracing(provider.get_tracer("fedpeer.coordinator"), provider.shutdown)


def _set(span: Any, attributes: Mapping[str, str | int]) -> None:
    for name, value in attributes.items():
        # Names with a dot are conventions of OpenTelemetry; the others are ours.
        span.set_attribute(name if "." in name else _PREFIX + name, value)
