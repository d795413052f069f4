"""What a script of the SDK shows on a terminal, and how Ctrl-C ends it: without a traceback, and nothing is lost."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mechanism.price import credits_text
from participant import Participant
from tests.integration.serving import Served, Shift, served
from tests.integration.test_participant_command import fedpeer

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]

#: Arguments: state folder, market, and a file that appears where the script is to be interrupted.
HEAD = """
import sys, time
from pathlib import Path
import numpy as np
from participant import Participant, Task

reached = Path(sys.argv[3])

class Mine(Task):
    def label_counts(self): return [10, 10, 10, 10]
    def train(self, weights, round):
        if not reached.exists():
            reached.touch()
            while True: time.sleep(60)
        round.progress(0.5, loss=0.25)
        return {n: a + 1 if a.dtype == np.float32 else a for n, a in weights.items()}

def claimed(activity):
    if activity.kind in STOPS: reached.touch()
"""
RUN = (
    HEAD
    + """
STOPS = sys.argv[4:]
with Participant(sys.argv[1], sys.argv[2]) as me:
    print(me.run(Mine(), effort=0.0, on_progress=claimed if STOPS else None).state)
"""
)
BARE = (
    HEAD
    + """
STOPS = sys.argv[4:]
me = Participant(sys.argv[1], sys.argv[2])
me.run(Mine(), "task", effort=0.0)
"""
)
OWN_LOOP = (
    HEAD
    + """
with Participant(sys.argv[1], sys.argv[2]) as me:
    joined = me.join("task")
    joined.claim(0.0, [10, 10, 10, 10])
    reached.touch()
    for round in joined.rounds():
        pass
"""
)

ASYNCIO = (
    HEAD
    + """
import asyncio
from participant import AsyncParticipant

class Steady(Mine):
    def train(self, weights, round):
        reached.touch()
        while True:
            round.progress(0.5)
            time.sleep(0.01)

async def main():
    async with AsyncParticipant(sys.argv[1], sys.argv[2]) as me:
        await me.run(Steady(), "task", effort=0.0)

try:
    asyncio.run(main())
except KeyboardInterrupt:
    sys.exit(130)
"""
)


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "coordinator") as running:
        yield running


def started(program: str, *arguments: object, **options: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        **options,
    )  # type: ignore[call-overload, no-any-return]  # fmt: skip


def interrupted(process: "subprocess.Popen[str]", reached: Path) -> str:
    """Presses Ctrl-C where the script has come to; what it said on standard error."""
    while not reached.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize(
    ("program", "stops", "keeps"),
    [
        (RUN, ["waiting"], "no task is begun"),
        (RUN, ["claimed"], "keeps the claim of task, 0 models sent"),
        (RUN, [], "keeps the claim of task, 0 models sent"),
        (BARE, [], "keeps the claim of task, 0 models sent"),
        (OWN_LOOP, [], "keeps the claim of task, 0 models sent"),
    ],
    ids=["waiting for a task", "waiting for a round", "training", "without a with", "a loop of one's own"],
)
def test_ctrl_c_ends_a_script_and_says_what_is_kept(
    coordinator: Served, tmp_path: Path, program: str, stops: list[str], keeps: str
) -> None:
    if stops != ["waiting"]:
        coordinator.open(schedule={"rounds": 1})
    state, reached = coordinator.enrol("ada", tmp_path / "ada"), tmp_path / "reached"
    if not stops and program is not OWN_LOOP:
        for name in ("ben", "cho"):
            with coordinator.participant(name, tmp_path) as other:
                other.join("task").claim(0.0, [10, 10, 10, 10])
    said = interrupted(started(program, state, coordinator.market, reached, *stops), reached)
    assert keeps in said
    assert "Run the same again to go on" in said


def test_a_training_on_an_event_loop_ends_at_its_next_word(coordinator: Served, tmp_path: Path) -> None:
    """The thread that trains does not stay, or the program would wait for it."""
    coordinator.open(schedule={"rounds": 1})
    state, reached = coordinator.enrol("ada", tmp_path / "ada"), tmp_path / "reached"
    for name in ("ben", "cho"):
        with coordinator.participant(name, tmp_path) as other:
            other.join("task").claim(0.0, [10, 10, 10, 10])
    interrupted(started(ASYNCIO, state, coordinator.market, reached), reached)
    assert coordinator.operator(lambda operator: operator.task("task")).failures == {}


def test_the_same_call_goes_on_after_ctrl_c(coordinator: Served, tmp_path: Path) -> None:
    coordinator.open(schedule={"rounds": 1})
    state, reached = coordinator.enrol("ada", tmp_path / "ada"), tmp_path / "reached"
    others = [coordinator.participant(name, tmp_path) for name in ("ben", "cho")]
    threads = [
        threading.Thread(target=other.run, args=(Shift([10] * 4, 2.0 + n), "task"), kwargs={"effort": 0.0})
        for n, other in enumerate(others)
    ]
    for thread in threads:
        thread.start()
    interrupted(started(RUN, state, coordinator.market, reached), reached)
    again = started(RUN, state, coordinator.market, reached)
    printed, said = again.communicate(timeout=120)
    assert (again.returncode, printed, said) == (0, "CLOSED\n", "")
    for thread in threads:
        thread.join(60)
    for other in others:
        other.close()
    with Participant(state, coordinator.market) as me:
        [line] = me.reports()[0].rounds
        found = me.why("task")
        assert found.problems == ()
        assert line.settlement is not None
        assert found.payment.paid_micro == line.settlement.paid_micro > 0
    # A state folder is enough for the commands too.
    shown = fedpeer(tmp_path, "why", "task", "--round", "1", "--state", str(state))
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.rstrip() == str(found)
    assert "task" in fedpeer(tmp_path, "status", "--state", str(state)).stdout
    assert "ada has earned" in fedpeer(tmp_path, "earnings", "--state", str(state)).stdout
    unknown = fedpeer(tmp_path, "why", "other", "--state", str(state))
    assert unknown.returncode == 2
    assert "no part in task 'other'" in unknown.stderr
    assert "Traceback" not in unknown.stderr
    # Without the coordinator it answers from what is stored, or from a copy of the ledger.
    coordinator.stop()
    offline = fedpeer(tmp_path, "why", "task", "--round", "1", "--state", str(state))
    assert offline.returncode == 0, offline.stderr
    assert f"{credits_text(found.payment.paid_micro)} credits, " in offline.stdout
    assert " expected; the receipt holds" in offline.stdout
    assert "as stored at 20" in offline.stdout
    assert "name a copy of it with --ledger" in offline.stderr
    copy = str(coordinator.folder.path / "coordinator.db")
    copied = fedpeer(tmp_path, "why", "task", "--round", "1", "--state", str(state), "--ledger", copy)
    assert (copied.returncode, copied.stdout) == (0, shown.stdout)
    nowhere = fedpeer(tmp_path, "why", "task", "--state", str(state), "--ledger", "gone.jsonl")
    assert nowhere.returncode == 2
    assert "there is no ledger at 'gone.jsonl'" in nowhere.stderr


def test_ctrl_c_ends_a_command_that_waits_for_the_coordinator(coordinator: Served, tmp_path: Path) -> None:
    coordinator.open(schedule={"rounds": 1})
    with coordinator.participant("ada", tmp_path) as ada:
        ada.join("task")
    coordinator.stop()
    for arguments, known in (
        (["nope"], "no part in task 'nope'"),
        (["task"], "no round of task task is settled yet"),
        (["task", "--round", "7"], "task task has no round 7; expected 1 to 1"),
    ):
        refused = fedpeer(tmp_path, "why", *arguments, "--state", str(tmp_path / "ada"))
        assert refused.returncode == 2
        assert known in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    command = ["participant", "why", "task", "--round", "1", "--state", str(tmp_path / "ada")]
    waiting = subprocess.Popen(
        [sys.executable, "-m", "fedpeer", *command],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert waiting.stderr is not None
    assert "nothing answers at" in waiting.stderr.readline()
    waiting.send_signal(signal.SIGINT)
    _, said = waiting.communicate(timeout=60)
    assert waiting.returncode == 130, said
    assert "Traceback" not in said


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_run_shows_its_steps_on_a_terminal_and_nothing_in_a_file(
    coordinator: Served, tmp_path: Path
) -> None:
    coordinator.open(schedule={"rounds": 1})
    reached = tmp_path / "reached"
    reached.touch()
    ada, ben = (coordinator.enrol(name, tmp_path / name) for name in ("ada", "ben"))
    ours, theirs = os.openpty()
    command = [sys.executable, "-c", RUN]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    on_terminal = subprocess.Popen(
        [*command, str(ada), coordinator.market, str(reached)],
        stderr=theirs,
        stdout=subprocess.DEVNULL,
        env=env,
    )
    os.close(theirs)
    in_file = started(RUN, ben, coordinator.market, reached)
    with coordinator.participant("cho", tmp_path) as cho:
        cho.run(Shift([10] * 4, 3.0), "task", effort=0.0)
    said = b""
    try:
        while part := os.read(ours, 4096):
            said += part
    except OSError:
        pass  # Linux says so that the other side has closed
    assert on_terminal.wait(60) == 0
    assert in_file.communicate(timeout=60)[1] == ""
    lines = said.decode().replace("\r\n", "\n").split("\n")
    assert lines[0] == "waiting for a task that takes claims"
    assert lines[1] == "task: joined task task, of 1 round"
    moving = next(line for line in lines if "\r" in line)
    assert moving.startswith("task: 50% of round 1, loss 0.25\rtask: submitted the model of round 1")
    assert "\x1b" not in said.decode()
    assert lines[-2].startswith("task: task task has ended")
