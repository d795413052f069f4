"""Claims keep the commitment to private label counts, which a dispute opens."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Empty in claims of an older version: their counts, if private, cannot be disputed; their terms allow none.
    op.add_column("claims", sa.Column("counts_commitment", sa.LargeBinary(32)))


def downgrade() -> None:
    raise NotImplementedError("a market is never taken back; restore the backup from before the upgrade")
