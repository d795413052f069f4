"""The demo's market: state folders, one coordinator process, one process for each participant.

Everything goes the way that it goes in earnest: invitation, enrolment by CSR, mutual TLS, signed claims. Only the
acts of the operator (init, open, invite) are called in this process instead of typed.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from coordinator.config import TaskConfig, read_config, resolve_paths
from coordinator.folder import StateFolder, initialise
from coordinator.operator import Operator, TaskOverview
from fedpeer.cli.errors import CommandError
from fedpeer.demo.population import Member, Strategy
from fedpeer.demo.settings import (
    CLAIM_PENALTY,
    DATASETS,
    EFFORT_RATE,
    PEERS,
    PHASE_SECONDS,
)
from fedpeer.protocol.certificates import key_from
from fedpeer.testing.participant import write_key
from mechanism.terms import MIN_QUORUM
from participant import Participant

#: Seconds that a process gets to end after SIGTERM before it is killed.
STOP_SECONDS = 20

#: Lines of a failed process's log that are shown.
_TAIL_LINES = 8


@dataclass(frozen=True)
class DemoPlan:
    """What is to be run.

    Attributes:
        folder: everything lands here; new or empty.
        seed: decides data, training, the first model, the participants' keys and with them the peers.
    """

    folder: Path
    dataset: str
    members: Sequence[Member]
    rounds: int
    seed: int

    @property
    def task_id(self) -> str:
        return f"{self.dataset}-demo"

    @property
    def state(self) -> StateFolder:
        """The coordinator's."""
        return StateFolder(self.folder / "coordinator")


@dataclass(frozen=True)
class LogLine:
    """One line of a process's log, or its end.

    Attributes:
        process: the coordinator's or participant's name.
        line: the parsed log line; empty when the process has ended.
    """

    process: str
    line: dict[str, Any]


class ProcessLogs:
    """What the processes say, in the order in which it arrives, and whether the market is to stop.

    A signal handler runs between any two instructions of the main thread, also inside a lock or a transaction. It
    only calls `stop`; the main thread raises where it takes the next log_line.
    """

    def __init__(self) -> None:
        # Not queue.Queue: its `put` takes a lock that the interrupted thread may hold.
        self._queue: queue.SimpleQueue[LogLine | None] = queue.SimpleQueue()
        self._stopping = False

    def put(self, log_line: LogLine) -> None:
        self._queue.put(log_line)

    def stop(self) -> None:
        self._stopping = True
        self._queue.put(None)

    def go_on(self) -> None:
        """Returns while nobody asked to stop.

        Raises:
            KeyboardInterrupt: somebody did.
        """
        if self._stopping:
            raise KeyboardInterrupt

    def next(self) -> LogLine:
        """The next log_line, once there is one.

        Raises:
            KeyboardInterrupt: the market is to stop.
        """
        log_line = self._queue.get()
        self.go_on()
        assert log_line is not None
        return log_line


def run_market(
    plan: DemoPlan,
    watch: Callable[[LogLine], None],
    process_logs: ProcessLogs,
    show: Callable[[str], None] | None = None,
) -> TaskOverview:
    """Runs the task that `set_up` has opened to its end and returns its report; the state stays in the plan's folder.

    Args:
        watch: called with every line of a log.
        show: called with a link that signs in to the web console beside the coordinator; None: there is none.

    Raises:
        CommandError: a process failed; the message has the end of its log.
        KeyboardInterrupt: `process_logs.stop` was called; every process has been stopped.
    """
    processes: list[subprocess.Popen[str]] = []
    with ExitStack() as stack:

        def start(name: str, arguments: Sequence[str]) -> "subprocess.Popen[str]":
            process_logs.go_on()
            processes.append(stack.enter_context(_process(name, plan, arguments, process_logs)))
            return processes[-1]

        operator = stack.enter_context(closing(Operator(plan.state)))
        try:
            console = [] if show is None else ["--console-listen", "127.0.0.1:0"]
            coordinator = start(
                "coordinator",
                ["coordinator", "serve", "--verbose", "--state", str(plan.state.path), *console],
            )
            lines = _lines(plan, coordinator, process_logs, watch)
            serving = next(said.line for said in lines if said.line.get("event") == "serving")
            if show is not None:
                show(_console_link(plan, coordinator, process_logs))
            for member in plan.members:
                config = _enrol(plan, member, operator, serving)
                start(
                    member.id,
                    ["participant", "run", "--once", "--config", str(config), "--log-format", "json"],
                )
            running = {member.id for member in plan.members}
            while running:
                said = next(lines)
                if not said.line:
                    running.remove(said.process)
        except KeyboardInterrupt:
            for process in processes:  # at once: what they would still write is not kept
                process.kill()
            raise
        return operator.task(plan.task_id)


def task_file(plan: DemoPlan) -> str:
    """The task as its operator writes it."""
    data = DATASETS[plan.dataset]
    return f"""\
id = "{plan.task_id}"
seed = {plan.seed}          # for the demo; leave it out where money is at stake
Q = {data.Q}
phi = {data.phi}
upsilon = {data.upsilon}
reference = [{", ".join(f'"1/{data.classes}"' for _ in range(data.classes))}]

[payment]
name = "log"
scale = {data.scale}

[rule]
name = "verified"
peers = {min(PEERS, len(plan.members) - 1)}
claim_penalty = {CLAIM_PENALTY}
stake_micro = {data.stake_micro}

[schedule]
rounds = {plan.rounds}
quorum = {MIN_QUORUM}
capacity = {len(plan.members)}
effort_seconds = {PHASE_SECONDS}
round_seconds = {PHASE_SECONDS}

[recipe]
model = "{data.model}"
epochs = {data.epochs}
batch_size = {data.batch_size}
optimizer = "adam"
learning_rate = {data.learning_rate}
samples = {data.samples}

[data]
dataset = "{plan.dataset}"
seed = {plan.seed}
validation = {data.validation}
test = {data.test}

[evidence]
shadows = {data.shadows}
"""


def participant_file(plan: DemoPlan, member: Member, serving: dict[str, Any]) -> str:
    """A participant's configuration."""
    data = DATASETS[plan.dataset]
    options: dict[str, Any] = {
        "dataset": plan.dataset,
        "majority": member.majority,
        "degree": str(member.start_degree),
        "rate": EFFORT_RATE,
        "split_seed": plan.seed,
        "validation": data.validation,
        "test": data.test,
        # Everyone has data of its own, twins too: equal label counts, other samples.
        "seed": plan.seed * len(plan.members) + plan.members.index(member),
    }
    effort = f'strategy = "best-response"\ncost = {float(member.cost)}\nrate = {EFFORT_RATE}'
    factory = "participant.adapters.torch:DatasetTask"
    if member.strategy is Strategy.OVER_CLAIM:
        factory, effort = "fedpeer.experiments.strategies:OverClaim", 'strategy = "fixed"\neffort = 1.0'
    if member.strategy is Strategy.FREE_RIDE:
        factory, effort = "fedpeer.experiments.strategies:FreeRide", 'strategy = "fixed"\neffort = 1.0'
        options = {}
    return f"""\
id = "{member.id}"
state = "state"

[coordinator]
market = {json.dumps(serving["market"])}
public = {json.dumps(serving["public"])}
authority = {json.dumps(str(plan.state.path.absolute() / "authority.pem"))}

[service]
isolate = false    # one process for each participant is enough here: it has torch in it already

[[task]]
id = "{plan.task_id}"
factory = "{factory}"

[task.options]
{"".join(f"{key} = {json.dumps(value)}" + chr(10) for key, value in options.items())}
[task.effort]
{effort}
"""


def set_up(plan: DemoPlan) -> None:
    """Makes the coordinator's folder and opens the task in it."""
    from coordinator.opening import prepare_task  # imports torch

    (plan.folder / "logs").mkdir(parents=True)
    service = (
        'name = "fedpeer-demo"\n[server]\nmarket = "127.0.0.1:0"\npublic = "127.0.0.1:0"\nmetrics = ""\n'
    )
    initialise(plan.state.path, service, "fedpeer-demo", ["localhost", "127.0.0.1"])
    path = plan.state.path / "task.toml"
    path.write_text(task_file(plan))
    config = resolve_paths(read_config(path, TaskConfig), path.parent)
    operator = Operator(plan.state)
    with closing(operator):
        operator.open(prepare_task(config, datetime.now(UTC).timestamp()))


def _enrol(plan: DemoPlan, member: Member, operator: Operator, serving: dict[str, Any]) -> Path:
    """An enrolled participant's configuration file."""
    folder = plan.folder / "participants" / member.id
    # Draw shares come of keys, so the same seed gives the same peers.
    write_key(folder / "state", key_from(f"fedpeer demo {plan.seed}/{member.id}"))
    Participant.enroll(
        folder / "state",
        participant_id=member.id,
        public=serving["public"],
        token=operator.invite(member.id).token,
        authority=(plan.state.path / "authority.pem").read_bytes(),
    )
    path = folder / "participant.toml"
    path.write_text(participant_file(plan, member, serving))
    return path


@contextmanager
def _process(
    name: str, plan: DemoPlan, arguments: Sequence[str], process_logs: ProcessLogs
) -> Iterator[subprocess.Popen[str]]:
    """`fedpeer ARGUMENTS` as a process; its log goes to logs/NAME.log and line by line to `process_logs`."""
    # One thread each: sums split over several would round differently from run to run, and there are many of us.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(part for part in sys.path if part)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "fedpeer", *arguments],  # -P: whatever lies in the working folder
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    pump = threading.Thread(
        target=_pump, args=(name, process.stdout, _log_path(plan, name), process_logs), daemon=True
    )
    pump.start()
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        pump.join()


def _pump(name: str, stream: IO[str], log: Path, process_logs: ProcessLogs) -> None:
    with log.open("w") as file:
        for line in stream:
            file.write(line)
            file.flush()
            try:
                parsed = json.loads(line)
            except ValueError:
                continue
            if isinstance(parsed, dict) and parsed:
                process_logs.put(LogLine(name, parsed))
    process_logs.put(LogLine(name, {}))


def _lines(
    plan: DemoPlan,
    coordinator: "subprocess.Popen[str]",
    process_logs: ProcessLogs,
    watch: Callable[[LogLine], None],
) -> Iterator[LogLine]:
    """What the processes say, as long as the coordinator runs."""
    while (said := process_logs.next()).line or said.process != "coordinator":
        watch(said)
        yield said
    raise _failed(plan, coordinator)


def _console_link(plan: DemoPlan, coordinator: "subprocess.Popen[str]", process_logs: ProcessLogs) -> str:
    """A link that signs the operator in, once the console listens."""
    from fedpeer.console.addresses import served_url
    from fedpeer.console.sessions import Role, Sessions

    while not (url := served_url(plan.state.console)):
        process_logs.go_on()
        if coordinator.poll() is not None:
            raise _failed(plan, coordinator)
        time.sleep(0.1)
    token = Sessions(plan.state.console, time.time, lambda _: None).link(Role.OPERATOR)
    return f"{url}/sign-in/?token={token}"


def _failed(plan: DemoPlan, coordinator: "subprocess.Popen[str]") -> CommandError:
    log = _log_path(plan, "coordinator")
    tail = "\n".join(log.read_text().splitlines()[-_TAIL_LINES:])
    return CommandError(
        f"the coordinator process ended with exit code {coordinator.wait()}; the end of {log}:\n{tail}"
    )


def _log_path(plan: DemoPlan, name: str) -> Path:
    return plan.folder / "logs" / f"{name}.log"
