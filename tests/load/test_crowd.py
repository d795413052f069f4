"""A thousand participants, each with a certificate and a connection of its own, run a task to its settlement."""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.serving import cpu_seconds
from coordinator.folder import StateFolder
from coordinator.opening import prepare_task
from coordinator.operator import Operator
from tests.integration.market import CONFIG, make_folder, task_config, verified
from tests.integration.test_service_process import serving

#: Processes that the participants share.
PROCESSES = 4


def prepare(folder: StateFolder, path: Path, participants: int, rounds: int) -> list[str]:
    """Opens the task and makes the invitations; returns the tokens."""
    schedule = {
        "rounds": rounds,
        "quorum": participants,
        "capacity": participants,
        "effort_seconds": 3600,
        "round_seconds": 3600,
    }
    operator = Operator(folder)
    try:
        tokens = [operator.invite(f"p{i:05d}").token for i in range(participants)]
        operator.open(prepare_task(task_config(path, schedule=schedule), time.time()))
    finally:
        operator.close()
    return tokens


def run_crowd(path: Path, participants: int, rounds: int) -> dict[str, float]:
    # All come from one address, which has one quota for enrolments.
    folder = make_folder(path / "state", CONFIG + "requests_per_second = 1000\n")
    tokens = prepare(folder, path, participants, rounds)
    share = -(-participants // PROCESSES)
    began = time.monotonic()
    with serving(folder.path) as (process, _):
        crowds = []
        for first in range(0, participants, share):
            crowd = subprocess.Popen(
                [sys.executable, "-m", "tests.load.crowd", str(folder.path), str(first), str(rounds)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert crowd.stdin is not None
            crowd.stdin.write("\n".join(tokens[first : first + share]))
            crowd.stdin.close()
            crowds.append(crowd)
        results = []
        for crowd in crowds:
            assert crowd.stdout is not None
            output = crowd.stdout.read()
            assert crowd.wait() == 0
            results.append(json.loads(output))
        memory, cpu = peak_memory(process.pid), cpu_seconds(process.pid)
    seconds = time.monotonic() - began
    report = verified(folder)
    assert report.counts.payments == participants * rounds
    claims = sorted(s for result in results for s in result["claims"])
    models = sorted(s for result in results for s in result["models"])
    assert len(claims) == participants
    assert len(models) == participants * rounds
    return {
        "participants": participants,
        "rounds": rounds,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "enrol_seconds": max(result["enrol_seconds"] for result in results),
        "claim_p50": statistics.median(claims),
        "claim_p99": claims[int(0.99 * (len(claims) - 1))],
        "model_p50": statistics.median(models),
        "model_p99": models[int(0.99 * (len(models) - 1))],
        "peak_mib": memory / 2**20,
    }


def peak_memory(pid: int) -> int:
    """The process's largest resident size so far, bytes (Linux)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_thousand_participants_run_a_task_of_three_rounds(tmp_path: Path) -> None:
    figures = run_crowd(tmp_path, int(os.environ.get("FEDPEER_LOAD_PARTICIPANTS", "1000")), 3)
    print(json.dumps(figures))  # noqa: T201 - what the test measured
