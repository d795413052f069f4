"""A round with no-op training, everything on, beside Flower: `python -m benchmarks.rounds [--flower PYTHON]`.

Ours: a coordinator in a process of its own with mutual TLS, signed statements, models hashed, checked and durable, a
durable ledger, payments, signed heads; evaluation off. Its participants, in this process, each with a connection
and a certificate of its own, watch the task, fetch the model, send one of the same size under a signature, and
fetch what they were paid. The figure is the time from the opening of the first round to the end of the last one,
over the number of rounds.

Flower, on the same machine one after the other, over loopback without TLS (`benchmarks/flower`): deployment mode
(SuperLink, SuperNodes, `flwr run`), and the old server (`start_server`) that has no TLS, no durability and no
authentication either. It runs in an environment of its own, since it pins protobuf: PYTHON is that environment's
interpreter, `.venv-flower/bin/python` by default, which `make bench-flower` makes.
"""

import argparse
import asyncio
import hashlib
import json
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.serving import enrolled, environment, forget_peak, model, prepared, resident, serving
from benchmarks.uploads import messages
from mechanism.statements import ModelStatement, sign_statement
from protos.fedpeer.v1 import market_pb2
from tests.integration.market import Client
from wire.codec import encode_model_header

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

FLOWER = Path(__file__).parent / "flower"


class Member:
    """A participant whose training takes no time: it sends its own model, changed a little each round."""

    def __init__(self, client: Client, content: bytes) -> None:
        self._client = client
        self._content = content

    async def take_part(self, opened: dict[int, float]) -> None:
        """To the task's end; `opened` is told when each round opened, and round 0 the end."""
        client = self._client
        task = await client.task()
        async for event in client.market.Watch(market_pb2.WatchRequest(task_id=client.task_id)):
            now = time.perf_counter()
            match event.state:
                case market_pb2.TASK_STATE_EFFORT:
                    await client.claim()
                case market_pb2.TASK_STATE_TRAINING:
                    opened.setdefault(event.round, now)
                    await self._deliver(task, event.round)
                case market_pb2.TASK_STATE_SETTLED:
                    opened[0] = now
                    request = market_pb2.GetSettlementRequest(task_id=client.task_id, round=event.round)
                    assert (await client.market.GetSettlement(request)).paid_micro > 0
                    opened[0] = time.perf_counter()
                case market_pb2.TASK_STATE_CLOSED:
                    return

    async def _deliver(self, task: market_pb2.Task, round_: int) -> None:
        client = self._client
        received = hashlib.sha256()
        request = market_pb2.FetchModelRequest(task_id=client.task_id, round=round_)
        async for frame in client.market.FetchModel(request):
            received.update(frame.data)
        # The last number but one gets other low bits, so that each round's file is a new one.
        content = self._content[:-8] + round_.to_bytes(2, "little") + self._content[-6:]
        statement = ModelStatement(
            submission_id=f"model-{round_}",
            task_id=client.task_id,
            terms_digest=task.terms_digest,
            participant_id=client.name,
            round=round_,
            model_sha256=hashlib.sha256(content).digest(),
            model_bytes=len(content),
            samples=10,
            nonce=task.nonce,
        )
        header = encode_model_header(statement, sign_statement(statement, client.key))
        receipt = await client.market.SubmitModel(messages(content, header))
        assert not receipt.late


def ours(participants: int, size: int, rounds: int, where: Path | None) -> tuple[float, int]:
    """Seconds a round, and the coordinator's peak memory over its idle one, bytes."""
    with tempfile.TemporaryDirectory(dir=where) as scratch:
        folder, tokens = prepared(Path(scratch), participants, rounds, model(size, participants))
        with serving(folder) as served:

            async def run() -> tuple[dict[int, float], int]:
                clients = await enrolled(folder, tokens)
                members = [Member(client, model(size, i)) for i, client in enumerate(clients)]
                forget_peak(served.pid)
                idle, opened = resident(served.pid, "VmRSS"), dict[int, float]()
                await asyncio.gather(*(member.take_part(opened) for member in members))
                for client in clients:
                    await client.close()
                return opened, resident(served.pid, "VmHWM") - idle

            opened, memory = asyncio.run(run())
    assert len(opened) == rounds + 1
    return (opened[0] - opened[1]) / rounds, memory


def flower(python: Path, mode: str, participants: int, size: int, rounds: int) -> float | None:
    """Seconds a round; None where it fails, with its own words on the way."""
    done = subprocess.run(
        [python, FLOWER / f"{mode}.py", str(participants), str(size), str(rounds)],
        capture_output=True,
        text=True,
        timeout=900,
    )
    if done.returncode:
        print(f"Flower's {mode} failed:\n{done.stderr[-2000:]}")
        return None
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flower", type=Path, default=Path(".venv-flower/bin/python"))
    parser.add_argument("--without", choices=["deployment", "old_server"], action="append", default=[])
    parser.add_argument("--scale", type=int, action="append", help=f"0 to {len(SCALES) - 1}; default: all")
    parser.add_argument("--folder", type=Path, help="where the coordinator keeps its state")
    given = parser.parse_args()
    print(environment())
    present = given.flower.exists()
    if not present:
        print(f"{given.flower} is missing, so there is nothing to compare with; `make bench-flower` makes it")
    print(
        "                          seconds a round                      times faster than       peak over idle"
    )
    print("participants    model    ours   old server   deployment      old server  deployment    MB")
    for index in given.scale or range(len(SCALES)):
        participants, size, rounds = SCALES[index]
        seconds, memory = ours(participants, size, rounds, given.folder)
        old = deployed = None
        if present and "old_server" not in given.without:
            old = flower(given.flower, "old_server", participants, size, rounds)
        if present and "deployment" not in given.without and participants <= DEPLOYMENT_PARTICIPANTS:
            deployed = flower(given.flower, "deployment", participants, size, DEPLOYMENT_ROUNDS)
        print(
            f"{participants:12d} {_bytes(size):>8} {seconds:7.3f} {_figure(old):>12} {_figure(deployed):>12}"
            f"      {_figure(old and old / seconds):>10}  {_figure(deployed and deployed / seconds):>10}"
            f"    {memory / 1e6:.0f}",
            flush=True,
        )


def _bytes(size: int) -> str:
    return f"{size / 1e6:g} MB" if size >= 1e5 else f"{size / 1e3:g} KB"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if value < 100 else f"{value:.0f}"


if __name__ == "__main__":
    main()
