"""What 200 watchers of the console cost a coordinator: `python -m benchmarks.console [--watchers N]`.

The coordinator and the console are processes of their own. The same task runs without and with watchers, in turn, twice
each: participants with no-op training, as in `benchmarks.rounds`, and browsers that keep a stream open and fetch the
task's page again each time the ledger has grown. The figure is the coordinator's CPU time a round
with watchers over that without; beside it the console's, and how long a page takes over loopback and how large it is.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.rounds import Course, Member
from benchmarks.serving import cpu_seconds, enrolled, environment, model, prepared, process, serving
from coordinator.folder import StateFolder

#: Participants, bytes of the model, rounds of each run.
PARTICIPANTS, SIZE, ROUNDS = 10, 200_000, 25

PAGE = "/tasks/task/"


class Watcher:
    """One browser."""

    def __init__(self, host: str, port: int) -> None:
        self._place = host, port
        self.pages = 0

    async def watch(self) -> None:
        """Keeps the stream open, and fetches the page whenever the stream says that the ledger has grown."""
        reader, writer = await self._asked("/events")
        try:
            async for line in reader:
                if line.startswith(b"event: moved"):
                    await self.page()
        finally:
            writer.close()

    async def page(self) -> bytes:
        reader, writer = await self._asked(PAGE)
        content = await reader.read()
        writer.close()
        assert content.startswith(b"HTTP/1.1 200"), content[:200]
        self.pages += 1
        return content

    async def _asked(self, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self._place)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {self._place[0]}\r\nConnection: close\r\n\r\n".encode())
        return reader, writer


@asynccontextmanager
async def watched(folder: StateFolder, watchers: int) -> AsyncIterator[tuple[int, list[Watcher]]]:
    """The console with its watchers; its process id."""
    arguments = ("console", "--state", str(folder.path), "--listen", "127.0.0.1:0", "--json")
    with process("fedpeer", *arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as console:
        assert console.stdout is not None
        place = urlsplit(json.loads(await asyncio.to_thread(console.stdout.readline))["console"])
        people = [Watcher(place.hostname or "", place.port or 0) for _ in range(watchers)]
        tasks = [asyncio.create_task(person.watch()) for person in people]
        await asyncio.sleep(1)  # all streams stand
        try:
            yield console.pid, people
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def run(watchers: int) -> tuple[float, float, list[float], int]:
    """CPU seconds a round of the coordinator and of the console; seconds of first pages, and the bytes of one."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, tokens = prepared(Path(scratch), PARTICIPANTS, ROUNDS, model(SIZE, 1))
        with serving(folder) as served:

            async def play() -> tuple[float, float, list[float], int]:
                clients = await enrolled(folder, tokens)
                members = [Member(client, model(SIZE, i)) for i, client in enumerate(clients)]
                course = Course(served.pid)

                async def take_part() -> float:
                    await asyncio.gather(*(member.take_part(course) for member in members))
                    for client in clients:
                        await client.close()
                    return course.per_round(ROUNDS, 0).cpu or 0.0

                if not watchers:
                    return await take_part(), 0.0, [], 0
                async with watched(folder, watchers) as (pid, people):
                    firsts, size = [], 0
                    for _ in range(20):
                        began = time.perf_counter()
                        size = len(await people[0].page())
                        firsts.append(time.perf_counter() - began)
                    before = cpu_seconds(pid)
                    coordinators = await take_part()
                    used = (cpu_seconds(pid) - before) / ROUNDS
                    assert all(person.pages for person in people)
                    return coordinators, used, firsts, size

            return asyncio.run(play())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--watchers", type=int, default=200)
    given = parser.parse_args()
    print(environment())
    alone, beside, console = [], [], []
    firsts: list[float] = []
    size = 0
    for watchers in (0, given.watchers, given.watchers, 0):
        cpu, used, seconds, length = run(watchers)
        (beside if watchers else alone).append(cpu)
        if watchers:
            console.append(used)
            firsts, size = firsts + seconds, length
    without, with_them = statistics.mean(alone), statistics.mean(beside)
    print(f"coordinator, CPU ms a round without watchers      {1000 * without:8.1f}  {_each(alone)}")
    print(
        f"coordinator, CPU ms a round with {given.watchers:4d} watchers     {1000 * with_them:8.1f}  {_each(beside)}"
    )
    print(f"ratio                                             {with_them / without:8.3f}")
    print(f"console, CPU ms a round                           {1000 * statistics.mean(console):8.1f}")
    print(
        f"a page over loopback, median of {len(firsts)}, ms           {1000 * statistics.median(firsts):8.1f}"
    )
    print(f"its bytes                                         {size:8d}")


def _each(figures: list[float]) -> str:
    return f"({', '.join(f'{1000 * figure:.1f}' for figure in figures)})"


if __name__ == "__main__":
    main()
