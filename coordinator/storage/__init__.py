"""Where a coordinator keeps its state: one SQL database, SQLite or PostgreSQL, one schema."""
