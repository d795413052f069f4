import os
import sqlite3
from collections import Counter

import pytest

from coordinator.storage.schema import migrate
from fedpeer.audit.sql.database import Database
from tests.property.ledger_simulator import Simulation

#: Seeds in the default suite; FEDPEER_TEST_SEEDS asks for more, FEDPEER_TEST_FIRST_SEED starts elsewhere.
SEEDS = int(os.environ.get("FEDPEER_TEST_SEEDS", "200"))
FIRST = int(os.environ.get("FEDPEER_TEST_FIRST_SEED", "0"))
CHUNK = 20


@pytest.fixture(scope="module")
def template() -> sqlite3.Connection:
    """A migrated, empty database to start every seed from."""
    database = Database("sqlite://")
    migrate(database)
    copy = sqlite3.connect(":memory:")
    with database.read() as connection:
        connection.connection.dbapi_connection.backup(copy)  # type: ignore[union-attr]
    database.close()
    return copy


def simulate(seed: int, template: sqlite3.Connection) -> dict[str, int]:
    database = Database("sqlite://")
    with database.read() as connection:
        raw = connection.connection.dbapi_connection
    template.backup(raw)  # type: ignore[arg-type]
    try:
        return Simulation(seed, database).run()
    except AssertionError as error:
        pytest.fail(
            f"seed {seed}: {error}\nrun it alone: FEDPEER_TEST_FIRST_SEED={seed} FEDPEER_TEST_SEEDS=1"
        )
    finally:
        database.close()


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, CHUNK))
def test_the_ledger_is_the_model_after_every_step(first: int, template: sqlite3.Connection) -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(first, min(first + CHUNK, FIRST + SEEDS)):
        outcomes.update(simulate(seed, template))
    if min(CHUNK, SEEDS) == CHUNK:  # every kind of outcome happens, so none is tested in name only
        assert outcomes.keys() >= {
            "new", "known", "conflict", "refused",
            "killed in the transaction", "killed after the commit", "killed before the answer",
        }  # fmt: skip


def test_a_seed_gives_the_same_run_twice(template: sqlite3.Connection) -> None:
    assert simulate(7, template) == simulate(7, template)
