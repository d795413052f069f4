"""The example of docs/payouts.md: each command, and what it answers."""

from pathlib import Path

import pytest

from tests.docs.payouts_example import PAGE, answers, market, steps
from tests.integration.market import verified


def test_the_example_is_what_the_commands_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this fails and the change is meant: python -m tests.docs.payouts_example writes the answers anew."""
    monkeypatch.setenv("COLUMNS", "120")
    page, folder = PAGE.read_text(), market(tmp_path / "market")
    shown = list(steps(page))
    assert len(shown) >= 10
    for (command, answer), told in zip(shown, answers(folder, page), strict=True):
        assert f"\n{told}" == f"\n{answer}", command
    verified(folder)
