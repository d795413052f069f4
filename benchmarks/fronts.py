"""What it costs to serve by two processes instead of one: `python -m benchmarks.fronts [--pinned]`.

One market on PostgreSQL (FEDPEER_TEST_POSTGRESQL names a server), served in turn by one process and by two fronts:
SubmitEffort and GetTask of all participants at once in task after task, then rounds in which each fetches and sends
a model. The figures are the CPU seconds of all the service's processes for a call and for a round's upload, and the
seconds of a round. On a machine whose cores the participants use as well two fronts bring no speed; what they cost
says what they bring where there are more cores.

With --pinned each front has a core of its own, and as many participants. Cores that are all busy are slower, whatever
they do: they share caches, memory and the participants' work. So two fronts of one market are compared with two markets
of one front each, at the same time, with nothing in common but the machine; C(1) and C(2) are the CPU seconds of
an upload. A front does 1 / C uploads a second. So two do 2 C(1) / C(2) times what one does, and n n / (1 + (n - 1) e)
times, e being C(2) / C(1) - 1, where each further one adds as much to C as the second.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
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


def pin(pid: int, first: int) -> int:
    """Gives each front of the process `pid` a core of its own, from the one of the number `first`; the next number."""
    cores = sorted(os.sched_getaffinity(0))
    fronts = children(pid)
    for place, front in enumerate(fronts, first):
        for thread in Path(f"/proc/{front}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {cores[place % len(cores)]})
    return first + len(fronts)


def run(
    markets: int, fronts: int, pinned: bool, participants: int, tasks: int, rounds: int, size: int
) -> Cost:
    """`markets` of as many participants each, at the same time, each served by `fronts`."""
    names = [f"task-{i}" for i in range(tasks)]
    with ExitStack() as stack:
        made, services, place = [], [], 0
        for _ in range(markets):
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            database = stack.enter_context(scratch_url("postgresql", scratch))
            made.append(prepared(scratch, participants, rounds, model(size, 0), ["rounds", *names], database))
            service = stack.enter_context(serving(made[-1][0], fronts))
            services.append(service.pid)
            if pinned:
                place = pin(service.pid, place)

        def spent() -> float:
            return sum(taken(pid) for pid in services)

        async def work() -> Cost:
            crowds = [await enrolled(folder, tokens) for folder, tokens in made]
            began = spent()
            await asyncio.gather(*(measure(clients, names) for clients in crowds))
            call = (spent() - began) / (2 * tasks * participants * markets)
            courses = []
            for pid, clients in zip(services, crowds, strict=True):
                for i, client in enumerate(clients):
                    client.task_id = "rounds"
                    courses.append((Member(client, model(size, i)), Course(pid)))
            began, at = spent(), time.perf_counter()
            await asyncio.gather(*(member.take_part(course) for member, course in courses))
            upload = (spent() - began) / (rounds * len(courses))
            seconds = (time.perf_counter() - at) / rounds
            for clients in crowds:
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
    each = (given.tasks, given.rounds, given.size)
    if given.pinned:
        ways = {
            "one front": (1, 1, True, given.participants, *each),
            "two markets": (2, 1, True, given.participants, *each),
            "two fronts": (1, 2, True, 2 * given.participants, *each),
        }
    else:
        ways = {
            "one process": (1, 0, False, given.participants, *each),
            "two fronts": (1, 2, False, given.participants, *each),
        }
    found: dict[str, list[Cost]] = {way: [] for way in ways}
    for _ in range(given.repeats):
        for way, values in ways.items():
            found[way].append(run(*values))
    for name, unit in (("call", "CPU ms a call"), ("upload", "CPU ms an upload"), ("round", "ms a round")):
        costs = {
            way: statistics.median(getattr(cost, name) for cost in costs) * 1e3
            for way, costs in found.items()
        }
        before, two = list(costs.values())[-2:]
        shown = "   ".join(f"{way} {cost:9.2f}" for way, cost in costs.items())
        print(f"{unit:18} {shown}   ratio {two / before:.2f}")
        if given.pinned and name == "upload":
            more = two / before - 1
            times = {n: n / (1 + (n - 1) * more) for n in (2, 4)}
            print(f"uploads a second, of one front's: two {times[2]:.2f} times, four {times[4]:.2f} times")


if __name__ == "__main__":
    main()
