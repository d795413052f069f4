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


#: What happens to a row, and what it is called that comes and that goes by it.
_CHANGES = (("INSERT", "NEW", None), ("UPDATE", "NEW", "OLD"), ("DELETE", None, "OLD"))

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
    for event, new, old in _CHANGES:
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
        _function(
            "ledger_transfer_checked",
            f"""
            IF NEW.operation = 'resolve' AND NOT EXISTS ({_RESERVED}) THEN
                RAISE EXCEPTION '{_NO_RESERVATION}';
            END IF;
            INSERT INTO ledger_accounts VALUES (NEW.debit, 0, 0, 0, 0), (NEW.credit, 0, 0, 0, 0)
                ON CONFLICT DO NOTHING;
            RETURN NEW;
            """,
        ),
        _function("ledger_transfer_applied", f"{_apply_to_accounts()} RETURN NULL;"),
        _function(
            "ledger_append_only", "RAISE EXCEPTION 'rows of %% are never changed or removed', TG_TABLE_NAME;"
        ),
        _trigger("ledger_transfer_checked", "BEFORE INSERT ON ledger_transfers"),
        _trigger("ledger_transfer_applied", "AFTER INSERT ON ledger_transfers"),
    ]
    for event, new, old in _CHANGES:
        name = f"ledger_totals_{event.lower()}"
        rules.append(_function(name, f"{_add_to_totals(new, old)} RETURN NULL;"))
        rules.append(_trigger(name, f"AFTER {event} ON ledger_accounts"))
    for table in APPEND_ONLY:
        only = "ledger_append_only"
        rules.append(_trigger(f"{table}_append_only", f"BEFORE UPDATE OR DELETE ON {table}", only))
        rules.append(_trigger(f"{table}_no_truncate", f"BEFORE TRUNCATE ON {table}", only, "STATEMENT"))
    return rules


def _function(name: str, body: str) -> str:
    return f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$"


def _trigger(name: str, when: str, function: str = "", each: str = "ROW") -> str:
    return f"CREATE TRIGGER {name} {when} FOR EACH {each} EXECUTE FUNCTION {function or name}()"
