"""What another distribution adds by entry point: used where it can be, refused in a sentence where it cannot."""

import json
import os
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from coordinator.errors import MarketTaskError
from coordinator.opening import prepare_task
from fedpeer.extensions import ATTACKS, ExtensionError, extension, extension_names
from fedpeer.learning.datasets import dataset_names, load_splits
from fedpeer.learning.errors import DataError
from fedpeer.testing.terms import task_config
from tests import commands
from tests.docs.test_extensions_page import written_extension

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's distribution in a folder on the path."""
    folder = written_extension(tmp_path / "site")
    monkeypatch.syspath_prepend(str(folder))
    return folder


def fedpeer(site: Path, *arguments: str) -> "CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "fedpeer", *arguments],
        cwd=site.parent, env={**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"},
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip


def test_names_are_listed_without_an_import(lab: Path) -> None:
    assert "flattery" in extension_names(ATTACKS)
    assert "my_lab" not in sys.modules
    assert "stripes" in dataset_names()


@pytest.mark.slow
@pytest.mark.arithmetic
def test_the_arena_takes_an_attack_a_rule_a_selection_and_an_aggregation(lab: Path) -> None:
    done = fedpeer(
        lab, "arena", "--attack", "flattery", "--attack", "echo", "--rule", "flat", "--rule", "paper",
        "--selection", "best-half", "--aggregation", "median", "--participants", "6", "--attackers", "1",
        "--rounds", "1", "--seeds", "1", "--shadows", "30", "--workers", "1", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rules = json.loads(done.stdout)["rules"]
    assert rules.keys() == {"flat", "paper"}
    assert rules["flat"]["attacks"].keys() == {"flattery", "echo"}
    assert rules["flat"]["honest"] < 6 + 6, "half of them were not selected"


def test_a_data_set_is_loaded_and_split_as_any_other(lab: Path) -> None:
    splits = load_splits("stripes", seed=1)
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [180, 60, 60]


def test_a_market_refuses_a_payment_rule_that_others_lack(lab: Path, tmp_path: Path) -> None:
    config = task_config(
        tmp_path,
        rule={"name": "flat"},
        reference=["1/2", "1/2"],
        schedule={"capacity": 3},
        initial_model="none",
    )
    with pytest.raises(
        MarketTaskError, match="those who verify the ledger lack it and could not recompute a payment"
    ):
        prepare_task(config, 0.0)


def test_the_first_mistake_is_one_sentence(lab: Path) -> None:
    done = commands.fedpeer("arena", "--attack", "broken")
    assert done.returncode == 2
    assert "'broken' of fedpeer.attacks (my-lab 1.0) cannot be loaded from my_lab:NOTHING" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_cannot_be_used_says_why(lab: Path) -> None:
    with pytest.raises(
        ExtensionError, match=r"there is no 'absent' in fedpeer.attacks; installed there: broken"
    ):
        extension(ATTACKS, "absent")
    with pytest.raises(DataError, match="the data set no-data gives an int; expected"):
        load_splits("no-data", seed=0)


def test_a_name_that_two_give_is_refused(lab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other" / "other_lab-2.0.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other-lab\nVersion: 2.0\n")
    (other / "entry_points.txt").write_text("[fedpeer.attacks]\nflattery = other:THING\n")
    monkeypatch.syspath_prepend(str(other.parent))
    with pytest.raises(ExtensionError, match=r"given by .*my-lab 1.0.*; uninstall all but one"):
        extension(ATTACKS, "flattery")
