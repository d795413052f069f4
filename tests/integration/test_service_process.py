"""The coordinator as the operator runs it: a process, the command line beside it, signals."""

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import coordinator.control_socket
from coordinator.command_output import UNCONFIRMED
from coordinator.folder import StateFolder
from fedpeer.__main__ import main
from fedpeer.protocol.certificates import new_key, signing_request
from fedpeer.v1 import enrolment_pb2, enrolment_pb2_grpc, market_pb2
from tests import commands
from tests.integration.market import Client, model_like, task_config, verified

pytestmark = pytest.mark.long

TASK = """
id = "task"
Q = 1000
phi = 300
upsilon = 200
reference = ["1/4", "1/4", "1/4", "1/4"]
initial_model = "initial.safetensors"
[rule]
name = "paper"
[schedule]
rounds = 1
quorum = 3
capacity = 3
[recipe]
model = "custom"
samples = 100
"""


def fedpeer(*arguments: str) -> subprocess.CompletedProcess[str]:
    return commands.fedpeer("coordinator", *arguments)


def made(folder: Path, *arguments: str) -> dict[str, Any]:
    """The JSON object that a command printed."""
    done = fedpeer(*arguments, "--state", str(folder), "--json")
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@contextmanager
def serving(folder: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """A served folder; yields the process and its addresses."""
    command = [sys.executable, "-m", "fedpeer", "coordinator", "serve", "--json", "--state", str(folder)]
    # A file, not a pipe that nobody reads: a full pipe would stop the service.
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()  # the end of the output, where it does not come to serve
        assert line, (folder / "log").read_text()
        addresses = json.loads(line)["addresses"]
        assert json.loads((folder / "serving.json").read_text()) == addresses
        yield process, addresses
    finally:
        process.kill()
        process.wait()
    lines = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
    assert not [line for line in lines if line["level"] == "error"]


async def join(folder: Path, addresses: dict[str, str], name: str) -> Client:
    return await enrolled_with(addresses, name, await asyncio.to_thread(made, folder, "invite", name))


async def enrolled_with(addresses: dict[str, str], name: str, invitation: dict[str, Any]) -> Client:
    key = new_key()
    async with grpc.aio.secure_channel(
        addresses["public"], grpc.ssl_channel_credentials(invitation["authority"].encode())
    ) as channel:
        response = await enrolment_pb2_grpc.EnrolmentStub(channel).Enroll(
            enrolment_pb2.EnrollRequest(
                participant_id=name,
                token=invitation["token"],
                certificate_signing_request=signing_request(name, key),
            )
        )
    return Client(name, key, response.certificate, response.authority, addresses["market"])


@asynccontextmanager
async def public(folder: Path, addresses: dict[str, str]) -> AsyncIterator[grpc.aio.Channel]:
    authority = (folder / "authority.pem").read_bytes()
    async with grpc.aio.secure_channel(
        addresses["public"], grpc.ssl_channel_credentials(authority)
    ) as channel:
        yield channel


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "a folder whose path is too long for a socket" / ("x" * 60) / "state"
    arguments = ["--market", "127.0.0.1:0", "--public", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
    done = fedpeer("init", str(path), "--host", "localhost", "--host", "127.0.0.1", *arguments)
    assert done.returncode == 0, done.stderr
    task_config(tmp_path)  # writes the initial model
    (tmp_path / "task.toml").write_text(TASK)
    return path


async def test_a_task_by_commands_across_a_kill_and_a_termination(folder: Path, tmp_path: Path) -> None:
    with serving(folder) as (process, addresses):
        opened = made(folder, "open", str(tmp_path / "task.toml"), "--yes")
        assert opened["bill_micro"] == opened["budget_micro"] == 3 * 1_609_438
        members = [await join(folder, addresses, name) for name in ("ann", "bob", "cyd")]
        await members[0].until("EFFORT")
        for client in members:
            await client.claim()
        await members[0].until("TRAINING")
        await members[0].submit(model_like(0), 1)
        await check_health(folder, addresses)
        check_metrics(addresses)
        for client in members:
            await client.close()
        process.send_signal(signal.SIGKILL)
        process.wait()
    with serving(folder) as (process, addresses):
        for number, client in enumerate(members):
            client.address = addresses["market"]
            receipt = await client.submit(model_like(number), 1)
            assert not receipt.late
        await members[0].until("CLOSED")
        watch = members[0].market.Watch(market_pb2.WatchRequest(task_id="task"))
        assert [event.cursor async for event in watch] == list(range(1, 8))
        status = made(folder, "status", "task")
        assert status["serving"]
        assert status["tasks"][0]["state"] == "CLOSED"
        assert sum(status["tasks"][0]["paid_micro"].values()) > 0
        for client in members:
            await client.close()
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 30) == 0
    assert not made(folder, "status")["serving"]
    verified(StateFolder(folder))


async def check_health(folder: Path, addresses: dict[str, str]) -> None:
    async with public(folder, addresses) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "fedpeer.v1.Market"):
            response = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert response.status == health_pb2.HealthCheckResponse.SERVING
        reflect = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        answer = await anext(aiter(reflect.ServerReflectionInfo(iter([asked]))))
        names = {service.name for service in answer.list_services_response.service}
        assert {"fedpeer.v1.Market", "fedpeer.v1.Enrolment", "fedpeer.v1.Ledger"} <= names


def check_metrics(addresses: dict[str, str]) -> None:
    # An opener of its own: the shared one keeps the proxy that the environment had at its first use.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    delivered = 'fedpeer_task_participants{standing="delivered",task="task"} 1.0'
    text, until = "", time.monotonic() + 60
    while delivered not in text and time.monotonic() < until:  # arrivals are counted a few times a second
        with direct.open(f"http://{addresses['metrics']}/metrics") as response:
            text = response.read().decode()
    assert delivered in text
    assert 'fedpeer_participants{standing="enrolled"} 3.0' in text
    assert 'fedpeer_task_round{task="task"} 1.0' in text
    assert 'fedpeer_tasks{state="TRAINING"} 1.0' in text
    assert 'fedpeer_escrow_micro{task="task"} 4.828314e+06' in text
    assert 'fedpeer_rpc_seconds_count{method="Market/SubmitEffort",status="OK"} 3.0' in text


BAD_TASKS = {
    "an unknown key": ("Q = 1000", "Q = 1000\nquality = 3", "unknown key quality"),
    "a missing key": ("Q = 1000", "", "missing key Q"),
    "no positive Q": ("Q = 1000", "Q = 0", "Q is 0;"),
    "no positive phi": ("phi = 300", "phi = -1", "phi is -1;"),
    "no positive upsilon": ("upsilon = 200", "upsilon = 0.0", "upsilon is 0.0;"),
    "a reference that does not sum to 1": ('["1/4", "1/4"', '["1/2", "1/4"', "sum to 1"),
    "a quorum of two": ("quorum = 3", "quorum = 2", "schedule.quorum is 2"),
    "a wrong type": ("rounds = 1", 'rounds = "many"', "schedule.rounds is 'many'"),
    "a string where a table is meant": (
        '[rule]\nname = "paper"',
        'rule = {name = "paper"}\nevidence = "many"',
        "evidence is 'many'; expected a table, [evidence], with keys of later, seconds, shadows, trainings",
    ),
    "a capacity beyond all bounds": (
        "capacity = 3",
        "capacity = 100000000000",
        "schedule.capacity is 100000000000; expected at most 5596487255",
    ),
    "a bill that the ledger cannot hold": (
        "[schedule]\nrounds = 1\nquorum = 3\ncapacity = 3",
        '[payment]\nname = "linear"\nscale = 100\n[schedule]\nrounds = 10000\nquorum = 3\ncapacity = 10000',
        "schedule.capacity is 10000; expected at most 1801",
    ),
    "a payment that the ledger cannot hold": (
        "Q = 1000",
        'Q = 1000\npayment = {name = "linear", scale = 1e15}',
        "Q is 1000; expected less",
    ),
    "an integer that the ledger cannot hold": (
        "samples = 100",
        "samples = 10000000000000000000",
        "recipe.samples is an integer of more than the 64 bits that TOML gives it",
    ),
    "a deadline in another age": (
        "capacity = 3",
        "capacity = 3\nround_seconds = 100000000000",
        "schedule.round_seconds is 100000000000; expected at most 31622400",
    ),
    "a recipe out of range": ("samples = 100", "samples = 0", "recipe.samples is 0"),
    "a number that nobody writes so": (
        "samples = 100",
        "samples = 100\nlearning_rate = 1e30",
        "recipe.learning_rate is 1000000000000000000000000000000; expected at most 30 digits",
    ),
    "an aggregation out of range": (
        "Q = 1000",
        'Q = 1000\naggregation = {name = "fedavgm", rate = 0}',
        "aggregation.rate is 0; expected a decimal above 0",
    ),
    "patterns that a mean does not take": (
        "Q = 1000",
        'Q = 1000\naggregation = {name = "fedavg", averaged = []}',
        "aggregation.averaged is []; expected no such key: fedavg has no parameters",
    ),
    "no TOML": ("id =", "id", "not valid TOML"),
    "an unknown rule": ('name = "paper"', 'name = "kind"', "rule.name is 'kind'"),
    "a rule that needs data": ('name = "paper"', 'name = "verified"', "[data]"),
    "a missing model": ("initial.safetensors", "elsewhere.safetensors", "is missing"),
    "a budget that is too small": ("Q = 1000", "Q = 1000\nbudget_micro = 5", "at least 4828314"),
}


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that nobody serves from."""
    path = tmp_path_factory.mktemp("idle")
    task_config(path)
    assert fedpeer("init", str(path / "state")).returncode == 0
    return path


@pytest.mark.parametrize("case", BAD_TASKS)
def test_a_task_file_that_is_wrong_is_refused_in_a_sentence(idle: Path, case: str) -> None:
    from typer.testing import CliRunner

    from coordinator.cli import app
    from coordinator.errors import CoordinatorError
    from mechanism.errors import FieldError, MechanismError

    old, new, words = BAD_TASKS[case]
    assert old in TASK
    file = idle / "wrong.toml"
    file.write_text(TASK.replace(old, new))
    # `fedpeer` turns these errors into a sentence and exit code 2; see the test below.
    result = CliRunner().invoke(app, ["open", str(file), "--state", str(idle / "state"), "--json", "--yes"])
    assert isinstance(result.exception, CoordinatorError | MechanismError), result.exception
    assert words in str(result.exception)
    if isinstance(result.exception, FieldError):
        assert str(result.exception).startswith(f"{file}: ")
    assert json.loads(
        CliRunner().invoke(app, ["tasks", "--state", str(idle / "state"), "--json"]).stdout
    ) == {"tasks": []}


def test_a_service_that_does_not_answer_is_reported_and_nothing_is_lost(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str, code: int = 0, state: Path = folder) -> tuple[dict[str, Any], str]:
        monkeypatch.setattr(
            sys, "argv", ["fedpeer", "coordinator", *arguments, "--state", str(state), "--json"]
        )
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert ended.value.code == code, said.err
        assert "Traceback" not in said.err
        return json.loads(said.out), said.err

    record, note = run("invite", "eve")
    assert (record["service"], note) == (
        "not served",
        "Recorded. No coordinator runs; the next one begins with it.\n",
    )
    monkeypatch.setattr(coordinator.control_socket, "ANSWER_SECONDS", 0.5)
    with serving(folder) as (process, addresses):
        assert run("status")[0]["answers"]
        record, note = run("invite", "bob")
        assert (record["service"], note) == (
            "confirmed",
            "In force: the coordinator that runs has taken notice.\n",
        )
        process.send_signal(signal.SIGSTOP)
        record, note = run("status")
        assert (record["serving"], record["answers"]) == (True, False)
        assert "has not answered" in note
        for arguments in (
            ("revoke", "bob"),
            ("open", str(tmp_path / "task.toml"), "--yes"),
            ("invite", "ann"),
        ):
            record, note = run(*arguments, code=UNCONFIRMED)  # the last is the invitation that is used below
            assert record["service"] == "unconfirmed"
            assert (
                "Recorded, NOT CONFIRMED: the coordinator that serves this database has not answered" in note
            )
        assert run("cancel", "task", code=UNCONFIRMED)[0]["state"] == "CANCELLED"
        process.send_signal(signal.SIGCONT)
        found, note = run("status")
        assert (found["serving"], found["answers"], note) == (True, True, "")
        client = asyncio.run(enrolled_with(addresses, "ann", record))
        assert client.name == "ann"
        # A door that is gone is not a service that is gone; nor is one in another folder.
        shutil.copytree(
            folder, folder.parent / "other", ignore=shutil.ignore_patterns("*.db*", "*.sock", "log")
        )
        (folder.parent / "other" / "coordinator.db").symlink_to(folder / "coordinator.db")
        assert (
            run("invite", "cyd", code=UNCONFIRMED, state=folder.parent / "other")[0]["service"]
            == "unconfirmed"
        )
        (folder / "control.sock").unlink()
        assert run("invite", "cyd", code=UNCONFIRMED)[0]["service"] == "unconfirmed"
    assert run("invite", "cyd")[0]["service"] == "not served"
    (folder / "control.sock").write_text("no socket")
    assert run("invite", "cyd")[0]["service"] == "not served"


def test_an_invitation_can_be_replaced_and_withdrawn(idle: Path) -> None:
    state = idle / "state"
    first = made(state, "invite", "eve")
    assert first["withdrawn"] == 0
    assert made(state, "invite", "eve")["withdrawn"] == 1
    assert made(state, "revoke", "eve") == {
        "participant": "eve",
        "revoked": False,
        "withdrawn": True,
        "service": "not served",
        "pseudonyms": [],
        "standing": [],
    }
    again = fedpeer("revoke", "eve", "--state", str(state))
    assert (again.returncode, "no invitation" in again.stderr) == (2, True)


def test_a_users_mistake_is_one_sentence_and_exit_code_2(
    idle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (
        ["open", "nowhere.toml", "--state", str(idle / "state")],
        ["status", "--state", str(idle / "nowhere")],
        ["init", str(idle / "state")],
        ["cancel", "nothing", "--state", str(idle / "state")],
        ["revoke", "nobody", "--state", str(idle / "state")],
        ["invite", "Bad Name", "--state", str(idle / "state")],
    ):
        monkeypatch.setattr(sys, "argv", ["fedpeer", "coordinator", *arguments])
        assert main() == 2, arguments
        said = capsys.readouterr()
        assert said.err.startswith("fedpeer: ")
        assert said.out == ""


def test_keys_are_readable_by_their_owner_alone(idle: Path) -> None:
    for key in (idle / "state").glob("*.key"):
        assert key.stat().st_mode & 0o077 == 0
