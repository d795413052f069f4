"""How tests run everywhere: properties by their number of examples, without a deadline; what is long starts first."""

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from fedpeer.pytest_plugin import fedpeer_market  # noqa: F401 - the fixture, also where the package is not installed
from tests.forked import CONTEXT

settings.register_profile("fedpeer", deadline=None)
settings.load_profile("fedpeer")

# A shell ignores Ctrl-C for what it starts in the background, and every process that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _forked() -> Iterator[None]:
    """Workers of this process begin at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedpeer.learning.workers._CONTEXT", CONTEXT)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
