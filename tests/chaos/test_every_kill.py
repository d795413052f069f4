"""Whole tasks with evidence on everything that a market can stand on, and kill -9 of each of it at random moments.

Two fronts, of which one runs the tasks, over PostgreSQL and an object store; a scheduler and a worker train the
shadows. Every task ends and is paid once, the ledger verifies, and an auditor of each task trains all of it again
alone: evidence, verdicts and merged models are the same bit for bit.

    FEDPEER_CHAOS_KILLS=200 FEDPEER_CHAOS_SEED=1 pytest -m slow -s tests/chaos/test_every_kill.py

A campaign may be cut in slices, each with a seed of its own.
"""

import json
import os
import random
import signal
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.serving import children
from coordinator.config import TaskConfig, resolve_paths
from coordinator.folder import StateFolder, initialise
from coordinator.opening import prepare_task
from coordinator.worker_folders import make_worker_folder
from fedpeer.cli.audit import app as auditing
from participant import Trained, TrainingRound, Weights
from tests.chaos.test_coordinator_kills import (
    CONFIG,
    NAMES,
    STORED,
    Flock,
    Service,
    check,
    enrol,
    operator,
)
from tests.chaos.test_worker_kills import Place
from tests.integration.market import verified
from tests.integration.test_own_workload_market import MODULE, Own, rows
from tests.object_stores import free_port, store_process, write_key
from tests.postgresql_server import postgresql_server

pytestmark = [pytest.mark.arithmetic, pytest.mark.long]

#: Rounds of each task: later ones carry shadows over, and measure against the models that were sent out before.
ROUNDS = 2

#: Of the participants, by class.
COUNTS = ((50, 50, 50), (60, 50, 40), (40, 55, 55))

WORKERS = """
[workers]
executor = "dask://127.0.0.1:{port}"
wait_seconds = 60
"""

#: Nobody is absent, nothing is late: on a busy machine most of an hour goes into starting processes.
_DAY = {"effort_seconds": 86_400, "round_seconds": 86_400}

#: Seconds between two kills, at most; and kills of one task, which would never end on a machine where starting again
#: takes longer than that.
_PAUSE, _A_TASK = 2.0, 20


class Kept(Own):
    """A participant that knows which rounds it has trained."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.trained: list[int] = []

    def train(self, weights: Weights, round: TrainingRound) -> Trained:  # noqa: A002 - as Task.train
        self.trained.append(round.number)
        return super().train(weights, round)


def task_config(path: Path, task_id: str) -> TaskConfig:
    """A task of an operator's own workload: its shadows are always trained by workers."""
    config = {
        "id": task_id, "Q": "1000", "phi": "300", "upsilon": "200", "auditor": "auditor.pub.pem",
        "rule": {"name": "verified"},
        "schedule": {"rounds": ROUNDS, "quorum": 3, "capacity": 3, **_DAY},
        "recipe": {
            "model": "table_models:mlp", "samples": 150, "epochs": 2, "batch_size": 30, "learning_rate": "0.01",
        },
        "data": {"file": "table.npz", "inputs": [f"x{j}" for j in range(4)], "target": "level"},
        "evidence": {"shadows": 30, "later": 20},
    }  # fmt: skip
    return resolve_paths(TaskConfig.model_validate(config), path)


def write_inputs(path: Path) -> None:
    """The task's module, D_c, and the auditor's key."""
    (path / "table_models.py").write_text(MODULE)
    data = rows((100, 100, 100), 1)
    columns: dict[str, Any] = {f"x{j}": np.asarray(data.inputs)[:, j] for j in range(4)}
    np.savez(path / "table.npz", level=np.array(["low", "middle", "top"])[data.targets], **columns)
    assert CliRunner().invoke(auditing, ["key", str(path / "auditor")]).exit_code == 0


def leader(folder: StateFolder) -> int | None:
    """The process that runs the tasks: the one that listens on the control socket. None: none does just now."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        folder_descriptor = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # By the folder's descriptor: the path may be too long for a socket.
            caller.connect(f"/proc/self/fd/{folder_descriptor}/{folder.control_socket.name}")
        except OSError:
            return None
        finally:
            os.close(folder_descriptor)
        pid, _, _ = struct.unpack("3i", caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return int(pid)


def killed(pids: list[int], chance: random.Random) -> bool:
    """Kills one of them; False where there is none."""
    if not pids:
        return False
    with suppress(ProcessLookupError):
        os.kill(chance.choice(pids), signal.SIGKILL)
        return True
    return False


def recomputed(folder: StateFolder, path: Path, task_id: str) -> None:
    """An auditor trains the task's shadows again, alone, and comes to all that the coordinator has come to."""
    given, brought = path / f"{task_id}-given", path / f"{task_id}-brought"
    with operator(folder) as commands:
        commands.order_task_audit(task_id, given)
    words = ["task", str(given), "--key", str(path / "auditor.pem"), "--out", str(brought), "--json"]
    words += ["--data", str(path / "table.npz"), "--folder", str(path), "--tolerance", "0"]
    done = CliRunner().invoke(auditing, words)
    assert done.exit_code == 0, (done.output, done.exception)
    said = json.loads(done.stdout)
    assert (said["rounds"], said["identical"], said["merged"]) == (ROUNDS, ROUNDS, ROUNDS), said
    assert (said["degree_micro"], said["weight_micro"], said["multiplier_micro"], said["turned"]) == (
        0,
        0,
        0,
        0,
    )


def run_campaign(path: Path, kills: int, seed: int) -> None:
    """Kills until so many are done; each of the six kinds comes as often as the others."""
    moments, counts = random.Random(seed), Counter[str]()
    write_inputs(path)
    with ExitStack() as resources:
        store = resources.enter_context(store_process("rclone", path / "store"))
        server = resources.enter_context(postgresql_server())
        port = free_port()
        ports = {"market": free_port(), "public": free_port()}
        text = CONFIG.format(**ports, database=server.url).replace(
            "[storage]", "absence_seconds = 86400\n[storage]"
        )
        text += STORED.format(endpoint=store.url) + WORKERS.format(port=port)
        folder = initialise(path / "state", text, "chaos", ["localhost", "127.0.0.1"])
        write_key(folder.path)
        make_worker_folder(folder, path / "worker", "worker")
        place = Place(folder, path / "worker", port, resources)
        place.schedule()
        place.work(1)
        service = Service(folder, path / "coordinator.log", fronts=2)
        service.start()
        resources.callback(service.kill)
        service.wait_until_serving()
        enrol(folder, path)

        def below(what: Any) -> Callable[[], bool]:
            def kill() -> bool:
                what.kill()
                time.sleep(moments.uniform(0, 0.6))
                what.start()
                return True

            return kill

        def kill_scheduler() -> bool:
            assert place.scheduler is not None
            place.scheduler.kill()
            place.scheduler.wait()
            place.schedule()
            return True

        def kill_runner() -> bool:
            found = leader(folder)
            return killed([found] if found is not None else [], moments)

        def kill_front() -> bool:
            found = leader(folder)
            return found is not None and killed(
                [pid for pid in children(service.pid) if pid != found], moments
            )

        kinds: dict[str, Callable[[], bool]] = {
            "worker": lambda: killed(place.children(), moments),
            "scheduler": kill_scheduler,
            "front": kill_front,
            "runner": kill_runner,
            "postgresql": below(server),
            "store": below(store),
        }
        flock = Flock(
            path, folder.config().server.market, lambda number: Kept(path, COUNTS[number], 10 + number)
        )
        resources.callback(flock.close)
        order: list[str] = []
        tasks, began = 0, time.monotonic()
        while sum(counts.values()) < kills:
            tasks += 1
            task_id = f"task-{tasks}"
            with operator(folder) as commands:
                commands.open(prepare_task(task_config(path, task_id), time.time()))
            flock.begin(task_id)
            most = min(kills, sum(counts.values()) + _A_TASK)
            while flock.busy() and sum(counts.values()) < most:
                time.sleep(moments.uniform(0, _PAUSE))
                if not order:
                    order = moments.sample(list(kinds), len(kinds))
                if kinds[order[-1]]():  # else it is being started; the same is tried again
                    counts[order.pop()] += 1
            flock.join()
            check(flock, ROUNDS, least=0)
            recomputed(folder, path, task_id)
            print(  # noqa: T201 - for -s: how far it is, and what had happened when it fails
                f"seed {seed}: {tasks} tasks, {sum(counts.values())} kills {dict(sorted(counts.items()))}, "
                f"{time.monotonic() - began:.0f} s",
                flush=True,
            )
        report = verified(folder)
        assert report.counts.payments == tasks * ROUNDS * len(NAMES)
        assert report.open_tasks == {}
        assert place.workers is not None
        assert place.workers.poll() is None


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_kill_of_each_kind_changes_nothing(tmp_path: Path) -> None:
    run_campaign(tmp_path, kills=6, seed=4)


@pytest.mark.slow
@pytest.mark.timeout(14_400)
def test_two_hundred_kills_of_every_kind_change_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("FEDPEER_CHAOS_SEED", random.randrange(2**32)))
    run_campaign(tmp_path, int(os.environ.get("FEDPEER_CHAOS_KILLS", "200")), seed)
