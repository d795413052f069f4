"""Two coordinators cannot serve one database, and one that was killed does not keep the next one out."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from coordinator.server import Coordinator
from coordinator.storage.errors import LeaseTaken
from coordinator.storage.lease import Lease
from tests.backends import DURABLE, scratch_url
from tests.integration.market import CONFIG, make_folder, running

STORED_AT = (
    CONFIG
    + """[storage]
database = {database!r}
"""
)


@contextmanager
def serve(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "fedpeer", "coordinator", "serve", "--state", str(folder)]
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(command, stderr=log, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.02)


def said(folder: Path) -> str:
    """The last line that a process of the folder wrote."""
    return (folder / "log").read_text().splitlines()[-1]


#: A process that holds a lease until it is killed.
HOLDER = """
import sys, time
from sqlalchemy.engine import make_url
from coordinator.storage.lease import Lease
lease = Lease(make_url(sys.argv[1]))
lease.take()
print("held", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("backend", DURABLE)
async def test_the_second_is_refused_and_takes_over_from_a_killed_one(tmp_path: Path, backend: str) -> None:
    with scratch_url(backend, tmp_path) as database:
        folder = make_folder(tmp_path / "second", STORED_AT.format(database=database))
        first = subprocess.Popen([sys.executable, "-c", HOLDER, database], stdout=subprocess.PIPE, text=True)
        assert first.stdout is not None
        try:
            assert await asyncio.to_thread(first.stdout.readline) == "held\n"
            with pytest.raises(LeaseTaken, match="another coordinator already serves the database"):
                await Coordinator(folder).start()
        finally:
            first.send_signal(signal.SIGKILL)
            first.wait()
        async with running(folder) as successor:
            assert successor.market_address


def test_a_second_service_is_refused_in_a_sentence_and_one_whose_lease_is_lost_ends(tmp_path: Path) -> None:
    with scratch_url("postgresql", tmp_path) as database:
        folder = make_folder(tmp_path / "state", STORED_AT.format(database=database)).path
        second = tmp_path / "second"
        shutil.copytree(folder, second)  # with the same keys: as a stand-by on another machine has
        with serve(folder) as serving, serve(second) as other:
            # Either comes first.
            until(lambda: serving.poll() is not None or other.poll() is not None)
            refused, kept = (serving, other) if serving.poll() is not None else (other, serving)
            at = {serving: folder, other: second}
            assert refused.returncode == 3
            assert said(at[refused]).startswith("fedpeer: another coordinator already serves the database ")
            assert "Traceback" not in (at[refused] / "log").read_text()
            until(lambda: (at[kept] / "serving.json").exists())
            end_leases(database)
            assert kept.wait(120) == 3
            lost = "fedpeer: the connection that holds the lease on the database broke"
            assert said(at[kept]).startswith(lost)


def end_leases(database: str) -> None:
    """Breaks the connections that hold a lease in the schema of this database URL."""
    engine = create_engine(make_url(database), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        ended = connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted "
                "AND classid = 731372654 AND objid = hashtext(current_schema())::bigint::bit(32)::bigint::oid"
            )
        ).all()
    engine.dispose()
    assert len(ended) == 1


@pytest.mark.parametrize("backend", DURABLE)
def test_a_lease_is_free_again_when_it_is_given_up(tmp_path: Path, backend: str) -> None:
    with scratch_url(backend, tmp_path) as database:
        first, second = Lease(make_url(database)), Lease(make_url(database))
        first.take()
        with pytest.raises(LeaseTaken, match="already serves"):
            second.take(wait_s=0)
        assert first.held()
        first.release()
        assert not first.held()
        second.take(wait_s=0)
        second.release()


def test_the_sentence_hides_the_password(tmp_path: Path) -> None:
    if "FEDPEER_TEST_POSTGRESQL" not in os.environ:
        pytest.skip("needs a PostgreSQL server: set FEDPEER_TEST_POSTGRESQL, or `source .ci/services.sh`")
    with scratch_url("postgresql", tmp_path) as database:
        url = make_url(database).set(password="secret")
        first, second = Lease(url), Lease(url)
        first.take()
        with pytest.raises(LeaseTaken) as caught:
            second.take(wait_s=0)
        first.release()
        assert "secret" not in str(caught.value)
