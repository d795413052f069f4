"""`fedpeer worker`: what keeps it from working is said, and nothing of it can be read without a certificate."""

import asyncio
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psutil
import pytest

from coordinator import worker_cli
from coordinator.config import WORKER_FILE, ServiceConfig, parse_config
from coordinator.errors import ConfigError, FolderError, ServeError
from fedpeer.learning.arithmetic import arithmetic, arithmetic_digest
from tests.chaos.test_worker_kills import Place, placed

#: Pages of Dask's that tell of workers and of what they do.
PAGES = ("info/main/workers.html", "metrics")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(worker_cli, "configure_logs", lambda: None)
    with placed(tmp_path / "place") as made:
        yield made


@pytest.mark.parametrize("listen", ["127.0.0.1:99999", "127.0.0.1:x", "8786", "no.such.host.invalid:8786"])
def test_an_address_that_there_is_not_is_refused(listen: str, place: Place) -> None:
    with pytest.raises(ServeError, match=r"^--listen "):
        worker_cli.schedule(place.worker, listen)


@pytest.mark.long
def test_a_scheduler_listens_at_an_ipv6_address(place: Place) -> None:
    try:
        with socket.socket(socket.AF_INET6) as tried:
            tried.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    place.run("schedule", "--listen", f"[::1]:{place.port}")


def test_a_host_that_is_not_this_machine_is_refused(place: Place) -> None:
    with pytest.raises(ServeError, match=r"^--host 203\.0\.113\.9 is no address of this machine: "):
        worker_cli.run(place.worker, 1, "203.0.113.9")


@pytest.mark.parametrize("file", ["workers.pem", "worker.pem", "worker.key"])
def test_a_certificate_that_cannot_be_used_is_refused_at_once(file: str, place: Place) -> None:
    (place.worker / file).write_text("-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n")
    with pytest.raises(FolderError, match=r"cannot be used .*; have the folder made again by `fedpeer coord"):
        worker_cli.run(place.worker, 1, "")


@pytest.mark.parametrize("command", [lambda path: worker_cli.run(path, 1, ""), worker_cli.schedule])
def test_another_folder_is_no_workers(command: Callable[[Path], None], place: Place) -> None:
    for path in (place.folder.path, place.worker / "none"):
        with pytest.raises(
            FolderError, match=r"is not a worker's folder: .* `fedpeer coordinator worker FOLDER` makes one"
        ):
            command(path)


@pytest.mark.extended
def test_a_worker_of_another_market_and_one_of_another_arithmetic_are_told_what_is_wrong(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.schedule()
    with placed(tmp_path / "other") as other:
        text = (other.worker / WORKER_FILE).read_text()
        (other.worker / WORKER_FILE).write_text(text.replace(str(other.port), str(place.port)))
        process = subprocess.Popen(
            [sys.executable, "-m", "fedpeer", "worker", "run", str(other.worker), "--processes", "1"],
            stderr=subprocess.PIPE,
        )
        assert process.stderr is not None
        while b"no work from" not in (line := process.stderr.readline()):
            assert line
        process.kill()
        process.wait()
        process.stderr.close()
    assert (
        b"do not go together: they are of two markets, or one is out of date; have both folders made" in line
    )

    monkeypatch.setenv("OPENBLAS_CORETYPE", "Nehalem")  # as on an older processor
    place.work(1)
    executor = place.executor()
    waiting = executor.submit(sum, (1, 2))
    while not executor.trouble:
        assert not wait([waiting], timeout=0.1).done
    assert f"has 1 worker and none of this machine's arithmetic, {arithmetic_digest(arithmetic())}: blas" in (
        executor.trouble
    )
    executor.shutdown()


def test_what_a_worker_waits_for_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until the reason is another."""
    reasons = ["a line that was cut", "refused", "refused"]

    class Away:
        def __await__(self) -> Any:
            yield from asyncio.sleep(0).__await__()
            raise OSError(reasons.pop())

        async def close(self) -> None:
            pass

    monkeypatch.setattr(worker_cli, "_AGAIN", 0.0)
    with suppress(IndexError):  # no more reasons
        asyncio.run(worker_cli._keep_working(Away, worker_cli._Said("dask://there:8786")))
    assert capsys.readouterr().err.splitlines() == [
        "no work from dask://there:8786 (refused); it is tried again and again",
        "no work from dask://there:8786 (a line that was cut); it is tried again and again",
    ]


def read(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bytes(answer.read())
    except (OSError, HTTPException):  # 404, or no HTTP at all
        return b""


@pytest.mark.long
def test_nothing_of_a_scheduler_or_a_worker_is_shown_without_a_certificate(place: Place) -> None:
    place.scheduler = place.run("schedule", "--listen", f"0.0.0.0:{place.port}")
    place.work(1)
    assert place.workers is not None
    shown = 0
    for process in (place.scheduler, place.workers):
        whole = psutil.Process(process.pid)
        for each in (whole, *whole.children(recursive=True)):
            ports = [c.laddr.port for c in each.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
            shown += len(ports)
            for url in (f"http://127.0.0.1:{port}/{page}" for port in ports for page in PAGES):
                assert not read(url), url
    assert shown >= 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[workers]\nexecutor = "dask://there:99999"',
            "workers.executor is 'dask://there:99999'; expected a port from 1 to 65535",
        ),
        (
            '[workers]\nexecutor = "dask://there:0"',
            "workers.executor is 'dask://there:0'; expected a port from 1 to 65535",
        ),
        ("[workers]\nwait_seconds = inf", "workers.wait_seconds is inf; expected a finite number"),
        ("[server]\nabsence_seconds = nan", "server.absence_seconds is nan; expected a finite number"),
        (
            '[s3]\nbucket = "models"\nendpoint = "http://there:99999"',
            "s3.endpoint is 'http://there:99999'; expected a port from 1 to 65535",
        ),
        ('[s3]\nbucket = ".."', "s3.bucket is '..'; expected a bucket's name: 3 to 63 of"),
        ('[s3]\nbucket = "10.0.0.1"', "s3.bucket is '10.0.0.1'; expected a bucket's name"),
        ('[s3]\nbucket = "My_Models"', "s3.bucket is 'My_Models'; expected a bucket's name"),
        (
            '[s3]\nbucket = "models"\nprefix = "a/../b"',
            "s3.prefix is 'a/../b'; expected what names begin with",
        ),
        ('[s3]\nbucket = "models"\nprefix = "/a"', "s3.prefix is '/a'; expected what names begin with"),
        (
            '[s3]\nbucket = "models"\nendpoint = "there:9000"',
            "s3.endpoint is 'there:9000'; expected the store's URL",
        ),
        (
            '[s3]\nbucket = "models"\nendpoint = "http://there/"',
            "s3.endpoint is 'http://there/'; expected the store's URL",
        ),
        ('[s3]\nendpoint = "http://there:9000"', "s3: endpoint is given and no bucket"),
        ('[s3]\nprefix = "market-a"', "s3: prefix is given and no bucket"),
    ],
)
def test_settings_beyond_one_machine_that_nothing_can_be_done_with(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_config(f'name = "market"\n{text}', ServiceConfig, Path("coordinator.toml"))
