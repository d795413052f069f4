"""Spans of a round, by OpenTelemetry's own exporter to memory."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from coordinator.config import TracingSection
from coordinator.server import Coordinator
from coordinator.tracing import Tracing, annotate, exporting
from fedpeer.protocol.errors import Code
from fedpeer.v1 import market_pb2
from tests.integration.market import enrol, make_folder, model_like, open_task, refused, task_config

pytest.importorskip("opentelemetry.sdk", reason="needs OpenTelemetry: install fedpeer[tracing]")

#: A caller's span, as W3C Trace Context writes it.
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def recorded() -> tuple[Tracing, Any]:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracing(provider.get_tracer("test")), exporter


async def test_a_round_leaves_spans_with_task_round_participant_and_request(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path, schedule={"rounds": 1}))
    tracing, exporter = recorded()
    coordinator = Coordinator(folder, tracing=tracing)
    await coordinator.start()
    try:
        members = [await enrol(coordinator, name) for name in ("ann", "bob", "cyd")]
        await members[0].until("EFFORT")
        for client in members:
            await client.claim()
        await members[0].until("TRAINING")
        refusal = await refused(members[0].submit(model_like(0), 7), Code.WRONG_ROUND)
        request = market_pb2.GetTaskRequest(task_id="task")
        await members[1].market.GetTask(request, metadata=(("traceparent", PARENT),))
        for number, client in enumerate(members):
            await client.submit(model_like(number), 1)
        await members[0].until("CLOSED")
        for client in members:
            await client.close()
    finally:
        await coordinator.stop(0)
    spans = exporter.get_finished_spans()

    def named(name: str) -> list[Any]:
        return [span for span in spans if span.name == name]

    steps = [span.name.split()[1] for span in spans if span.name.startswith("transition")]
    assert steps == ["BeginEffort", "Select", "OpenRound", "CloseRound", "Settle", "Close"]
    [settle], [scoring], [settlement] = named("transition Settle"), named("scoring"), named("settlement")
    for inner in (scoring, settlement):
        assert inner.parent.span_id == settle.context.span_id
        assert (inner.attributes["fedpeer.task"], inner.attributes["fedpeer.round"]) == ("task", 1)
    assert settlement.attributes["fedpeer.paid_micro"] > 0
    uploads = {span.attributes["fedpeer.request_id"]: span for span in named("Market/SubmitModel")}
    assert len(uploads) == 4
    wrong = uploads[refusal.request_id]
    assert wrong.attributes["rpc.grpc.status_code"] == 9
    assert wrong.attributes["fedpeer.participant"] == "ann"
    assert wrong.attributes["fedpeer.task"] == "task"
    assert "WRONG_ROUND" in wrong.status.description
    assert {s.attributes["fedpeer.participant"] for s in named("Market/SubmitEffort")} == {
        "ann",
        "bob",
        "cyd",
    }
    [called] = [s for s in named("Market/GetTask") if s.parent is not None]
    assert format(called.context.trace_id, "032x") == PARENT.split("-")[1]


def test_without_an_endpoint_there_is_no_tracing() -> None:
    tracing = exporting(TracingSection(), "test")
    assert tracing.begin("nothing", carrier={}) is None
    with tracing.span("nothing", task="task"):
        annotate(round=1)
    tracing.close()


def one_span(endpoint: str) -> None:
    tracing = exporting(TracingSection(endpoint=endpoint), "test")
    assert tracing.on
    with tracing.span("something", task="task"):
        annotate(round=1)
    tracing.close()


def test_an_endpoint_gets_the_spans_by_the_time_that_tracing_is_closed() -> None:
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

    exported = []

    class Collector(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the RPC's name
            exported.append(request)
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Collector(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    one_span(f"http://127.0.0.1:{port}")
    server.stop(None)
    [request] = exported
    [resource] = request.resource_spans
    about = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
    assert (about["service.name"], about["service.instance.id"]) == ("fedpeer-coordinator", "test")
    [span] = resource.scope_spans[0].spans
    assert span.name == "something"
    values = {pair.key: pair.value for pair in span.attributes}
    assert values["fedpeer.task"].string_value == "task"
    assert values["fedpeer.round"].int_value == 1


def test_an_endpoint_where_nobody_listens_keeps_nobody_from_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    one_span("http://127.0.0.1:1")
