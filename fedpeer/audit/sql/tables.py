"""The ledger's tables. What holds money also holds the rules that keep it: constraints and triggers.

`ledger_transfers` is the only way to move money: a trigger applies each row to both accounts. `ledger_totals` is one
row that refers to itself, debits to credits, by a foreign key that is checked at commit: a transaction that leaves
the sums unequal does not commit, no matter which code wrote it.
"""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
)

#: Of all of the coordinator's tables.
METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

#: On SQLite an INTEGER primary key is the row's own key, which a BIGINT one is not.
_INDEX = BigInteger().with_variant(Integer(), "sqlite")

#: One row: how many entries there are, and whose log it is. Appending locks it.
LOG = Table(
    "ledger_log",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("size", BigInteger, nullable=False),
    Column("verification_key", Text, nullable=True),
    CheckConstraint("id = 1", name="single"),
    CheckConstraint("size >= 0", name="size"),
)

#: Entries, as they were appended: runs of consecutive ones in tlog-tiles bundle form.
BUNDLES = Table(
    "ledger_bundles",
    METADATA,
    Column("first_index", _INDEX, primary_key=True, autoincrement=False),
    Column("count", Integer, nullable=False),
    Column("data", LargeBinary, nullable=False),
    CheckConstraint("count >= 1", name="count"),
)

#: Ids compare byte by byte: PostgreSQL is slower with any other order.
_ID = Text().with_variant(Text(collation="C"), "postgresql")

#: Which entry has which id: what makes ids idempotent for ever.
IDS = Table(
    "ledger_ids",
    METADATA,
    Column("id", _ID, primary_key=True),
    Column("entry_index", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

#: The Merkle tree's nodes, by tile.
TILES = Table(
    "ledger_tiles",
    METADATA,
    Column("level", Integer, nullable=False),
    Column("tile_index", BigInteger, nullable=False),
    Column("hashes", LargeBinary, nullable=False),
    PrimaryKeyConstraint("level", "tile_index"),
)

_SUMS = ("debits_posted", "credits_posted", "debits_pending", "credits_pending")

#: Running sums of each account. Only triggers write here.
ACCOUNTS = Table(
    "ledger_accounts",
    METADATA,
    Column("name", Text, primary_key=True),
    *(Column(name, BigInteger, nullable=False) for name in _SUMS),
    CheckConstraint(" AND ".join(f"{name} >= 0" for name in _SUMS), name="sign"),
    CheckConstraint(
        "name = 'treasury' OR debits_posted + debits_pending <= credits_posted", name="overdraft"
    ),
)

#: Every movement of money, by the entry that ordered it.
TRANSFERS = Table(
    "ledger_transfers",
    METADATA,
    Column("entry_index", BigInteger, nullable=False),
    Column("position", Integer, nullable=False),
    Column("operation", Text, nullable=False),
    Column("debit", Text, nullable=False),
    Column("credit", Text, nullable=False),
    Column("micro", BigInteger, nullable=False),
    Column("reservation", Text, nullable=True),
    # What a resolve releases: the whole reservation, of which `micro` is posted. 0 for the others.
    Column("held", BigInteger, nullable=False),
    PrimaryKeyConstraint("entry_index", "position"),
    UniqueConstraint("reservation", "operation"),
    ForeignKeyConstraint(["debit"], ["ledger_accounts.name"]),
    ForeignKeyConstraint(["credit"], ["ledger_accounts.name"]),
    CheckConstraint("debit <> credit", name="two_accounts"),
    CheckConstraint(
        "(operation = 'post' AND reservation IS NULL AND held = 0 AND micro > 0)"
        " OR (operation = 'reserve' AND reservation IS NOT NULL AND held = 0 AND micro > 0)"
        " OR (operation = 'resolve' AND reservation IS NOT NULL AND held > 0"
        " AND micro >= 0 AND micro <= held)",
        name="operation",
    ),
)

#: Sums over all accounts.
TOTALS = Table(
    "ledger_totals",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    *(Column(name, BigInteger, nullable=False) for name in _SUMS),
    CheckConstraint("id = 1", name="single"),
    UniqueConstraint("credits_posted", "credits_pending"),
    ForeignKeyConstraint(
        ["debits_posted", "debits_pending"],
        ["ledger_totals.credits_posted", "ledger_totals.credits_pending"],
        name="fk_ledger_totals_balance",
        deferrable=True,
        initially="DEFERRED",
    ),
)

#: Enrolments and revocations in order: where each stands, the digest of the key history after it, and the entry, so
#: that a request for many of them does not read as many bundles; and the fingerprint of its key, by which it is found.
KEYS = Table(
    "ledger_keys",
    METADATA,
    Column("number", _INDEX, primary_key=True, autoincrement=False),
    Column("entry_index", BigInteger, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("entry", LargeBinary, nullable=False),
    Column("fingerprint", Text, nullable=False, index=True),
)

#: Every head that was ever signed.
CHECKPOINTS = Table(
    "ledger_checkpoints",
    METADATA,
    Column("size", _INDEX, primary_key=True, autoincrement=False),
    Column("note", Text, nullable=False),
)

#: Tables whose rows nobody changes or removes.
APPEND_ONLY = ("ledger_bundles", "ledger_ids", "ledger_transfers", "ledger_checkpoints", "ledger_keys")
