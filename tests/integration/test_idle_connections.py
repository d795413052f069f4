"""Connections that are opened and stall, in every phase, do not keep an honest participant out.

Real sockets: some say nothing, some stop in the middle of the TLS handshake, some finish it and say nothing, some
open HTTP/2 and nothing more, some begin an upload and send it byte by byte.
"""

import asyncio
import resource
import ssl
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from fedpeer.protocol.certificates import private_key_pem
from fedpeer.protocol.limits import HANDSHAKE_SECONDS
from tests.integration.market import Client, enrol, make_folder, model_like, open_task, running, task_config

#: The client's connection preface and an empty SETTINGS frame, RFC 9113 section 3.4.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])

#: A TLS record that announces 512 bytes of ClientHello and holds none.
HALF_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"

Writers = list[asyncio.StreamWriter]


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One HTTP/2 frame, RFC 9113 section 4.1."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def headers(path: str, stream: int = 1) -> bytes:
    """A HEADERS frame that opens a call; every field literal and not indexed, RFC 7541 section 6.2.2."""
    fields = {
        ":method": "POST", ":scheme": "https", ":path": path, ":authority": "localhost",
        "content-type": "application/grpc", "te": "trailers",
    }  # fmt: skip
    block = b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )
    return frame(1, 4, stream, block)


class Stallers:
    """Opens connections that stall, and keeps them."""

    def __init__(self, client: Client, folder: Path) -> None:
        self._host, _, port = client.address.rpartition(":")
        self._port = int(port)
        (folder / "key.pem").write_bytes(private_key_pem(client.key))
        (folder / "certificate.pem").write_bytes(client.certificate)
        self._tls = ssl.create_default_context(cadata=client.authority.decode())
        self._tls.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
        self._tls.set_alpn_protocols(["h2"])
        self.silent: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.writers: Writers = []
        self._dripping: list[asyncio.Task[None]] = []

    def kinds(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        return [self.says_nothing, self.half_a_hello, self.tls_only, self.http2_only, self.drips]

    async def says_nothing(self) -> None:
        self.silent.append(await self._open(None))

    async def half_a_hello(self) -> None:
        reader, writer = await self._open(None)
        writer.write(HALF_HELLO)
        self.silent.append((reader, writer))

    async def tls_only(self) -> None:
        self.silent.append(await self._open(self._tls))

    async def http2_only(self) -> None:
        _, writer = await self._open(self._tls)
        writer.write(PREFACE)

    async def drips(self) -> None:
        _, writer = await self._open(self._tls)
        writer.write(PREFACE + headers("/fedpeer.v1.Market/SubmitModel"))
        message = b"\x00" + (1000).to_bytes(4, "big") + b"\x0a" * 1000
        self._dripping.append(asyncio.create_task(self._drip(writer, message)))

    async def close(self) -> None:
        for task in self._dripping:
            task.cancel()
        await asyncio.gather(*self._dripping, return_exceptions=True)
        for writer in self.writers:
            writer.transport.abort()

    async def _open(self, tls: ssl.SSLContext | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        name = None if tls is None else "localhost"
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=tls, server_hostname=name)
        self.writers.append(writer)
        return reader, writer

    async def _drip(self, writer: asyncio.StreamWriter, message: bytes) -> None:
        """One byte in a DATA frame of its own, every now and then."""
        for byte in message:
            if writer.is_closing():
                return
            writer.write(frame(0, 0, 1, bytes([byte])))
            await asyncio.sleep(0.5)


async def stall(stack: AsyncExitStack, client: Client, folder: Path, count: int) -> Stallers:
    """Opens `count` connections, of each kind as many."""
    stallers = Stallers(client, folder)
    stack.push_async_callback(stallers.close)
    kinds = stallers.kinds()
    for start in range(0, count, 50):
        batch = range(start, min(count, start + 50))
        await asyncio.gather(*(kinds[number % len(kinds)]() for number in batch))
    assert len(stallers.writers) == count
    return stallers


async def honest_task(coordinator: Any) -> None:
    """Three participants enrol, claim, and are paid."""
    members = [await enrol(coordinator, name) for name in ("ann", "bob", "cyd")]
    await members[0].until("EFFORT")
    for client in members:
        await client.claim()
    await members[0].until("TRAINING")
    for number, client in enumerate(members):
        assert not (await client.submit(model_like(number), 1)).late
    await members[0].until("CLOSED")
    for client in members:
        await client.close()


async def beset(tmp_path: Path, count: int, *, until_closed: bool) -> None:
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path, schedule={"rounds": 1}))
    async with running(folder) as coordinator, AsyncExitStack() as stack:
        mallory = await enrol(coordinator, "mallory")
        stallers = await stall(stack, mallory, tmp_path, count)
        await honest_task(coordinator)
        if until_closed:
            # Those who have not come to HTTP/2 by then are let go.
            async with asyncio.timeout(HANDSHAKE_SECONDS + 120):
                for reader, _ in stallers.silent:
                    await ended(reader)
        await mallory.close()


async def ended(reader: asyncio.StreamReader) -> None:
    """Returns when the other side has closed the connection."""
    try:
        while await reader.read(1024):
            pass
    except OSError:
        pass  # reset is closed as well


async def test_a_hundred_stalled_connections_do_not_keep_anyone_out(tmp_path: Path) -> None:
    await beset(tmp_path, 100, until_closed=False)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_thousand_stalled_connections_do_not_keep_anyone_out(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096  # both ends of each connection are in this process
    if soft < wanted:
        if hard < wanted:
            pytest.skip(f"needs {wanted} open files, the system allows {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    began = time.monotonic()
    await beset(tmp_path, 1_000, until_closed=True)
    print(f"a task beside 1,000 stalled connections: {time.monotonic() - began:.0f} s")  # noqa: T201 - for -s
