"""The pytest fixture `fedpeer_market`, which every project has that has fedpeer and pytest installed.

    def test_everybody_is_paid(fedpeer_market):
        market = fedpeer_market(MyTask, participants=3)
        assert all(report.paid_micro for report in market.run().values())

pytest imports this module in every run of such a project, so it imports nothing but pytest: the market is loaded by
the first test that asks for one.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fedpeer.testing import LocalMarket


@pytest.fixture
def fedpeer_market(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Callable[..., LocalMarket]]":
    """Makes markets: takes what `fedpeer.testing.LocalMarket` takes, returns it entered; all end with the test."""
    from fedpeer.testing import LocalMarket

    with ExitStack() as markets:

        def make(*arguments: Any, **options: Any) -> LocalMarket:
            folder: Path = options.pop("folder", None) or tmp_path_factory.mktemp("fedpeer-market")
            return markets.enter_context(LocalMarket(*arguments, folder=folder, **options))

        yield make
