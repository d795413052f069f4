"""The demo as a stranger runs it: real processes over mutual TLS, real digits. One run serves most tests."""

import io
import json
import select
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from scipy.stats import spearmanr

from fedpeer.demo.command import _make_room
from fedpeer.demo.population import population
from fedpeer.demo.report import print_result
from fedpeer.demo.result import DemoResult, ParticipantResult
from mechanism.ledger.verify import Report
from tests import commands
from tests.participant.simulated_market import terms

#: Seconds: two whole markets of nine processes, on a machine that runs other tests beside them.
pytestmark = [pytest.mark.timeout(1500), pytest.mark.arithmetic, pytest.mark.long]


@dataclass(frozen=True)
class Run:
    result: dict[str, Any]
    folder: Path


def fedpeer(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "fedpeer", *arguments], capture_output=True, text=True)


#: The command with few shadows: what it plays and leaves is the same, and its degrees are told less well.
FEW_SHADOWS = """
import sys
from dataclasses import replace

from fedpeer.__main__ import main
from fedpeer.demo.settings import DATASETS

DATASETS["digits"] = replace(DATASETS["digits"], shadows=12, epochs=3)
sys.exit(main())
"""


def played(folder: Path, command: list[str], *options: str) -> Run:
    called = [sys.executable, *command, "demo", "--json", "--out", str(folder), *options]
    done = subprocess.run(called, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Run(json.loads(done.stdout), folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The demo as it is without an option, for `make test-extended`."""
    return played(tmp_path_factory.mktemp("whole") / "out", ["-m", "fedpeer"])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """As few participants as there may be, one round and few shadows."""
    folder = tmp_path_factory.mktemp("small") / "out"
    return played(folder, ["-c", FEW_SHADOWS], "--participants", "5", "--rounds", "1")


@pytest.fixture(params=["small", pytest.param("whole", marks=pytest.mark.extended)])
def market(request: pytest.FixtureRequest) -> Run:
    run: Run = request.getfixturevalue(request.param)
    return run


def by_id(run: Run) -> dict[str, dict[str, Any]]:
    return {p["id"]: p for p in run.result["participants"]}


@pytest.mark.parametrize(
    ("name", "people", "rounds"), [("small", 5, 1), pytest.param("whole", 8, 3, marks=pytest.mark.extended)]
)
def test_the_result_has_the_promised_form(
    request: pytest.FixtureRequest, name: str, people: int, rounds: int
) -> None:
    market: Run = request.getfixturevalue(name)
    result = market.result
    assert result.keys() == {"task", "participants", "rounds", "ledger", "seconds"}
    assert result["task"].keys() == {"id", "Q", "phi", "upsilon", "payment", "reference", "budget_micro"}
    assert result["task"]["payment"] == "log"
    assert sum(Fraction(str(p)) for p in result["task"]["reference"]) == 1
    assert len(result["participants"]) == people
    assert [r["round"] for r in result["rounds"]] == list(range(1, rounds + 1))
    for participant in result["participants"]:
        assert {
            "id", "strategy", "effort", "claimed_degree", "true_degree", "measured_degree", "cost", "paid_micro",
            "expected_micro", "utility", "verdicts",
        } <= participant.keys()  # fmt: skip
        assert participant["strategy"] in ("honest", "over-claim", "free-ride")
        assert isinstance(participant["paid_micro"], int)
        for name in ("effort", "claimed_degree", "true_degree", "measured_degree"):
            assert 0 <= participant[name] <= 1
        assert participant["utility"] == pytest.approx(participant["paid_micro"] / 1e6 - participant["cost"])
    assert json.loads((market.folder / "result.json").read_text()) == result


@pytest.mark.extended
def test_the_model_is_good_and_the_payments_keep_within_the_budget(whole: Run) -> None:
    assert whole.result["rounds"][-1]["accuracy"] >= 0.90
    assert (
        0 < sum(p["paid_micro"] for p in whole.result["participants"]) <= whole.result["task"]["budget_micro"]
    )


@pytest.mark.extended
def test_honest_participants_are_paid_and_their_claims_are_true(whole: Run) -> None:
    honest = [p for p in whole.result["participants"] if p["strategy"] == "honest"]
    assert min(p["true_degree"] for p in honest) < 0.01
    assert max(p["true_degree"] for p in honest) == pytest.approx(0.8, abs=0.01)
    for participant in honest:
        assert participant["paid_micro"] > 0
        assert participant["claimed_degree"] == pytest.approx(participant["true_degree"])


@pytest.mark.extended
@pytest.mark.parametrize(("strategy", "screen"), [("over-claim", "claim"), ("free-ride", "echo")])
def test_dishonesty_is_paid_less_than_honesty_with_the_same_data(
    whole: Run, strategy: str, screen: str
) -> None:
    people = by_id(whole)
    (member,) = [m for m in population(8, 10) if m.strategy == strategy]
    assert people[member.id]["true_degree"] == people[member.twin or ""]["true_degree"]
    assert people[member.id]["paid_micro"] < people[member.twin or ""]["paid_micro"]
    assert screen in {v["screen"] for v in people[member.id]["verdicts"] if not v["passed"]}


def test_everything_lands_in_the_folder(market: Run) -> None:
    names = {p.name for p in market.folder.iterdir()}
    assert {
        "result.json",
        "report.html",
        "ledger",
        "logs",
        "accuracy.png",
        "degrees.png",
        "payments.png",
    } <= names
    assert all(
        (market.folder / "logs" / f"{name}.log").stat().st_size for name in ["coordinator", *by_id(market)]
    )
    assert (market.folder / "payments.png").read_bytes().startswith(b"\x89PNG")


def test_the_ledger_checks_again_on_its_own_and_not_after_a_byte_has_changed(
    market: Run, tmp_path: Path
) -> None:
    sound = commands.fedpeer("ledger", "verify", str(market.folder), "--json")
    assert sound.returncode == 0, sound.stderr
    assert json.loads(sound.stdout)["root"] == market.result["ledger"]["root"]

    copy = tmp_path / "copy"
    shutil.copytree(market.folder / "ledger", copy / "ledger")
    (bundle, *_) = sorted((copy / "ledger" / "tile" / "entries").rglob("*"), key=lambda p: p.is_dir())
    data = bytearray(bundle.read_bytes())
    data[len(data) // 2] ^= 1
    bundle.write_bytes(data)
    assert commands.fedpeer("ledger", "verify", str(copy)).returncode == 1


@pytest.mark.slow  # test_workers_market.py plays the same task twice, with other processes
def test_the_same_seed_gives_the_same_payments(tmp_path: Path) -> None:
    """However the processes of two small markets come one after another."""
    paid = []
    for name in ("once", "again"):
        done = fedpeer(
            "demo", "--participants", "5", "--rounds", "1", "--json", "--out", str(tmp_path / name)
        )
        assert done.returncode == 0, done.stderr
        paid.append({p["id"]: p["paid_micro"] for p in json.loads(done.stdout)["participants"]})
    assert paid[0] == paid[1]
    assert len(set(paid[0].values())) > 1


def rank_correlation(result: dict[str, Any]) -> float:
    """Spearman's, of true degree and expected pay, over the honest."""
    honest = [p for p in result["participants"] if p["strategy"] == "honest"]
    found = spearmanr([p["true_degree"] for p in honest], [p["expected_micro"] for p in honest])
    return float(found.statistic)


@pytest.mark.extended
def test_better_data_are_expected_to_be_paid_more(whole: Run) -> None:
    assert rank_correlation(whole.result) <= -0.8


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_better_data_are_expected_to_be_paid_more_whatever_the_seed(tmp_path: Path) -> None:
    found = {}
    for seed in range(21):
        done = fedpeer("demo", "--json", "--seed", str(seed), "--out", str(tmp_path / "out"))
        assert done.returncode == 0, done.stderr
        found[seed] = rank_correlation(json.loads(done.stdout))
    assert max(found.values()) <= -0.8, found


@pytest.mark.parametrize("width", [80, 200])
def test_the_table_keeps_its_columns_on_a_narrow_terminal(width: int) -> None:
    members = population(8, 10)
    people = tuple(
        ParticipantResult(member, 1.0, 0.125, 0.125, None if i > 6 else 0.5, 10.5, 12_345_678, 12_345_678, ())
        for i, member in enumerate(members)
    )
    result = DemoResult(terms(), people, (), Report("demo", size=1, root="0" * 64), 1.0)
    console = Console(width=width, file=io.StringIO())
    print_result(result, console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    (head,) = [line for line in lines if "participant" in line and "effort" in line]
    assert head.split() == [
        "participant", "effort", "claimed", "true", "measured", "cost", "expected", "paid", "utility", "verdicts",
    ]  # fmt: skip
    (row,) = [line for line in lines if line.strip().startswith("honest-01")]
    assert len(row.split()) == 10
    assert "…" not in "".join(lines[: len(people) + 5])


def test_the_folder_of_a_demo_that_was_killed_is_replaced(small: Run, tmp_path: Path) -> None:
    del small  # after it, so that the data are read already
    out = tmp_path / "out"
    demo = subprocess.Popen(
        [sys.executable, "-m", "fedpeer", "demo", "--participants", "5", "--out", str(out)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while demo.poll() is None and not (out / "coordinator").exists():
        select.select([], [], [], 0.05)
    demo.kill()
    demo.wait()
    assert (out / "coordinator").exists()
    _make_room(out)
    assert [path.name for path in out.iterdir()] == [".fedpeer-demo"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--participants", "2"], "--participants is 2; expected 5 to 64"),
        (["--dataset", "imagenet"], "--dataset is 'imagenet'; expected one of digits, fashion-mnist"),
        (["--rounds", "0"], "--rounds is 0; expected 1 to 100"),
        (["--seed", "-1"], "--seed is -1"),
    ],
)
def test_bad_options_are_refused_in_a_sentence_and_leave_nothing(
    arguments: list[str], said: str, tmp_path: Path
) -> None:
    done = commands.fedpeer("demo", "--out", str(tmp_path / "out"), *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_the_demos_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    done = commands.fedpeer("demo", "--out", str(tmp_path))
    assert done.returncode == 2
    assert "not a demo's folder" in done.stderr
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def left_behind(folder: Path) -> list[str]:
    """Command lines of processes that work in `folder`."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # it has ended meanwhile
        if str(folder) in line:
            lines.append(line)
    return lines


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc to look for processes")
@pytest.mark.extended
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_every_process_of_the_demo(number: int, tmp_path: Path) -> None:
    out = tmp_path / "out"
    demo = subprocess.Popen(
        [sys.executable, "-m", "fedpeer", "demo", "--participants", "5", "--out", str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    log = out / "logs" / "coordinator.log"
    while demo.poll() is None and not (log.exists() and '"serving"' in log.read_text()):
        select.select([], [], [], 0.1)  # wait for the state, without a clock of our own
    assert left_behind(out)
    demo.send_signal(number)
    _, said = demo.communicate(timeout=120)
    assert demo.returncode == 130
    assert "interrupted: every process of the demo is stopped, and nothing is kept" in said
    assert left_behind(out) == []
    assert not out.exists()


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc to look for processes")
def test_an_interruption_while_the_task_is_opened_ends_it_and_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    demo = subprocess.Popen(
        [sys.executable, "-m", "fedpeer", "demo", "--out", str(out)], stderr=subprocess.PIPE, text=True
    )
    while demo.poll() is None and not (out / "coordinator").exists():
        select.select([], [], [], 0.02)
    demo.send_signal(signal.SIGINT)
    _, said = demo.communicate(timeout=120)
    assert demo.returncode == 130
    assert "Traceback" not in said
    assert not out.exists()
