"""`fedpeer participant` as real processes on real digits, against a real coordinator."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from participant import ConfigurationError, Participant, SessionTakenOverError
from tests import commands
from tests.integration.serving import Served, served

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]

RECIPE = {
    "model": "digits-cnn", "epochs": 1, "batch_size": 32, "learning_rate": "0.01", "samples": 120
}  # fmt: skip
DIGITS = {
    "weights": None,
    "reference": None,
    "initial_model": None,
    "recipe": RECIPE,
    "data": {"dataset": "digits", "seed": 0},
}

CONFIG = """
id = "{name}"
state = "state"

[coordinator]
market = "{market}"
public = "{public}"
authority = "authority.pem"

[service]
grace_seconds = {grace}

[[task]]
id = "{task}"
factory = "{factory}"

[task.options]
{options}

[task.effort]
strategy = "best-response"
cost = 0.5
"""


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "coordinator") as running:
        yield running


def fedpeer(folder: Path, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """A command that takes part in nothing."""
    return commands.fedpeer("participant", *arguments, folder=folder, given=given)


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fedpeer", "participant", "run", *more],
        cwd=folder, env=environment(folder), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def configured(
    coordinator: Served,
    folder: Path,
    name: str,
    factory: str,
    options: str,
    task: str = "task",
    grace: float = 20,
) -> Path:
    """A folder with a configuration, enrolled by the command."""
    folder.mkdir()
    (folder / "authority.pem").write_bytes(coordinator.authority)
    (folder / "participant.toml").write_text(
        CONFIG.format(
            name=name, market=coordinator.market, public=coordinator.public, factory=factory,
            options=options, task=task, grace=grace,
        )
    )  # fmt: skip
    # By standard input: arguments are in the process table.
    done = fedpeer(folder, "enroll", "--token", "-", given=coordinator.invite(name) + "\n")
    assert done.returncode == 0, done.stderr
    return folder


def test_honest_and_dishonest_processes_go_through_a_task(coordinator: Served, tmp_path: Path) -> None:
    coordinator.open(**DIGITS)
    dataset = 'dataset = "digits"\nmajority = 3\ndegree = "0.6"\nseed = 1'
    folders = {
        "honest": configured(
            coordinator, tmp_path / "honest", "honest", "participant.adapters.torch:DatasetTask", dataset
        ),
        "liar": configured(
            coordinator, tmp_path / "liar", "liar", "fedpeer.experiments.strategies:OverClaim", dataset
        ),
        "rider": configured(
            coordinator,
            tmp_path / "rider",
            "rider",
            "fedpeer.experiments.strategies:FreeRide",
            'claimed = "0.1"',
        ),
    }
    explained = json.loads(fedpeer(folders["honest"], "explain", "--json").stdout)
    [explanation] = explained["tasks"]
    assert max(point["utility"] for point in explanation["points"]) > explanation["points"][0]["utility"]
    processes = {name: start(folder) for name, folder in folders.items()}
    for name, process in processes.items():
        _, log = process.communicate(timeout=240)
        assert process.returncode == 0, (name, log)
        events = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
        assert [e["round"] for e in events if e.get("kind") == "submitted"] == [1, 2]
        assert events[-1]["kind"] == "ended"

    status = json.loads(fedpeer(folders["honest"], "status", "--json").stdout)
    [task] = status["tasks"]
    assert task["state"] == "CLOSED"
    assert task["effort"] == explanation["effort"], "what was explained is what was done"
    assert float(task["effort"]) > 0
    assert [line["submitted"] for line in task["rounds"]] == [True, True]
    assert task["rounds"][1]["metrics"]["accuracy"] > 0.5

    done = fedpeer(folders["honest"], "earnings", "--json")
    assert done.returncode == 0, done.stderr
    earned = json.loads(done.stdout)
    assert [line["receipt"] for line in earned["rounds"]] == ["holds", "holds"]
    assert earned["paid_micro"] == task["paid_micro"] > 0
    assert "credits in 2 rounds" in fedpeer(folders["honest"], "earnings").stdout


SLOW = """
import time
from participant import Task

class Slow(Task):
    def label_counts(self):
        return [10, 10, 10, 10]
    def train(self, weights, round):
        open("training", "w").close()
        for step in range(600):
            round.progress(step / 600)
            time.sleep({seconds})
        return {{name: array + 1 if array.dtype.kind == "f" else array for name, array in weights.items()}}
"""


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    wait_until(path.exists, process)


def wait_until(reached: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 60
    while not reached():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("seconds", "grace", "handed_back"),
    [(0.001, 20, False), (1.0, 0.2, True)],
    ids=["finishes", "hands back"],
)
def test_sigterm_finishes_the_round_or_hands_it_back(
    coordinator: Served, tmp_path: Path, seconds: float, grace: float, handed_back: bool
) -> None:
    coordinator.open(schedule={"rounds": 1, "quorum": 3, "capacity": 3})
    folder = configured(coordinator, tmp_path / "slow", "slow", "slow:Slow", "", grace=grace)
    (folder / "slow.py").write_text(SLOW.format(seconds=seconds))
    others = [coordinator.participant(name, tmp_path) for name in ("ada", "ben")]
    for other in others:
        other.join("task").claim(0.0, [10, 10, 10, 10])
        other.close()
    process = start(folder)
    wait_for(folder / "training", process)
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    report = coordinator.operator(lambda operator: operator.task("task"))
    if handed_back:
        assert report.failures == {"slow": "the participant is shutting down"}
    else:
        assert report.delivered == ("slow",)


def test_explain_finds_a_task_of_the_working_folder(coordinator: Served, tmp_path: Path) -> None:
    """As `run` does, in a process of its own; the console script has no such folder on its path."""
    coordinator.open(schedule={"rounds": 1, "quorum": 3, "capacity": 3})
    folder = configured(coordinator, tmp_path / "slow", "slow", "slow:Slow", "")
    (folder / "slow.py").write_text(SLOW.format(seconds=0))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "fedpeer", "participant", "explain"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Expected figures of one round" in done.stdout


def test_explain_holds_the_data_of_a_fixed_effort_against_the_task(
    coordinator: Served, tmp_path: Path
) -> None:
    coordinator.open(schedule={"rounds": 1, "quorum": 3, "capacity": 3})
    folder = configured(coordinator, tmp_path / "slow", "slow", "slow:Slow", "")
    (folder / "slow.py").write_text(SLOW.format(seconds=0))
    settings = (folder / "participant.toml").read_text()
    fixed = settings.replace('strategy = "best-response"\ncost = 0.5', 'strategy = "fixed"\neffort = 0')
    (folder / "participant.toml").write_text(fixed)
    done = fedpeer(folder, "explain")
    assert done.returncode == 0, done.stderr
    assert "the effort is fixed; it fits the task task, at degree 0" in done.stderr
    (folder / "slow.py").write_text(SLOW.format(seconds=0).replace("[10, 10, 10, 10]", "[10, 10]"))
    done = fedpeer(folder, "explain")
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "expected" in done.stderr


def test_explain_says_what_would_keep_the_task_from_being_joined(coordinator: Served, tmp_path: Path) -> None:
    coordinator.open(schedule={"rounds": 1, "quorum": 3, "capacity": 3})
    folder = configured(coordinator, tmp_path / "slow", "slow", "slow:Slow", "")
    (folder / "slow.py").write_text(SLOW.format(seconds=0))
    settings = (folder / "participant.toml").read_text()
    (folder / "participant.toml").write_text(settings + "\n[policy]\nleast_pay = 1000\n")
    coordinator.operator(lambda operator: operator.cancel("task", "too expensive"))
    done = fedpeer(folder, "explain")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "Task task takes no claims any more: it is CANCELLED." in said
    assert "It would not be joined: task task is declined" in said
    assert "accepted are at least 1000" in said
    fixed = (folder / "participant.toml").read_text()
    fixed = fixed.replace('strategy = "best-response"\ncost = 0.5', 'strategy = "fixed"\neffort = 0')
    (folder / "participant.toml").write_text(fixed)
    assert "task task is declined" in fedpeer(folder, "explain").stderr


def test_a_file_with_another_ones_id_is_a_mistake(coordinator: Served, tmp_path: Path) -> None:
    folder = configured(coordinator, tmp_path / "slow", "slow", "slow:Slow", "")
    path = folder / "participant.toml"
    path.write_text(path.read_text().replace('id = "slow"', 'id = "other"', 1))
    for command in (
        ["earnings"],
        ["status"],
        ["run"],
        ["keys"],
        ["why", "task"],
        ["explain"],
        ["openings", "task"],
    ):
        done = fedpeer(folder, *command)
        assert done.returncode == 2, (command, done.stderr)
        assert "id is 'other', and the state folder" in done.stderr
        assert "is slow's" in done.stderr


def test_ctrl_c_stops_the_service_and_says_what_is_kept(coordinator: Served, tmp_path: Path) -> None:
    coordinator.open(schedule={"rounds": 1, "quorum": 3, "capacity": 3})
    folder = configured(coordinator, tmp_path / "slow", "slow", "slow:Slow", "", grace=0)
    (folder / "slow.py").write_text(SLOW.format(seconds=600))
    for name in ("ada", "ben"):
        with coordinator.participant(name, tmp_path) as other:
            other.join("task").claim(0.0, [10, 10, 10, 10])
    process = start(folder)
    wait_for(folder / "training", process)
    process.send_signal(signal.SIGINT)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 130, log
    assert "Ctrl-C again ends at once" in log
    last = log.splitlines()[-1]
    assert "keeps the claim of task, 0 models sent" in last
    assert "Run the same again to go on" in last
    assert "Traceback" not in log
    report = coordinator.operator(lambda operator: operator.task("task"))
    assert report.failures == {"slow": "the participant is shutting down"}


def test_a_service_whose_identity_connects_elsewhere_ends_and_does_not_fight_back(
    coordinator: Served, tmp_path: Path
) -> None:
    coordinator.open(schedule={"rounds": 1, "quorum": 3, "capacity": 3})
    folder = configured(coordinator, tmp_path / "slow", "slow", "slow:Slow", "")
    (folder / "slow.py").write_text(SLOW.format(seconds=0))
    path = folder / "participant.toml"
    path.write_text(
        path.read_text().replace('[[task]]\nid = "task"', "[[task]]")
    )  # any task, again and again
    process = start(folder)
    wait_until(
        lambda: coordinator.operator(lambda operator: operator.task("task")).claimed == ("slow",), process
    )
    state = tmp_path / "elsewhere"
    state.mkdir()
    for name in ("key.pem", "certificate.pem", "authority.pem"):
        shutil.copy(folder / "state" / name, state / name)
    with Participant(state, coordinator.market) as other:
        # Whichever comes first, the service's own stream or this one: the later takes over.
        while process.poll() is None:
            with suppress(SessionTakenOverError):
                next(iter(other.client.watch("task")))
            time.sleep(0.05)  # both are one identity to the quotas
    _, log = process.communicate()
    assert process.returncode == 5, log
    assert "Another process has connected as 'slow'" in log.splitlines()[-1]


class TestMistakes:
    """Each ends in a sentence on standard error and an exit code, never in a traceback."""

    def test_init_writes_a_file_that_can_be_read(self, tmp_path: Path) -> None:
        assert fedpeer(tmp_path, "init", "ada").returncode == 0
        again = fedpeer(tmp_path, "init", "ada")
        assert again.returncode == 2
        assert "exists already" in again.stderr
        assert "ada has taken part in no task yet" in fedpeer(tmp_path, "status").stdout
        assert json.loads(fedpeer(tmp_path, "earnings", "--json").stdout)["paid_micro"] == 0

    def test_a_wrong_configuration(self, tmp_path: Path) -> None:
        fedpeer(tmp_path, "init", "ada")
        path = tmp_path / "participant.toml"
        path.write_text(path.read_text().replace("[service]", "[service]\ncolour = 3"))
        done = fedpeer(tmp_path, "run")
        assert done.returncode == 2
        assert done.stderr.startswith("fedpeer: participant.toml: unknown key service.colour; known here: ")

    def test_running_before_enrolment(self, tmp_path: Path) -> None:
        fedpeer(tmp_path, "init", "ada")
        done = fedpeer(tmp_path, "run")
        assert done.returncode == 2
        assert "enrol first" in done.stderr
        assert "Traceback" not in done.stderr

    def test_a_broken_factory_fails_before_anything_is_agreed_to(
        self, coordinator: Served, tmp_path: Path
    ) -> None:
        coordinator.open("task")
        folder = configured(coordinator, tmp_path / "ada", "ada", "broken:Raises", "")
        (folder / "broken.py").write_text("def Raises():\n    raise FileNotFoundError('images.npz')\n")
        done = fedpeer(folder, "run")
        assert done.returncode == 2, done.stderr
        assert done.stderr == (
            "fedpeer: broken:Raises with the options {} failed: FileNotFoundError: images.npz\n"
        )
        assert "ada has taken part in no task yet" in fedpeer(folder, "status").stdout

    def test_no_configuration(self, tmp_path: Path) -> None:
        done = fedpeer(tmp_path, "run", "-c", "nothing.toml")
        assert done.returncode == 2
        assert "fedpeer participant init" in done.stderr


class TestAuthorityFile:
    """An authority file that is not a certificate is named, and nobody is called."""

    def test_at_enrolment(self, tmp_path: Path) -> None:
        (tmp_path / "authority.pem").write_text("<html>404 Not Found</html>")
        (tmp_path / "participant.toml").write_text(
            'id = "ada"\n[coordinator]\nmarket = "localhost:1"\npublic = "localhost:1"\nauthority = "authority.pem"\n'
            '[[task]]\nfactory = "a:b"\n'
        )
        done = fedpeer(tmp_path, "enroll", "--token", "token")
        assert done.returncode == 2
        [line] = done.stderr.splitlines()
        assert (
            "authority.pem, named by coordinator.authority in participant.toml, holds no certificate" in line
        )

    def test_in_the_state_folder(self, coordinator: Served, tmp_path: Path) -> None:
        state = coordinator.enrol("ada", tmp_path / "ada")
        (state / "authority.pem").write_text("garbage")
        with pytest.raises(ConfigurationError, match=r"ada/authority\.pem holds no certificate"):
            Participant(state, coordinator.market)
