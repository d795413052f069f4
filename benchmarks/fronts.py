"""What it costs to serve by two processes instead of one: `python -m benchmarks.fronts [--pinned]`.

One market on PostgreSQL (FEDPEER_TEST_POSTGRESQL names a server), served in turn by one process and by two fronts:
SubmitEffort and GetTask of all participants at once in task after task, then rounds in which each fetches and sends
a model. The figures are the CPU seconds of all the service's processes for a call and for a round's upload, and the
seconds of a round. On a machine whose cores the participants use as well two fronts bring no speed; what they cost
says what they bring where there are more cores.

With --pinned one front and two are compared, each on a core of its own. A front does 1 / C uploads a second, C being
the CPU seconds of one. So two do 2 C(1) / C(2) times what one does; and n do n / (1 + (n - 1) e) times, e being
C(2) / C(1) - 1, where each further one adds as much to C as the second.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.calls import measure
from benchmarks.rounds import Course, Member
from benchmarks.serving import children, cpu_seconds, enrolled, environment, model, prepared, serving
from fedpeer.allocator import keep_pages
from tests.backends import scratch_url


@dataclass(frozen=True)
class Cost:
    """CPU seconds of a call and of an upload, and seconds of a round."""

    call: float
    upload: float
    round: float


def taken(pid: int) -> float:
    """CPU seconds of a process and of those that it has started."""
    return sum(cpu_seconds(each) for each in (pid, *children(pid)))


def pin(pid: int) -> None:
    """Gives each front of the process `pid` a core of its own, in turn."""
    cores = sorted(os.sched_getaffinity(0))
    for place, front in enumerate(children(pid)):
        for thread in Path(f"/proc/{front}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {cores[place % len(cores)]})


def run(fronts: int, pinned: bool, participants: int, tasks: int, rounds: int, size: int) -> Cost:
    names = [f"task-{i}" for i in range(tasks)]
    with tempfile.TemporaryDirectory() as scratch, scratch_url("postgresql", Path(scratch)) as database:
        folder, tokens = prepared(
            Path(scratch), participants, rounds, model(size, 0), ["rounds", *names], database
        )
        with serving(folder, fronts) as served:
            if pinned:
                pin(served.pid)

            async def work() -> Cost:
                clients = await enrolled(folder, tokens)
                began = taken(served.pid)
                await measure(clients, names)
                call = (taken(served.pid) - began) / (2 * tasks * participants)
                for client in clients:
                    client.task_id = "rounds"
                members = [Member(client, model(size, i)) for i, client in enumerate(clients)]
                began, at = taken(served.pid), time.perf_counter()
                await asyncio.gather(*(member.take_part(Course(served.pid)) for member in members))
                upload = (taken(served.pid) - began) / (rounds * participants)
                seconds = (time.perf_counter() - at) / rounds
                for client in clients:
                    await client.close()
                return Cost(call, upload, seconds)

            return asyncio.run(work())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--participants", type=int, default=40)
    parser.add_argument("--tasks", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=1_700_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--pinned", action="store_true")
    given = parser.parse_args()
    if not os.environ.get("FEDPEER_TEST_POSTGRESQL"):
        print("fronts need PostgreSQL, and FEDPEER_TEST_POSTGRESQL names no server; nothing is measured")
        return
    keep_pages()
    print(environment())
    first = 1 if given.pinned else 0
    found: dict[int, list[Cost]] = {first: [], 2: []}
    for _ in range(given.repeats):
        for fronts, costs in found.items():
            costs.append(run(fronts, given.pinned, given.participants, given.tasks, given.rounds, given.size))
    for name, unit in (("call", "CPU ms a call"), ("upload", "CPU ms an upload"), ("round", "ms a round")):
        one, two = (
            statistics.median(getattr(cost, name) for cost in costs) * 1e3 for costs in found.values()
        )
        words = "one front" if given.pinned else "one process"
        print(f"{unit:18} {words} {one:9.2f}   two fronts {two:9.2f}   ratio {two / one:.2f}")
        if given.pinned and name == "upload":
            more = two / one - 1
            times = {n: n / (1 + (n - 1) * more) for n in (2, 4)}
            print(f"uploads a second, of one front's: two {times[2]:.2f} times, four {times[4]:.2f} times")


if __name__ == "__main__":
    main()
