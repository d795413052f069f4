"""The console as it is started: a process, alone and beside a coordinator."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPSConnection
from pathlib import Path
from typing import IO

import pytest

from fedpeer.__main__ import main
from fedpeer.console.addresses import announced, served_url
from fedpeer.console.serving import ConsoleServer
from fedpeer.console.sessions import Role, Sessions
from fedpeer.protocol.console_link import console_place
from fedpeer.testing.coordinator import LocalCoordinator
from tests.commands import fedpeer
from tests.fedpeer.console.visiting import Visit, eventually, running, visited
from tests.integration.market import make_folder

pytestmark = pytest.mark.long


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "fedpeer", *arguments]


@contextmanager
def process(*arguments: str) -> Iterator[tuple["subprocess.Popen[str]", IO[str]]]:
    started = subprocess.Popen(
        command(*arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert started.stdout is not None
    try:
        yield started, started.stdout
    finally:
        started.kill()
        started.wait()


def test_it_serves_by_its_own_signs_in_by_a_link_and_ends_by_a_signal(tmp_path: Path) -> None:
    with LocalCoordinator(tmp_path / "market") as coordinator:
        state = coordinator.enrol("alice", tmp_path / "alice")
        folder = str(coordinator.folder.path)
        with process("console", "--state", folder, "--listen", "127.0.0.1:0", "--json") as (running, output):
            url = json.loads(output.readline())["console"]
            made = json.loads(fedpeer("console", "link", "--state", folder, "--json").stdout)
            assert made["link"].startswith(f"{url}/sign-in/?token=")
            visit = Visit(url)
            answer = visit.post("/sign-in/", token=made["link"].partition("token=")[2])
            assert answer.headers["location"] == "/operator/"
            assert visit.get("/operator/").status == 200
            coordinator.operator(lambda operator: operator.fund("trust", "first", 1_000_000))
            made = json.loads(
                fedpeer("console", "link", "--learner", "trust", "--state", folder, "--json").stdout
            )
            learner = Visit(url)
            answer = learner.post("/sign-in/", token=made["link"].partition("token=")[2])
            assert answer.headers["location"] == "/learners/trust/"
            assert learner.get("/learners/trust/").status == 200
            theirs = json.loads(
                fedpeer("participant", "console", url, "--state", str(state), "--json").stdout
            )
            member = Visit(url)
            assert member.post("/sign-in/", token=theirs["link"].partition("token=")[2]).status == 303
            assert member.get("/participants/alice/").status == 200
            watching = Visit(url).open("GET", "/events")  # does not hold up the end
            running.send_signal(signal.SIGTERM)
            assert running.wait(30) == 0
            watching.close()
        assert not served_url(coordinator.folder.console)


@contextmanager
def beside(tmp_path: Path) -> Iterator[tuple["subprocess.Popen[str]", Path]]:
    """A coordinator that has started a console; and the folder that says where it serves."""
    folder = make_folder(tmp_path / "market")
    place = folder.console
    arguments = ("--state", str(folder.path), "--json", "--console-listen", "127.0.0.1:0")
    with process("coordinator", "serve", *arguments) as (coordinator, output):
        assert json.loads(output.readline())["addresses"]
        eventually(lambda: served_url(place), 60)
        yield coordinator, place


@pytest.mark.parametrize("end", [pytest.param(signal.SIGTERM, marks=pytest.mark.extended), signal.SIGKILL])
def test_the_folder_names_a_console_that_still_serves(tmp_path: Path, end: signal.Signals) -> None:
    with beside(tmp_path) as (_, place):
        first = served_url(place)
        arguments = ("--state", str(tmp_path / "market"), "--listen", "127.0.0.1:0")
        with process("console", *arguments) as (second, _):
            eventually(lambda: served_url(place) != first, 60)
            second.send_signal(end)
            assert second.wait(30) == (0 if end is signal.SIGTERM else -end)
        assert served_url(place) == first
        assert len(list(place.glob("address.*"))) == 1


def test_consoles_of_several_machines_may_have_one_address(tmp_path: Path) -> None:
    url = "http://127.0.0.1:8766"
    with announced(tmp_path, url):
        with announced(tmp_path, url):
            pass
        assert served_url(tmp_path) == url
    assert served_url(tmp_path) == ""
    assert list(tmp_path.iterdir()) == []


def gone(url: str) -> bool:
    try:
        Visit(url).get("/")
    except OSError:
        return True
    return False


def test_beside_a_coordinator_it_comes_back_and_ends_with_it(tmp_path: Path) -> None:
    with beside(tmp_path) as (coordinator, place):
        before = served_url(place)
        [child] = Path(f"/proc/{coordinator.pid}/task/{coordinator.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGKILL)
        eventually(lambda: served_url(place) not in ("", before), 60)
        url = served_url(place)
        assert Visit(url).get("/").status == 200
        coordinator.send_signal(signal.SIGTERM)
        assert coordinator.wait(60) == 0
        assert gone(url)
        assert not served_url(place)


def test_it_ends_with_a_coordinator_that_was_killed(tmp_path: Path) -> None:
    with beside(tmp_path) as (coordinator, place):
        url = served_url(place)
        assert Visit(url).get("/").status == 200
        coordinator.kill()
        eventually(lambda: gone(url))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("console", "--state", "nowhere"), "nowhere"),
        (("console", "--listen", "here"), "expected host:port"),
        (("console", "link", "--state", "nowhere"), "nowhere"),
        (("console", "link", "--learner", "nobody"), "no learner 'nobody' has paid in; known: none yet"),
        (("console", "certificate", "x.p12", "--learner", "a", "--auditor"), "are two people"),
        (
            ("coordinator", "serve", "--console-listen", "7445"),
            "--console-listen is '7445'; expected host:port",
        ),
        (("participant", "console", "ftp://x", "--state", "nowhere"), "nowhere"),
    ],
)
def test_a_mistake_is_a_sentence(
    folder: Path,
    arguments: tuple[str, ...],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    named = arguments if "--state" in arguments else (*arguments, "--state", str(folder))
    monkeypatch.setattr(sys, "argv", ["fedpeer", *named])
    monkeypatch.chdir(folder)
    assert exit_code() == 2
    assert sentence in capsys.readouterr().err


def test_a_port_that_is_taken_is_a_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setattr(sys, "argv", ["fedpeer", "console", "--state", str(folder), "--listen", address])
        assert exit_code() == 2
    said = capsys.readouterr().err
    assert f"cannot listen on {address}" in said
    assert "name another with --listen" in said


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("folder") / "market").path


def exit_code() -> int:
    try:
        return main()
    except SystemExit as ended:
        return int(str(ended.code))


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://Market.example.org:7445/", ("https://market.example.org:7445", "market.example.org:7445")),
        ("http://127.0.0.1:7445", ("http://127.0.0.1:7445", "127.0.0.1:7445")),
        ("https://[::1]:7445", ("https://[::1]:7445", "[::1]:7445")),
        ("https://market.example.org:443", ("https://market.example.org", "market.example.org")),
        ("market.example.org", None),
        ("ftp://market.example.org", None),
        ("https://user@market.example.org", None),
        ("https://market.example.org:x", None),
    ],
)
def test_a_consoles_place_is_what_a_browser_calls_it(url: str, place: tuple[str, str] | None) -> None:
    assert console_place(url) == place


def test_on_another_address_it_speaks_tls_with_the_coordinators_certificate(tmp_path: Path) -> None:
    with LocalCoordinator(tmp_path / "market") as coordinator:
        authority = coordinator.folder.path / "authority.pem"
        trusting = ssl.create_default_context(cafile=str(authority))
        server = ConsoleServer(coordinator.folder, "0.0.0.0:0")
        with running(server):
            assert server.url.startswith("https://localhost:")
            port = server.url.rpartition(":")[2]
            connection = HTTPSConnection(f"localhost:{port}", timeout=60, context=trusting)
            connection.request("GET", "/")
            assert connection.getresponse().status == 200
            token = Sessions(coordinator.folder.console, time.time, lambda _: None).link(Role.OPERATOR)
            connection = HTTPSConnection(f"localhost:{port}", timeout=60, context=trusting)
            body = f"token={token}"
            connection.request(
                "POST", "/sign-in/", body, {"Content-Type": "application/x-www-form-urlencoded"}
            )
            answer = connection.getresponse()
            assert answer.status == 303
            assert "Secure" in (answer.headers["set-cookie"] or "")
            with pytest.raises(ssl.SSLCertVerificationError):
                HTTPSConnection(
                    f"localhost:{port}", timeout=60, context=ssl.create_default_context()
                ).connect()


def test_hundreds_of_watchers_are_told_and_cost_one_look_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        LocalCoordinator(tmp_path / "market") as coordinator,
        visited(coordinator.folder, coordinator.clock) as console,
    ):
        looks: list[float] = []
        size = console.server.console.reader.size

        def counted() -> int:
            looks.append(time.monotonic())
            return size()

        monkeypatch.setattr(console.server.console.reader, "size", counted)
        streams = [console.public().open("GET", "/events") for _ in range(200)]
        for stream in streams:
            assert stream.readline() == b"retry: 3000\n"
        began = time.monotonic()
        coordinator.enrol("alice", tmp_path / "alice")
        for stream in streams:
            while b"event: moved" not in stream.readline():
                pass
        assert len([look for look in looks if look >= began]) <= 2 + time.monotonic() - began
        for stream in streams:
            stream.close()
