"""A coordinator in a process of its own, enrolled clients, and what the kernel says of a process."""

import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from coordinator.folder import StateFolder
from coordinator.opening import prepare_task
from coordinator.operator import Operator
from fedpeer.protocol.certificates import new_key, signing_request
from fedpeer.protocol.model_file import encode_model
from fedpeer.v1 import enrolment_pb2, enrolment_pb2_grpc
from tests.integration.market import CONFIG, Client, make_folder, task_config

#: Requests a second of one address: all clients enrol from this one.
_BENCH_CONFIG = CONFIG + "requests_per_second = 1000\n"

#: Enrolments that run at once, over one connection: fewer than the streams that the public port lets one have.
_ENROLLING = 4


def prepared(
    path: Path,
    participants: int,
    rounds: int,
    initial: bytes,
    tasks: Sequence[str] = ("task",),
    database: str = "",
) -> tuple[StateFolder, list[str]]:
    """A state folder with open tasks that take so many participants, and their invitations.

    Args:
        database: a URL; empty: a SQLite file in the folder.
    """
    (path / "initial.safetensors").write_bytes(initial)
    stored = f"[storage]\ndatabase = {database!r}\n" if database else ""
    folder = make_folder(path / "state", _BENCH_CONFIG + stored)
    schedule = {"rounds": rounds, "quorum": participants, "capacity": participants}
    schedule = {**schedule, "effort_seconds": 3600, "round_seconds": 3600}
    operator = Operator(folder)
    tokens = [operator.invite(f"p{i:03d}").token for i in range(participants)]
    for name in tasks:
        config = task_config(path, name, schedule=schedule, contract={"max_norm": "1000000"})
        operator.open(prepare_task(config, time.time()))
    operator.close()
    return folder, tokens


@contextmanager
def process(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen([sys.executable, "-m", *arguments], text=True, **options)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


@contextmanager
def serving(folder: StateFolder, fronts: int = 0) -> Iterator[subprocess.Popen[str]]:
    """The coordinator, from the moment on when it serves; with `fronts`, the process that has so many."""
    folder.addresses.unlink(missing_ok=True)
    command = ["fedpeer", "coordinator", "serve", "--state", str(folder.path), "--fronts", str(fronts)]
    with process(*command, stderr=subprocess.DEVNULL) as served:
        while not folder.addresses.exists():
            if served.poll() is not None:
                raise RuntimeError(f"the coordinator has ended with status {served.returncode}")
            time.sleep(0.005)
        yield served


async def enrolled(folder: StateFolder, tokens: Sequence[str]) -> list[Client]:
    """Participants p000, p001, ..., each with a key, a certificate and a connection of its own."""
    addresses = json.loads(folder.addresses.read_text())
    authority = (folder.path / "authority.pem").read_bytes()
    limit = asyncio.Semaphore(_ENROLLING)
    credentials = grpc.ssl_channel_credentials(authority)
    async with grpc.aio.secure_channel(addresses["public"], credentials) as channel:
        stub: Any = enrolment_pb2_grpc.EnrolmentStub(channel)

        async def one(name: str, token: str) -> Client:
            key = new_key()
            request = enrolment_pb2.EnrollRequest(
                participant_id=name, token=token, certificate_signing_request=signing_request(name, key)
            )
            async with limit:
                response = await stub.Enroll(request)
            return Client(name, key, response.certificate, response.authority, addresses["market"])

        return await asyncio.gather(*(one(f"p{i:03d}", token) for i, token in enumerate(tokens)))


def model(size: int, seed: int) -> bytes:
    """A model file of about `size` bytes with one float32 tensor, its values drawn from `seed`."""
    values = np.random.default_rng(seed).normal(size=max(1, size // 4)).astype(np.float32)
    return encode_model({"weight": values})


def environment() -> str:
    """One line on the machine and the versions that matter."""
    from google.protobuf import __version__ as protobuf

    allocator = "kept pages" if "MALLOC_TRIM_THRESHOLD_" in os.environ else "default malloc"
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; "
        f"Python {platform.python_version()}, grpcio {grpc.__version__}, protobuf {protobuf}, "
        f"NumPy {np.__version__}, {allocator}"
    )


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """The processes that a process has started and that still run (Linux)."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def resident(pid: int, field: str) -> int:
    """A size from /proc/PID/status, bytes (Linux)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10
    return 0


def forget_peak(pid: int) -> None:
    """Makes VmHWM begin again from the present size (Linux: clear_refs, value 5)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
