"""The market: participants, certificates, invitations, tasks, events, submissions, rounds, settlements."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_ID = sa.String(64)
_DIGEST = sa.LargeBinary(32)


def upgrade() -> None:
    _create_identity_tables()
    _create_task_tables()
    _create_submission_tables()
    _create_round_tables()


def downgrade() -> None:
    raise NotImplementedError("a market is never taken back; restore the backup from before the upgrade")


def _table(name: str, *columns: sa.Column[object], key: tuple[str, ...]) -> None:
    references = [sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=f"fk_{name}_task_id_tasks")]
    if not any(column.name == "task_id" for column in columns):
        references = []
    op.create_table(name, *columns, sa.PrimaryKeyConstraint(*key, name=f"pk_{name}"), *references)


def _create_identity_tables() -> None:
    _table(
        "participants",
        sa.Column("id", _ID, nullable=False),
        sa.Column("public_key", sa.Text(), nullable=False),
        sa.Column("enrolled_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double()),
        key=("id",),
    )
    op.create_table(
        "certificates",
        sa.Column("serial", sa.String(48), nullable=False),
        sa.Column("participant_id", _ID, nullable=False),
        sa.Column("pem", sa.Text(), nullable=False),
        sa.Column("issued_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double()),
        sa.PrimaryKeyConstraint("serial", name="pk_certificates"),
        sa.ForeignKeyConstraint(
            ["participant_id"], ["participants.id"], name="fk_certificates_participant_id_participants"
        ),
    )
    op.create_index("ix_certificates_participant_id", "certificates", ["participant_id"])
    op.create_table(
        "invitations",
        sa.Column("token_digest", _DIGEST, nullable=False),
        sa.Column("participant_id", _ID, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("serial", sa.String(48)),
        sa.PrimaryKeyConstraint("token_digest", name="pk_invitations"),
        sa.ForeignKeyConstraint(
            ["serial"], ["certificates.serial"], name="fk_invitations_serial_certificates"
        ),
    )
    op.create_index("ix_invitations_participant_id", "invitations", ["participant_id"])


def _create_task_tables() -> None:
    _table(
        "tasks",
        sa.Column("id", _ID, nullable=False),
        sa.Column("terms_json", sa.Text(), nullable=False),
        sa.Column("terms_digest", _DIGEST, nullable=False),
        sa.Column("root", sa.LargeBinary(32), nullable=False),
        sa.Column("settings_json", sa.Text(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("deadline", sa.Double()),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("model", _DIGEST, nullable=False),
        sa.Column("opened_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double()),
        sa.Column("reason", sa.Text()),
        key=("id",),
    )
    op.create_index("ix_tasks_state", "tasks", ["state"])
    _table(
        "events",
        sa.Column("task_id", _ID, nullable=False),
        sa.Column("cursor", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("deadline", sa.Double()),
        sa.Column("detail_json", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        key=("task_id", "cursor"),
    )


def _create_submission_tables() -> None:
    _table(
        "receipts",
        sa.Column("task_id", _ID, nullable=False),
        sa.Column("participant_id", _ID, nullable=False),
        sa.Column("submission_id", _ID, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("digest", _DIGEST, nullable=False),
        sa.Column("ledger_index", sa.BigInteger(), nullable=False),
        sa.Column("late", sa.Boolean(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        key=("task_id", "participant_id", "submission_id"),
    )
    _table(
        "claims",
        sa.Column("task_id", _ID, nullable=False),
        sa.Column("participant_id", _ID, nullable=False),
        sa.Column("submission_id", _ID, nullable=False),
        sa.Column("effort", sa.String(32), nullable=False),
        sa.Column("degree", sa.Text(), nullable=False),
        sa.Column("selected", sa.Boolean(), nullable=False),
        sa.Column("draw_head", _DIGEST, nullable=False),
        key=("task_id", "participant_id"),
    )
    _table(
        "uploads",
        sa.Column("task_id", _ID, nullable=False),
        sa.Column("participant_id", _ID, nullable=False),
        sa.Column("submission_id", _ID, nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("digest", _DIGEST, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        key=("task_id", "participant_id", "submission_id"),
    )
    op.create_index("ix_uploads_task_id_sequence", "uploads", ["task_id", "sequence"], unique=True)
    _table(
        "models",
        sa.Column("task_id", _ID, nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("participant_id", _ID, nullable=False),
        sa.Column("submission_id", _ID, nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("model_sha256", _DIGEST, nullable=False),
        sa.Column("model_bytes", sa.BigInteger(), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("draw_share", _DIGEST, nullable=False),
        key=("task_id", "round", "participant_id"),
    )
    _table(
        "failures",
        sa.Column("task_id", _ID, nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("participant_id", _ID, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        key=("task_id", "round", "participant_id"),
    )


def _create_round_tables() -> None:
    _table(
        "rounds",
        sa.Column("task_id", _ID, nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("start_model", _DIGEST, nullable=False),
        sa.Column("start_bytes", sa.BigInteger(), nullable=False),
        sa.Column("opened_at", sa.Double(), nullable=False),
        sa.Column("closed_at", sa.Double()),
        sa.Column("settled_at", sa.Double()),
        sa.Column("result_model", _DIGEST),
        sa.Column("accuracy", sa.String(32)),
        sa.Column("loss", sa.String(32)),
        sa.Column("ledger_size", sa.BigInteger()),
        sa.Column("fetched_at", sa.Double()),
        key=("task_id", "round"),
    )
    _table(
        "settlements",
        sa.Column("task_id", _ID, nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("participant_id", _ID, nullable=False),
        sa.Column("ledger_index", sa.BigInteger(), nullable=False),
        sa.Column("record_json", sa.Text(), nullable=False),
        key=("task_id", "round", "participant_id"),
    )
