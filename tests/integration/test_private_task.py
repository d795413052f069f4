"""Terms that ask for noise, and owners with policies and limits, at a real coordinator."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from coordinator.errors import MarketTaskError
from mechanism.errors import FieldError
from mechanism.privacy import Gaussians
from participant import DeclinedError, Policy, Privacy
from participant.cli import app
from participant.journal import Journal
from tests.integration.market import verified
from tests.integration.serving import Served, Shift, served, stepped, task_config

pytest.importorskip("opacus")

NAMES = ("ada", "ben", "cho")
NOISE = {"method": "update", "clip": "0.5", "noise_multiplier": "8", "delta": "0.00001"}


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "coordinator") as running:
        yield running


def run_all(work: dict[str, Any]) -> dict[str, Any]:
    """What each function gives, each in a thread of its own."""
    found: dict[str, Any] = {}

    def run(name: str) -> None:
        try:
            found[name] = work[name]()
        except BaseException as error:
            found[name] = error

    threads = [threading.Thread(target=run, args=(name,)) for name in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return found


def test_a_task_with_noise_is_paid_and_accounted_for(coordinator: Served, tmp_path: Path) -> None:
    coordinator.open(recipe={"privacy": NOISE}, schedule={"rounds": 2, "retention_seconds": 86_400})
    people = {name: coordinator.participant(name, tmp_path) for name in NAMES}
    reports = run_all(
        {name: lambda name=name: people[name].run(Shift([25] * 4), "task", effort=0.0) for name in NAMES}  # type: ignore[misc]
    )
    assert all(report.paid_micro > 0 for report in reports.values()), reports
    for person in people.values():
        person.close()
    said = json.loads(CliRunner().invoke(app, ["status", "--state", str(tmp_path / "ada"), "--json"]).stdout)
    assert said["privacy"]["models"] == 2
    assert 1 < said["privacy"]["epsilon"] < 3
    text = CliRunner().invoke(app, ["status", "--state", str(tmp_path / "ada")]).stdout
    assert "privacy spent: 2 models, epsilon 1." in text
    assert verified(coordinator.folder).verified


def test_the_script_of_ones_own_sends_noise_too(coordinator: Served, tmp_path: Path) -> None:
    """With `submit`, weights are NumPy's and nobody's task object stands between."""
    coordinator.open(recipe={"privacy": NOISE}, schedule={"rounds": 1})
    own = Privacy("update", Decimal(1), Decimal(90), Decimal("0.1"))

    def loop(name: str) -> Any:
        with coordinator.participant(name, tmp_path) as person:
            joined = person.join("task", privacy=own)
            assert joined.privacy == own
            assert joined.terms.recipe.privacy != own
            joined.claim(0.0, [25] * 4)
            for round_ in joined.rounds():
                weights = round_.weights()
                round_.submit(stepped(weights), 100)
            return joined.report()

    reports = run_all({name: lambda name=name: loop(name) for name in NAMES})  # type: ignore[misc]
    assert all(report.paid_micro > 0 for report in reports.values()), reports
    journal = Journal(tmp_path / "ada" / "journal.db", writer=False)
    assert [(row.gaussians, row.delta) for row in journal.privacy()] == [(Gaussians(45.0, 1.0, 1), "0.1")]
    journal.close()


def test_a_policy_keeps_a_participant_out(coordinator: Served, tmp_path: Path) -> None:
    coordinator.open(schedule={"rounds": 1})
    with coordinator.participant("ada", tmp_path, policy=Policy(retention_days=30)) as person:
        with pytest.raises(DeclinedError, match="does not say when submitted models are deleted"):
            person.run(Shift([25] * 4), "task", effort=0.0)
        assert person.find_task() is None, "and it is not looked at again"
    said = json.loads(CliRunner().invoke(app, ["status", "--state", str(tmp_path / "ada"), "--json"]).stdout)
    assert [line["task"] for line in said["declined"]] == ["task"]
    assert said["tasks"] == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"recipe": {"privacy": {**NOISE, "method": "magic"}}}, "privacy.method"),
        ({"recipe": {"privacy": {**NOISE, "delta": "1"}}}, "privacy.delta"),
        ({"schedule": {"retention_seconds": -1}}, "retention_seconds"),
    ],
)
def test_a_task_file_that_cannot_be_opened(
    coordinator: Served, tmp_path: Path, changes: Any, said: str
) -> None:
    with pytest.raises((FieldError, MarketTaskError, ValueError), match=said):
        coordinator.open(**changes)


def test_a_task_file_with_privacy(tmp_path: Path) -> None:
    config = task_config(tmp_path, recipe={"privacy": NOISE})
    assert config.recipe.privacy is not None
    assert config.recipe.privacy.privacy() == Privacy(
        "update", Decimal("0.5"), Decimal(8), Decimal("0.00001")
    )


def test_a_workload_that_cannot_train_so_is_not_opened(tmp_path: Path) -> None:
    from sklearn.linear_model import SGDClassifier

    from coordinator.opening import _check_privacy
    from fedpeer.learning.workloads.sklearn import SklearnWorkload
    from mechanism.terms import Recipe

    own = SklearnWorkload(SGDClassifier(), features=3, classes=2)
    noise = Privacy("dp-sgd", Decimal(1), Decimal(1), Decimal("0.00001"))
    recipe = Recipe("custom", 1, 8, "sgd", Decimal("0.1"), 10, privacy=noise)
    with pytest.raises(FieldError, match="does not train by DP-SGD"):
        _check_privacy(recipe, own)
    _check_privacy(replace(recipe, privacy=replace(noise, method="update")), own)
