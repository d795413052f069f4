"""Two coordinators cannot serve one database, and one that was killed does not keep the next one out."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from coordinator.config import TaskConfig, resolve_paths
from coordinator.control_socket import notify
from coordinator.opening import prepare_task
from coordinator.operator import Operator
from coordinator.server import Coordinator
from coordinator.storage.lease import Lease, served
from coordinator.storage.schema import migrate
from coordinator.storage.tasks import TaskRow
from fedpeer.audit.sql.database import Database
from fedpeer.audit.sql.errors import DatabaseUnreachable, LeaseTaken
from fedpeer.exit_codes import REFUSED
from tests.backends import DURABLE, scratch_url
from tests.integration.market import CONFIG, make_folder, open_task, running, task_config
from tests.integration.test_own_workload_market import rows
from tests.integration.test_service_process import join

pytestmark = pytest.mark.long

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


#: A workload whose training lasts, once the file `lasting` is there, and says so by the file `trains`.
LASTING = """
import threading
from pathlib import Path

from torch import nn

from fedpeer.learning.workloads.torch import TorchWorkload

FOLDER = Path(__file__).parent


class Lasting(TorchWorkload):
    def train(self, *arguments, **options):
        if (FOLDER / "lasting").exists():
            (FOLDER / "trains").touch()
            threading.Event().wait()
        return super().train(*arguments, **options)


def mlp():
    return Lasting(lambda: nn.Linear(4, 3), classes=3)
"""


@pytest.mark.extended
async def test_a_service_whose_lease_is_lost_ends_in_the_middle_of_evidence(tmp_path: Path) -> None:
    (tmp_path / "lasting_models.py").write_text(LASTING)
    data = rows((100, 100, 100), 1)
    columns: dict[str, Any] = {f"x{j}": np.asarray(data.inputs)[:, j] for j in range(4)}
    np.savez(tmp_path / "table.npz", level=np.array(["low", "middle", "top"])[data.targets], **columns)
    config = {
        "id": "task", "Q": "1000", "phi": "300", "upsilon": "200", "rule": {"name": "verified"},
        "schedule": {"rounds": 1, "quorum": 3, "capacity": 3, "effort_seconds": 600, "round_seconds": 600},
        "recipe": {
            "model": "lasting_models:mlp", "samples": 150, "epochs": 1, "batch_size": 30, "learning_rate": "0.01",
        },
        "data": {"file": "table.npz", "inputs": list(columns), "target": "level"},
        "evidence": {"shadows": 12},
    }  # fmt: skip
    with scratch_url("postgresql", tmp_path) as database:
        folder = make_folder(tmp_path / "state", STORED_AT.format(database=database))
        with closing(Operator(folder)) as operator:
            task = resolve_paths(TaskConfig.model_validate(config), tmp_path)
            operator.open(prepare_task(task, time.time()))
        (tmp_path / "lasting").touch()
        with serve(folder.path) as serving:
            await asyncio.to_thread(until, folder.addresses.exists)
            addresses = json.loads(folder.addresses.read_text())
            for name in ("ann", "bob", "cyd"):
                client = await join(folder.path, addresses, name)
                await client.claim(counts=(50, 50, 50))
                await client.close()
            await asyncio.to_thread(until, (tmp_path / "trains").exists)
            end_leases(database)
            assert await asyncio.to_thread(serving.wait, 120) == REFUSED
        # And nothing after it: Python names what a process leaves behind.
        assert said(folder.path).startswith(
            "fedpeer: the connection that holds the lease on the database broke"
        )


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


@pytest.mark.parametrize("backend", DURABLE)
def test_a_stand_by_asks_again_and_again_over_one_connection(tmp_path: Path, backend: str) -> None:
    with scratch_url(backend, tmp_path) as database:
        first, second = Lease(make_url(database)), Lease(make_url(database))
        assert first.attempt()
        assert not second.attempt()
        asks = second.descriptor
        assert not second.attempt()
        assert second.descriptor == asks
        if backend == "postgresql":
            assert second._connection is not None
            # As a restart of the server breaks it.
            driver: Any = second._connection.connection.driver_connection
            first._connection.execute(text(f"SELECT pg_terminate_backend({driver.info.backend_pid})"))  # type: ignore[union-attr]
            assert not second.attempt()
        assert first.held()
        first.release()
        second.take(wait_s=10)  # the server frees the lease when it sees that the connection is closed
        assert second.held()
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


@contextmanager
def held(database: str) -> Iterator[None]:
    """Another process holds the lease on a database."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, database], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield
    finally:
        process.kill()
        process.wait()


def test_every_name_of_a_sqlite_file_leads_to_one_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "folder" / "market.db"
    file.parent.mkdir()
    (tmp_path / "link.db").symlink_to(file)
    (tmp_path / "chain.db").symlink_to(tmp_path / "link.db")
    (tmp_path / "linked").symlink_to(file.parent)
    with held(f"sqlite:///{file}"):
        hard = tmp_path / "hard.db"
        hard.hardlink_to(file)
        with pytest.raises(DatabaseUnreachable, match="has 2 names"):
            Lease(make_url(f"sqlite:///{hard}")).take(wait_s=0)
        hard.unlink()
        monkeypatch.chdir(file.parent)
        for name in (
            *(
                str(tmp_path / name)
                for name in ("link.db", "chain.db", "linked/market.db", "./folder/market.db")
            ),
            f"{tmp_path}//folder/../linked/market.db",
            "market.db",
            "../link.db",
        ):
            for driver in ("sqlite", "sqlite+pysqlite"):
                with pytest.raises(LeaseTaken, match="already serves"):
                    Lease(make_url(f"{driver}:///{name}")).take(wait_s=0)
                assert served(make_url(f"{driver}:///{name}"))
    assert not served(make_url(f"sqlite:///{file}"))
    assert [path.name for path in file.parent.iterdir()] == ["market.db"]


@pytest.mark.extended
def test_a_second_service_through_a_link_is_refused_in_a_sentence(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state").path
    with serve(folder):
        until(lambda: (folder / "serving.json").exists())
        second = tmp_path / "second"
        shutil.copytree(folder, second, ignore=shutil.ignore_patterns("*.db*", "*.sock", "log"))
        (second / "coordinator.db").symlink_to(folder / "coordinator.db")
        (tmp_path / "linked").symlink_to(folder)
        with serve(second) as other:
            assert other.wait(120) == 3
        assert said(second).startswith("fedpeer: another coordinator already serves the database sqlite:///")
        command = [
            sys.executable,
            "-m",
            "fedpeer",
            "coordinator",
            "serve",
            "--state",
            str(tmp_path / "linked"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 3
        assert "another coordinator already serves from" in done.stderr


def test_every_url_of_a_postgresql_schema_leads_to_one_lease(tmp_path: Path) -> None:
    with scratch_url("postgresql", tmp_path) as database, scratch_url("postgresql", tmp_path) as empty:
        url = make_url(database)
        holder = Database(database)
        migrate(holder)
        holder.close()
        schema, before = (
            str(make_url(u).query["options"]).partition("search_path=")[2] for u in (database, empty)
        )
        with held(database):
            for options, other in (
                (f"-csearch_path={schema},public", {"application_name": "other"}),
                # An empty schema that comes first: its tables are still the other's.
                (f"-c search_path={before},{schema}", {}),
                (f"-csearch_path=nowhere,{schema}", {"connect_timeout": "30"}),
            ):
                again = url.update_query_dict({"options": options, **other})
                with pytest.raises(LeaseTaken, match="already serves"):
                    Lease(again).take(wait_s=0)
            assert not served(make_url(empty))


async def test_commands_at_once_take_a_task_up_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder(tmp_path / "state")
    async with running(folder) as coordinator:
        with monkeypatch.context() as short:  # while this thread opens, the service in it cannot answer
            short.setattr("coordinator.control_socket.ANSWER_SECONDS", 0.0001)
            open_task(folder, task_config(tmp_path))
        taken: list[str] = []
        take_up = coordinator._take_up

        async def noted(row: TaskRow) -> None:
            taken.append(row.id)
            await take_up(row)

        coordinator._take_up = noted  # type: ignore[method-assign]
        answers = await asyncio.gather(*(asyncio.to_thread(notify, folder.control_socket) for _ in range(5)))
        assert answers == [{}] * 5
        assert taken == ["task"]
