"""The market's web pages: the operator's tasks, a participant's payments with their reasons, the public ledger, and a
verification by the verifier.

The console is a process of its own. It reads the database, read-only, and computes nothing about money that the
mechanism and the verifier do not compute. What an operator changes goes through `coordinator.operator`, as the commands
do. `routes` says who may see what, `records` what a page shows, `templates/` how.
"""
