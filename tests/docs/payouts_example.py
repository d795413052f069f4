"""The example of docs/payouts.md, played.

python -m tests.docs.payouts_example      # writes the answers on the page anew
"""

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from typer.testing import CliRunner

from coordinator.cli import app
from coordinator.folder import StateFolder
from tests.coordinator.test_payouts import SHAPE
from tests.coordinator.test_transaction import Mirrored, Service
from tests.integration.market import CONFIG, make_folder

PAGE = Path(__file__).resolve().parents[2] / "docs" / "payouts.md"

#: What the hospitals of the page are called in the ledger that is played; as long, for the tables' sake.
NAMES = {"nord": "p000", "east": "p001", "city": "p002", "west": "p003"}
HOSPITALS = {own: name for name, own in NAMES.items()}

#: Each command of the example, and the answer that the page shows.
STEP = re.compile(r"(?ms)^\$ fedpeer coordinator (?P<command>[^\n]*)\n(?P<answer>.*?)(?=^\$ |^```)")


def steps(page: str) -> Iterator[tuple[str, str]]:
    return ((step["command"], step["answer"]) for step in STEP.finditer(page))


def market(path: Path) -> StateFolder:
    """A market of the page's coordinator.toml."""
    [section] = re.findall(r"(?ms)^```toml\n(\[payouts\].*?)^```$", PAGE.read_text())
    return make_folder(path, CONFIG.replace('name = "test"', 'name = "market.example.org"') + section)


def answers(folder: StateFolder, page: str) -> list[str]:
    """What the commands answer; the task is played after the first, which pays for it."""
    os.environ["COLUMNS"] = "120"
    service = Service(folder.database_url(folder.config()))
    task = Mirrored(service, SHAPE)
    runner, found = CliRunner(), list[str]()
    for command, _ in steps(page):
        words = [NAMES.get(word, word) for word in shlex.split(command)]
        done = runner.invoke(app, [*words, "--state", str(folder.path)])
        assert done.exit_code == 0, (command, done.output)
        if not found:
            task.play()
        told = done.stdout.replace(str(folder.path), "market")
        told = re.sub("|".join(HOSPITALS), lambda own: HOSPITALS[own[0]], told)
        told = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "2026-11-29 09:30 UTC", told)
        found.append("".join(f"{line.rstrip()}\n" for line in told.splitlines()))
    service.close()
    return found


def filled(page: str) -> str:
    """The page with the answers that the commands give."""
    with TemporaryDirectory() as scratch:
        told = iter(answers(market(Path(scratch) / "market"), page))
    return STEP.sub(lambda step: f"$ fedpeer coordinator {step['command']}\n{next(told)}", page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
