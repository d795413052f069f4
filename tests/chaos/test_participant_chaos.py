"""Participants killed with SIGKILL, trainers killed under them, connections cut and delayed, all at random moments.

Whatever happens, at the end of a task: one claim, and for each round either one model and one payment, or a
failure or a miss with its reason.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from participant import Backoff, Participant, TaskReport
from participant.effects import Stopped
from participant.journal import Journal
from participant.report import report_of
from tests.chaos.faulty_link import FaultyLink
from tests.integration.serving import Served, served
from tests.integration.test_examples import idle

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 3

#: How long the victim trains in each round.
TRAINING_SECONDS = 0.6

#: How many faults: a sample in every run, the whole number with `make test-slow`.
FAULTS = [3, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]

VICTIM = f"""
import time
from participant import Task, Trained

class Victim(Task):
    def label_counts(self):
        return [40, 20, 20, 20]
    def train(self, weights, round):
        open("training", "w").close()
        for step in range(20):
            round.progress(step / 20)
            time.sleep({TRAINING_SECONDS} / 20)
        return {{n: a if a.dtype.kind == "i" else a + 1 for n, a in weights.items()}}
"""

CONFIG = """
id = "victim"
state = "state"
[coordinator]
market = "{market}"
[[task]]
id = "{task}"
factory = "victim:Victim"
[task.effort]
strategy = "fixed"
effort = 0.0
"""


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "coordinator") as running:
        yield running


@pytest.fixture
def peers(coordinator: Served, tmp_path: Path) -> Iterator["Peers"]:
    made = Peers(coordinator, tmp_path)
    yield made
    made.close()


class Peers:
    """Three steady participants, so that a round never lacks its quorum."""

    def __init__(self, coordinator: Served, folder: Path) -> None:
        self._participants = {n: coordinator.participant(n, folder) for n in ("b", "c", "d")}
        self._threads: list[threading.Thread] = []

    def take_part(self, task_id: str) -> None:
        for participant in self._participants.values():
            task = idle("b")
            task._counts = (5, 5, 5, 5)

            def run(participant: Participant = participant, task: Any = task) -> None:
                with contextlib.suppress(Stopped):  # by `close`
                    participant.run(task, task_id, effort=0.0)

            thread = threading.Thread(target=run, daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        for participant in self._participants.values():
            participant.close()  # ends the threads of a task that a failed test left open
        for thread in self._threads:
            thread.join(60)


def open_task(coordinator: Served, task_id: str, **changes: Any) -> None:
    coordinator.open(task_id, schedule={"rounds": ROUNDS, "capacity": 4}, **changes)


def check_books(coordinator: Served, participant: Participant, report: TaskReport) -> Counter[str]:
    """Holds the ledger against what the participant says; returns how its rounds went."""
    name, task_id = report.participant_id, report.task_id
    kinds: Counter[tuple[str, int]] = Counter()
    reasons: dict[int, str] = {}
    for entry in map(json.loads, participant.client.entries()):
        body = entry["body"]
        statement = body.get("statement", body)
        if statement.get("participant_id") == name and statement.get("task_id") == task_id:
            kinds[entry["kind"], statement.get("round", 0)] += 1
            if entry["kind"] == "failure":
                reasons[statement["round"]] = body["reason"]
    assert kinds["claim", 0] == 1
    outcome: Counter[str] = Counter()
    lines = {line.number: line for line in report.rounds}
    for number in range(1, ROUNDS + 1):
        models, failures = kinds["model", number], kinds["failure", number]
        assert models + failures <= 1, "a round is submitted once, or given up once"
        assert kinds["payment", number] == 1
        line = lines[number]
        settlement = line.settlement
        assert settlement is not None
        if models:
            assert line.receipt is not None
            assert settlement.paid_micro > 0
            outcome["submitted"] += 1
        else:
            assert line.receipt is None
            assert line.missed
            assert settlement.paid_micro == 0
            if failures:
                assert reasons[number]
            outcome["missed"] += 1
    return outcome


def children(pid: int) -> list[int]:
    """Child processes of any thread of `pid`."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(word) for word in path.read_text().split()]
    return found


@pytest.mark.parametrize("faults", FAULTS)
def test_sigkill_at_random_moments(coordinator: Served, peers: Peers, tmp_path: Path, faults: int) -> None:
    folder = tmp_path / "victim"
    state = coordinator.enrol("victim", folder / "state")
    (folder / "victim.py").write_text(VICTIM)
    chance, killed, outcome = random.Random(20261127), Counter[str](), Counter[str]()
    life, number = 0.0, 0
    while killed.total() < faults:
        number += 1
        task_id = f"task-{number}"
        open_task(coordinator, task_id)
        (folder / "participant.toml").write_text(CONFIG.format(market=coordinator.market, task=task_id))
        peers.take_part(task_id)
        for _ in range(4 if life else 0):
            if killed.total() < faults:
                kill_once(folder, chance, life, killed)
        began = time.monotonic()
        finished = run_victim(folder)
        assert finished.wait(120) == 0
        # The first task goes undisturbed: it tells how long a life is on this machine.
        life = life or time.monotonic() - began
        with Participant(state, coordinator.market) as victim:
            report = next(r for r in victim.reports() if r.task_id == task_id)
            assert report.state == "CLOSED"
            outcome += check_books(coordinator, victim, report)
    print(f"{dict(killed)} in {number} tasks: {dict(outcome)}")  # noqa: T201 - the figures
    assert outcome["submitted"] > 0


def run_victim(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "fedpeer", "participant", "run"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])},
        stderr=subprocess.DEVNULL,
    )


def kill_once(folder: Path, chance: random.Random, life: float, killed: Counter[str]) -> None:
    """Starts the victim and kills it, or its trainer, at a moment of its life."""
    marker = folder / "training"
    marker.unlink(missing_ok=True)
    process = run_victim(folder)
    trainer = chance.random() < 0.5
    if trainer:
        while process.poll() is None and not marker.exists():
            time.sleep(0.01)
        life = ROUNDS * TRAINING_SECONDS
    moment = time.monotonic() + chance.uniform(0, life)
    while process.poll() is None and time.monotonic() < moment:
        time.sleep(0.01)
    if trainer and (found := children(process.pid)):
        os.kill(found[0], signal.SIGKILL)
        killed["trainer"] += 1
        assert process.wait(120) == 0, "the service outlives its trainer"
    elif process.poll() is None:
        process.kill()
        killed["participant"] += 1
    process.wait()


@pytest.mark.parametrize("faults", FAULTS)
def test_connections_cut_and_delayed_at_random_moments(
    coordinator: Served, peers: Peers, tmp_path: Path, faults: int
) -> None:
    state = coordinator.enrol("victim", tmp_path / "victim")
    link = FaultyLink(coordinator.market)
    chance, done, outcome = random.Random(7), Counter[str](), Counter[str]()
    number = 0
    with Participant(state, link.address, backoff=Backoff(first=0.02, ceiling=0.2)) as victim:
        while done.total() < faults:
            number += 1
            task_id = f"task-{number}"
            # Large enough that faults fall into the middle of transfers.
            open_task(coordinator, task_id, weights={"w": np.zeros(1_000_000, np.float32)})
            peers.take_part(task_id)
            over = threading.Event()
            trouble = threading.Thread(target=disturb, args=(link, chance, done, over, faults))
            trouble.start()
            task = idle("c")
            task._counts = (40, 20, 20, 20)
            report = victim.run(task, task_id, effort=0.0)
            over.set()
            trouble.join()
            assert report.state == "CLOSED"
            assert all(line.receipt is not None for line in report.rounds), "no round is lost to the network"
            outcome += check_books(coordinator, victim, report)
    link.close()
    print(f"{dict(done)} in {number} tasks, {link.connections} connections: {dict(outcome)}")  # noqa: T201


def disturb(
    link: FaultyLink, chance: random.Random, done: Counter[str], over: threading.Event, faults: int
) -> None:
    while not over.wait(chance.uniform(0.0, 0.25)) and done.total() < faults:
        match chance.choice(["reset", "close", "stall"]):
            case "stall":
                link.stall(chance.uniform(0.05, 0.4))
                done["stalled"] += 1
            case kind:
                if link.cut(reset=kind == "reset"):
                    done[kind] += 1


def test_the_journal_tells_how_a_killed_participant_stands(coordinator: Served, tmp_path: Path) -> None:
    """Between two lives `status` still answers, from the journal alone."""
    open_task(coordinator, "task")
    with coordinator.participant("victim", tmp_path) as victim:
        victim.join("task").claim(0.0, [40, 20, 20, 20])
    coordinator.stop()
    journal = Journal(tmp_path / "victim" / "journal.db", writer=False)
    report = report_of(journal, "task", "victim")
    journal.close()
    assert report.claim is not None
    assert report.rounds == ()


def test_a_proxy_whose_coordinator_is_down_is_no_reason_to_give_up(
    coordinator: Served, tmp_path: Path
) -> None:
    """It takes connections and closes them, as a load balancer does; the certificate is not to blame."""
    open_task(coordinator, "task")
    state = coordinator.enrol("victim", tmp_path / "victim")
    link = FaultyLink(coordinator.market)
    with Participant(state, link.address, backoff=Backoff(first=0.01, ceiling=0.02)) as victim:
        victim.join("task")
        coordinator.stop()
        link.cut()
        back = threading.Timer(3.0, coordinator.start)
        back.start()
        assert victim.client.task("task").task_id == "task"
        back.join()
    link.close()
