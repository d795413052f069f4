"""The coordinator: publishes tasks, takes claims and models, scores, settles and keeps the ledger."""
