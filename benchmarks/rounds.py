"""A round with no-op training, everything on, beside Flower: `python -m benchmarks.rounds [--flower PYTHON]`.

Ours: a coordinator in a process of its own with mutual TLS, signed statements, models hashed, checked and durable, a
durable ledger, payments, signed heads; evaluation off. Its participants, in this process, each with a connection
and a certificate of its own, watch the task, fetch the model, send one of the same size under a signature, and
learn what they were paid. The figure is the time from the opening of the first round to the end of the last one,
over the number of rounds; beside it the CPU seconds that the serving process takes for a round, which say more on a
machine that others use too.

Flower, on the same machine one after the other, over loopback without TLS (`benchmarks/flower`): deployment mode
(SuperLink, SuperNodes, `flwr run`), and the old server (`start_server`) that has no TLS, no durability and no
authentication either. It runs in an environment of its own, since it pins protobuf: PYTHON is that environment's
interpreter, `.venv-flower/bin/python` by default, which `make bench-flower` makes.

Each side runs as it is shipped: fedpeer's commands tell malloc to keep its pages, and so does this process for its
participants; Flower's leave malloc as it is, unless MALLOC_... variables are set here for all.
"""

import argparse
import asyncio
import hashlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.serving import (
    cpu_seconds,
    enrolled,
    environment,
    forget_peak,
    model,
    prepared,
    resident,
    serving,
)
from benchmarks.uploads import submit
from fedpeer.allocator import keep_pages
from fedpeer.protocol.limits import FRAME_BYTES
from fedpeer.v1 import market_pb2
from participant.steps import FETCH_MODEL
from tests.integration.market import Client, model_statement, signed

#: (participants, bytes of the model, rounds).
SCALES = (
    (10, 2_000, 10),
    (10, 1_700_000, 5),
    (10, 44_700_000, 3),
    (100, 2_000, 5),
    (100, 1_700_000, 3),
)

#: Rounds of Flower's deployment mode, which takes seconds for each; and the most participants that it is asked to
#: have: each takes two processes.
DEPLOYMENT_ROUNDS = 3
DEPLOYMENT_PARTICIPANTS = 10

#: Seconds that a whole run of Flower may take.
FLOWER_SECONDS = 900

FLOWER = Path(__file__).parent / "flower"


@dataclass(frozen=True)
class Cost:
    """What a round takes: seconds, the server's CPU seconds (None where unknown), and its peak memory over idle."""

    seconds: float
    cpu: float | None
    memory: int = 0


class Course:
    """When each round opened and how much CPU time the coordinator had taken by then; round 0 is the end."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.marks: dict[int, tuple[float, float]] = {}

    def mark(self, round_: int) -> None:
        """The first mark of a round counts, the last one of the end."""
        if round_ == 0 or round_ not in self.marks:
            self.marks[round_] = time.perf_counter(), cpu_seconds(self._pid)

    def per_round(self, rounds: int, memory: int) -> Cost:
        assert len(self.marks) == rounds + 1
        seconds, cpu = (
            (end - begin) / rounds for end, begin in zip(self.marks[0], self.marks[1], strict=True)
        )
        return Cost(seconds, cpu, memory)


class Member:
    """A participant whose training takes no time: it sends its own model, changed a little each round."""

    def __init__(self, client: Client, content: bytes) -> None:
        self._client = client
        self._content = bytearray(content)
        self._fetch = client.channel.unary_stream(
            FETCH_MODEL.path, market_pb2.FetchModelRequest.SerializeToString, FETCH_MODEL.read
        )

    async def take_part(self, course: Course) -> None:
        """To the task's end."""
        client = self._client
        task = await client.task()
        async for event in client.market.Watch(market_pb2.WatchRequest(task_id=client.task_id)):
            match event.state:
                case market_pb2.TASK_STATE_EFFORT:
                    await client.claim()
                case market_pb2.TASK_STATE_TRAINING:
                    course.mark(event.round)
                    await self._deliver(task, event.round)
                case market_pb2.TASK_STATE_SETTLED:
                    paid = event.round_settled.settlement
                    if not paid.participant_id:  # it does not come with the event everywhere and always
                        paid = await client.market.GetSettlement(
                            market_pb2.GetSettlementRequest(task_id=client.task_id, round=event.round)
                        )
                    assert paid.paid_micro > 0
                    course.mark(0)
                case market_pb2.TASK_STATE_CLOSED:
                    return

    async def _deliver(self, task: market_pb2.Task, round_: int) -> None:
        client = self._client
        received = hashlib.sha256()
        request = market_pb2.FetchModelRequest(
            task_id=client.task_id, round=round_, max_frame_bytes=FRAME_BYTES
        )
        async for frame in self._fetch(request):
            received.update(frame.data)
        # The last number but one gets other low bits, so that each round's file is a new one.
        self._content[-8:-6] = round_.to_bytes(2, "little")
        statement = model_statement(task, client.name, self._content, round_)
        header = market_pb2.ModelHeader(model=signed(statement, client.key))
        await submit(client, self._content, header)


def ours(participants: int, size: int, rounds: int, where: Path | None) -> Cost:
    with tempfile.TemporaryDirectory(dir=where) as scratch:
        folder, tokens = prepared(Path(scratch), participants, rounds, model(size, participants))
        with serving(folder) as served:

            async def run() -> Cost:
                clients = await enrolled(folder, tokens)
                members = [Member(client, model(size, i)) for i, client in enumerate(clients)]
                forget_peak(served.pid)
                idle, course = resident(served.pid, "VmRSS"), Course(served.pid)
                await asyncio.gather(*(member.take_part(course) for member in members))
                for client in clients:
                    await client.close()
                return course.per_round(rounds, resident(served.pid, "VmHWM") - idle)

            return asyncio.run(run())


def flower(
    python: Path, mode: str, participants: int, size: int, rounds: int, variables: Mapping[str, str]
) -> Cost | None:
    """None where it fails, with its own words on the way.

    Args:
        variables: the environment that it runs in.
    """
    command = [python, FLOWER / f"{mode}.py", str(participants), str(size), str(rounds)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=FLOWER_SECONDS, env=dict(variables)
        )
    except subprocess.TimeoutExpired:
        print(f"Flower's {mode} did not end within {FLOWER_SECONDS} seconds")
        return None
    if done.returncode:
        print(f"Flower's {mode} failed:\n{done.stderr[-2000:]}")
        return None
    found = json.loads(done.stdout.splitlines()[-1])
    return Cost(found["seconds"], found.get("cpu"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flower", type=Path, default=Path(".venv-flower/bin/python"))
    parser.add_argument("--without", choices=["deployment", "old_server"], action="append", default=[])
    parser.add_argument("--scale", type=int, action="append", help=f"0 to {len(SCALES) - 1}; default: all")
    parser.add_argument("--folder", type=Path, help="where the coordinator keeps its state")
    given = parser.parse_args()
    variables = dict(os.environ)
    keep_pages()
    print(environment())
    present = given.flower.exists()
    if not present:
        print(f"{given.flower} is missing, so there is nothing to compare with; `make bench-flower` makes it")
    print(
        "                          seconds a round                      times faster than       CPU s a round  "
        "    peak over idle"
    )
    print(
        "participants    model    ours   old server   deployment      old server  deployment   ours  old server"
        "    MB"
    )
    for index in given.scale or range(len(SCALES)):
        participants, size, rounds = SCALES[index]
        found = ours(participants, size, rounds, given.folder)
        old = deployed = None
        if present and "old_server" not in given.without:
            old = flower(given.flower, "old_server", participants, size, rounds, variables)
        if present and "deployment" not in given.without and participants <= DEPLOYMENT_PARTICIPANTS:
            deployed = flower(given.flower, "deployment", participants, size, DEPLOYMENT_ROUNDS, variables)
        others = [old and old.seconds, deployed and deployed.seconds]
        slow, slower = (_figure(seconds) for seconds in others)
        fast, faster = (_figure(seconds and seconds / found.seconds) for seconds in others)
        print(
            f"{participants:12d} {_bytes(size):>8} {found.seconds:7.3f} {slow:>12} {slower:>12}"
            f"      {fast:>10}  {faster:>10}  {_figure(found.cpu):>6} {_figure(old and old.cpu):>10}"
            f"    {found.memory / 1e6:.0f}",
            flush=True,
        )


def _bytes(size: int) -> str:
    return f"{size / 1e6:g} MB" if size >= 1e5 else f"{size / 1e3:g} KB"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if value < 100 else f"{value:.0f}"


if __name__ == "__main__":
    main()
