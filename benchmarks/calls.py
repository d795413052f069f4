"""Small calls and a restart, of a real coordinator process over mutual TLS: `python -m benchmarks.calls`.

SubmitEffort by 100 participants at once, each with a connection of its own, in task after task: signed, verified,
one ledger entry, durable before the answer. Beside it GetTask in the same way, which reads and writes nothing. Then
the process is killed with SIGKILL in the middle of a task and started again: the time to its first answer to a
client that tries all the while.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.serving import enrolled, environment, model, prepared, serving
from coordinator.folder import StateFolder
from fedpeer.v1 import market_pb2
from tests.integration.market import Client, signed


async def timed(call: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await call()
    return time.perf_counter() - began


async def measure(clients: Sequence[Client], tasks: Sequence[str]) -> tuple[list[float], list[float]]:
    """Seconds of every SubmitEffort, and of every GetTask."""
    efforts: list[float] = []
    reads: list[float] = []
    for name in tasks:
        for client in clients:
            client.task_id = name
        await clients[0].until("EFFORT")
        statements = await asyncio.gather(
            *(client.claim_statement(submission_id=f"claim-{name}") for client in clients)
        )
        requests = [
            signed(statement, client.key) for client, statement in zip(clients, statements, strict=True)
        ]
        request = market_pb2.GetTaskRequest(task_id=name)
        reads += await asyncio.gather(*(timed(partial(client.market.GetTask, request)) for client in clients))
        efforts += await asyncio.gather(
            *(
                timed(partial(client.market.SubmitEffort, effort))
                for client, effort in zip(clients, requests, strict=True)
            )
        )
    for client in clients:
        await client.close()
    return efforts, reads


def restarts(folder: StateFolder, count: int) -> list[float]:
    """Seconds from SIGKILL to the first answer of the process that takes its place, one after the other."""
    found = []
    with ExitStack() as stack:
        running = stack.enter_context(serving(folder))
        for _ in range(count):
            os.kill(running.pid, signal.SIGKILL)
            began = time.perf_counter()
            running.wait()
            running = stack.enter_context(serving(folder))
            check_serving(folder)
            found.append(time.perf_counter() - began)
    return found


def check_serving(folder: StateFolder) -> None:
    """Asks for the Market's health, over TLS."""
    address = json.loads(folder.addresses.read_text())["public"]
    credentials = grpc.ssl_channel_credentials((folder.path / "authority.pem").read_bytes())
    with grpc.secure_channel(address, credentials) as channel:
        request = health_pb2.HealthCheckRequest(service="fedpeer.v1.Market")
        answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=60)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def importing() -> float:
    """Seconds that the interpreter takes to import the service alone: what no restart goes below."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import coordinator.cli, coordinator.server"], check=True)
    return time.perf_counter() - began


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--participants", type=int, default=100)
    parser.add_argument("--tasks", type=int, default=5)
    parser.add_argument("--restarts", type=int, default=5)
    given = parser.parse_args()
    print(environment())
    tasks = [f"task-{i}" for i in range(given.tasks)]
    with tempfile.TemporaryDirectory() as scratch:
        folder, tokens = prepared(Path(scratch), given.participants, 3, model(2_000, 0), tasks)

        async def run() -> tuple[list[float], list[float]]:
            return await measure(await enrolled(folder, tokens), tasks)

        with serving(folder):
            efforts, reads = asyncio.run(run())
        again = restarts(folder, given.restarts)
    print(f"{given.participants} at once, {given.tasks} times, ms           p50     p99")
    for name, values in (("SubmitEffort, durable", efforts), ("GetTask, reads only", reads)):
        print(f"  {name:36} {percentile(values, 0.5) * 1e3:7.1f} {percentile(values, 0.99) * 1e3:7.1f}")
    print(f"  ratio of the medians {percentile(efforts, 0.5) / percentile(reads, 0.5):.2f}")
    imports = statistics.median(importing() for _ in range(3))
    print(
        f"SIGKILL to serving again, s: median {statistics.median(again):.2f}, worst {max(again):.2f}; "
        f"of it imports {imports:.2f}"
    )


if __name__ == "__main__":
    main()
