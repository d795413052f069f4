"""Uploads over mutual TLS, against a bare gRPC stream of the same frames that only counts bytes.

    python -m benchmarks.uploads [--megabytes 44.7] [--repeat 3] [--crowd N ...] [--folder DIR] [--lean]

The coordinator hashes, spools, checks every value, makes the file durable and writes two ledger entries; the bare
server adds lengths. Both run in processes of their own, clients in this one with the same certificates and
connections that are open already. The figure is the ratio of the throughputs; 1 would mean that all of that costs
nothing. The bare stream's messages are gRPC's usual ones, made, written and parsed by the protocol-buffer library;
fedpeer's are written and read as the SDK and the coordinator do, with fewer copies. `--lean` has the bare stream's
clients write theirs in the SDK's way, too.

A durable file is no faster than its disk, so what the disk takes for the same bytes is measured beside it;
`--folder /dev/shm` leaves it out. Memory: the coordinator's peak during the uploads of one crowd.
"""

import argparse
import asyncio
import hashlib
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from benchmarks.serving import (
    cpu_seconds,
    enrolled,
    environment,
    forget_peak,
    model,
    prepared,
    process,
    resident,
    serving,
)
from fedpeer.allocator import keep_pages
from fedpeer.protocol.certificates import private_key_pem
from fedpeer.protocol.frames import upload_message
from fedpeer.protocol.limits import FRAME_BYTES
from fedpeer.v1 import market_pb2
from mechanism.terms import MIN_QUORUM
from participant.steps import SUBMIT_MODEL
from tests.integration.market import Client, signed

#: Participants that upload at once; every round has room for each crowd's models.
CROWDS = (1, 10, 20)

BARE = "/benchmark.Bare/Count"


async def count_bytes(folder: Path) -> None:
    """The bare server: mutual TLS with the coordinator's certificates, adds up lengths."""

    async def count(requests: AsyncIterator[market_pb2.SubmitModelRequest], _: Any) -> market_pb2.Receipt:
        total = 0
        async for message in requests:
            total += len(message.frame.data)
        return market_pb2.Receipt(ledger_index=total)

    handler = grpc.stream_unary_rpc_method_handler(
        count, market_pb2.SubmitModelRequest.FromString, market_pb2.Receipt.SerializeToString
    )
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 2 * FRAME_BYTES)])
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("benchmark.Bare", {"Count": handler})]
    )
    pair = [((folder / "server.key").read_bytes(), (folder / "server.pem").read_bytes())]
    credentials = grpc.ssl_server_credentials(pair, (folder / "authority.pem").read_bytes(), True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


async def messages(content: bytes) -> AsyncIterator[market_pb2.SubmitModelRequest]:
    for start in range(0, len(content), FRAME_BYTES):
        yield market_pb2.SubmitModelRequest(
            frame=market_pb2.ModelFrame(offset=start, data=content[start : start + FRAME_BYTES])
        )


def bare_channel(client: Client, port: int) -> grpc.aio.Channel:
    credentials = grpc.ssl_channel_credentials(
        client.authority, private_key_pem(client.key), client.certificate
    )
    return grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials)


async def bare(channel: grpc.aio.Channel, content: bytes, lean: bool = False) -> None:
    """As generated code does; `lean`: the messages written as in `submit`."""
    if lean:
        call = channel.stream_unary(BARE, None, market_pb2.Receipt.FromString)()
        await send(call, content)
        receipt = await call
    else:
        made = market_pb2.SubmitModelRequest.SerializeToString
        receipt = await channel.stream_unary(BARE, made, market_pb2.Receipt.FromString)(messages(content))
    assert receipt.ledger_index == len(content)


async def send(call: Any, content: bytes | bytearray) -> None:
    for start in range(0, len(content), FRAME_BYTES):
        await call.write(upload_message(start, memoryview(content)[start : start + FRAME_BYTES]))
    await call.done_writing()


async def header_for(client: Client, content: bytes, round_: int) -> market_pb2.ModelHeader:
    statement = await client.model_statement(content, round_)
    return market_pb2.ModelHeader(model=signed(statement, client.key))


async def submit(client: Client, content: bytes | bytearray, header: market_pb2.ModelHeader) -> None:
    """As the SDK does: the header, then the frames as soon as they are welcome."""
    call = client.channel.stream_unary(SUBMIT_MODEL.path, None, market_pb2.Receipt.FromString)()
    await call.write(market_pb2.SubmitModelRequest(header=header).SerializeToString())
    await call.initial_metadata()
    await send(call, content)
    receipt = await call
    assert not receipt.late


def write(folder: Path, contents: Sequence[bytes]) -> float:
    """Seconds that the disk takes for the bytes alone."""
    path = folder / "disk"
    began = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for content in contents:
            file.write(content)
        os.fdatasync(file.fileno())
    seconds = time.perf_counter() - began
    path.unlink()
    return seconds


@dataclass
class Run:
    """One crowd's uploads: seconds, servers' CPU seconds, bytes of memory."""

    crowd: int
    bare: float
    seconds: float
    disk: float
    bare_cpu: float
    cpu: float
    peak: int


async def measure(
    path: Path,
    clients: list[Client],
    port: int,
    pids: tuple[int, int],
    contents: list[bytes],
    crowds: Sequence[int],
    rounds: int,
    lean: bool,
) -> tuple[int, list[Run]]:
    """The coordinator's memory before the first upload, and every run."""
    await clients[0].until("EFFORT")
    await asyncio.gather(*(client.claim() for client in clients))
    channels = [bare_channel(client, port) for client in clients[: max(crowds)]]
    await asyncio.gather(*(bare(channel, b"warm") for channel in channels))
    idle = resident(pids[1], "VmRSS")
    runs = []
    for round_ in range(1, rounds + 1):
        await clients[0].until("TRAINING", round_=round_)
        first = 0
        for crowd in crowds:
            # Every round takes each model once: a crowd has not delivered yet.
            chosen = range(first, first + crowd)
            first += crowd
            headers = [await header_for(clients[i], contents[i], round_) for i in chosen]
            used = [cpu_seconds(pid) for pid in pids]
            began = time.perf_counter()
            await asyncio.gather(
                *(bare(c, contents[i], lean) for c, i in zip(channels, chosen, strict=False))
            )
            bare_seconds = time.perf_counter() - began
            disk = await asyncio.to_thread(write, path, [contents[i] for i in chosen])
            forget_peak(pids[1])
            began = time.perf_counter()
            await asyncio.gather(
                *(submit(clients[i], contents[i], h) for i, h in zip(chosen, headers, strict=True))
            )
            seconds = time.perf_counter() - began
            cpu = [cpu_seconds(pid) - before for pid, before in zip(pids, used, strict=True)]
            runs.append(Run(crowd, bare_seconds, seconds, disk, *cpu, resident(pids[1], "VmHWM")))
        # Those who are in no crowd deliver too: the round waits for the whole quorum.
        for i in range(first, len(clients)):
            await submit(clients[i], contents[i], await header_for(clients[i], contents[i], round_))
        contents = [changed(content, round_) for content in contents]
    for channel in channels:
        await channel.close()
    for client in clients:
        await client.close()
    return idle, runs


def changed(content: bytes, round_: int) -> bytes:
    """Another model for the next round: one that is there already would not be stored again."""
    return content[:-8] + hashlib.sha256(content[-8:] + bytes([round_])).digest()[:3] + content[-5:]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=float, default=44.7)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--crowd", type=int, action="append", help="uploads at once; default: 1, 10 and 20")
    parser.add_argument("--folder", type=Path, help="where the coordinator keeps its state")
    parser.add_argument("--lean", action="store_true", help="the bare clients write frames as the SDK does")
    parser.add_argument("--bare", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.bare is not None:
        asyncio.run(count_bytes(given.bare))
        return
    keep_pages()  # as the coordinator's command does: the bare server inherits the limits, and both receive alike
    print(environment())
    crowds = given.crowd or CROWDS
    people = max(sum(crowds), MIN_QUORUM)
    size = round(given.megabytes * 1e6)
    contents = [model(size, seed) for seed in range(people)]
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        folder, tokens = prepared(Path(scratch), people, given.repeat, model(size, people))
        with (
            process("benchmarks.uploads", "--bare", str(folder.path), stdout=subprocess.PIPE) as counter,
            serving(folder) as served,
        ):
            assert counter.stdout is not None
            port = int(counter.stdout.readline())

            async def run() -> tuple[int, list[Run]]:
                clients = await enrolled(folder, tokens)
                pids = counter.pid, served.pid
                return await measure(
                    Path(scratch), clients, port, pids, contents, crowds, given.repeat, given.lean
                )

            idle, runs = asyncio.run(run())
    report(len(contents[0]) / 1e6, crowds, given.repeat, idle, runs)


def report(megabytes: float, crowds: Sequence[int], repeat: int, idle: int, runs: Sequence[Run]) -> None:
    print(
        f"{megabytes:.1f} MB models, frames of {FRAME_BYTES >> 10} KiB, mutual TLS, median (best) of {repeat}"
    )
    print(
        "            MB/s                         ratio         CPU s a GB      peak over idle\n"
        "at once     bare      disk   fedpeer                   bare  fedpeer   MB    models"
    )
    for crowd in dict.fromkeys(crowds):
        mine = [run for run in runs if run.crowd == crowd]
        total = crowd * megabytes
        rates = [
            statistics.median(total / s for s in seconds)
            for seconds in ([r.bare for r in mine], [r.disk for r in mine], [r.seconds for r in mine])
        ]
        ratios = [run.bare / run.seconds for run in mine]
        cpu = [
            statistics.median(s / total * 1e3 for s in seconds)
            for seconds in ([r.bare_cpu for r in mine], [r.cpu for r in mine])
        ]
        peak = max(run.peak - idle for run in mine) / 1e6
        print(
            f"{crowd:7d} {rates[0]:8.0f} {rates[1]:9.0f} {rates[2]:9.0f}   {statistics.median(ratios):5.2f} "
            f"({max(ratios):.2f})   {cpu[0]:7.2f} {cpu[1]:8.2f}   {peak:6.0f} {peak / megabytes:6.1f}"
        )
    print(f"coordinator idle, all connected: {idle / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
