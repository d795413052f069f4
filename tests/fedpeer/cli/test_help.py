"""What `--help` says of every command."""

import pytest

from tests.commands import fedpeer


@pytest.mark.parametrize(
    "command", ["demo", "coordinator open", "participant run", "ledger verify", "figures", "plan"]
)
def test_a_flag_is_shown_as_one_and_not_as_an_option_with_a_value(command: str) -> None:
    done = fedpeer(*command.split(), "--help")
    assert done.returncode == 0
    assert "--help" in done.stdout
    assert "bool" not in done.stdout.lower()
