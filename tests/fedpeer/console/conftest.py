"""One market that was played to its end, for the tests of a module."""

from collections.abc import Iterator

import pytest

from fedpeer.testing import LocalMarket
from tests.fedpeer.console.visiting import Visited, visited

#: Three participants, two rounds, on claimed degrees that are verified by nobody.
TERMS = {"rule": {"name": "paper", "peers": 1, "stake_micro": 500_000}}


@pytest.fixture(scope="module")
def market() -> Iterator[LocalMarket]:
    with LocalMarket(participants=3, rounds=2, terms=TERMS) as played:
        played.run()
        yield played


@pytest.fixture(scope="module")
def console(market: LocalMarket) -> Iterator[Visited]:
    with visited(market.coordinator.folder, market.coordinator.clock) as served:
        yield served
