"""Uploads over mutual TLS, against a bare gRPC stream of the same frames that only counts bytes.

    python -m benchmarks.uploads [--megabytes 44.7] [--repeat 3]

The coordinator hashes, spools, checks every value, makes the file durable and writes two ledger entries; the bare
server adds lengths. Both run in processes of their own, clients in this one, the same certificates. The figure is
the ratio of the throughputs; 1 would mean that all of that costs nothing.
"""

import argparse
import asyncio
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from coordinator.office import Office
from coordinator.opening import prepare_task
from protos.fedpeer.v1 import enrolment_pb2, enrolment_pb2_grpc, market_pb2
from tests.integration.market import CONFIG, Client, make_folder, task_config
from wire.certificates import new_key, private_key_pem, signing_request
from wire.limits import FRAME_BYTES
from wire.model_file import encode_model

#: Participants that upload at once.
CROWDS = (1, 10)

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


@contextmanager
def process(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen([sys.executable, "-m", *arguments], text=True, **options)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


async def enrolled(folder: Path, addresses: dict[str, str], name: str, token: str) -> Client:
    key = new_key()
    authority = (folder / "authority.pem").read_bytes()
    async with grpc.aio.secure_channel(
        addresses["public"], grpc.ssl_channel_credentials(authority)
    ) as channel:
        response = await enrolment_pb2_grpc.EnrolmentStub(channel).Enroll(
            enrolment_pb2.EnrollRequest(
                participant_id=name, token=token, certificate_signing_request=signing_request(name, key)
            )
        )
    return Client(name, key, response.certificate, response.authority, addresses["market"])


async def frames(content: bytes) -> AsyncIterator[market_pb2.SubmitModelRequest]:
    for start in range(0, len(content), FRAME_BYTES):
        yield market_pb2.SubmitModelRequest(
            frame=market_pb2.ModelFrame(offset=start, data=content[start : start + FRAME_BYTES])
        )


async def bare(client: Client, port: int, content: bytes) -> None:
    credentials = grpc.ssl_channel_credentials(
        client.authority, private_key_pem(client.key), client.certificate
    )
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
        call = channel.stream_unary(
            BARE, market_pb2.SubmitModelRequest.SerializeToString, market_pb2.Receipt.FromString
        )
        receipt = await call(frames(content))
        assert receipt.ledger_index == len(content)


async def submit(client: Client, content: bytes, round_: int, digest: bytes) -> None:
    from mechanism.statements import sign_statement
    from wire.codec import encode_model_header

    statement = await client.model_statement(b"x", round_, model_sha256=digest, model_bytes=len(content))
    header = encode_model_header(statement, sign_statement(statement, client.key))

    async def messages() -> AsyncIterator[market_pb2.SubmitModelRequest]:
        yield market_pb2.SubmitModelRequest(header=header)
        async for message in frames(content):
            yield message

    receipt = await client.market.SubmitModel(messages())
    assert not receipt.late


def models(megabytes: float, count: int) -> tuple[bytes, list[bytes]]:
    """The initial model and one of each participant, all different."""
    side = int(megabytes * 1e6 / 4 / 1000)
    made = []
    for seed in range(count + 1):
        generator = np.random.default_rng(seed)
        made.append(encode_model({"weight": generator.normal(size=(side, 1000)).astype(np.float32)}))
    return made[0], made[1:]


async def measure(
    folder: Path, bare_port: int, pids: tuple[int, int], contents: list[bytes], tokens: list[str], rounds: int
) -> Any:
    addresses = json.loads((folder / "serving.json").read_text())
    clients = [await enrolled(folder, addresses, f"p{i:02d}", token) for i, token in enumerate(tokens)]
    await clients[0].until("EFFORT")
    for client in clients:
        await client.claim()
    digests = [hashlib.sha256(content).digest() for content in contents]
    results = []
    for round_ in range(1, rounds + 1):
        await clients[0].until("TRAINING", round_=round_)
        for crowd in CROWDS:
            began, cpu = time.perf_counter(), [cpu_seconds(pid) for pid in pids]
            await asyncio.gather(
                *(bare(c, bare_port, d) for c, d in zip(clients[:crowd], contents, strict=False))
            )
            bare_seconds = time.perf_counter() - began
            # One participant first, then the ten that are left: every round takes each model once.
            chosen = range(1) if crowd == 1 else range(1, 1 + crowd)
            began = time.perf_counter()
            await asyncio.gather(*(submit(clients[i], contents[i], round_, digests[i]) for i in chosen))
            seconds = time.perf_counter() - began
            used = [cpu_seconds(pid) - before for pid, before in zip(pids, cpu, strict=True)]
            results.append((crowd, bare_seconds, seconds, *used))
    for client in clients:
        await client.close()
    return results


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=float, default=44.7)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--bare", type=Path)
    arguments = parser.parse_args()
    if arguments.bare is not None:
        asyncio.run(count_bytes(arguments.bare))
        return
    people = 1 + max(CROWDS)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch)
        initial, contents = models(arguments.megabytes, people)
        (path / "initial.safetensors").write_bytes(initial)
        folder = make_folder(path / "state", CONFIG)
        schedule = {"rounds": arguments.repeat, "quorum": people, "capacity": people}
        schedule = {**schedule, "effort_seconds": 600, "round_seconds": 600}
        config = task_config(path, schedule=schedule, contract={"max_norm": "1000000"})
        office = Office(folder)
        tokens = [office.invite(f"p{i:02d}").token for i in range(people)]
        office.open(prepare_task(config, time.time()))
        office.close()
        with (
            process("benchmarks.uploads", "--bare", str(folder.path), stdout=subprocess.PIPE) as counter,
            process(
                "fedpeer", "coordinator", "serve", "--state", str(folder.path), stderr=subprocess.DEVNULL
            ) as served,
        ):
            assert counter.stdout is not None
            port = int(counter.stdout.readline())
            while not folder.addresses.exists():
                time.sleep(0.05)
            idle = resident(served.pid, "VmRSS")
            results = asyncio.run(
                measure(folder.path, port, (counter.pid, served.pid), contents, tokens, arguments.repeat)
            )
            peak = resident(served.pid, "VmHWM")
    size = len(contents[0]) / 1e6
    print(
        f"{size:.1f} MB models, frames of {FRAME_BYTES >> 10} KiB, mutual TLS, median of {arguments.repeat}"
    )
    print("participants   bare MB/s   fedpeer MB/s   ratio   servers' CPU seconds a GB: bare   fedpeer")
    for crowd in CROWDS:
        pairs = [(b, s) for c, b, s, _, _ in results if c == crowd]
        bare_cpu, cpu = (
            statistics.median(r[i] / (crowd * size / 1e3) for r in results if r[0] == crowd) for i in (3, 4)
        )
        bare_rate = statistics.median(crowd * size / b for b, _ in pairs)
        rate = statistics.median(crowd * size / s for _, s in pairs)
        ratio = statistics.median(b / s for b, s in pairs)
        print(f"{crowd:12d} {bare_rate:11.0f} {rate:14.0f} {ratio:7.2f} {bare_cpu:37.2f} {cpu:9.2f}")
    print(f"coordinator's memory: {idle / 1e6:.0f} MB idle, {peak / 1e6:.0f} MB at its peak")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int, field: str) -> int:
    """A size from /proc/PID/status, bytes (Linux)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10
    return 0


if __name__ == "__main__":
    main()
