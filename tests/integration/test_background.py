"""What the service does beside its calls: a database that fails once at any line ends none of it, and what fails for
long is seen from outside."""

import asyncio
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

import coordinator.runner
import coordinator.server
import coordinator.supervision
from coordinator.operator import Operator
from coordinator.runner import TaskRunner
from coordinator.server import Coordinator
from fedpeer.__main__ import main
from participant import Backoff, Participant, TaskReport
from tests.backends import scratch_url
from tests.faulty_database import Decide, Faults, each_statement_once, faulty_sqlite
from tests.integration.market import delivered, make_folder, open_task, revoke, running, task_config, verified
from tests.integration.serving import Served, Shift, served

pytestmark = pytest.mark.long

NAMES = ("ada", "ben", "cho")
COUNTS = {"ada": [5, 5, 5, 5], "ben": [8, 4, 4, 4], "cho": [10, 5, 3, 2]}


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    """Of the coordinator's database; what fails is tried again soon."""
    monkeypatch.setattr(coordinator.runner, "_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(coordinator.runner, "_RETRY_LIMIT_SECONDS", 0.05)
    monkeypatch.setattr(coordinator.supervision, "_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(coordinator.supervision, "_RETRY_LIMIT_SECONDS", 0.05)
    # Hundreds of tracebacks, which take structlog seconds each as long as nothing else is configured.
    with faulty_sqlite(monkeypatch) as found, structlog.testing.capture_logs():
        yield found


@contextmanager
def enrolled(path: Path, database: str = "") -> Iterator[tuple[Served, dict[str, Participant]]]:
    backoff = Backoff(first=0.01, ceiling=0.1, patience=120.0)
    with served(path / "coordinator", database=database) as market:
        members = {name: market.participant(name, path, backoff=backoff) for name in NAMES}
        try:
            yield market, members
        finally:
            for member in members.values():
                member.close()


def take_part(members: dict[str, Participant], task_id: str) -> dict[str, TaskReport]:
    """A whole task with everybody."""
    found: dict[str, Any] = {}

    def one(name: str) -> None:
        try:
            found[name] = members[name].run(Shift(COUNTS[name]), task_id, effort=0.0)
        except BaseException as error:
            found[name] = error

    threads = [threading.Thread(target=one, args=(name,)) for name in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    for report in found.values():
        if isinstance(report, BaseException):
            raise report
    return found


def check(reports: dict[str, TaskReport], rounds: int) -> None:
    assert len(reports) == len(NAMES)
    for report in reports.values():
        assert report.state == "CLOSED"
        assert [line.missed for line in report.rounds] == [""] * rounds
        assert all(line.settlement is not None and line.settlement.paid_micro > 0 for line in report.rounds)


@pytest.mark.parametrize("committed", [False, True], ids=["undone", "done unheard"])
def test_a_task_ends_though_every_statement_of_the_database_fails_once(
    tmp_path: Path, faults: Faults, committed: bool
) -> None:
    faults.committed = committed
    with enrolled(tmp_path) as (market, members):
        market.open("task", schedule={"rounds": 1})
        with faults.when(each_statement_once()):
            check(take_part(members, "task"), rounds=1)
    assert len(set(faults.failed)) > 30
    assert {"COMMIT", "BEGIN", "BEGIN IMMEDIATE"} <= set(faults.failed)
    assert verified(market.folder).counts.payments == len(NAMES)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_task_ends_wherever_the_database_fails(tmp_path: Path, faults: Faults) -> None:
    """At each number of a statement in turn, a bit further each time, until a task has no more statements."""

    def nth(number: int) -> Decide:
        return lambda text, at: at == number

    with enrolled(tmp_path) as (market, members):
        number = tasks = 0
        while faults.statements >= number:
            number, tasks = number + 1 + number // 20, tasks + 1
            market.open(f"task-{tasks}", schedule={"rounds": 1})
            with faults.when(nth(number)):
                check(take_part(members, f"task-{tasks}"), rounds=1)
    print(f"{tasks} tasks, up to statement {number}")  # noqa: T201 - for -s
    assert verified(market.folder).counts.payments == tasks * len(NAMES)


def test_a_task_ends_though_postgresql_breaks_every_connection_again_and_again(
    tmp_path: Path, faults: Faults
) -> None:
    """All but the one that holds the lease: that one's end is the service's."""
    with scratch_url("postgresql", tmp_path) as scratch:
        mark = uuid.uuid4().hex
        url = make_url(scratch).update_query_dict({"application_name": mark}).render_as_string(False)
        with enrolled(tmp_path, url) as (market, members):
            market.open("task")
            over, killer = threading.Event(), create_engine(scratch, isolation_level="AUTOCOMMIT")
            killed: list[int] = []

            def break_connections() -> None:
                with killer.connect() as connection:
                    while not over.wait(0.1):
                        killed.append(len(connection.execute(_BREAK, {"mark": mark}).all()))

            breaking = threading.Thread(target=break_connections)
            breaking.start()
            try:
                check(take_part(members, "task"), rounds=2)
            finally:
                over.set()
                breaking.join()
                killer.dispose()
            assert sum(killed) > 0
        assert verified(market.folder).counts.payments == 2 * len(NAMES)


#: Ends the sessions of one service, its lease apart.
_BREAK = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = :mark "
    "AND pid NOT IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')"
)


async def test_a_command_is_taken_up_though_the_database_fails_at_first(
    tmp_path: Path, faults: Faults
) -> None:
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path))
    async with running(folder) as service:
        members = await delivered(service, NAMES)

        def restarts() -> float:
            count = service.metrics.registry.get_sample_value(
                "fedpeer_duty_restarts_total", {"duty": "commands"}
            )
            return count or 0

        # Other reads of the table fail, too, and are tried again.
        with faults.when(lambda text, at: "certificates" in text and restarts() < 3):
            service._outdated.set()
            while restarts() < 3:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(revoke, folder, "ada")
        assert service._roster.counts() == (2, 1)
        assert restarts() == 3
        for client in members:
            await client.close()


async def healthy(address: str, authority: bytes, wanted: int) -> None:
    """Waits for a state of the service's health, which follows the gauges."""
    async with grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(authority)) as channel:
        async for answer in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()):
            if answer.status == wanted:
                return
    raise AssertionError("the service ended its health's stream")


async def test_a_runner_that_ends_is_started_again_counted_alarmed_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(coordinator.supervision, "LASTING_SECONDS", 0.0)
    monkeypatch.setattr(coordinator.supervision, "_RETRY_LIMIT_SECONDS", 0.5)
    folder = make_folder(tmp_path / "state")
    open_task(folder, task_config(tmp_path, schedule={"rounds": 1}))
    authority = (folder.path / "authority.pem").read_bytes()
    repaired, take_steps = asyncio.Event(), TaskRunner._take_steps

    async def failing(self: TaskRunner, well: Any) -> None:
        if not repaired.is_set():
            raise ValueError("a bug")
        await take_steps(self, well)

    monkeypatch.setattr(TaskRunner, "_take_steps", failing)
    taking_up = coordinator.server.Coordinator._reload

    async def failing_at_once(self: Coordinator) -> None:
        await taking_up(self)
        await asyncio.sleep(0.05)  # the runner has failed before the service says that it serves

    monkeypatch.setattr(coordinator.server.Coordinator, "_reload", failing_at_once)
    async with running(folder) as service:

        def sample(name: str, **labels: str) -> float | None:
            return service.metrics.registry.get_sample_value(name, labels)

        while (sample("fedpeer_duty_restarts_total", duty="task task") or 0) < 2:
            await asyncio.sleep(0.01)
        assert sample("fedpeer_duty_failing", duty="task task") == 1
        assert sample("fedpeer_task_stalled", task="task") == 1
        await healthy(service.public_address, authority, health_pb2.HealthCheckResponse.NOT_SERVING)
        status = await asyncio.to_thread(_status, folder.path)
        assert "task task fails, and is tried again: ValueError: a bug" in capsys.readouterr().out
        assert status == 0
        operator = Operator(folder)
        found = await asyncio.to_thread(operator.serving)
        operator.close()
        assert found is not None
        assert found.troubles == {"task task": "ValueError: a bug"}
        repaired.set()
        members = await delivered(service, NAMES)
        await members[0].until("CLOSED")
        assert sample("fedpeer_duty_failing", duty="task task") == 0
        assert sample("fedpeer_task_stalled", task="task") == 0
        assert service.troubles() == {}
        await healthy(service.public_address, authority, health_pb2.HealthCheckResponse.SERVING)
        for client in members:
            await client.close()
    assert verified(folder).counts.payments == len(NAMES)


def _status(state: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["fedpeer", "coordinator", "status", "--state", str(state)])
        try:
            return main()
        except SystemExit as end:
            return int(end.code or 0)
