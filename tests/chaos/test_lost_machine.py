"""A machine whose line is cut says nothing more to the database: another leads within ten seconds."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from tests.integration.market import CONFIG, PATIENCE, make_folder
from tests.postgresql_server import postgresql_server

#: Of both ends of the line.
HERE, THERE = "10.213.77.1", "10.213.77.2"


@contextmanager
def line() -> Iterator[tuple[str, str]]:
    """A network namespace and its end of the line to it."""
    if os.getuid() or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2, for a network namespace")
    name = uuid4().hex[:8]
    here, there = f"h{name}", f"t{name}"
    run("netns", "add", name)
    try:
        run("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
        run("addr", "add", f"{HERE}/24", "dev", here)
        run("link", "set", here, "up")
        run("-n", name, "addr", "add", f"{THERE}/24", "dev", there)
        for device in (there, "lo"):
            run("-n", name, "link", "set", device, "up")
        yield name, there
    finally:
        run("netns", "del", name)


def run(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextmanager
def serving(state: Path, log: Path, *prefix: str) -> Iterator[None]:
    """`serve --fronts 1` from when it takes calls."""
    command = [
        *prefix,
        sys.executable,
        "-P",
        "-m",
        "fedpeer",
        "coordinator",
        "serve",
        "--fronts",
        "1",
        "--json",
    ]
    with log.open("ab") as file:
        served = subprocess.Popen([*command, "--state", str(state)], stdout=subprocess.PIPE, stderr=file)
    try:
        assert served.stdout is not None
        assert served.stdout.readline(), log.read_text()
        yield
    finally:
        served.kill()
        served.wait()


#: Holds a lease, and says whether it does still, whenever it is asked.
_HOLDER = """
import sys
from sqlalchemy.engine import make_url
from coordinator.storage.lease import Lease
from fedpeer.audit.sql.database import Database
database = Database(sys.argv[1])
with database.read():  # a connection in the pool
    pass
lease = Lease(make_url(sys.argv[1]))
lease.take()
print(lease.held(), flush=True)
sys.stdin.readline()
print(lease.held(), flush=True)
try:
    with database.read():
        pass
except Exception as error:
    print(type(error).__name__, flush=True)
"""


@pytest.mark.slow
def test_who_asks_a_database_whose_line_is_cut_hears_of_it_and_does_not_wait_for_minutes() -> None:
    """What is on its way keeps TCP asking, more and more rarely, whatever keepalives say."""
    with line() as (namespace, end), postgresql_server(HERE) as server:
        database = server.url.partition("@")[0] + f"@{HERE}/postgres"
        command = ["ip", "netns", "exec", namespace, sys.executable, "-P", "-c", _HOLDER, database]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
            try:
                assert holder.stdout is not None
                assert holder.stdout.readline() == "True\n"
                run("-n", namespace, "link", "set", end, "down")
                said, _ = holder.communicate("now\n", timeout=PATIENCE)
            finally:
                holder.kill()
        assert said.splitlines() == ["False", "DatabaseUnreachable"]


def leads(log: Path) -> bool:
    return "this process leads" in log.read_text()


def wait_for(log: Path) -> float:
    began = time.monotonic()
    while not leads(log):
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.02)
    return time.monotonic() - began


@pytest.mark.slow
def test_another_machine_leads_within_ten_seconds_of_a_cut_line(tmp_path: Path) -> None:
    with line() as (namespace, end), postgresql_server(HERE) as server:
        database = server.url.partition("@")[0] + f"@{HERE}/postgres"
        folder = make_folder(tmp_path / "state", CONFIG + f"[storage]\ndatabase = {database!r}\n")
        first, second = tmp_path / "first", tmp_path / "second"
        with serving(folder.path, first, "ip", "netns", "exec", namespace):
            wait_for(first)
            with serving(folder.path, second):
                assert not leads(second)
                run("-n", namespace, "link", "set", end, "down")
                seconds = wait_for(second)
    print(f"another machine leads after {seconds:.1f} s")  # noqa: T201 - for -s
    assert seconds < 10
