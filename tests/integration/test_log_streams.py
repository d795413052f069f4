"""Standard error on a full disk, into a pipe whose reader has gone or does not read, or closed: nothing is said then,
and everything is done."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from coordinator.folder import initialise
from coordinator.opening import prepare_task
from fedpeer.streams import unfailing
from participant import Backoff, Participant, Task, Trained, TrainingRound, Weights
from tests.chaos.test_coordinator_kills import CONFIG, operator
from tests.integration.market import verified
from tests.integration.serving import task_config
from tests.integration.test_background import check, take_part
from tests.integration.test_participant_command import environment

pytestmark = pytest.mark.long

KINDS = ("full", "gone", "closed", "unread")

#: Bytes of a pipe that nobody reads: one line fills it.
_SMALL = 4096

PARTICIPANT = """
id = "cho"
state = "."

[coordinator]
market = "{market}"
public = "{public}"
authority = "authority.pem"

[[task]]
id = "task"
factory = "tests.integration.test_log_streams:chatty"

[task.effort]
strategy = "fixed"
effort = 0.0
"""


class Chatty(Task):
    """Says a lot on both streams, as a training script does."""

    def label_counts(self) -> list[int]:
        return [5, 5, 5, 5]

    def train(self, weights: Weights, round: TrainingRound) -> Trained:  # noqa: A002 - as Task.train
        for stream in (sys.stdout, sys.stderr):
            print("x" * 8192, file=stream, flush=True)
        round.progress(0.5, loss=1.0)
        return Trained({n: a + np.float32(1) if a.dtype == np.float32 else a for n, a in weights.items()})


def chatty() -> Task:
    return Chatty()


@contextmanager
def standard_error(kind: str) -> Iterator[int | None]:
    """A descriptor for a process's standard error; None where it is to be closed."""
    if kind == "closed":
        yield None
        return
    if kind == "full":
        descriptor = os.open("/dev/full", os.O_WRONLY)
        yield descriptor
        os.close(descriptor)
        return
    reading, writing = os.pipe()
    if kind == "gone":
        os.close(reading)
    yield writing
    os.close(writing)
    if kind == "unread":
        os.close(reading)


def start(arguments: list[str], stderr: int | None, **options: object) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "fedpeer", *arguments]
    if stderr is None:
        command = ["sh", "-c", 'exec "$@" 2>&-', "sh", *command]
    return subprocess.Popen(command, stderr=stderr, **options)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize(
    "kind", [kind if kind == "full" else pytest.param(kind, marks=pytest.mark.extended) for kind in KINDS]
)
def test_a_task_ends_wherever_standard_error_leads(tmp_path: Path, kind: str) -> None:
    folder = initialise(
        tmp_path / "state", CONFIG.format(market=0, public=0, database=""), "mute", ["localhost", "127.0.0.1"]
    )
    authority = (folder.path / "authority.pem").read_bytes()
    with standard_error(kind) as stderr:
        service = start(["coordinator", "serve", "--state", str(folder.path)], stderr)
        others: list[subprocess.Popen[bytes]] = []
        members: dict[str, Participant] = {}
        try:
            give_up = time.monotonic() + 240
            while not folder.addresses.exists():
                assert service.poll() is None
                assert time.monotonic() < give_up
                time.sleep(0.02)
            addresses = json.loads(folder.addresses.read_text())
            market, public = addresses["market"], addresses["public"]
            for name in ("ada", "ben", "cho"):
                with operator(folder) as commands:
                    token = commands.invite(name).token
                Participant.enroll(
                    tmp_path / name,
                    participant_id=name,
                    public=public,
                    token=token,
                    authority=authority,
                )
            with operator(folder) as commands:
                commands.open(prepare_task(task_config(tmp_path, schedule={"rounds": 2}), time.time()))
            backoff = Backoff(first=0.05, ceiling=0.5)
            for name in ("ada", "ben"):
                members[name] = Participant(tmp_path / name, market, backoff=backoff)
            (tmp_path / "cho" / "participant.toml").write_text(
                PARTICIPANT.format(market=market, public=public)
            )
            others.append(
                start(
                    ["participant", "run", "--log-format", "json"],
                    stderr,
                    cwd=tmp_path / "cho",
                    env=environment(tmp_path),
                )
            )
            reports = take_part(members, "task")
            assert others[0].wait(120) == 0
            with operator(folder) as commands:
                serving = commands.serving()
            assert serving.serving
            assert serving.troubles == {}
            service.terminate()
            assert service.wait(60) == 0
        finally:
            for process in (service, *others):
                process.kill()
                process.wait()
            for member in members.values():
                member.close()
    reports["cho"] = reports["ada"]
    check(reports, rounds=2)
    assert verified(folder).counts.payments == 6


def test_a_stream_that_stalls_is_waited_for_once_and_taken_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpeer.streams._PATIENCE_MS", 10)
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as pipe:
        stream = unfailing(pipe)
        for _ in range(100):
            stream.write("x" * _SMALL + "\n")
        taken = os.read(reading, 1 << 20)
        assert 0 < len(taken) <= 1 << 16
        stream.write("again\n")
        assert os.read(reading, 1 << 20).endswith(b"again\n")
        os.close(reading)
        stream.write("nobody\n")
        stream.flush()


def test_a_stream_is_made_unfailing_once_and_says_what_it_is() -> None:
    with Path("/dev/full").open("w") as full:
        stream = unfailing(full)
        assert unfailing(stream) is stream
        assert stream.fileno() == full.fileno()
        assert not stream.isatty()
        print("a surrogate \udc80 too", file=stream, flush=True)
    stream.write("closed by now\n")
    nowhere = unfailing(None)
    print("nowhere", file=nowhere, flush=True)
    assert unfailing(nowhere) is nowhere
