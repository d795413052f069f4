"""All of the coordinator's tables, whichever module declares them, and how a database comes to have them.

A new database gets the declared tables at once and is marked with the last revision; an older one goes there by the
steps under `migrations/`. So who changes a declaration adds a step that makes the same change.
"""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, TypeDecorator, select, text, type_coerce

from coordinator.storage import store
from coordinator.storage.ledger_rules import FUNCTIONS, begin, choose_storage, lay_down
from fedpeer.audit.sql import tables
from fedpeer.audit.sql.database import Database, refuse_unknown, revision, sqlite_file
from fedpeer.audit.sql.statements import insert_all

METADATA = tables.METADATA

#: The modules that declare tables; importing them is what fills the metadata.
DECLARED_IN = (tables, store)

#: Rows that are copied at once.
_ROWS = 1000

MIGRATIONS = Path(__file__).parent / "migrations"


def migrate(database: Database, source: Connection | None = None) -> None:
    """Makes the schema or brings it to this version, in one transaction; does nothing where it is there.

    Args:
        source: another database of this version, of whatever kind: a new one gets its rows.

    Raises:
        UnknownSchema: the database was written by a newer version.
        StorageError: as `Database.begin`.
    """
    with database.begin() as connection:
        if database.dialect == "postgresql":
            # Two coordinators that start at once migrate one after the other.
            connection.execute(text("SELECT pg_advisory_xact_lock(7313726543)"))
        found = revision(connection)
        refuse_unknown(found)
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        config.attributes["connection"] = connection
        if found is None:
            METADATA.create_all(connection, checkfirst=False)
            choose_storage(connection)
            if source is None:
                begin(connection)
            else:
                _copy_rows(source, connection)
            lay_down(connection)  # last: its triggers would move the money of copied rows again
            command.stamp(config, "head")
        else:
            command.upgrade(config, "head")


def _copy_rows(source: Connection, target: Connection) -> None:
    for table in METADATA.sorted_tables:
        # As they are stored: a decorated type is a text, which is neither parsed nor written again.
        columns = [type_coerce(c, c.type.impl) if isinstance(c.type, TypeDecorator) else c for c in table.c]
        found = source.execute(select(*columns), execution_options={"yield_per": _ROWS})
        for rows in found.partitions():
            insert_all(target, table, [tuple(row) for row in rows])


def erase(database: Database) -> None:
    """Takes away what `migrate` makes, with all that is in it: for what has just been made and will not be used."""
    database.close()
    path = sqlite_file(database.url)
    if database.dialect == "sqlite":
        for end in ("", "-wal", "-shm", "-journal") if path is not None else ():
            Path(f"{path}{end}").unlink(missing_ok=True)
        return
    with database.begin() as connection:
        METADATA.drop_all(connection)
        connection.execute(text("DROP TABLE IF EXISTS alembic_version"))
        for name in FUNCTIONS:
            connection.execute(text(f"DROP FUNCTION IF EXISTS {name}()"))
