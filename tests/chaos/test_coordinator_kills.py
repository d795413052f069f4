"""A coordinator that is killed with SIGKILL, again and again, while real participants work; and what it stands on.

Every task ends; every acknowledged submission counts once; nobody trains a round twice; payments sum; the ledger
verifies. The seed of the moments is printed; FEDPEER_CHAOS_KILLS sets how often the long version kills.
"""

import faulthandler
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.serving import children
from coordinator.folder import StateFolder, initialise
from coordinator.opening import prepare_task
from coordinator.operator import Operator
from participant import Backoff, Participant, TaskReport
from tests.backends import DURABLE, scratch_url
from tests.integration.market import verified
from tests.integration.serving import Shift, task_config
from tests.object_stores import BUCKET, free_port, store_process, write_key
from tests.postgresql_server import postgresql_server

pytestmark = pytest.mark.long

NAMES = ("ada", "ben", "cho")

#: Rounds of each task; more than one, so that kills hit every state.
ROUNDS = 3

#: Seconds that a start, and the end of a task, are waited for: the imports alone took more than one minute on a
#: machine that was busy otherwise.
PATIENCE = 600

#: Participants go on trying for longer than many starts in a row take that are killed before they serve.
TRYING = 3600.0

#: Seconds in which a service without fronts ends once its lease's connection is broken; with fronts it never does.
_NOTICES_SECONDS = 5.0

STORED = f'[s3]\nbucket = "{BUCKET}"\nendpoint = "{{endpoint}}"\ncredentials = "s3.key"\n'

CONFIG = """
name = "chaos"
[server]
market = "127.0.0.1:{market}"
public = "127.0.0.1:{public}"
metrics = ""
[storage]
database = {database!r}
"""


class Service:
    """The coordinator's process, or several that share the ports, to be killed and started again."""

    def __init__(self, folder: StateFolder, log: Path, fronts: int = 0) -> None:
        self._folder = folder
        self._fronts = fronts
        self._log = log.open("ab")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "fedpeer", "coordinator", "serve", "--state", str(self._folder.path)]
        self._process = subprocess.Popen([*command, "--fronts", str(self._fronts)], stderr=self._log)

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill_front(self, chance: random.Random) -> None:
        """Kills one of the fronts, whichever leads; the process that started them starts another."""
        if fronts := children(self.pid):
            os.kill(chance.choice(fronts), signal.SIGKILL)

    def wait_until_serving(self, restart: bool = False) -> None:
        """Returns when the service has bound its ports and says so; fails where it died instead.

        Args:
            restart: start it again where it has ended, as a supervisor does, since what it stands on was killed.
        """
        assert self._process is not None
        give_up = time.monotonic() + PATIENCE
        while not self._folder.addresses.exists():
            if restart and self._process.poll() is not None:
                self.start()
            assert self._process.poll() is None, "the coordinator died by itself"
            assert time.monotonic() < give_up
            time.sleep(0.01)

    def ended(self, seconds: float) -> bool:
        """Whether it has ended within so many seconds."""
        assert self._process is not None
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


@contextmanager
def operator(folder: StateFolder) -> Iterator[Operator]:
    commands = Operator(folder)
    try:
        yield commands
    finally:
        commands.close()


def _shift(number: int) -> Shift:
    return Shift([25, 25, 25, 25], step=1.0 + number)


class Flock:
    """Participants of the SDK, each in a thread, each with a journal of its own.

    Args:
        make: the task of the participant with that number; its `trained` has the rounds that it has trained.
    """

    def __init__(self, path: Path, market: str, make: Callable[[int], Any] = _shift) -> None:
        backoff = Backoff(first=0.02, ceiling=0.2, patience=TRYING, first_contact=TRYING)
        self._members = {n: Participant(path / n, market, backoff=backoff) for n in NAMES}
        self._make = make
        self._threads: list[threading.Thread] = []
        self.reports: dict[str, TaskReport | BaseException] = {}
        self.trained: dict[str, list[int]] = {}

    def begin(self, task_id: str) -> None:
        self.reports, self.trained = {}, {}
        self._threads = [threading.Thread(target=self._run, args=(n, task_id)) for n in NAMES]
        for thread in self._threads:
            thread.start()

    def busy(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def join(self) -> None:
        """Waits for everyone. One that gave up is raised at once: the others wait for it in vain."""
        give_up = time.monotonic() + PATIENCE
        while self.busy():
            for report in list(self.reports.values()):
                if isinstance(report, BaseException):
                    raise report
            if time.monotonic() > give_up:
                faulthandler.dump_traceback(file=sys.__stderr__)  # where; captured streams have no descriptor
                pytest.fail("a participant hangs")
            time.sleep(0.05)

    def close(self) -> None:
        for member in self._members.values():
            member.close()

    def _run(self, name: str, task_id: str) -> None:
        task = self._make(NAMES.index(name))
        self.trained[name] = task.trained
        try:
            self.reports[name] = self._members[name].run(task, task_id)
        except BaseException as error:
            self.reports[name] = error


def enrol(folder: StateFolder, path: Path) -> None:
    """Enrols everybody; their folders lie in `path`."""
    for name in NAMES:
        with operator(folder) as commands:
            token = commands.invite(name).token
        authority = (folder.path / "authority.pem").read_bytes()
        public = folder.config().server.public
        Participant.enroll(path / name, participant_id=name, public=public, token=token, authority=authority)


def check(flock: Flock, rounds: int = ROUNDS, least: int = 1) -> None:
    """Args: least: micro that each round pays to each; 0: a check of honest work may fail, as it does at its rate."""
    for name in NAMES:
        report = flock.reports[name]
        if isinstance(report, BaseException):
            raise report
        assert report.state == "CLOSED", report
        paid = [-1 if r.settlement is None else r.settlement.paid_micro for r in report.rounds]
        assert len(paid) == rounds
        assert min(paid) >= least, paid
        assert flock.trained[name] == list(range(1, rounds + 1)), "a round was trained twice, or not at all"


def run_chaos(
    tmp_path: Path, backend: str, kills: int, seed: int, fronts: int = 0, below: bool = False
) -> None:
    """Args: below: the database's server and an object store are the test's own, and are killed, too."""
    moments, counts = random.Random(seed), Counter[str]()
    with ExitStack() as resources:
        if below:
            store = resources.enter_context(store_process("rclone", tmp_path / "store"))
            server = resources.enter_context(postgresql_server())
            database, more = server.url, STORED.format(endpoint=store.url)
        else:
            database, more = resources.enter_context(scratch_url(backend, tmp_path)), ""
        text = CONFIG.format(market=free_port(), public=free_port(), database=database) + more
        folder = initialise(tmp_path / "state", text, "chaos", ["localhost", "127.0.0.1"])
        if below:
            write_key(folder.path)
        service = Service(folder, tmp_path / "coordinator.log", fronts)
        service.start()
        service.wait_until_serving()
        enrol(folder, tmp_path)
        flock = Flock(tmp_path, folder.config().server.market)
        done, tasks = 0, 0
        try:
            while done < kills:
                tasks += 1
                task_id = f"task-{tasks}"
                # No deadline passes: on a busy machine most of an hour goes into starting the coordinator.
                day = {"effort_seconds": 86_400, "round_seconds": 86_400}
                schedule = {"rounds": ROUNDS, "quorum": 3, "capacity": 3, **day}
                config = task_config(tmp_path, task_id, schedule=schedule)
                with operator(folder) as commands:
                    commands.open(prepare_task(config, time.time()))
                flock.begin(task_id)
                while flock.busy() and done < kills:
                    time.sleep(moments.uniform(0, 0.6))
                    what = moments.choice(("store", "database", "service")) if below else "service"
                    counts[what] += 1
                    if what != "service":
                        # It starts where both are there; a supervisor would try again and again.
                        service.wait_until_serving(restart=True)
                        killed = store if what == "store" else server
                        killed.kill()
                        time.sleep(moments.uniform(0, 0.6))
                        killed.start()
                        done += 1
                        if what == "database" and service.ended(_NOTICES_SECONDS):
                            folder.addresses.unlink(missing_ok=True)
                            service.start()
                        continue
                    if fronts and moments.random() < 0.8:
                        service.kill_front(moments)
                        done += 1
                        continue
                    service.kill()
                    folder.addresses.unlink(missing_ok=True)
                    done += 1
                    service.start()
                    if moments.random() < 0.7:  # the others are killed while they start
                        service.wait_until_serving()
                service.wait_until_serving(restart=below)
                flock.join()
                check(flock)
        finally:
            service.kill()
            flock.close()
        print(f"{done} kills in {tasks} tasks: {dict(counts)}")  # noqa: T201 - for -s, and when it fails
        report = verified(folder)
        assert report.counts.payments == tasks * ROUNDS * len(NAMES)
        assert report.open_tasks == {}
        leftovers = [p for p in folder.spool.rglob("*") if p.is_file()]
        assert leftovers == []


@pytest.mark.parametrize("backend", ["sqlite", pytest.param("postgresql", marks=pytest.mark.extended)])
def test_a_killed_coordinator_ends_every_task_and_pays_once(tmp_path: Path, backend: str) -> None:
    run_chaos(tmp_path, backend, kills=5, seed=1)


def test_killed_fronts_end_every_task_and_pay_once(tmp_path: Path) -> None:
    run_chaos(tmp_path, "postgresql", kills=5, seed=2, fronts=2)


@pytest.mark.extended
def test_killed_servers_below_end_every_task_and_pay_once(tmp_path: Path) -> None:
    run_chaos(tmp_path, "postgresql", kills=6, seed=3, below=True)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("fronts", [0, 2])
def test_two_hundred_kills_of_everything(tmp_path: Path, fronts: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    kills = int(os.environ.get("FEDPEER_CHAOS_KILLS", "200"))
    run_chaos(tmp_path, "postgresql", kills, seed, fronts, below=True)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("backend", DURABLE)
def test_three_hundred_kills(tmp_path: Path, backend: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    run_chaos(tmp_path, backend, int(os.environ.get("FEDPEER_CHAOS_KILLS", "300")), seed)
