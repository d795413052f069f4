"""Processes that this one begins, forked from a server that has imported what they need: with torch that takes seconds
of a CPU, for each process that is begun anew. The server has no threads: those of gRPC do not survive a fork.

Commands that tests start as processes of their own begin theirs anew, as an installed `fedpeer` does.
"""

import multiprocessing

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "fedpeer.evidence",
        "fedpeer.experiments.arena.running",
        "fedpeer.learning.workloads.loading",
        "fedpeer.learning.workloads.sklearn",
        "fedpeer.learning.workloads.torch",
        "tests.chaos.test_ledger_kills",
        "tests.chaos.test_payout_kills",
        "tests.integration.test_forgetting",
    ]
)
