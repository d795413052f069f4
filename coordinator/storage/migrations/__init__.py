"""Alembic's environment: one revision a file under versions/, applied by `coordinator.storage.schema.migrate`."""
