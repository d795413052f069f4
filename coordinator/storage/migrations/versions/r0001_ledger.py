"""The ledger: log, entries, tiles, accounts, transfers, heads, and the rules that the database itself keeps."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_APPEND_ONLY = ("ledger_bundles", "ledger_ids", "ledger_transfers", "ledger_checkpoints", "ledger_keys")
_SUMS = ("debits_posted", "credits_posted", "debits_pending", "credits_pending")


def upgrade() -> None:
    _create_log_tables()
    _create_money_tables()
    statements = _sqlite_rules() if op.get_bind().dialect.name == "sqlite" else _postgresql_rules()
    for statement in statements:
        op.get_bind().exec_driver_sql(statement)
    op.execute("INSERT INTO ledger_log (id, size) VALUES (1, 0)")
    op.execute(
        "INSERT INTO ledger_totals (id, debits_posted, credits_posted, debits_pending, credits_pending)"
        " VALUES (1, 0, 0, 0, 0)"
    )


def downgrade() -> None:
    raise NotImplementedError("a ledger is never taken back; restore the backup from before the upgrade")


def _create_log_tables() -> None:
    row_key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "ledger_log",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("verification_key", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_ledger_log"),
        sa.CheckConstraint("id = 1", name="ck_ledger_log_single"),
        sa.CheckConstraint("size >= 0", name="ck_ledger_log_size"),
    )
    op.create_table(
        "ledger_bundles",
        sa.Column("first_index", row_key, autoincrement=False, nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("first_index", name="pk_ledger_bundles"),
        sa.CheckConstraint("count >= 1", name="ck_ledger_bundles_count"),
    )
    op.create_table(
        "ledger_ids",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("entry_index", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_ledger_ids"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "ledger_tiles",
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("tile_index", sa.BigInteger(), nullable=False),
        sa.Column("hashes", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("level", "tile_index", name="pk_ledger_tiles"),
    )
    op.create_table(
        "ledger_keys",
        sa.Column("number", row_key, autoincrement=False, nullable=False),
        sa.Column("entry_index", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("entry", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_ledger_keys"),
    )
    op.create_table(
        "ledger_checkpoints",
        sa.Column("size", row_key, autoincrement=False, nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("size", name="pk_ledger_checkpoints"),
    )


def _create_money_tables() -> None:
    op.create_table(
        "ledger_accounts",
        sa.Column("name", sa.Text(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in _SUMS),
        sa.PrimaryKeyConstraint("name", name="pk_ledger_accounts"),
        sa.CheckConstraint(
            "debits_posted >= 0 AND credits_posted >= 0 AND debits_pending >= 0 AND credits_pending >= 0",
            name="ck_ledger_accounts_sign",
        ),
        sa.CheckConstraint(
            "name = 'treasury' OR debits_posted + debits_pending <= credits_posted",
            name="ck_ledger_accounts_overdraft",
        ),
    )
    op.create_table(
        "ledger_transfers",
        sa.Column("entry_index", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("operation", sa.Text(), nullable=False),
        sa.Column("debit", sa.Text(), nullable=False),
        sa.Column("credit", sa.Text(), nullable=False),
        sa.Column("micro", sa.BigInteger(), nullable=False),
        sa.Column("reservation", sa.Text()),
        sa.Column("held", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("entry_index", "position", name="pk_ledger_transfers"),
        sa.UniqueConstraint("reservation", "operation", name="uq_ledger_transfers_reservation_operation"),
        sa.ForeignKeyConstraint(["debit"], ["ledger_accounts.name"], name="fk_ledger_transfers_debit"),
        sa.ForeignKeyConstraint(["credit"], ["ledger_accounts.name"], name="fk_ledger_transfers_credit"),
        sa.CheckConstraint("debit <> credit", name="ck_ledger_transfers_two_accounts"),
        sa.CheckConstraint(
            "(operation = 'post' AND reservation IS NULL AND held = 0 AND micro > 0)"
            " OR (operation = 'reserve' AND reservation IS NOT NULL AND held = 0 AND micro > 0)"
            " OR (operation = 'resolve' AND reservation IS NOT NULL AND held > 0"
            " AND micro >= 0 AND micro <= held)",
            name="ck_ledger_transfers_operation",
        ),
    )
    op.create_table(
        "ledger_totals",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in _SUMS),
        sa.PrimaryKeyConstraint("id", name="pk_ledger_totals"),
        sa.CheckConstraint("id = 1", name="ck_ledger_totals_single"),
        sa.UniqueConstraint(
            "credits_posted", "credits_pending", name="uq_ledger_totals_credits_posted_credits_pending"
        ),
        sa.ForeignKeyConstraint(
            ["debits_posted", "debits_pending"],
            ["ledger_totals.credits_posted", "ledger_totals.credits_pending"],
            name="fk_ledger_totals_balance",
            deferrable=True,
            initially="DEFERRED",
        ),
    )


#: What a transfer adds to the posted and to the pending sum of both of its accounts.
_POSTED = "CASE NEW.operation WHEN 'reserve' THEN 0 ELSE NEW.micro END"
_PENDING = "CASE NEW.operation WHEN 'reserve' THEN NEW.micro WHEN 'resolve' THEN -NEW.held ELSE 0 END"

#: A resolve must name a reservation between the same accounts and release exactly what it holds.
_RESERVED = """
    SELECT 1 FROM ledger_transfers r
    WHERE r.operation = 'reserve' AND r.reservation = NEW.reservation
      AND r.debit = NEW.debit AND r.credit = NEW.credit AND r.micro = NEW.held
"""
_NO_RESERVATION = "a resolve must release exactly one existing reservation"


def _apply_to_accounts() -> str:
    return f"""
    UPDATE ledger_accounts SET
        debits_posted = debits_posted + {_POSTED}, debits_pending = debits_pending + {_PENDING}
    WHERE name = NEW.debit;
    UPDATE ledger_accounts SET
        credits_posted = credits_posted + {_POSTED}, credits_pending = credits_pending + {_PENDING}
    WHERE name = NEW.credit;
    """


def _add_to_totals(new: str | None, old: str | None) -> str:
    def change(column: str) -> str:
        return (f" + {new}.{column}" if new else "") + (f" - {old}.{column}" if old else "")

    changes = ", ".join(f"{column} = {column}{change(column)}" for column in _SUMS)
    return f"UPDATE ledger_totals SET {changes} WHERE id = 1;"


def _sqlite_rules() -> list[str]:
    rules = [
        f"""
        CREATE TRIGGER ledger_transfer_checked BEFORE INSERT ON ledger_transfers BEGIN
            SELECT RAISE(ABORT, '{_NO_RESERVATION}')
            WHERE NEW.operation = 'resolve' AND NOT EXISTS ({_RESERVED});
            INSERT INTO ledger_accounts VALUES (NEW.debit, 0, 0, 0, 0) ON CONFLICT DO NOTHING;
            INSERT INTO ledger_accounts VALUES (NEW.credit, 0, 0, 0, 0) ON CONFLICT DO NOTHING;
        END
        """,
        f"""
        CREATE TRIGGER ledger_transfer_applied AFTER INSERT ON ledger_transfers BEGIN
            {_apply_to_accounts()}
        END
        """,
    ]
    for event, new, old in (("INSERT", "NEW", None), ("UPDATE", "NEW", "OLD"), ("DELETE", None, "OLD")):
        rules.append(
            f"CREATE TRIGGER ledger_totals_{event.lower()} AFTER {event} ON ledger_accounts BEGIN "
            f"{_add_to_totals(new, old)} END"
        )
    for table in _APPEND_ONLY:
        for event in ("UPDATE", "DELETE"):
            rules.append(
                f"CREATE TRIGGER {table}_no_{event.lower()} BEFORE {event} ON {table} BEGIN "
                f"SELECT RAISE(ABORT, 'rows of {table} are never changed or removed'); END"
            )
    return rules


def _postgresql_rules() -> list[str]:
    rules = [
        f"""
        CREATE FUNCTION ledger_transfer_checked() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF NEW.operation = 'resolve' AND NOT EXISTS ({_RESERVED}) THEN
                RAISE EXCEPTION '{_NO_RESERVATION}';
            END IF;
            INSERT INTO ledger_accounts VALUES (NEW.debit, 0, 0, 0, 0), (NEW.credit, 0, 0, 0, 0)
                ON CONFLICT DO NOTHING;
            RETURN NEW;
        END $$
        """,
        f"""
        CREATE FUNCTION ledger_transfer_applied() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            {_apply_to_accounts()}
            RETURN NULL;
        END $$
        """,
        "CREATE TRIGGER ledger_transfer_checked BEFORE INSERT ON ledger_transfers "
        "FOR EACH ROW EXECUTE FUNCTION ledger_transfer_checked()",
        "CREATE TRIGGER ledger_transfer_applied AFTER INSERT ON ledger_transfers "
        "FOR EACH ROW EXECUTE FUNCTION ledger_transfer_applied()",
        """
        CREATE FUNCTION ledger_append_only() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            RAISE EXCEPTION 'rows of %% are never changed or removed', TG_TABLE_NAME;
        END $$
        """,
    ]
    for event, new, old in (("INSERT", "NEW", None), ("UPDATE", "NEW", "OLD"), ("DELETE", None, "OLD")):
        name = f"ledger_totals_{event.lower()}"
        rules.append(
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"{_add_to_totals(new, old)} RETURN NULL; END $$"
        )
        rules.append(
            f"CREATE TRIGGER {name} AFTER {event} ON ledger_accounts FOR EACH ROW EXECUTE FUNCTION {name}()"
        )
    for table in _APPEND_ONLY:
        rules.append(
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION ledger_append_only()"
        )
        rules.append(
            f"CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION ledger_append_only()"
        )
    return rules
