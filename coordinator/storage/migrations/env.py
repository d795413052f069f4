"""Runs migrations on the connection that `coordinator.storage.schema.migrate` hands over, inside its transaction."""

from alembic import context

from coordinator.storage.schema import METADATA

connection = context.config.attributes["connection"]
context.configure(
    connection=connection, target_metadata=METADATA, transactional_ddl=False, transaction_per_migration=False
)
context.run_migrations()
