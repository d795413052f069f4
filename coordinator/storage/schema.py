"""All of the coordinator's tables, whichever module declares them, and how a database comes to have them."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import inspect, text

from coordinator.storage import market_tables
from fedpeer.audit.sql import tables
from fedpeer.audit.sql.database import Database, refuse_unknown, revision, sqlite_file

METADATA = tables.METADATA

#: The modules that declare tables; importing them is what fills the metadata.
DECLARED_IN = (tables, market_tables)

MIGRATIONS = Path(__file__).parent / "migrations"


def migrate(database: Database) -> None:
    """Brings the schema to this version, in one transaction; does nothing where it is there.

    Raises:
        UnknownSchema: the database was written by a newer version.
        StorageError: as `Database.begin`.
    """
    with database.begin() as connection:
        if (
            database.dialect == "postgresql"
        ):  # two coordinators that start at once migrate one after the other
            connection.execute(text("SELECT pg_advisory_xact_lock(7313726543)"))
        refuse_unknown(revision(connection))
        config = configuration()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def configuration() -> Config:
    """Alembic's configuration: where the migrations lie."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config


def erase(database: Database) -> None:
    """Takes away what `migrate` makes, with all that is in it: for what has just been made and will not be used."""
    database.close()
    path = sqlite_file(database.url)
    if database.dialect == "sqlite":
        for end in ("", "-wal", "-shm", "-journal") if path is not None else ():
            Path(f"{path}{end}").unlink(missing_ok=True)
        return
    with database.begin() as connection:
        for name in {*METADATA.tables, "alembic_version"} & set(inspect(connection).get_table_names()):
            connection.execute(text(f"DROP TABLE {name} CASCADE"))
        functions = connection.execute(
            text(
                "SELECT proname FROM pg_proc WHERE pronamespace = current_schema()::regnamespace "
                "AND proname LIKE 'ledger\\_%' AND prorettype = 'trigger'::regtype"
            )
        )
        for name in functions.scalars().all():
            connection.execute(text(f"DROP FUNCTION {name}()"))
