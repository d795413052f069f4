"""A disk that is really full: the kernel refuses to let a file grow (RLIMIT_FSIZE), in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import resource, sys
from decimal import Decimal
from pathlib import Path

import numpy as np

from participant.errors import DiskFullError, JournalError
from participant.identity import IdentityFolder
from participant.journal import Journal
from participant.model_store import write_weights
from participant.steps import _Sink
from fedpeer.v1 import market_pb2
from fedpeer.protocol.model_file import contract_of

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def full(act):
    try:
        act()
    except DiskFullError as error:
        assert "make space and start again, nothing is lost" in str(error), error
        return
    raise SystemExit(f"{act} did not learn that the disk is full")

folder = Path(sys.argv[1])
journal = Journal(folder / "journal.db")
journal.add_task("before", b"terms")
limit(300_000)
try:  # SQLite does not say which failure of a write it was: of a limit, a quota or the disk
    [journal.add_task(f"task-{n}", bytes(50_000)) for n in range(100)]
    raise SystemExit("the journal grew beyond the limit")
except JournalError as error:
    assert "a limit of file sizes is used up" in str(error), error
written = [record.task_id for record in journal.tasks()]

weights = {"w": np.ones(1_000_000, np.float32)}
contract = contract_of(weights, Decimal(10_000), 10_000_000)
full(lambda: write_weights(folder / "model", weights, contract))
assert [path.name for path in folder.glob("model*")] == []

sink = _Sink(folder / "start.part")
def take():
    while True:
        sink.take(market_pb2.ModelFrame(offset=sink.offset, data=bytes(100_000)))
full(take)

full(lambda: IdentityFolder(folder).write("key.pem", bytes(400_000)))
assert not (folder / "key.pem").exists()

limit(resource.RLIM_INFINITY)  # the operator has made space
journal.add_task("after", b"terms")
assert {"before", "after", *written} == {record.task_id for record in journal.tasks()}
journal.close()
again = Journal(folder / "journal.db")
assert again.task("before").terms == b"terms"
write_weights(folder / "model", weights, contract)
print("done")
"""


def test_a_full_disk_is_said_to_be_full_and_nothing_is_lost(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
