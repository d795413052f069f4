"""The schema that the tables declare. A database of it is made by `coordinator.storage.schema.migrate`, at once."""

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None
