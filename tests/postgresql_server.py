"""A PostgreSQL server of one test's own, to be killed and started again."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

#: Seconds that a start is waited for; after a kill the server first goes through its log.
PATIENCE = 120

_USER = "fedpeer"


class PostgresqlServer:
    """A server over a folder, which it keeps.

    Args:
        prefix: of its commands, by which they run as another user. Popen's own way forks, where threads of gRPC are.
        listen: an address of TCP, where anybody is let in; empty: none.
    """

    def __init__(self, programs: Path, folder: Path, prefix: list[str], listen: str) -> None:
        self._programs, self._folder, self._prefix, self._listen = programs, folder, prefix, listen
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"postgresql+psycopg://{_USER}@/postgres?host={folder}"

    def initialise(self) -> None:
        self._run("initdb", "-D", str(self._data), "-A", "trust", "-U", _USER).check_returncode()
        if self._listen:
            with (self._data / "pg_hba.conf").open("a") as file:
                file.write(f"host all all {self._listen}/24 trust\n")

    def start(self) -> None:
        """Returns when it takes connections. What a killed one has left first has to end, so it is tried again."""
        give_up = time.monotonic() + PATIENCE
        command = [str(self._programs / "postgres"), "-D", str(self._data), "-k", str(self._folder)]
        command = [*self._prefix, *command, "-c", f"listen_addresses={self._listen}"]
        with (self._folder / "log").open("ab") as log:
            while True:
                self._process = subprocess.Popen(command, cwd="/", stdout=log, stderr=log)
                while self._process.poll() is None:
                    if self._run("pg_isready", "-q", "-h", str(self._folder)).returncode == 0:
                        return
                    time.sleep(0.02)
                assert time.monotonic() < give_up, (self._folder / "log").read_text()

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _run(self, program: str, *words: str) -> "subprocess.CompletedProcess[bytes]":
        command = [*self._prefix, str(self._programs / program), *words]
        return subprocess.run(command, cwd="/", stdout=subprocess.DEVNULL)


@contextmanager
def postgresql_server(listen: str = "") -> Iterator[PostgresqlServer]:
    """One that serves; skips the test where its programs are not installed. Argument as of `PostgresqlServer`."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin")) or [
        Path(path).parent for path in [shutil.which("initdb")] if path
    ]
    if not found:
        pytest.skip("needs PostgreSQL's server programs: apt-get install postgresql")
    # Not below pytest's folder, which only its owner can enter; the server refuses to run as root.
    folder = Path(tempfile.mkdtemp(prefix="fedpeer-pg."))
    prefix = []
    if os.getuid() == 0:
        shutil.chown(folder, "postgres")
        prefix = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups"]
    server = PostgresqlServer(found[-1], folder, prefix, listen)
    try:
        server.initialise()
        server.start()
        yield server
    finally:
        if server._process is not None:
            server.kill()
        shutil.rmtree(folder)
