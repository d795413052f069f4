"""Two object stores that speak S3, as processes of their own, and a line to one that fails.

moto's is Python's, and knows If-None-Match. rclone's is Go's, keeps objects as files of a folder, and ignores it.
"""

import http.client
import os
import random
import shutil
import socket
import struct
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from coordinator.bucket import Bucket
from coordinator.config import S3Section

#: Servers that are tested.
STORES = ("moto", "rclone")

BUCKET = "models"
ACCESS_KEY, SECRET_KEY = "AKIDEXAMPLE0", "s3-secret-that-is-nowhere-shown"


def section(endpoint: str, **changes: object) -> S3Section:
    """What coordinator.toml has of it; the keys are in the file s3.key."""
    return S3Section(bucket=BUCKET, endpoint=endpoint, credentials="s3.key", **changes)  # type: ignore[arg-type]


def write_key(folder: Path, access_key: str = ACCESS_KEY, secret_key: str = SECRET_KEY) -> None:
    """The file s3.key in `folder`."""
    path = folder / "s3.key"
    path.write_text(f"[default]\naws_access_key_id = {access_key}\naws_secret_access_key = {secret_key}\n")
    path.chmod(0o600)


class StoreProcess:
    """A store over a folder, which is made, with an empty bucket. What rclone's keeps outlives its process."""

    def __init__(self, kind: str, folder: Path) -> None:
        (folder / BUCKET).mkdir(parents=True)
        self._kind, self._folder, self._port = kind, folder, free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Returns when it answers."""
        environment, listen = dict(os.environ), f"127.0.0.1:{self._port}"
        if self._kind == "moto":
            command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)]
        else:
            command = [
                _rclone(),
                "serve",
                "s3",
                "--addr",
                listen,
                "--vfs-cache-mode",
                "off",
                str(self._folder),
            ]
            environment |= {
                "RCLONE_AUTH_KEY": f'"{ACCESS_KEY},{SECRET_KEY}"',
                "RCLONE_CONFIG": str(self._folder / "none"),
            }
        with (self._folder / "store.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        while not _answers(self._port):
            assert self._process.poll() is None, (self._folder / "store.log").read_text()
        if self._kind == "moto":
            urllib.request.urlopen(urllib.request.Request(f"{self.url}/{BUCKET}", method="PUT")).close()

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()


@contextmanager
def store_process(kind: str, folder: Path) -> Iterator[StoreProcess]:
    """A store that serves, until the block ends."""
    store = StoreProcess(kind, folder)
    store.start()
    try:
        yield store
    finally:
        store.kill()


@contextmanager
def object_store(kind: str, folder: Path) -> Iterator[str]:
    """URL of a store with an empty bucket, which ends with the block; `folder` is made."""
    with store_process(kind, folder) as store:
        yield store.url


@dataclass
class FaultyStore:
    """Forwards HTTP to a store, and does with each request what `fault` says of it.

    "503"      answered so, the store hears nothing
    "reset"    the connection is reset before the store hears of it
    "lost"     the store does it, its answer is lost
    "flipped"  a byte of the body is another
    ""         as it is
    """

    target: str
    fault: Callable[[str, str], str]
    seen: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer, host = self, self.target.removeprefix("http://")

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                with suppress(OSError):
                    super().handle_one_request()
                    return
                self.close_connection = True

            def _forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                fault = outer.fault(self.command, self.path)
                outer.seen[fault] += 1
                if fault == "503":
                    self.send_response(503)
                    self.send_header("content-length", "0")
                    self.end_headers()
                    return
                if fault == "reset":
                    self._reset()
                    return
                if fault == "flipped" and body:
                    body = bytes([body[0] ^ 1]) + body[1:]
                line = http.client.HTTPConnection(host, timeout=60)
                line.request(self.command, self.path, body, dict(self.headers.items()))
                answer = line.getresponse()
                content = answer.read()
                line.close()
                if fault == "lost":
                    self._reset()
                    return
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in (
                        "transfer-encoding",
                        "connection",
                        "date",
                        "server",
                        "content-length",
                    ):
                        self.send_header(name, value)
                length = answer.getheader("content-length") if self.command == "HEAD" else str(len(content))
                self.send_header("content-length", length or "0")
                self.end_headers()
                self.wfile.write(content)

            def _reset(self) -> None:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                self.close_connection = True

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _forward  # noqa: N815 - as http.server names them

            def log_message(self, *said: object) -> None:
                pass

        return Handler


@contextmanager
def faulty_store(target: str, fault: Callable[[str, str], str]) -> Iterator[FaultyStore]:
    store = FaultyStore(target, fault)
    try:
        yield store
    finally:
        store.close()


def now_and_then(seed: int, rates: dict[str, float]) -> Callable[[str, str], str]:
    """Faults at the rates given, the same for a seed and an order of requests."""
    drawn, lock = random.Random(seed), threading.Lock()

    def fault(method: str, path: str) -> str:
        with lock:
            at = drawn.random()
        for name, rate in rates.items():
            if (at := at - rate) < 0:
                return name
        return ""

    return fault


def names_in(url: str, folder: Path) -> list[str]:
    """Names of all objects of a store, past any line to it."""
    return sorted(each.name for each in Bucket(section(url), folder).names())


def _rclone() -> str:
    beside = Path(sys.executable).with_name("rclone")
    found = str(beside) if beside.exists() else shutil.which("rclone")
    assert found, "rclone is of the dev extra: pip install -e '.[dev]'"
    return found


def free_port() -> int:
    """A port of this machine that nobody listens on just now."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
        return True
    return False
