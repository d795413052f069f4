"""Every method of every port has limits, and they hold: against messages, streams, connections and silence.

The last tests set a thousand hostile streams on the public port of a real process and look at its memory.
"""

import asyncio
import json
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import coordinator.boundary
import coordinator.control_socket
import coordinator.scraping
import coordinator.server
from coordinator.boundary import _address
from coordinator.control_socket import ControlSocket, notify
from coordinator.folder import StateFolder
from coordinator.scraping import MetricsServer
from coordinator.server import Coordinator
from coordinator.services.market_servicer import MarketServicer
from fedpeer.protocol.certificates import new_key, signing_request
from fedpeer.protocol.errors import Code, Refusal, refusal_of
from fedpeer.protocol.limits import FRAME_BYTES, MARKET_PORT, METHODS, PUBLIC_PORT
from fedpeer.protocol.model_file import encode_model
from fedpeer.v1 import enrolment_pb2, ledger_pb2, market_pb2
from tests.integration.market import (
    Client,
    close,
    enrol,
    in_training,
    invite,
    make_folder,
    open_task,
    refusal,
    refused,
    running,
    task_config,
)
from tests.integration.test_idle_connections import PREFACE, ended, frame, headers

WATCH = "/grpc.health.v1.Health/Watch"
CHECK = "/grpc.health.v1.Health/Check"
LIST = "/grpc.health.v1.Health/List"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
FETCH = "/fedpeer.v1.Market/FetchModel"
ENTRIES = "/fedpeer.v1.Ledger/GetEntries"

#: Methods of the market port, and of the public one.
MARKET = [method for method in METHODS if method.startswith("/fedpeer.v1.")]
PUBLIC = [method for method in METHODS if not method.startswith("/fedpeer.v1.Market")]


def raw(data: bytes) -> bytes:
    return data


def field(number: int, data: bytes) -> bytes:
    """A length-delimited field of a protocol buffer."""
    size, out = len(data), bytearray([number << 3 | 2])
    while size > 127:
        out.append(size & 127 | 128)
        size >>= 7
    return bytes([*out, size]) + data


def padded(size: int) -> bytes:
    """A message of `size` bytes that every method parses: it has a field that none of them knows."""
    short = field(2047 >> 7, b"x" * size)
    return field(15, b"x" * (size - (len(short) - size)))


@asynccontextmanager
async def public(service: Coordinator | tuple[Path, str], **options: Any) -> AsyncIterator[grpc.aio.Channel]:
    if isinstance(service, Coordinator):
        folder, address = service.folder.path, service.public_address
    else:
        folder, address = service
    credentials = grpc.ssl_channel_credentials((folder / "authority.pem").read_bytes())
    own = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
    async with grpc.aio.secure_channel(address, credentials, own, **options) as channel:
        yield channel


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    return make_folder(tmp_path / "state")


def limited(monkeypatch: pytest.MonkeyPatch, method: str, **changes: Any) -> None:
    monkeypatch.setitem(METHODS, method, replace(METHODS[method], **changes))


# A crowd


async def test_calls_of_a_crowd_wait_until_they_are_looked_at_and_none_is_cancelled() -> None:
    server = grpc.aio.server(options=coordinator.server._options(MARKET_PORT, shared=False))

    async def answer(request: bytes, context: Any) -> bytes:
        return b""

    method = grpc.unary_unary_rpc_method_handler(answer, raw, raw)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.Service", {"Method": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    streams = range(1, 2 * MARKET_PORT.streams, 2)
    calls = b"".join(headers("/a.Service/Method", n) + frame(0, 1, n, bytes(5)) for n in streams)
    # More than gRPC lets wait by itself. The event loop stands still meanwhile, as under much work: none is accepted.
    lines = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]
    for line in lines:
        line.sendall(PREFACE + calls + frame(6, 0, 0, bytes(8)))
    heard = [growing(line) for line in lines]
    for each in heard:
        frames = next(frames for frames in each if (6, 1, 0) in frames)  # all before the ping has been read
        assert not any(kind == 0 for kind, _, _ in frames), "the loop stands still"

    def answered(frames: Iterator[list[tuple[int, int, int]]]) -> int:
        """How many calls have a message in their answer, once all have ended, by headers or by a reset."""
        for found in frames:
            ended = {n for kind, flags, n in found if kind == 3 or (kind == 1 and flags & 1)}
            if len(ended) == len(streams):
                return sum(kind == 0 for kind, _, _ in found)
        raise AssertionError("the connection has ended")

    assert sum(await asyncio.gather(*(asyncio.to_thread(answered, each) for each in heard))) == 50 * len(
        streams
    )
    for line in lines:
        line.close()
    await server.stop(0)


def growing(line: socket.socket) -> Iterator[list[tuple[int, int, int]]]:
    """Kind, flags and stream of the HTTP/2 frames that have come, whenever some more have."""
    data, frames = b"", []
    while more := line.recv(65536):
        data += more
        while len(data) >= 9 and len(data) >= (end := 9 + int.from_bytes(data[:3], "big")):
            frames.append((data[3], data[4], int.from_bytes(data[5:9], "big")))
            data = data[end:]
        yield list(frames)


# The table


async def test_every_method_of_every_server_has_its_line(
    folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: set[str] = set()
    make = grpc.aio.server

    def recording(*arguments: Any, **options: Any) -> Any:
        server = make(*arguments, **options)
        add = server.add_generic_rpc_handlers

        def added(handlers: Any) -> None:
            for handler in handlers:
                served.update(handler._method_handlers)
            add(handlers)

        monkeypatch.setattr(server, "add_generic_rpc_handlers", added, raising=False)
        return server

    monkeypatch.setattr(grpc.aio, "server", recording)
    async with running(folder) as service, public(service) as channel:
        described = await reflected(channel)
    assert len(served) > 15
    assert described - served == set()
    assert served - set(METHODS) == set(), (
        "methods without limits: add them to fedpeer.protocol.limits.METHODS"
    )
    assert set(METHODS) - served <= {LIST}, "limits of methods that nobody serves"


async def reflected(channel: grpc.aio.Channel) -> set[str]:
    """Every method of the services that reflection names and that the public port has."""
    from google.protobuf import descriptor_pb2

    def ask(**what: str) -> Any:
        return reflection_pb2.ServerReflectionRequest(**what)  # type: ignore[arg-type]

    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(iter([ask(list_services="")]))
    [answer] = [response async for response in call]
    names = [service.name for service in answer.list_services_response.service]
    assert len(names) == 5
    found = set()
    call = stub.ServerReflectionInfo(iter([ask(file_containing_symbol=name) for name in names]))
    async for response in call:
        for data in response.file_descriptor_response.file_descriptor_proto:
            file = descriptor_pb2.FileDescriptorProto.FromString(data)
            for service in file.service:
                found |= {f"/{file.package}.{service.name}/{method.name}" for method in service.method}
    return found


async def test_a_method_without_a_line_is_not_served(
    folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(METHODS, CHECK)
    async with running(folder) as service, public(service) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]


async def answered(channel: grpc.aio.Channel, method: str, message: bytes, extra: int = 0) -> None:
    """Makes a call of any kind with the message, and `extra` times the message more."""

    async def messages() -> AsyncIterator[bytes]:
        for _ in range(1 + extra):
            yield message

    call = channel.stream_stream(method, raw, raw)(messages())
    try:
        async with asyncio.timeout(30):
            async for _ in call:
                break
    finally:
        call.cancel()


async def test_every_method_takes_its_size_and_not_a_byte_more(folder: StateFolder) -> None:
    async with running(folder) as service, public(service) as channel:
        client = await enrol(service, "ann")
        for caller, methods in ((client.channel, MARKET), (channel, PUBLIC)):
            for method in methods:
                if method == LIST:
                    continue
                most = METHODS[method].request_bytes
                with pytest.raises(grpc.RpcError) as caught:
                    await answered(caller, method, padded(most + 1))
                assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, method  # type: ignore[attr-defined]
                found = await code_of(answered(caller, method, padded(most)))
                assert found not in (Code.TOO_LARGE, Code.INTERNAL), method
        await client.close()


async def code_of(call: Any) -> Code | None:
    """What a call is refused with, None where it is answered."""
    try:
        await call
    except grpc.RpcError as error:
        found = refusal_of(error)
        if found is None:
            raise
        return found.code
    return None


async def test_no_message_of_the_public_port_needs_memory_whatever_it_announces(folder: StateFolder) -> None:
    """Beyond the port's size gRPC refuses by the announced length, and stops to decompress there."""
    async with running(folder) as service:
        for options in ({}, {"compression": grpc.Compression.Gzip}):
            async with public(service, **options) as channel:
                for method in (CHECK, "/fedpeer.v1.Enrolment/Enroll", REFLECTION):
                    with pytest.raises(grpc.RpcError) as caught:
                        await answered(channel, method, field(1, b"\0" * (8 << 20)))
                    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]


async def test_headers_have_a_limit(folder: StateFolder) -> None:
    async with running(folder) as service, public(service) as channel:
        large = (("x-large", "x" * PUBLIC_PORT.metadata_bytes),)
        with pytest.raises(grpc.RpcError) as caught:
            await channel.unary_unary(CHECK, raw, raw)(b"", metadata=large)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
        await channel.unary_unary(CHECK, raw, raw)(b"", metadata=(("x-small", "x" * 1000),))


async def test_connections_beyond_the_limit_are_closed(
    folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator.server, "PUBLIC_PORT", replace(PUBLIC_PORT, connections=3))
    async with running(folder) as service:
        host, _, port = service.public_address.rpartition(":")
        pairs = [await asyncio.open_connection(host, int(port)) for _ in range(6)]
        done, waiting = await asyncio.wait(
            [asyncio.create_task(ended(reader)) for reader, _ in pairs[3:]], timeout=10
        )
        assert (len(done), len(waiting)) == (3, 0)
        for _, writer in pairs:
            writer.transport.abort()


# Places and times


async def test_watching_the_health_of_an_unknown_or_long_name_is_refused(folder: StateFolder) -> None:
    async with running(folder) as service, public(service) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("nobody", "x" * 200):
            asked = health_pb2.HealthCheckRequest(service=name)
            assert (await refusal(stub.Check(asked))).code is Code.SERVICE_UNKNOWN
            assert (await refusal(first(stub.Watch(asked)))).code is Code.SERVICE_UNKNOWN
        long = health_pb2.HealthCheckRequest(service="x" * 2_000)
        assert (await refusal(first(stub.Watch(long)))).code is Code.TOO_LARGE
        for name in ("", "fedpeer.v1.Market"):
            watch = stub.Watch(health_pb2.HealthCheckRequest(service=name))
            assert (await first(watch)).status == health_pb2.HealthCheckResponse.SERVING
            watch.cancel()


async def first(call: Any) -> Any:
    return await anext(aiter(call))


async def test_watchers_are_as_many_as_the_table_says_and_a_place_comes_free(
    folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(folder) as service, public(service) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watches = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(METHODS[WATCH].per_caller)]
        for watch in watches:
            await first(watch)
        found = await refused(first(stub.Watch(health_pb2.HealthCheckRequest())), Code.QUOTA_EXCEEDED)
        assert "Health/Watch" in found.message
        await stub.Check(health_pb2.HealthCheckRequest())  # a probe gets through
        watches[0].cancel()
        async with asyncio.timeout(20):
            while True:  # the coordinator hears of it in a moment
                again = stub.Watch(health_pb2.HealthCheckRequest())
                try:
                    await first(again)
                    break
                except grpc.RpcError:
                    continue
    limited(monkeypatch, WATCH, at_once=1)
    async with running(folder) as service, public(service) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        await first(stub.Watch(health_pb2.HealthCheckRequest()))
        found = await refused(first(stub.Watch(health_pb2.HealthCheckRequest())), Code.QUOTA_EXCEEDED)
        assert "for all" in found.message


async def test_a_stream_ends_after_its_time(folder: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, WATCH, seconds=0.2)
    limited(monkeypatch, REFLECTION, seconds=0.2)
    async with running(folder) as service, public(service) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        await first(watch)
        assert "0.2 seconds" in (await refused(first(watch), Code.QUOTA_EXCEEDED)).message
        silent = channel.stream_stream(REFLECTION, raw, raw)()
        assert "0.2 seconds" in (await refused(first(silent), Code.QUOTA_EXCEEDED)).message


async def test_a_stream_whose_first_message_is_not_read_ends_after_its_time(
    tmp_path: Path, folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "initial.safetensors").write_bytes(encode_model({"w": np.zeros(4 << 20, np.float32)}))
    open_task(folder, task_config(tmp_path))
    limited(monkeypatch, FETCH, seconds=0.2)
    async with running(folder) as service:
        members = await in_training(service, ("ann", "ben", "cho"))
        await members[0].close()
        members[0].options = ("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 64 << 10)
        fetch = members[0].market.FetchModel(
            market_pb2.FetchModelRequest(task_id="task", round=1, max_frame_bytes=FRAME_BYTES)
        )
        refusals = service.metrics.refusals.labels("Market/FetchModel", "QUOTA_EXCEEDED")

        async def rest() -> None:
            async for _ in fetch:
                pass

        async with asyncio.timeout(30):
            while not refusals._value.get():  # the first message is on its way until then
                await asyncio.sleep(0.01)
            assert "0.2 seconds" in (await refused(rest(), Code.QUOTA_EXCEEDED)).message
        await close(members)


async def test_a_call_that_is_refused_while_it_is_welcomed_ends(
    folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    welcoming = []

    async def submit(*_: Any) -> None:
        welcoming.append(asyncio.ensure_future(coordinator.boundary.welcome()))
        for _ in range(2):  # gRPC has been asked to send the initial metadata, and has not said that it did
            await asyncio.sleep(0)
        assert not welcoming[-1].done()
        raise Refusal(Code.FIELD_INVALID, "no")

    monkeypatch.setattr(MarketServicer, "SubmitModel", submit)
    async with running(folder) as service:
        client = await enrol(service, "ann")
        async with asyncio.timeout(30):
            await refused(client.upload([]), Code.FIELD_INVALID)
        await asyncio.gather(*welcoming)
        await client.close()


async def test_a_call_whose_message_does_not_come_ends(
    folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator.boundary, "MESSAGE_SECONDS", 0.2)
    async with running(folder) as service, public(service) as channel:
        client = await enrol(service, "ann")
        for caller, method in (
            (channel, CHECK),
            (channel, WATCH),
            (channel, ENTRIES),
            (client.channel, "/fedpeer.v1.Market/SubmitEffort"),
        ):
            silent = caller.stream_stream(method, raw, raw)()
            assert "did not come" in (await refused(first(silent), Code.QUOTA_EXCEEDED)).message
            empty = caller.stream_stream(method, raw, raw)()
            await empty.done_writing()
            assert "no message" in (await refused(first(empty), Code.FIELD_INVALID)).message
        await client.close()


async def test_more_messages_than_one_are_not_read(folder: StateFolder) -> None:
    async with running(folder) as service, public(service) as channel:
        await answered(channel, CHECK, b"", extra=1_000)


async def test_questions_to_reflection_are_counted(
    folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = reflection_pb2.ServerReflectionRequest(list_services="")

    async def answers(channel: grpc.aio.Channel, count: int) -> int:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        return len([r async for r in stub.ServerReflectionInfo(iter([asked] * count))])

    limited(monkeypatch, REFLECTION, messages=5)
    async with running(folder) as service, public(service) as channel:
        assert await answers(channel, 5) == 5
        assert "5 messages" in (await refused(answers(channel, 6), Code.TOO_LARGE)).message
    limited(monkeypatch, REFLECTION, messages=100, per_second=1)  # ten at once
    async with running(folder) as service, public(service) as channel:
        await refused(answers(channel, 11), Code.QUOTA_EXCEEDED)


async def test_a_participant_has_as_many_calls_as_the_table_says(
    folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And others are not touched by it."""
    upload = "/fedpeer.v1.Market/SubmitModel"
    limited(monkeypatch, upload, per_caller=2)
    async with running(folder) as service:
        ann, bob = [await enrol(service, name) for name in ("ann", "bob")]
        held = [ann.channel.stream_stream(upload, raw, raw)() for _ in range(2)]

        async def tried(client: Client) -> Code:
            return (
                await refusal(first(client.channel.stream_stream(upload, raw, raw)(iter([b"\xff"]))))
            ).code

        async with asyncio.timeout(20):
            while await tried(ann) is not Code.QUOTA_EXCEEDED:
                pass  # the coordinator hears of them in a moment
            assert await tried(bob) is Code.FIELD_INVALID
            for call in held:
                call.cancel()
            while await tried(ann) is Code.QUOTA_EXCEEDED:
                pass
        for client in (ann, bob):
            await client.close()


@pytest.mark.parametrize(
    ("peer", "identity"),
    [
        ("ipv4:127.0.0.1:40112", "ipv4:127.0.0.1"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:40112", "ipv6:2001:db8:1:2::/64"),
        ("ipv6:[2001:db8:1:2:9::1]:1", "ipv6:2001:db8:1:2::/64"),
        ("ipv6:%5B::ffff:192.0.2.7%5D:1", "ipv4:192.0.2.7"),
        ("unix:/run/socket", "unix:"),
    ],
)
def test_all_addresses_of_one_network_are_one_caller(peer: str, identity: str) -> None:
    assert _address(peer) == identity


async def test_a_watcher_that_never_reads_holds_nobody_up(folder: StateFolder) -> None:
    """Its HTTP/2 windows are closed, so that nothing can be sent to it; the service stops all the same."""
    tls = ssl.create_default_context(cadata=(folder.path / "authority.pem").read_text())
    tls.set_alpn_protocols(["h2"])
    async with running(folder) as service, public(service) as channel:
        host, _, port = service.public_address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=tls, server_hostname="localhost")
        closed = frame(4, 0, 0, (4).to_bytes(2, "big") + (0).to_bytes(4, "big"))  # INITIAL_WINDOW_SIZE = 0
        writer.write(PREFACE[:24] + closed + headers(WATCH) + frame(0, 1, 1, b"\0\0\0\0\0"))
        await writer.drain()
        await reader.read(64)
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await first(watch)).status == health_pb2.HealthCheckResponse.SERVING
        async with asyncio.timeout(30):
            service._health.set(health_pb2.HealthCheckResponse.NOT_SERVING)
            assert (await first(watch)).status == health_pb2.HealthCheckResponse.NOT_SERVING
            await service.stop(0)
        writer.transport.abort()


# Ports of this machine


async def test_the_metrics_page_keeps_no_connection_for_ever_and_not_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from prometheus_client import CollectorRegistry, Counter

    limits = replace(coordinator.scraping.METRICS_PORT, connections=3, seconds=1)
    monkeypatch.setattr(coordinator.scraping, "METRICS_PORT", limits)
    registry = CollectorRegistry()
    Counter("things", "Things.", registry=registry).inc()
    server = MetricsServer(registry)
    port = await server.start("127.0.0.1", 0)
    try:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        url = f"http://127.0.0.1:{port}/metrics"
        page = await asyncio.to_thread(lambda: direct.open(url).read())
        assert b"things_total 1.0" in page
        pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(6)]
        for _, writer in pairs:
            writer.write(b"GET /metrics HTTP/1.1\r\nX: ")
        async with asyncio.timeout(20):  # three at once, the rest after their second
            for reader, _ in pairs:
                await ended(reader)
        for _, writer in pairs:
            writer.transport.abort()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\n" + b"X: " + b"x" * 60_000 + b"\r\n\r\n")
        assert b"things_total" not in await whole(reader)
        writer.transport.abort()
        page = await asyncio.to_thread(lambda: direct.open(url).read())
        assert b"things_total 1.0" in page
    finally:
        server.close()


async def whole(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def test_the_control_socket_takes_a_word_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = replace(coordinator.control_socket.CONTROL_SOCKET, connections=2, seconds=1)
    monkeypatch.setattr(coordinator.control_socket, "CONTROL_SOCKET", limits)
    answered = 0

    async def answer() -> None:
        nonlocal answered
        answered += 1

    control = ControlSocket(tmp_path / "control", answer, dict, lambda: {"training": {}, "shadows": {}})
    await control.start()
    try:
        async with asyncio.timeout(20):
            for said in (b"x" * 100_000, b"", b"ri"):  # too much, nothing, half a word
                reader, writer = await asyncio.open_unix_connection(tmp_path / "control")
                writer.write(said)
                await ended(reader)
                writer.transport.abort()
            pairs = [await asyncio.open_unix_connection(tmp_path / "control") for _ in range(5)]
            for reader, _ in pairs:
                await ended(reader)
        assert answered == 0
        assert await asyncio.to_thread(notify, tmp_path / "control") == {}
        assert answered == 1
        for _, writer in pairs:
            writer.transport.abort()
    finally:
        await control.stop()


# Memory

#: What the public port may make a process keep, bytes. Some 35 MiB were seen for the streams below; without limits 384
#: of the first kind take a gigabyte and more.
PUBLIC_BYTES = 120 << 20


@contextmanager
def process(folder: StateFolder) -> Iterator[tuple[int, str]]:
    """A process that serves the folder; its id and its public address."""
    command = [
        sys.executable, "-m", "fedpeer", "coordinator", "serve", "--json", "--state", str(folder.path),
    ]  # fmt: skip
    with (folder.path / "log").open("ab") as log:
        served = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert served.stdout is not None
    try:
        line = served.stdout.readline()
        assert line, (folder.path / "log").read_text()
        yield served.pid, json.loads(line)["addresses"]["public"]
    finally:
        served.kill()
        served.wait()


def memory(pid: int, what: str) -> int:
    """VmRSS, or VmHWM, its peak: bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) << 10
    raise AssertionError(what)


class Hostile:
    """Streams of every kind that costs its sender little, none of which is read."""

    def __init__(self, channels: list[grpc.aio.Channel]) -> None:
        self._channels = channels
        self._calls: list[Any] = []
        self._tasks: list[asyncio.Task[None]] = []

    def open(self, count: int) -> None:
        kinds = [
            self.long_name,
            self.own_name,
            self.questions,
            self.silent,
            self.entries,
            self.unknown,
            self.many,
        ]
        for number in range(count):
            channel = self._channels[number % len(self._channels)]
            kinds[number % len(kinds)](channel, number)

    def long_name(self, channel: grpc.aio.Channel, number: int) -> None:
        self._calls.append(
            channel.unary_stream(WATCH, raw, raw)(field(1, b"%06d" % number + b"x" * (2 << 20)))
        )

    def own_name(self, channel: grpc.aio.Channel, number: int) -> None:
        self._calls.append(channel.unary_stream(WATCH, raw, raw)(field(1, b"%06d" % number + b"x" * 8_000)))

    def questions(self, channel: grpc.aio.Channel, number: int) -> None:
        self._flood(channel.stream_stream(REFLECTION, raw, raw)(), field(4, b"%06d" % number + b"y" * 450))

    def silent(self, channel: grpc.aio.Channel, number: int) -> None:
        self._calls.append(channel.stream_stream(CHECK, raw, raw)(metadata=(("x", "z" * 6_000),)))

    def entries(self, channel: grpc.aio.Channel, number: int) -> None:
        request = ledger_pb2.GetEntriesRequest().SerializeToString()
        self._calls.append(channel.unary_stream(ENTRIES, raw, raw)(request))

    def unknown(self, channel: grpc.aio.Channel, number: int) -> None:
        self._calls.append(channel.unary_unary(f"/nobody/Knows{number}", raw, raw)(b"\0" * (4 << 20)))

    def many(self, channel: grpc.aio.Channel, number: int) -> None:
        self._flood(channel.stream_stream(CHECK, raw, raw)(), b"\0" * 15_000)

    def _flood(self, call: Any, message: bytes) -> None:
        async def flood() -> None:
            try:
                for _ in range(500):
                    await call.write(message)
            except (grpc.RpcError, asyncio.InvalidStateError):
                pass  # the coordinator has ended the call

        self._calls.append(call)
        self._tasks.append(asyncio.create_task(flood()))

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def beset(tmp_path: Path, folder: StateFolder, count: int, connections: int) -> None:
    # A ledger of some 300 kB to ask for.
    await asyncio.to_thread(
        open_task, folder, task_config(tmp_path, schedule={"rounds": 1_000, "quorum": 3, "capacity": 3})
    )
    token = await asyncio.to_thread(invite, folder, "ann")
    with process(folder) as (pid, address):
        credentials = grpc.ssl_channel_credentials((folder.path / "authority.pem").read_bytes())
        before = memory(pid, "VmRSS")
        channels = [
            grpc.aio.secure_channel(
                address,
                credentials,
                [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)],
            )
            for _ in range(connections)
        ]
        hostile = Hostile(channels)
        hostile.open(count)
        # An honest client gets through beside them, by a connection of its own.
        async with public((folder.path, address)) as channel:
            async with asyncio.timeout(120):
                await enrolled(channel, token)
        grown = memory(pid, "VmHWM") - before
        await hostile.end()
        for channel in channels:
            await channel.close()
    print(f"{count} hostile streams: {grown / 2**20:.0f} MiB more at the peak")  # noqa: T201 - for -s
    assert grown < PUBLIC_BYTES


async def enrolled(channel: grpc.aio.Channel, token: str) -> None:
    """Enrols; an address that has asked too often waits."""
    request = enrolment_pb2.EnrollRequest(
        participant_id="ann", token=token, certificate_signing_request=signing_request("ann", new_key())
    )
    enrol_ = channel.unary_unary(
        "/fedpeer.v1.Enrolment/Enroll",
        enrolment_pb2.EnrollRequest.SerializeToString,
        enrolment_pb2.EnrollResponse.FromString,
    )
    while (code := await code_of(enrol_(request))) is not None:
        assert code is Code.QUOTA_EXCEEDED


async def test_a_thousand_hostile_streams_need_little_memory(tmp_path: Path, folder: StateFolder) -> None:
    await beset(tmp_path, folder, 1_000, 63)
