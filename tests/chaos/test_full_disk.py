"""A disk that fills up under a coordinator with real participants: it refuses in words, keeps its state, and goes on
when there is space again. A file system of its own, in memory, so that it is really full."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coordinator.folder import StateFolder, initialise
from coordinator.opening import prepare_task
from fedpeer.audit.sql.errors import DatabaseFull
from fedpeer.protocol.limits import RESERVE_BYTES
from mechanism.lifecycle import State
from participant import Participant
from tests.chaos.test_coordinator_kills import (
    CONFIG,
    NAMES,
    ROUNDS,
    Flock,
    Service,
    check,
    operator,
)
from tests.integration.market import verified
from tests.integration.serving import task_config
from tests.object_stores import free_port
from tests.small_disk import Ballast, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path) as path:
        yield path


def until(reached: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 120
    while not reached():
        assert time.monotonic() < give_up
        time.sleep(0.02)


@pytest.mark.slow
def test_a_full_disk_stops_nothing_for_good(disk: Path, tmp_path: Path) -> None:
    log, ballast = tmp_path / "coordinator.log", Ballast(disk)
    text = CONFIG.format(market=free_port(), public=free_port(), database="")
    folder = initialise(disk / "state", text, "full", ["localhost", "127.0.0.1"])
    service = Service(folder, log)

    def lines(*words: str) -> int:
        return sum(all(word in line for word in words) for line in log.read_text().splitlines())

    service.start()
    service.wait_until_serving()
    enrol(folder, tmp_path)
    config = task_config(tmp_path, "task-1", schedule={"rounds": ROUNDS, "round_seconds": 600})
    with operator(folder) as commands:
        commands.open(prepare_task(config, time.time()))
    flock = Flock(tmp_path, folder.config().server.market)
    try:
        # No byte is left: claims are refused by name, and so is the operator.
        ballast.fill()
        flock.begin("task-1")
        until(lambda: lines("STORAGE_FULL", "SubmitEffort") > 0)
        with operator(folder) as commands:
            with pytest.raises(DatabaseFull, match="no space left"):
                commands.cancel("task-1", "a command on a full disk")
            assert commands.task("task-1").row.state is State.EFFORT
        # There is room for the database and none for models.
        ballast.fill(leave=RESERVE_BYTES // 2)
        until(lambda: lines("STORAGE_FULL", "SubmitModel") > 0)
        with operator(folder) as commands:
            report = commands.task("task-1")
            assert report.row.state is State.TRAINING
            assert report.delivered == ()
        # It fills up at any moment, and there is space again. Once it is killed and started on the full disk.
        turns = 0
        while flock.busy():
            refused = lines("STORAGE_FULL") + lines("step failed")
            ballast.fill()
            until(
                lambda before=refused: (
                    lines("STORAGE_FULL") + lines("step failed") > before or not flock.busy()
                )
            )
            if turns == 0:
                service.kill()
                folder.addresses.unlink(missing_ok=True)
                start_without_space(folder, ballast, tmp_path / "full.log")
            ballast.empty()
            if turns == 0:
                service.start()
                service.wait_until_serving()
            taken = lines("step taken")
            until(lambda before=taken: lines("step taken") > before or not flock.busy())
            turns += 1
        flock.join()
        check(flock)
    finally:
        service.kill()
        flock.close()
    assert lines('"level": "error"') == lines("step failed")
    assert verified(folder).counts.payments == ROUNDS * len(NAMES)
    assert [p for p in folder.spool.rglob("*") if p.is_file()] == []


def enrol(folder: StateFolder, path: Path) -> None:
    authority = (folder.path / "authority.pem").read_bytes()
    for name in NAMES:
        with operator(folder) as commands:
            token = commands.invite(name).token
        public = folder.config().server.public
        Participant.enroll(path / name, participant_id=name, public=public, token=token, authority=authority)


def start_without_space(folder: StateFolder, ballast: Ballast, log: Path) -> None:
    """A start on a full disk ends in a sentence, or serves where SQLite finds its room in what it has."""
    ballast.fill()  # the killed process's open files have made room
    command = [sys.executable, "-m", "fedpeer", "coordinator", "serve", "--state", str(folder.path)]
    with log.open("w") as file:
        process = subprocess.Popen(command, stderr=file)
    try:
        until(lambda: process.poll() is not None or folder.addresses.exists())
        said = log.read_text()
        assert "Traceback" not in said
        if process.poll() is not None:
            assert process.returncode == 2
            last = said.splitlines()[-1]
            assert last.startswith("fedpeer: ")
            assert "no space left" in last.lower()
    finally:
        process.kill()
        process.wait()
        folder.addresses.unlink(missing_ok=True)
