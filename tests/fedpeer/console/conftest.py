"""One market that was played to its end, with a payout on its way, for the tests of a module."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpeer.testing import LocalMarket
from tests.fedpeer.console.visiting import Visited, visited

#: Three participants, two rounds, on claimed degrees that are verified by nobody, paid for by a learner.
TERMS = {
    "leaderboard": True,
    "rule": {"name": "paper", "peers": 1, "stake_micro": 500_000},
    "price": {"credit": "0.75", "currency": "EUR"},
    "funder": "trust",
}

#: The operator's own account.
PAYER = """
[payouts]
holder = "Market Inc."
iban = "NL91ABNA0417164300"
"""


@pytest.fixture(scope="module")
def market() -> Iterator[LocalMarket]:
    with LocalMarket(participants=3, rounds=2, terms=TERMS) as played:
        played.run()
        config = played.coordinator.folder.path / "coordinator.toml"
        config.write_text(config.read_text() + PAYER)
        played.coordinator.operator(
            lambda o: o.set_bank_account("p1", "Clinic One", "DE89370400440532013000")
        )
        played.coordinator.operator(lambda o: o.pay_out())
        yield played


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `fedpeer arena --out` leaves it, with what is none of its files."""
    folder = tmp_path_factory.mktemp("results")
    (folder / "arena.json").write_text('{"<script>": 1}')
    (folder / "arena.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (folder / "page.html").write_text("<script>alert(1)</script>")
    (folder / "<b>.csv").write_text("a")
    (folder / "cells").mkdir()
    (folder / "out.csv").symlink_to("/etc/hostname")
    return folder


@pytest.fixture(scope="module")
def console(market: LocalMarket, results: Path) -> Iterator[Visited]:
    with visited(market.coordinator.folder, market.coordinator.clock, results) as served:
        yield served
