"""A command that replaces keys is killed at each of its durable steps: it has done all or nothing."""

import signal
import subprocess
import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from coordinator.folder import StateFolder, initialise
from coordinator.operator import Operator
from fedpeer.audit.sources import open_source
from mechanism.ledger.verify import verify_ledger

CONFIG = """
name = "test"
[server]
hosts = ["localhost"]
"""

#: Runs a command of the operator's, and is killed by the system at its n-th durable step: before the n-th file takes
#: its name, or the n-th transaction has been committed.
PROGRAM = """
import os, signal, sys
from pathlib import Path
from coordinator.folder import StateFolder
from coordinator.operator import Operator
from fedpeer.audit.sql.database import Database

left = int(sys.argv[2])

def step():
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1

operator = Operator(StateFolder(Path(sys.argv[1])))
replace, change = Path.replace, operator._log.change_key

def replacing(self, target):
    step()
    return replace(self, target)

def changing(key):
    step()
    index = change(key)
    step()
    return index

Path.replace = replacing
operator._log.change_key = changing
"""

#: What is called, and how many durable steps it has at most.
COMMANDS = {"operator.renew_server([])": 4, "operator.begin_authority()": 5, "operator.change_log_key()": 5}


def run(folder: Path, command: str, point: int) -> bool:
    """Whether the command was killed."""
    program = PROGRAM + command
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder), str(point)], capture_output=True, text=True, timeout=120
    )
    # What a killed one has begun cannot be begun again.
    assert done.returncode in (0, -signal.SIGKILL) or "being replaced already" in done.stderr, done.stderr
    return done.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_killed_command_has_done_all_or_nothing(tmp_path: Path, command: str) -> None:
    folder = initialise(tmp_path / "state", CONFIG, "test", ["localhost"])
    operator = Operator(folder)
    operator.invite("ada")
    first = operator.verification_key
    operator.close()
    killed = [run(folder.path, command, point) for point in range(COMMANDS[command] + 1)]
    assert killed[0]
    assert not killed[-1]
    again = StateFolder(folder.path)
    again.checked_server(["localhost"], datetime.now(UTC))
    again.authority()
    again.older_authority()
    operator = Operator(again)
    operator.invite("bob")
    key = operator.verification_key
    operator.close()
    with ExitStack() as resources:
        report = verify_ledger(open_source(str(folder.path / "coordinator.db"), resources), first)
    assert report.verified, report.problems
    assert report.key == str(key)
    assert not (folder.path / "keys.pending").exists()
