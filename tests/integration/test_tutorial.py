"""docs/tutorial.md, block by block, in an empty folder: what a newcomer does."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.extended

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = ROOT / "docs" / "tutorial.md"

#: The tutorial's ports; a test must not meet another one's.
PORTS = {"7443": "17443", "7444": "17444"}


def test_the_tutorial_ends_in_paid_rounds(tmp_path: Path) -> None:
    script = ["set -e"]
    for kind, block in re.findall(r"^```(\w+)\n(.*?)^```", TUTORIAL.read_text(), re.DOTALL | re.MULTILINE):
        for published, ours in PORTS.items():
            block = block.replace(published, ours)
        if kind == "bash":
            script.append(block)
        else:
            name = re.match(r"# file: (\S+)\n", block)
            assert name is not None, "a file's block says its name"
            (tmp_path / name[1]).write_text(block)
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, module in (("python", ""), ("fedpeer", "-m fedpeer")):
        command = commands / name
        command.write_text(
            f'#!/bin/sh\nPYTHONPATH="{ROOT}:$PYTHONPATH" exec {sys.executable} {module} "$@"\n'
        )
        command.chmod(0o755)
    # `kill %1` needs job control's names; a script has them too.
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"},
    )  # fmt: skip
    logs = "\n".join(path.read_text() for path in sorted(tmp_path.glob("*/run.log")))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    for number in range(3):
        shown = subprocess.run(
            [str(commands / "fedpeer"), "participant", "earnings", "--json", "--config",
             f"cellar-{number}/participant.toml"],
            cwd=tmp_path, capture_output=True, text=True, check=True,
        )  # fmt: skip
        earned = json.loads(shown.stdout)
        assert [line["receipt"] for line in earned["rounds"]] == ["holds"] * 3
        assert earned["paid_micro"] > 0
