"""The example of docs/payouts.md, played: each command, and what it answers."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coordinator.cli import app
from coordinator.config import ServiceConfig, parse_config
from coordinator.folder import StateFolder
from tests.coordinator.test_payouts import SHAPE
from tests.coordinator.test_transaction import Mirrored, Service
from tests.integration.market import CONFIG, make_folder, verified

PAGE = Path(__file__).resolve().parents[2] / "docs" / "payouts.md"

#: What the hospitals of the page are called in the ledger that the test plays; as long, for the tables' sake.
NAMES = {"nord": "p000", "east": "p001", "city": "p002", "west": "p003"}
HOSPITALS = {own: name for name, own in NAMES.items()}


def steps(page: str) -> Iterator[tuple[str, str]]:
    """Each command of the example, and the answer that the page shows."""
    for block in re.findall(r"(?ms)^```console\n(.*?)^```$", page):
        for step in re.findall(r"(?ms)^\$ fedpeer coordinator (.*?)(?=^\$ |\Z)", block):
            command, _, answer = step.partition("\n")
            yield command, answer


def answers(folder: StateFolder, page: str) -> list[str]:
    """What the commands answer; the task is played after the first, which pays for it."""
    service = Service(folder.database_url(folder.config()))
    task = Mirrored(service, SHAPE)
    runner, found = CliRunner(), []
    for command, _ in steps(page):
        words = [NAMES.get(word, word) for word in shlex.split(command)]
        done = runner.invoke(app, [*words, "--state", str(folder.path)])
        assert done.exit_code == 0, (command, done.output)
        if not found:
            task.play()
        told = done.stdout.replace(str(folder.path), "market")
        told = re.sub("|".join(NAMES.values()), lambda own: HOSPITALS[own[0]], told)
        told = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "2026-11-29 09:30 UTC", told)
        found.append("".join(f"{line.rstrip()}\n" for line in told.splitlines()))
    service.close()
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateFolder:
    """A market of the page's coordinator.toml."""
    monkeypatch.setenv("COLUMNS", "120")
    [section] = re.findall(r"(?ms)^```toml\n(\[payouts\].*?)^```$", PAGE.read_text())
    config = CONFIG.replace('name = "test"', 'name = "market.example.org"') + section
    assert parse_config(config, ServiceConfig, Path("coordinator.toml")).payouts.holder
    return make_folder(tmp_path / "market", config)


def test_the_example_is_what_the_commands_answer(folder: StateFolder) -> None:
    page = PAGE.read_text()
    shown = list(steps(page))
    assert len(shown) >= 10
    for (command, answer), told in zip(shown, answers(folder, page), strict=True):
        assert f"\n{told}" == f"\n{answer}", command
    verified(folder)
