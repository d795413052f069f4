"""What the database itself keeps of the ledger's rules: triggers that move money, and rows that nobody changes.

`fedpeer.audit.sql.tables` declares the tables and their constraints.
"""

from sqlalchemy import Connection, insert

from fedpeer.audit.sql.tables import APPEND_ONLY, LOG, TOTALS

_SUMS = ("debits_posted", "credits_posted", "debits_pending", "credits_pending")

#: PostgreSQL's functions that the triggers call.
FUNCTIONS = (
    "ledger_transfer_checked",
    "ledger_transfer_applied",
    "ledger_append_only",
    "ledger_totals_insert",
    "ledger_totals_update",
    "ledger_totals_delete",
)


def lay_down(connection: Connection) -> None:
    """Puts new tables, which may have rows, under the ledger's rules."""
    sqlite = connection.dialect.name == "sqlite"
    for statement in _sqlite_rules() if sqlite else _postgresql_rules():
        connection.exec_driver_sql(statement)


def begin(connection: Connection) -> None:
    """The first rows of an empty ledger."""
    connection.execute(insert(LOG).values(id=1, size=0))
    connection.execute(insert(TOTALS).values(id=1, **dict.fromkeys(_SUMS, 0)))


def choose_storage(connection: Connection) -> None:
    """On PostgreSQL: hashes as they are, since they do not compress; bundles by LZ4, where the server has it."""
    if connection.dialect.name == "sqlite":
        return
    connection.exec_driver_sql("ALTER TABLE ledger_tiles ALTER COLUMN hashes SET STORAGE EXTERNAL")
    if connection.exec_driver_sql(
        "SELECT 'lz4' = ANY (enumvals) FROM pg_settings WHERE name = 'default_toast_compression'"
    ).scalar():
        connection.exec_driver_sql("ALTER TABLE ledger_bundles ALTER COLUMN data SET COMPRESSION lz4")


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
    for table in APPEND_ONLY:
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
    for table in APPEND_ONLY:
        rules.append(
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION ledger_append_only()"
        )
        rules.append(
            f"CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION ledger_append_only()"
        )
    return rules
