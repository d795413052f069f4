from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.storage.schema import migrate
from fedpeer.audit.sql.database import Database
from tests.backends import BACKENDS, scratch_url


@pytest.fixture(params=BACKENDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A migrated database of each kind."""
    with scratch_url(request.param, tmp_path) as url:
        opened = Database(url)
        migrate(opened)
        yield opened
        opened.close()
