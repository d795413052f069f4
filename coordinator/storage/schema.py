"""All of the coordinator's tables, whichever module declares them."""

from coordinator.storage import ledger_tables, market_tables

METADATA = ledger_tables.METADATA

#: The modules that declare tables; importing them is what fills the metadata.
DECLARED_IN = (ledger_tables, market_tables)
