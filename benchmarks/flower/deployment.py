"""Flower's deployment mode, run with Flower's own interpreter: PARTICIPANTS BYTES ROUNDS; prints seconds a round.

A SuperLink, a SuperNode for each participant, and `flwr run` of the app beside this file; no TLS, state in memory.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

BIN = Path(sys.executable).parent
APP = Path(__file__).parent / "app"

#: Seconds that the whole run may take.
PATIENCE = 800


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def listening(port: int) -> None:
    """Waits until somebody takes connections on the port."""
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)


def main() -> None:
    participants, size, rounds = map(int, sys.argv[1:])
    control, fleet, *nodes = free_ports(2 + participants)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        home = Path(scratch)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "bench"\n\n[superlink.bench]\naddress = "127.0.0.1:{control}"\n'
            "insecure = true\n"
        )
        environment = {
            **os.environ,
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }

        def start(name: str, log: str, *arguments: str) -> None:
            output = stack.enter_context((home / log).open("w"))
            process = subprocess.Popen(
                [BIN / name, "--insecure", *arguments],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            stack.callback(end, process)

        start(
            "flower-superlink",
            "superlink.log",
            "--disable-runtime-dependency-installation",
            f"--port={control}",
            f"--fleet-api-address=127.0.0.1:{fleet}",
        )
        listening(control)
        listening(fleet)
        for index, port in enumerate(nodes):
            start("flower-supernode", f"node{index}.log", f"--superlink=127.0.0.1:{fleet}", f"--port={port}")
        result = home / "result.json"
        run_config = f'participants={participants} bytes={size} rounds={rounds} result="{result}"'
        command = [BIN / "flwr", "run", str(APP), "bench", "--run-config", run_config]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        deadline = time.monotonic() + PATIENCE
        while not result.exists():
            if run.returncode or time.monotonic() > deadline:
                print(run.stdout, run.stderr, file=sys.stderr)
                print((home / "superlink.log").read_text()[-4000:], file=sys.stderr)
                print((home / "node0.log").read_text()[-2000:], file=sys.stderr)
                raise SystemExit(1)
            time.sleep(0.2)
        print(result.read_text())


def end(process: subprocess.Popen) -> None:
    """Ends a process with the ones that it has started."""
    os.killpg(process.pid, 9)
    process.wait()


if __name__ == "__main__":
    main()
