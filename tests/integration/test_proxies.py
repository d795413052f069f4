"""Behind a forward proxy, which is the only way out: enrolment and a whole task by CONNECT, and what stops it. And
behind real reverse proxies, where they are installed."""

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from participant import Backoff, Participant, UnreachableError
from participant.proxy import Proxy, proxy_for
from tests.chaos.faulty_link import ConnectProxy
from tests.integration.serving import Served, Shift, served
from tests.integration.test_service import peers

QUICK = Backoff(first=0.02, ceiling=0.1, first_contact=0.5)


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "coordinator") as running:
        yield running


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[ConnectProxy]:
    made = ConnectProxy()
    through(monkeypatch, f"http://{made.address}")
    yield made
    made.close()


def through(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """gRPC's own variables: nothing else in this process looks at them."""
    monkeypatch.setenv("grpc_proxy", address)
    monkeypatch.setenv("no_grpc_proxy", "")


def test_a_whole_task_through_a_proxy_that_stalls_and_breaks(
    coordinator: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 4_000_000
    coordinator.open(weights={"w": np.zeros(size // 4, np.float32)}, contract={"max_norm": "100000"})
    threads = peers(coordinator, tmp_path, "task")  # these have a way of their own
    faults = []

    def on_sent(sent: int) -> None:
        if len(faults) < 4 and sent > (len(faults) + 1) * size / 3:
            faults.append(sent)
            proxy.stall(0.2)
            if len(faults) % 2:
                proxy.cut()

    proxy = ConnectProxy(on_sent=on_sent)
    through(monkeypatch, f"http://{proxy.address}")
    state = coordinator.enrol("ada", tmp_path / "ada")
    with Participant(state, coordinator.market, backoff=Backoff(first=0.02, ceiling=0.2)) as ada:
        report = ada.run(Shift([5, 5, 5, 5]), "task", effort=0.0)
    for thread in threads:
        thread.join(60)
    proxy.close()
    assert report.state == "CLOSED"
    assert [line.receipt is not None for line in report.rounds] == [True, True]
    assert proxy.asked == {coordinator.public, coordinator.market}, "nothing went another way"
    assert len(faults) == 4
    assert proxy.sent > 2 * size


def test_a_proxy_that_asks_for_a_password(
    coordinator: Served, tmp_path: Path, proxy: ConnectProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = coordinator.enrol("ada", tmp_path / "ada")
    proxy.password = "ada:se@cret"
    with (
        Participant(state, coordinator.market, backoff=QUICK) as ada,
        pytest.raises(UnreachableError, match=r"refuses CONNECT .*407 .*; write them into it, grpc_proxy="),
    ):
        ada.client.tasks()
    through(monkeypatch, f"http://ada:se%40cret@{proxy.address}")
    with Participant(state, coordinator.market, backoff=QUICK) as ada:
        assert ada.client.tasks() == []
        assert ada.client.transport._endpoint.diagnose() is None


def test_a_proxy_that_refuses_the_port(
    coordinator: Served, tmp_path: Path, proxy: ConnectProxy, caplog: pytest.LogCaptureFixture
) -> None:
    state = coordinator.enrol("ada", tmp_path / "ada")
    proxy.refuses = "403 Forbidden"
    with (
        Participant(state, coordinator.market, backoff=QUICK) as ada,
        pytest.raises(
            UnreachableError, match=r"refuses CONNECT 127.0.0.1:\d+ \(403 Forbidden\); ask its operator"
        ),
    ):
        ada.client.tasks()
    warnings = [record.message for record in caplog.records if "refuses CONNECT" in record.message]
    assert len(warnings) == 1, "a service that waits for ever says what for, once"


def test_a_proxy_that_is_not_there(
    coordinator: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = coordinator.enrol("ada", tmp_path / "ada")
    through(monkeypatch, "http://127.0.0.1:9")
    with (
        Participant(state, coordinator.market, backoff=QUICK) as ada,
        pytest.raises(UnreachableError, match=r"the proxy 127.0.0.1:9 of grpc_proxy does not answer"),
    ):
        ada.client.tasks()


def test_a_proxy_that_stalls_before_it_answers(
    coordinator: Served, tmp_path: Path, proxy: ConnectProxy
) -> None:
    """Calls wait for it and are answered when it goes on."""
    state = coordinator.enrol("ada", tmp_path / "ada")
    with Participant(state, coordinator.market, backoff=Backoff(first=0.02, ceiling=0.1)) as ada:
        proxy._open.clear()
        threading.Timer(1.0, proxy._open.set).start()
        assert ada.client.tasks() == []


NGINX = """
load_module /usr/lib/nginx/modules/ngx_stream_module.so;
daemon off; pid {folder}/pid; error_log stderr;
events {{}}
stream {{ server {{ listen 127.0.0.1:{port}; proxy_pass {market}; }} }}
"""
HAPROXY = """
defaults
    mode tcp
    timeout connect 5s
    timeout client 1h
    timeout server 1h
listen market
    bind 127.0.0.1:{port}
    server coordinator {market}
"""
NGHTTPX = """
frontend=127.0.0.1,{port};no-tls
backend={host},{market_port};;proto=h2
backend-read-timeout=1h
accesslog-file=/dev/null
workers=1
"""

#: Program, its arguments, its configuration, and whether the coordinator goes without TLS then: a proxy that
#: reads HTTP/2 ends TLS, and with it the participant's certificate.
PROXIES = {
    "nginx": (["-c", "{file}", "-p", "{folder}"], NGINX, False),
    "haproxy": (["-f", "{file}"], HAPROXY, False),
    "nghttpx": (["--conf={file}"], NGHTTPX, True),
}


@pytest.mark.parametrize("program", PROXIES)
def test_a_whole_task_behind_a_real_reverse_proxy(tmp_path: Path, program: str) -> None:
    if (found := shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")) is None:
        pytest.skip(f"{program} is not installed")
    arguments, template, insecure = PROXIES[program]
    with served(tmp_path / "coordinator", insecure=insecure) as coordinator, ExitStack() as stack:
        coordinator.open(weights={"w": np.zeros(500_000, np.float32)}, contract={"max_norm": "100000"})
        with socket.create_server(("127.0.0.1", 0)) as chosen:
            port = chosen.getsockname()[1]
        host, _, market_port = coordinator.market.rpartition(":")
        facts = {"folder": tmp_path, "file": tmp_path / "proxy.conf", "port": port, "host": host}
        facts |= {"market": coordinator.market, "market_port": market_port}
        (tmp_path / "proxy.conf").write_text(template.format(**facts))
        process = stack.enter_context(subprocess.Popen([found, *(a.format(**facts) for a in arguments)]))
        stack.callback(process.terminate)
        everyone = {name: Shift([5, 5, 5, 5], step) for step, name in enumerate(("ada", "ben", "cho"), 1)}
        reports = {}

        def run(name: str) -> None:
            state = coordinator.enrol(name, tmp_path / name)
            with Participant(state, f"127.0.0.1:{port}", insecure=insecure) as one:
                reports[name] = one.run(everyone[name], "task", effort=0.0)

        threads = [threading.Thread(target=run, args=(name,)) for name in everyone]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert {name: report.state for name, report in reports.items()} == dict.fromkeys(everyone, "CLOSED")
    assert all(line.receipt is not None for report in reports.values() for line in report.rounds)


@pytest.mark.parametrize(
    ("environment", "host", "found"),
    [
        ({}, "market.example", None),
        ({"https_proxy": "http://p:3128"}, "market.example", Proxy("https_proxy", "p", 3128)),
        ({"http_proxy": "http://p"}, "market.example", Proxy("http_proxy", "p", 80)),
        ({"https_proxy": "http://b:1", "grpc_proxy": "http://a:1"}, "m", Proxy("grpc_proxy", "a", 1)),
        ({"https_proxy": "http://p:1", "no_proxy": "localhost, .example"}, "market.example", None),
        ({"https_proxy": "http://p:1", "no_proxy": "10.0.0.0/8"}, "10.1.2.3", None),
        ({"https_proxy": "http://p:1", "no_proxy": "10.0.0.0/8"}, "11.1.2.3", Proxy("https_proxy", "p", 1)),
        (
            {"https_proxy": "http://p:1", "no_proxy": "m", "no_grpc_proxy": "other"},
            "m",
            Proxy("https_proxy", "p", 1),
        ),
        ({"https_proxy": "socks5://p:1"}, "m", None),
    ],
)
def test_the_proxy_is_found_as_grpc_finds_it(
    environment: dict[str, str], host: str, found: Proxy | None
) -> None:
    assert proxy_for(host, environment) == found
