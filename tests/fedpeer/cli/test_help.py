"""What `--help` says of every command."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "command", ["demo", "coordinator open", "participant run", "ledger verify", "figures", "plan"]
)
def test_a_flag_is_shown_as_one_and_not_as_an_option_with_a_value(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedpeer", *command.split(), "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--help" in done.stdout
    assert "bool" not in done.stdout.lower()
